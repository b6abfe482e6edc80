"""What a server says is owed when it starts: a first start is no downtime."""

from __future__ import annotations

from pathlib import Path

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
