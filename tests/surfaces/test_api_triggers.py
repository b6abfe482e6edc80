"""Triggers over REST: who may write them, what a stale writer is told, how lists are paged."""

from __future__ import annotations

from horarium.core.revision import Status
from tests.surfaces.api_world import TICK, World, triggers_file

EVERY = {"run": "date", "every": "20s"}


async def managed(world: World, source: str = "/etc/horarium/etl.json") -> None:
    text = triggers_file(etl={"run": "date", "cron": "0 * * * *"})
    reply = await world.post("/apply", {"files": [{"path": source, "text": text}]})
    assert reply.json["written"]


async def test_a_put_creates_and_then_replaces(world: World) -> None:
    first = await world.put(TICK, EVERY)
    assert (first.status, first.json["revision"], first.json["status"]) == (201, 1, "active")
    assert first.json["describe"] == "every 20 seconds"
    world.clock.advance(1)
    second = await world.put(TICK, {"run": "date", "every": "30s", "catch_up": "latest"})
    assert (second.status, second.json["revision"], second.json["catch_up"]) == (200, 2, "latest")
    assert second.headers["etag"] != first.headers["etag"]
    assert len(world.woken) == 2


async def test_the_same_rule_again_changes_nothing(world: World) -> None:
    await world.put(TICK, EVERY)
    before = world.dump()
    again = await world.put(TICK, {"every": "20s", "run": "date"})
    assert (again.status, again.json["revision"]) == (200, 1)
    assert world.dump() == before


async def test_a_trigger_shows_its_next_slots_and_its_last_run(world: World) -> None:
    await world.put(TICK, EVERY)
    await world.plan()
    world.clock.advance(21)
    assert await world.fire() == 1
    found = await world.get(TICK)
    assert found["next"] == ["2026-01-05T10:00:40Z", "2026-01-05T10:01:00Z", "2026-01-05T10:01:20Z"]
    assert (found["last_run"]["state"], found["last_run"]["scheduled_time"]) == (
        "fired",
        "2026-01-05T10:00:20Z",
    )


async def test_a_stale_writer_is_told_so(world: World) -> None:
    read = (await world.put(TICK, EVERY)).headers["etag"]
    assert (await world.get(TICK))["etag"] == read
    world.clock.advance(1)
    assert (await world.put(TICK, {"run": "date", "every": "30s"}, if_match=read)).status == 200
    before = world.dump()
    for method, path, body in [
        ("PUT", TICK, {"run": "date", "every": "50s"}),
        ("DELETE", TICK, None),
        ("POST", f"{TICK}/pause", {}),
        ("POST", f"{TICK}/resume", {}),
    ]:
        stale = await world.call(method, path, body, headers={"if-match": read})
        assert stale.status == 412, path
    assert world.dump() == before
    fresh = (await world.get(TICK))["etag"]
    assert (await world.call("DELETE", TICK, headers={"if-match": fresh})).status == 204


async def test_a_put_may_insist_that_nothing_is_there(world: World) -> None:
    assert (await world.put(TICK, EVERY, if_none_match="*")).status == 201
    assert (await world.put(TICK, {"run": "date", "every": "9s"}, if_none_match="*")).status == 412
    assert (await world.put("/triggers/default/default/other/default", EVERY, if_match='"1-1"')).status == 412
    assert (await world.put(TICK, EVERY, if_none_match='"1-1"')).status == 400


async def test_deleted_and_put_again_it_is_the_same_trigger(world: World) -> None:
    await world.put(TICK, EVERY)
    assert (await world.call("DELETE", TICK)).status == 204
    gone = await world.call("GET", TICK)
    assert gone.status == 404
    assert "deleted" in gone.json["try"]
    assert (await world.call("DELETE", TICK)).status == 404
    assert (await world.post(f"{TICK}/pause")).status == 404
    assert [item["status"] for item in await world.all("/triggers", 10, status="deleted")] == ["deleted"]
    assert await world.all("/triggers", 10) == []
    again = await world.put(TICK, EVERY)
    assert (again.status, again.json["revision"]) == (201, 3)
    whats = [item["what"] for item in await world.all(f"{TICK}/revisions", 1)]
    assert whats == ["revive", "delete", "create"]


async def test_a_sources_spec_is_edited_in_the_source(world: World) -> None:
    await managed(world)
    path = "/triggers/default/default/etl/default"
    before = world.dump()
    for reply in (
        await world.put(path, EVERY),
        await world.call("DELETE", path),
        await world.put("/triggers/default/default/etl/mine", {"run": "other", "every": "20s"}),
    ):
        assert reply.status == 409
        assert "/etc/horarium/etl.json" in reply.json["detail"]
    assert world.dump() == before


