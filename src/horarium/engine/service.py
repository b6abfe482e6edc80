"""The service: starts the loops, keeps them turning, and drains them.

Every loop is `run_once` until there is nothing to do, then `wait`. A turn that fails is recorded where
people see it and tried again after a pause that grows to five seconds; no error ends a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from horarium.clock import Clock
from horarium.engine.executor import Executor
from horarium.engine.health import Health
from horarium.engine.hints import Hints
from horarium.engine.janitor import Janitor
from horarium.engine.mirror import Mirror
from horarium.engine.planner import Planner
from horarium.engine.pool import TargetPool
from horarium.engine.reporter import Reporter
from horarium.engine.syncer import Syncer
from horarium.engine.wake import Wake
from horarium.errors import StoreUnavailable
from horarium.telemetry import Metrics, get_logger

LOG = get_logger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class Turning(Protocol):
    """What the service can turn."""

    @property
    def rest(self) -> timedelta: ...
    async def run_once(self) -> object: ...
    async def wait(self) -> None: ...


@dataclass(slots=True)
class Parts:
    """The parts of one process; those whose role it has not are None."""

    wake: Wake
    health: Health
    metrics: Metrics
    pool: TargetPool
    planner: Planner | None = None
    executor: Executor | None = None
    syncer: Syncer | None = None
    janitor: Janitor | None = None
    mirror: Mirror | None = None
    reporter: Reporter | None = None
    hints: Hints | None = None


class Service:
    """See the module."""

    def __init__(self, parts: Parts, clock: Clock) -> None:
        self.parts = parts
        self._clock = clock
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start every loop that there is."""
        parts = self.parts
        loops: Sequence[tuple[str, Turning | None]] = (
            ("sync", parts.syncer),
            ("plan", parts.planner),
            ("fire", parts.executor),
            ("janitor", parts.janitor),
            ("mirror", parts.mirror),
            ("report", parts.reporter),
        )
        for name, loop in loops:
            if loop is not None:
                # A turn counts when its sleep is over, so that the sleep is no reason to call the loop stuck.
                parts.health.started(name, loop.rest / timedelta(seconds=1))
                self._spawn(name, lambda loop=loop: self._turn(loop))  # type: ignore[misc]  # mypy: default
        if parts.hints is not None:
            self._spawn("hints", parts.hints.listen, counts=False)
        if parts.executor is not None:
            self._spawn("settle", parts.executor.settle_once, counts=False)

    async def stop(self, timeout: timedelta) -> bool:
        """Claim no more, let calls in flight end (at most `timeout`), settle, close targets.

        False: an answer could not be written; see `Executor.drain`.
        """
        settled = True
        self._stopping.set()
        self.parts.wake.all()
        turning = [task for task in self._tasks if task.get_name() not in ("settle", "hints")]
        if turning:
            await asyncio.wait(turning, timeout=10.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self.parts.executor is not None:
            settled = await self.parts.executor.drain(timeout)
        await self.parts.pool.drain(timeout)
        return settled

    async def _turn(self, loop: Turning) -> None:
        if not await loop.run_once():
            if self._stopping.is_set():
                return
            await loop.wait()

    def _spawn(self, name: str, step: Callable[[], Awaitable[None]], *, counts: bool = True) -> None:
        self._tasks.append(asyncio.create_task(self._supervise(name, step, counts), name=name))

    async def _supervise(self, name: str, step: Callable[[], Awaitable[None]], counts: bool) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                await step()
            except Exception as error:
                self.parts.metrics.loop_errors.labels(name).inc()
                if counts:
                    self.parts.health.failed(name, f"{type(error).__name__}: {error}")
                known = isinstance(error, StoreUnavailable)
                LOG.error("loop failed", loop=name, outcome=str(error), again_in=pause, exc_info=not known)
                await self._clock.wait(self._stopping, pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                pause = FIRST_PAUSE
                if counts:
                    self.parts.health.turned(name)
