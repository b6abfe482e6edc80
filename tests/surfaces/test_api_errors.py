"""Whatever is sent: an answer that names the field, never a 500, and the database as it was."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Executable, Row

from horarium.errors import StoreUnavailable
from tests.surfaces.api_world import TICK, World, open_world, triggers_file

SEED = 20_260_105
BODIES = 200


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One instance with a trigger, for the many requests that must change nothing in it."""
    async with open_world(tmp_path_factory.mktemp("shared")) as opened:
        await opened.put(TICK, {"run": "date", "every": "20s"})
        yield opened


# malformed bodies


def valid_bodies() -> list[tuple[str, str, Any]]:
    """A valid body for each path that takes one."""
    trigger = {
        "run": "date",
        "cron": "*/5 * * * *",
        "timezone": "Europe/Berlin",
        "catch_up": "latest",
        "max_age": "30m",
        "jitter": "10s",
        "parameters": {"a": [1, {"b": 2.5}]},
        "owner": "data",
        "env": {"A": "b"},
    }
    file = {"path": "/etc/f.json", "text": triggers_file(x={"run": "date", "every": "20s"})}
    return [
        ("PUT", "/triggers/default/default/other/default", trigger),
        ("POST", f"{TICK}/pause", {"note": "why", "until": "2026-01-06T00:00:00Z"}),
        ("POST", f"{TICK}/resume", {"backfill": True}),
        ("POST", f"{TICK}/run", {"parameters": {"a": 1}, "request_key": "k"}),
        ("POST", f"{TICK}/backfills", {"from": "2026-01-05T09:00:00Z", "to": "2026-01-05T10:00:00Z"}),
        ("POST", f"{TICK}/plan", {"from": "2026-01-06T09:00:00Z", "to": "2026-01-06T10:00:00Z"}),
        ("POST", "/preview", {"cron": "0 3 * * *", "timezone": "UTC", "n": 3, "from": "2026-01-05"}),
        ("POST", "/apply", {"files": [file], "dry_run": True, "prune": False}),
        ("POST", "/validate", {"files": [file]}),
    ]


WRONG: Sequence[Any] = (
    None,
    True,
    [],
    {},
    "",
    "\x00",
    "a\ud800",
    "no such thing",
    -1,
    0.5,
    10**30,
    [[]],
    {"a": {}},
    "2026-02-30T00:00:00Z",
    "* * * *",
    "x" * 2_000,
)


def mutate(value: Any, draw: random.Random) -> bytes:
    """A valid body made wrong in one place, or bytes that are no JSON object at all."""
    text = json.dumps(value)
    kind = draw.randrange(10)
    if kind == 0:
        return text[: draw.randrange(1, len(text))].encode()
    if kind == 1:
        return draw.choice(
            [b"[]", b"null", b"3", b'"text"', b"\xff\xfe", b"{]", b"[" * 5_000, b"\xef\xbb\xbf{}x"]
        )
    if kind == 2:
        return text.replace(":", ': NaN, "a":', 1).encode()
    if kind == 3:
        return (text[:-1] + ", " + text[1:]).encode()  # every key twice
    if kind == 4:
        return json.dumps(
            {**value, draw.choice(["nope", "cron ", "", "a/b~c", "\x00", "__proto__"]): 1}
        ).encode()
    copy = json.loads(text)
    keys = list(copy)
    if kind == 5:
        copy = {key: draw.choice(WRONG) for key in keys}
    else:
        key = draw.choice(keys)
        copy[key] = draw.choice(WRONG)
    return json.dumps(copy).encode()


async def test_two_hundred_malformed_bodies_change_nothing(world: World) -> None:
    await world.put(TICK, {"run": "date", "every": "20s"})
    await world.plan()
    before = world.dump()
    draw = random.Random(SEED)
    bodies = valid_bodies()
    refused = 0
    while refused < BODIES:
        method, path, body = draw.choice(bodies)
        raw = mutate(body, draw)
        reply = await world.call(method, path, raw=raw)
        told = (method, path, raw[:300], reply.status, reply.body[:300])
        if reply.status < 300:
            # Some mutations say another valid thing: those are not what is tried here.
            await undo(world, before)
            continue
        refused += 1
        assert reply.status in (400, 409, 422), told
        if reply.status != 409:
            assert reply.json["problems"], told
            for problem in reply.json["problems"]:
                assert problem["rule"], told
                assert problem["got"], told
                assert problem["pointer"] == "" or problem["pointer"].startswith("/"), told
        assert world.dump() == before, told