async def test_operators_may_act_on_a_sources_trigger(world: World) -> None:
    await managed(world)
    path = "/triggers/default/default/etl/default"
    paused = await world.post(f"{path}/pause", {"note": "upstream is down"}, x_horarium_user="kim")
    assert (paused.json["status"], paused.json["pause_note"], paused.json["paused_by"]) == (
        "paused",
        "upstream is down",
        "kim",
    )
    assert (await world.post(f"{path}/run")).status == 201
    assert (await world.post(f"{path}/resume")).json["status"] == "active"
    world.clock.advance(7_200)
    await world.plan()
    body = {"from": world.time(-7_200), "to": world.time(0), "dry_run": False}
    assert (await world.post(f"{path}/backfills", body)).status == 201


async def test_a_trigger_without_words_of_a_deployment_runs_the_one_that_is_there(world: World) -> None:
    await managed(world)
    made = await world.put(
        "/triggers/default/default/etl/nightly", {"cron": "0 2 * * *", "parameters": {"full": True}}
    )
    assert made.status == 201
    assert made.json["action"] == {"run": "date"}
    assert made.json["parameters"] == {"full": True}
    assert made.json["managed_by"] is None
    lonely = await world.put("/triggers/default/default/nobody/x", {"cron": "0 2 * * *"})
    assert lonely.status == 422
    assert "no deployment" in lonely.json["detail"]


async def test_a_pause_can_end_by_itself_and_a_resume_can_fill(world: World) -> None:
    await world.put(TICK, EVERY)
    world.clock.advance(5)
    await world.plan()
    paused = await world.post(f"{TICK}/pause", {"until": world.time(3_600)})
    assert paused.json["resume_at"] == world.time(3_600)
    world.clock.advance(60)
    await world.plan()
    assert (await world.post(f"{TICK}/resume", {"backfill": True})).json["status"] == "active"
    await world.plan()
    runs = await world.all("/runs", 100, trigger="tick", to=world.time(0), origin="backfill")
    assert [run["scheduled_time"] for run in runs] == [
        "2026-01-05T10:01:00Z",
        "2026-01-05T10:00:40Z",
        "2026-01-05T10:00:20Z",
    ]
    wrong = await world.post(f"{TICK}/pause", {"until": world.time(-5), "note": ""})
    assert sorted(wrong.pointers) == ["/note", "/until"]


async def test_what_the_spec_switched_off_is_not_resumed(world: World) -> None:
    await world.put(TICK, {**EVERY, "active": False})
    refused = await world.post(f"{TICK}/resume")
    assert refused.status == 409
    assert "active: true" in refused.json["try"]


async def test_lists_are_paged_without_a_gap_or_a_repeat(world: World) -> None:
    for number in range(23):
        path = f"/triggers/p{number % 3}/d/job{number:02d}/default"
        await world.put(path, {"run": "date", "every": "1h", "owner": f"team{number % 2}"})
    whole = [item["key"] for item in await world.all("/triggers", 1000)]
    assert len(whole) == 23
    assert whole == sorted(whole)
    for limit in (1, 2, 5, 22, 23):
        assert [item["key"] for item in await world.all("/triggers", limit)] == whole
    ones = [item["key"] for item in await world.all("/triggers", 4, project="p1", owner="team0")]
    assert ones == [key for key in whole if key.startswith("p1/") and int(key.split("job")[1][:2]) % 2 == 0]
    assert [item["key"] for item in await world.all("/triggers", 3, q="B07")] == ["p1/d/job07/default"]
    assert await world.all("/triggers", 3, q="%") == []
    names = [item["name"] for item in await world.all("/deployments", 2, project="p2")]
    assert names == sorted(names)
    assert len(names) == 7


async def test_a_token_belongs_to_its_list_and_filters(world: World) -> None:
    for number in range(3):
        await world.put(f"/triggers/a/b/job{number}/default", EVERY)
    token = (await world.get("/triggers", limit=1))["next_page_token"]
    for query in (
        {"page_token": token, "project": "a"},
        {"page_token": token[:-2]},
        {"page_token": "AAAA"},
        {"page_token": "W10"},
        {"page_token": "x" * 3_000},
        {"page_token": "ä"},
    ):
        wrong = await world.call("GET", "/triggers", query=query)
        assert wrong.status == 400
        assert wrong.pointers == ["/page_token"]
    assert (await world.call("GET", "/runs", query={"page_token": token})).status == 400
    assert (await world.call("GET", "/triggers", query={"limit": 0})).pointers == ["/limit"]
    assert (await world.call("GET", "/triggers", query={"limit": 1001})).pointers == ["/limit"]


