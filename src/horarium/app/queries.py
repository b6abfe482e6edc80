"""Every read that people and programs make, as JSON-able mappings; see `views.py` for their shapes.

Reads go through `Store.fetch` with Core selects and ride on indexes: a page of a list costs its length,
not the table's. What can't be had from an index is bounded: counts stop at `COUNT_BOUND`, and a filtered
list of runs walks at most `WALK` of them for one page, which may then be short and says where to go on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Row, Select, and_, func, literal, or_, select, text, tuple_, union_all

import horarium
from horarium.app import views
from horarium.app.paging import (
    NO_FILTERS,
    Filters,
    Paging,
    in_calendar,
    page,
    token,
    wrong_token,
)
from horarium.app.preview import preview_rule, preview_trigger
from horarium.app.views import RunRow, View
from horarium.clock import Clock
from horarium.core.duration import format_duration
from horarium.core.instant import MAX_SECONDS, from_micros, from_seconds, rfc3339, to_micros, to_seconds
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.plan import PlanInput, Window, plan
from horarium.core.revision import Revision, Skip, Status, schedule_of, spans
from horarium.core.run import Origin, Run, RunState
from horarium.core.schedule import Schedule
from horarium.core.spec import TargetSpec, TriggerSpec
from horarium.core.trigger import Trigger
from horarium.errors import InvalidInput, NotFound, Problem
from horarium.store import tables as t
from horarium.store.base import Store

COUNT_BOUND = 10_000
"""Counts of runs stop here, and then mean "at least": an exact one would read the whole index."""

WALK = 20_000
"""Runs that one page of a filtered list looks at: some 50 ms."""

PROJECTED = 500
"""Triggers whose slots past the planned ones are shown in one list."""

BACKFILL_SHOWN = 1_000
BACKFILL_COUNTED = 100_000
"""Slots of a backfill that a preview names, and counts."""

OWED_SHOWN = 20
OWED_LOOKED_AT = 1_000
"""Triggers that the report at start names, and counts."""

ONE_REVISION_MANY = 1_000
"""Revisions of one trigger that an answer looks at: years of daily edits."""

_PENDING = text("run.state in ('scheduled', 'held')")
_SCHEDULED = text("run.state = 'scheduled'")
_UNUSUAL = text("run.state in ('held', 'failed', 'cancelled')")
_NOT_MANUAL = text("run.origin <> 'manual'")
_MANUAL = text("run.origin = 'manual'")
"""Terms of partial indexes: they serve only queries that repeat them literally, so no parameters here."""


class LoopHealth(Protocol):
    """One loop of a running server; `turned_at` is when it last came round, `error` why it last failed."""

    name: str
    turned_at: datetime | None
    error: str | None


class TargetHealth(Protocol):
    """One target of a running server: places free now, calls under way, and what stands in the way of runs
    that are due: `rate`, `full`, `unavailable`, or nothing."""

    name: str
    free: int
    in_flight: int
    waiting: str | None


class Health(Protocol):
    """What a running server knows of itself."""

    def loops(self) -> Sequence[LoopHealth]:
        """Its loops."""
        ...

    def stuck(self) -> Sequence[str]:
        """Names of loops that have not turned for longer than they ever should."""
        ...

    def targets(self) -> Sequence[TargetHealth]:
        """Its targets."""
        ...


@dataclass(frozen=True, slots=True)
class Database:
    """Where the rows are, for people: `location` holds no secret."""

    kind: str
    location: str
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Owed:
    """What one trigger owes at start, and what becomes of it under its catch-up policy."""

    trigger: TriggerKey
    slots: int
    firing: int
    catch_up: str
    at_least: bool = False

    def __str__(self) -> str:
        number = f"{'at least ' if self.at_least else ''}{self.slots} slot{'' if self.slots == 1 else 's'}"
        line = (
            f"{views.short_key(self.trigger)} owes {number}; catch_up={self.catch_up}, firing {self.firing}"
        )
        return line + (f", skipping {self.slots - self.firing}" if self.slots > self.firing else "")


@dataclass(frozen=True, slots=True)
class OwedReport:
    """What is owed when a server starts: the first triggers by name, the rest as a sum.

    `down` is for how long nobody looked at any target; None when there is none yet.
    """

    down: timedelta | None
    triggers: tuple[Owed, ...]
    more_triggers: int = 0
    more_slots: int = 0
    at_least: bool = False

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines())

    def lines(self) -> list[str]:
        """One line a trigger, as `serve` prints them; none when nothing is owed."""
        since = "" if self.down is None else f"down {_rough(self.down)}: "
        found = [f"{since}{item}" for item in self.triggers]
        if self.more_triggers:
            bound = "at least " if self.at_least else ""
            found.append(f"{since}{bound}{self.more_triggers} more triggers owe {self.more_slots} slots")
        return found


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
    ) -> None:
        self.store = store
        self.clock = clock
        self.window = window
        self.late_after = late_after
        self.health = health
        self.database = database or Database("unknown", "")

    # status

    async def status(self) -> View:
        """The whole at a glance; see `views` and docs/rest.md."""
        now = self.clock.now()
        targets = await self.store.targets()
        looked = [row.looked_at for row in targets]
        running = {item.name: item for item in self.health.targets()} if self.health else {}
        shown_targets = []
        for row in targets:
            due = await self._bounded(
                select(t.run.c.id).where(
                    t.run.c.target_id == row.id,
                    _SCHEDULED,
                    t.run.c.due_at <= now,
                    t.run.c.lease_owner.is_(None),
                )
            )
            live = running.get(row.spec.name)
            shown_targets.append(
                {
                    "name": row.spec.name,
                    "kind": row.spec.kind,
                    "free": None if live is None else live.free,
                    "in_flight": None if live is None else live.in_flight,
                    "due": due,
                    "frozen": row.frozen,
                    "rate": views.rate_view(row.spec),
                    "waiting": None if live is None else live.waiting,
                    "looked_at": rfc3339(row.looked_at),
                }
            )
        next_plan = await self.store.next_plan_due()
        down_since = max(looked) if looked and now - max(looked) > self.window.grace else None
        return {
            "version": horarium.__version__,
            "now": rfc3339(now),
            "database": {
                "kind": self.database.kind,
                "location": self.database.location,
                "schema": self.database.schema,
            },
            "down_since": views.moment(down_since),
            "counts": {"triggers": await self._trigger_counts(), "runs": await self._run_counts(now)},
            "next_due_at": views.moment(await self.store.next_due(now)),
            "next_plan_due_at": views.moment(next_plan),
            "targets": shown_targets,
            "sources": await self.sources(),
            "triggers_with_errors": await self._triggers_with_errors(),
            "loops": self.loops(),
        }

    def loops(self) -> list[View]:
        """The loops of this process; none where no server runs in it."""
        if self.health is None:
            return []
        stuck = set(self.health.stuck())
        return [
            {
                "name": loop.name,
                "turned_at": views.moment(loop.turned_at),
                "error": loop.error,
                "alive": loop.name not in stuck,
            }
            for loop in self.health.loops()
        ]

    async def sources(self) -> list[View]:
        """Every source: its last listing, and why it could not be read if so."""
        rows = await self.store.fetch(select(t.source).order_by(t.source.c.name).limit(1_000))
        return [
            {
                "name": row.name,
                "version": row.version,
                "path": row.path,
                "listed_at": views.moment(row.listed_at),
                "error": row.error,
                "error_at": views.moment(row.error_at),
            }
            for row in rows
        ]

    async def ready(self) -> str | None:
        """Why the database can't serve now; None when it can. Raises nothing."""
        try:
            await self.store.fetch(select(t.trigger.c.id).limit(1))
        except Exception as error:  # readiness is a question, and any failure is its answer
            return f"{type(error).__name__}: {error}"
        return None

    async def _trigger_counts(self) -> View:
        rows = await self.store.fetch(
            select(t.trigger.c.status, func.count()).group_by(t.trigger.c.status).order_by(t.trigger.c.status)
        )
        found: View = {status.value: 0 for status in Status}
        found.update(dict(map(tuple, rows)))
        found["error"] = await self._bounded(select(t.trigger.c.id).where(t.trigger.c.error.is_not(None)))
        return found

    async def _run_counts(self, now: datetime) -> View:
        """Bounded: `late` and `backlog` look at the due end of the index, the last day at its newest."""
        run = t.run.c
        day = select(run.state).where(run.scheduled_time <= now, run.scheduled_time > now - timedelta(days=1))
        newest = day.order_by(run.scheduled_time.desc()).limit(COUNT_BOUND).subquery()
        rows = await self.store.fetch(select(newest.c.state, func.count()).group_by(newest.c.state))
        settled: dict[str, int] = dict(map(tuple, rows))
        due = select(run.id).where(_SCHEDULED)
        return {
            "scheduled": await self._bounded(due),
            "held": await self._bounded(select(run.id).where(_UNUSUAL, run.state == "held")),
            "late": await self._late_count(now),
            "backlog": await self._bounded_over_targets(run.due_at <= now - self.late_after),
            "fired_24h": settled.get("fired", 0),
            "failed_24h": settled.get("failed", 0),
            "bound": COUNT_BOUND,
        }

    async def _late_count(self, now: datetime) -> int:
        """Pending runs past their time: those due and those that wait for a retry, an hour ahead at most."""
        run = t.run.c
        total = 0
        for row in await self.store.targets():
            walked = (
                select(run.first_due_at)
                .where(run.target_id == row.id, _SCHEDULED, run.due_at <= now + timedelta(hours=1))
                .order_by(run.due_at)
                .limit(COUNT_BOUND)
                .subquery()
            )
            rows = await self.store.fetch(
                select(func.count()).select_from(walked).where(walked.c.first_due_at < now - self.late_after)
            )
            total += rows[0][0]
        return min(total, COUNT_BOUND)

    async def _bounded_over_targets(self, condition: ColumnElement[bool]) -> int:
        total = 0
        for row in await self.store.targets():
            total += await self._bounded(
                select(t.run.c.id).where(t.run.c.target_id == row.id, _SCHEDULED, condition)
            )
        return min(total, COUNT_BOUND)

    async def _bounded(self, statement: Select[Any]) -> int:
        some = statement.limit(COUNT_BOUND).subquery()
        rows = await self.store.fetch(select(func.count()).select_from(some))
        return int(rows[0][0])

    async def _triggers_with_errors(self) -> list[View]:
        trigger = t.trigger
        rows = await self.store.fetch(
            select(trigger).where(trigger.c.error.is_not(None)).order_by(trigger.c.id).limit(20)
        )
        return [
            {
                "trigger": str(found.key),
                "error": found.error,
                "error_count": found.error_count,
                "plan_due_at": views.moment(found.plan_due_at),
            }
            for found in map(views.trigger_of, rows)
        ]

    # deployments and targets

    async def deployments(self, paging: Paging, filters: Filters = NO_FILTERS) -> View:
        """By key. Filters: project, domain, target, owner, source, q."""
        table = t.deployment
        key = (table.c.project, table.c.domain, table.c.name)
        statement = select(table).where(
            table.c.withdrawn.is_(False), *_equal(table, filters, "project", "domain")
        )
        if filters.deployment is not None:
            statement = statement.where(table.c.name == filters.deployment)
        if filters.source is not None:
            statement = statement.where(table.c.source == _stored_source(filters.source))
        statement = statement.where(*_in_spec(table.c.spec, filters))
        if filters.q is not None:
            statement = statement.where(_found(filters.q, key))
        after = paging.after("deployments", filters, (str, str, str))
        if after is not None:
            statement = statement.where(tuple_(*key) > tuple_(*map(literal, after)))
        rows = await self.store.fetch(statement.order_by(*key).limit(paging.limit + 1))
        return _page(
            "deployments",
            filters,
            paging,
            rows,
            lambda row: views.deployment_view(views.deployment_of(row), row.source, row.updated_at),
            lambda row: (row.project, row.domain, row.name),
        )

    async def deployment(self, key: DeploymentKey) -> View:
        """One deployment with its triggers' keys. Raises `NotFound`."""
        table, trigger = t.deployment, t.trigger
        rows = await self.store.fetch(
            select(table).where(
                table.c.project == key.project,
                table.c.domain == key.domain,
                table.c.name == key.name,
                table.c.withdrawn.is_(False),
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
            .limit(1_000)
        )
        row = rows[0]
        found = views.deployment_view(views.deployment_of(row), row.source, row.updated_at)
        return {**found, "triggers": [f"{key}/{item.name}" for item in names]}

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
        due = await self._bounded(
            select(t.run.c.id).where(
                t.run.c.target_id == row.id, _SCHEDULED, t.run.c.due_at <= self.clock.now()
            )
        )
        return {**_target_row_view(row), "due": due}

    # triggers

    async def triggers(self, paging: Paging, filters: Filters = NO_FILTERS) -> View:
        """By key; deleted ones only under `status=deleted`. Filters: project, domain, deployment, target,
        owner, source, status, q."""
        trigger, revision = t.trigger, t.trigger_revision
        key = (trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name)
        statement = self._trigger_select().where(*_equal(trigger, filters, "project", "domain", "deployment"))
        match filters.status:
            case None:
                statement = statement.where(trigger.c.status != Status.DELETED.value)
            case "error":
                statement = statement.where(trigger.c.error.is_not(None))
            case status:
                statement = statement.where(trigger.c.status == status)
        if filters.source is not None:
            stored = _stored_source(filters.source)
            statement = statement.where(
                trigger.c.source.is_(None) if stored is None else trigger.c.source == stored
            )
        statement = statement.where(*_in_spec(revision.c.spec, filters))
        if filters.q is not None:
            statement = statement.where(_found(filters.q, key))
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
        rows = await self.store.fetch(self._trigger_select().where(_is(key)))
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
            until = _micros(after[1], paging.token)
        rows = await self.store.fetch(statement)
        items = []
        for row in rows[: paging.limit]:
            items.append(views.revision_view(views.revision_of(row), until))
            until = row.effective_from
        more = None
        if len(rows) > paging.limit:
            last = rows[paging.limit - 1]
            more = token("revisions", Filters(trigger=key), (last.number, to_micros(last.effective_from)))
        return page(items, more)

    async def preview_trigger(self, key: TriggerKey, number: int, start: datetime | None = None) -> View:
        """The next slots of a trigger's present rule. Raises `NotFound`, `InvalidInput`."""
        trigger = await self.trigger_row(key)
        spec = (await self._revision(trigger, trigger.revision)).spec
        return preview_trigger(spec, trigger.hash_seed, start=start or self.clock.now(), number=number)

    def preview(
        self, words: Mapping[str, Any], number: int, start: datetime | None = None, key: str | None = None
    ) -> View:
        """The next slots of the rule that `words` mean. Raises `InvalidInput`."""
        return preview_rule(words, start=start or self.clock.now(), number=number, key=key)

    async def trigger_row(self, key: TriggerKey) -> Trigger:
        """The trigger's row, deleted or not. Raises `NotFound`."""
        rows = await self.store.fetch(select(t.trigger).where(_is(key)))
        if not rows:
            raise NotFound("trigger", str(key), await self._near(key))
        return views.trigger_of(rows[0])

    async def trigger_spec(self, trigger: Trigger) -> TriggerSpec:
        """The present spec of a trigger."""
        return (await self._revision(trigger, trigger.revision)).spec

    def _trigger_select(self) -> Select[Any]:
        """Triggers with their present spec, their next three slots and their last run's id."""
        trigger, revision = t.trigger, t.trigger_revision
        now = self.clock.now()
        run = t.run
        upcoming = (
            select(run.c.scheduled_time)
            .where(run.c.trigger_id == trigger.c.id, _PENDING, run.c.scheduled_time > now)
            .order_by(run.c.scheduled_time)
            .correlate(trigger)
        )
        last_slot = (
            select(run.c.id)
            .where(run.c.trigger_id == trigger.c.id, _NOT_MANUAL, run.c.scheduled_time <= now)
            .order_by(run.c.scheduled_time.desc())
            .limit(1)
            .correlate(trigger)
        )
        return select(
            trigger,
            revision.c.spec,
            *(upcoming.limit(1).offset(k).scalar_subquery().label(f"next_{k}") for k in range(3)),
            last_slot.scalar_subquery().label("last_run_id"),
        ).join(revision, and_(revision.c.trigger_id == trigger.c.id, revision.c.number == trigger.c.revision))

    def _trigger_view(self, row: Row[Any], last_runs: Mapping[int, View]) -> View:
        upcoming = [at for at in (row.next_0, row.next_1, row.next_2) if at is not None]
        spec = TriggerSpec.from_json(row.spec)
        last = None if row.last_run_id is None else last_runs.get(row.last_run_id)
        return views.trigger_view(views.trigger_of(row), spec, upcoming, last)

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
        return "there is " + ", ".join(views.short_key(_key_of(row)) for row in rows)

    async def _revision(self, trigger: Trigger, number: int) -> Revision:
        table = t.trigger_revision
        rows = await self.store.fetch(
            select(table).where(table.c.trigger_id == trigger.id, table.c.number == number)
        )
        return views.revision_of(rows[0])

    async def all_revisions(self, trigger: Trigger) -> tuple[Revision, ...]:
        """The revisions of a trigger, ascending; the newest `ONE_REVISION_MANY` of them."""
        table = t.trigger_revision
        rows = await self.store.fetch(
            select(table)
            .where(table.c.trigger_id == trigger.id)
            .order_by(table.c.number.desc())
            .limit(ONE_REVISION_MANY)
        )
        return tuple(views.revision_of(row) for row in reversed(rows))

    # why

    async def why(self, key: TriggerKey, at: datetime) -> View:
        """One verdict for an instant of a trigger: fired, late, skipped, owed, planned, held, failed, never;
        or pruned, when retention has taken the record. Raises `NotFound`."""
        now = self.clock.now()
        trigger = await self.trigger_row(key)
        revisions = await self.all_revisions(trigger)
        run = await self._run_at(trigger, at)
        skip, skipped_at = await self._skip_at(trigger, at, revisions)
        return _Why(trigger, revisions, at, now, run, skip, skipped_at, self).answer()

    async def _run_at(self, trigger: Trigger, at: datetime) -> RunRow | None:
        rows = await self.store.fetch(
            _run_select().where(t.run.c.trigger_id == trigger.id, t.run.c.scheduled_time == at, _NOT_MANUAL)
        )
        return _run_row(rows[0]) if rows else None

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
            if spec is None or _is_slot(schedule_of(spec, trigger.hash_seed), at):
                return _skip_of(row), row.at
        return None, None

    # runs

    async def runs(self, paging: Paging, filters: Filters = NO_FILTERS) -> View:
        """Newest slot first, what is planned before what was. Filters: project, domain, deployment, trigger,
        target, state, late, origin, owner, from, to, q. A page may be short of its limit and not the last."""
        now = self.clock.now()
        after = paging.after("runs", filters, (int, int))
        key = None if after is None else (_micros(after[0], paging.token), int(after[1]))
        rows, more = await self._walk_runs(filters, key, paging.limit, now, newest_first=True)
        items = [views.run_view(row, now, self.late_after) for row in rows]
        return page(items, None if more is None else token("runs", filters, (to_micros(more[0]), more[1])))

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
            _run_select().where(run.project == project, run.domain == domain, run.name == name)
        )
        if not rows:
            raise NotFound("run", f"{project}/{domain}/{name}")
        return _run_row(rows[0])

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
        row = await self.run_row(project, domain, name)
        kept = await self.store.local_run(row.run.name)
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
        rows = await self.store.fetch(_run_select().where(t.run.c.id.in_(wanted)))
        return {row.id: views.run_view(_run_row(row), now, self.late_after) for row in rows}

    async def _walk_runs(
        self,
        filters: Filters,
        after: tuple[datetime, int] | None,
        limit: int,
        now: datetime,
        *,
        newest_first: bool,
    ) -> tuple[list[RunRow], tuple[datetime, int] | None]:
        """At most `limit` runs past the key `after`, and the key to go on from, if there may be more."""
        run = t.run.c
        key = tuple_(run.scheduled_time, run.id)
        order = (run.scheduled_time.desc(), run.id.desc()) if newest_first else (run.scheduled_time, run.id)
        bounds: list[ColumnElement[bool]] = []
        if filters.from_time is not None:
            bounds.append(run.scheduled_time >= filters.from_time)
        if filters.to_time is not None:
            bounds.append(run.scheduled_time < filters.to_time)
        wanted = _run_filters(filters, now)
        statement = _run_select().where(*wanted).order_by(*order)
        trigger_id: int | None = None
        if filters.trigger is not None:
            trigger_id = (await self.trigger_row(filters.trigger)).id
        found: list[RunRow] = []
        walked = 0
        while True:
            past = [*bounds]
            if after is not None:
                at = tuple_(literal(after[0], run.scheduled_time.type), literal(after[1], run.id.type))
                past.append(key < at if newest_first else key > at)
            step = _keys(past, order, trigger_id, newest_first)
            end: tuple[datetime, int] | None = None
            here = statement.where(*past)
            if filters.state in ("held", "failed", "cancelled") and trigger_id is None:
                here = here.where(_UNUSUAL)
            elif wanted:
                rows = await self.store.fetch(step.limit(1).offset(WALK - 1))
                if rows:
                    end = (rows[0].scheduled_time, rows[0].id)
                    last = tuple_(literal(end[0], run.scheduled_time.type), literal(end[1], run.id.type))
                    here = here.where(key >= last if newest_first else key <= last)
            if trigger_id is not None:
                some = step.limit(WALK if wanted else limit - len(found) + 1).subquery()
                here = here.where(run.id.in_(select(some.c.id)))
            need = limit - len(found)
            batch = await self.store.fetch(here.limit(need + 1))
            for raw in batch[:need]:
                after = (raw.scheduled_time, raw.id)
                row = _run_row(raw)
                if filters.late is None or views.is_late(row, now, self.late_after) == filters.late:
                    found.append(row)
            if len(batch) <= need:
                # This stretch is at its end; what lies behind it, if anything, is the next page's.
                return found, end
            walked += len(batch)
            if len(found) == limit or walked >= WALK:
                return found, after

    # skips, backfills, slots

    async def skips(self, paging: Paging, filters: Filters = NO_FILTERS) -> View:
        """Newest first. Filters: project, domain, deployment, trigger, from, to (of slots)."""
        skip, trigger = t.skip.c, t.trigger
        statement = select(
            t.skip, trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name
        ).join(trigger, trigger.c.id == skip.trigger_id)
        statement = statement.where(*_equal(trigger, filters, "project", "domain", "deployment"))
        if filters.trigger is not None:
            statement = statement.where(skip.trigger_id == (await self.trigger_row(filters.trigger)).id)
        if filters.from_time is not None:
            statement = statement.where(skip.last_time >= filters.from_time)
        if filters.to_time is not None:
            statement = statement.where(skip.first_time < filters.to_time)
        after = paging.after("skips", filters, (int, int))
        if after is not None:
            at = tuple_(literal(_micros(after[0], paging.token), skip.last_time.type), literal(after[1]))
            statement = statement.where(tuple_(skip.last_time, skip.id) < at)
        rows = await self.store.fetch(
            statement.order_by(skip.last_time.desc(), skip.id.desc()).limit(paging.limit + 1)
        )
        return _page(
            "skips",
            filters,
            paging,
            rows,
            lambda row: views.skip_view(_key_of(row), _skip_of(row), row.at),
            lambda row: (to_micros(row.last_time), row.id),
        )

    async def backfills(self, paging: Paging, filters: Filters = NO_FILTERS) -> View:
        """Newest first. Filters: project, domain, deployment, trigger, state."""
        backfill, trigger = t.backfill.c, t.trigger
        statement = self._backfill_select().where(
            *_equal(trigger, filters, "project", "domain", "deployment")
        )
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
            lambda row: views.backfill_view(_key_of(row), views.backfill_of(row)),
            lambda row: (row.id,),
        )

    async def backfill(self, backfill_id: int) -> View:
        """One backfill. Raises `NotFound`."""
        rows = await self.store.fetch(self._backfill_select().where(t.backfill.c.id == backfill_id))
        if not rows:
            raise NotFound("backfill", str(backfill_id))
        return views.backfill_view(_key_of(rows[0]), views.backfill_of(rows[0]))

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
        revisions = await self.all_revisions(trigger)
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
                    _NOT_MANUAL,
                    run.scheduled_time.between(first, last),
                    or_(run.state.in_(("fired", "failed")), run.origin == "backfill"),
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
        arms = _Slots(self, filters, from_time, to_time, now, paging.limit)
        if after is not None:
            arms.resume(_micros(after[0], paging.token), int(after[1]), int(after[2]))
        items, more, projected = await arms.page()
        next_token = None if more is None else token("slots", filters, more)
        return {**page(items, next_token), "projected_triggers": projected}

    # what is owed

    async def owed_report(self, now: datetime) -> OwedReport:
        """What is owed at `now`, before any loop of this process has looked; see `OwedReport`."""
        targets = await self.store.targets()
        looked = max((row.looked_at for row in targets), default=None)
        pending = await self._owed_pending([row.id for row in targets], now)
        trigger = t.trigger
        rows = await self.store.fetch(
            select(trigger)
            .where(trigger.c.plan_due_at <= now, trigger.c.cursor < now, trigger.c.status != "deleted")
            .order_by(trigger.c.plan_due_at)
            .limit(OWED_LOOKED_AT)
        )
        behind = {row.id: views.trigger_of(row) for row in rows}
        found: list[Owed] = []
        for trigger_id in sorted({*pending, *behind}):
            owed = await self._owed_by(trigger_id, behind.get(trigger_id), pending.get(trigger_id, []), now)
            if owed is not None:
                found.append(owed)
        found.sort(key=lambda item: (-item.slots, item.trigger))
        rest = found[OWED_SHOWN:]
        down = None if looked is None or looked > now else now - looked
        return OwedReport(
            down,
            tuple(found[:OWED_SHOWN]),
            len(rest),
            sum(item.slots for item in rest),
            len(rows) >= OWED_LOOKED_AT or len(pending) >= OWED_LOOKED_AT,
        )

    async def _owed_pending(self, targets: Iterable[int], now: datetime) -> dict[int, list[Run]]:
        """Pending runs whose time has come, by trigger; at most `COUNT_BOUND` of them a target."""
        run = t.run
        found: dict[int, list[Run]] = {}
        for target_id in targets:
            rows = await self.store.fetch(
                select(run)
                .where(run.c.target_id == target_id, _SCHEDULED, run.c.due_at <= now)
                .order_by(run.c.due_at, run.c.id)
                .limit(COUNT_BOUND)
            )
            for row in rows:
                if row.trigger_id in found or len(found) < OWED_LOOKED_AT:
                    found.setdefault(row.trigger_id, []).append(views.run_of(row))
        return found

    async def _owed_by(
        self, trigger_id: int, behind: Trigger | None, pending: Sequence[Run], now: datetime
    ) -> Owed | None:
        trigger = behind
        if trigger is None:
            rows = await self.store.fetch(select(t.trigger).where(t.trigger.c.id == trigger_id))
            trigger = views.trigger_of(rows[0])
        revisions = await self.all_revisions(trigger)
        slots = len(pending)
        firing = sum(
            run.expires_at is None or run.expires_at > now or run.attempt > 0 or not run.automatic
            for run in pending
        )
        at_least = False
        if behind is not None:
            window = Window(max_catchup_runs=10_000, grace=self.window.grace)
            try:
                step = plan(PlanInput(trigger, _deciding(revisions, trigger.cursor), now), now, window)
            except Exception:  # a trigger that can't be planned is shown with its error by `status`
                return None
            past = [item for item in step.runs if from_seconds(item.scheduled_time) <= now]
            skipped = sum(skip.count for skip in step.skips if skip.reason != "paused")
            slots += len(past) + skipped
            firing += len(past)
            at_least = step.cursor < now
        if slots == 0:
            return None
        spec = revisions[-1].spec
        policy = spec.catch_up.value
        if spec.max_age is not None:
            policy += f", max_age={format_duration(spec.max_age)}"
        return Owed(trigger.key, slots, firing, policy, at_least)


