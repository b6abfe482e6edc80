"""Runs, skips, backfills and slots over REST: what was, what is owed, what will be, and why."""

from __future__ import annotations

from datetime import timedelta

import pytest

from horarium.app import reads
from horarium.core.run import RunState
from horarium.targets.base import LocalRun
from tests.surfaces.api_world import TICK, World

MINUTELY = {"run": "date", "cron": "* * * * *"}


async def why(world: World, time: str) -> tuple[str, str]:
    found = await world.get(f"{TICK}/why", time=time)
    return found["verdict"], found["reason"]


async def test_a_manual_run_is_made_once_for_a_request_key(world: World) -> None:
    await world.put(TICK, MINUTELY)
    body = {"request_key": "deploy-42", "parameters": {"mode": "full"}}
    first = await world.post(f"{TICK}/run", body)
    again = await world.post(f"{TICK}/run", body)
    assert (first.status, again.status) == (201, 200)
    assert first.json["name"] == again.json["name"]
    assert first.json["name"].startswith("m")
    assert (await world.call("GET", first.headers["location"])).json["parameters"] == {"mode": "full"}
    assert len(await world.all("/runs", 10, origin="manual")) == 1
    other = await world.post(f"{TICK}/run", {**body, "parameters": {}})
    assert other.status == 409
    by_name = await world.get("/runs", q=first.json["name"])
    assert [run["name"] for run in by_name["items"]] == [first.json["name"]]


async def test_a_failed_run_can_be_retried_and_no_other(world: World) -> None:
    await world.put(TICK, MINUTELY)
    await world.plan()
    world.clock.advance(61)
    await world.fire(RunState.FAILED, "status 404 from the receiver")
    (run,) = await world.all("/runs", 10, state="failed")
    path = f"/runs/default/default/{run['name']}"
    assert (await world.get(path))["attempts"][0]["reason"] == "status 404 from the receiver"
    assert (await why(world, "2026-01-05T10:01:00Z"))[0] == "failed"
    retried = await world.post(f"{path}/retry")
    assert (retried.status, retried.json["state"]) == (200, "scheduled")
    assert (await world.post(f"{path}/retry")).status == 409
    assert await world.fire() == 1
    assert (await world.get(path))["state"] == "fired"
    assert (await world.post(f"{path}/cancel")).status == 409


async def test_a_cancelled_slot_becomes_a_skip(world: World) -> None:
    await world.put(TICK, MINUTELY)
    await world.plan()
    run = (await world.all("/runs", 100, to="2026-01-05T10:02:01Z"))[0]
    gone = await world.post(f"/runs/default/default/{run['name']}/cancel", {}, x_horarium_user="kim")
    assert gone.json == {"outcome": "skipped", "run": None}
    assert (await world.call("GET", f"/runs/default/default/{run['name']}")).status == 404
    (skip,) = await world.all("/skips", 10, trigger="tick")
    assert (skip["first"], skip["count"], skip["reason"]) == ("2026-01-05T10:02:00Z", 1, "cancelled")
    verdict, reason = await why(world, "2026-01-05T10:02:00Z")
    assert verdict == "skipped"
    assert "kim" in reason
    manual = (await world.post(f"{TICK}/run")).json["name"]
    ended = (await world.post(f"/runs/default/default/{manual}/cancel")).json
    assert (ended["outcome"], ended["run"]["state"]) == ("cancelled", "cancelled")


async def test_a_run_that_is_being_fired_is_not_cancelled(world: World) -> None:
    await world.put(TICK, MINUTELY)
    await world.plan()
    world.clock.advance(61)
    (claimed,) = await world.claim()
    before = world.dump()
    refused = await world.post(f"/runs/default/default/{claimed.run.name}/cancel")
    assert refused.status == 409
    assert "being fired" in refused.json["detail"]
    assert world.dump() == before
    await world.settle([claimed])


