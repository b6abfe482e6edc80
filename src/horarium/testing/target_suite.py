"""A conformance suite for targets: what Horarium relies on, for a target of your own.

Needs pytest and no plugin. A test file says which target, and gives a `Harness`: how its engine is made to
refuse, to be down or slow, and what arrived there. What the target promises (`traits`) decides which tests
there are; what an engine can't do is said by name in `cannot`, with the reason.

    from horarium.testing.target_suite import Harness, TargetSuite

    class SpoolHarness(Harness):
        kind = KIND
        ...

    class TestSpool(TargetSuite, target=SpoolTarget, cannot={"be slow": "a folder answers at once"}):
        @pytest.fixture
        def harness(self, tmp_path):
            return SpoolHarness(tmp_path)
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

import pytest

from horarium.clock import SystemClock, SystemIds
from horarium.core.instant import rfc3339
from horarium.core.keys import TriggerKey
from horarium.core.run import FiredRun, Report, Result
from horarium.core.spec import Json, TargetSpec
from horarium.errors import InvalidInput
from horarium.targets.base import (
    AlreadyExists,
    Answer,
    CancelsRuns,
    Created,
    FireRequest,
    Refused,
    ReportsRuns,
    Target,
    TargetTraits,
    Unavailable,
)
from horarium.targets.registry import TargetContext, TargetKind

P = ParamSpec("P")

TRIGGER = TriggerKey("shop", "production", "sync", "hourly")
"""The trigger of all runs of the suite."""

KICKOFF_ARG = "as_of"
PARAMETERS: Mapping[str, Json] = {
    "mode": "full",
    "limit": 100,
    "ratio": 0.5,
    "dry": False,
    "nothing": None,
    "tables": ["orders", "größen"],
    "nested": {"deep": [1, {"er": "ja"}]},
}
"""What a run is given beside its kickoff time."""

GRACE = timedelta(seconds=2)
"""How much longer than its deadline a call may take on a busy machine."""

CLOCK = SystemClock()


class Harness:
    """What the suite has to know of a target and of its engine. Override what applies.

    `patience` bounds, in seconds, whatever the suite waits for over there. `secrets` are values that the
    target knows and that nobody may be told. `retry_after` is how long the engine asks to be left alone for
    while it is `down`, if it does.
    """

    kind: TargetKind
    patience: float = 20.0
    secrets: Sequence[str] = ()
    retry_after: timedelta | None = None

    async def __aenter__(self) -> Self:
        """Before each test, in its event loop: whatever of the engine has to live there."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """After each test."""

    def config(self) -> Mapping[str, Any]:
        """What stands under the kind's name in a triggers file."""
        return {}

    def action(self) -> Mapping[str, Any]:
        """The words of a deployment whose work ends well by itself."""
        return {}

    def refused_action(self) -> Mapping[str, Any]:
        """The words of a deployment that passes `check_action`, and that the engine will never take."""
        raise NotImplementedError(_say("refuse", "refused_action"))

    def failing_action(self) -> Mapping[str, Any]:
        """The words of a deployment whose work fails."""
        raise NotImplementedError(_say("fail", "failing_action"))

    def holding_action(self) -> Mapping[str, Any]:
        """The words of a deployment whose work goes on until `let_go`."""
        raise NotImplementedError(_say("hold", "holding_action"))

    async def let_go(self, run_name: str) -> None:
        """Let the work of a run of `holding_action` end well."""
        raise NotImplementedError(_say("hold", "let_go"))

    async def seen(self, run_name: str) -> Sequence[Mapping[str, Json]]:
        """The parameters of each time that the work of a run began over there.

        Returns as soon as there is one; raises `TimeoutError` after `patience`.
        """
        raise NotImplementedError("a Harness says what arrived: override seen()")

    def down(self) -> AbstractAsyncContextManager[None]:
        """While this is entered, the engine can't be reached, or says that it takes nothing."""
        raise NotImplementedError(_say("be down", "down"))

    def slow(self) -> AbstractAsyncContextManager[None]:
        """While this is entered, the engine takes calls and does not answer them."""
        raise NotImplementedError(_say("be slow", "slow"))

    def context(self) -> TargetContext:
        """What the target is built with; override it for a target that keeps rows or calls functions."""
        nothing: Any = None
        return TargetContext(CLOCK, nothing, "conformance", lambda: None)


