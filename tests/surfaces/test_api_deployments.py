"""Deployments over REST: the pause of all their triggers, and what each place says of it."""

from __future__ import annotations

from tests.surfaces.api_world import TICK, World, triggers_file

PATH = "/deployments/default/default/tick"
OTHER = "/triggers/default/default/tick/other"
EVERY = {"run": "date", "every": "20s"}


async def said(world: World, time: str) -> tuple[str, str]:
    found = await world.get(f"{TICK}/why", time=time)
    return found["verdict"], found["reason"]


async def test_a_pause_stops_its_triggers_and_every_place_says_whose_it_is(world: World) -> None:
    await world.put(TICK, EVERY)
    await world.put(OTHER, {"every": "1h", "active": False})
    await world.plan()
    world.clock.advance(30)
    paused = await world.post(f"{PATH}/pause", {"note": "moving house"}, x_horarium_user="kim")
    assert paused.status == 200
    assert {name: paused.json[name] for name in ("paused", "pause_note", "paused_by", "paused_at")} == {
        "paused": True,
        "pause_note": "moving house",
        "paused_by": "kim",
        "paused_at": world.time(0),
    }
    trigger = await world.get(TICK)
    assert (trigger["status"], trigger["active"], trigger["paused"], trigger["deployment_paused"]) == (
        "paused",
        True,
        False,
        True,
    )
    (item,) = (await world.get("/status"))["paused_deployments"]
    assert item == {
        "deployment": "default/default/tick",
        "note": "moving house",
        "who": "kim",
        "at": world.time(0),
    }
    assert [found["paused"] for found in await world.all("/deployments", 10)] == [True]
    verdict, words = await said(world, "2026-01-05T10:00:20Z")
    assert (verdict, words.partition(" is held while ")[2]) == (
        "held",
        "its deployment is paused by kim (moving house)",
    )
    verdict, words = await said(world, "2026-01-05T10:00:40Z")
    assert verdict == "skipped"
    assert words.startswith("its deployment is paused by kim (moving house), since ")
    assert words.endswith("; it will be skipped unless that is resumed before")

    world.clock.advance(60)
    resumed = await world.post(f"{PATH}/resume")
    assert (resumed.status, resumed.json["paused"], resumed.json["paused_at"]) == (200, False, None)
    await world.plan()
    assert await said(world, "2026-01-05T10:00:40Z") == (
        "skipped",
        "the trigger was paused (its deployment was paused), one of 3 slots skipped together",
    )
    assert [(await world.get(path))["status"] for path in (TICK, OTHER)] == ["active", "paused"]
    assert (await world.get("/status"))["paused_deployments"] == []
    whats = [(found["what"], found["deployment_paused"]) for found in await world.all(f"{TICK}/revisions", 9)]
    assert whats == [("resume-deployment", False), ("pause-deployment", True), ("create", False)]


async def test_a_trigger_that_is_resumed_first_says_what_still_stands_in_the_way(world: World) -> None:
    await world.put(TICK, EVERY)
    await world.post(f"{TICK}/pause", {"note": "mine"}, x_horarium_user="ben")
    await world.post(f"{PATH}/pause", {"note": "all"}, x_horarium_user="kim")
    world.clock.advance(30)
    _, words = await said(world, "2026-01-05T10:00:20Z")
    assert "the trigger is paused by ben (mine) and its deployment is paused by kim (all)" in words
    resumed = await world.post(f"{TICK}/resume")
    assert (resumed.status, resumed.json["status"]) == (200, "paused")
    assert (resumed.json["paused"], resumed.json["deployment_paused"]) == (False, True)
    again = await world.post(f"{TICK}/resume")
    assert again.status == 409
    assert again.json["try"] == "horarium deployments resume default/default/tick"
    assert (await world.post(f"{PATH}/resume")).status == 200
    assert (await world.get(TICK))["status"] == "active"


async def test_a_trigger_that_was_paused_itself_stays_so(world: World) -> None:
    await world.put(TICK, EVERY)
    await world.put(OTHER, {"every": "1h"})
    await world.post(f"{TICK}/pause")
    await world.post(f"{PATH}/pause")
    await world.post(f"{PATH}/resume", {"backfill": True})
    assert [(await world.get(path))["status"] for path in (TICK, OTHER)] == ["paused", "active"]


