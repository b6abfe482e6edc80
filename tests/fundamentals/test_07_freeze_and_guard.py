"""A freeze stops firing and nothing else, and its release asks what becomes of what was owed meanwhile.

The catch-up guard asks the same by itself, after a long time in which nobody looked.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from horarium.core.freeze import EVERYTHING, Owed, Scope
from horarium.core.spec import Rate
from tests.fundamentals.house import House, at, every, key_of, times

FAKE = Scope.target("fake")
TICK = Scope.deployment(key_of("tick").deployment_key)


async def freeze(house: House, scope: Scope) -> None:
    await house.store.freeze(scope, None, "test", house.clock.now())


async def release(house: House, scope: Scope, owed: Owed) -> None:
    await house.store.release(scope, owed, "test", house.clock.now())


@pytest.mark.parametrize("scope", [FAKE, EVERYTHING, TICK, Scope.project("default")], ids=str)
@pytest.mark.parametrize(
    ("owed", "made_up_for", "skipped"),
    [
        (Owed.ALL, every("10:03", "10:10"), []),
        (Owed.LATEST, times("10:10"), [(at("10:03"), at("10:09"), 7, "released")]),
        (Owed.DROP, [], [(at("10:03"), at("10:10"), 8, "released")]),
    ],
    ids=["all", "latest", "drop"],
)
async def test_a_freeze_stops_firing_until_somebody_answers(
    tmp_path: Path, scope: Scope, owed: Owed, made_up_for: list[object], skipped: list[object]
) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *", "catch_up": "none"})
        await house.run_until(at("10:02:30"))
        await freeze(house, scope)
        while house.clock.now() < at("10:10:30"):
            await house.run_for(seconds=30)  # the service polls, whatever is due
        assert house.fired("tick") == times("10:01", "10:02")
        assert await house.skips("tick") == [], "a freeze is no downtime: nothing expires"
        await release(house, scope, owed)
        await house.run_until(at("10:12"))
        assert house.fired("tick") == [*times("10:01", "10:02"), *made_up_for, *times("10:11", "10:12")]
        assert await house.skips("tick") == skipped


async def test_the_neighbours_of_a_frozen_deployment_fire(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *"}, tock={"cron": "* * * * *"})
        await house.run_until(at("10:00:30"))
        await freeze(house, TICK)
        await house.run_until(at("10:03"))
        assert (house.fired("tick"), house.fired("tock")) == ([], every("10:01", "10:03"))


async def test_a_freeze_survives_edits_pauses_and_a_restart(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *"})
        await house.run_until(at("10:01"))
        await freeze(house, TICK)
        await house.apply(tick={"cron": "*/2 * * * *"})
        await house.run_until(at("10:05"))
        await house.pause("tick")
        await house.run_until(at("10:07"))
        await house.resume("tick")
        await house.down_for(minutes=3)
        await house.run_until(at("10:13"))
        assert house.fired("tick") == times("10:01")
        await release(house, TICK, Owed.ALL)
        await house.run_until(at("10:14"))
        assert house.fired("tick") == times("10:01", "10:02", "10:04", "10:08", "10:10", "10:12", "10:14")
        assert await house.skips("tick") == [(at("10:06"), at("10:06"), 1, "paused")]


async def test_what_was_tried_before_the_freeze_is_never_given_up(tmp_path: Path) -> None:
    """It may exist over there already, so it is no hole that one may leave."""
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *"})
        house.target.down = "not now"
        await house.run_until(at("10:01:02"))
        await freeze(house, TICK)
        house.target.down = None
        await house.run_until(at("10:05"))
        assert house.fired("tick") == []
        await release(house, TICK, Owed.DROP)
        await house.run_until(at("10:06"))
        assert house.fired("tick") == times("10:01", "10:06")


async def test_after_a_long_downtime_too_much_is_held_while_on_time_runs_go_on(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        house.settings = replace(house.settings, guard=100)
        house.start_engine()
        await house.apply(tick={"cron": "* * * * *"})
        await house.run_until(at("10:00:30"))
        await house.down_for(hours=3)
        await house.run_until(at("13:05"))
        assert house.fired("tick") == every("13:01", "13:05")
        assert await house.runs("tick", "held") == every("10:01", "13:00")
        assert house.executor.waiting == {"fake": "guard"}
        await release(house, FAKE, Owed.LATEST)
        await house.run_until(at("13:06"))
        assert house.fired("tick") == every("13:00", "13:06")
        assert await house.skips("tick") == [(at("10:01"), at("12:59"), 179, "released")]


async def test_fewer_than_the_guard_are_just_made_up_for(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        house.settings = replace(house.settings, guard=180)
        house.start_engine()
        await house.apply(tick={"cron": "* * * * *"})
        await house.run_until(at("10:00:30"))
        await house.down_for(hours=3)
        await house.run_until(at("13:05"))
        assert house.fired("tick") == every("10:01", "13:05")


async def test_our_own_limiter_never_trips_the_guard(tmp_path: Path) -> None:
    async with House(tmp_path, rate=Rate(0.1, 1)) as house:
        house.settings = replace(house.settings, guard=5)
        house.start_engine()
        await house.apply(**{f"job{n}": {"cron": "1 10 * * *"} for n in range(20)})
        await house.run_for(minutes=5)
        assert sum(len(house.fired(f"job{n}")) for n in range(20)) == 20
        longest = max(house.fired_at("job19")[0] - at("10:01"), timedelta(minutes=3))
        assert longest < timedelta(minutes=4)
