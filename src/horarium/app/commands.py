"""Every write that people and programs make.

A command checks what only the present state can tell, and hands a pure decision of `core/trigger.py` or
`core/reconcile.py` to one store method, which evaluates it under the trigger's lock. The spec of a trigger
belongs to whoever manages it: a source's is edited there. What operators do (pause, resume, run, retry,
cancel, backfill, plan a range) is theirs on every trigger.

Nothing here parses text itself: the reader of triggers files is passed in.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import and_, or_, select

from horarium.app import views
from horarium.app.advice import advice
from horarium.app.diff import SLOTS_FOR, SlotDiff, new_slots, revised, slot_diff
from horarium.app.queries import BACKFILL_COUNTED, EARLIEST, Queries
from horarium.app.views import View
from horarium.clock import Clock, Ids
from horarium.core import callback
from horarium.core import deployment as deployments
from horarium.core import trigger as decisions
from horarium.core.deployment import DeploymentChange, DeploymentState
from horarium.core.freeze import Owed, Scope
from horarium.core.instant import rfc3339
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.plan import RangePlan, Unplanned, Window, plan_range
from horarium.core.reconcile import API, Known, Reconciled, reconcile
from horarium.core.revision import GRACE, Status
from horarium.core.run import Report, Result, Run, RunState
from horarium.core.spec import DeploymentSpec, Json, Listing, TargetSpec, TriggerEntry
from horarium.core.trigger import Change, TriggerState
from horarium.errors import (
    Conflict,
    HorariumError,
    InvalidInput,
    NotFound,
    Problem,
    StaleVersion,
    Unauthorized,
    shown,
)
from horarium.store import tables as t
from horarium.store.base import Changed, Frozen, ManualRequest, Released, Store, SyncResult
from horarium.store.rows import deployment_spec_of

NOTE_LENGTH = 500
DETAIL_LENGTH = 2_000

CLOCKS_DIFFER = timedelta(minutes=1)
"""How far a report may lie in our future, or before its run was fired: other machines have other clocks."""

PLANNED_AT_ONCE = 5_000
"""Slots that one request for a range may hold: SQLite's one writer is at it for a fifth of a second."""

SHADOW_BATCH = 200
"""Triggers that one transaction puts into shadow or out of it: others wait for their locks a moment only."""

TRIGGER_WORDS = frozenset(
    {
        "cron",
        "every",
        "rrule",
        "at",
        "timezone",
        "dialect",
        "dst",
        "day_or",
        "start",
        "end",
        "exclude",
        "only",
        "on_excluded",
        "catch_up",
        "max_age",
        "jitter",
        "overlap",
        "active",
        "shadow",
    }
)
"""Words of one trigger; all others that a body holds are its deployment's."""


class ParsedFile(Protocol):
    """What the reader of triggers files gives; see `sources/files.py`."""

    @property
    def listing(self) -> Listing: ...
    @property
    def path(self) -> str: ...
    @property
    def pointers(self) -> Mapping[TriggerKey, str]: ...
    @property
    def silenced(self) -> Mapping[TriggerKey, frozenset[str]]: ...
    @property
    def elsewhere(self) -> tuple[tuple[str, str], ...]:
        """Targets that it names and does not define: name and pointer."""
        ...

    def located(self, problems: list[Problem]) -> list[Problem]:
        """Problems with their lines."""
        ...


class ParseTriggers(Protocol):
    """The reader: text of a triggers file → `ParsedFile`, or `InvalidInput` with every problem."""

    def __call__(self, text: str, path: str, *, targets: Mapping[str, TargetSpec]) -> ParsedFile: ...


class ReadSource(Protocol):
    """The reader of a source that is no file: a word such as `flyte`, and a config in place of the settings'.

    Gives the listing and where it is from; the listing's source has the word's name. Raises `InvalidInput`,
    `SourceUnavailable`.
    """

    def __call__(self, kind: str, config: Mapping[str, Any] | None) -> Awaitable[tuple[Listing, str]]: ...


@dataclass(frozen=True, slots=True)
class FileText:
    """A triggers file as it was read. `path` names its source where the text doesn't."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply` did, or would do. `problems` are non-empty only for `validate`-like answers."""

    written: bool
    changed: bool
    refused: bool
    sources: tuple[View, ...]
    lint: tuple[View, ...] = ()

    def to_json(self) -> View:
        return {
            "written": self.written,
            "changed": self.changed,
            "refused": self.refused,
            "sources": list(self.sources),
            "lint": list(self.lint),
        }


@dataclass(frozen=True, slots=True)
class Put:
    """What `put_trigger` did: `created` (or revived), `changed`, or nothing."""

    created: bool
    changed: bool


@dataclass(frozen=True, slots=True)
class ShadowSet:
    """A trigger that went into shadow, or was cut over: slots after `after` are the other side's."""

    key: TriggerKey
    after: datetime


@dataclass(frozen=True, slots=True)
class Reported:
    """What is known of a run after a report; `written` is False where it was known before."""

    result: Result
    written: bool


