"""A store with something in it, and short words for what the suite does to it.

`World` only calls the contract of `store/base.py` and the pure decisions of `core/`, and reads rows with
Core selects, so that each test is the same on every database. `run_sql` is the back door: it writes what no
method would, to set a scene (a name that is taken, a rule that can't be read).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Executable, Row, select

from horarium.core import deployment as deployments
from horarium.core import trigger as decisions
from horarium.core.deployment import DeploymentChange
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.outcome import Outcome
from horarium.core.plan import PlanInput, RangePlan, Window, plan, plan_range
from horarium.core.reconcile import reconcile
from horarium.core.run import Run, RunState
from horarium.core.spec import DeploymentSpec, Listing, Rate, TargetSpec, TriggerEntry, TriggerSpec
from horarium.core.trigger import Change, Trigger, TriggerState
from horarium.store import tables as t
from horarium.store.base import Changed, Claims, Demand, PlansApplied, Store, SyncResult
from horarium.store.rows import run_of, trigger_of

NOW = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
"""A Monday, 10:00 UTC, and a slot of every rule in the suite."""

GRACE = timedelta(seconds=60)
LATE = timedelta(seconds=60)
LEASE = timedelta(seconds=60)
ANY = 1_000


def at(text: str) -> datetime:
    """`at("10:05")` or `at("10:05:30")` on the suite's Monday."""
    hour, minute, *second = (int(part) for part in text.split(":"))
    return NOW.replace(hour=hour, minute=minute, second=second[0] if second else 0)


def minutes(step: int, after: datetime, until: datetime) -> list[datetime]:
    """Slots of `*/step * * * *` in `(after, until]`: counted, with nothing of horarium."""
    found = []
    slot = after.replace(minute=0, second=0, microsecond=0)
    while slot <= until:
        if slot > after and slot.minute % step == 0:
            found.append(slot)
        slot += timedelta(minutes=1)
    return found


def key(name: str) -> TriggerKey:
    return TriggerKey("default", "default", name, "default")


def spec(cron: str = "*/5 * * * *", *, target: str = "work", **rest: Any) -> TriggerSpec:
    return TriggerSpec(schedule={"cron": cron}, target=target, **rest)


def entry(name: str, cron: str = "*/5 * * * *", renamed_from: str | None = None, **rest: Any) -> TriggerEntry:
    return TriggerEntry(key(name), spec(cron, **rest), renamed_from)


def listing(*entries: TriggerEntry, source: str = "team.yaml", target: str = "work", **rest: Any) -> Listing:
    """A source with one target and a deployment for each entry."""
    deployments = {
        item.key.deployment_key: DeploymentSpec(item.key.deployment_key, target) for item in entries
    }
    return Listing(source, (TargetSpec(target, "http"),), tuple(deployments.values()), entries, **rest)


