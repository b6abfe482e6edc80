"""Public helpers for tests: a clock that moves when told, ids in sequence, a target with scripted answers.

`target_suite` beside them is the conformance suite for targets.

They keep the contracts of `clock.py` and `targets/base.py`, so a test that uses them runs the real engine.
Nothing here waits on real time: a test waits for `until_waiting` or `until_calls`, then moves the clock.

    clock = VirtualClock()
    target = FakeTarget()
    target.script(Unavailable("down"), Created("job-1"))
    ...
    await clock.run_for(60)
    assert [call.attempt for call in target.calls_of("r1")] == [1, 2]
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, cycle
from typing import Any, TypeAlias

from horarium.core.run import FiredRun, Report, Result
from horarium.targets.base import (
    AlreadyExists,
    Answer,
    Created,
    FireRequest,
    TargetTraits,
    Unavailable,
)

if "pytest" in sys.modules:
    # A failed assertion of the suite shows its values, as those of a test file do. Before it is imported.
    sys.modules["pytest"].register_assert_rewrite("horarium.testing.target_suite")

START = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
"""Where a `VirtualClock` begins unless told: a Monday, 10:00 UTC."""


class VirtualClock:
    """A clock that stands still until `advance` or `run_for` moves it. Belongs to one event loop."""

    def __init__(self, start: datetime = START) -> None:
        if start.tzinfo is None:
            raise ValueError("a VirtualClock starts at an aware datetime")
        self._wall = start.astimezone(UTC)
        self._elapsed = timedelta()
        self._order = count()
        self._sleepers: list[tuple[timedelta, int, asyncio.Future[None]]] = []
        self._arrivals: list[tuple[int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._wall

    def monotonic(self) -> float:
        return self._elapsed / timedelta(seconds=1)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Until `event` is set or the clock was moved by `seconds`; True if it was set."""
        if event.is_set():
            return True
        if seconds <= 0:
            await asyncio.sleep(0)
            return event.is_set()
        alarm = asyncio.get_running_loop().create_future()
        until = self._elapsed + timedelta(seconds=seconds)
        heapq.heappush(self._sleepers, (until, next(self._order), alarm))
        signal = asyncio.ensure_future(event.wait())
        self._tell_arrivals()
        try:
            await asyncio.wait((alarm, signal), return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
            signal.cancel()
        return event.is_set()

    def advance(self, by: timedelta | float) -> None:
        """Move on at once (`by` in seconds, or a timedelta). Whoever waits for an instant passed wakes."""
        step = _delta(by)
        if step < timedelta():
            raise ValueError("a monotonic clock never goes back; use skew() for the wall clock")
        self._elapsed += step
        self._wall += step
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            alarm = heapq.heappop(self._sleepers)[2]
            if not alarm.done():
                alarm.set_result(None)

    def skew(self, by: timedelta | float) -> None:
        """Move the wall clock alone, either way, as an administrator or NTP does. Nobody wakes."""
        self._wall += _delta(by)

    async def run_for(self, by: timedelta | float, settle: int = 50) -> None:
        """Move on, stopping wherever somebody wants to wake; `settle` passes of the loop at each stop.

        What waits for real I/O (a thread, a socket) may need more than a few passes: wait for a signal of
        it instead.
        """
        end = self._elapsed + _delta(by)
        await _passes(settle)
        while (due := self._next_alarm()) is not None and due <= end:
            self.advance(max(due - self._elapsed, timedelta()))
            await _passes(settle)
        self.advance(end - self._elapsed)
        await _passes(settle)

    @property
    def waiting(self) -> int:
        """How many are waiting on this clock now."""
        return sum(not alarm.done() for _, _, alarm in self._sleepers)

    async def until_waiting(self, number: int = 1) -> None:
        """Return once `number` or more wait on this clock."""
        if self.waiting >= number:
            return
        arrival = asyncio.get_running_loop().create_future()
        self._arrivals.append((number, arrival))
        await arrival

    def _next_alarm(self) -> timedelta | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _tell_arrivals(self) -> None:
        here = self.waiting
        for number, arrival in self._arrivals:
            if number <= here and not arrival.done():
                arrival.set_result(None)
        self._arrivals = [item for item in self._arrivals if not item[1].done()]


class SequenceIds:
    """Ids that count (`…01`, `…02`) and fractions that repeat the ones given (0.5 unless told)."""

    def __init__(self, fractions: Iterable[float] = (0.5,)) -> None:
        given = tuple(fractions)
        if not given or not all(0 <= item < 1 for item in given):
            raise ValueError("fractions are numbers in [0, 1), at least one")
        self._numbers = count(1)
        self._fractions = cycle(given)

    def new_id(self) -> str:
        return f"{next(self._numbers):032x}"

    def fraction(self) -> float:
        return next(self._fractions)


@dataclass(frozen=True, slots=True)
class LostAnswer:
    """A script's word for: the call went out and its answer was lost. `happened`: the run exists there."""

    happened: bool = True
    reason: str = "the answer was lost"


Script: TypeAlias = (
    Answer | LostAnswer | BaseException | Callable[[FireRequest], "Answer | Awaitable[Answer]"]
)
"""One scripted answer: a value, a lost answer, an exception to raise, or a function (sync or async)."""


@dataclass(eq=False)
class FakeTarget:
    """A target that keeps the contract: a repeated name is `AlreadyExists`, and every call is recorded.

    Answers come from the script of the run name, else from the script for all, else `Created`. `down`
    answers `Unavailable` to everything. `hold()` keeps calls waiting until `release()`. With
    `holds_places`, a created run keeps its place until `finish(run_name)`, as the local target does.
    """

    max_in_flight: int = 64
    timeout: timedelta = timedelta(seconds=10)
    traits: TargetTraits = field(
        default_factory=lambda: TargetTraits(dedupes=True, reports_completion=False, note="a fake for tests")
    )
    on_free: Callable[[], None] | None = None
    holds_places: bool = False
    down: str | None = None
    calls: list[FireRequest] = field(default_factory=list)
    created: dict[str, FireRequest] = field(default_factory=dict)
    started: bool = False
    drained: bool = False
    closed: bool = False

    def __post_init__(self) -> None:
        self._scripts: dict[str | None, deque[Script]] = {}
        self._gate = asyncio.Event()
        self._gate.set()
        self._in_flight = 0
        self._held: set[str] = set()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    def script(self, *answers: Script, run_name: str | None = None) -> None:
        """Add answers for the coming calls, in order; of one run, or of any run that has none of its own."""
        self._scripts.setdefault(run_name, deque()).extend(answers)

    def calls_of(self, run_name: str) -> list[FireRequest]:
        """The calls for one run, in order."""
        return [call for call in self.calls if call.run_name == run_name]

    async def until_calls(self, number: int) -> None:
        """Return once `number` calls or more have been made in all."""
        if len(self.calls) >= number:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((number, waiter))
        await waiter

    def hold(self) -> None:
        """Let calls wait inside the target, recorded but without an effect, until `release()`."""
        self._gate.clear()

    def release(self) -> None:
        """Let held calls go on."""
        self._gate.set()

    def finish(self, run_name: str) -> None:
        """The work of a created run ended: its place is free (with `holds_places`)."""
        self._held.remove(run_name)
        self._tell_free()

    def free(self) -> int:
        return 0 if self.drained else max(0, self.max_in_flight - self._in_flight - len(self._held))

    async def start(self) -> None:
        self.started = True

    async def create_run(self, request: FireRequest) -> Answer:
        self.calls.append(request)
        for number, waiter in self._waiters:
            if number <= len(self.calls) and not waiter.done():
                waiter.set_result(None)
        self._in_flight += 1
        try:
            await self._gate.wait()
            return await self._answer(request)
        finally:
            self._in_flight -= 1
            self._tell_free()

    async def drain(self, timeout: timedelta) -> None:
        self.drained = True

    async def close(self) -> None:
        self.closed = True

    async def _answer(self, request: FireRequest) -> Answer:
        if self.down is not None:
            return Unavailable(self.down)
        script = self._scripts.get(request.run_name) or self._scripts.get(None)
        step: Script = script.popleft() if script else Created()
        match step:
            case BaseException():
                raise step
            case LostAnswer(happened, reason):
                if happened:
                    self._create(request)
                return Unavailable(reason, unknown=True)
            case Created():
                return step if self._create(request) else AlreadyExists(step.target_run_id)
            case AlreadyExists() | Unavailable():
                return step
            case _ if callable(step):
                given = step(request)
                answer = await given if isinstance(given, Awaitable) else given
                if isinstance(answer, Created) and not self._create(request):
                    return AlreadyExists(answer.target_run_id)
                return answer
            case _:
                return step

    def _create(self, request: FireRequest) -> bool:
        if request.run_name in self.created:
            return False
        self.created[request.run_name] = request
        if self.holds_places:
            self._held.add(request.run_name)
        return True

    def _tell_free(self) -> None:
        if self.on_free is not None:
            self.on_free()


class ReportingFakeTarget(FakeTarget):
    """A fake that says how its runs are going: each goes on until `end` or a `cancel`.

    `deaf` asks it in vain, `stubborn` are names of runs that a cancel does not end.
    """

    def __init__(self, clock: VirtualClock, **fields: Any) -> None:
        super().__init__(**fields)
        self.traits = TargetTraits(
            dedupes=True, reports_completion=True, cancels=True, note="a fake for tests"
        )
        self.ended: dict[str, Report] = {}
        self.cancelled: list[str] = []
        self.asked: list[str] = []
        self.deaf: str | None = None
        self.stubborn: set[str] = set()
        self._clock = clock

    def end(self, run_name: str, result: Result = Result.SUCCEEDED, detail: str = "") -> Report:
        """The work of a created run has ended. The report is told when it is asked for; or pass it on."""
        request = self.created[run_name]
        report = Report(request.run_key, result, self._clock.now(), detail)
        return self.ended.setdefault(run_name, report)

    async def status(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        self.asked += [run.name for run in runs]
        if self.deaf is not None:
            raise ConnectionError(self.deaf)
        return [self._report(run) for run in runs]

    async def cancel(self, run: FiredRun) -> Report | None:
        self.cancelled.append(run.name)
        if run.name not in self.stubborn and run.name in self.created:
            self.end(run.name, Result.CANCELLED)
        report = self._report(run)
        return None if report.result is Result.RUNNING else report

    def _report(self, run: FiredRun) -> Report:
        if run.name not in self.created:
            return Report(run.run_key, Result.UNKNOWN, self._clock.now(), "there is no such run")
        return self.ended.get(run.name) or Report(run.run_key, Result.RUNNING, self._clock.now())


def _delta(by: timedelta | float) -> timedelta:
    return by if isinstance(by, timedelta) else timedelta(seconds=by)


async def _passes(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)