# why


class _Why:
    """The one verdict for an instant; every branch ends in a sentence that a person understands."""

    def __init__(
        self,
        trigger: Trigger,
        revisions: Sequence[Revision],
        at: datetime,
        now: datetime,
        run: RunRow | None,
        skip: Skip | None,
        skipped_at: datetime | None,
        queries: Queries,
    ) -> None:
        self.trigger = trigger
        self.revisions = revisions
        self.at = at
        self.now = now
        self.run = run
        self.skip = skip
        self.skipped_at = skipped_at
        self.queries = queries
        earlier = [item for item in revisions if item.effective_from < at]
        self.revision = earlier[-1] if earlier else None
        shown_by = self.revision or revisions[0]
        self.rule: Schedule = schedule_of(shown_by.spec, trigger.hash_seed)

    def answer(self) -> View:
        verdict, reason = self._verdict()
        trigger = self.trigger
        slot = self.run is not None or self.skip is not None or self._named()
        return {
            "trigger": str(trigger.key),
            "time": rfc3339(self.at),
            "verdict": verdict,
            "slot": slot,
            "reason": reason,
            "run": None if self.run is None else views.run_view(self.run, self.now, self.queries.late_after),
            "skip": None if self.skip is None else views.skip_view(trigger.key, self.skip, self.skipped_at),
            "revision": None if self.revision is None else self.revision.number,
            "nearest": self._nearest(),
        }

    def _verdict(self) -> tuple[str, str]:
        if self.run is not None:
            return self._of_run(self.run)
        if self.skip is not None:
            return "skipped", self._of_skip(self.skip)
        if self.revision is None:
            first = self.revisions[0]
            return "never", f"the trigger is there only since {rfc3339(first.effective_from)}"
        if not self._named():
            return "never", self._not_named()
        return self._undecided(self.revision)

    def _of_run(self, row: RunRow) -> tuple[str, str]:
        run = row.run
        late = views.is_late(row, self.now, self.queries.late_after)
        waited = views.lateness(run, self.now) or timedelta()
        match run.state:
            case RunState.FIRED:
                when = f"run {run.name} was fired at {views.moment(run.fired_at)}"
                if run.origin is Origin.BACKFILL:
                    return "fired", f"{when}, by a backfill"
                if late:
                    return "late", f"{when}, {_rough(waited)} after its time"
                return "fired", when + (f", {_rough(waited)} after its time" if waited else "")
            case RunState.FAILED:
                unknown = "; its outcome is unknown" if run.outcome_unknown else ""
                return "failed", f"run {run.name} failed after {run.attempt} attempts: {run.reason}{unknown}"
            case RunState.HELD:
                return "held", f"run {run.name} is held while the trigger is paused{self._note()}"
            case _:
                pass
        if run.first_due_at > self.now:
            return "planned", f"run {run.name} is planned and due at {rfc3339(run.due_at)}"
        if run.leased(self.now):
            how = f"is being fired now, attempt {run.attempt}"
        elif run.attempt:
            how = f"was tried {run.attempt} times and is tried again at {rfc3339(run.due_at)}"
            how += f" ({run.reason})" if run.reason else ""
        else:
            how = "waits to be fired"
        return ("late" if late else "owed"), f"run {run.name} {how}; it is {_rough(waited)} past its time"

    def _of_skip(self, skip: Skip) -> str:
        said = {
            "paused": "the trigger was paused",
            "deleted": "the trigger was deleted",
            "cancelled": "it was cancelled",
            "catch_up_latest": "a later slot had come before anybody could fire it (catch_up: latest)",
            "catch_up_none": "nobody could fire it at its time (catch_up: none)",
            "max_age": "it was older than max_age when it could have been fired",
        }.get(skip.reason, skip.reason)
        among = f", one of {skip.count} slots skipped together" if skip.count > 1 else ""
        return f"{said}{f' ({skip.detail})' if skip.detail else ''}{among}"

    def _undecided(self, revision: Revision) -> tuple[str, str]:
        """A slot of the rule in force that is neither a run nor in a skip."""
        trigger = self.trigger
        if revision.state is Status.DELETED:
            return "never", f"the trigger was deleted at {rfc3339(revision.effective_from)} by {revision.who}"
        if revision.state is Status.PAUSED:
            ahead = self.at > self.now
            why = "paused" if trigger.paused or not ahead else "not active (active: false)"
            tail = "; it will be skipped unless the trigger is resumed before" if ahead else ""
            return (
                "skipped",
                f"the trigger is {why} since {rfc3339(revision.effective_from)}{self._note()}{tail}",
            )
        if self.at > trigger.cursor:
            if trigger.error is not None:
                verdict = "planned" if self.at > self.now else "owed"
                return verdict, f"it is not planned, because the trigger has an error: {trigger.error}"
            if self.at > self.now:
                return (
                    "planned",
                    f"a slot further ahead than is planned yet (up to {rfc3339(trigger.cursor)})",
                )
            return "owed", f"the planner has come to {rfc3339(trigger.cursor)} and will decide it"
        if trigger.pruned_before is not None and self.at < trigger.pruned_before:
            return "pruned", f"records before {rfc3339(trigger.pruned_before)} were deleted by retention"
        return "never", "a slot of the rule without a record, which must not be: please report it"

    def _not_named(self) -> str:
        assert self.revision is not None
        if self.at.microsecond:
            return "slots are on whole seconds"
        what = f"{self.rule.describe()} (revision {self.revision.number}) does not name it"
        for other in reversed(self.revisions):
            if other is self.revision or other.state is not Status.ACTIVE:
                continue
            if _is_slot(schedule_of(other.spec, self.trigger.hash_seed), self.at):
                when = f"in force only {'from' if other.number > self.revision.number else 'before'}"
                edge = other if other.number > self.revision.number else self.revision
                return (
                    f"{what}; revision {other.number} does, but it was {when} {rfc3339(edge.effective_from)}"
                )
        start, end = self.revision.spec.schedule.get("start"), self.revision.spec.schedule.get("end")
        bounds = [f"{word} {value}" for word, value in (("start", start), ("end", end)) if value is not None]
        return what + (f" ({', '.join(bounds)})" if bounds else "")

    def _named(self) -> bool:
        return self.revision is not None and _is_slot(self.rule, self.at)

    def _nearest(self) -> View:
        at = to_seconds(self.at)
        before = self.rule.before(at if self.at.microsecond else at - 1)
        after = self.rule.after(at)
        return {
            "before": None if before is None else rfc3339(from_seconds(before)),
            "after": None if after is None or after > MAX_SECONDS else rfc3339(from_seconds(after)),
        }

    def _note(self) -> str:
        trigger = self.trigger
        by = f" by {trigger.paused_by}" if trigger.paused and trigger.paused_by else ""
        note = f" ({trigger.pause_note})" if trigger.paused and trigger.pause_note else ""
        return by + note


