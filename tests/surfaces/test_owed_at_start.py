"""What a server says is owed when it starts: a first start is no downtime."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from horarium.app import owed
from horarium.app.why import rough
from tests.surfaces.api_world import World, open_world


async def test_a_first_start_was_not_down(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.clock.advance(0.5)
        await world.put("/triggers/default/default/tick/default", {"run": "date", "every": "1s"})
        world.clock.advance(0.6)
        lines = list(await world.queries.owed_report(world.now()))
        assert lines == ["tick owes 1 slot; catch_up=all, firing 1"]
        world.clock.advance(1)
        lines = list(await world.queries.owed_report(world.now()))
        assert lines == ["down 1s600ms: tick owes 2 slots; catch_up=all, firing 2"]


@pytest.mark.parametrize("down", [50, 70])
async def test_what_it_says_is_skipped_is_what_the_first_look_skips(tmp_path: Path, down: int) -> None:
    """Within the grace it was no downtime, so what was planned ahead fires, whatever its age is by then."""
    async with open_world(tmp_path) as world:
        body = {"run": "date", "every": "10s", "catch_up": "latest"}
        await world.put("/triggers/default/default/tick/default", body)
        await world.plan()
        await world.store.look(1, world.now(), world.window.grace)
        world.clock.advance(down)
        lines = list(await world.queries.owed_report(world.now()))
        looked = await world.store.look(1, world.now(), world.window.grace)
        said = f"tick owes {down // 10} slots; catch_up=latest, firing {down // 10 - looked.skipped}"
        assert looked.skipped == (0 if down == 50 else 6)
        assert lines == [
            f"down {rough(timedelta(seconds=down))}: " + said + (", skipping 6" if looked.skipped else "")
        ]


async def test_a_trigger_every_second_after_three_hours_is_told_whole(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        for name, policy in (("all", "all"), ("last", "latest")):
            await world.put(
                f"/triggers/default/default/{name}/default",
                {"run": "date", "every": "1s", "catch_up": policy},
            )
        await world.plan()
        world.clock.advance(3 * 3_600)
        assert await lines_of(world) == [
            "down 3h: all owes 10800 slots; catch_up=all, firing 10800",
            "down 3h: last owes 10800 slots; catch_up=latest, firing 1, skipping 10799",
        ]


async def test_what_is_too_much_to_walk_is_said_to_be_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owed, "WALK", 1_000)
    async with open_world(tmp_path) as world:
        for name in ("one", "two"):
            await world.put(f"/triggers/default/default/{name}/default", {"run": "date", "every": "1s"})
        await world.plan()
        world.clock.advance(3 * 3_600)
        assert await lines_of(world) == [
            "down 3h: one owes at least 1010 slots; catch_up=all, firing at least 1010",
            "down 3h: two owes at least 10 slots; catch_up=all, firing at least 10",
        ]


async def lines_of(world: World) -> list[str]:
    return list(await world.queries.owed_report(world.now()))
