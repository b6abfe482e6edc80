"""The janitor: retention. Settled runs, skips and audit go, in bounded batches; nothing owed ever does.

By age, each turn: the oldest first, out of an index. By count, a few triggers at a time, round after round: a
look at every trigger is work that grows with history, so it is spread over hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from horarium.clock import Clock
from horarium.engine.database_time import DatabaseTime
from horarium.engine.wake import Wake
from horarium.store.base import Pruned, Store
from horarium.telemetry import get_logger

LOG = get_logger(__name__)

BATCH = 1_000
"""Rows of one transaction: some 20 ms, so that a claim never waits long behind it."""

TRIGGERS = 100
"""Triggers of one look at counts. With 130,000 runs each it takes a second; most have few."""

PAUSE = timedelta(minutes=10)
"""Between turns that find nothing."""

STEP = timedelta(seconds=2)
"""Between looks at counts, each a statement: half an hour of them for 100,000 triggers."""

ROUND = timedelta(hours=6)
"""From the beginning of a round to that of the next, unless that takes longer."""

AGAIN = timedelta(milliseconds=100)
"""Between batches while there is more to take."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How long settled runs, skips and the audit are kept, and at most how many of one trigger (0: any)."""

    runs: timedelta = timedelta(days=90)
    skips: timedelta = timedelta(days=400)
    audit: timedelta = timedelta(days=400)
    runs_per_trigger: int = 0
    skips_per_trigger: int = 0


class Janitor:
    """Takes away what is not to be kept."""

    def __init__(self, store: Store, clock: Clock, wake: Wake, keep: Keep) -> None:
        self._store = store
        self._clock = clock
        self._time = DatabaseTime(store, clock)
        self._wake = wake
        self._keep = keep
        self._pause = PAUSE
        self._aged_at: datetime | None = None
        """When nothing was left that is too old; None: some is left."""
        self._after: int | None = 0
        """Where the round over triggers has come to; None: it has ended."""
        self._round_began: datetime | None = None

    @property
    def rest(self) -> timedelta:
        """The longest sleep between batches."""
        return PAUSE

    async def run_once(self) -> int:
        """One batch by age, and a step by count. Returns how many rows went."""
        gone = await self._by_age() + await self._by_count(self._time.now())
        if gone.rows:
            LOG.info("pruned", runs=gone.runs, skips=gone.skips, audit=gone.audit, keys=gone.keys)
        return gone.rows

    async def wait(self) -> None:
        """Sleep between batches: briefly while there is more to prune."""
        await self._clock.wait(self._wake.janitor, self._pause / timedelta(seconds=1))
        self._wake.janitor.clear()

    async def _by_age(self) -> Pruned:
        if self._aged_at is not None and self._time.now() - self._aged_at < PAUSE / 2:
            return Pruned()  # we are here for a step by count
        now = await self._time.read()
        keep = self._keep
        gone = await self._store.prune(now - keep.runs, now - keep.skips, BATCH, now - keep.audit)
        more = max(gone.runs, gone.skips, gone.audit, gone.keys) >= BATCH
        self._aged_at = None if more else now
        self._pause = AGAIN if more else PAUSE
        return gone

    async def _by_count(self, now: datetime) -> Pruned:
        keep = self._keep
        if self._aged_at is None or (keep.runs_per_trigger == 0 and keep.skips_per_trigger == 0):
            return Pruned()
        if self._after is None and (self._round_began is None or now - self._round_began >= ROUND):
            self._after = 0
        if self._after is None:
            return Pruned()
        if self._after == 0:
            self._round_began = now
        gone = await self._store.prune_beyond(
            keep.runs_per_trigger, keep.skips_per_trigger, self._after, TRIGGERS, BATCH
        )
        self._after = gone.after
        if self._after is not None:
            self._pause = AGAIN if gone.runs or gone.skips else STEP
        else:
            self._pause = PAUSE
        return Pruned(gone.runs, gone.skips)