# slots


class _Slots:
    """Three lists, each by time, merged: runs (rank 0), skips (1), projected slots (2)."""

    def __init__(
        self, queries: Queries, filters: Filters, start: datetime, end: datetime, now: datetime, limit: int
    ) -> None:
        self.queries = queries
        self.filters = filters
        self.start = start
        self.end = end
        self.now = now
        self.limit = limit
        self.after: tuple[datetime, int, int] | None = None

    def resume(self, at: datetime, rank: int, tie: int) -> None:
        self.after = (at, rank, tie)

    async def page(self) -> tuple[list[View], tuple[int, int, int] | None, View]:
        """Items, the key to go on from, and of how many triggers slots were projected."""
        runs, runs_end = await self._runs()
        skips, skips_end = await self._skips()
        projected, projected_end, seen = await self._projected()
        cut = min((end for end in (runs_end, skips_end, projected_end) if end is not None), default=None)
        merged = sorted([*runs, *skips, *projected], key=lambda item: item[0])
        ready = [item for item in merged if cut is None or item[0] <= cut]
        taken = ready[: self.limit]
        more: tuple[int, int, int] | None = None
        if len(ready) > self.limit:
            more = taken[-1][0]
        elif cut is not None:
            more = cut
        return [view for _, view in taken], more, seen

    async def _runs(self) -> tuple[list[tuple[tuple[int, int, int], View]], tuple[int, int, int] | None]:
        after: tuple[datetime, int] | None = None
        if self.after is not None:
            at, rank, tie = self.after
            after = (at, tie if rank == 0 else 2**62)
        rows, more = await self.queries._walk_runs(
            self.filters, after, self.limit, self.now, newest_first=False
        )
        items = [
            (
                (to_micros(row.run.scheduled_time), 0, row.run.id),
                {
                    "kind": "run",
                    "time": rfc3339(row.run.scheduled_time),
                    "trigger": str(row.key),
                    "run": views.run_view(row, self.now, self.queries.late_after),
                },
            )
            for row in rows
        ]
        return items, None if more is None else (to_micros(more[0]), 0, more[1])

    async def _skips(self) -> tuple[list[tuple[tuple[int, int, int], View]], tuple[int, int, int] | None]:
        skip, trigger = t.skip.c, t.trigger
        statement = (
            select(t.skip, trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name)
            .join(trigger, trigger.c.id == skip.trigger_id)
            .where(*_trigger_filters(self.filters))
        )
        if _needs_spec(self.filters):
            statement = _joined_spec(statement, skip.trigger_id, skip.revision, self.filters)
        began = (
            statement.where(skip.last_time >= self.start, skip.first_time < self.start)
            .order_by(skip.id)
            .limit(self.limit + 1)
        )
        inside = statement.where(skip.first_time >= self.start, skip.first_time < self.end)
        rows: list[Row[Any]] = []
        at, rank, tie = self.after or (self.start, -1, 0)
        if at == self.start and rank <= 1:
            if rank == 1:
                began = began.where(skip.id > tie)
            rows += await self.queries.store.fetch(began)
        if rank < 1:
            inside = inside.where(skip.first_time >= at)
        elif rank == 1:
            key = tuple_(literal(at, skip.first_time.type), literal(tie))
            inside = inside.where(tuple_(skip.first_time, skip.id) > key)
        else:
            inside = inside.where(skip.first_time > at)
        inside = inside.order_by(skip.first_time, skip.id).limit(self.limit + 1)
        rows += await self.queries.store.fetch(inside)
        items = [
            (
                (to_micros(max(row.first_time, self.start)), 1, row.id),
                {
                    "kind": "skip",
                    "time": rfc3339(max(row.first_time, self.start)),
                    "trigger": str(_key_of(row)),
                    "skip": views.skip_view(_key_of(row), _skip_of(row), row.at),
                },
            )
            for row in rows
        ]
        items.sort(key=lambda item: item[0])
        if len(items) > self.limit:
            return items[: self.limit], items[self.limit - 1][0]
        return items, None

    async def _projected(
        self,
    ) -> tuple[list[tuple[tuple[int, int, int], View]], tuple[int, int, int] | None, View]:
        trigger, revision = t.trigger, t.trigger_revision
        if self.end <= self.now:
            return [], None, {"shown": 0, "more": False}
        statement = (
            select(trigger, revision.c.spec)
            .join(
                revision,
                and_(revision.c.trigger_id == trigger.c.id, revision.c.number == trigger.c.revision),
            )
            .where(
                trigger.c.status == "active",
                *_trigger_filters(self.filters),
                *_in_spec(revision.c.spec, self.filters),
            )
            .order_by(trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name)
            .limit(PROJECTED + 1)
        )
        if self.filters.q is not None:
            key = (trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name)
            statement = statement.where(_found(self.filters.q, key))
        rows = await self.queries.store.fetch(statement)
        series = [self._series(row) for row in rows[:PROJECTED]]
        items: list[tuple[tuple[int, int, int], View]] = []
        end: tuple[int, int, int] | None = None
        for key_, view in heapq.merge(*series, key=lambda item: item[0]):
            if len(items) == self.limit:
                end = items[-1][0]
                break
            items.append((key_, view))
        return items, end, {"shown": min(len(rows), PROJECTED), "more": len(rows) > PROJECTED}

    def _series(self, row: Row[Any]) -> Iterator[tuple[tuple[int, int, int], View]]:
        """The slots of one trigger past its cursor, in the range, ascending."""
        trigger = views.trigger_of(row)
        spec = TriggerSpec.from_json(row.spec)
        rule = schedule_of(spec, trigger.hash_seed)
        begin = to_seconds(max(trigger.cursor, self.now))
        # `start` itself is in the range.
        begin = max(begin, to_seconds(self.start) - (0 if self.start.microsecond else 1))
        if self.after is not None:
            begin = max(begin, to_seconds(self.after[0]) - 1)
        slot = rule.after(begin)
        while slot is not None and from_seconds(min(slot, MAX_SECONDS)) < self.end and slot <= MAX_SECONDS:
            key = (slot * 1_000_000, 2, trigger.id)
            if self.after is None or key > (to_micros(self.after[0]), self.after[1], self.after[2]):
                offset = 0 if rule.zone is None else rule.zone.offset_at(slot)
                at = from_seconds(slot)
                yield (
                    key,
                    {
                        "kind": "projected",
                        "time": rfc3339(at),
                        "trigger": str(trigger.key),
                        "projected": {
                            "scheduled_time": rfc3339(at),
                            "local_time": views.local_time(at, timedelta(seconds=offset)),
                            "revision": trigger.revision,
                            "target": spec.target,
                        },
                    },
                )
            slot = rule.after(slot)


