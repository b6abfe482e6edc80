"""A whole Horarium in a test: the real planner and executor on a real SQLite file (or a PostgreSQL), a clock
that stands still, and a target that records what it is asked.

    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *"})
        await house.run_for(minutes=3)
        assert house.fired("tick") == [...]

`run_for` does what the running service does, in an order that is always the same: plan what is due, fire what
is due, move the clock to the next instant at which anything is due. `down_for` moves the clock alone.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from horarium.core import deployment as deployments
from horarium.core import trigger as decisions
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.outcome import Outcome, RetryPolicy
from horarium.core.plan import RangePlan, Window, plan_range
from horarium.core.reconcile import reconcile
from horarium.core.run import RunState
from horarium.core.spec import (
    CatchUp,
    DeploymentSpec,
    Listing,
    Overlap,
    Rate,
    TargetSpec,
    TriggerEntry,
    TriggerSpec,
)
from horarium.core.trigger import Change, TriggerState
from horarium.engine.executor import Executor, ExecutorSettings
from horarium.engine.planner import Planner, PlannerSettings
from horarium.engine.pool import TargetPool
from horarium.engine.reporter import Reporter
from horarium.engine.wake import Wake
from horarium.errors import StoreUnavailable
from horarium.store import migrations, tables
from horarium.store.base import Claimed, Demand, ManualRequest, Store, SyncResult
from horarium.store.postgres import PostgresStore
from horarium.store.sqlite import SqliteStore, engine
from horarium.targets.base import FireRequest
from horarium.telemetry import Metrics
from horarium.testing import FakeTarget, SequenceIds, VirtualClock

MONDAY = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
FAR = datetime(9999, 1, 1, tzinfo=UTC)


def at(text: str) -> datetime:
    """`10:05`, `10:05:30` on the Monday, or a whole RFC 3339 instant."""
    if "T" in text:
        return datetime.fromisoformat(text).astimezone(UTC)
    parts = [int(part) for part in text.split(":")]
    return MONDAY.replace(hour=parts[0], minute=parts[1], second=parts[2] if len(parts) > 2 else 0)


def times(*texts: str) -> list[datetime]:
    """Several instants."""
    return [at(text) for text in texts]


def every(first: str, last: str, step: timedelta = timedelta(minutes=1)) -> list[datetime]:
    """The instants from `first` to `last`, both included: the tests' own calculator."""
    found, end = [at(first)], at(last)
    while found[-1] + step <= end:
        found.append(found[-1] + step)
    return found


