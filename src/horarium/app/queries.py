"""Every read that people and programs make, as JSON-able mappings; see `views.py` for their shapes.

Reads go through `Store.fetch` with Core selects and ride on indexes: a page of a list costs its length,
not the table's. What can't be had from an index is bounded: counts stop at `reads.COUNT_BOUND`, and a
filtered list of runs walks at most `reads.WALK` of them for one page, which may then be short and says where
to go on.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, Select, and_, literal, or_, select, true, tuple_

from horarium.app import views
from horarium.app.owed import OwedReport, owed_report
from horarium.app.paging import NO_FILTERS, Filters, Paging, page, token
from horarium.app.preview import preview_rule, preview_trigger
from horarium.app.reads import all_revisions, bounded, shadow_times, walk_runs
from horarium.app.records import Records
from horarium.app.selects import (
    IN_SHADOW,
    LIVE,
    NOT_ACTIVE,
    NOT_MANUAL,
    PENDING,
    SCHEDULED,
    equal,
    found_in,
    in_spec,
    is_key,
    is_slot,
    key_of,
    micros,
    run_row,
    run_select,
    skip_of,
    stored_source,
)
from horarium.app.shadow import Asked, ShadowReport
from horarium.app.slots import Slots
from horarium.app.status import Database, Health, Overview
from horarium.app.views import RunRow, View
from horarium.app.why import Why
from horarium.clock import Clock
from horarium.core.deployment import Pause
from horarium.core.freeze import GuardState
from horarium.core.instant import EPOCH, from_seconds, rfc3339, to_micros
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.plan import Window
from horarium.core.revision import Revision, Skip, Status, schedule_of, spans
from horarium.core.run import RunState
from horarium.core.spec import TargetSpec, TriggerSpec
from horarium.core.trigger import Trigger
from horarium.errors import InvalidInput, NotFound, Problem
from horarium.sources.base import Incumbents
from horarium.store import tables as t
from horarium.store.base import Store
from horarium.store.rows import backfill_of, pause_of, revision_of, trigger_of
from horarium.targets.base import TargetTraits

RUN_NAME = re.compile(r"[rm][0-9a-z]{5,29}")
"""What a run may be called: such a text may be a whole name, and is looked for as one first."""

EARLIEST = EPOCH - timedelta(days=700_000)
"""Where a range begins at the earliest, in the year 53: the instant before it must be an instant too."""

OWED_SHOWN = 1_000
"""Triggers that `owed` names."""

READY_WITHIN = 10.0
"""Seconds that the database has to answer whether we are ready: a balancer hears of a dead one within 15."""

BACKFILL_SHOWN = 1_000
BACKFILL_COUNTED = 100_000
"""Slots of a backfill that a preview names, and counts."""


class Queries:
    """See the module. Raises `NotFound`, `InvalidInput`, `StoreUnavailable`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        window: Window,
        late_after: timedelta,
        health: Health | None = None,
        database: Database | None = None,
        guard: int = 0,
        traits: Callable[[TargetSpec], TargetTraits] | None = None,
        incumbents: Incumbents | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.window = window
        self.late_after = late_after
        self.records = Records(store)
        self.guard = guard
        self.traits = traits
        self.incumbents = incumbents
        self.overview = Overview(
            store, clock, window.grace, late_after, health, database or Database("unknown", "")
        )

    async def ready(self) -> str | None:
        """Why the database can't serve now; None when it can. Raises nothing."""
        try:
            async with asyncio.timeout(READY_WITHIN):
                await self.store.fetch(select(t.trigger.c.id).limit(1))
        except TimeoutError:
            return f"the database has not answered for {READY_WITHIN:g} s"
        except Exception as error:  # readiness is a question, and any failure is its answer
            return f"{type(error).__name__}: {error}"
        return None

    async def status(self) -> View:
        """The whole at a glance; see docs/rest.md."""
        return await self.overview.view()

    async def owed_report(self, now: datetime) -> OwedReport:
        """What is owed at `now`, before any loop of this process has looked. Iterates over its lines."""
        return await owed_report(self.store, self.window, now, self.guard)

    async def owed(self) -> View:
        """What is owed now, by target and by trigger, and which targets know a run that they have had.

        That is what a person needs to know after the database was restored to an earlier moment.
        """
        now = await self.store.clock()
        report = await owed_report(self.store, self.window, now, self.guard, OWED_SHOWN)
        rows = await self.store.targets()
        slots: Counter[str] = Counter()
        for item in report.triggers:
            slots[item.target] += item.slots
        return {
            "now": rfc3339(now),
            "last_looked_at": views.moment(report.looked_at),
            "targets": [
                {
                    "name": row.spec.name,
                    "kind": row.spec.kind,
                    "frozen": row.frozen,
                    "owed": slots[row.spec.name],
                    **self._repeats(row.spec),
                }
                for row in rows
            ],
            "triggers": [item.view() for item in report.triggers],
            "more_triggers": report.more_triggers,
            "more_slots": report.more_slots,
            "at_least": report.at_least,
        }

    def _repeats(self, spec: TargetSpec) -> View:
        """What a target does with the name of a run that it has had before the database was restored."""
        traits = None if self.traits is None else self.traits(spec)
        if traits is None:
            return {"repeated_names": "unknown", "note": ""}
        if not traits.dedupes:
            return {"repeated_names": "unknown", "note": traits.note}
        if traits.names_kept_here:
            note = (
                "keeps its names in Horarium's database: a restore of that makes it run again what it has had"
            )
            return {"repeated_names": "forgotten", "note": note}
        return {"repeated_names": "known", "note": traits.note}

    # deployments and targets

    async def deployments(self, paging: Paging, filters: Filters = NO_FILTERS) -> View:
        """By key. Filters: project, domain, target, owner, source, withdrawn, q."""
        table = t.deployment
        key = (table.c.project, table.c.domain, table.c.name)
        statement = select(table).where(
            table.c.withdrawn if filters.withdrawn else table.c.withdrawn.is_(False),
            *equal(table, filters, "project", "domain"),
        )
        if filters.deployment is not None:
            statement = statement.where(table.c.name == filters.deployment)
        if filters.source is not None:
            statement = statement.where(table.c.source == stored_source(filters.source))
        statement = statement.where(*in_spec(table.c.spec, filters))
        if filters.q is not None:
            statement = statement.where(found_in(filters.q, key))
        after = paging.after("deployments", filters, (str, str, str))
        if after is not None:
            statement = statement.where(tuple_(*key) > tuple_(*map(literal, after)))
        rows = await self.store.fetch(statement.order_by(*key).limit(paging.limit + 1))
        return _page(
            "deployments",
            filters,
            paging,
            rows,
            views.deployment_view,
            lambda row: (row.project, row.domain, row.name),
        )

    async def deployment(self, key: DeploymentKey, *, withdrawn: bool = False) -> View:
        """One deployment with its triggers' keys; with `withdrawn` also one that its source has withdrawn.

        Raises `NotFound`.
        """
        table, trigger = t.deployment, t.trigger
        rows = await self.store.fetch(
            select(table).where(
                table.c.project == key.project,
                table.c.domain == key.domain,
                table.c.name == key.name,
                true() if withdrawn else table.c.withdrawn.is_(False),
            )
        )
        if not rows:
            raise NotFound("deployment", str(key))
        names = await self.store.fetch(
            select(trigger.c.name)
            .where(
                trigger.c.project == key.project,
                trigger.c.domain == key.domain,
                trigger.c.deployment == key.name,
                trigger.c.status != "deleted",
            )
            .order_by(trigger.c.name)
        )
        return {**views.deployment_view(rows[0]), "triggers": [f"{key}/{item.name}" for item in names]}

    async def keys_of(self, key: DeploymentKey) -> list[TriggerKey]:
        """The triggers of a deployment that are not deleted, by name. Raises `NotFound`."""
        await self.deployment(key)
        trigger = t.trigger.c
        mine = and_(
            trigger.project == key.project, trigger.domain == key.domain, trigger.deployment == key.name
        )
        rows = await self.store.fetch(select(trigger.name).where(LIVE, mine).order_by(trigger.name))
        return [TriggerKey(key.project, key.domain, key.name, row.name) for row in rows]

    async def targets(self, paging: Paging) -> View:
        """By name."""
        table, allowance = t.target, t.target_allowance
        statement = (
            select(table, allowance.c.frozen, allowance.c.looked_at)
            .outerjoin(allowance, allowance.c.target_id == table.c.id)
            .where(table.c.withdrawn.is_(False))
            .order_by(table.c.name)
            .limit(paging.limit + 1)
        )
        after = paging.after("targets", NO_FILTERS, (str,))
        if after is not None:
            statement = statement.where(table.c.name > after[0])
        rows = await self.store.fetch(statement)
        return _page("targets", NO_FILTERS, paging, rows, _target_row_view, lambda row: (row.name,))

    async def target_spec(self, name: str) -> TargetSpec:
        """The spec of a target, also of one that was withdrawn. Raises `NotFound`."""
        rows = await self.store.fetch(select(t.target).where(t.target.c.name == name))
        if not rows:
            raise NotFound("target", name)
        return TargetSpec.from_json(name, rows[0].spec)

    async def target(self, name: str) -> View:
        """One target, with what is due for it. Raises `NotFound`."""
        table, allowance = t.target, t.target_allowance
        rows = await self.store.fetch(
            select(table, allowance.c.frozen, allowance.c.looked_at, allowance.c.tokens)
            .outerjoin(allowance, allowance.c.target_id == table.c.id)
            .where(table.c.name == name, table.c.withdrawn.is_(False))
        )
        if not rows:
            raise NotFound("target", name)
        row = rows[0]
        due = await bounded(
            self.store,
            select(t.run.c.id).where(
                t.run.c.target_id == row.id, SCHEDULED, t.run.c.due_at <= self.clock.now()
            ),
        )
        return {**_target_row_view(row), "due": due}

    # triggers

    async def triggers(self, paging: Paging, filters: Filters = NO_FILTERS) -> View:
        """By key; deleted ones only under `status=deleted`. Filters: project, domain, deployment, target,
        owner, source, status, shadow, q."""
        trigger, revision = t.trigger, t.trigger_revision
        key = (trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name)
        statement = self._trigger_select().where(*equal(trigger, filters, "project", "domain", "deployment"))
        match filters.status:
            case None:
                statement = statement.where(trigger.c.status != Status.DELETED.value)
            case "error":
                statement = statement.where(trigger.c.error.is_not(None))
            case "active":
                statement = statement.where(trigger.c.status == "active")
            case status:
                statement = statement.where(trigger.c.status == status, NOT_ACTIVE)
        if filters.shadow is not None:
            statement = statement.where(IN_SHADOW if filters.shadow else trigger.c.shadow.is_(False))
        if filters.source is not None:
            stored = stored_source(filters.source)
            statement = statement.where(
                trigger.c.source.is_(None) if stored is None else trigger.c.source == stored
            )
        statement = statement.where(*in_spec(revision.c.spec, filters))
        if filters.q is not None:
            statement = statement.where(found_in(filters.q, key))
        after = paging.after("triggers", filters, (str, str, str, str))
        if after is not None:
            statement = statement.where(tuple_(*key) > tuple_(*map(literal, after)))
        rows = await self.store.fetch(statement.order_by(*key).limit(paging.limit + 1))
        last_runs = await self._runs_by_id([row.last_run_id for row in rows[: paging.limit]])
        return _page(
            "triggers",
            filters,
            paging,
            rows,
            lambda row: self._trigger_view(row, last_runs),
            lambda row: (row.project, row.domain, row.deployment, row.name),
        )

    async def trigger(self, key: TriggerKey) -> View:
        """One trigger. Raises `NotFound`, for a deleted one too."""
        rows = await self.store.fetch(self._trigger_select().where(is_key(key)))
        if not rows:
            raise NotFound("trigger", str(key), await self._near(key))
        row = rows[0]
        if row.status == Status.DELETED.value:
            raise NotFound(
                "trigger",
                str(key),
                f"it was deleted at {rfc3339(row.updated_at)}; 'why' still answers for it",
            )
        return self._trigger_view(row, await self._runs_by_id([row.last_run_id]))

    async def revisions(self, key: TriggerKey, paging: Paging) -> View:
        """The revisions of a trigger, newest first. Raises `NotFound`."""
        trigger = await self.trigger_row(key)
        table = t.trigger_revision
        statement = (
            select(table)
            .where(table.c.trigger_id == trigger.id)
            .order_by(table.c.number.desc())
            .limit(paging.limit + 1)
        )
        after = paging.after("revisions", Filters(trigger=key), (int, int))
        until: datetime | None = None
        if after is not None:
            statement = statement.where(table.c.number < after[0])
            until = micros(after[1], paging.token)
        rows = await self.store.fetch(statement)
        items = []
        for row in rows[: paging.limit]:
            items.append(views.revision_view(revision_of(row), until))
            until = row.effective_from
        more = None
        if len(rows) > paging.limit:
            last = rows[paging.limit - 1]
            more = token("revisions", Filters(trigger=key), (last.number, to_micros(last.effective_from)))
        return page(items, more)

    async def preview_trigger(
        self,
        key: TriggerKey,
        number: int,
        start: datetime | None = None,
        *,
        compare: str | None = None,
        year: int | None = None,
    ) -> View:
        """The next slots of a trigger's present rule. Raises `NotFound`, `InvalidInput`."""
        trigger = await self.trigger_row(key)
        spec = (await self._revision(trigger, trigger.revision)).spec
        after = start or self.clock.now()
        return preview_trigger(
            spec, trigger.hash_seed, start=after, number=number, compare=compare, year=year
        )

    def preview(
        self,
        words: Mapping[str, Any],
        number: int,
        start: datetime | None = None,
        key: str | None = None,
        *,
        compare: str | None = None,
        year: int | None = None,
    ) -> View:
        """The next slots of the rule that `words` mean. Raises `InvalidInput`."""
        after = start or self.clock.now()
        return preview_rule(words, start=after, number=number, key=key, compare=compare, year=year)

    async def trigger_row(self, key: TriggerKey) -> Trigger:
        """The trigger's row, deleted or not. Raises `NotFound`."""
        rows = await self.store.fetch(select(t.trigger).where(is_key(key)))
        if not rows:
            raise NotFound("trigger", str(key), await self._near(key))
        return trigger_of(rows[0])

    async def trigger_spec(self, trigger: Trigger) -> TriggerSpec:
        """The present spec of a trigger."""
        return (await self._revision(trigger, trigger.revision)).spec

    async def is_slot(self, key: TriggerKey, at: datetime) -> bool:
        """Whether `at` is a slot of the trigger, by the revision in force at it: active, paused, whatever
        policy decided. Raises `NotFound`."""
        trigger = await self.trigger_row(key)
        revisions = await all_revisions(self.store, trigger.id)
        (span,) = spans(revisions, at - timedelta(seconds=1), at)
        return is_slot(schedule_of(span.revision.spec, trigger.hash_seed), at)

    def _trigger_select(self) -> Select[Any]:
        """Triggers with their present spec, their next three slots and their last run's id."""
        trigger, revision = t.trigger, t.trigger_revision
        now = self.clock.now()
        run = t.run
        upcoming = (
            select(run.c.scheduled_time)
            .where(run.c.trigger_id == trigger.c.id, PENDING, run.c.scheduled_time > now)
            .order_by(run.c.scheduled_time)
            .correlate(trigger)
        )
        last_slot = (
            select(run.c.id)
            .where(run.c.trigger_id == trigger.c.id, NOT_MANUAL, run.c.scheduled_time <= now)
            .order_by(run.c.scheduled_time.desc())
            .limit(1)
            .correlate(trigger)
        )
        return select(
            trigger,
            revision.c.spec,
            revision.c.deployment_paused,
            *(upcoming.limit(1).offset(k).scalar_subquery().label(f"next_{k}") for k in range(3)),
            last_slot.scalar_subquery().label("last_run_id"),
        ).join(revision, and_(revision.c.trigger_id == trigger.c.id, revision.c.number == trigger.c.revision))

    def _trigger_view(self, row: Row[Any], last_runs: Mapping[int, View]) -> View:
        upcoming = [at for at in (row.next_0, row.next_1, row.next_2) if at is not None]
        spec = TriggerSpec.from_json(row.spec)
        last = None if row.last_run_id is None else last_runs.get(row.last_run_id)
        return views.trigger_view(
            trigger_of(row), spec, upcoming, last, deployment_paused=bool(row.deployment_paused)
        )

    async def _near(self, key: TriggerKey) -> str:
        """A hint for a key that is not there: the triggers of that name, or that deployment, elsewhere."""
        trigger = t.trigger
        rows = await self.store.fetch(
            select(trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name)
            .where(
                trigger.c.status != "deleted",
                or_(
                    and_(
                        trigger.c.project == key.project,
                        trigger.c.domain == key.domain,
                        trigger.c.deployment == key.deployment,
                    ),
                    trigger.c.deployment == key.deployment,
                ),
            )
            .limit(3)
        )
        if not rows:
            return ""
        return "there is " + ", ".join(views.short_key(key_of(row)) for row in rows)

    async def _revision(self, trigger: Trigger, number: int) -> Revision:
        table = t.trigger_revision
        rows = await self.store.fetch(
            select(table).where(table.c.trigger_id == trigger.id, table.c.number == number)
        )
        return revision_of(rows[0])

    # shadow

    async def must_be_source(self, source: str) -> None:
        """Raises `NotFound` for a source that manages nothing and was never listed."""
        if stored_source(source) is None:
            return
        rows = await self.store.fetch(select(t.source.c.name).where(t.source.c.name == source))
        if not rows:
            raise NotFound("source", source, "`horarium status` lists the sources")

    async def keys_by_shadow(self, shadow: bool, source: str | None, limit: int) -> list[TriggerKey]:
        """Some triggers that are in shadow, or are not: of a source, or of all."""
        trigger = t.trigger.c
        key = (trigger.project, trigger.domain, trigger.deployment, trigger.name)
        statement = select(*key).where(LIVE, IN_SHADOW if shadow else trigger.shadow.is_(False))
        if source is not None:
            stored = stored_source(source)
            statement = statement.where(
                trigger.source.is_(None) if stored is None else trigger.source == stored
            )
        rows = await self.store.fetch(statement.order_by(*key).limit(limit))
        return [key_of(row) for row in rows]

    async def shadows(
        self, trigger_id: int, low: datetime, high: datetime
    ) -> list[tuple[datetime, datetime]]:
        """The parts of `(low, high]` in which a trigger was in shadow, ascending, adjacent ones as one."""
        return (await shadow_times(self.store, [trigger_id], low, high)).get(trigger_id, [])

    async def shadow_report(self, asked: Asked) -> View:
        """What was decided in shadow beside what the other scheduler ran; see `app/shadow.py`."""
        assert self.incumbents is not None, "whoever reports is given where to learn of the other side"
        return await ShadowReport(self.store, self.why, self.incumbents, self.clock.now()).view(asked)

    # why

    async def why(self, key: TriggerKey, at: datetime) -> View:
        """One verdict for an instant of a trigger: fired, late, skipped, owed, planned, held, failed, never;
        or pruned, when retention has taken the record. Raises `NotFound`."""
        now = self.clock.now()
        trigger = await self.trigger_row(key)
        revisions = await all_revisions(self.store, trigger.id)
        run = await self._run_at(trigger, at)
        skip, skipped_at = await self._skip_at(trigger, at, revisions)
        stopped_by = None if run is None else await self._stopped_by(trigger, run)
        paused = await self._pause_of(key.deployment_key) if revisions[-1].deployment_paused else None
        return Why(
            trigger, revisions, at, now, run, skip, skipped_at, self.late_after, stopped_by, paused
        ).answer()

    async def _pause_of(self, key: DeploymentKey) -> Pause | None:
        table = t.deployment
        rows = await self.store.fetch(
            select(table).where(
                table.c.project == key.project, table.c.domain == key.domain, table.c.name == key.name
            )
        )
        return pause_of(rows[0]) if rows else None

    async def _stopped_by(self, trigger: Trigger, row: RunRow) -> str | None:
        """What keeps a pending run from being fired, in words: a freeze, the guard, a target that
        could not be started. Not a pause."""
        if row.run.state not in (RunState.SCHEDULED, RunState.HELD):
            return None
        freeze, allowance = t.freeze.c, t.target_allowance.c
        key = trigger.key
        places = [("deployment", str(key.deployment_key)), ("project", key.project)]
        if row.run.state is RunState.SCHEDULED:
            places = [("target", row.target), ("all", "")]
        elif not trigger.frozen:
            places = []
        frozen = await self.store.fetch(
            select(t.freeze).where(tuple_(freeze.kind, freeze.key).in_(places)).order_by(freeze.kind)
        )
        if frozen:
            note = f" ({frozen[0].note})" if frozen[0].note else ""
            what = f"{frozen[0].kind} {frozen[0].key} is" if frozen[0].key else "everything is"
            return f"{what} frozen by {frozen[0].who}{note} until somebody releases it"
        (target,) = await self.store.fetch(
            select(t.target_allowance).where(allowance.target_id == row.run.target_id)
        )
        if row.run.state is RunState.SCHEDULED:
            return f"target {row.target} is frozen" if target.frozen else self._not_started(row.target)
        if trigger.status is Status.PAUSED or target.guard_state != GuardState.HELD:
            return None
        return (
            f"too much of target {row.target} came due while nobody looked, from "
            f"{rfc3339(target.guard_from)} to {rfc3339(target.guard_until)} (catch_up_guard); "
            f"`horarium release --target {row.target}` says what becomes of it"
        )

    def _not_started(self, target: str) -> str | None:
        """Why this process has no such target, as far as it has any."""
        live = next((item for item in self.overview.targets() if item.name == target), None)
        if live is None or live.waiting != "unavailable" or live.error is None:
            return None
        return f"target {target} is unavailable: {live.error}"

    async def _run_at(self, trigger: Trigger, at: datetime) -> RunRow | None:
        rows = await self.store.fetch(
            run_select().where(t.run.c.trigger_id == trigger.id, t.run.c.scheduled_time == at, NOT_MANUAL)
        )
        return run_row(rows[0]) if rows else None

    async def _skip_at(
        self, trigger: Trigger, at: datetime, revisions: Sequence[Revision]
    ) -> tuple[Skip | None, datetime | None]:
        """The skip that holds `at` as a slot of its own revision's rule."""
        table = t.skip
        rows = await self.store.fetch(
            select(table)
            .where(table.c.trigger_id == trigger.id, table.c.last_time >= at, table.c.first_time <= at)
            .order_by(table.c.last_time)
            .limit(10)
        )
        specs = {item.number: item.spec for item in revisions}
        for row in rows:
            spec = specs.get(row.revision)
            if spec is None or is_slot(schedule_of(spec, trigger.hash_seed), at):
                return skip_of(row), row.at
        return None, None

    # runs

    async def runs(self, paging: Paging, filters: Filters = NO_FILTERS) -> View:
        """Newest slot first, what is planned before what was. Filters: project, domain, deployment, trigger,
        target, state, late, origin, owner, from, to, q. A page may be short of its limit and not the last."""
        now = self.clock.now()
        after = paging.after("runs", filters, (int, int))
        key = None if after is None else (micros(after[0], paging.token), int(after[1]))
        if after is None and (named := await self._named(filters)):
            return page([views.run_view(row, now, self.late_after) for row in named], None)
        trigger_id = None if filters.trigger is None else (await self.trigger_row(filters.trigger)).id
        rows, more = await walk_runs(
            self.store, filters, trigger_id, key, paging.limit, now, self.late_after, newest_first=True
        )
        items = [views.run_view(row, now, self.late_after) for row in rows]
        return page(items, None if more is None else token("runs", filters, (to_micros(more[0]), more[1])))

    async def _named(self, filters: Filters) -> list[RunRow]:
        """The runs whose whole name is `q`, if that is all that was asked: one look for each domain."""
        if filters != Filters(q=filters.q) or filters.q is None or not RUN_NAME.fullmatch(filters.q):
            return []
        table, run = t.deployment, t.run.c
        places = await self.store.fetch(select(table.c.project, table.c.domain).distinct().limit(500))
        if not places:
            return []
        each = (
            and_(run.project == place.project, run.domain == place.domain, run.name == filters.q)
            for place in places
        )
        return [run_row(row) for row in await self.store.fetch(run_select().where(or_(*each)).limit(500))]

    async def run(self, project: str, domain: str, name: str) -> View:
        """One run with its attempts. Raises `NotFound`."""
        row = await self.run_row(project, domain, name)
        table = t.attempt
        rows = await self.store.fetch(
            select(table).where(table.c.run_id == row.run.id).order_by(table.c.attempt).limit(1_000)
        )
        attempts = [
            {
                "attempt": item.attempt,
                "started_at": rfc3339(item.started_at),
                "answered_at": rfc3339(item.answered_at),
                "answer": item.answer,
                "reason": item.reason,
            }
            for item in rows
        ]
        return {**views.run_view(row, self.clock.now(), self.late_after), "attempts": attempts}

    async def run_row(self, project: str, domain: str, name: str) -> RunRow:
        """One run with its neighbours. Raises `NotFound`."""
        run = t.run.c
        rows = await self.store.fetch(
            run_select().where(run.project == project, run.domain == domain, run.name == name)
        )
        if not rows:
            raise NotFound("run", f"{project}/{domain}/{name}")
        return run_row(rows[0])

    async def run_by_id(self, run_id: int) -> View:
        """One run by the store's id. Raises `NotFound`."""
        found = await self._runs_by_id([run_id])
        if run_id not in found:
            raise NotFound("run", str(run_id))
        return found[run_id]

    async def logs(self, project: str, domain: str, name: str, offset: int = 0) -> View:
        """What a run of the local target wrote, from byte `offset` of what is kept. Raises `NotFound`.

        `offset` in the answer is where to go on; `total` counts all that was written, kept or not.
        """
        await self.run_row(project, domain, name)
        kept = await self.store.local_run(f"{project}/{domain}/{name}")
        if kept is None:
            return {
                "output": "",
                "offset": offset,
                "total": 0,
                "state": None,
                "exit_code": None,
                "detail": "no output here: the run was not started yet, or its target keeps its own logs",
            }
        piece, end = _whole_characters(kept.output, offset, kept.state in ("starting", "running"))
        return {
            "output": piece,
            "offset": end,
            "total": kept.output_total,
            "state": kept.state,
            "exit_code": kept.exit_code,
            "detail": kept.detail,
        }

    async def _runs_by_id(self, ids: Sequence[int | None]) -> dict[int, View]:
        wanted = [item for item in ids if item is not None]
        if not wanted:
            return {}
        now = self.clock.now()
        rows = await self.store.fetch(run_select().where(t.run.c.id.in_(wanted)))
        return {row.id: views.run_view(run_row(row), now, self.late_after) for row in rows}

    # skips, backfills, slots

    async def skips(self, paging: Paging, filters: Filters = NO_FILTERS) -> View:
        """Newest first. Filters: project, domain, deployment, trigger, from, to (of slots)."""
        skip, trigger = t.skip.c, t.trigger
        statement = select(
            t.skip, trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name
        ).join(trigger, trigger.c.id == skip.trigger_id)
        statement = statement.where(*equal(trigger, filters, "project", "domain", "deployment"))
        if filters.trigger is not None:
            statement = statement.where(skip.trigger_id == (await self.trigger_row(filters.trigger)).id)
        if filters.from_time is not None:
            statement = statement.where(skip.last_time >= filters.from_time)
        if filters.to_time is not None:
            statement = statement.where(skip.first_time < filters.to_time)
        after = paging.after("skips", filters, (int, int))
        if after is not None:
            at = tuple_(literal(micros(after[0], paging.token), skip.last_time.type), literal(after[1]))
            statement = statement.where(tuple_(skip.last_time, skip.id) < at)
        rows = await self.store.fetch(
            statement.order_by(skip.last_time.desc(), skip.id.desc()).limit(paging.limit + 1)
        )
        return _page(
            "skips",
            filters,
            paging,
            rows,
            lambda row: views.skip_view(key_of(row), skip_of(row), row.at),
            lambda row: (to_micros(row.last_time), row.id),
        )

    async def backfills(self, paging: Paging, filters: Filters = NO_FILTERS) -> View:
        """Newest first. Filters: project, domain, deployment, trigger, state."""
        backfill, trigger = t.backfill.c, t.trigger
        statement = self._backfill_select().where(*equal(trigger, filters, "project", "domain", "deployment"))
        if filters.trigger is not None:
            statement = statement.where(backfill.trigger_id == (await self.trigger_row(filters.trigger)).id)
        if filters.state is not None:
            statement = statement.where(backfill.state == filters.state)
        after = paging.after("backfills", filters, (int,))
        if after is not None:
            statement = statement.where(backfill.id < after[0])
        rows = await self.store.fetch(statement.order_by(backfill.id.desc()).limit(paging.limit + 1))
        return _page(
            "backfills",
            filters,
            paging,
            rows,
            lambda row: views.backfill_view(key_of(row), backfill_of(row)),
            lambda row: (row.id,),
        )

    async def backfill(self, backfill_id: int) -> View:
        """One backfill. Raises `NotFound`."""
        rows = await self.store.fetch(self._backfill_select().where(t.backfill.c.id == backfill_id))
        if not rows:
            raise NotFound("backfill", str(backfill_id))
        return views.backfill_view(key_of(rows[0]), backfill_of(rows[0]))

    @staticmethod
    def _backfill_select() -> Select[Any]:
        trigger = t.trigger
        return select(
            t.backfill, trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name
        ).join(trigger, trigger.c.id == t.backfill.c.trigger_id)

    async def backfill_preview(self, trigger: Trigger, from_time: datetime, to_time: datetime) -> View:
        """The slots that a backfill of `[from_time, to_time]` would fill: those without a run that ended.

        The first `BACKFILL_SHOWN` by name; `count` stops at `BACKFILL_COUNTED`.
        """
        run = t.run.c
        revisions = await all_revisions(self.store, trigger.id)
        slots = _slots_of(revisions, trigger.hash_seed, from_time, to_time)
        shown_slots: list[datetime] = []
        count, walked, more = 0, 0, False
        while not more:
            chunk = [slot for slot, _ in zip(slots, range(5_000), strict=False)]
            if not chunk:
                break
            first, last = from_seconds(chunk[0]), from_seconds(chunk[-1])
            # A pending automatic run is no obstacle: it becomes a backfill's.
            rows = await self.store.fetch(
                select(run.scheduled_time).where(
                    run.trigger_id == trigger.id,
                    NOT_MANUAL,
                    run.scheduled_time.between(first, last),
                    or_(run.state.in_(("fired", "failed", "shadowed")), run.origin == "backfill"),
                )
            )
            taken = {row.scheduled_time for row in rows}
            fresh = [at for at in map(from_seconds, chunk) if at not in taken]
            shown_slots += fresh[: max(0, BACKFILL_SHOWN - len(shown_slots))]
            count += len(fresh)
            walked += len(chunk)
            more = walked >= BACKFILL_COUNTED
        return {
            "trigger": str(trigger.key),
            "from": rfc3339(from_time),
            "to": rfc3339(to_time),
            "slots": views.times(shown_slots),
            "count": count,
            "at_least": more,
        }

    async def slots(
        self, from_time: datetime, to_time: datetime, paging: Paging, filters: Filters = NO_FILTERS
    ) -> View:
        """Runs, skips and projected slots in `[from_time, to_time)`, one list by time.

        A skip stands at its first slot, or at the start of the range. Slots that are not planned yet are
        projected for at most `PROJECTED` triggers; `projected_triggers` says of how many the filters have.
        Filters: project, domain, deployment, trigger, target, owner, q.
        """
        if to_time <= from_time:
            raise InvalidInput(
                Problem(
                    "/to", rfc3339(to_time), "the range ends after it begins", "a later time", code="range"
                )
            )
        filters = replace(filters, from_time=from_time, to_time=to_time)
        after = paging.after("slots", filters, (int, int, int))
        now = self.clock.now()
        trigger_id = None if filters.trigger is None else (await self.trigger_row(filters.trigger)).id
        arms = Slots(self.store, filters, trigger_id, from_time, to_time, now, self.late_after, paging.limit)
        if after is not None:
            arms.resume(micros(after[0], paging.token), int(after[1]), int(after[2]))
        items, more, projected = await arms.page()
        next_token = None if more is None else token("slots", filters, more)
        return {**page(items, next_token), "projected_triggers": projected}


