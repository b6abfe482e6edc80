"""create_manual: a request is one run, however often it is sent."""

from __future__ import annotations

from datetime import timedelta

import pytest

from horarium.core import trigger as decisions
from horarium.core.run import Origin, RunState
from horarium.errors import Conflict, NotFound
from horarium.store.base import ManualRequest
from tests.store.world import NOW, World, at, key


def request(request_key: str = "one", name: str = "a", **parameters: object) -> ManualRequest:
    return ManualRequest(key(name), request_key, parameters or None, "ann")  # type: ignore[arg-type]  # plain data


async def test_a_manual_run_is_due_now_and_named_apart_from_slots(world: World) -> None:
    trigger = await world.add("a", parameters={"x": 1, "y": 1})
    now = NOW + timedelta(microseconds=7)
    run, new = await world.store.create_manual(request(x=2), now)
    assert new
    assert run.name.startswith("m")
    assert (run.origin, run.state, run.trigger_id) == (Origin.MANUAL, RunState.SCHEDULED, trigger.id)
    assert (run.scheduled_time, run.due_at, run.parameters) == (now, now, {"x": 2})
    (claimed,) = (await world.claim(now)).runs
    assert claimed.run.parameters == {"x": 2}
    assert claimed.spec.parameters == {"x": 1, "y": 1}


async def test_the_same_request_again_is_the_same_run(world: World) -> None:
    await world.add("a")
    first, _ = await world.store.create_manual(request(x=1), NOW)
    again, new = await world.store.create_manual(request(x=1), at("10:30"))
    assert not new
    assert again == first
    assert len(await world.runs()) == 1


async def test_its_key_with_other_parameters_is_a_conflict(world: World) -> None:
    await world.add("a")
    await world.store.create_manual(request(x=1), NOW)
    before = await world.everything()
    with pytest.raises(Conflict, match="other parameters"):
        await world.store.create_manual(request(x=2), NOW)
    with pytest.raises(Conflict):
        await world.store.create_manual(request(), NOW)
    assert await world.everything() == before


async def test_another_key_is_another_run_even_at_a_slot(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    await world.store.create_manual(request("one"), at("10:05"))
    await world.store.create_manual(request("two"), at("10:05"))
    assert [run.scheduled_time for run in await world.runs()].count(at("10:05")) == 3


async def test_a_trigger_that_is_not_there_or_deleted_has_no_manual_runs(world: World) -> None:
    with pytest.raises(NotFound):
        await world.store.create_manual(request(), NOW)
    await world.add("a")
    await world.store.create_manual(request("before"), NOW)
    await world.delete("a", at("10:01"))
    with pytest.raises(Conflict, match="deleted"):
        await world.store.create_manual(request("after"), at("10:02"))
    run, new = await world.store.create_manual(request("before"), at("10:02"))
    assert (run.state, new) == (RunState.CANCELLED, False)


async def test_a_cancelled_manual_run_keeps_its_key(world: World) -> None:
    await world.add("a")
    run, _ = await world.store.create_manual(request(), NOW)
    await world.store.change_run(
        run.id, lambda state, found: decisions.cancel_run(state, found, "ann", NOW), NOW, "ann"
    )
    again, new = await world.store.create_manual(request(), at("10:01"))
    assert (again.id, again.state, new) == (run.id, RunState.CANCELLED, False)