async def test_what_is_put_into_a_paused_deployment_waits_and_a_run_by_hand_does_not(world: World) -> None:
    await world.put(TICK, EVERY)
    await world.post(f"{PATH}/pause")
    made = await world.put(OTHER, {"every": "1h"})
    assert (made.status, made.json["status"], made.json["deployment_paused"]) == (201, "paused", True)
    edited = await world.put(TICK, {"run": "date", "every": "30s"})
    assert (edited.status, edited.json["status"]) == (200, "paused")
    for path in (TICK, OTHER):
        manual = await world.post(f"{path}/run")
        assert (manual.status, manual.json["state"]) == (201, "scheduled")


async def test_a_range_of_a_paused_deployment_is_not_planned_and_that_is_said(world: World) -> None:
    await world.put(TICK, EVERY)
    await world.post(f"{PATH}/pause")
    refused = await world.post(f"{TICK}/plan", {"from": world.time(1), "to": world.time(60)})
    assert (refused.status, refused.json["detail"]) == (409, "deployment default/default/tick is paused")


async def test_a_resume_can_fill_the_pause(world: World) -> None:
    await world.put(TICK, EVERY)
    world.clock.advance(5)
    await world.post(f"{PATH}/pause")
    world.clock.advance(60)
    await world.post(f"{PATH}/resume", {"backfill": True})
    await world.plan()
    runs = await world.all("/runs", 100, trigger="tick", to=world.time(0), origin="backfill")
    assert [run["scheduled_time"] for run in runs] == [
        "2026-01-05T10:01:00Z",
        "2026-01-05T10:00:40Z",
        "2026-01-05T10:00:20Z",
    ]


async def test_all_triggers_are_named_however_many_there_are(world: World) -> None:
    many = {f"t{n:04}": {"every": "1h"} for n in range(1_001)}
    file = {"path": "/etc/f.json", "text": triggers_file(tick={"run": "date", "triggers": many})}
    assert (await world.post("/apply", {"files": [file]})).status == 200
    paused = await world.post(f"{PATH}/pause")
    assert paused.json["triggers"] == [f"default/default/tick/{name}" for name in many]


async def test_a_pause_that_has_ended_is_not_said_to_be_filled(world: World) -> None:
    await world.put(TICK, EVERY)
    await world.post(f"{PATH}/pause")
    await world.post(f"{PATH}/resume")
    before = world.dump()
    for path, what in ((PATH, "deployment default/default/tick"), (TICK, f"trigger {TICK[10:]}")):
        refused = await world.post(f"{path}/resume", {"backfill": True})
        assert refused.status == 409
        assert refused.json["detail"] == f"{what} is not paused, so there is no pause to fill"
    assert world.dump() == before


async def test_a_change_of_what_is_no_longer_as_it_was_read_is_refused(world: World) -> None:
    await world.put(TICK, EVERY)
    read = (await world.call("GET", PATH)).headers["etag"]
    assert read == (await world.get(PATH))["etag"]
    paused = await world.post(f"{PATH}/pause", if_match=read)
    assert (paused.status, paused.headers["etag"] != read) == (200, True)
    before = world.dump()
    for verb, etag in (("pause", read), ("resume", read), ("pause", '"x"')):
        assert (await world.post(f"{PATH}/{verb}", if_match=etag)).status == 412
    assert world.dump() == before
    assert (await world.post(f"{PATH}/resume", if_match=paused.headers["etag"])).status == 200


async def test_what_is_wrong_is_named_and_changes_nothing(world: World) -> None:
    await world.put(TICK, EVERY)
    before = world.dump()
    assert (await world.post(f"{PATH}/pause", {"note": ""})).pointers == ["/note"]
    assert (await world.post(f"{PATH}/pause", {"until": world.time(60)})).pointers == ["/until"]
    for verb in ("pause", "resume"):
        assert (await world.post(f"/deployments/default/default/nobody/{verb}")).status == 404
    assert (await world.post(f"{PATH}/resume")).status == 200, "as with a trigger that is not paused"
    assert world.dump() == before
