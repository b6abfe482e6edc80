"""Start here. A trigger has a schedule; the instants it names are slots; every slot becomes one run."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from horarium.store import tables
from horarium.targets.base import Refused, Unavailable
from horarium.testing import LostAnswer
from tests.fundamentals.house import House, at, every, times


async def test_a_slot_becomes_one_run(tmp_path: Path) -> None:
    async with House(tmp_path, at("09:59:30")) as house:
        await house.apply(tick={"cron": "* * * * *"})
        await house.run_until(at("10:03:30"))
        assert house.fired("tick") == times("10:00", "10:01", "10:02", "10:03")
        assert house.fired_at("tick") == times("10:00", "10:01", "10:02", "10:03")


async def test_upcoming_runs_are_there_before_they_are_due(tmp_path: Path) -> None:
    """At least three, and at least an hour: people see what will happen."""
    async with House(tmp_path) as house:
        await house.apply(often={"cron": "*/5 * * * *"}, seldom={"cron": "0 0 * * *"})
        await house.turn()
        assert (await house.runs("often", "scheduled"))[:12] == every("10:05", "11:00", timedelta(minutes=5))
        assert (await house.runs("seldom", "scheduled"))[:3] == [
            at("2026-01-06T00:00:00Z"),
            at("2026-01-07T00:00:00Z"),
            at("2026-01-08T00:00:00Z"),
        ]


async def test_a_second_plan_adds_nothing(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *"})
        await house.turn()
        planned = await house.runs("tick")
        await house.replan("tick")
        await house.turn()
        assert await house.runs("tick") == planned


async def test_an_interval_keeps_its_phase_from_its_anchor(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(beat={"every": "20m", "start": "2026-01-05T09:10:00Z"})
        await house.run_until(at("11:00"))
        assert house.fired("beat") == times("10:10", "10:30", "10:50")


async def test_a_one_off_fires_once_and_is_finished(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(launch={"at": "2026-01-05T10:30:00Z"})
        await house.run_for(hours=2)
        assert house.fired("launch") == times("10:30")
        (row,) = await house.rows(tables.trigger)
        assert (row.status, row.plan_due_at) == ("finished", None)


async def test_a_lost_answer_is_asked_again_under_the_same_name(tmp_path: Path) -> None:
    """The target made the run, the answer was lost: the second call finds it there. One run."""
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "5 10 * * *"})
        house.target.script(LostAnswer(happened=True))
        await house.run_until(at("10:06"))
        assert house.fired("tick") == times("10:05")
        first, second = house.target.calls
        assert first.run_name == second.run_name
        assert (first.attempt, second.attempt) == (1, 2)
        assert await house.runs("tick", "fired") == times("10:05")


async def test_a_target_that_is_down_gets_the_run_when_it_is_back(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/10 * * * *"})
        house.target.down = "maintenance"
        await house.run_until(at("10:25"))
        assert house.fired("tick") == []
        house.target.down = None
        await house.run_until(at("10:35"))
        assert house.fired("tick") == times("10:10", "10:20", "10:30")


async def test_a_target_says_when_it_wants_to_be_asked_again(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "5 10 * * *"})
        house.target.script(Unavailable("busy", retry_at=at("10:20")))
        await house.run_until(at("10:30"))
        assert house.fired_at("tick") == times("10:05", "10:20")


async def test_what_is_refused_ends_failed_with_the_reason(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "5 10 * * *"})
        house.target.script(Refused("no such task"))
        await house.run_until(at("10:30"))
        run = next(row for row in await house.rows(tables.run) if row.scheduled_time == at("10:05"))
        assert (run.state, run.reason, run.attempt) == ("failed", "no such task", 1)


async def test_retries_end_after_their_time_and_the_run_is_visibly_failed(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "5 10 * * *", "retry_for": 600})
        house.target.down = "gone"
        await house.run_until(at("10:30"))
        run = next(row for row in await house.rows(tables.run) if row.scheduled_time == at("10:05"))
        assert run.state == "failed"
        assert "gone" in run.reason
        assert run.settled_at <= at("10:16")
