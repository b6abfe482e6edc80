"""The public suite finds what it is there for: a target with one fault fails the test that names it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from horarium.core.run import FiredRun, Report, Result
from horarium.core.spec import Json
from horarium.targets.base import (
    AlreadyExists,
    Answer,
    Created,
    FireRequest,
    Refused,
    TargetTraits,
    Unavailable,
)
from horarium.targets.checks import Fields
from horarium.targets.registry import TargetKind
from horarium.testing.target_suite import CLOCK, KICKOFF_ARG, Harness, TargetSuite

SECRET = "correct-horse-battery"
TRAITS = TargetTraits(dedupes=True, reports_completion=True, cancels=True)


@dataclass
class Engine:
    """What is over there: it stays when a target is made anew."""

    runs: dict[str, list[Mapping[str, Json]]] = field(default_factory=dict)
    ended: dict[str, Result] = field(default_factory=dict)
    up: bool = True
    answering: asyncio.Event = field(default_factory=asyncio.Event)


class ToyTarget:
    """A target that keeps the contract, unless `fault` names what it does wrong."""

    traits = TRAITS
    timeout = timedelta(seconds=5)
    max_in_flight = 8

    def __init__(self, engine: Engine, fault: str) -> None:
        self.engine, self.fault = engine, fault
        self.places, self.draining = self.max_in_flight, False
        self.own: set[str] = set()

    def free(self) -> int:
        return 0 if self.draining and self.fault != "goes on" else self.places

    async def start(self) -> None:
        if self.fault == "logs a secret":
            logging.getLogger("toy").debug("connects with %s", SECRET)

    async def drain(self, timeout: timedelta) -> None:
        self.draining = True

    async def close(self) -> None: ...

    async def create_run(self, request: FireRequest) -> Answer:
        if self.draining and self.fault != "goes on":
            return Unavailable("stopping")
        self.places -= 1
        try:
            return await self._create(request)
        finally:
            if self.fault != "keeps places":
                self.places += 1

    async def _create(self, request: FireRequest) -> Answer:
        engine, fault, name = self.engine, self.fault, request.run_name
        if not engine.up:
            if fault == "loses":
                return Created()
            if fault == "tells a secret":
                return Unavailable(f"no connection to toy://:{SECRET}@host")
            retry = None if fault == "no retry time" else CLOCK.now() + timedelta(minutes=7)
            return Unavailable("down", retry)
        left = (request.deadline - CLOCK.now()).total_seconds()
        try:
            await asyncio.wait_for(engine.answering.wait(), 60 if fault == "no deadline" else left)
        except TimeoutError:
            return Unavailable("no answer", unknown=True)
        how = request.action.get("how")
        if how == "refuse":
            return Unavailable("no such task") if fault == "never refuses" else Refused("no such task")
        known = self.own if fault == "forgets at a restart" else engine.runs
        if fault == "looks first":
            await asyncio.sleep(0)  # and another attempt looks meanwhile
            there = name in engine.runs
            await asyncio.sleep(0)
        else:
            there = name in known and fault != "knows no names"
        if there:
            return AlreadyExists()
        self.own.add(name)
        parameters = dict(request.parameters)
        if fault == "drops the kickoff time":
            del parameters[KICKOFF_ARG]
        if fault == "parameters as text":
            parameters = {key: str(value) for key, value in parameters.items()}
        engine.runs.setdefault(name, []).append(parameters)
        engine.ended[name] = {
            None: Result.SUCCEEDED, "fail": Result.ERRORED, "hold": Result.RUNNING
        }[how]  # fmt: skip
        return Created()

    async def status(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        return [self._report(run) for run in runs]

    async def cancel(self, run: FiredRun) -> Report | None:
        if self.engine.ended.get(run.name) is Result.RUNNING or self.fault == "cancels what has ended":
            if self.fault == "only says that it cancels":
                return Report(run.run_key, Result.CANCELLED, CLOCK.now())
            self.engine.ended[run.name] = Result.CANCELLED
        return self._report(run)

    def _report(self, run: FiredRun) -> Report:
        result = self.engine.ended.get(run.name, Result.UNKNOWN)
        if self.fault == "all is well" and result in (Result.ERRORED, Result.UNKNOWN):
            result = Result.SUCCEEDED
        if self.fault == "says too early that it ended" and result is Result.RUNNING:
            result = Result.SUCCEEDED
        detail = "the ledger is closed" if result is Result.ERRORED and self.fault != "no reason" else ""
        return Report(run.run_key, result, CLOCK.now(), detail)


def check_config(config: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    Fields(config, pointer, "a toy", ()).raise_problems()
    return {}


def check_action(action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str) -> dict[str, Any]:
    Fields(action, pointer, "a deployment of a toy", ("how",)).raise_problems()
    return dict(action)


class ToyHarness(Harness):
    secrets = (SECRET,)
    retry_after = timedelta(minutes=7)
    patience = 0.2

    def __init__(self, fault: str = "") -> None:
        self.engine = Engine()
        self.engine.answering.set()
        self.kind = TargetKind(
            "toy",
            lambda spec, context: ToyTarget(self.engine, fault),
            check_config,
            check_action,
            (),
            ("how",),
            reports_completion=True,
            cancels=True,
        )

    def refused_action(self) -> Mapping[str, Any]:
        return {"how": "refuse"}

    def failing_action(self) -> Mapping[str, Any]:
        return {"how": "fail"}

    def holding_action(self) -> Mapping[str, Any]:
        return {"how": "hold"}

    async def let_go(self, run_name: str) -> None:
        self.engine.ended[run_name] = Result.SUCCEEDED

    async def seen(self, run_name: str) -> Sequence[Mapping[str, Json]]:
        return self.engine.runs.get(run_name, [])

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        self.engine.up = False
        yield
        self.engine.up = True

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[None]:
        self.engine.answering.clear()
        yield
        self.engine.answering.set()


class TestToy(TargetSuite, target=ToyTarget):
    """One without a fault passes all of it."""

    @pytest.fixture
    def harness(self) -> ToyHarness:
        return ToyHarness()


@pytest.mark.parametrize(
    ("fault", "test", "said"),
    [
        (
            "drops the kickoff time",
            "parameters_and_kickoff_time_arrive",
            "arrived as 'missing', and is",
        ),
        ("parameters as text", "parameters_and_kickoff_time_arrive", "arrive as they were sent"),
        ("knows no names", "a_repeated_name_makes_no_second_run", "began 2 times"),
        (
            "forgets at a restart",
            "a_repeated_name_after_a_restart_makes_no_second_run",
            "began 2 times",
        ),
        ("looks first", "several_attempts_at_once_make_one_run", "began 4 times over there"),
        ("never refuses", "what_never_works_is_refused_with_a_reason", "is Refused, not Unavailable"),
        ("loses", "an_engine_that_is_down_loses_nothing", "Created"),
        ("no retry time", "an_engine_that_is_down_loses_nothing", "the engine said when"),
        ("keeps places", "an_engine_that_is_down_loses_nothing", "free"),
        ("no deadline", "a_slow_engine_is_given_up_at_the_deadline", "past request.deadline"),
        ("keeps places", "a_call_that_is_cancelled_gives_its_place_back", "free"),
        ("goes on", "a_target_that_drains_takes_no_more", "after drain no place is free"),
        ("says too early that it ended", "a_run_is_running_then_succeeded", "running"),
        ("all is well", "work_that_fails_has_errored", "errored"),
        ("no reason", "work_that_fails_has_errored", "it says why"),
        ("all is well", "a_run_that_is_not_there_is_unknown", "nobody created it, and status says succeeded"),
        ("only says that it cancels", "a_run_is_cancelled", "cancelled"),
        ("cancels what has ended", "a_run_that_has_ended_is_not_cancelled", "succeeded"),
    ],
)
def test_a_fault_is_found(fault: str, test: str, said: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(said)):
        getattr(TestToy(), f"test_{test}")(harness=ToyHarness(fault))


@pytest.mark.parametrize("fault", ["logs a secret", "tells a secret"])
def test_a_secret_that_is_told_is_found(
    fault: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError, match=SECRET):
        TestToy().test_no_secret_is_told(harness=ToyHarness(fault), caplog=caplog, capfd=capfd)


def test_what_a_target_does_not_promise_is_not_asked() -> None:
    class Plain(ToyTarget):
        traits = TargetTraits(dedupes=False, reports_completion=False)

    class TestPlain(TargetSuite, target=Plain, cannot={"be slow": "a toy is quick"}):
        pass

    there = {name for name in dir(TestPlain) if name.startswith("test_") and getattr(TestPlain, name)}
    assert "test_a_run_is_created_once" in there
    assert not any(word in name for name in there for word in ("repeated", "cancelled", "errored", "slow"))


def test_what_an_engine_cannot_do_is_named_with_a_reason() -> None:
    for cannot in ({"be lazy": "why not"}, {"refuse": ""}):
        with pytest.raises(TypeError, match="cannot"):
            type("TestWrong", (TargetSuite,), {}, target=ToyTarget, cannot=cannot)
