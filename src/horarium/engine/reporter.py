"""The reporter: asks targets how the runs are going that they have.

Many targets tell by themselves when a run has ended; a report can be lost, and some only answer when asked.
So every run that is under way is asked about now and then, less often the longer it goes on, by whichever
replica comes first. One whose end is never reported is `unknown` after its `completion_timeout`: it stands in
nobody's way for ever.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta

from horarium.clock import Clock
from horarium.core.duration import format_duration
from horarium.core.instant import rfc3339
from horarium.core.run import FiredRun, Report, Result
from horarium.engine.database_time import DatabaseTime
from horarium.engine.pool import TargetPool
from horarium.engine.wake import Wake
from horarium.errors import StoreUnavailable
from horarium.store.base import Store
from horarium.targets.base import ReportsRuns
from horarium.telemetry import Metrics, get_logger

LOG = get_logger(__name__)

BATCH = 200
"""Runs asked about at once."""

PATIENCE = timedelta(seconds=60)
"""How long a target is waited for; one of ours gives up before that."""


class Reporter:
    """See the module. `poll` is the longest sleep, `patience` how long a target may take to answer."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        pool: TargetPool,
        wake: Wake,
        metrics: Metrics,
        poll: timedelta = timedelta(seconds=2),
        patience: timedelta = PATIENCE,
    ) -> None:
        self._store = store
        self._clock = clock
        self._time = DatabaseTime(store, clock)
        self._pool = pool
        self._wake = wake
        self._metrics = metrics
        self._poll = poll
        self._patience = patience

    @property
    def rest(self) -> timedelta:
        """The sleep between passes."""
        return self._poll

    async def run_once(self) -> int:
        """One pass; how many runs it asked about."""
        if not any(running.target.traits.reports_completion for running in self._pool):
            return 0
        now = await self._time.read()
        due = await self._store.reports_due(now, BATCH)
        if not due:
            return 0
        overdue = [run for run, until in due if until <= now]
        # First, and whatever targets say: somebody may have waited too long for it.
        await self._write(
            [Report(run.run_key, Result.UNKNOWN, now, "its target never reported an end") for run in overdue]
        )
        asked: defaultdict[int, list[FiredRun]] = defaultdict(list)
        for run, until in due:
            if until > now:
                asked[run.target_id].append(run)
        # All at once, so that one that takes its time delays no other's reports.
        found = await asyncio.gather(*map(self._ask, asked, asked.values()), return_exceptions=True)
        for fault in found:
            if fault is not None:
                raise fault
        return len(due)

    async def wait(self) -> None:
        """Sleep until the next pass."""
        await self._clock.wait(self._wake.reporter, self._poll / timedelta(seconds=1))
        self._wake.reporter.clear()

    async def _ask(self, target_id: int, runs: Sequence[FiredRun]) -> None:
        running = self._pool.get(target_id)
        if running is None or not isinstance(running.target, ReportsRuns):
            return
        try:
            async with asyncio.timeout(self._patience / timedelta(seconds=1)) as bound:
                reports = await running.target.status(runs)
            await self._write([item for item in reports if item.result is not Result.RUNNING])
            running.unasked = None
        except StoreUnavailable:
            raise
        except Exception as error:  # whatever a target raises or answers, the others are asked all the same
            late = bound.expired()
            said = (
                f"no answer in {format_duration(self._patience)}"
                if late
                else f"{type(error).__name__}: {error}"
            )
            at = rfc3339(self._time.now().replace(microsecond=0))
            running.unasked = f"not asked how its runs go, at {at}: {said}"
            LOG.warning("not asked", target=running.spec.name, runs=len(runs), outcome=said)
            self._metrics.loop_errors.labels("report").inc()

    async def _write(self, ended: Sequence[Report]) -> None:
        if ended and await self._store.report(ended, self._time.now()):
            self._wake.executor.set()
        for report in ended:
            self._metrics.runs_ended.labels(report.result.value).inc()