class Commands:
    """See the module.

    `shadow`: new triggers start in shadow where nobody says otherwise. The instant of a write is the
    database's, as that of a claim is. `wake` tells the loops of this process that there is something to do.
    `who` is the name for the audit where a call gives none. Raises `InvalidInput`, `NotFound`, `Conflict`,
    `StaleVersion`, `StoreUnavailable`; a command that raises has changed nothing.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        *,
        parse: ParseTriggers,
        read_source: ReadSource | None = None,
        window: Window,
        late_after: timedelta = timedelta(seconds=60),
        grace: timedelta = GRACE,
        shadow: bool = False,
        who: str = API,
        wake: Callable[[], None] = lambda: None,
        callback_keys: Callable[[TargetSpec], Sequence[bytes]] = lambda spec: (),
    ) -> None:
        self.store = store
        self.ids = ids
        self.window = window
        self.grace = grace
        self.shadow = shadow
        self.who = who
        self._parse = parse
        self._read_source = read_source
        self._wake = wake
        self._callback_keys = callback_keys
        self._queries = Queries(store, clock, window=window, late_after=late_after)

    async def now(self) -> datetime:
        """The time by which changes are made: the database's."""
        return await self.store.clock()

    # triggers

    async def put_trigger(
        self,
        key: TriggerKey,
        words: Mapping[str, Any],
        *,
        etag: str | None = None,
        must_be_new: bool = False,
        who: str | None = None,
    ) -> Put:
        """Create, replace or revive a trigger that people manage.

        `words` are those of one trigger in the triggers file: its schedule and policy, and its deployment's
        (`run`, `target`, `parameters` …). Without any of the deployment's, it runs the deployment that is
        there, whoever manages that. `etag` is the version that the caller read.
        """
        now = await self.store.clock()
        existing = await self._existing(key)
        there = existing is not None and existing.status is not Status.DELETED
        if there and existing is not None and existing.managed_by is not None:
            raise _managed(key, existing.managed_by)
        expected: int | None = None
        if must_be_new:
            expected = 0
        elif etag is not None:
            actual = _etag_of(existing if there else None)
            if not etag_matches(etag, actual):
                raise StaleVersion(etag, actual or "none: there is no such trigger")
            expected = existing.revision if there and existing is not None else 0
        listing = replace(await self._listing_of(key, words), shadow=self.shadow)
        result = await self.store.create_trigger(listing, now, who or self.who, expected_revision=expected)
        _raise_problems(result.decided, key)
        self._wake()
        return Put(created=not there, changed=result.written)

    async def delete_trigger(
        self, key: TriggerKey, *, etag: str | None = None, who: str | None = None
    ) -> None:
        """A tombstone for a trigger that people manage."""
        now = await self.store.clock()

        def decide(state: TriggerState) -> Change | None:
            _must_live(state)
            if state.trigger.managed_by is not None:
                raise _managed(key, state.trigger.managed_by)
            _check_etag(state, etag)
            return decisions.delete(state, who or self.who, now)

        await self._change(key, decide, now, who)

    async def declare(
        self,
        deployments: Sequence[DeploymentSpec],
        triggers: Sequence[TriggerEntry],
        *,
        now: datetime,
        expected_revision: int | None = None,
        who: str | None = None,
    ) -> None:
        """Create, replace or revive deployments and triggers that people manage, in one transaction.

        Their specs are whole and checked. `expected_revision` is for one trigger: the number in force, or 0
        for none.
        """
        listing = Listing(API, deployments=tuple(deployments), triggers=tuple(triggers), shadow=self.shadow)
        result = await self.store.create_trigger(
            listing, now, who or self.who, expected_revision=expected_revision
        )
        if result.decided.problems:
            _raise_all(result.decided.problems)
        self._wake()

    async def switch(self, keys: Sequence[TriggerKey], *, active: bool, who: str | None = None) -> None:
        """Make triggers active or inactive, all or none of them; what is so already stays as it is.

        That edits the spec of those that people manage, and pauses and resumes those of a source, whose spec
        is edited there. Making one active ends its pause, whoever paused it.
        """
        now = await self.store.clock()

        def set_active(state: TriggerState) -> Change | None:
            _must_live(state)
            spec, managed_by = state.current.spec, state.trigger.managed_by
            if managed_by is None:
                what = "activate" if active else "deactivate"
                return decisions.edit(state, replace(spec, active=active), who or self.who, now, what=what)
            if active and not spec.active:
                raise _managed(state.trigger.key, managed_by)
            return None if active or state.trigger.paused else decisions.pause(state, who or self.who, now)

        def end_pause(state: TriggerState) -> Change | None:
            return decisions.resume(state, who or self.who, now, grace=self.grace)

        await self.store.change(keys, set_active, now, who or self.who)
        if active:
            await self.store.change(keys, end_pause, now, who or self.who)
        self._wake()

    async def delete_triggers(self, keys: Sequence[TriggerKey], *, who: str | None = None) -> None:
        """Tombstones for triggers that people manage, for all or none; one that is deleted stays so."""
        now = await self.store.clock()

        def decide(state: TriggerState) -> Change | None:
            if state.trigger.managed_by is not None and state.trigger.status is not Status.DELETED:
                raise _managed(state.trigger.key, state.trigger.managed_by)
            return decisions.delete(state, who or self.who, now)

        await self.store.change(keys, decide, now, who or self.who)
        self._wake()

    async def pause(
        self,
        key: TriggerKey,
        *,
        note: str | None = None,
        until: datetime | None = None,
        etag: str | None = None,
        who: str | None = None,
    ) -> bool:
        """Stop a trigger, until `until` or a resume. False: it was paused so already."""
        now = await self.store.clock()
        problems = _note_problems(note)
        if until is not None and until <= now:
            problems.append(
                Problem("/until", rfc3339(until), "a pause ends in the future", f"later than {rfc3339(now)}")
            )
        if problems:
            raise InvalidInput(problems)

        def decide(state: TriggerState) -> Change | None:
            _must_live(state)
            _check_etag(state, etag)
            return decisions.pause(state, who or self.who, now, note=note, resume_at=until)

        return bool(await self._change(key, decide, now, who))

    async def resume(
        self, key: TriggerKey, *, backfill: bool = False, etag: str | None = None, who: str | None = None
    ) -> bool:
        """End a pause; `backfill` also fills the slots of the paused time. False: it was not paused.

        Raises `Conflict` if `backfill` has no pause to fill.
        What else stands in the way goes on doing so: its deployment's pause, its spec's `active: false`.
        Raises `Conflict` where a backfill of that time is not ours to fire.
        """
        now = await self.store.clock()
        if backfill and (since := (await self._queries.trigger_row(key)).paused_at) is not None:
            await self._backfillable(key, since, now)

        def decide(state: TriggerState) -> Change | None:
            _must_live(state)
            _check_etag(state, etag)
            if not state.trigger.paused and state.current.deployment_paused:
                raise Conflict(
                    f"trigger {key} is not paused itself: its deployment is",
                    f"horarium deployments resume {shlex.quote(str(key.deployment_key))}",
                )
            if not state.trigger.paused and not state.current.spec.active:
                whose = state.trigger.managed_by
                because = state.current.spec.inactive_because or "its spec says active: false"
                raise Conflict(
                    f"trigger {key} is not paused: {because}",
                    f"set active: true in source {whose!r}" if whose else "put it with active: true",
                )
            if backfill and not state.trigger.paused:
                raise _no_pause_to_fill(f"trigger {key}")
            return decisions.resume(state, who or self.who, now, backfill=backfill, grace=self.grace)

        return bool(await self._change(key, decide, now, who))

    async def pause_deployment(
        self, key: DeploymentKey, *, note: str | None = None, etag: str | None = None, who: str | None = None
    ) -> bool:
        """Stop all triggers of a deployment, until a resume of it. False: it was paused so already.

        The pause of each trigger is another thing, and stays what it is.
        """
        problems = _note_problems(note)
        if problems:
            raise InvalidInput(problems)
        now = await self.store.clock()

        def decide(state: DeploymentState) -> DeploymentChange | None:
            if state.deployment.withdrawn:
                raise NotFound("deployment", str(key), "its source has withdrawn it")
            _check_deployment_etag(state, etag)
            return deployments.pause(state, who or self.who, now, note=note)

        return await self._change_deployment(key, decide, now, who)

    async def resume_deployment(
        self, key: DeploymentKey, *, backfill: bool = False, etag: str | None = None, who: str | None = None
    ) -> bool:
        """End the pause of a deployment, of a withdrawn one too. False: it was not paused.

        `backfill` also fills the slots of the paused time, of those triggers that go on. Raises `Conflict`
        if it has no pause to fill.
        """
        now = await self.store.clock()

        def decide(state: DeploymentState) -> DeploymentChange | None:
            _check_deployment_etag(state, etag)
            if backfill and state.deployment.pause is None:
                raise _no_pause_to_fill(f"deployment {key}")
            return deployments.resume(state, who or self.who, now, backfill=backfill, grace=self.grace)

        return await self._change_deployment(key, decide, now, who)

    # shadow

    async def set_shadow(
        self, key: TriggerKey, on: bool, *, etag: str | None = None, who: str | None = None
    ) -> bool:
        """Put a trigger into the shadow of another scheduler, or cut it over. False: it is there already.

        Slots after the instant at which the revision begins that this makes are the other side's.
        """
        now = await self.store.clock()

        def decide(state: TriggerState) -> Change | None:
            _must_live(state)
            _check_etag(state, etag)
            return decisions.shadow(state, on, who or self.who, now)

        return bool(await self._change(key, decide, now, who))

    async def set_shadow_of(
        self, on: bool, *, source: str | None = None, who: str | None = None
    ) -> list[ShadowSet]:
        """The same for every trigger of a source (`api`: those of people), or for all; those that changed.

        Each has an instant of its own: they are changed in batches. Raises `NotFound` for an unknown source.
        """
        if source is not None:
            await self._queries.must_be_source(source)
        done: list[ShadowSet] = []
        while keys := await self._queries.keys_by_shadow(not on, source, SHADOW_BATCH):
            now = await self.store.clock()

            def decide(state: TriggerState, now: datetime = now) -> Change | None:
                if state.trigger.status is Status.DELETED:
                    return None
                return decisions.shadow(state, on, who or self.who, now)

            changed = await self.store.change(keys, decide, now, who or self.who)
            done += [
                ShadowSet(item.key, item.change.revision.effective_from)
                for item in changed
                if item.change.revision is not None
            ]
        if done:
            self._wake()
        return sorted(done, key=lambda item: str(item.key))

    # runs

    async def run_now(
        self,
        key: TriggerKey,
        *,
        parameters: Mapping[str, Json] | None = None,
        request_key: str | None = None,
        name: str | None = None,
        scheduled_time: datetime | None = None,
        who: str | None = None,
    ) -> tuple[Run, bool]:
        """A manual run, due now; the run and whether it is new. A repeated `request_key` gives the same.

        `name` is a name that the caller has checked to be no slot's, `scheduled_time` the instant that the
        run is for.
        """
        if request_key is not None and not (0 < len(request_key) <= 200 and _plain(request_key)):
            raise InvalidInput(
                Problem(
                    "/request_key",
                    shown(request_key),
                    "a request key is 1 to 200 characters of text",
                    "a UUID",
                )
            )
        request = ManualRequest(
            key, request_key or self.ids.new_id(), parameters, who or self.who, name, scheduled_time
        )
        made = await self.store.create_manual(request, await self.store.clock())
        self._wake()
        return made

    async def fill_slot(self, key: TriggerKey, slot: datetime, *, who: str | None = None) -> bool:
        """Have one past slot run, whatever policy decided: a backfill of it alone. False: it has been asked
        for before. A slot that has a run keeps it, so this never makes a second one."""
        now = await self.store.clock()
        await self._backfillable(key, slot, slot)

        def decide(state: TriggerState) -> Change | None:
            _must_live(state)
            if any((item.from_time, item.to_time) == (slot, slot) for item in state.backfills):
                return None
            return decisions.start_backfill(state, slot, slot, now)

        return bool(await self._change(key, decide, now, who))

    async def retry_run(self, project: str, domain: str, name: str, *, who: str | None = None) -> None:
        """Try a failed run again, from now on."""
        now = await self.store.clock()
        row = await self._queries.run_row(project, domain, name)

        def decide(state: TriggerState, run: Run) -> Change | None:
            found = decisions.retry_run(state, run, now)
            if found is None:
                raise Conflict(
                    f"run {name} is {run.state.value}, and only a failed run can be retried", _next(run)
                )
            return found

        await self.store.change_run(row.run.id, decide, now, who or self.who)
        self._wake()

    async def cancel_run(self, project: str, domain: str, name: str, *, who: str | None = None) -> str:
        """Let a pending run not fire; what became of it: `skipped`, `cancelled` or `failed`."""
        row = await self._queries.run_row(project, domain, name)
        now = await self.store.clock()

        def decide(state: TriggerState, run: Run) -> Change | None:
            found = decisions.cancel_run(state, run, who or self.who, now)
            if found is None and run.leased(now):
                raise Conflict(f"run {name} is being fired now", "look again in a minute")
            if found is None:
                raise Conflict(f"run {name} is {run.state.value} already", "")
            return found

        changed = await self.store.change_run(row.run.id, decide, now, who or self.who)
        self._wake()
        if changed is None or changed.change.skips:
            return "skipped"
        return str(changed.change.updated[0].values["state"])

    async def check_callback(self, project: str, domain: str, name: str, token: str) -> views.RunRow:
        """The run that the bearer of `token` may report of; see `core/callback.py`.

        Raises `Unauthorized`, for a run that is not there too: whether it is, is no stranger's business.
        Raises `SecretMissing` where the target's secret can't be read.
        """
        hint = "Authorization: Bearer TOKEN, as the call had it in ce-callbacktoken"
        if not token:
            raise Unauthorized("a result is reported with the token that came with the run", hint)
        run_key = f"{project}/{domain}/{name}"
        keys: Sequence[bytes] = ()
        row = None
        try:
            row = await self._queries.run_row(project, domain, name)
            keys = self._callback_keys(await self._queries.target_spec(row.target))
        except NotFound:
            pass  # no key fits, and the answer is that of a wrong token
        fault = callback.fault_of(keys, run_key, token, await self.store.clock())
        if fault is not None or row is None:
            raise Unauthorized(fault or "the token is not one of this run", hint)
        return row

    async def report_result(
        self, row: views.RunRow, result: Result, *, detail: str = "", at: datetime | None = None
    ) -> Reported:
        """What the one who does a run's work says of it. The same again changes nothing, as does `running`
        after an end; raises `Conflict` for another end."""
        now = await self.store.clock()
        problems = []
        if len(detail) > DETAIL_LENGTH or not _plain(detail):
            rule = f"a detail is at most {DETAIL_LENGTH:,} characters of text"
            problems.append(Problem("/detail", shown(detail), rule, "its beginning"))
        if at is not None and at > now + CLOCKS_DIFFER:
            rule = f"a report is of what has happened, and here it is {rfc3339(now)}"
            problems.append(Problem("/at", rfc3339(at), rule, "leave it out: now"))
        # A report may come before the call is answered, so what counts is when the run was taken up.
        began = row.run.first_claimed_at or row.run.fired_at
        if at is not None and began is not None and at < began - CLOCKS_DIFFER:
            rule = f"a report is of what came after the run was fired, at {rfc3339(began)}"
            problems.append(Problem("/at", rfc3339(at), rule, "leave it out: now"))
        if problems:
            raise InvalidInput(problems)
        key = row.key
        run_key = f"{key.project}/{key.domain}/{row.run.name}"
        written = await self.store.report([Report(run_key, result, min(at or now, now), detail)], now)
        if written and result is not Result.RUNNING:
            self._wake()
        known = Result((await self._queries.run_row(*run_key.split("/"))).run.result or result)
        if not written and result not in (known, Result.RUNNING):
            raise Conflict(f"run {row.run.name} has ended already: {known.value}", "the first report stays")
        return Reported(known, bool(written))

    # freeze

    async def freeze(self, scope: Scope, *, note: str | None = None, who: str | None = None) -> Frozen:
        """Stop firing, and nothing else, for what `scope` is; see docs/design/freeze.md."""
        problems = _note_problems(note)
        if problems:
            raise InvalidInput(problems)
        found = await self.store.freeze(scope, note, who or self.who, await self.store.clock())
        self._wake()
        return found

    async def release(self, scope: Scope, owed: Owed, *, who: str | None = None) -> Released:
        """End a freeze, and what the catch-up guard of a target holds; `owed` is what becomes of it."""
        found = await self.store.release(scope, owed, who or self.who, await self.store.clock())
        self._wake()
        return found

    # backfills

    async def preview_backfill(self, key: TriggerKey, from_time: datetime, to_time: datetime) -> View:
        """The slots that a backfill of `[from_time, to_time]` would fill."""
        from_time = max(from_time, EARLIEST)
        trigger = await self._backfillable(key, from_time, max(to_time, EARLIEST))
        return await self._queries.backfill_preview(trigger, from_time, max(to_time, EARLIEST))

    async def start_backfill(
        self, key: TriggerKey, from_time: datetime, to_time: datetime, *, who: str | None = None
    ) -> View:
        """Fill the holes of `[from_time, to_time]`, at most up to now; its id, and what it fills."""
        from_time, to_time = max(from_time, EARLIEST), max(to_time, EARLIEST)
        found = await self.preview_backfill(key, from_time, to_time)
        if found["at_least"]:
            raise InvalidInput(
                Problem(
                    "/from",
                    rfc3339(from_time),
                    f"a backfill fills at most {BACKFILL_COUNTED:,} slots, and this range has more",
                    "a shorter range, and the rest after it",
                    code="size",
                )
            )
        now = await self.store.clock()

        def decide(state: TriggerState) -> Change | None:
            _must_live(state)
            return decisions.start_backfill(state, from_time, to_time, now)

        changed = await self._change(key, decide, now, who)
        return {"id": changed[0].backfill_id, **found}

    async def cancel_backfill(self, backfill_id: int, *, who: str | None = None) -> None:
        """Stop a backfill where it is; the runs that it has made stay."""
        found = await self._queries.backfill(backfill_id)
        key = TriggerKey.parse(found["trigger"])
        now = await self.store.clock()

        def decide(state: TriggerState) -> Change | None:
            change = decisions.end_backfill(state, backfill_id, now)
            if change is None:
                raise Conflict(f"backfill {backfill_id} is {found['state']} already", "")
            return change

        await self._change(key, decide, now, who)

    # a range ahead

    async def plan_range(
        self,
        key: TriggerKey | DeploymentKey,
        from_time: datetime | None,
        to_time: datetime,
        *,
        who: str | None = None,
    ) -> View:
        """The slots in `[from_time, to_time]` become runs now; from now on unless told, and of a deployment
        those of all its triggers. What was made and what was there, by trigger.

        All of it is one transaction. A trigger that can't be planned raises `Conflict`; of a deployment it is
        named in the answer, and the others go on. Raises `InvalidInput` for a range that has begun or that
        holds more than `PLANNED_AT_ONCE` slots: nothing is made then.
        """
        now = await self.store.clock()
        begin = now if from_time is None else from_time
        _must_be_ahead(begin, to_time, now)
        alone = isinstance(key, TriggerKey)
        keys = [key] if isinstance(key, TriggerKey) else await self._queries.keys_of(key)
        found: dict[TriggerKey, RangePlan] = {}
        sizes: dict[int, int] = {}
        problems: dict[TriggerKey, HorariumError] = {}

        def decide(state: TriggerState) -> Change | None:
            this, number = state.trigger.key, state.trigger.id
            # By ascending id; and a store may begin anew, so what comes after this one is of an earlier try.
            room = PLANNED_AT_ONCE - sum(size for other, size in sizes.items() if other < number)
            planned, problem = _planned(state, begin, to_time, now, room, self.grace)
            if planned.last is not None:
                raise _too_many(to_time, planned.last if alone else None)
            if problem is not None and alone:
                raise problem
            found[this], sizes[number] = planned, planned.slots
            problems.pop(this, None)
            if problem is not None:
                problems[this] = problem
            return planned.change

        if await self.store.change(keys, decide, now, who or self.who):
            self._wake()
        return views.planned_view(begin, to_time, [(item, found[item], problems.get(item)) for item in keys])

    # files

    async def apply(
        self,
        files: Sequence[FileText],
        *,
        dry_run: bool = False,
        prune: bool = False,
        folder: str | None = None,
        allow_withdraw: bool = False,
        who: str | None = None,
    ) -> Applied:
        """Reconcile the sources that `files` are, and say what that does.

        Each file is a source read whole. All are checked before any is written; each is one transaction, so
        that only a source that somebody else lists at the same moment can end a pass halfway, with a
        `Conflict`. `prune` also withdraws what sources have whose file is no more among `files` but whose
        path lies under `folder`. Without `allow_withdraw`, a pass that would withdraw a large part of a
        source is refused: nothing is written then.
        """
        now = await self.store.clock()
        parsed = await self._parse_all(files)
        listings = [(item.listing, item.path) for item in parsed]
        if prune:
            listings += await self._left(parsed, folder)
        # Whoever defines a target goes before those who name it.
        listings.sort(key=lambda item: not item[0].targets)
        coming = {
            target.name: (item.source, target.digest()) for item, _ in listings for target in item.targets
        }
        versions = [await self.store.source_version(listing.source) for listing, _ in listings]

        async def run(dry: bool) -> list[SyncResult]:
            return [
                await self._sync(listing, path, version, now, dry, allow_withdraw, who, coming)
                for (listing, path), version in zip(listings, versions, strict=True)
            ]

        results = await run(True)
        by_source = {item.listing.source: item for item in parsed}
        problems: list[Problem] = []
        for (listing, _), result in zip(listings, results, strict=True):
            if result.decided.problems:
                found = list(result.decided.problems)
                file = by_source.get(listing.source)
                problems += found if file is None else file.located(found)
        problems += await self._still_used(listings, results)
        if problems:
            _raise_all(problems)
        refused = any(result.decided.refused for result in results)
        changed = any(not result.decided.empty for result in results)
        shown_sources = await asyncio.to_thread(
            lambda: tuple(
                self._source_view(listing, result, now)
                for (listing, _), result in zip(listings, results, strict=True)
            )
        )
        written = False
        if not dry_run and not refused:
            written = any(result.written for result in await run(False))
            if written:
                self._wake()
        coming_or_changed = {
            str(key)
            for result in results
            for key in (
                *(entry.key for entry in result.decided.added),
                *(edited.entry.key for edited in result.decided.edited),
            )
        }
        linted = await asyncio.to_thread(advice, parsed, now, of=coming_or_changed)
        return Applied(written, changed, refused, shown_sources, tuple(linted))

    async def sync(
        self,
        kind: str,
        config: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
        allow_withdraw: bool = False,
        who: str | None = None,
    ) -> Applied:
        """Reconcile a source that is no file, once, and say what that does; see `apply`.

        `config` is where it is, in place of the settings'. What of it can't be taken is kept as it is here,
        and named. Raises `InvalidInput`, `SourceUnavailable`, `Conflict`.
        """
        assert self._read_source is not None, "wiring gives a reader"
        version = await self.store.source_version(kind)
        listing, path = await self._read_source(kind, config)
        now = await self.store.clock()

        async def run(dry: bool) -> SyncResult:
            return await self._sync(listing, path, version, now, dry, allow_withdraw, who, {})

        result = await run(True)
        if result.decided.problems:
            raise InvalidInput(result.decided.problems)
        view = await asyncio.to_thread(self._source_view, listing, result, now)
        refused, written = result.decided.refused is not None, False
        if not dry_run and not refused:
            written = (await run(False)).written
            if listing.left_out:
                await self.store.source_failed(listing.source, listing.complaint, now)
            if written:
                self._wake()
        return Applied(written, not result.decided.empty, refused, (view,))

    async def validate(self, files: Sequence[FileText]) -> View:
        """Whether `files` can be read, with every problem and what a linter says. Changes nothing."""
        try:
            parsed = await self._parse_all(files)
        except InvalidInput as error:
            return {"ok": False, "problems": [dict(item.to_json()) for item in error.problems], "lint": []}
        linted = await asyncio.to_thread(advice, parsed, await self.store.clock())
        return {"ok": True, "problems": [], "lint": linted}

    # parts

    async def _change(
        self,
        key: TriggerKey,
        decide: Callable[[TriggerState], Change | None],
        now: datetime,
        who: str | None,
    ) -> list[Changed]:
        changed = await self.store.change([key], decide, now, who or self.who)
        if changed:
            self._wake()
        return changed

    async def _change_deployment(
        self,
        key: DeploymentKey,
        decide: Callable[[DeploymentState], DeploymentChange | None],
        now: datetime,
        who: str | None,
    ) -> bool:
        changed = await self.store.change_deployment(key, decide, now, who or self.who)
        if changed is not None:
            self._wake()
        return changed is not None

    async def _existing(self, key: TriggerKey) -> decisions.Trigger | None:
        try:
            return await self._queries.trigger_row(key)
        except NotFound:
            return None

    async def _listing_of(self, key: TriggerKey, words: Mapping[str, Any]) -> Listing:
        """One trigger as the listing of the source `api`; problems point into `words`."""
        mine = {word: value for word, value in words.items() if word in TRIGGER_WORDS}
        theirs = {word: value for word, value in words.items() if word not in TRIGGER_WORDS}
        of_files = [word for word in ("triggers", "renamed_from", "lint") if word in words]
        if of_files:
            raise InvalidInput(
                Problem(f"/{word}", word, f"{word} belongs to a triggers file", "take it out", "unknown-key")
                for word in of_files
            )
        own = theirs.keys() - {"parameters"}
        deployment = None if own else await self._deployment(key.deployment_key)
        if not own and deployment is None:
            raise InvalidInput(
                Problem(
                    "",
                    "no run, python or target",
                    f"a trigger runs something, and there is no deployment {key.deployment_key}",
                    'run: "…", or the words of another target',
                    code="missing",
                )
            )
        # A deployment that is there is part of the document, so that the trigger is checked against it.
        body = theirs if deployment is None else {"target": deployment.target, **deployment.action}
        if deployment is not None and "parameters" in theirs:
            mine["parameters"] = theirs["parameters"]
        document = {
            "source": API,
            "project": key.project,
            "domain": key.domain,
            "deployments": {key.deployment: {**body, "triggers": {key.name: mine}}},
        }
        text = json.dumps(document, ensure_ascii=False)
        try:
            parsed = self._parse(text, "request.json", targets=await self._targets_but(None))
        except InvalidInput as error:
            raise InvalidInput([_inside(item, key) for item in error.problems]) from error
        missing = self._missing(parsed, {})
        if missing:
            raise InvalidInput([_inside(item, key) for item in missing])
        listing = parsed.listing
        if deployment is None:
            return listing
        (entry,) = listing.triggers
        parameters = {**deployment.parameters, **entry.spec.parameters}
        spec = replace(
            entry.spec,
            target=deployment.target,
            action=deployment.action,
            parameters=parameters,
            kickoff_time_arg=deployment.kickoff_time_arg,
            owner=deployment.owner,
            runbook=deployment.runbook,
            late_after=deployment.late_after,
            retry_for=deployment.retry_for,
            completion_timeout=deployment.completion_timeout,
        )
        return Listing(API, triggers=(replace(entry, spec=spec),))

    async def _deployment(self, key: DeploymentKey) -> DeploymentSpec | None:
        table = t.deployment
        rows = await self.store.fetch(
            select(table).where(
                table.c.project == key.project,
                table.c.domain == key.domain,
                table.c.name == key.name,
                table.c.withdrawn.is_(False),
            )
        )
        return deployment_spec_of(rows[0]) if rows else None

    async def _parse_all(self, files: Sequence[FileText]) -> list[ParsedFile]:
        """All files, with what targets they share; raises every problem of every file.

        Two passes, because a deployment may stand before the file that defines its target.
        """
        if not files:
            raise InvalidInput(
                Problem("/files", "[]", "at least one triggers file", "a file's path and text")
            )
        paths = [file.path for file in files]
        if len(set(paths)) < len(paths):
            raise InvalidInput(
                Problem(
                    f"/files/{index}/path",
                    shown(path),
                    "a file is given once",
                    "take one of them out",
                    code="duplicate",
                )
                for index, path in enumerate(paths)
                if path in paths[:index]
            )
        known = await self._targets_but(None)
        first = {file.path: await self._try(file, known) for file in files}
        defined = {
            target.name: target
            for item in first.values()
            if not isinstance(item, InvalidInput)
            for target in item.listing.targets
        }
        parsed: list[ParsedFile] = []
        problems: list[Problem] = []
        for file in files:
            item = first[file.path]
            # A target that this source alone has defined so far is gone if the file defines it no more.
            own = None if isinstance(item, InvalidInput) else item.listing.source
            targets = {**await self._targets_but(own), **defined}
            if targets != known:
                item = await self._try(file, targets)
            if isinstance(item, InvalidInput):
                problems += [_in_file(problem, file, files) for problem in item.problems]
                continue
            if item.listing.source == API:
                raise Conflict(
                    f"source: {API} is reserved for triggers that people manage through the API",
                    "give the file another source, or none",
                )
            problems += [_in_file(problem, file, files) for problem in self._missing(item, defined)]
            parsed.append(item)
        problems += _shared(parsed)
        if problems:
            raise InvalidInput(problems)
        return parsed

    async def _try(self, file: FileText, targets: Mapping[str, TargetSpec]) -> ParsedFile | InvalidInput:
        try:
            # In a thread: a large file takes seconds, and runs that are due meanwhile must not wait for it.
            return await asyncio.to_thread(self._parse, file.text, file.path, targets=targets)
        except InvalidInput as error:
            return error

    def _missing(self, parsed: ParsedFile, defined: Mapping[str, TargetSpec]) -> list[Problem]:
        problems = [
            Problem(
                pointer,
                shown(name),
                "there is no target of this name",
                "define it under targets, here or in another source",
                code="no-target",
            )
            for name, pointer in parsed.elsewhere
            if name not in defined
        ]
        return parsed.located(problems) if problems else []

    async def _targets_but(self, without_source: str | None) -> dict[str, TargetSpec]:
        """The targets that are there by name; those of one source are left out."""
        table = t.target
        rows = await self.store.fetch(
            select(table.c.name, table.c.source, table.c.spec).where(table.c.withdrawn.is_(False))
        )
        return {
            row.name: TargetSpec.from_json(row.name, row.spec)
            for row in rows
            if without_source is None or row.source != without_source
        }

    async def _left(self, parsed: Sequence[ParsedFile], folder: str | None) -> list[tuple[Listing, str]]:
        """Empty listings of the sources whose file was under `folder` and is no more among the files."""
        if folder is None or not folder.startswith("/"):
            raise InvalidInput(
                Problem(
                    "/folder",
                    shown(folder),
                    "prune withdraws sources whose file has left a folder, and needs its absolute path",
                    "apply a folder, not a file",
                )
            )
        top = posixpath.normpath(folder).rstrip("/") + "/"
        here = {item.listing.source for item in parsed}
        table = t.source
        rows = await self.store.fetch(
            select(table.c.name, table.c.path).where(
                or_(
                    table.c.path.startswith(top, autoescape=True),
                    and_(table.c.path.is_(None), table.c.name.startswith(top, autoescape=True)),
                )
            )
        )
        return [(Listing(row.name), row.path or row.name) for row in rows if row.name not in here]

    async def _sync(
        self,
        listing: Listing,
        path: str,
        version: int,
        now: datetime,
        dry_run: bool,
        allow_withdraw: bool,
        who: str | None,
        coming: Mapping[str, tuple[str, str]],
    ) -> SyncResult:
        def decide(known: Known) -> Reconciled:
            # A dry run sees what the listings beside it define as if that were there.
            elsewhere = {name: what for name, what in coming.items() if what[0] != listing.source}
            beside = replace(known, targets={**elsewhere, **known.targets})
            return reconcile(listing, beside, now, allow_withdraw=allow_withdraw)

        given = listing if listing.shadow is not None else replace(listing, shadow=self.shadow)
        result = await self.store.sync_source(
            given, version, decide, now, who or self.who, dry_run=dry_run, path=path
        )
        if result.stale:
            raise Conflict(
                f"source {listing.source!r} was listed anew by somebody else meanwhile", "apply it again"
            )
        return result

    async def _still_used(
        self, listings: Sequence[tuple[Listing, str]], results: Sequence[SyncResult]
    ) -> list[Problem]:
        """Targets that would go while another source's deployment still names them."""
        going = {name: i for i, result in enumerate(results) for name in result.decided.withdrawn_targets}
        if not going:
            return []
        defined = {target.name for listing, _ in listings for target in listing.targets}
        table = t.deployment
        gone = {key for result in results for key in result.decided.withdrawn_deployments}
        rows = await self.store.fetch(
            select(table.c.project, table.c.domain, table.c.name, table.c.source, table.c.spec).where(
                table.c.withdrawn.is_(False),
                table.c.spec["target"].as_string().in_(sorted(going.keys() - defined)),
            )
        )
        rewritten = {str(item.key) for listing, _ in listings for item in listing.deployments}
        problems = []
        for row in rows:
            key = f"{row.project}/{row.domain}/{row.name}"
            if key in gone or key in rewritten:
                continue
            problems.append(
                Problem(
                    f"/targets/{row.spec['target']}",
                    str(row.spec["target"]),
                    f"deployment {key} still runs on this target, so it can't be withdrawn",
                    f"move it first ({'source ' + row.source if row.source else 'people manage it'})",
                    code="in-use",
                )
            )
        return problems

    def _source_view(self, listing: Listing, result: SyncResult, now: datetime) -> View:
        decided = result.decided
        edited_keys = {item.existing.id: item for item in decided.edited}
        edited: list[View] = []
        withdrawn: list[View] = []
        for index, changed in enumerate(result.changes):
            slots = None
            if index < SLOTS_FOR:
                slots = slot_diff(changed.before, changed.change, now, self.window)
            item = edited_keys.get(changed.before.trigger.id)
            if item is None:
                withdrawn.append({"key": str(changed.before.trigger.key), **_slots_view(slots)})
                continue
            edited.append(
                {
                    "key": str(item.entry.key),
                    "what": changed.change.what,
                    "renamed_from": str(item.existing.key) if item.renamed else None,
                    "changes": [field.to_json() for field in revised(changed.before, changed.change)],
                    **_slots_view(slots),
                }
            )
        added = [
            {
                "key": str(entry.key),
                "schedule": dict(entry.spec.schedule),
                **_slots_view(
                    new_slots(entry, listing.source, now, self.window) if index < SLOTS_FOR else None
                ),
            }
            for index, entry in enumerate(decided.added)
        ]
        return {
            "source": listing.source,
            "added": added,
            "edited": edited,
            "withdrawn": withdrawn
            or [{"key": str(item.key), **_slots_view(None)} for item in decided.withdrawn],
            "unchanged": decided.unchanged,
            "targets": [item.name for item in decided.targets],
            "targets_withdrawn": list(decided.withdrawn_targets),
            "deployments": [str(item.key) for item in decided.deployments],
            "deployments_withdrawn": list(decided.withdrawn_deployments),
            "refused": decided.refused,
            "left_out": [dict(problem.to_json()) for problem in listing.left_out],
        }

    async def _must_be_ours(self, trigger: decisions.Trigger, from_time: datetime, to_time: datetime) -> None:
        """A backfill fires, so none of its slots is another scheduler's."""
        if trigger.shadow:
            raise Conflict(
                f"trigger {trigger.key} is in shadow: its slots are another scheduler's; a backfill fires",
                "`horarium shadow off` cuts it over; `horarium triggers run` fires it once",
            )
        shadows = await self._queries.shadows(trigger.id, from_time - timedelta(microseconds=1), to_time)
        if shadows:
            raise Conflict(
                f"{trigger.key} was in shadow in that range, up to {rfc3339(shadows[-1][1])}: slots of that "
                "time were another scheduler's, and a backfill fires",
                "a range without it, or single runs with `horarium triggers run`",
            )

    async def _backfillable(
        self, key: TriggerKey, from_time: datetime, to_time: datetime
    ) -> decisions.Trigger:
        now = await self.store.clock()
        problems = []
        if to_time > now:
            latest = rfc3339(now.replace(microsecond=0))
            problems.append(
                Problem("/to", rfc3339(to_time), "a backfill ends at the present at the latest", latest)
            )
        if to_time < from_time:
            problems.append(
                Problem("/to", rfc3339(to_time), "a range does not end before it begins", rfc3339(from_time))
            )
        if problems:
            raise InvalidInput(problems)
        trigger = await self._queries.trigger_row(key)
        if trigger.status is Status.DELETED:
            raise _deleted(key)
        await self._must_be_ours(trigger, from_time, to_time)
        if trigger.pruned_before is not None and from_time < trigger.pruned_before:
            raise Conflict(
                f"records of {key} before {rfc3339(trigger.pruned_before)} were deleted by retention, so "
                "nobody knows which of its slots have run",
                f"a range from {rfc3339(trigger.pruned_before)} on, or single runs with 'run'",
            )
        return trigger