def _page(kind: str, filters: Filters, paging: Paging, rows: Sequence[Row[Any]], view: Any, key: Any) -> View:
    items = [view(row) for row in rows[: paging.limit]]
    more = len(rows) > paging.limit
    return page(items, token(kind, filters, key(rows[paging.limit - 1])) if more else None)


def _target_row_view(row: Row[Any]) -> View:
    spec = TargetSpec.from_json(row.name, row.spec)
    return views.target_view(spec, row.source, frozen=bool(row.frozen), looked_at=row.looked_at)


def _slots_of(
    revisions: Sequence[Revision], seed: str, from_time: datetime, to_time: datetime
) -> Iterator[int]:
    """The slots in `[from_time, to_time]` that a backfill fills: of every revision, whatever its state."""
    # `from_time` itself is in the range.
    for span in spans(revisions, from_time - timedelta(seconds=1), to_time):
        rule = schedule_of(span.revision.spec, seed)
        slot = rule.after(span.start)
        while slot is not None and slot <= span.end:
            yield slot
            slot = rule.after(slot)


def _whole_characters(output: bytes, offset: int, growing: bool) -> tuple[str, int]:
    """The text from byte `offset` on and where it ends: not inside a character while more may come."""
    piece = output[offset:] if 0 <= offset <= len(output) else b""
    begin = min(max(offset, 0), len(output))
    if growing and piece:
        # A UTF-8 character has at most 4 bytes; one that is cut off at the end waits for the rest.
        for back in range(1, min(4, len(piece) + 1)):
            byte = piece[-back]
            if byte & 0xC0 == 0x80:
                continue
            size = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            if size > back:
                piece = piece[:-back]
            break
    return piece.decode("utf-8", "replace"), begin + len(piece)
