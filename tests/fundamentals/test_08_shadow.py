"""In the shadow of another scheduler a trigger is planned and decided like any other, and nothing is fired.

A slot belongs to the revision in force at it, and so does the question whose slot it is: the instant of a
cut-over parts the other scheduler's slots from ours, exactly.
"""

from __future__ import annotations

from pathlib import Path

from horarium.core.spec import Rate
from tests.fundamentals.house import House, at, every, times

MINUTELY = {"cron": "* * * * *"}


async def test_slots_in_shadow_are_decided_and_nobody_is_called(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick=MINUTELY)
        await house.shadow("tick", True)
        await house.run_for(minutes=3)
        assert house.calls == []
        assert await house.runs("tick", "shadowed") == every("10:01", "10:03")


async def test_a_new_trigger_can_start_in_shadow(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        house.starts_in_shadow = True
        await house.apply(tick=MINUTELY)
        await house.run_for(minutes=2)
        assert house.calls == []
        assert await house.runs("tick", "shadowed") == times("10:01", "10:02")


async def test_a_cut_over_parts_the_slots_at_its_instant(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick=MINUTELY)
        await house.shadow("tick", True)
        await house.run_until(at("10:02:30"))
        await house.shadow("tick", False)
        await house.run_until(at("10:04:30"))
        await house.shadow("tick", True)
        await house.run_until(at("10:06"))
        assert await house.runs("tick", "shadowed") == times("10:01", "10:02", "10:05", "10:06")
        assert house.fired("tick") == times("10:03", "10:04")


async def test_a_slot_at_the_very_instant_of_the_cut_over_is_the_other_schedulers(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick=MINUTELY)
        await house.shadow("tick", True)
        await house.run_until(at("10:01:59"))
        await house.down_for(seconds=1)
        await house.shadow("tick", False)
        await house.run_until(at("10:03"))
        assert await house.runs("tick", "shadowed") == times("10:01", "10:02")
        assert house.fired("tick") == times("10:03")


async def test_what_was_owed_in_shadow_is_never_fired_however_late(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick=MINUTELY)
        await house.shadow("tick", True)
        await house.turn()
        await house.down_for(minutes=10, seconds=30)
        await house.shadow("tick", False)
        await house.run_until(at("10:12"))
        assert house.fired("tick") == times("10:11", "10:12")
        assert await house.runs("tick", "shadowed") == every("10:01", "10:10")


async def test_what_was_owed_before_the_shadow_is_still_fired(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick=MINUTELY)
        await house.turn()
        await house.down_for(minutes=2, seconds=30)
        await house.shadow("tick", True)
        await house.run_until(at("10:04"))
        assert house.fired("tick") == times("10:01", "10:02")
        assert await house.runs("tick", "shadowed") == times("10:03", "10:04")


async def test_a_new_rule_of_the_source_stays_in_shadow(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick=MINUTELY)
        await house.shadow("tick", True)
        await house.apply(tick={"cron": "*/2 * * * *"})
        await house.run_until(at("10:04"))
        assert house.calls == []
        assert await house.runs("tick", "shadowed") == times("10:02", "10:04")


async def test_a_trigger_that_a_source_names_again_is_where_it_was(tmp_path: Path) -> None:
    """A source that is empty for a moment puts nothing back into shadow, and nothing out of it."""
    async with House(tmp_path) as house:
        house.starts_in_shadow = True
        await house.apply(kept=MINUTELY, over=MINUTELY)
        await house.shadow("over", False)
        await house.apply()
        await house.apply(kept=MINUTELY, over=MINUTELY)
        await house.run_until(at("10:02"))
        assert house.fired("kept") == []
        assert house.fired("over") == times("10:01", "10:02")


async def test_catch_up_has_its_say_in_shadow_too(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={**MINUTELY, "catch_up": "latest"})
        await house.shadow("tick", True)
        await house.turn()
        await house.down_for(minutes=5, seconds=30)
        await house.run_until(at("10:06"))
        assert await house.runs("tick", "shadowed") == times("10:05", "10:06")
        assert [skip[3] for skip in await house.skips("tick")] == ["catch_up_latest"]


async def test_a_pause_in_shadow_skips_and_holds_as_ever(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick=MINUTELY)
        await house.shadow("tick", True)
        await house.run_until(at("10:01:30"))
        await house.pause("tick")
        await house.run_until(at("10:03:30"))
        await house.resume("tick")
        await house.run_until(at("10:05"))
        assert await house.runs("tick", "shadowed") == times("10:01", "10:04", "10:05")
        assert await house.skips("tick") == [(at("10:02"), at("10:03"), 2, "paused")]


async def test_runs_in_shadow_take_no_token_from_those_that_fire(tmp_path: Path) -> None:
    async with House(tmp_path, rate=Rate(0.1, 1)) as house:
        await house.apply(a=MINUTELY, b=MINUTELY, real=MINUTELY)
        await house.shadow("a", True)
        await house.shadow("b", True)
        await house.run_for(minutes=3)
        assert house.fired_at("real") == every("10:01", "10:03")


async def test_a_crash_between_a_decision_and_its_record_decides_once(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"at": "2026-01-05T10:01:00Z"})
        await house.shadow("tick", True)
        await house.run_until(at("10:00:59"))
        await house.down_for(seconds=1)
        await house.claim_for_another_process()
        await house.run_until(at("10:03"))
        assert house.calls == []
        assert await house.runs("tick") == await house.runs("tick", "shadowed") == times("10:01")


async def test_a_person_who_says_run_runs(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick=MINUTELY)
        await house.shadow("tick", True)
        await house.run_by_hand("tick")
        await house.run_for(minutes=1)
        assert len(house.calls) == 1
        assert await house.runs("tick", "shadowed") == times("10:01")