class House(AbstractAsyncContextManager["House"]):
    """See the module."""

    postgres: str | None = None
    """The URL of an empty, migrated database that takes the place of the file; a fixture sets it."""

    def __init__(
        self,
        folder: Path,
        start: datetime = MONDAY,
        *,
        window: Window | None = None,
        rate: Rate | None = None,
        grace: float = 60,
        lease: float = 60,
    ) -> None:
        self.path = folder / "horarium.db"
        self.clock = VirtualClock(start)
        self.window = window or Window(grace=timedelta(seconds=grace))
        self.rate = rate
        self.settings = ExecutorSettings(
            grace=timedelta(seconds=grace), lease=timedelta(seconds=lease), retry=RetryPolicy()
        )
        self.target = FakeTarget(max_in_flight=1_000)
        self.calls: list[tuple[datetime, str, datetime, int]] = []
        """When, which trigger, which slot, which attempt: every call of the target."""
        self.patience = timedelta(seconds=60)
        """How long the reporter waits for the target, in real time."""
        self.specs: dict[TriggerKey, TriggerSpec] = {}
        self.source = "house"
        self.starts_in_shadow = False
        """Whether the source says so of its new triggers."""
        self.store: Store = (
            SqliteStore(self.path, self.clock, inline=True)
            if self.postgres is None
            else PostgresStore(self.postgres, self.clock)
        )
        self._pool: TargetPool | None = None

    async def __aenter__(self) -> House:
        if self.postgres is None:
            shutil.copy(_migrated(), self.path)
        await self.store.open()
        self.start_engine()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()

    def start_engine(self, store: Store | None = None) -> None:
        """A new process: nothing is carried over but what the database holds."""
        live = store or self.store
        wake = Wake()
        record = _Recording(self)
        self._pool = TargetPool(live, self.clock, lambda spec: record, self.rate)
        self.planner = Planner(live, self.clock, self.window, wake, PlannerSettings())
        self.executor = Executor(live, self.clock, SequenceIds(), self._pool, wake, "house", self.settings)
        self.reporter = Reporter(live, self.clock, self._pool, wake, Metrics(), patience=self.patience)

    # what people do

    async def apply(self, **triggers: Mapping[str, Any]) -> SyncResult:
        """Declare these triggers as the whole of the source. Each is a mapping: `cron`, `every` or `at`,
        `timezone`, and the words of `TriggerSpec`."""
        self.specs = {key_of(name): spec_of(words) for name, words in triggers.items()}
        return await self.sync()

    async def sync(self) -> SyncResult:
        """Reconcile what `specs` says."""
        entries = tuple(TriggerEntry(key, spec) for key, spec in self.specs.items())
        listing = Listing(
            self.source,
            (TargetSpec("fake", "fake", rate=self.rate, unlimited=self.rate is None),),
            tuple(DeploymentSpec(key.deployment_key, "fake") for key in self.specs),
            entries,
            shadow=self.starts_in_shadow,
        )
        now = self.clock.now()
        version = await self.store.source_version(self.source)
        result = await self.store.sync_source(
            listing,
            version,
            lambda known: reconcile(listing, known, now, allow_withdraw=True),
            now,
            "test",
        )
        assert not result.decided.problems, result.decided.problems
        return result

    async def pause(self, name: str, note: str | None = None, until: datetime | None = None) -> None:
        now = self.clock.now()
        await self.store.change(
            [key_of(name)],
            lambda state: decisions.pause(state, "test", now, note=note, resume_at=until),
            now,
            "test",
        )

    async def resume(self, name: str, *, backfill: bool = False) -> None:
        now = self.clock.now()
        await self.store.change(
            [key_of(name)],
            lambda state: decisions.resume(state, "test", now, backfill=backfill, grace=self.window.grace),
            now,
            "test",
        )

    async def pause_deployment(self, name: str) -> None:
        """With all the triggers that it has."""
        key, now = key_of(name).deployment_key, self.clock.now()
        await self.store.change_deployment(
            key, lambda state: deployments.pause(state, "test", now), now, "test"
        )

    async def resume_deployment(self, name: str) -> None:
        key, now, grace = key_of(name).deployment_key, self.clock.now(), self.window.grace
        await self.store.change_deployment(
            key, lambda state: deployments.resume(state, "test", now, grace=grace), now, "test"
        )

    async def shadow(self, name: str, on: bool) -> None:
        """Into the shadow of another scheduler, or out of it."""
        now = self.clock.now()
        await self.store.change(
            [key_of(name)], lambda state: decisions.shadow(state, on, "test", now), now, "test"
        )

    async def run_by_hand(self, name: str) -> None:
        request = ManualRequest(key_of(name), "by hand", None, "test")
        await self.store.create_manual(request, self.clock.now())

    async def replan(self, name: str) -> None:
        """Have the planner look at a trigger now, though nothing changed."""
        now = self.clock.now()
        await self.store.change(
            [key_of(name)],
            lambda state: Change("replan", replace(state.trigger, plan_due_at=now)),
            now,
            "test",
        )

    async def backfill(self, name: str, first: datetime, last: datetime) -> None:
        now = self.clock.now()
        await self.store.change(
            [key_of(name)], lambda state: decisions.start_backfill(state, first, last, now), now, "test"
        )

    async def plan_range(self, name: str, first: datetime, last: datetime) -> RangePlan:
        now = self.clock.now()
        found: list[RangePlan] = []

        def decide(state: TriggerState) -> Change | None:
            found.append(plan_range(state, first, last, now, 1_000))
            return found[-1].change

        await self.store.change([key_of(name)], decide, now, "test")
        return found[-1]

    # time

    async def run_for(self, *, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let the service work for so long."""
        await self.run_until(self.clock.now() + timedelta(hours=hours, minutes=minutes, seconds=seconds))

    async def run_until(self, end: datetime) -> None:
        """Let the service work until `end`, inclusive."""
        while True:
            await self.turn()
            now = self.clock.now()
            if now >= end:
                return
            due = [
                await self.store.next_plan_due(),
                await self.store.next_due(now),
                self.executor.refill_at,
                await self._next_report(),
            ]
            wakes = [item for item in due if item is not None and item > now]
            if await self._waits(now):
                # The service also polls: what waits for a token or a full target comes that way.
                wakes.append(now + timedelta(seconds=1))
            self.clock.advance(min([*wakes, end]) - now)

    async def down_for(self, *, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Nobody runs for so long; then a new process starts."""
        self.clock.advance(timedelta(hours=hours, minutes=minutes, seconds=seconds))
        self.start_engine()

    async def turn(self) -> None:
        """Do what is to be done now, until there is nothing more."""
        while await self.planner.run_once():
            pass
        while True:
            claimed = await self.executor.run_once()
            for _ in range(6):
                await asyncio.sleep(0)
            settled = await self.executor.settle_now()
            asked = await self.reporter.run_once()
            if not claimed and not settled and not asked:
                return

    async def _next_report(self) -> datetime | None:
        """When a target is next to be asked how a run is going."""
        rows = await self.store.fetch(select(func.min(tables.run.c.report_due_at, type_=tables.UtcTime())))
        found: datetime | None = rows[0][0]
        return found

    async def _waits(self, now: datetime) -> bool:
        rows = await self.store.fetch(
            select(tables.run.c.id)
            .where(tables.run.c.state == "scheduled", tables.run.c.due_at <= now)
            .limit(1)
        )
        return bool(rows)

    async def claim_for_another_process(self) -> Claimed:
        """Another process claims the one due run, and then hangs."""
        now = self.clock.now()
        (target,) = [row for row in await self.store.targets() if row.spec.name == "fake"]
        claims = await self.store.claim(
            [Demand(target.id, 1, None)],
            now,
            now + self.settings.lease,
            "another",
            backlog_first=False,
            late_after=self.settings.late_after,
            grace=self.settings.grace,
        )
        (claimed,) = claims.runs
        return claimed

    def record_as_made(self, claimed: Claimed) -> None:
        """The other process's call had its effect; its answer is lost."""
        run = claimed.run
        self.target.created[run.name] = FireRequest(
            run.name,
            claimed.key,
            run.origin.value,
            run.scheduled_time,
            run.attempt,
            {},
            {},
            claimed.lease_until,
        )

    async def settle_as_failure(self, claimed: Claimed) -> None:
        """The other process wakes up and reports that its call failed."""
        now, run = self.clock.now(), claimed.run
        await self.store.settle(
            [Outcome(run.id, run.attempt, RunState.FAILED, "refused", now, now, reason="late")], now
        )

    async def settle_as_success(self, claimed: Claimed) -> None:
        """The other process wakes up and reports that its call made the run."""
        now, run = self.clock.now(), claimed.run
        await self.store.settle([Outcome(run.id, run.attempt, RunState.FIRED, "created", now, now)], now)

    async def write(self, statement: Any) -> None:
        """Change the database behind Horarium's back."""
        made = engine(str(self.path))
        with made.connect() as connection, connection.begin():
            connection.execute(statement)
        made.dispose()

    # what is to be seen

    def fired(self, name: str) -> list[datetime]:
        """The slots that the target was made to run, in order of the slot."""
        return sorted(
            request.scheduled_time
            for request in self.target.created.values()
            if request.trigger == key_of(name)
        )

    def fired_at(self, name: str) -> list[datetime]:
        """When each call that made a run was, in order."""
        return [when for when, trigger, _, _ in self.calls if trigger == name]

    async def skips(self, name: str) -> list[tuple[datetime, datetime, int, str]]:
        """First slot, last slot, how many, why; in order."""
        rows = await self.store.fetch(
            select(tables.skip)
            .join(tables.trigger, tables.trigger.c.id == tables.skip.c.trigger_id)
            .where(tables.trigger.c.deployment == name)
            .order_by(tables.skip.c.first_time)
        )
        return [(row.first_time, row.last_time, row._mapping["count"], row.reason) for row in rows]

    async def runs(self, name: str, *states: str) -> list[datetime]:
        """The slots of its runs in these states (any, if none is given), in order."""
        query = (
            select(tables.run.c.scheduled_time)
            .join(tables.trigger, tables.trigger.c.id == tables.run.c.trigger_id)
            .where(tables.trigger.c.deployment == name)
            .order_by(tables.run.c.scheduled_time)
        )
        if states:
            query = query.where(tables.run.c.state.in_(states))
        return [row.scheduled_time for row in await self.store.fetch(query)]

    async def rows(self, table: Any) -> Sequence[Any]:
        """All rows of a table."""
        return await self.store.fetch(select(table))


def key_of(name: str) -> TriggerKey:
    """`tick` is the trigger `default` of the deployment `tick`; `tick/night` another one of it."""
    deployment, _, trigger = name.partition("/")
    return TriggerKey("default", "default", deployment, trigger or "default")


def spec_of(words: Mapping[str, Any]) -> TriggerSpec:
    """A spec from the words of a test."""
    schedule = {
        word: words[word]
        for word in ("cron", "every", "at", "timezone", "dst", "start", "end")
        if word in words
    }
    rest = {word: value for word, value in words.items() if word not in schedule}
    if "catch_up" in rest:
        rest["catch_up"] = CatchUp(rest["catch_up"])
    if "overlap" in rest:
        rest["overlap"] = Overlap(rest["overlap"])
    for word in ("max_age", "jitter", "retry_for", "completion_timeout"):
        if word in rest:
            rest[word] = timedelta(seconds=rest[word])
    return TriggerSpec(schedule, "fake", **rest)


@cache
def _migrated() -> Path:
    """A migrated, empty database, made once: each test works on a copy of it."""
    path = Path(tempfile.mkdtemp(prefix="horarium-tests-")) / "empty.db"
    atexit.register(shutil.rmtree, path.parent)
    made = engine(str(path))
    with made.connect() as connection, connection.begin():
        migrations.upgrade(connection)
    made.dispose()
    return path


class _Recording:
    """The house's target, with a note of when each call was."""

    def __init__(self, house: House) -> None:
        self._house = house

    def __getattr__(self, name: str) -> Any:
        return getattr(self._house.target, name)

    def free(self) -> int:
        return self._house.target.free()

    async def start(self) -> None:
        await self._house.target.start()

    async def create_run(self, request: Any) -> Any:
        house = self._house
        house.calls.append(
            (house.clock.now(), request.trigger.deployment, request.scheduled_time, request.attempt)
        )
        return await house.target.create_run(request)

    async def status(self, runs: Any) -> Any:
        return await self._house.target.status(runs)  # type: ignore[attr-defined]  # where it reports

    async def cancel(self, run: Any) -> Any:
        return await self._house.target.cancel(run)  # type: ignore[attr-defined]  # where it cancels


class Crash(BaseException):
    """The process died here. A BaseException: nothing in the engine may survive it."""


class Fragile:
    """A store whose n-th boundary (before or after a method's effect) is where the process dies.

    Also a target's: see `House.target`, whose calls can be scripted to raise.
    """

    def __init__(self, store: Store, dies_at: int) -> None:
        self._store = store
        self._left = dies_at
        self.died_at: str | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def guarded(*args: Any, **kwargs: Any) -> Any:
            self._boundary(f"before {name}")
            result = await method(*args, **kwargs)
            self._boundary(f"after {name}")
            return result

        return guarded

    def _boundary(self, where: str) -> None:
        if self.died_at is not None:
            raise Crash(self.died_at)  # dead is dead
        if self._left == 0:
            self.died_at = where
            raise Crash(where)
        self._left -= 1


class Away:
    """A store whose database does not answer while `away` is set."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.away:
                raise StoreUnavailable("connection refused")
            return await method(*args, **kwargs)

        return guarded


__all__ = [
    "FAR",
    "MONDAY",
    "Away",
    "Crash",
    "DeploymentKey",
    "Fragile",
    "House",
    "at",
    "every",
    "key_of",
    "times",
]