# statements and rows


def _run_select() -> Select[Any]:
    """Runs with their trigger's key, their target's name and their revision's `late_after`."""
    run, trigger, target, revision = t.run, t.trigger, t.target, t.trigger_revision
    return (
        select(
            run,
            trigger.c.deployment.label("trigger_deployment"),
            trigger.c.name.label("trigger_name"),
            target.c.name.label("target_name"),
            revision.c.spec["late_after"].as_float().label("late_after"),
        )
        .join(trigger, trigger.c.id == run.c.trigger_id)
        .join(target, target.c.id == run.c.target_id)
        .outerjoin(
            revision,
            and_(revision.c.trigger_id == run.c.trigger_id, revision.c.number == run.c.revision),
        )
    )


def _run_row(row: Row[Any]) -> RunRow:
    key = TriggerKey(row.project, row.domain, row.trigger_deployment, row.trigger_name)
    late_after = None if row.late_after is None else timedelta(seconds=row.late_after)
    return RunRow(views.run_of(row), key, row.target_name, late_after)


def _keys(
    past: Sequence[ColumnElement[bool]], order: Sequence[Any], trigger_id: int | None, newest_first: bool
) -> Select[Any]:
    """The keys of runs in order, from one index; of one trigger from two: its slots, and the rest."""
    run = t.run.c
    if trigger_id is None:
        return select(run.scheduled_time, run.id).where(*past).order_by(*order)
    arms = [
        select(
            select(run.scheduled_time, run.id)
            .where(run.trigger_id == trigger_id, term, *past)
            .order_by(*order)
            .limit(WALK)
            .subquery()
        )
        for term in (_NOT_MANUAL, _MANUAL)
    ]
    both = union_all(*arms).subquery()
    found = select(both.c.scheduled_time, both.c.id)
    if newest_first:
        return found.order_by(both.c.scheduled_time.desc(), both.c.id.desc())
    return found.order_by(both.c.scheduled_time, both.c.id)


