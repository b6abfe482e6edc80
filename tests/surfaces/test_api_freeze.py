"""Freeze and release over REST and from the command line, and what people see of it."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from horarium.store import migrations
from horarium.store.base import Demand
from tests.surfaces.api_world import TICK, World
from tests.surfaces.cli import horarium

MINUTELY = {"run": "date", "cron": "* * * * *"}


async def said(world: World, time: str) -> tuple[str, str]:
    found = await world.get(f"{TICK}/why", time=time)
    return found["verdict"], found["reason"]


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ({"deployment": "tick"}, "deployment default/default/tick"),
        ({"project": "default"}, "project default"),
    ],
)
async def test_a_frozen_deployment_or_project_holds_and_says_so(
    world: World, place: dict[str, str], shown: str
) -> None:
    await world.put(TICK, MINUTELY)
    await world.plan()
    frozen = await world.post("/freeze", {**place, "note": "stocktaking"}, x_horarium_user="kim")
    assert frozen.status == 200
    assert (frozen.json["triggers"], frozen.json["targets"]) == (1, 0)
    assert frozen.json["held"] == 6
    world.clock.advance(150)
    reason = f"{shown} is frozen by kim (stocktaking) until somebody releases it"
    verdict, words = await said(world, "2026-01-05T10:01:00Z")
    assert verdict == "held"
    assert words.endswith(f"is held: {reason}")
    assert (await world.get(TICK))["frozen"] is True
    (item,) = (await world.get("/status"))["freezes"]
    assert (f"{item['kind']} {item['key']}", item["who"]) == (shown, "kim")
    manual = await world.post(f"{TICK}/run")
    assert (manual.status, manual.json["state"]) == (201, "held")
    released = await world.post("/release", {**place, "owed": "drop"})
    assert released.json["skipped"] == 2
    assert (await said(world, "2026-01-05T10:01:00Z"))[0] == "skipped"
    assert "was released" in (await said(world, "2026-01-05T10:01:00Z"))[1]
    assert (await world.get(TICK))["frozen"] is False
    again = await world.post("/release", {**place, "owed": "drop"})
    assert again.status == 409


@pytest.mark.parametrize("everything", [False, True])
async def test_a_frozen_target_waits_and_says_so(world: World, everything: bool) -> None:
    await world.put(TICK, MINUTELY)
    await world.plan()
    path, body = ("/freeze", {"scope": "all"}) if everything else ("/targets/local/freeze", {})
    assert (await world.post(path, body)).json["targets"] == 1
    world.clock.advance(61)
    verdict, reason = await said(world, "2026-01-05T10:01:00Z")
    assert verdict == "owed"
    assert "is frozen by api until" in reason
    assert [item["frozen"] for item in (await world.get("/status"))["targets"]] == [True]
    assert (await world.get("/targets/local"))["frozen"] is True
    assert await world.fire() == 0
    path = path.replace("freeze", "release")
    assert (await world.post(path, body)).pointers == ["/owed"]
    released = await world.post(path, {**body, "owed": "all"})
    assert (released.status, released.json["released"]) == (200, 1)
    assert await world.fire() == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "pointer"),
    [
        ("/freeze", {}, 422, "/scope"),
        ("/freeze", {"scope": "all", "project": "default"}, 422, "/project"),
        ("/freeze", {"deployment": "a/b"}, 422, "/deployment"),
        ("/freeze", {"scope": "all", "note": ""}, 422, "/note"),
        ("/release", {"scope": "all", "owed": "some"}, 422, "/owed"),
        ("/freeze", {"project": "nowhere"}, 404, None),
        ("/targets/nothing/freeze", {}, 404, None),
        ("/targets/nothing/release", {"owed": "all"}, 404, None),
    ],
)
async def test_what_is_wrong_is_named(
    world: World, path: str, body: dict[str, str], status: int, pointer: str | None
) -> None:
    await world.put(TICK, MINUTELY)
    reply = await world.post(path, body)
    assert reply.status == status
    if pointer is not None:
        assert reply.pointers == [pointer]


async def test_what_the_guard_holds_is_seen_and_explained(world: World) -> None:
    await world.put(TICK, MINUTELY)
    await world.plan()
    world.clock.advance(1_800)
    assert await guarded(world)
    assert [item["waiting"] for item in (await world.get("/status"))["targets"]] == ["guard"]
    verdict, reason = await said(world, "2026-01-05T10:01:00Z")
    assert verdict == "held"
    assert "from 2026-01-05T10:00:00Z to 2026-01-05T10:30:00Z (catch_up_guard)" in reason
    early = await world.post("/targets/local/release", {"owed": "latest"})
    assert (early.status, "still plans" in early.json["detail"]) == (409, True)
    await world.plan()
    assert await guarded(world)
    released = await world.post("/targets/local/release", {"owed": "latest"})
    assert (released.json["released"], released.json["skipped"]) == (1, 29)
    assert not await guarded(world)


async def guarded(world: World) -> bool:
    """An executor with a guard of 5 passes; whether that holds runs."""
    (target,) = await world.store.targets()
    now, grace = world.clock.now(), timedelta(seconds=60)
    await world.store.look(target.id, now, grace, guard=5)
    claims = await world.store.claim(
        [Demand(target.id, 0, None)],
        now,
        now + grace,
        "me",
        backlog_first=False,
        late_after=grace,
        grace=grace,
        guard=5,
    )
    return claims.guarded == (target.id,)


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("HORARIUM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "triggers.yaml").write_text('deployments: {tick: {run: date, cron: "* * * * *"}}\n')
    assert horarium("apply", "triggers.yaml").code == 0


@pytest.mark.usefixtures("applied")
def test_freeze_and_release_from_the_command_line() -> None:
    ran = horarium("freeze", "--target", "local", "--note", "moving house")
    assert (ran.code, ran.out) == (0, "target local is frozen: 1 target; what is due waits there.\n")
    assert "target local is frozen since" in horarium("status").out
    asked = horarium("release", "--target", "local")
    assert (asked.code, asked.out) == (2, "")
    assert "--owed latest" in asked.err
    ran = horarium("release", "--target", "local", "--owed", "latest")
    assert (ran.code, ran.out) == (0, "target local is released: 0 runs released, 0 runs skipped.\n")
    assert horarium("release", "--target", "local", "--owed", "all").code == 4
    assert horarium("freeze", "--deployment", "tick").out.startswith(
        "deployment default/default/tick is frozen"
    )
    assert "frozen" in horarium("triggers", "show", "tick").out
    assert horarium("freeze", "--project", "no").code == 3
    assert horarium("freeze").code == 2
    assert horarium("freeze", "--all", "--project", "default").code == 2


@pytest.mark.usefixtures("applied")
def test_a_downgrade_is_refused_while_an_older_version_would_hold_runs_for_ever() -> None:
    horarium("freeze", "--deployment", "tick")
    refused = horarium("db", "downgrade", "0001")
    assert refused.code == 4
    assert "release it first" in refused.err
    horarium("release", "--deployment", "tick", "--owed", "all")
    ran = horarium("db", "downgrade", "0001", "-o", "json")
    assert (ran.code, ran.json["before"], ran.json["schema"]) == (0, migrations.head(), "0001")
    assert horarium("db", "check").code == 5
    assert horarium("db", "downgrade").code == 1
    assert horarium("db", "upgrade", "-o", "json").json["schema"] == migrations.head()
    assert horarium("status").code == 0
