"""What the two targets that execute here (`local`, `inline`) have in common: places and rows.

The order is the promise. A row is committed before anything starts, so a repeated name never starts a
second one, and a crash leaves a row that says so:

    local_begin ──► start ──► (local_running) ──► local_end
        │             │
        │             └ can't start: the row ends `failed`, the answer is Refused
        └ the name is there: AlreadyExists

A place is taken before the row and given back when the execution has ended, however long that takes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

from horarium.clock import Clock
from horarium.core.run import FiredRun, Report, Result
from horarium.errors import StoreUnavailable
from horarium.targets.base import (
    RESULTS,
    AlreadyExists,
    Answer,
    Created,
    FireRequest,
    LocalRun,
    LocalRuns,
    Refused,
    TargetTraits,
    Unavailable,
)

CREATE_TIMEOUT = timedelta(seconds=10)
"""The longest that starting takes: a row and a process. The execution itself is not part of it."""

QUICK = 0.05
"""Seconds within which an execution that ends is not written down as running: its end follows at once."""

STOP_LIMIT = 10.0
"""Seconds that what was told to stop has to do so, before the server goes without it."""

NOT_STARTED = "not started: "
"""How the row of an execution that could not be started begins its detail."""

_END_RETRY = 1.0
"""Seconds between attempts to write an end down while the database is away."""


class CannotStart(Exception):
    """It will never start as asked. The text is shown to people."""


class NotYet(Exception):
    """It can't start until somebody mends something on this machine. The text is shown to people."""


class EmbeddedTarget(ABC):
    """Places, rows and draining; a subclass starts something and says when it ended."""

    traits: TargetTraits

    def __init__(
        self, runs: LocalRuns, clock: Clock, owner: str, on_free: Callable[[], None], max_in_flight: int
    ) -> None:
        self._runs = runs
        self._clock = clock
        self._owner = owner
        self._on_free = on_free
        self._max_in_flight = max_in_flight
        self._places = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._stopping = asyncio.Event()
        self._stop_limit = STOP_LIMIT
        self._executions: dict[str, tuple[Execution, asyncio.Event]] = {}
        """By run key what goes on here, with an event that is set once its end has been written."""

    @property
    def timeout(self) -> timedelta:
        return CREATE_TIMEOUT

    @property
    def max_in_flight(self) -> int:
        return self._max_in_flight

    def free(self) -> int:
        return 0 if self._draining else max(0, self._max_in_flight - self._places)

    async def start(self) -> None:
        """Mark what an earlier server left behind when it crashed."""
        await self._runs.local_interrupt(self._owner, self._clock.now())

    async def create_run(self, request: FireRequest) -> Answer:
        if self._draining:
            return Unavailable("the server is stopping")
        if self._places >= self._max_in_flight:
            return Unavailable(f"all {self._max_in_flight} places are taken")
        self._places += 1
        # A task of its own: a caller that stops waiting must not leave a row without its execution.
        return await asyncio.shield(self._spawn(self._create(request)))

    async def status(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        found = [await self._report_of(run) for run in runs]
        return [report for report in found if report is not None]

    async def _report_of(self, run: FiredRun) -> Report | None:
        """What its row says; None while it goes on."""
        row = await self._runs.local_run(run.run_key)
        if row is None:
            return Report(run.run_key, Result.UNKNOWN, self._clock.now(), "there is no record of it any more")
        if row.state not in RESULTS:
            return None
        return Report(run.run_key, RESULTS[row.state], row.ended_at or row.started_at, row.detail)

    async def _cancel(self, run: FiredRun, seconds: float) -> Report | None:
        """Stop what goes on here, and wait so long for its end. What another server has is left alone."""
        there = self._executions.get(run.run_key)
        if there is not None:
            execution, ended = there
            execution.cancel()
            await self._clock.wait(ended, seconds)
        return await self._report_of(run)

    async def drain(self, timeout: timedelta) -> None:
        self._draining = True
        if not await self._clock.wait(self._idle, timeout.total_seconds()):
            await self._stop()

    async def close(self) -> None:
        self._draining = True
        await self._stop()
        for task in self._tasks:
            task.cancel()

    async def _stop(self) -> None:
        self._stopping.set()
        # A process that even KILL does not end (a dead network disk) must not keep the server from ending.
        await self._clock.wait(self._idle, self._stop_limit)

    @abstractmethod
    async def _check(self, request: FireRequest) -> None:
        """Raise `CannotStart` or `NotYet` for what is wrong before there is a row."""

    @abstractmethod
    async def _begin(self, request: FireRequest) -> Execution:
        """Start it. Raises `CannotStart`."""

    async def _create(self, request: FireRequest) -> Answer:
        kept_place = False
        try:
            try:
                await self._check(request)
            except CannotStart as error:
                # Without a row, so that the run can be tried again by hand once the cause is mended.
                return Refused(str(error))
            except NotYet as error:
                return Unavailable(str(error))
            now = self._clock.now()
            try:
                if not await self._runs.local_begin(request.run_key, self._owner, now):
                    return await self._existing(request)
            except StoreUnavailable as error:
                return Unavailable(f"the run can't be written down: {error}")
            try:
                execution = await self._begin(request)
            except Exception as error:  # whatever it is, the row must not say "starting" for ever
                cause = str(error) if isinstance(error, CannotStart) else f"{type(error).__name__}: {error}"
                reason = NOT_STARTED + cause
                await self._write_end(
                    LocalRun(request.run_key, "failed", now, self._clock.now(), detail=reason)
                )
                return Refused(reason)
            kept_place = True
            ended = asyncio.Event()
            self._executions[request.run_key] = execution, ended
            follow = self._spawn(self._follow(LocalRun(request.run_key, "running", now), execution))
            follow.add_done_callback(lambda _: self._executions.pop(request.run_key, None))
            follow.add_done_callback(lambda _: ended.set())
            return Created(request.run_name)
        finally:
            if not kept_place:
                self._give_place_back()

    async def _existing(self, request: FireRequest) -> Answer:
        row = await self._runs.local_run(request.run_key)
        if row is not None and row.state == "failed" and row.detail.startswith(NOT_STARTED):
            # There is a row, and yet nothing ever ran: no success, and the run says why.
            return Refused(row.detail)
        return AlreadyExists(request.run_name)

    async def _follow(self, row: LocalRun, execution: Execution) -> None:
        try:
            ended = await execution.follow(row)
        except Exception as error:  # a defect of ours must end as a visible row, not as a lost task
            ended = LocalRun(
                row.run_name,
                "failed",
                row.started_at,
                self._clock.now(),
                pid=execution.pid,
                detail=f"Horarium lost sight of it: {type(error).__name__}: {error}",
            )
        finally:
            self._give_place_back()
        await self._write_end(ended)

    async def _write_end(self, row: LocalRun) -> None:
        """Write an end down; while the database is away, again and again, until the server stops."""
        while True:
            try:
                await self._runs.local_end(row)
                return
            except StoreUnavailable:
                # Not written when we stop, it is found at the next start and marked interrupted.
                if await self._clock.wait(self._stopping, _END_RETRY):
                    return

    def _give_place_back(self) -> None:
        self._places -= 1
        self._on_free()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()


class Execution(ABC):
    """Something that runs. `pid` is the process it runs in."""

    pid: int | None = None

    @abstractmethod
    def cancel(self) -> None:
        """Ask it to end; `follow` returns when it has."""

    @abstractmethod
    async def follow(self, row: LocalRun) -> LocalRun:
        """Wait for its end, keep its row up to date, and return the row's last state."""
