"""What a server says is owed when it starts: a first start is no downtime."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from horarium.app.why import rough
from tests.surfaces.api_world import open_world


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
        owed = f"tick owes {down // 10} slots; catch_up=latest, firing {down // 10 - looked.skipped}"
        assert looked.skipped == (0 if down == 50 else 6)
        assert lines == [
            f"down {rough(timedelta(seconds=down))}: " + owed + (", skipping 6" if looked.skipped else "")
        ]