def _run_filters(filters: Filters, now: datetime) -> list[ColumnElement[bool]]:
    """What a run must be, beside its time and its trigger. Empty: the index alone decides."""
    run, revision = t.run.c, t.trigger_revision
    found: list[ColumnElement[bool]] = []
    if filters.project is not None:
        found.append(run.project == filters.project)
    if filters.domain is not None:
        found.append(run.domain == filters.domain)
    if filters.deployment is not None:
        found.append(t.trigger.c.deployment == filters.deployment)
    if filters.target is not None:
        found.append(t.target.c.name == filters.target)
    if filters.state is not None:
        found.append(run.state == filters.state)
    if filters.origin is not None:
        found.append(run.origin == filters.origin)
    if filters.owner is not None:
        found.append(revision.c.spec["owner"].as_string() == filters.owner)
    if filters.q is not None:
        key = (run.project, run.domain, t.trigger.c.deployment, t.trigger.c.name)
        found.append(or_(_found(filters.q, key), _like(run.name, filters.q)))
    if filters.late is not None:
        # What can be late at all; the trigger's own `late_after` is judged on the row.
        possible = or_(
            and_(run.state.in_(("scheduled", "held")), run.first_due_at < now),
            run.fired_at > run.first_due_at,
            and_(run.state == "failed", run.settled_at > run.first_due_at),
        )
        found.append(possible if filters.late else run.id.is_not(None))
    return found