async def test_why_has_one_verdict_for_any_instant(world: World) -> None:
    await world.put(TICK, MINUTELY)
    await world.plan()
    assert (await why(world, "2026-01-05T10:01:00Z"))[0] == "planned"
    assert (await why(world, "2026-02-05T10:01:00Z"))[0] == "planned"
    assert (await why(world, "2026-01-05T10:01:30Z"))[0] == "never"
    assert "only since" in (await why(world, "2026-01-04T10:00:00Z"))[1]
    world.clock.advance(70)
    assert (await why(world, "2026-01-05T10:01:00Z"))[0] == "owed"
    world.clock.advance(55)
    assert (await why(world, "2026-01-05T10:01:00Z"))[0] == "late"
    await world.fire()
    assert (await why(world, "2026-01-05T10:01:00Z"))[0] == "late"
    assert (await why(world, "2026-01-05T10:02:00Z"))[0] == "fired"
    await world.post(f"{TICK}/pause", {"note": "upstream down"})
    assert (await why(world, "2026-01-05T10:04:00Z"))[0] == "skipped"
    world.clock.advance(120)
    await world.plan()
    verdict, reason = await why(world, "2026-01-05T10:04:00Z")
    assert (verdict, "paused" in reason) == ("skipped", True)
    await world.post(f"{TICK}/resume")
    await world.put(TICK, {"run": "date", "cron": "*/10 * * * *"})
    world.clock.advance(1)
    verdict, reason = await why(world, "2026-01-05T10:05:00Z")
    assert verdict == "never"
    assert "does not name it" in reason
    whole = await world.get(f"{TICK}/why", time="2026-01-05T10:05:00Z")
    assert whole["nearest"] == {"before": "2026-01-05T10:00:00Z", "after": "2026-01-05T10:10:00Z"}
    await world.call("DELETE", TICK)
    assert (await why(world, "2026-01-05T10:10:00Z"))[0] == "never"
    assert (await why(world, "2026-01-05T10:02:00Z"))[0] == "fired"


async def test_a_planner_that_is_behind_owes_the_slot(world: World) -> None:
    await world.put(TICK, {"run": "date", "cron": "0 * * * *"})
    world.clock.advance(7_200)
    verdict, reason = await why(world, "2026-01-05T11:00:00Z")
    assert verdict == "owed"
    assert "planner" in reason


async def test_held_runs_say_who_paused(world: World) -> None:
    await world.put(TICK, MINUTELY)
    await world.plan()
    world.clock.advance(61)
    await world.post(f"{TICK}/pause", {"note": "maintenance"}, x_horarium_user="kim")
    verdict, reason = await why(world, "2026-01-05T10:01:00Z")
    assert verdict == "held"
    assert "kim (maintenance)" in reason
    assert [run["state"] for run in await world.all("/runs", 10, state="held")] == ["held"]


async def test_late_is_a_filter_and_a_trigger_has_its_own_measure(world: World) -> None:
    await world.put(TICK, MINUTELY)
    await world.put("/triggers/default/default/calm/default", {**MINUTELY, "late_after": "10m"})
    await world.plan()
    world.clock.advance(150)
    late = await world.all("/runs", 10, late="true")
    assert [(run["trigger"].split("/")[2], run["scheduled_time"]) for run in late] == [
        ("tick", "2026-01-05T10:01:00Z")
    ]
    assert late[0]["lateness_seconds"] == 90
    counts = (await world.get("/status"))["counts"]["runs"]
    assert (counts["late"], counts["backlog"]) == (2, 2)
    on_time = await world.all("/runs", 3, late="false")
    assert len(on_time) == len(await world.all("/runs", 1000)) - 1