def _must_be_ahead(from_time: datetime, to_time: datetime, now: datetime) -> None:
    """Raises `InvalidInput` for a range of which a part has come: a backfill fills that."""
    problems = []
    if from_time < now:
        rule = f"a range ahead begins now ({rfc3339(now)}) at the earliest"
        hint = "leave it out: now; a backfill runs slots that are past"
        problems.append(Problem("/from", rfc3339(from_time), rule, hint))
    if to_time <= now:
        rule = f"a range ahead ends after now ({rfc3339(now)})"
        problems.append(Problem("/to", rfc3339(to_time), rule, "a backfill runs slots that are past"))
    elif to_time < from_time:
        rule = "a range does not end before it begins"
        problems.append(Problem("/to", rfc3339(to_time), rule, rfc3339(from_time)))
    if problems:
        raise InvalidInput(problems)


def _planned(
    state: TriggerState, from_time: datetime, to_time: datetime, now: datetime, room: int, grace: timedelta
) -> tuple[RangePlan, HorariumError | None]:
    """What a range comes to for one trigger, and what stands in its way, if anything does."""
    trigger = state.trigger
    try:
        found = plan_range(state, from_time, to_time, now, room, grace=grace)
    except Exception as error:  # whatever a rule raises costs its trigger, never its siblings
        said = f"the schedule of {trigger.key} can't be evaluated: {type(error).__name__}: {error}"
        return RangePlan(), Conflict(said, "give it a schedule that can")
    match found.refused:
        case Unplanned.DELETED:
            return found, _deleted(trigger.key)
        case Unplanned.PAUSED if trigger.paused:
            note = f" ({trigger.pause_note})" if trigger.pause_note else ""
            return found, Conflict(f"trigger {trigger.key} is paused{note}", "resume it, and ask again")
        case Unplanned.PAUSED if state.current.deployment_paused:
            key = trigger.key.deployment_key
            hint = f"horarium deployments resume {shlex.quote(str(key))}, and ask again"
            return found, Conflict(f"deployment {key} is paused", hint)
        case Unplanned.PAUSED:
            because = state.current.spec.inactive_because or "its spec says active: false"
            return found, Conflict(f"trigger {trigger.key} is not active: {because}", "make it active first")
        case Unplanned.FINISHED:
            said = f"trigger {trigger.key} is finished: its schedule has no slot left"
            return found, Conflict(said, "give it a schedule that goes on")
        case Unplanned.TZDATA:
            said = (
                f"the clock of {trigger.key} has other rules than it was planned by, and it is planned anew"
            )
            return found, Conflict(said, "ask again in a moment; give all replicas one release of tzdata")
    return found, None


