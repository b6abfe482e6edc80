"""Shadow over REST and from the command line: into it, out of it, and what the report says."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.api_world import TICK, World, open_world, triggers_file
from tests.surfaces.cli import horarium

MINUTELY = {"run": "date", "cron": "* * * * *"}
SHADOWED = {**MINUTELY, "shadow": True}
TOCK = TICK.replace("tick", "tock")
KEY = "default/default/tick/default"


async def pass_minutes(world: World, number: int) -> None:
    """The service works for so long: every slot is decided at its time."""
    await world.plan()
    for _ in range(number):
        world.clock.advance(60)
        await world.fire()
        await world.plan()


async def report(world: World, text: str | None = None, **asked: Any) -> Any:
    body = {"from": "2026-01-05T10:00:00Z", "to": world.time(), **asked}
    reply = await world.post("/shadow/report", body if text is None else {**body, "incumbent": text})
    assert reply.status == 200, reply.body
    return reply.json


def told(*minutes: int, trigger: str = "tick", column: str = "time", second: int = 0) -> str:
    lines = [f"{trigger},2026-01-05T10:{minute:02d}:{second:02d}Z" for minute in minutes]
    return "\n".join([f"trigger,{column}", *lines, ""])


async def test_a_trigger_goes_into_shadow_and_is_cut_over(world: World) -> None:
    await world.put(TICK, MINUTELY)
    on = await world.post(f"{TICK}/shadow/on", x_horarium_user="kim")
    assert (on.status, on.json["shadow"], on.json["revision"]) == (200, True, 2)
    again = await world.post(f"{TICK}/shadow/on")
    assert (again.status, again.json["revision"]) == (200, 2)
    await pass_minutes(world, 2)
    off = await world.post(f"{TICK}/shadow/off")
    assert (off.json["shadow"], off.json["revision"]) == (False, 3)
    await pass_minutes(world, 1)
    states = {run["scheduled_time"][14:16]: run["state"] for run in (await world.get("/runs"))["items"]}
    assert [states[minute] for minute in ("01", "02", "03")] == ["shadowed", "shadowed", "fired"]
    revisions = (await world.get(f"{TICK}/revisions"))["items"]
    assert [(item["what"], item["shadow"], item["who"]) for item in revisions] == [
        ("shadow-off", False, "api"),
        ("shadow-on", True, "kim"),
        ("create", False, "api"),
    ]


async def test_a_shadowed_run_is_never_said_to_be_fired(world: World) -> None:
    await world.put(TICK, SHADOWED)
    await pass_minutes(world, 1)
    (run,) = (await world.get("/runs", state="shadowed"))["items"]
    assert (run["fired_at"], run["state"], run["late"]) == (None, "shadowed", False)
    assert (await world.get("/runs", state="fired"))["items"] == []
    counts = (await world.get("/status"))["counts"]
    assert (counts["runs"]["fired_24h"], counts["runs"]["shadowed_24h"], counts["triggers"]["shadow"]) == (
        0,
        1,
        1,
    )
    why = await world.get(f"{TICK}/why", time="2026-01-05T10:01:00Z")
    assert why["verdict"] == "shadowed"
    assert "nobody was called" in why["reason"]


async def test_a_shadowed_run_is_not_retried(world: World) -> None:
    await world.put(TICK, SHADOWED)
    await pass_minutes(world, 1)
    (run,) = (await world.get("/runs", state="shadowed"))["items"]
    path = f"/runs/default/default/{run['name']}"
    assert (await world.post(f"{path}/retry")).status == 409
    assert (await world.post(f"{path}/cancel")).status == 409


async def test_lists_know_what_is_in_shadow(world: World) -> None:
    await world.put(TICK, SHADOWED)
    await world.put(TOCK, MINUTELY)
    assert [item["key"] for item in (await world.get("/triggers", shadow="true"))["items"]] == [KEY]
    assert [item["deployment"] for item in (await world.get("/triggers", shadow="false"))["items"]] == [
        "tock"
    ]
    assert (await world.get(TICK))["shadow"] is True


async def test_the_word_counts_for_new_triggers_only(world: World) -> None:
    await world.put(TICK, SHADOWED)
    await world.post(f"{TICK}/shadow/off")
    await world.put(TICK, {**SHADOWED, "cron": "*/2 * * * *"})
    assert (await world.get(TICK))["shadow"] is False


async def test_a_source_or_everything_goes_at_once(world: World) -> None:
    await world.put(TICK, MINUTELY)
    await world.post("/apply", {"files": [{"path": "a.json", "text": triggers_file(a=MINUTELY, b=SHADOWED)}]})
    done = await world.post("/shadow/on", {"source": "a.json"})
    assert [item["trigger"] for item in done.json["items"]] == ["default/default/a/default"]
    done = await world.post("/shadow/off", {"scope": "all"})
    assert [item["trigger"].split("/")[2] for item in done.json["items"]] == ["a", "b"]
    done = await world.post("/shadow/on", {"source": "api"})
    assert [item["trigger"] for item in done.json["items"]] == [KEY]
    assert (await world.post("/shadow/on", {"source": "api"})).json["items"] == []


@pytest.mark.parametrize(
    ("path", "body", "status", "pointer"),
    [
        ("/shadow/on", {}, 422, "/scope"),
        ("/shadow/off", {"scope": "all", "source": "a"}, 422, "/scope"),
        ("/shadow/on", {"source": "nowhere"}, 404, None),
        (f"{TOCK}/shadow/on", {}, 404, None),
        (f"{TICK}/shadow/on", {"at": "now"}, 422, "/at"),
        ("/shadow/report", {"to": "2027-01-01T00:00:00Z"}, 422, "/to"),
        ("/shadow/report", {"from": "2026-01-05T10:01:00Z"}, 422, "/from"),
        ("/shadow/report", {"tolerance": "7h"}, 422, "/tolerance"),
        ("/shadow/report", {"tolerance": "soon"}, 422, "/tolerance"),
        ("/shadow/report", {"triggers": ["tick"], "source": "a"}, 422, "/source"),
        ("/shadow/report", {"triggers": ["tock"]}, 404, None),
        ("/shadow/report", {"triggers": ["a/b/c"]}, 422, "/trigger"),
        ("/shadow/report", {"incumbent": "x"}, 422, "/incumbent"),
        ("/shadow/report", {"to": "2026-01-05T10:01:00Z"}, 422, "/incumbent"),
        ("/shadow/report", {"to": "2026-01-05T10:00:00Z", "incumbent": "trigger,time"}, 409, None),
    ],
)
async def test_what_is_wrong_is_named(
    world: World, path: str, body: dict[str, Any], status: int, pointer: str | None
) -> None:
    await world.put(TICK, SHADOWED)
    world.clock.advance(120)
    before = world.dump()
    reply = await world.post(path, body)
    assert reply.status == status, reply.body
    if pointer is not None:
        assert reply.pointers == [pointer]
    assert world.dump() == before


async def test_a_backfill_is_refused_where_slots_were_another_schedulers(world: World) -> None:
    await world.put(TICK, SHADOWED)
    await pass_minutes(world, 3)
    body = {"from": "2026-01-05T10:01:00Z", "to": "2026-01-05T10:02:00Z"}
    assert (await world.post(f"{TICK}/backfills", body)).status == 409
    await world.post(f"{TICK}/shadow/off")
    await pass_minutes(world, 2)
    refused = await world.post(f"{TICK}/backfills", body)
    assert refused.status == 409
    assert "was in shadow in that range, up to 2026-01-05T10:02:00Z" in refused.json["detail"]
    after = {"from": "2026-01-05T10:03:01Z", "to": "2026-01-05T10:05:00Z"}
    assert (await world.post(f"{TICK}/backfills", after)).status == 201
    before = {"from": "2026-01-05T09:00:00Z", "to": "2026-01-05T10:00:00Z"}
    assert (await world.post(f"{TICK}/backfills", before)).status == 201


async def test_a_resume_fills_no_slots_of_another_scheduler(world: World) -> None:
    await world.put(TICK, SHADOWED)
    await world.post(f"{TICK}/pause", {})
    await pass_minutes(world, 2)
    before = world.dump()
    refused = await world.post(f"{TICK}/resume", {"backfill": True})
    assert refused.status == 409
    assert "is in shadow" in refused.json["detail"]
    assert world.dump() == before
    await world.post(f"{TICK}/shadow/off")
    await pass_minutes(world, 2)
    refused = await world.post(f"{TICK}/resume", {"backfill": True})
    assert refused.status == 409
    assert "was in shadow in that range" in refused.json["detail"]
    assert (await world.post(f"{TICK}/resume", {})).status == 200


# the report


async def test_the_same_slots_are_equal_and_say_how_much_later_ours_were(world: World) -> None:
    await world.put(TICK, SHADOWED)
    await pass_minutes(world, 3)
    found = await report(world, told(1, 2, 3, column="created_at", second=2))
    assert found["equal"]
    assert found["counts"] == {"triggers": 1, "both": 3, "only_ours": 0, "only_theirs": 0, "pending": 0}
    assert found["lateness"] == {"slots": 3, "median_seconds": -2, "least_seconds": -2, "most_seconds": -2}
    (item,) = found["triggers"]
    assert (item["trigger"], item["in_shadow"], item["slots"]) == (KEY, True, [])


async def test_a_difference_is_named_with_our_reason(world: World) -> None:
    await world.put(TICK, {**SHADOWED, "cron": "*/2 * * * *"})
    await pass_minutes(world, 4)
    found = await report(world, told(2, 3))
    assert not found["equal"]
    (item,) = found["triggers"]
    assert [(slot["time"], slot["in"]) for slot in item["slots"]] == [
        ("2026-01-05T10:03:00Z", "theirs"),
        ("2026-01-05T10:04:00Z", "ours"),
    ]
    assert "does not name it" in item["slots"][0]["reason"]


async def test_every_slot_is_named_where_that_is_asked_for(world: World) -> None:
    await world.put(TICK, SHADOWED)
    await pass_minutes(world, 2)
    (item,) = (await report(world, told(1, 2), everything=True))["triggers"]
    assert [slot["in"] for slot in item["slots"]] == ["both", "both"]


async def test_only_time_in_shadow_is_compared(world: World) -> None:
    await world.put(TICK, MINUTELY)
    await pass_minutes(world, 1)
    await world.post(f"{TICK}/shadow/on")
    await pass_minutes(world, 2)
    await world.post(f"{TICK}/shadow/off")
    await pass_minutes(world, 2)
    found = await report(world, told(2, 3))
    assert found["equal"]
    (item,) = found["triggers"]
    assert item["shadow"] == [{"after": "2026-01-05T10:01:00Z", "to": "2026-01-05T10:03:00Z"}]
    assert (item["in_shadow"], item["both"]) == (False, 2)


async def test_a_trigger_of_theirs_that_is_not_here_is_a_difference(world: World) -> None:
    await world.put(TICK, SHADOWED)
    await world.put(TOCK, MINUTELY)
    await pass_minutes(world, 1)
    text = told(1) + "tock,2026-01-05T10:01:00Z\n"
    found = await report(world, text)
    assert (found["equal"], found["unknown"], found["not_in_shadow"]) == (
        True,
        [],
        ["default/default/tock/default"],
    )
    found = await report(world, text + "gone,2026-01-05T10:01:00Z\n")
    assert (found["equal"], found["unknown"]) == (False, ["default/default/gone/default"])
    assert (await report(world, text + "gone,2026-01-05T10:01:00Z\n", triggers=["tick"]))["equal"]


async def test_what_nobody_has_decided_yet_is_no_difference(world: World) -> None:
    await world.put(TICK, SHADOWED)
    await world.plan()
    world.clock.advance(60)
    found = await report(world, told())
    assert (found["equal"], found["counts"]["pending"]) == (True, 1)


async def test_a_pause_in_shadow_is_the_reason_of_a_difference(world: World) -> None:
    await world.put(TICK, SHADOWED)
    await world.plan()
    await world.post(f"{TICK}/pause", {"note": "inventory"})
    await pass_minutes(world, 1)
    (item,) = (await report(world, told(1)))["triggers"]
    assert [(slot["in"], "paused" in slot["reason"]) for slot in item["slots"]] == [("theirs", True)]


# an instance where all begins in shadow


async def test_an_instance_can_have_all_its_new_triggers_start_in_shadow(tmp_path: Path) -> None:
    async with open_world(tmp_path, shadow=True) as world:
        await world.put(TICK, MINUTELY)
        await world.put(TOCK, {**MINUTELY, "shadow": False})
        text = triggers_file(a=MINUTELY, b={**MINUTELY, "shadow": False})
        await world.post("/apply", {"files": [{"path": "a.json", "text": text}]})
        found = {item["deployment"]: item["shadow"] for item in (await world.get("/triggers"))["items"]}
        assert found == {"a": True, "b": False, "tick": True, "tock": False}


# the command line


@pytest.fixture
def shadowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A database in which `tick` spent three minutes in shadow."""
    for name in [name for name in os.environ if name.startswith("HORARIUM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    async def prepare() -> None:
        async with open_world(tmp_path) as world:
            text = triggers_file(tick=SHADOWED, tock=MINUTELY)
            await world.post("/apply", {"files": [{"path": "a.json", "text": text}]})
            await pass_minutes(world, 3)

    asyncio.run(prepare())


PERIOD = ("--since", "2026-01-05T10:00:00Z", "--until", "2026-01-05T10:03:00Z")


@pytest.mark.usefixtures("shadowed")
def test_the_report_ends_with_0_where_both_are_equal_and_with_1_where_they_differ(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(told(1, 2, 3))
    ran = horarium("shadow", "report", *PERIOD, "--incumbent", "runs.csv")
    assert (ran.code, "Both have the same slots." in ran.out) == (0, True), ran.err
    (tmp_path / "runs.csv").write_text(told(1, 3) + "gone,2026-01-05T10:01:00Z\n")
    ran = horarium("shadow", "report", *PERIOD, "--incumbent", "runs.csv")
    assert ran.code == 1
    assert "tick  2 in both, 1 only ours" in ran.out
    assert "gone ran there, and is not here." in ran.out
    ran = horarium("shadow", "report", *PERIOD, "--incumbent", "runs.csv", "--trigger", "tick", "-o", "json")
    assert (ran.code, ran.json["counts"]["only_ours"]) == (1, 1)


@pytest.mark.usefixtures("shadowed")
def test_triggers_are_cut_over_and_back_from_the_command_line() -> None:
    ran = horarium("shadow", "off", "tick")
    assert ran.code == 0
    assert ran.out.startswith("tick is cut over: slots after ")
    assert horarium("shadow", "off", "tick").out == "Nothing to do: none is in shadow.\n"
    assert (
        horarium("shadow", "on", "--all", "-o", "json").json["items"][1]["trigger"].endswith("tock/default")
    )
    assert [row[1] for row in horarium("triggers", "list").rows[1:]] == ["shadow", "shadow"]
    assert "2 in shadow" in horarium("status").out
    assert "it is planned and decided, and nothing is fired" in horarium("triggers", "show", "tick").out
    off = horarium("shadow", "off", "tick", "tock")
    assert (off.code, len(off.out.splitlines())) == (0, 2)


@pytest.mark.usefixtures("shadowed")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("shadow", "on"), 2),
        (("shadow", "on", "tick", "--all"), 2),
        (("shadow", "off", "tick", "nothing"), 3),
        (("shadow", "report", *PERIOD), 1),
        (("shadow", "report", "--since", "soon"), 1),
        (("shadow", "report", "--incumbent", "nowhere.csv"), 1),
    ],
)
def test_mistakes_change_nothing(words: tuple[str, ...], code: int) -> None:
    before = versions()
    ran = horarium(*words)
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    assert versions() == before


def versions() -> list[tuple[str, str]]:
    found = horarium("triggers", "list", "-o", "json").json["items"]
    return [(item["key"], item["etag"]) for item in found]
