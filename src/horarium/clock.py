"""The one place that reads clocks and randomness.

Everything else takes `now` as an argument or a `Clock` and `Ids` from `wiring.py`, so that the same
steps run under a virtual clock. A test holds that no other module reads a clock.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> datetime:
        """The present instant, aware, UTC, with microseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back; only differences mean anything."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait until `event` is set, at most `seconds`. True if it was set. Does not clear it."""
        ...


class Ids(Protocol):
    """Where randomness comes from."""

    def new_id(self) -> str:
        """A name that nobody else has: 32 lowercase hex digits."""
        ...

    def fraction(self) -> float:
        """A number in [0, 1), for jitter of retries."""
        ...


class SystemClock:
    """The host's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        if event.is_set():
            return True
        try:
            await asyncio.wait_for(event.wait(), max(0.0, seconds))
        except TimeoutError:
            return False
        return True


TRUSTED = 0.5
"""Seconds of a round trip after which an answer may be wrong by more than any clock that is kept well."""


class OffsetClock:
    """A clock corrected by how far another one, a database's, was seen to be ahead of it.

    Replicas whose hosts disagree then act by one time. `monotonic` and `wait` stay the host's. `told` hears
    of the offset after every look.

    The loops have `engine/database_time.py` besides. This one is for all else in the process, which asks for
    the time without asking the database: who corrects it last serves everybody, and in between it follows the
    host's wall clock, so it is right only as long as that does not jump.
    """

    def __init__(self, clock: Clock, told: Callable[[timedelta], None] | None = None) -> None:
        self._clock = clock
        self._told = told
        self.offset = timedelta()
        """How far the other clock is ahead; negative: behind."""
        self._compared = False

    def now(self) -> datetime:
        return self._clock.now() + self.offset

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        return await self._clock.wait(event, seconds)

    async def compare(self, read: Callable[[], Awaitable[datetime]]) -> datetime:
        """Read the other clock, and correct this one by it: the answer is half a round trip old.

        An answer that took long says little, as nobody knows on which way: it only corrects a clock that no
        better one has corrected.
        """
        before, began = self._clock.now(), self._clock.monotonic()
        theirs = await read()
        took = self._clock.monotonic() - began
        if took > TRUSTED and self._compared:
            return theirs
        self._compared = self._compared or took <= TRUSTED
        self.offset = theirs - (before + timedelta(seconds=took) / 2)
        if self._told is not None:
            self._told(self.offset)
        return theirs


class SystemIds:
    """The host's randomness."""

    def new_id(self) -> str:
        return uuid.uuid4().hex

    def fraction(self) -> float:
        return random.random()