async def undo(world: World, dump: str) -> None:
    """The database as it was: its rows are put back."""
    if world.dump() == dump:
        return
    import sqlite3

    with sqlite3.connect(world.path) as raw:
        raw.execute("pragma foreign_keys = off")
        names = [row[0] for row in raw.execute("select name from sqlite_master where type = 'table'")]
        for name in names:
            raw.execute(f"delete from {name}")
        inserts = [line for line in dump.splitlines() if line.startswith("INSERT INTO ")]
        for line in inserts:
            raw.execute(line)
    raw.close()
    assert sorted(world.dump().splitlines()) == sorted(dump.splitlines())


@pytest.mark.parametrize(
    ("raw", "status", "pointer"),
    [
        (b"{", 400, ""),
        (b'{"n": NaN, "cron": "* * * * *"}', 400, ""),
        (b'{"cron": "* * * * *", "cron": "* * * * *"}', 400, ""),
        (b"[" * 100_000, 400, ""),
        (b'{"n": ' + b"9" * 5_000 + b"}", 400, ""),
        (b"\xff", 400, ""),
        (b"[]", 422, ""),
        (b'{"n": 1e999, "cron": "* * * * *"}', 422, "/n"),
        (b'{"cron": "\\ud800"}', 422, "/cron"),
        (b'{"cron": "\\u0000"}', 422, "/cron"),
        (b'{"n": "3", "cron": "* * * * *"}', 422, "/n"),
        (b'{"n": true, "cron": "* * * * *"}', 422, "/n"),
        (b'{"corn": "* * * * *"}', 422, "/corn"),
        (b'{"cron": "* * * *"}', 422, "/cron"),
        (b'{"cron": "* * * * *", "every": "20s"}', 422, None),
        (b'{"cron": "* * * * *", "timezone": "Mars/Base"}', 422, "/timezone"),
        (b'{"cron": "* * * * *", "from": "tomorrow"}', 422, "/from"),
        (b'{"cron": "* * * * *", "key": "a/b/c"}', 422, None),
    ],
)
async def test_a_body_is_read_strictly(shared: World, raw: bytes, status: int, pointer: str | None) -> None:
    reply = await shared.call("POST", "/preview", raw=raw)
    assert reply.status == status, reply.body
    if pointer is not None:
        assert reply.pointers == [pointer]


async def test_a_wrong_word_is_answered_with_the_right_one(shared: World) -> None:
    reply = await shared.post("/preview", {"corn": "* * * * *"})
    assert reply.json["problems"][0]["try"] == "did you mean cron?"
    typed = await shared.put(TICK, {"run": "date", "cron": "* * * * *", "catchup": "all"})
    assert typed.pointers == ["/catchup"]
    assert "catch_up" in typed.json["problems"][0]["try"]
    typed = await shared.put(TICK, {"run": "date", "cron": "* * * * *", "overlap": "skipp"})
    assert typed.json["problems"][0]["try"] == "skip"


async def test_every_problem_is_named_at_once(shared: World) -> None:
    reply = await shared.put(TICK, {"run": "date", "cron": "61 * * * *", "jitter": "x", "late_after": -1})
    assert sorted(reply.pointers) == ["/cron", "/jitter", "/late_after"]


@pytest.mark.parametrize(
    ("path", "query", "pointer"),
    [
        ("/triggers", {"nope": "1"}, "/nope"),
        ("/status", {"limit": "1"}, "/limit"),
        ("/runs", {"state": "done"}, "/state"),
        ("/runs", {"late": "perhaps"}, "/late"),
        ("/runs", {"from": "2026-13-01"}, "/from"),
        ("/runs", {"trigger": "a/b/c"}, "/trigger"),
        ("/runs", {"q": "\x00"}, "/q"),
        ("/runs", {"project": "x" * 600}, "/project"),
        ("/skips", {"to": "now"}, "/to"),
        ("/slots", {"from": "2026-01-05T10:00:00Z"}, "/to"),
        (f"{TICK}/why", {}, "/time"),
        (f"{TICK}/why", {"time": "2026-10-25T02:30:00 01:00"}, "/time"),
        (f"{TICK}/preview", {"n": "0"}, "/n"),
        ("/backfills/0", {}, "/backfill_id"),
        (f"/backfills/{2**64}", {}, "/backfill_id"),
        ("/triggers/default/default/-/default", {}, "/deployment"),
        ("/runs/default/default/..", {}, "/name"),
    ],
)
async def test_a_wrong_query_or_path_is_a_400(
    shared: World, path: str, query: dict[str, str], pointer: str
) -> None:
    reply = await shared.call("GET", path, query=query)
    assert reply.status == 400, reply.body
    assert reply.pointers == [pointer]


