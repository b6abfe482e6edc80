"""An event loop without real time: virtual seconds, and a seeded choice among the callbacks that are ready.

Where several callbacks could run, asyncio runs them in the order in which they came; nobody may rely on it,
as a network or a busy machine changes it. Here a seeded generator chooses. When nothing is ready the time
jumps to the next timer. So a program on this loop runs the same way, step for step, for the same seed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any


class Stuck(Exception):
    """Nobody can go on: nothing is ready and no timer is set."""


class SeededLoop(asyncio.BaseEventLoop):
    """See the module. `time()` is in seconds from zero; each callback takes a few microseconds of it."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._pick = rng.random
        self._at = 0.0
        self._ready: deque[asyncio.Handle]
        self._scheduled: list[asyncio.TimerHandle]
        self.steps = 0
        self.last_look: Callable[[], None] | None = None

    def time(self) -> float:
        return self._at

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled
        if not ready:
            while timers and timers[0].cancelled():
                heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]  # asyncio's own mark
            if not timers:
                raise Stuck("nothing is ready and no timer is set")
            self._at = max(self._at, timers[0].when())
        while timers and timers[0].when() <= self._at:
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]  # asyncio's own mark
            if not timer.cancelled():
                ready.append(timer)
        if not ready:
            return
        # A program's clock moves on between any two readings: tokens made of times rely on that.
        self._at += 2e-6
        if len(ready) > 1:
            index = int(self._pick() * len(ready))
            ready.rotate(-index)
            handle = ready.popleft()
            ready.rotate(index)
        else:
            handle = ready.popleft()
        self.steps += 1
        if not handle.cancelled():
            handle._run()

    # What a loop without input and output needs no more of than this.

    def _process_events(self, event_list: Any) -> None:
        raise NotImplementedError

    def _write_to_self(self) -> None:
        raise NotImplementedError