def _too_many(to_time: datetime, last: datetime | None) -> InvalidInput:
    """`last` is the slot up to which there would be room, where that is known."""
    return InvalidInput(
        Problem(
            "/to",
            rfc3339(to_time),
            f"one request plans at most {PLANNED_AT_ONCE:,} slots, and this range has more; none was planned",
            "a shorter range or single triggers"
            if last is None
            else f"{rfc3339(last)}, and the rest after it",
            code="size",
        )
    )


def _note_problems(note: str | None) -> list[Problem]:
    if note is None or (0 < len(note) <= NOTE_LENGTH and _plain(note)):
        return []
    rule = f"a note is 1 to {NOTE_LENGTH} characters of text"
    return [Problem("/note", shown(note), rule, "leave it out")]


def _no_pause_to_fill(what: str) -> Conflict:
    """Else whoever resumed without it would be told that the pause is filled now."""
    return Conflict(
        f"{what} is not paused, so there is no pause to fill",
        "horarium backfill TRIGGER --from TIME --to TIME, for a pause that has ended",
    )


def etag_matches(given: str, actual: str | None) -> bool:
    """Whether `If-Match: given` lets the version `actual` pass; None is nothing there."""
    if actual is None:
        return False
    return given.strip() == "*" or actual in (item.strip() for item in given.split(","))


