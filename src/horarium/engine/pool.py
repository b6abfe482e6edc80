"""The configured targets as running objects, kept in step with the store's rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from horarium.clock import Clock
from horarium.core.spec import Rate, TargetSpec
from horarium.store.base import Store
from horarium.targets.base import Target
from horarium.telemetry import get_logger

LOG = get_logger(__name__)

RETRY_START = 15.0
"""Seconds after which a target that could not be started (a secret that is not there) is tried again."""


AHEAD = 0.5
"""Seconds of its work that may be claimed beyond a target's free places, so that they need not wait for the
database between two claims. Shorter than the executor's `START_MARGIN`."""


@dataclass(slots=True)
class Running:
    """A target that runs. `unstarted` counts runs claimed for it whose call has not begun, `beginning`
    those among them that have a task already; `call_seconds` is
    how long its calls have lately taken, 0 until one has ended; `unasked` why and when it could not be asked
    how its runs go, if it could not the last time."""

    id: int
    spec: TargetSpec
    target: Target
    rate: Rate | None
    frozen: bool = False
    unstarted: int = 0
    beginning: int = 0
    call_seconds: float = 0.0
    unasked: str | None = None

    def free(self) -> int:
        """How many runs may be claimed for it now: its free places and, where it is quick, `AHEAD` of them.

        A full target that is slow is not claimed from: its backlog waits in the database, where people see
        it. Nor is one that takes the work in itself and keeps its places (`holds_place`).
        """
        ahead = 0
        if 0.0 < self.call_seconds < AHEAD / 2 and not self.target.traits.holds_place:
            ahead = int(self.target.max_in_flight * (AHEAD / self.call_seconds - 1))
        return self.target.free() + ahead - self.unstarted

    def begins(self) -> None:
        """A task has come so far that the target itself counts its call."""
        self.unstarted -= 1
        self.beginning -= 1

    def took(self, seconds: float) -> None:
        """A call has ended after so long; a slow one counts at once, quick ones little by little."""
        self.call_seconds = max(seconds, self.call_seconds + (seconds - self.call_seconds) / 16)


@dataclass(slots=True)
class Broken:
    """A target that could not be started, and when it is tried again."""

    spec: TargetSpec
    error: str
    again: float


class TargetPool:
    """`build` makes a target of its spec; `default_rate` is for specs without one of their own."""

    def __init__(
        self, store: Store, clock: Clock, build: Callable[[TargetSpec], Target], default_rate: Rate | None
    ) -> None:
        self._store = store
        self._clock = clock
        self._build = build
        self._default_rate = default_rate
        self._running: dict[int, Running] = {}
        self._broken: dict[int, Broken] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def refresh(self) -> None:
        """Start what is new or changed, retire what was changed or withdrawn."""
        rows = await self._store.targets()
        there = {row.id for row in rows}
        for row in rows:
            running = self._running.get(row.id)
            if running is not None and running.spec == row.spec:
                running.frozen = row.frozen
                continue
            broken = self._broken.get(row.id)
            if broken is not None and broken.spec == row.spec and self._clock.monotonic() < broken.again:
                continue
            await self._start(row.id, row.spec, row.frozen)
        for target_id in [item for item in self._running if item not in there]:
            self._retire(self._running.pop(target_id))
        for target_id in [item for item in self._broken if item not in there]:
            del self._broken[target_id]

    def get(self, target_id: int) -> Running | None:
        """The running target of an id."""
        return self._running.get(target_id)

    def __iter__(self) -> Iterator[Running]:
        return iter(self._running.values())

    def broken(self) -> dict[str, str]:
        """Names of targets that could not be started, and why."""
        return {item.spec.name: item.error for item in self._broken.values()}

    @asynccontextmanager
    async def once(self, spec: TargetSpec) -> AsyncIterator[Target]:
        """A target of that spec beside those that run, for as long as the block takes."""
        target = self._build(spec)
        await target.start()
        try:
            yield target
        finally:
            await target.close()

    async def drain(self, timeout: timedelta) -> None:
        """Drain all at once, then close them."""
        await asyncio.gather(*(_end(running.target, timeout) for running in self._running.values()))
        self._running.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _start(self, target_id: int, spec: TargetSpec, frozen: bool) -> None:
        try:
            target = self._build(spec)
            await target.start()
        except Exception as error:
            # Its runs stay due, and `status` shows why they wait: nothing is lost by a missing secret.
            message = f"{type(error).__name__}: {error}"
            LOG.error("target not started", target=spec.name, outcome=message)
            self._broken[target_id] = Broken(spec, message, self._clock.monotonic() + RETRY_START)
            old = self._running.pop(target_id, None)
            if old is not None:
                self._retire(old)
            return
        self._broken.pop(target_id, None)
        old = self._running.get(target_id)
        rate = None if spec.unlimited else spec.rate or self._default_rate
        self._running[target_id] = Running(target_id, spec, target, rate, frozen)
        if old is not None:
            self._retire(old)

    def _retire(self, running: Running) -> None:
        """The old object ends what it has begun, beside the new one."""
        task = asyncio.create_task(_end(running.target, timedelta(hours=1)))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _end(target: Target, timeout: timedelta) -> None:
    try:
        await target.drain(timeout)
    finally:
        await target.close()
