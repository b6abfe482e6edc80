"""The runs of a range ahead, asked for over REST: made once, bounded, and seen everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from horarium.app import commands
from horarium.core import revision
from horarium.core.zone import DEFAULT_ZONES, TzdataLoader, Zones
from tests.surfaces.api_world import TICK, World

DAILY = {"run": "date", "cron": "0 6 * * *"}
DEPLOYMENT = "/deployments/default/default/tick"
JUNE = {"from": "2026-06-01T00:00:00Z", "to": "2026-06-30T23:59:59Z"}


def trigger(name: str) -> str:
    return f"/triggers/default/default/tick/{name}"


async def test_a_range_is_made_once_and_says_what_was_there(world: World) -> None:
    await world.put(TICK, DAILY)
    await world.plan()
    made = await world.post(f"{TICK}/plan", JUNE, x_horarium_user="kim")
    assert made.status == 201
    one = {"trigger": "default/default/tick/default", "decided": 0, "problem": None}
    assert made.json == {
        **JUNE,
        "planned": 30,
        "existing": 0,
        "decided": 0,
        "triggers": [{**one, "planned": 30, "existing": 0}],
    }
    runs = await world.all("/runs", 100, from_=JUNE["from"], to=JUNE["to"])
    assert [run["scheduled_time"] for run in reversed(runs)] == [
        f"2026-06-{day:02d}T06:00:00Z" for day in range(1, 31)
    ]
    assert {(run["origin"], run["state"]) for run in runs} == {("schedule", "scheduled")}
    before = world.dump()
    again = await world.post(f"{TICK}/plan", JUNE)
    assert (again.status, again.json["planned"], again.json["existing"]) == (200, 0, 30)
    assert world.dump() == before


async def test_without_from_it_is_from_now_on(world: World) -> None:
    await world.put(TICK, DAILY)
    made = await world.post(f"{TICK}/plan", {"to": world.time(86_400 * 10)})
    assert (made.json["planned"], made.json["triggers"][0]["planned"]) == (10, 10)
    assert made.json["from"].startswith("2026-01-05T10:00:00")
    await world.plan()
    assert len(await world.all("/runs", 100)) == 10, "the window found its six there"


async def test_one_of_them_can_be_cancelled_and_stays_so(world: World) -> None:
    await world.put(TICK, DAILY)
    await world.post(f"{TICK}/plan", JUNE)
    (run,) = await world.all("/runs", 9, from_="2026-06-09T00:00:00Z", to="2026-06-10T00:00:00Z")
    assert (await world.post(f"/runs/default/default/{run['name']}/cancel")).status == 200
    again = await world.post(f"{TICK}/plan", JUNE)
    assert (again.json["planned"], again.json["existing"], again.json["decided"]) == (0, 29, 1)
    found = await world.get(f"{TICK}/why", time="2026-06-09T06:00:00Z")
    assert found["verdict"] == "skipped"


async def test_slots_show_each_once(world: World) -> None:
    """As a run, a skip or a projection: what is past the cursor and planned is no projection any more."""
    await world.put(TICK, DAILY)
    await world.plan()
    await world.post(f"{TICK}/plan", {"from": "2026-06-10T00:00:00Z", "to": "2026-06-12T12:00:00Z"})
    (run, *_) = await world.all("/runs", 9, from_="2026-06-11T00:00:00Z", to="2026-06-12T00:00:00Z")
    await world.post(f"/runs/default/default/{run['name']}/cancel")
    for limit in (1, 2, 100):
        slots = await world.all("/slots", limit, from_="2026-06-09T00:00:00Z", to="2026-06-14T00:00:00Z")
        assert [(item["time"][8:10], item["kind"]) for item in slots] == [
            ("09", "projected"),
            ("10", "run"),
            ("11", "skip"),
            ("12", "run"),
            ("13", "projected"),
        ]
    assert (await world.get(f"{TICK}/why", time="2026-06-10T06:00:00Z"))["verdict"] == "planned"


async def test_what_is_owed_is_counted_once(world: World) -> None:
    """Nobody was there from before the range until after it."""
    await world.put(TICK, DAILY)
    await world.plan()
    await world.post(f"{TICK}/plan", {"from": "2026-01-20T00:00:00Z", "to": "2026-01-29T12:00:00Z"})
    world.clock.advance(86_400 * 30)
    (item,) = (await world.get("/owed"))["triggers"]
    assert (item["slots"], item["firing"]) == (30, 30)


async def test_a_range_that_has_begun_is_a_backfills(world: World) -> None:
    await world.put(TICK, DAILY)
    before = world.dump()
    for body, pointers in (
        ({"from": world.time(-60), "to": world.time(60)}, ["/from"]),
        ({"to": world.time(-60)}, ["/to"]),
        ({"from": world.time(-120), "to": world.time(-60)}, ["/from", "/to"]),
        ({"from": world.time(60), "to": world.time(30)}, ["/to"]),
        ({}, ["/to"]),
        ({"from": "soon", "to": world.time(60)}, ["/from"]),
        ({"until": world.time(60), "to": world.time(60)}, ["/until"]),
    ):
        refused = await world.post(f"{TICK}/plan", body)
        assert (refused.status, refused.pointers) == (422, pointers), body
    past = (await world.post(f"{TICK}/plan", {"to": world.time(-60)})).json
    assert "a backfill" in past["problems"][0]["try"]
    assert world.dump() == before


async def test_more_than_one_request_may_hold_is_refused_whole_and_says_up_to_where(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "PLANNED_AT_ONCE", 30)
    await world.put(TICK, DAILY)
    await world.put(trigger("noon"), {"cron": "0 12 * * *"})
    before = world.dump()
    longer = {**JUNE, "to": "2026-07-02T00:00:00Z"}
    refused = await world.post(f"{TICK}/plan", longer)
    assert (refused.status, refused.pointers) == (422, ["/to"])
    (problem,) = refused.json["problems"]
    assert "at most 30 slots" in problem["rule"]
    assert problem["try"].startswith("2026-06-30T06:00:00Z")
    both = await world.post(f"{DEPLOYMENT}/plan", JUNE)
    assert (both.status, both.pointers) == (422, ["/to"]), "all triggers of a request count together"
    assert world.dump() == before
    assert (await world.post(f"{TICK}/plan", {**longer, "to": "2026-06-30T06:00:00Z"})).status == 201
    before = world.dump()
    assert (await world.post(f"{TICK}/plan", longer)).status == 422, "what is there counts too"
    assert world.dump() == before


async def test_a_deployments_range_is_that_of_its_triggers_and_a_bad_one_costs_itself(
    world: World, a_zone_goes: Callable[[], None]
) -> None:
    await world.put(TICK, DAILY)
    for name in ("bad", "done", "noon", "off", "paused", "gone"):
        words = {"at": "2026-01-05T10:01:00Z"} if name == "done" else {"cron": "0 12 * * *"}
        if name == "bad":
            words["timezone"] = "Europe/Berlin"
        await world.put(trigger(name), {**words, "active": name != "off"})
    await world.plan()
    world.clock.advance(61)
    await world.plan()
    await world.post(f"{trigger('paused')}/pause", {"note": "stocktaking"})
    await world.call("DELETE", trigger("gone"))
    a_zone_goes()
    made = await world.post(f"{DEPLOYMENT}/plan", JUNE)
    assert (made.status, made.json["planned"]) == (201, 60)
    said = {item["trigger"].split("/")[3]: item for item in made.json["triggers"]}
    assert {name: item["planned"] for name, item in said.items()} == {
        "bad": 0,
        "default": 30,
        "done": 0,
        "noon": 30,
        "off": 0,
        "paused": 0,
    }
    problems = {name: item["problem"] for name, item in said.items() if item["problem"]}
    assert "can't be evaluated" in problems.pop("bad")
    assert "no slot left" in problems.pop("done")
    assert "active: false" in problems.pop("off")
    assert "is paused (stocktaking)" in problems.pop("paused")
    assert problems == {}
    for name, status in (("bad", 409), ("done", 409), ("off", 409), ("paused", 409), ("gone", 404)):
        before = world.dump()
        refused = await world.post(f"{trigger(name)}/plan", JUNE)
        assert refused.status == status, name
        if status == 409:
            assert refused.json["detail"] in said[name]["problem"]
        assert world.dump() == before


class WithoutBerlin(TzdataLoader):
    """tz data in which a zone is gone that there was."""

    def load(self, name: str) -> bytes | None:
        return None if name == "Europe/Berlin" else super().load(name)


@pytest.fixture
def a_zone_goes() -> Iterator[Callable[[], None]]:
    yield lambda: revision.use_zones(Zones(WithoutBerlin()))
    revision.use_zones(DEFAULT_ZONES)


async def test_nobody_there_is_a_404(world: World) -> None:
    for path in (TICK, DEPLOYMENT):
        assert (await world.post(f"{path}/plan", JUNE)).status == 404