def _etag_of(trigger: decisions.Trigger | None) -> str | None:
    return None if trigger is None else views.etag(trigger.revision, trigger.updated_at)


def _check_etag(state: TriggerState, given: str | None) -> None:
    actual = _etag_of(state.trigger)
    if given is not None and not etag_matches(given, actual):
        raise StaleVersion(given, actual or "none")


def _check_deployment_etag(state: DeploymentState, given: str | None) -> None:
    found = state.deployment
    actual = views.deployment_etag(found.digest, found.updated_at, found.pause)
    if given is not None and not etag_matches(given, actual):
        raise StaleVersion(given, actual)


def _must_live(state: TriggerState) -> None:
    if state.trigger.status is Status.DELETED:
        raise _deleted(state.trigger.key)


def _deleted(key: TriggerKey) -> NotFound:
    return NotFound("trigger", str(key), "it was deleted; put it again to revive it")


def _managed(key: TriggerKey, source: str) -> Conflict:
    return Conflict(
        f"trigger {key} is managed by source {source!r}, so its spec is edited there",
        f"edit it in {source} and apply that; pause, resume, run and backfill work here",
    )


def _next(run: Run) -> str:
    if run.state in (RunState.SCHEDULED, RunState.HELD):
        return "it is still to be fired: wait, or cancel it"
    return "run the trigger by hand: that makes a new run"