class World:
    """See the module."""

    def __init__(self, store: Store, run_sql: Callable[[Executable], Awaitable[None]]) -> None:
        self.store = store
        self.run_sql = run_sql

    # triggers

    async def add(
        self,
        name: str = "a",
        cron: str = "*/5 * * * *",
        *,
        now: datetime = NOW,
        target: str = "work",
        **rest: Any,
    ) -> Trigger:
        """A trigger that people manage, and its target if it is new; read back as the store has it."""
        given = Listing(
            "api",
            (TargetSpec(target, "http"),),
            (DeploymentSpec(DeploymentKey("default", "default", name), target),),
            (TriggerEntry(key(name), spec(cron, target=target, **rest)),),
        )
        result = await self.store.create_trigger(given, now, "ann")
        assert result.written, result.decided
        return await self.trigger(name)

    async def trigger(self, name: str = "a") -> Trigger:
        (found,) = [item for item in await self.triggers() if item.key.deployment == name]
        return found

    async def triggers(self) -> list[Trigger]:
        rows = await self.store.fetch(select(t.trigger).order_by(t.trigger.c.id))
        return [trigger_of(row) for row in rows]

    async def change(
        self,
        name: str,
        decide: Callable[[TriggerState], Change | None],
        now: datetime,
    ) -> list[Changed]:
        return await self.store.change([key(name)], decide, now, "ann")

    async def edit(self, name: str, cron: str, now: datetime, **rest: Any) -> list[Changed]:
        return await self.change(
            name, lambda state: decisions.edit(state, spec(cron, **rest), "ann", now), now
        )

    async def pause(self, name: str, now: datetime, **rest: Any) -> list[Changed]:
        return await self.change(name, lambda state: decisions.pause(state, "ann", now, **rest), now)

    async def resume(self, name: str, now: datetime, **rest: Any) -> list[Changed]:
        return await self.change(name, lambda state: decisions.resume(state, "ann", now, **rest), now)

    async def pause_deployment(self, name: str, now: datetime, **rest: Any) -> DeploymentChange | None:
        return await self.store.change_deployment(
            key(name).deployment_key,
            lambda state: deployments.pause(state, "ann", now, **rest),
            now,
            "ann",
        )

    async def resume_deployment(self, name: str, now: datetime, **rest: Any) -> DeploymentChange | None:
        return await self.store.change_deployment(
            key(name).deployment_key,
            lambda state: deployments.resume(state, "ann", now, **rest),
            now,
            "ann",
        )

    async def delete(self, name: str, now: datetime) -> list[Changed]:
        return await self.change(name, lambda state: decisions.delete(state, "ann", now), now)

    async def backfill(self, name: str, low: datetime, high: datetime, now: datetime) -> list[Changed]:
        return await self.change(name, lambda state: decisions.start_backfill(state, low, high, now), now)

    async def plan_range(
        self, name: str, low: datetime, high: datetime, now: datetime, room: int = ANY
    ) -> RangePlan:
        """A person asks for the runs of `[low, high]`; what that comes to."""
        found: list[RangePlan] = []

        def decide(state: TriggerState) -> Change | None:
            found.append(plan_range(state, low, high, now, room))
            return found[-1].change

        await self.change(name, decide, now)
        return found[-1]

    async def sync(
        self,
        given: Listing,
        now: datetime = NOW,
        *,
        version: int | None = None,
        allow_withdraw: bool = False,
        dry_run: bool = False,
    ) -> SyncResult:
        """One pass of a source, at its present version unless told."""
        if version is None:
            version = await self.store.source_version(given.source)
        return await self.store.sync_source(
            given,
            version,
            lambda known: reconcile(given, known, now, allow_withdraw=allow_withdraw),
            now,
            "sync",
            dry_run=dry_run,
        )

    # plans

    async def lease(self, now: datetime, limit: int = ANY) -> list[PlanInput]:
        return await self.store.lease_due(now, now + timedelta(seconds=30), limit)

    async def plan(self, now: datetime, window: Window | None = None) -> PlansApplied:
        """One pass of the planner over all that is due."""
        plans = [plan(item, now, window or Window()) for item in await self.lease(now)]
        return await self.store.apply_plans(plans, now)

    async def plan_all(self, now: datetime, window: Window | None = None) -> None:
        """Passes until nothing is due, as a planner makes them; bounded, so that a stuck one fails."""
        for _ in range(200):
            due = await self.store.next_plan_due()
            if due is None or due > now:
                return
            await self.plan(now, window)
        raise AssertionError("200 passes and still something to plan")

    # runs

    async def runs(self, name: str | None = None, **where: str) -> list[Run]:
        """Runs by slot; `state="held"` and the like narrow it down."""
        query = select(t.run).order_by(t.run.c.trigger_id, t.run.c.scheduled_time, t.run.c.id)
        if name is not None:
            query = query.where(t.run.c.trigger_id == (await self.trigger(name)).id)
        for column, value in where.items():
            query = query.where(t.run.c[column] == value)
        return [run_of(row) for row in await self.store.fetch(query)]

    async def slots(self, name: str | None = None, **where: str) -> list[datetime]:
        return [run.scheduled_time for run in await self.runs(name, **where)]

    async def skips(self, name: str | None = None) -> list[tuple[datetime, datetime, int, str]]:
        """First slot, last slot, count and reason, by first slot."""
        query = select(t.skip).order_by(t.skip.c.first_time, t.skip.c.id)
        if name is not None:
            query = query.where(t.skip.c.trigger_id == (await self.trigger(name)).id)
        rows = await self.store.fetch(query)
        return [(row.first_time, row.last_time, row._mapping["count"], row.reason) for row in rows]

    async def rows(self, table: Any) -> Sequence[Row[Any]]:
        return await self.store.fetch(select(table).order_by(*table.primary_key.columns))

    async def everything(self) -> list[tuple[str, list[tuple[Any, ...]]]]:
        """All rows of all tables: two of these are equal when nothing was changed."""
        return [
            (table.name, [tuple(row) for row in await self.rows(table)]) for table in t.metadata.sorted_tables
        ]

    # fire

    async def target_id(self, name: str = "work") -> int:
        rows = await self.store.fetch(select(t.target.c.id).where(t.target.c.name == name))
        found: int = rows[0].id
        return found

    async def allowance(self, name: str = "work") -> Row[Any]:
        rows = await self.store.fetch(
            select(t.target_allowance).where(t.target_allowance.c.target_id == await self.target_id(name))
        )
        return rows[0]

    async def claim(
        self,
        now: datetime,
        wanted: int = ANY,
        *,
        rate: Rate | None = None,
        owner: str = "me",
        backlog_first: bool = False,
        target: str = "work",
        lease_until: datetime | None = None,
        look: bool = True,
    ) -> Claims:
        """One claim of one target; somebody has just looked, unless told."""
        if look:
            await self.look(now, target)
        return await self.store.claim(
            [Demand(await self.target_id(target), wanted, rate)],
            now,
            lease_until or now + LEASE,
            owner,
            backlog_first=backlog_first,
            late_after=LATE,
            grace=GRACE,
        )

    async def look(self, now: datetime, target: str = "work") -> tuple[timedelta, int]:
        looked = await self.store.look(await self.target_id(target), now, GRACE)
        return looked.gap, looked.skipped

    async def settle(self, *outcomes: Outcome, now: datetime) -> set[int]:
        return await self.store.settle(outcomes, now)


def fired(run: Run, now: datetime, attempt: int | None = None) -> Outcome:
    return Outcome(run.id, attempt or run.attempt, RunState.FIRED, "created", now, now, target_run_id="job-1")


def refused(run: Run, now: datetime, attempt: int | None = None) -> Outcome:
    return Outcome(run.id, attempt or run.attempt, RunState.FAILED, "refused", now, now, reason="no such job")


def unavailable(run: Run, now: datetime, due_at: datetime, attempt: int | None = None) -> Outcome:
    return Outcome(
        run.id,
        attempt or run.attempt,
        RunState.SCHEDULED,
        "unavailable",
        now,
        now,
        due_at=due_at,
        reason="down",
    )


def without_target(given: Listing) -> Listing:
    """The same triggers of a source that shares another's target."""
    return replace(given, targets=())
