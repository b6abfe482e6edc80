"""`apply` over REST: what it says it would do is what it does, all of it or nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.surfaces.api_world import TICK, World, triggers_file

ETL = "/etc/horarium/etl.json"
DAILY = {"run": "date", "cron": "0 3 * * *"}


def body(text: str, path: str = ETL, **more: Any) -> dict[str, Any]:
    return {"files": [{"path": path, "text": text}], **more}


async def apply(world: World, text: str, path: str = ETL, **more: Any) -> Any:
    reply = await world.post("/apply", body(text, path, **more))
    assert reply.status == 200, reply.body
    return reply.json


async def planned(world: World, trigger: str) -> set[str]:
    """The slots of a trigger that have a run ahead."""
    runs = await world.all("/runs", 1000, trigger=trigger, state="scheduled")
    return {run["scheduled_time"] for run in runs}


async def test_a_dry_run_says_what_the_write_then_does(world: World) -> None:
    first = triggers_file(a=DAILY, b=DAILY, c={"run": "date", "every": "20s"})
    await apply(world, first)
    await world.plan()
    before = {name: await planned(world, name) for name in "abc"}
    second = triggers_file(
        b={"run": "date", "cron": "0 3,4 * * *", "catch_up": "latest"},
        c={"run": "date -u", "every": "20s"},
        d={"run": "date", "cron": "15 * * * *"},
    )
    dump = world.dump()
    dry = await apply(world, second, dry_run=True)
    assert world.dump() == dump
    assert (dry["written"], dry["changed"]) == (False, True)
    wet = await apply(world, second)
    assert {**wet, "written": False} == dry
    assert wet["written"]
    await world.plan()
    (source,) = wet["sources"]
    edited = {item["key"].split("/")[2]: item for item in source["edited"]}
    assert edited["b"]["changes"] == [
        {"field": "cron", "old": "0 3 * * *", "new": "0 3,4 * * *"},
        {"field": "catch_up", "old": "all", "new": "latest"},
    ]
    assert edited["c"]["changes"] == [{"field": "run", "old": "date", "new": "date -u"}]
    for name in "bc":
        after = await planned(world, name)
        assert set(edited[name]["runs_added"]) == after - before[name]
        assert set(edited[name]["runs_withdrawn"]) == before[name] - after
        assert edited[name]["runs_kept"] == len(after & before[name])
    (added,) = source["added"]
    assert set(added["runs_added"]) == await planned(world, "d")
    (withdrawn,) = source["withdrawn"]
    assert withdrawn["key"] == "default/default/a/default"
    assert set(withdrawn["runs_withdrawn"]) == before["a"]
    assert await planned(world, "a") == set()


async def test_the_same_file_again_changes_nothing(world: World) -> None:
    text = triggers_file(a=DAILY)
    await apply(world, text)
    await world.plan()
    again = await apply(world, text)
    assert (again["written"], again["changed"], again["sources"][0]["unchanged"]) == (False, False, 1)


async def test_a_large_withdrawal_waits_for_a_word(world: World) -> None:
    await apply(world, triggers_file(**{f"job{number}": DAILY for number in range(20)}))
    shorter = triggers_file(**{f"job{number}": DAILY for number in range(5)})
    refused = await apply(world, shorter)
    assert (refused["written"], refused["refused"]) == (False, True)
    assert "15 of the 20" in refused["sources"][0]["refused"]
    assert len(refused["sources"][0]["withdrawn"]) == 15
    assert len(await world.all("/triggers", 100)) == 20
    allowed = await apply(world, shorter, allow_withdraw=True)
    assert (allowed["written"], allowed["refused"]) == (True, False)
    assert len(await world.all("/triggers", 100)) == 5


async def test_one_wrong_file_stops_them_all(world: World) -> None:
    good = {"path": "/f/good.json", "text": triggers_file(good=DAILY)}
    bad = {"path": "/f/bad.json", "text": triggers_file(bad={"run": "date", "cron": "61 * * * *"})}
    before = world.dump()
    reply = await world.post("/apply", {"files": [good, bad]})
    assert reply.status == 422
    assert reply.pointers == ["/deployments/bad/cron"]
    assert reply.json["problems"][0]["line"] == 1
    assert "/f/bad.json" in reply.json["problems"][0]["rule"]
    assert world.dump() == before
    checked = await world.post("/validate", {"files": [good, bad]})
    assert (checked.json["ok"], len(checked.json["problems"])) == (False, 1)
    assert (await world.post("/validate", {"files": [good]})).json == {"ok": True, "problems": [], "lint": []}


async def test_what_others_manage_is_not_taken(world: World) -> None:
    await world.put(TICK, {"run": "date", "every": "20s"})
    before = world.dump()
    taken = await world.post("/apply", body(triggers_file(tick={"run": "date", "every": "10s"})))
    assert taken.status == 409
    assert "people through the API" in taken.json["detail"]
    reserved = await world.post("/apply", body(json.dumps({"source": "api", "deployments": {"x": DAILY}})))
    assert reserved.status == 409
    assert "reserved" in reserved.json["detail"]
    assert world.dump() == before


def with_target(url: str | None, **deployments: Mapping[str, Any]) -> str:
    targets = {} if url is None else {"crm": {"http": {"url": url}}}
    return json.dumps({"targets": targets, "deployments": deployments})


async def test_files_share_targets_whatever_their_order(world: World) -> None:
    user = {"path": "/f/a.json", "text": with_target(None, sync={"target": "crm", "cron": "0 3 * * *"})}
    owner = {"path": "/f/b.json", "text": with_target("http://127.0.0.1:9/hook")}
    alone = await world.post("/apply", {"files": [user]})
    assert alone.status == 422
    assert alone.pointers == ["/deployments/sync/target"]
    both = await world.post("/apply", {"files": [user, owner]})
    assert both.status == 200
    await world.plan()
    assert {run["target"] for run in await world.all("/runs", 100)} == {"crm"}
    before = world.dump()
    in_use = await world.post("/apply", {"files": [{**owner, "text": with_target(None)}]})
    assert in_use.status == 409
    assert "default/default/sync" in in_use.json["detail"]
    assert world.dump() == before
    again = await world.post("/apply", {"files": [user]})
    assert (again.status, again.json["changed"]) == (200, False)


async def test_a_file_that_drops_its_target_must_drop_its_use(world: World) -> None:
    use = {"target": "crm", "cron": "0 3 * * *"}
    await apply(world, with_target("http://127.0.0.1:9/hook", sync=use))
    before = world.dump()
    dropped = await world.post("/apply", body(with_target(None, sync=use)))
    assert dropped.status == 422
    assert dropped.pointers == ["/deployments/sync/target"]
    assert world.dump() == before


async def test_a_file_is_given_once(world: World) -> None:
    file = {"path": ETL, "text": triggers_file(a=DAILY)}
    before = world.dump()
    twice = await world.post("/apply", {"files": [file, {**file, "text": triggers_file(b=DAILY)}]})
    assert twice.pointers == ["/files/1/path"]
    assert (await world.post("/apply", {"files": []})).pointers == ["/files"]
    assert world.dump() == before


async def test_prune_withdraws_what_left_the_folder(world: World) -> None:
    files = [
        {"path": f"/repo/{name}.json", "text": triggers_file(**{name: DAILY})}
        for name in ("a", "b", "deep/c")
    ]
    files[2] = {
        "path": "/repo/deep/c.json",
        "text": json.dumps({"source": "git/c", "deployments": {"c": DAILY}}),
    }
    elsewhere = {"path": "/repository/d.json", "text": triggers_file(d=DAILY)}
    files[0]["text"] = triggers_file(a=DAILY)
    files[1]["text"] = triggers_file(b=DAILY)
    await world.post("/apply", {"files": [*files, elsewhere]})
    left = {"files": files[:1], "prune": True}
    assert (await world.post("/apply", left)).pointers == ["/folder"]
    pruned = (await world.post("/apply", {**left, "folder": "/repo"})).json
    gone = {item["key"].split("/")[2] for source in pruned["sources"] for item in source["withdrawn"]}
    assert gone == {"b", "c"}
    assert {item["deployment"] for item in await world.all("/triggers", 10)} == {"a", "d"}
    again = (await world.post("/apply", {**left, "folder": "/repo/"})).json
    assert again["changed"] is False


async def test_a_rename_keeps_the_trigger(world: World) -> None:
    await apply(world, triggers_file(old=DAILY))
    await world.plan()
    before = await planned(world, "old")
    renamed = await apply(world, triggers_file(new={**DAILY, "renamed_from": "old"}))
    (edited,) = renamed["sources"][0]["edited"]
    assert (edited["key"], edited["renamed_from"]) == (
        "default/default/new/default",
        "default/default/old/default",
    )
    assert edited["runs_withdrawn"] == edited["runs_added"] == []
    assert await planned(world, "new") == before


async def test_a_listing_that_was_overtaken_is_refused(world: World) -> None:
    await apply(world, triggers_file(a=DAILY))
    real = world.store.source_version

    async def behind(source: str) -> int:
        return await real(source) - 1

    world.store.source_version = behind  # type: ignore[method-assign] # as if read before the other's write
    before = world.dump()
    late = await world.post("/apply", body(triggers_file(b=DAILY)))
    assert late.status == 409
    assert "anew" in late.json["detail"]
    assert world.dump() == before


async def test_apply_and_validate_lint_what_is_new_and_not_answered(world: World) -> None:
    text = """
deployments:
  tick: {run: date, every: 20s}
  tock: {run: date, every: 30s, lint: {ignore: [sub_minute]}}
"""
    files = [{"path": "/srv/triggers.yaml", "text": text}]
    for path, more in (("/validate", {}), ("/apply", {"dry_run": True}), ("/apply", {})):
        (finding,) = (await world.post(path, {"files": files, **more})).json["lint"]
        assert (finding["code"], finding["trigger"]) == ("sub_minute", "default/default/tick/default")
        assert (finding["file"], finding["line"]) == ("/srv/triggers.yaml", 3)
    assert (await world.post("/apply", {"files": files})).json["lint"] == []
    files[0]["text"] = text.replace("30s", "40s")
    assert (await world.post("/apply", {"files": files})).json["lint"] == []
    words = {"run": "date", "every": "20s", "lint": {"ignore": ["sub_minute"]}}
    refused = await world.put("/triggers/default/default/mine/default", words)
    assert (refused.status, refused.pointers) == (422, ["/lint"])