def _raise_problems(decided: Reconciled, key: TriggerKey) -> None:
    """What a reconcile of one trigger found in the way."""
    if decided.problems:
        _raise_all([_inside(item, key) for item in decided.problems])


def _raise_all(problems: Sequence[Problem]) -> None:
    """`Conflict` where somebody else manages what is asked for, `InvalidInput` otherwise."""
    managed = [item for item in problems if item.code in ("managed", "in-use")]
    if managed and len(managed) == len(problems):
        first = managed[0]
        more = f" (and {len(managed) - 1} more)" if len(managed) > 1 else ""
        raise Conflict(f"{first.pointer}: {first.got}: {first.rule}{more}", first.hint)
    raise InvalidInput(problems)


def _inside(problem: Problem, key: TriggerKey) -> Problem:
    """A problem of the document made for one trigger, as a problem of the body that was sent."""
    pointer = problem.pointer
    for prefix in (f"/deployments/{key.deployment}/triggers/{key.name}", f"/deployments/{key.deployment}"):
        if pointer == prefix or pointer.startswith(prefix + "/"):
            pointer = pointer[len(prefix) :]
            break
    hint = problem.hint.replace("belongs to the deployment, one level up", "is not a word of a trigger")
    return replace(problem, pointer=pointer, hint=hint, line=None, column=None)