def _trigger_filters(filters: Filters) -> list[ColumnElement[bool]]:
    found = _equal(t.trigger, filters, "project", "domain", "deployment")
    if filters.trigger is not None:
        found.append(_is(filters.trigger))
    return found


def _needs_spec(filters: Filters) -> bool:
    return filters.target is not None or filters.owner is not None or filters.q is not None


def _joined_spec(statement: Select[Any], trigger_id: Any, number: Any, filters: Filters) -> Select[Any]:
    revision, trigger = t.trigger_revision, t.trigger
    statement = statement.join(
        revision, and_(revision.c.trigger_id == trigger_id, revision.c.number == number)
    ).where(*_in_spec(revision.c.spec, filters))
    if filters.q is not None:
        key = (trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name)
        statement = statement.where(_found(filters.q, key))
    return statement


def _in_spec(spec: Any, filters: Filters) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if filters.target is not None:
        found.append(spec["target"].as_string() == filters.target)
    if filters.owner is not None:
        found.append(spec["owner"].as_string() == filters.owner)
    return found


def _equal(table: Any, filters: Filters, *names: str) -> list[ColumnElement[bool]]:
    return [table.c[name] == value for name in names if (value := getattr(filters, name)) is not None]


def _is(key: TriggerKey) -> ColumnElement[bool]:
    trigger = t.trigger.c
    return and_(
        trigger.project == key.project,
        trigger.domain == key.domain,
        trigger.deployment == key.deployment,
        trigger.name == key.name,
    )


