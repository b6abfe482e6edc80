"""A quick target's work is claimed ahead, no more begins than it takes, and leases are long enough."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from horarium.core.spec import Rate, TargetSpec
from horarium.engine.pool import AHEAD, Running
from horarium.testing import FakeTarget
from tests.fundamentals.house import House, every, times


def running(*, places: int = 10, holds: bool = False) -> Running:
    """A target with `places`; with `holds` it keeps them until the work is done, as the local one does."""
    target = FakeTarget(max_in_flight=places)
    if holds:
        target.traits = type(target.traits)(
            dedupes=True, reports_completion=True, holds_place=True, note="as local"
        )
    return Running(1, TargetSpec("sink", "fake"), target, None)


@pytest.mark.parametrize(
    ("seconds", "ahead"),
    [([], 0), ([0.01], 490), ([0.1], 40), ([AHEAD / 2], 0), ([5.0], 0), ([0.01, 5.0], 0), ([0.0], 0)],
)
def test_how_much_is_claimed_ahead(seconds: list[float], ahead: int) -> None:
    """Half a second of its work: nothing before it has answered, nothing while it is slow."""
    there = running()
    for took in seconds:
        there.took(took)
    assert there.free() == 10 + ahead


def test_a_target_that_keeps_its_places_is_not_claimed_from_ahead() -> None:
    there = running(holds=True)
    there.took(0.01)
    assert there.free() == 10


def test_a_slow_call_counts_at_once_and_is_forgotten_slowly() -> None:
    there = running()
    there.took(1.0)
    for _ in range(20):
        there.took(0.01)
    assert there.free() == 10
    for _ in range(60):
        there.took(0.01)
    assert there.free() > 10


async def test_what_was_claimed_ahead_begins_in_order_as_places_free(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        house.target.max_in_flight = 2
        await house.apply(**{f"t{number}": {"cron": "0 11 * * *"} for number in range(9)})
        await house.turn()
        await house.run_until(every("10:59", "10:59")[0])
        (there,) = [item for item in house.executor._pool if item.spec.name == "fake"]
        there.took(0.01)
        house.target.hold()
        house.clock.advance(timedelta(minutes=1))
        assert await house.executor.run_once() == 9
        await house.target.until_calls(2)
        assert len(house.target.calls) == 2, "no more begin than it has places"
        house.target.release()
        await house.turn()
        order = [deployment for _, deployment, _, _ in house.calls]
        assert order == [f"t{number}" for number in range(9)]
        assert {attempt for *_, attempt in house.calls} == {1}


async def test_a_target_changed_meanwhile_takes_over_what_was_claimed_ahead(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        house.target.max_in_flight = 1
        await house.apply(**{f"t{number}": {"cron": "0 11 * * *"} for number in range(5)})
        await house.turn()
        await house.run_until(every("10:59", "10:59")[0])
        (old,) = [item for item in house.executor._pool if item.spec.name == "fake"]
        old.took(0.01)
        house.target.hold()
        house.clock.advance(timedelta(minutes=1))
        assert await house.executor.run_once() == 5
        await house.target.until_calls(1)
        second = FakeTarget(max_in_flight=3)
        house.executor._pool._build = lambda spec: second
        house.rate = Rate(1_000, 1_000)  # any change of the target's spec makes a new object of it
        await house.sync()
        await house.turn()
        assert [call.trigger.deployment for call in second.calls] == ["t1", "t2", "t3", "t4"]
        house.target.release()
        await house.turn()
        assert len(house.target.created) == 1
        assert {request.attempt for request in [*house.target.calls, *second.calls]} == {1}
        assert old.unstarted == old.beginning == 0


async def test_a_lease_too_short_for_a_target_is_lengthened(tmp_path: Path) -> None:
    """A call that may take ten seconds is not begun with two of lease left: it would never be begun."""
    async with House(tmp_path, lease=2) as house:
        assert house.target.timeout > timedelta(seconds=2)
        await house.apply(tick={"cron": "* * * * *"})
        await house.run_for(minutes=2)
        assert house.fired("tick") == times("10:01", "10:02")
        assert {attempt for *_, attempt in house.calls} == {1}
