"""The janitor: retention. Settled runs and old skips go, in bounded batches; nothing owed ever does."""

from __future__ import annotations

from datetime import timedelta

from horarium.clock import Clock
from horarium.engine.wake import Wake
from horarium.store.base import Store
from horarium.telemetry import get_logger

LOG = get_logger(__name__)

BATCH = 1_000
"""Rows of one transaction: some 20 ms, so that a claim never waits long behind it."""

PAUSE = timedelta(minutes=10)


class Janitor:
    """Keeps settled runs for `runs` and skips for `skips`."""

    def __init__(self, store: Store, clock: Clock, wake: Wake, runs: timedelta, skips: timedelta) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake
        self._runs = runs
        self._skips = skips
        self._more = False

    @property
    def rest(self) -> timedelta:
        """The longest sleep between batches."""
        return PAUSE

    async def run_once(self) -> int:
        """One batch. Returns how many rows went."""
        now = await self._store.clock()
        gone = await self._store.prune(now - self._runs, now - self._skips, BATCH)
        total = gone.runs + gone.skips
        self._more = gone.runs >= BATCH or gone.skips >= BATCH
        if total:
            LOG.info("pruned", runs=gone.runs, skips=gone.skips)
        return total

    async def wait(self) -> None:
        """Sleep between batches: briefly while there is more to prune."""
        pause = timedelta(milliseconds=100) if self._more else PAUSE
        await self._clock.wait(self._wake.janitor, pause / timedelta(seconds=1))
        self._wake.janitor.clear()