def _found(q: str, parts: Sequence[Any]) -> ColumnElement[bool]:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + "/" + part
    return _like(whole, q)


def _like(column: Any, q: str) -> ColumnElement[bool]:
    found: ColumnElement[bool] = func.lower(column).contains(q.lower(), autoescape=True)
    return found


def _stored_source(name: str) -> str | None:
    """`api` is how people are called who manage triggers without a source."""
    return None if name == "api" else name


def _page(kind: str, filters: Filters, paging: Paging, rows: Sequence[Row[Any]], view: Any, key: Any) -> View:
    items = [view(row) for row in rows[: paging.limit]]
    more = len(rows) > paging.limit
    return page(items, token(kind, filters, key(rows[paging.limit - 1])) if more else None)


def _target_row_view(row: Row[Any]) -> View:
    spec = TargetSpec.from_json(row.name, row.spec)
    return views.target_view(spec, row.source, frozen=bool(row.frozen), looked_at=row.looked_at)


def _key_of(row: Row[Any]) -> TriggerKey:
    return TriggerKey(row.project, row.domain, row.deployment, row.name)


def _skip_of(row: Row[Any]) -> Skip:
    # `count` is also a method of every row, so its column is asked for by name.
    mapping = row._mapping
    return Skip(
        row.revision, row.first_time, row.last_time, mapping["count"], mapping["reason"], mapping["detail"]
    )


