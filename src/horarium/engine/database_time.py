"""The database's time between two readings of its clock.

All that is due, leased or settled is in the database's time. Between two readings it goes on with this host's
monotonic clock, so that a host whose wall clock is wrong, or jumps, waits and settles at the right times.

`OffsetClock` (`clock.py`) is not enough for that: it follows the wall clock between two readings, leaves out
an answer that took long, and is there on PostgreSQL alone. A loop leans on its own reading, whatever it took.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from horarium.clock import Clock
from horarium.store.base import Store


class DatabaseTime:
    """See the module. One object for each loop that reads the clock at the start of its passes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._read: tuple[datetime, float] | None = None

    async def read(self) -> datetime:
        """Ask the database."""
        now = await self._store.clock()
        self._read = now, self._clock.monotonic()
        return now

    async def read_plan_due(self) -> tuple[datetime, datetime | None]:
        """Ask the database, and of the same statement when the planner's queue is next due."""
        now, due = await self._store.plan_due()
        self._read = now, self._clock.monotonic()
        return now, due

    def now(self) -> datetime:
        """What it would say now, to a few milliseconds; the host's clock before the first reading."""
        if self._read is None:
            return self._clock.now()
        at, monotonic = self._read
        return at + timedelta(seconds=self._clock.monotonic() - monotonic)