def _in_file(problem: Problem, file: FileText, files: Sequence[FileText]) -> Problem:
    return problem if len(files) == 1 else replace(problem, rule=f"{problem.rule} ({file.path})")


def _shared(parsed: Sequence[ParsedFile]) -> list[Problem]:
    """Sources, targets and deployments that two of the files both define."""
    seen: dict[tuple[str, str], str] = {}
    problems: list[Problem] = []
    for item in parsed:
        listing = item.listing
        names = [("source", listing.source, "/source")]
        names += [("target", target.name, f"/targets/{target.name}") for target in listing.targets]
        names += [("deployment", str(d.key), f"/deployments/{d.key.name}") for d in listing.deployments]
        for kind, name, pointer in names:
            other = seen.setdefault((kind, name), item.path)
            if other != item.path:
                problems += item.located(
                    [
                        Problem(
                            pointer,
                            shown(name),
                            f"one file defines a {kind}; {other} has this one too ({item.path})",
                            "rename one, or put both in one file",
                            code="duplicate",
                        )
                    ]
                )
    return problems


def _slots_view(slots: SlotDiff | None) -> View:
    if slots is not None:
        return slots.to_json()
    return {
        "runs_withdrawn": None,
        "runs_withdrawn_count": None,
        "runs_added": None,
        "runs_added_count": None,
        "runs_kept": None,
        "slots_skipped": None,
    }


def _plain(text: str) -> bool:
    """No control characters but newlines and tabs, and nothing that has no encoding."""
    return all(char.isprintable() or char in "\n\t" for char in text)
