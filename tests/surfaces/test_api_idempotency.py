"""`Idempotency-Key`: a request that is sent again has its effect once and gets the same answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.surfaces.api_world import TICK, World, triggers_file


@pytest.fixture
async def world(world: World) -> World:
    """The instance of all tests, with a trigger."""
    await world.put(TICK, {"run": "date", "cron": "* * * * *"})
    return world


async def test_the_same_request_gets_the_same_answer(world: World) -> None:
    requests: list[tuple[str, Any]] = [
        (f"{TICK}/run", {"parameters": {"n": 1}}),
        (f"{TICK}/backfills", {"from": "2026-01-05T09:59:00Z", "to": "2026-01-05T10:00:00Z"}),
        (f"{TICK}/plan", {"to": "2026-01-05T12:00:00Z"}),
        ("/deployments/default/default/tick/plan", {"to": "2026-01-05T14:00:00Z"}),
        ("/apply", {"files": [{"path": "/f.json", "text": triggers_file(a={"run": "date", "every": "1h"})}]}),
    ]
    for path, body in requests:
        first = await world.post(path, body, idempotency_key=path)
        world.clock.advance(5)
        before = world.dump()
        again = await world.post(path, body, idempotency_key=path)
        assert (again.status, again.body) == (first.status, first.body), path
        assert "idempotency-replayed" not in first.headers
        assert again.headers["idempotency-replayed"] == "true"
        assert world.dump() == before


async def test_another_request_under_a_key_is_refused(world: World) -> None:
    await world.post(f"{TICK}/run", {}, idempotency_key="k")
    before = world.dump()
    for path in (f"{TICK}/run", f"{TICK}/backfills"):
        other = await world.post(path, {"parameters": {}}, idempotency_key="k")
        assert other.status == 422
    assert world.dump() == before


async def test_a_refused_request_may_be_sent_again(world: World) -> None:
    path = "/triggers/default/default/later/default"
    assert (await world.post(f"{path}/run", {}, idempotency_key="k")).status == 404
    await world.put(path, {"run": "date", "every": "20s"})
    assert (await world.post(f"{path}/run", {}, idempotency_key="k")).status == 201


async def test_the_first_under_way_holds_the_key_for_a_while(world: World) -> None:
    made = await world.post(f"{TICK}/run", {}, idempotency_key="seen")
    assert made.status == 201
    digest = (await world.store.remember("seen", "", world.now())).request_digest  # type: ignore[union-attr] # it is there
    await world.store.remember("dead", digest, world.now())
    waiting = await world.post(f"{TICK}/run", {}, idempotency_key="dead")
    assert (waiting.status, waiting.headers["retry-after"]) == (409, "1")
    # Its process died: later the key is free again.
    world.clock.advance(301)
    assert (await world.post(f"{TICK}/run", {}, idempotency_key="dead")).status == 201


@pytest.mark.parametrize("key", ["", "x" * 256, "ä"])
async def test_a_key_is_short_and_printable(world: World, key: str) -> None:
    reply = await world.post(f"{TICK}/run", {}, idempotency_key=key)
    assert reply.status == 400
    assert reply.pointers == ["/Idempotency-Key"]
