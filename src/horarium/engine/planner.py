"""The planner: turns triggers that are due for it into runs and skips.

One pass: read the due triggers, decide each with the pure `core.plan.plan`, write what was decided under a
compare-and-set. While one transaction is being written the next one's plans are decided. A trigger that can't
be planned costs itself: it gets an error that people see, and a later time. The planner is the sole owner of
`cursor` and `plan_due_at`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select

from horarium.clock import Clock
from horarium.core import trigger as decisions
from horarium.core.plan import Plan, PlanInput, Window, failed_plan, plan
from horarium.core.revision import schedule_of, tzdata_version
from horarium.engine.database_time import DatabaseTime
from horarium.engine.wake import Wake
from horarium.errors import HorariumError, StoreUnavailable
from horarium.store import tables
from horarium.store.base import PlansApplied, Store
from horarium.telemetry import Metrics, decision, get_logger

LOG = get_logger(__name__)

SLICE = 0.005
"""Seconds of planning after which other tasks get their turn: a fire must not wait for a long catch-up."""

BULK = 8
CLEAR = timedelta(milliseconds=250)
"""A transaction costs a flush of the disk and writes each page that it touches once, so large ones are three
times as fast. They also keep a claim waiting, some 100 ms, so they are for times when none is due for longer
than that."""

AT_ONCE = 2
"""A transaction has at most so many times `batch` triggers, however few runs they bring, so that there is
always a part to decide while another is written."""


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """`batch` triggers a pass; a transaction ends with the trigger that fills it to `insert_batch` runs. Both
    are `BULK` times as many while nothing is about to fire; `lease` is for how long a pass holds its
    triggers; `poll` the longest sleep."""

    batch: int = 100
    insert_batch: int = 500
    lease: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(seconds=1)


class Planner:
    """See the module."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        window: Window,
        wake: Wake,
        settings: PlannerSettings | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._time = DatabaseTime(store, clock)
        self._window = window
        self._wake = wake
        self._settings = settings or PlannerSettings()
        self._metrics = metrics or Metrics()
        self._tz_checked: str | None = None
        self._due: datetime | None = None
        """When the queue is next due, as the last pass saw it."""

    @property
    def rest(self) -> timedelta:
        """The longest sleep between passes."""
        return self._settings.poll

    async def run_once(self) -> int:
        """One pass. Returns how many triggers it looked at; 0: there is nothing to plan now."""
        started = self._clock.monotonic()
        now, self._due = await self._time.read_plan_due()
        if self._tz_checked != tzdata_version():
            await self._store.replan_older_tzdata(tzdata_version(), now)
            self._tz_checked = tzdata_version()
            now, self._due = await self._time.read_plan_due()
        if self._due is None or self._due > now:
            return 0
        limit = self._settings.batch * (BULK if await self._is_clear() else 1)
        given = await self._store.lease_due(now, now + self._settings.lease, limit)
        if not given:
            return 0
        done = await self._resume_due([item for item in given if _resumes(item, now)], now)
        done |= await self._retime([item for item in given if item.trigger.id not in done], now)
        await self._plan(deque(item for item in given if item.trigger.id not in done), now)
        self._metrics.plan_seconds.observe(self._clock.monotonic() - started)
        return len(given)

    async def wait(self) -> None:
        """Sleep until the next trigger is due, a hint comes, or the poll interval is over."""
        seconds = self._settings.poll / timedelta(seconds=1)
        if self._due is not None:
            seconds = min(seconds, max(0.0, (self._due - self._time.now()) / timedelta(seconds=1)))
        await self._clock.wait(self._wake.planner, seconds)
        self._wake.planner.clear()

    async def _plan(self, given: deque[PlanInput], now: datetime) -> None:
        """Decide and write all of them, one transaction after the other: the database and this process each
        have a core, and neither waits for the other for longer than it must."""
        writing: asyncio.Task[None] | None = None
        try:
            while given:
                plans = await self._decide(given, now, BULK if await self._is_clear() else 1)
                if writing is not None:
                    await writing
                writing = asyncio.create_task(self._apply(plans, now))
            if writing is not None:
                await writing
        finally:
            if writing is not None and not writing.done():
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)

    async def _decide(self, given: deque[PlanInput], now: datetime, bulk: int) -> list[Plan]:
        """Plans for the next transaction, of triggers from the front: one at least, and those after it for as
        long as its bounds let them in."""
        plans: list[Plan] = []
        runs = 0
        since = self._clock.monotonic()
        most_runs, most_plans = self._settings.insert_batch * bulk, self._settings.batch * AT_ONCE
        while given and runs < most_runs and len(plans) < most_plans:
            item = given.popleft()
            try:
                _refuse_newer_tzdata(item)
                plans.append(plan(item, now, self._window))
            except Exception as error:  # whatever a rule raises costs its trigger, never the batch
                plans.append(failed_plan(item, error, now))
            runs += len(plans[-1].runs)
            if self._clock.monotonic() - since > SLICE:
                await asyncio.sleep(0)
                since = self._clock.monotonic()
        return plans

    async def _is_clear(self) -> bool:
        """Whether nothing is about to fire; what is late already waits for places or tokens, not for us."""
        now = self._time.now()
        due = await self._store.next_due(now)
        return due is None or due - now > CLEAR

    async def _apply(self, plans: Sequence[Plan], now: datetime) -> None:
        try:
            applied = await self._store.apply_plans(plans, now)
        except StoreUnavailable:
            raise  # nothing was written; the next pass begins from the same cursors
        except Exception as error:
            await self._apply_one_by_one(plans, error, now)
            return
        self._report(plans, applied)

    async def _apply_one_by_one(self, plans: Sequence[Plan], error: Exception, now: datetime) -> None:
        """A batch that the database refused is tried trigger by trigger; the bad one gets the error."""
        if len(plans) == 1:
            applied = await self._store.apply_plans([failed_plan(plans[0].input, error, now)], now)
            self._report([failed_plan(plans[0].input, error, now)], applied)
            return
        for item in plans:
            await self._apply([item], now)

    def _report(self, plans: Sequence[Plan], applied: PlansApplied) -> None:
        self._metrics.plans.labels("lost").inc(len(applied.lost))
        self._metrics.runs_planned.inc(applied.runs)
        if applied.runs:
            self._wake.planned()
        failed = sum(item.error is not None for item in plans if item.input.trigger.id in applied.won)
        self._metrics.plans.labels("failed").inc(failed)
        self._metrics.plans.labels("won").inc(len(applied.won) - failed)
        for item in plans:
            if item.error is None and not item.skips:
                continue
            trigger = item.input.trigger
            if trigger.id not in applied.won:
                continue
            if item.error is not None:
                decision(
                    LOG,
                    "not planned",
                    trigger=trigger.key,
                    revision=trigger.revision,
                    outcome=item.error,
                    level=40,
                    retry_at=item.plan_due_at,
                )
            for skip in item.skips:
                self._metrics.slots_skipped.labels(str(skip.reason)).inc(skip.count)
                decision(
                    LOG,
                    "skipped",
                    trigger=trigger.key,
                    slot=skip.first,
                    revision=skip.revision,
                    outcome=str(skip.reason),
                    last=skip.last,
                    count=skip.count,
                )

    async def _resume_due(self, given: Sequence[PlanInput], now: datetime) -> set[int]:
        """Pauses that carry a time to resume end here: the trigger's own queue entry says when."""
        for item in given:
            by = item.trigger.paused_by or "pause"
            await self._store.change(
                [item.trigger.key],
                lambda state, by=by: decisions.resume(  # type: ignore[misc]  # mypy: lambda default
                    state, f"{by} (resume_at)", now, grace=self._window.grace
                ),
                now,
                "planner",
            )
            decision(LOG, "resumed", trigger=item.trigger.key, outcome="resume_at has come")
        if given:
            self._wake.planner.set()
        return {item.trigger.id for item in given}

    async def _retime(self, given: Sequence[PlanInput], now: datetime) -> set[int]:
        """Triggers whose zone has other rules than they were planned by: their later runs are redone."""
        moved = [item for item in given if _zone_moved(item)]
        for item in moved:
            last = await self._last_decided(item, now)
            await self._store.change(
                [item.trigger.key],
                lambda state, last=last: decisions.retime(  # type: ignore[misc]  # mypy: lambda default
                    state, last, tzdata_version(), now
                ),
                now,
                "planner",
            )
            decision(LOG, "replanned", trigger=item.trigger.key, outcome="the zone's rules have changed")
        if moved:
            self._wake.planner.set()
        return {item.trigger.id for item in moved}

    async def _last_decided(self, item: PlanInput, now: datetime) -> tuple[datetime, timedelta] | None:
        """The last slot up to now that has a run or lies in a skip, and its offset when it was planned."""
        until = min(item.trigger.cursor, now)
        run, skip = tables.run.c, tables.skip.c
        runs = await self._store.fetch(
            select(run.scheduled_time, run.utc_offset)
            .where(run.trigger_id == item.trigger.id, run.origin != "manual", run.scheduled_time <= until)
            .order_by(run.scheduled_time.desc())
            .limit(1)
        )
        skips = await self._store.fetch(
            select(skip.last_time)
            .where(skip.trigger_id == item.trigger.id, skip.last_time <= until)
            .order_by(skip.last_time.desc())
            .limit(1)
        )
        if not runs:
            return None
        offset = timedelta(seconds=runs[0].utc_offset)
        slot = max([runs[0].scheduled_time, *(row.last_time for row in skips)])
        return slot, offset


def _zone_moved(item: PlanInput) -> bool:
    trigger = item.trigger
    if trigger.zone_digest is None or (trigger.tzdata_version or "") > tzdata_version():
        return False
    try:
        zone = schedule_of(item.revisions[-1].spec, trigger.hash_seed).zone
    except Exception:  # a rule that can't be read is the plan's to report
        return False
    return zone is not None and zone.digest != trigger.zone_digest


def _refuse_newer_tzdata(item: PlanInput) -> None:
    """A replica with older tz data leaves a trigger to newer ones; its planned runs still fire."""
    newer = item.trigger.tzdata_version
    if item.trigger.zone_digest is not None and newer is not None and newer > tzdata_version():
        raise HorariumError(
            f"it was planned by tz data {newer}, and this process has {tzdata_version()}: "
            "update the package tzdata here"
        )


def _resumes(item: PlanInput, now: datetime) -> bool:
    at = item.trigger.resume_at
    return item.trigger.paused and at is not None and at <= now
