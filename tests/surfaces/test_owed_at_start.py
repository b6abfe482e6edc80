"""What a server says is owed when it starts: a first start is no downtime."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from horarium.app import owed
from horarium.app.why import rough
from horarium.core.instant import rfc3339
from horarium.store.base import Demand
from horarium.targets.base import TargetTraits
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


async def test_what_is_frozen_is_said_to_be_held_and_what_lets_it_go(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        for name in ("a", "b"):
            await world.put(f"/triggers/default/default/{name}/default", {"run": "date", "every": "10s"})
        await world.plan()
        await world.post("/targets/local/freeze", {})
        await world.post("/freeze", {"deployment": "b"})
        world.clock.advance(30)
        assert await lines_of(world) == [
            "down 30s: a owes 3 slots; catch_up=all, holding 3 (target local is frozen)",
            "down 30s: b owes 3 slots; catch_up=all, holding 3 (its deployment or project is frozen)",
            "target local: `horarium release --target local` says what becomes of the runs that are held",
        ]


async def test_what_the_guard_will_hold_and_what_it_holds_is_said(tmp_path: Path) -> None:
    """At the start, and at the next one, when the runs are held already."""
    async with open_world(tmp_path) as world:
        world.queries.guard = 10
        await world.put("/triggers/default/default/tick/default", {"run": "date", "every": "10s"})
        await world.plan()
        looked = world.now()
        await world.store.look(1, looked, world.window.grace)
        world.clock.advance(200)
        tail = "target local: `horarium release --target local` says what becomes of the runs that are held"
        held = "tick owes 20 slots; catch_up=all, holding 20 (catch_up_guard)"
        assert await lines_of(world) == [f"down 3m20s: {held}", tail]
        now = world.now()
        await world.store.look(1, now, world.window.grace, guard=10)
        await world.plan()
        claims = await world.store.claim(
            [Demand(1, 100, None)],
            now,
            now + timedelta(seconds=60),
            "me",
            backlog_first=False,
            late_after=timedelta(seconds=60),
            grace=world.window.grace,
            guard=10,
        )
        assert claims.guarded == (1,)
        assert await lines_of(world) == [held, tail]
        await world.post("/targets/local/release", {"owed": "all"})
        assert await lines_of(world) == ["tick owes 20 slots; catch_up=all, firing 20"]


async def test_within_the_guards_limit_all_is_fired(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.queries.guard = 20
        await world.put("/triggers/default/default/tick/default", {"run": "date", "every": "10s"})
        await world.plan()
        await world.store.look(1, world.now(), world.window.grace)
        world.clock.advance(200)
        assert await lines_of(world) == ["down 3m20s: tick owes 20 slots; catch_up=all, firing 20"]


TRAITS = {
    "local": TargetTraits(True, True, "", names_kept_here=True),
    "hook": TargetTraits(False, False, "up to the receiver"),
    "flyte": TargetTraits(True, False, "by name"),
}


async def test_owed_by_target_and_trigger_and_who_knows_repeated_names(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        world.queries.traits = lambda spec: TRAITS[spec.name]
        text = """
targets: {hook: {http: {url: "http://localhost:1/"}}}
deployments:
  a: {run: date, every: 10s}
  b: {target: hook, every: 30s}
"""
        reply = await world.post("/apply", {"files": [{"path": "t.yaml", "text": text}]})
        assert reply.status == 200, reply.body
        await world.plan()
        backup = world.now()
        world.clock.advance(60)
        found = await world.get("/owed")
        assert found["last_looked_at"] == rfc3339(backup)
        known = {item["name"]: (item["owed"], item["repeated_names"]) for item in found["targets"]}
        assert known == {"local": (6, "forgotten"), "hook": (2, "unknown")}
        assert [(item["trigger"], item["slots"], item["firing"]) for item in found["triggers"]] == [
            ("default/default/a/default", 6, 6),
            ("default/default/b/default", 2, 2),
        ]


async def lines_of(world: World) -> list[str]:
    return list(await world.queries.owed_report(world.now()))