async def test_pages_of_runs_hold_each_run_once_whatever_the_filter(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await world.put(f"/triggers/p-{name}/d/{name}/default", MINUTELY)
    await world.plan()
    world.clock.advance(200)
    await world.fire()
    for number in range(4):
        await world.post("/triggers/p-b/d/b/default/run", {"request_key": f"k{number}"})
    whole = await world.all("/runs", 1000)
    keys = [(run["scheduled_time"], run["name"]) for run in whole]
    assert [time for time, _ in keys] == sorted((time for time, _ in keys), reverse=True)
    assert len(set(keys)) == len(keys) > 20
    # Small, so that pages end in the middle of a walk.
    monkeypatch.setattr(reads, "WALK", 7)
    for query in (
        {},
        {"state": "fired"},
        {"state": "scheduled"},
        {"project": "p-c"},
        {"deployment": "b"},
        {"origin": "manual"},
        {"trigger": "p-b/d/b/default"},
        {"trigger": "p-b/d/b/default", "origin": "manual"},
        {"trigger": "p-b/d/b/default", "state": "fired", "from": "2026-01-05T10:02:00Z"},
        {"target": "local", "to": "2026-01-05T10:03:00Z"},
        {"q": "P-A/"},
        {"late": "true"},
    ):
        wanted = [run["name"] for run in whole if matches(run, query)]
        assert wanted, query
        for limit in (1, 3, 1000):
            found = await world.all("/runs", limit, **query)
            assert [run["name"] for run in found] == wanted, (query, limit)


def matches(run: dict[str, object], query: dict[str, str]) -> bool:
    """What a filter means, said once more and simply."""
    project, domain, deployment, _ = str(run["trigger"]).split("/")
    told = {
        "state": run["state"],
        "project": project,
        "deployment": deployment,
        "origin": run["origin"],
        "trigger": run["trigger"],
        "target": run["target"],
        "late": str(run["late"]).lower(),
    }
    time = str(run["scheduled_time"])
    return (
        all(told[name] == value for name, value in query.items() if name in told)
        and query.get("from", "") <= time
        and time < query.get("to", "9")
        and query.get("q", "").lower() in f"{project}/{domain}/{deployment}"
    )


async def test_slots_are_one_list_of_runs_skips_and_what_will_be(world: World) -> None:
    await world.put(TICK, MINUTELY)
    await world.put("/triggers/default/default/hourly/default", {"run": "date", "cron": "0 * * * *"})
    await world.plan()
    world.clock.advance(61)
    await world.fire()
    await world.post(f"{TICK}/pause")
    world.clock.advance(300)
    await world.post(f"{TICK}/resume")
    await world.plan()
    span = {"from_": "2026-01-05T10:00:00Z", "to": "2026-01-05T12:30:00Z"}
    whole = await world.all("/slots", 1000, **span)
    assert [item["time"] for item in whole] == sorted(item["time"] for item in whole)
    kinds = [item["kind"] for item in whole if item["trigger"].split("/")[2] == "tick"]
    assert (kinds[0], kinds[1]) == ("run", "skip")
    assert kinds.count("skip") == 1
    assert kinds[-1] == "projected"
    times = [item["time"] for item in whole if item["trigger"].endswith("tick/default")]
    covered = {item["time"] for item in whole if item["kind"] != "skip"}
    assert len(times) == len(set(times))
    assert {f"2026-01-05T12:{minute:02d}:00Z" for minute in range(30)} <= covered
    for limit in (1, 4, 50):
        assert await world.all("/slots", limit, **span) == whole
    ones = await world.all("/slots", 7, **span, trigger="hourly")
    assert [item["time"] for item in ones] == ["2026-01-05T11:00:00Z", "2026-01-05T12:00:00Z"]
    inside = await world.all("/slots", 7, from_="2026-01-05T10:03:00Z", to="2026-01-05T10:04:00Z")
    assert [(item["kind"], item["time"]) for item in inside] == [("skip", "2026-01-05T10:03:00Z")]
    assert (await world.call("GET", "/slots", query={"from": span["to"], "to": span["from_"]})).pointers == [
        "/to"
    ]


async def test_a_backfill_says_what_it_will_fill_and_fills_that(world: World) -> None:
    await world.put(TICK, {**MINUTELY, "catch_up": "none"})
    world.clock.advance(600)
    await world.plan()
    await world.fire()
    since, until = "2026-01-05T10:01:00Z", "2026-01-05T10:05:00Z"
    body = {"from": since, "to": until}
    dry = await world.post(f"{TICK}/backfills", {**body, "dry_run": True})
    assert (dry.status, dry.json["count"], dry.json["id"]) == (200, 5, None)
    made = await world.post(f"{TICK}/backfills", body)
    assert (made.status, made.json["slots"]) == (201, dry.json["slots"])
    await world.plan()
    runs = await world.all("/runs", 2, origin="backfill")
    assert sorted(run["scheduled_time"] for run in runs) == dry.json["slots"]
    found = await world.get(f"/backfills/{made.json['id']}")
    assert (found["state"], found["runs"]) == ("done", 5)
    assert (await world.post(f"/backfills/{made.json['id']}/cancel")).status == 409
    assert (await world.post(f"{TICK}/backfills", {**body, "dry_run": True})).json["count"] == 0
    assert [item["id"] for item in await world.all("/backfills", 1, trigger="tick")] == [made.json["id"]]
    ahead = await world.post(f"{TICK}/backfills", {"from": world.time(60), "to": world.time(30)})
    assert ahead.status == 422
    assert ahead.pointers == ["/to", "/to"]


async def test_an_open_backfill_can_be_stopped(world: World) -> None:
    await world.put(TICK, {**MINUTELY, "catch_up": "none"})
    world.clock.advance(600)
    made = await world.post(f"{TICK}/backfills", {"from": world.time(-300), "to": world.time(0)})
    stopped = await world.post(f"/backfills/{made.json['id']}/cancel")
    assert stopped.json["state"] == "ended"
    await world.plan()
    assert await world.all("/runs", 10, origin="backfill") == []


async def test_logs_are_read_on_from_where_one_stopped(world: World) -> None:
    await world.put(TICK, MINUTELY)
    name = (await world.post(f"{TICK}/run")).json["name"]
    path, row = f"/runs/default/default/{name}/logs", f"default/default/{name}"
    assert (await world.get(path))["state"] is None
    await world.store.local_begin(row, "me", world.now())
    await world.store.local_running(row, 4_711)
    text = "grün\n".encode()
    await world.store.local_output(row, text[:3], 3)
    cut = await world.get(path)
    assert (cut["output"], cut["offset"]) == ("gr", 2)
    await world.store.local_end(
        LocalRun(
            row,
            "succeeded",
            world.now(),
            world.now() + timedelta(seconds=1),
            exit_code=0,
            output=text,
            output_total=len(text),
        )
    )
    rest = await world.get(path, offset=cut["offset"])
    assert (rest["output"], rest["state"], rest["exit_code"]) == ("ün\n", "succeeded", 0)
    assert (await world.get(path, offset=rest["offset"]))["output"] == ""
    assert (await world.get(path, offset=2**60))["output"] == ""


async def test_what_is_owed_at_start_is_said_in_a_line_each(world: World) -> None:
    await world.put(TICK, {"run": "date", "every": "20s"})
    await world.put("/triggers/a/b/none/default", {"run": "date", "every": "20s", "catch_up": "none"})
    await world.put("/triggers/a/b/last/default", {"run": "date", "every": "1h", "catch_up": "latest"})
    await world.plan()
    assert list(await world.queries.owed_report(world.now())) == []
    world.clock.advance(310)
    lines = list(await world.queries.owed_report(world.now()))
    assert lines == [
        "down 5m10s: a/b/none/default owes 15 slots; catch_up=none, firing 3, skipping 12",
        "down 5m10s: tick owes 15 slots; catch_up=all, firing 15",
    ]
    world.clock.advance(3 * 3_600)
    (first, *_) = [line for line in await world.queries.owed_report(world.now()) if "last" in line]
    assert first.endswith("a/b/last/default owes 3 slots; catch_up=latest, firing 1, skipping 2")


async def test_many_that_owe_are_a_sum(world: World) -> None:
    for number in range(25):
        await world.put(f"/triggers/a/b/job{number:02d}/default", {"run": "date", "every": "20s"})
    await world.plan()
    world.clock.advance(60)
    lines = list(await world.queries.owed_report(world.now()))
    assert len(lines) == 21
    assert lines[-1] == "down 1m: 5 more triggers owe 15 slots"


async def test_what_was_fired_in_the_last_day_is_counted_by_when_it_was_fired(world: World) -> None:
    await world.put(TICK, {"run": "date", "every": "1h"})
    await world.plan()
    await world.post(TICK + "/backfills", {"from": world.time(-72 * 3_600), "to": world.time(-70 * 3_600)})
    await world.plan()
    assert await world.fire() == 3
    assert (await world.get("/status"))["counts"]["runs"]["fired_24h"] == 3
    world.clock.advance(25 * 3_600)
    assert (await world.get("/status"))["counts"]["runs"]["fired_24h"] == 0


async def test_status_shows_the_whole(world: World) -> None:
    await world.put(TICK, MINUTELY)
    await world.plan()
    world.clock.advance(61)
    await world.fire()
    found = await world.get("/status")
    assert found["counts"]["runs"]["fired_24h"] == 1
    assert found["next_due_at"] == "2026-01-05T10:02:00Z"
    assert [item["name"] for item in found["targets"]] == ["local"]
    assert found["loops"] == []
    assert (await world.get("/targets/local"))["due"] == 0
    assert (await world.call("GET", "/targets/nowhere")).status == 404
    assert [item["name"] for item in await world.all("/targets", 1)] == ["local"]
    assert (await world.get("/deployments/default/default/tick"))["triggers"] == [
        "default/default/tick/default"
    ]


async def test_a_backfill_is_never_late(world: World) -> None:
    await world.put(TICK, MINUTELY)
    slot = world.time(-3_600)
    assert (await world.post(f"{TICK}/backfills", {"from": slot, "to": slot})).status == 201
    await world.plan()
    (run,) = (await world.get("/runs", origin="backfill"))["items"]
    assert (run["late"], run["lateness_seconds"]) == (False, None)
    assert (await why(world, slot)) == ("owed", f"run {run['name']} waits to be fired; it is a backfill's")
    assert (await world.get("/status"))["counts"]["runs"]["late"] == 0
    await world.fire()
    assert (await world.get("/runs", late=True))["items"] == []
    assert [item["name"] for item in (await world.get("/runs", late=False, origin="backfill"))["items"]]