def _is_slot(rule: Schedule, at: datetime) -> bool:
    second = to_seconds(at)
    return at.microsecond == 0 and rule.after(second - 1) == second


def _slots_of(
    revisions: Sequence[Revision], seed: str, from_time: datetime, to_time: datetime
) -> Iterator[int]:
    """The slots in `[from_time, to_time]` that a backfill fills: of every revision, whatever its state."""
    for span in spans(revisions, from_time - timedelta(seconds=1), to_time):
        rule = schedule_of(span.revision.spec, seed)
        slot = rule.after(span.start)
        while slot is not None and slot <= span.end:
            yield slot
            slot = rule.after(slot)


def _deciding(revisions: Sequence[Revision], cursor: datetime) -> tuple[Revision, ...]:
    """The revisions that decide anything after the cursor: the one in force there, and later ones."""
    first = 0
    for index, item in enumerate(revisions):
        if item.effective_from <= cursor:
            first = index
    return tuple(revisions[first:])


def _micros(value: int, given: str | None) -> datetime:
    if not in_calendar(value):
        raise wrong_token(given)
    return from_micros(value)


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


def _rough(value: timedelta) -> str:
    """A duration for a sentence: whole seconds from ten seconds on, else to the millisecond."""
    if value >= timedelta(seconds=10):
        return format_duration(timedelta(seconds=int(value.total_seconds())))
    return format_duration(timedelta(milliseconds=int(value / timedelta(milliseconds=1))))