def _say(what: str, method: str) -> str:
    return f"override {method}(), or say why not: cannot = {{{what!r}: 'the reason'}}"


def needs(*, trait: str = "", able: str = "") -> Callable[[Any], Any]:
    """A test that is there only for targets with a trait, and for engines that can do something."""

    def mark(test: Any) -> Any:
        test.needs = (trait, able)
        return test

    return mark


def sync(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """An async test that pytest can run without a plugin, each in a loop of its own, within its harness."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def within_harness() -> None:
            harness = kwargs["harness"]
            assert isinstance(harness, Harness), "the fixture `harness` returns a Harness"
            async with harness:
                await test(*args, **kwargs)

        asyncio.run(within_harness())

    return run


class TargetSuite:
    """See the module. A subclass is named `Test…` and has a fixture `harness`; it is made with

    `target`: the class of the target, whose `traits` say which tests apply;
    `cannot`: what its engine can't do, of `refuse`, `fail`, `hold`, `be down` and `be slow`: the reason.
    """

    __test__ = False

    target: ClassVar[type[Any]]
    cannot: ClassVar[Mapping[str, str]]

    def __init_subclass__(cls, *, target: type[Any], cannot: Mapping[str, str] | None = None) -> None:
        super().__init_subclass__()
        cls.target, cls.cannot = target, cannot or {}
        traits: TargetTraits = target.traits
        unknown = set(cls.cannot) - {"refuse", "fail", "hold", "be down", "be slow"}
        if unknown or not all(cls.cannot.values()):
            raise TypeError(f"{cls.__name__}, cannot: {unknown or 'a reason is missing'}: see TargetSuite")
        cls.__test__ = True
        for name in dir(cls):
            trait, able = getattr(getattr(cls, name), "needs", ("", ""))
            has = not trait or getattr(traits, trait)
            if trait == "reports_completion":
                has = has and issubclass(cls.target, ReportsRuns)  # else somebody tells us, unasked
            if not has or able in cls.cannot:
                setattr(cls, name, None)

    # What it says of itself.

    @sync
    async def test_the_kind_says_what_the_target_does(self, harness: Harness) -> None:
        async with running(harness) as target:
            assert target.traits == self.target.traits
            told = bool(target.traits.completes_with)
            assert isinstance(target, ReportsRuns) or told or not target.traits.reports_completion
            assert harness.kind.reports_completion == target.traits.reports_completion
            assert harness.kind.completes_with == target.traits.completes_with
            assert isinstance(target, CancelsRuns) or not target.traits.cancels
            assert harness.kind.cancels == target.traits.cancels
            assert target.max_in_flight == target.free() >= 1
            assert timedelta() < target.timeout < timedelta(seconds=60), "a claim is held for 60 s"

    def test_what_is_written_is_checked_and_put_in_one_form(self, harness: Harness) -> None:
        config = harness.kind.check_config(harness.config(), "/targets/t")
        assert json.loads(json.dumps(config)) == config, "JSON values only"
        assert harness.kind.check_config(config, "/targets/t") == config
        action = harness.kind.check_action(harness.action(), PARAMETERS, "/deployments/d")
        assert json.loads(json.dumps(action)) == action, "JSON values only"
        assert set(config) <= set(harness.kind.config_keys)
        assert set(action) <= set(harness.kind.action_keys)

    def test_a_word_that_is_unknown_is_refused_by_name(self, harness: Harness) -> None:
        with pytest.raises(InvalidInput) as config:
            harness.kind.check_config({**harness.config(), "unheard-of": "s3cr3t"}, "/targets/t")
        with pytest.raises(InvalidInput) as action:
            harness.kind.check_action({**harness.action(), "unheard-of": "s3cr3t"}, {}, "/deployments/d")
        for error, pointer in ((config, "/targets/t/unheard-of"), (action, "/deployments/d/unheard-of")):
            assert [problem.pointer for problem in error.value.problems] == [pointer]
            assert "s3cr3t" not in str(error.value), "it may be a secret under a mistyped name"

    # Creating.

    @sync
    async def test_a_run_is_created_once(self, harness: Harness) -> None:
        async with running(harness) as target:
            request = fresh(harness, target)
            answer = await target.create_run(request)
            assert isinstance(answer, Created), answer
            assert len(await harness.seen(request.run_name)) == 1

    @sync
    async def test_parameters_and_kickoff_time_arrive(self, harness: Harness) -> None:
        async with running(harness) as target:
            request = fresh(harness, target)
            await created(target, request)
            (arrived,) = await harness.seen(request.run_name)
            wrong = {name: arrived.get(name, "missing") for name in PARAMETERS}
            wrong = {name: value for name, value in wrong.items() if value != PARAMETERS[name]}
            assert not wrong, f"parameters arrive as they were sent, in {PARAMETERS}"
            kickoff = str(arrived.get(KICKOFF_ARG, "missing"))
            said = f"{KICKOFF_ARG} arrived as {kickoff!r}, and is the slot, {rfc3339(request.scheduled_time)}"
            assert kickoff != "missing", said
            assert datetime.fromisoformat(kickoff) == request.scheduled_time, said

    @needs(trait="dedupes")
    @sync
    async def test_a_repeated_name_makes_no_second_run(self, harness: Harness) -> None:
        async with running(harness) as target:
            request = fresh(harness, target)
            await created(target, request)
            await harness.seen(request.run_name)
            assert isinstance(await target.create_run(again(target, request)), Created | AlreadyExists)
            await seen_once(harness, target, request)

    @needs(trait="dedupes")
    @sync
    async def test_a_repeated_name_after_a_restart_makes_no_second_run(self, harness: Harness) -> None:
        async with running(harness) as target:
            request = fresh(harness, target)
            await created(target, request)
            await harness.seen(request.run_name)
        async with running(harness) as target:
            assert isinstance(await target.create_run(again(target, request)), Created | AlreadyExists)
            await seen_once(harness, target, request)

    @needs(trait="dedupes")
    @sync
    async def test_several_attempts_at_once_make_one_run(self, harness: Harness) -> None:
        async with running(harness) as target:
            request = fresh(harness, target)
            answers = await asyncio.gather(*(target.create_run(request) for _ in range(4)))
            assert any(isinstance(answer, Created) for answer in answers), answers
            assert not any(isinstance(answer, Refused) for answer in answers), answers
            await seen_once(harness, target, request)

    # What goes wrong.

    @needs(able="refuse")
    @sync
    async def test_what_never_works_is_refused_with_a_reason(self, harness: Harness) -> None:
        async with running(harness) as target:
            request = fresh(harness, target, harness.refused_action())
            answer = await target.create_run(request)
            assert isinstance(answer, Refused), f"what the engine never takes is Refused, not {answer}"
            assert answer.reason.strip(), "Refused says why"
            assert target.free() == target.max_in_flight

    @needs(able="be down")
    @sync
    async def test_an_engine_that_is_down_loses_nothing(self, harness: Harness) -> None:
        async with running(harness) as target:
            async with harness.down():
                request = fresh(harness, target)
                answer = await within_deadline(target, request)
                assert isinstance(answer, Unavailable), answer
                assert answer.reason.strip()
                assert target.free() == target.max_in_flight
                if harness.retry_after is not None:
                    assert answer.retry_at is not None, "the engine said when"
                    wait = answer.retry_at - CLOCK.now()
                    assert abs(wait - harness.retry_after) < timedelta(seconds=30)
            await until_created(harness, target, request)
            assert await harness.seen(request.run_name)

    @needs(able="be slow")
    @sync
    async def test_a_slow_engine_is_given_up_at_the_deadline(self, harness: Harness) -> None:
        async with running(harness) as target:
            async with harness.slow():
                request = fresh(harness, target, deadline=timedelta(seconds=0.5))
                answer = await within_deadline(target, request)
                assert isinstance(answer, Unavailable), answer
            await until_created(harness, target, request)
            if target.traits.dedupes:
                await seen_once(harness, target, request)

    @needs(able="be slow")
    @sync
    async def test_a_call_that_is_cancelled_gives_its_place_back(self, harness: Harness) -> None:
        async with running(harness) as target:
            async with harness.slow():
                request = fresh(harness, target)
                call = asyncio.ensure_future(target.create_run(request))
                # Far enough to have taken its place; what it waits for then, the engine keeps from it.
                while target.free() == target.max_in_flight:
                    await asyncio.sleep(0)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                assert target.free() == target.max_in_flight
            await created(target, fresh(harness, target))

    @sync
    async def test_a_target_that_drains_takes_no_more(self, harness: Harness) -> None:
        async with running(harness) as target:
            await target.drain(timedelta(seconds=1))
            assert target.free() == 0, "after drain no place is free"
            answer = await target.create_run(fresh(harness, target))
            assert isinstance(answer, Unavailable), f"after drain a run is Unavailable, not {answer}"

    # Reports.

    @needs(trait="reports_completion", able="hold")
    @sync
    async def test_a_run_is_running_then_succeeded(self, harness: Harness) -> None:
        async with running(harness) as target:
            request = fresh(harness, target, harness.holding_action())
            run = await fired(target, request)
            await harness.seen(request.run_name)
            assert (await report(target, run)).result is Result.RUNNING
            await harness.let_go(request.run_name)
            ended = await until_ended(harness, target, run)
            assert ended.result is Result.SUCCEEDED, ended
            assert ended.at.tzinfo is not None, f"Report.at is an aware datetime, not {ended.at!r}"
            assert abs(ended.at - CLOCK.now()) < timedelta(seconds=60), "Report.at is when it ended"

    @needs(trait="reports_completion", able="fail")
    @sync
    async def test_work_that_fails_has_errored(self, harness: Harness) -> None:
        async with running(harness) as target:
            run = await fired(target, fresh(harness, target, harness.failing_action()))
            ended = await until_ended(harness, target, run)
            assert ended.result is Result.ERRORED, ended
            assert ended.detail.strip(), "it says why"

    @needs(trait="reports_completion")
    @sync
    async def test_a_run_that_is_not_there_is_unknown(self, harness: Harness) -> None:
        async with running(harness) as target:
            run = as_fired(fresh(harness, target))
            found = await report(target, run)
            assert found.result is Result.UNKNOWN, f"nobody created it, and status says {found.result.value}"

    @needs(trait="reports_completion")
    @sync
    async def test_many_are_asked_about_at_once(self, harness: Harness) -> None:
        async with running(harness) as target:
            assert isinstance(target, ReportsRuns)
            there = await fired(target, fresh(harness, target))
            await until_ended(harness, target, there)
            missing = [as_fired(fresh(harness, target)) for _ in range(5)]
            found = {report.run_key: report for report in await target.status([*missing, there])}
            assert found[there.run_key].result is Result.SUCCEEDED
            assert set(found) <= {run.run_key for run in (there, *missing)}

    @needs(trait="cancels", able="hold")
    @sync
    async def test_a_run_is_cancelled(self, harness: Harness) -> None:
        async with running(harness) as target:
            assert isinstance(target, CancelsRuns)
            request = fresh(harness, target, harness.holding_action())
            run = await fired(target, request)
            await harness.seen(request.run_name)
            ended = await until(harness, lambda: target.cancel(run), lambda found: found is not None)
            assert ended is not None, "cancel answers None until it has ended; it never has"
            assert ended.result is Result.CANCELLED, f"a run that was to be cancelled ended so: {ended}"
            assert (await report(target, run)).result is Result.CANCELLED

    @needs(trait="cancels")
    @sync
    async def test_a_run_that_has_ended_is_not_cancelled(self, harness: Harness) -> None:
        async with running(harness) as target:
            assert isinstance(target, CancelsRuns)
            run = await fired(target, fresh(harness, target))
            await until_ended(harness, target, run)
            ended = await target.cancel(run)
            assert ended is not None
            assert ended.result is Result.SUCCEEDED, ended

    # Secrets.

    @sync
    async def test_no_secret_is_told(
        self, harness: Harness, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        caplog.set_level(logging.DEBUG)
        told: list[object] = []
        async with running(harness) as target:
            told.append(repr(target))
            told.append(await target.create_run(fresh(harness, target)))
            if "refuse" not in self.cannot:
                told.append(await target.create_run(fresh(harness, target, harness.refused_action())))
            if "be down" not in self.cannot:
                run = as_fired(fresh(harness, target))
                async with harness.down():
                    told.append(await target.create_run(fresh(harness, target)))
                    for ask in (_asks(target), _cancels(target)):
                        try:
                            told.append(await ask(run))
                        except Exception as error:
                            told.append("".join(traceback.format_exception(error)))
        out = capfd.readouterr()
        places = [*map(str, told), *map(repr, told), caplog.text, out.out, out.err]
        found = [text for text in places if any(secret in text for secret in harness.secrets)]
        assert not found, "one of `secrets` is in this answer, error, log or output: " + "\n".join(found)


# --- what the tests are made of ---------------------------------------------------------------------------

_IDS = SystemIds()


@asynccontextmanager
async def running(harness: Harness) -> AsyncIterator[Target]:
    """The target of a harness, built as an instance builds it, started; drained and closed at the end."""
    kind = harness.kind
    config = kind.check_config(harness.config(), "/targets/conformance")
    target = kind.build(TargetSpec("conformance", kind.name, config), harness.context())
    await target.start()
    try:
        yield target
    finally:
        await target.drain(timedelta(seconds=harness.patience))
        await target.close()


def fresh(
    harness: Harness,
    target: Target,
    action: Mapping[str, Any] | None = None,
    deadline: timedelta | None = None,
) -> FireRequest:
    """A run that nobody has heard of, of a checked action."""
    slot = CLOCK.now().replace(microsecond=0)
    parameters = {**PARAMETERS, KICKOFF_ARG: rfc3339(slot)}
    words = harness.action() if action is None else action
    return FireRequest(
        run_name=f"r{_IDS.new_id()[:16]}",
        trigger=TRIGGER,
        origin="schedule",
        scheduled_time=slot,
        attempt=1,
        action=harness.kind.check_action(words, parameters, "/deployments/conformance"),
        parameters=parameters,
        deadline=CLOCK.now() + (deadline or target.timeout),
        kickoff_time_arg=KICKOFF_ARG,
    )


def again(target: Target, request: FireRequest) -> FireRequest:
    """The next attempt at the same run."""
    return replace(request, attempt=request.attempt + 1, deadline=CLOCK.now() + target.timeout)


def as_fired(request: FireRequest, there: str | None = None) -> FiredRun:
    return FiredRun(1, request.run_name, request.trigger, 1, CLOCK.now(), there)


async def created(target: Target, request: FireRequest) -> Created:
    answer = await target.create_run(request)
    assert isinstance(answer, Created), answer
    return answer


async def fired(target: Target, request: FireRequest) -> FiredRun:
    return as_fired(request, (await created(target, request)).target_run_id)


async def within_deadline(target: Target, request: FireRequest) -> Answer:
    left = request.deadline - CLOCK.now() + GRACE
    try:
        async with asyncio.timeout(left.total_seconds()) as bound:
            return await target.create_run(request)
    except TimeoutError:
        if not bound.expired():
            raise
        late = GRACE.total_seconds()
        raise AssertionError(f"create_run went on {late:g} s past request.deadline: it ends before") from None


async def until_created(harness: Harness, target: Target, request: FireRequest) -> None:
    """Attempt by attempt, as the executor does, until the run is there."""
    answer = await until(
        harness,
        lambda: target.create_run(again(target, request)),
        lambda found: isinstance(found, Created | AlreadyExists),
    )
    assert isinstance(answer, Created | AlreadyExists)


async def seen_once(harness: Harness, target: Target, request: FireRequest) -> None:
    """Whatever was handed over before another run began before it; so wait for one, and count."""
    for _ in range(2):
        fence = fresh(harness, target)
        await created(target, fence)
        await harness.seen(fence.run_name)
    began = len(await harness.seen(request.run_name))
    assert began == 1, f"{request.run_name} began {began} times over there: its name is known the second time"


async def report(target: Target, run: FiredRun) -> Report:
    assert isinstance(target, ReportsRuns)
    found = {report.run_key: report for report in await target.status([run])}
    assert set(found) <= {run.run_key}
    # One that is left out is asked about again later.
    return found.get(run.run_key) or Report(run.run_key, Result.RUNNING, CLOCK.now())


async def until_ended(harness: Harness, target: Target, run: FiredRun) -> Report:
    return await until(harness, lambda: report(target, run), lambda found: found.result is not Result.RUNNING)


T = TypeVar("T")


async def until(harness: Harness, ask: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
    """Ask, as the reporter and the executor do, until the answer is good; the last one after `patience`."""
    begun, never = CLOCK.monotonic(), asyncio.Event()
    while True:
        answer = await ask()
        if good(answer) or CLOCK.monotonic() - begun > harness.patience:
            return answer
        await CLOCK.wait(never, 0.02)


def _asks(target: Target) -> Callable[[FiredRun], Awaitable[object]]:
    return lambda run: report(target, run)


def _cancels(target: Target) -> Callable[[FiredRun], Awaitable[object]]:
    async def cancel(run: FiredRun) -> object:
        return await target.cancel(run) if isinstance(target, CancelsRuns) else None

    return cancel