@pytest.mark.parametrize("words", [{"cron": "* * * * *"}, {"every": "20s"}, {"at": "2026-02-01T00:00:00Z"}])
async def test_the_ends_of_the_calendar_are_instants_like_any_other(
    world: World, words: dict[str, str]
) -> None:
    zone = {} if "every" in words else {"timezone": "Pacific/Kiritimati"}
    assert (await world.put(TICK, {"run": "date", **words, **zone})).status == 201
    await world.plan()
    first, last = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"
    for time in (first, "0001-01-02", "1969-12-31T23:59:59Z", "9999-12-31", last):
        await world.get(f"{TICK}/why", time=time)
        await world.get(f"{TICK}/preview", from_=time)
        assert (await world.post("/preview", {**words, **zone, "from": time})).status == 200
        for path in ("/runs", "/skips"):
            await world.get(path, from_=time)
            await world.get(path, to=time)
        body = {"from": time, "to": time, "dry_run": True}
        assert (await world.post(f"{TICK}/backfills", body)).status in (200, 422)
    await world.get("/slots", from_=first, to=last)
    await world.get("/slots", from_="9999-12-31", to=last)
    whole = {"from": first, "to": world.time(0)}
    dry = (await world.post(f"{TICK}/backfills", {**whole, "dry_run": True})).json
    made = await world.post(f"{TICK}/backfills", whole)
    assert made.status == (422 if dry["at_least"] else 201)


async def test_what_is_not_there_is_a_404_and_a_wrong_method_a_405(world: World) -> None:
    for path in ("/nothing", "/runs/default/default/r1", "/backfills/1", f"{TICK}", "/deployments/a/b/c"):
        assert (await world.call("GET", path)).status == 404
    wrong = await world.call("DELETE", "/runs")
    assert wrong.status == 405
    assert wrong.headers["allow"] == "GET"
    assert (await world.post(f"{TICK}/run")).status == 404


async def test_a_body_is_json_and_not_too_large(shared: World) -> None:
    form = await shared.call("POST", "/preview", raw=b"cron=1", headers={"content-type": "text/plain"})
    assert form.status == 415
    large = await shared.call("POST", "/validate", raw=b" " * (32 * 1024 * 1024 + 1))
    assert large.status == 413


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8090", "10.0.0.1", "localhost.evil.example", "a@localhost", ""]
)
async def test_another_host_is_refused(shared: World, host: str) -> None:
    refused = await shared.call("GET", "/status", headers={"host": host})
    assert refused.status == 421
    assert "localhost" in refused.json["detail"]


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8090", "[::1]:8090", "[::1]"])
async def test_this_machine_is_answered(shared: World, host: str) -> None:
    assert (await shared.call("GET", "/status", headers={"host": host})).status == 200


async def test_a_page_of_another_site_changes_nothing(world: World) -> None:
    before = world.dump()
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ):
        reply = await world.call("PUT", TICK, {"run": "date", "every": "20s"}, headers=headers)
        assert reply.status == 403
    assert world.dump() == before
    own = {"origin": "http://localhost:8090", "sec-fetch-site": "same-origin"}
    assert (await world.call("PUT", TICK, {"run": "date", "every": "20s"}, headers=own)).status == 201


async def test_a_database_that_is_away_is_a_503(world: World) -> None:
    assert (await world.call("GET", "/readyz")).json == {"ok": True}

    async def away(statement: Executable) -> Sequence[Row[Any]]:
        raise StoreUnavailable("disk I/O error")

    world.store.fetch = away  # type: ignore[method-assign] # the file itself can't be broken on demand
    for path in ("/triggers", "/runs", "/readyz"):
        reply = await world.call("GET", path)
        assert reply.status == 503
        assert reply.headers["retry-after"] == "1"
    assert (await world.call("GET", "/livez")).json == {"ok": True, "loops": []}


async def test_the_users_name_is_kept_for_the_audit(world: World) -> None:
    await world.put(TICK, {"run": "date", "every": "20s"}, x_horarium_user="kim")
    assert "'kim'" in world.dump()
    odd = await world.put(TICK, {"run": "date", "every": "20s"}, x_horarium_user="x" * 200)
    assert odd.status == 400