async def test_status_filters(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.put(f"/triggers/default/default/{name}/default", EVERY)
    await world.post("/triggers/default/default/b/default/pause")
    await world.call("DELETE", "/triggers/default/default/c/default")
    for status, names in {"active": ["a"], "paused": ["b"], "deleted": ["c"], "finished": []}.items():
        assert [item["deployment"] for item in await world.all("/triggers", 9, status=status)] == names
    counts = (await world.get("/status"))["counts"]["triggers"]
    assert counts == {"active": 1, "paused": 1, "finished": 0, "deleted": 1, "error": 0, "shadow": 0}
    assert set(counts) >= {status.value for status in Status}


async def test_a_trigger_that_is_not_there_hints_at_its_neighbours(world: World) -> None:
    await world.put("/triggers/default/default/tick/nightly", EVERY)
    missing = await world.call("GET", TICK)
    assert missing.status == 404
    assert "tick/nightly" in missing.json["try"]


async def test_previews_explain_what_a_clock_change_does(world: World) -> None:
    await world.put(TICK, {"run": "date", "cron": "30 2 * * *", "timezone": "Europe/Berlin"})
    spring = await world.get(f"{TICK}/preview", n=2, from_="2026-03-28T12:00:00Z")
    assert [item["utc"] for item in spring["items"]] == ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
    assert "02:30 does not exist on 2026-03-29" in spring["items"][0]["note"]
    rule = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "n": 2, "from": "2026-10-24T12:00:00Z"}
    autumn = (await world.post("/preview", rule)).json
    assert autumn["items"][0]["utc"] == "2026-10-25T00:30:00Z"
    assert autumn["items"][0]["local"] == "2026-10-25T02:30:00+02:00"
    assert "comes twice on 2026-10-25: runs on the first pass only" in autumn["items"][0]["note"]
    skipped = (await world.post("/preview", {**rule, "dst": "literal", "from": "2026-03-28T12:00:00Z"})).json
    assert skipped["items"][0]["utc"] == "2026-03-30T00:30:00Z"
    assert "skipped" in skipped["items"][0]["note"]


async def test_a_preview_compares_policies_and_shows_a_year(world: World) -> None:
    await world.put(TICK, {"run": "date", "cron": "30 2 * * *", "timezone": "Europe/Berlin"})
    rule = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    start = "2026-03-28T12:00:00Z"
    for ask in ({"compare": "vixie,literal", "n": 2}, {"year": 2026}, {"n": 5}):
        of_trigger = await world.get(f"{TICK}/preview", from_=start, **ask)
        assert of_trigger == (await world.post("/preview", {**rule, "from": start, **ask})).json
    compared = await world.get(f"{TICK}/preview", from_=start, n=1, compare="vixie,literal")
    first = {policy: found["items"][0]["utc"] for policy, found in compared["compare"].items()}
    assert first == {"vixie": "2026-03-29T01:00:00Z", "literal": "2026-03-30T00:30:00Z"}
    year = await world.get(f"{TICK}/preview", year=2026)
    assert [item["outcome"] for item in year["items"]] == ["moved", "once"]
    for wrong, pointer in (({"compare": "vixie"}, "/compare"), ({"year": 0}, "/year")):
        reply = await world.call("GET", f"{TICK}/preview", query=wrong)
        assert (reply.status, reply.json["problems"][0]["pointer"]) == (400, pointer)
        reply = await world.post("/preview", {**rule, **wrong})
        assert (reply.status, reply.json["problems"][0]["pointer"]) == (422, pointer)


async def test_a_preview_says_what_a_calendar_did(world: World) -> None:
    rule = {
        "cron": "0 9 * * *",
        "exclude": ["close"],
        "on_excluded": "next_business_day",
        "calendars": {"close": {"dates": ["2026-12-24"]}},
        "from": "2026-12-24",
    }
    moved = (await world.post("/preview", {**rule, "cron": "0 9 24 12 *"})).json["items"][0]
    assert moved["utc"] == "2026-12-25T09:00:00Z"
    assert moved["note"] == "moved from 2026-12-24 (close)"
    left_out = (await world.post("/preview", {**rule, "on_excluded": "skip"})).json["items"][0]
    assert left_out["note"] == "2026-12-24 09:00 left out: close"
