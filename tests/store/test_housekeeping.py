"""prune, idempotency keys, local executions, and what a store says when its database fails it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from horarium.core.plan import Window
from horarium.core.run import RunState
from horarium.core.spec import CatchUp
from horarium.store import tables as t
from horarium.store.base import ManualRequest, Pruned, Remembered
from horarium.targets.base import LocalRun
from tests.store.world import NOW, World, at, entry, fired, key, listing, refused

LONG = timedelta(days=1)


async def settled_hour(world: World) -> None:
    """`a` with twelve slots from 10:05 to 11:00: all fired at 11:00, but the last, which waits."""
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    claims = await world.claim(at("11:00"), 11, backlog_first=True)
    await world.settle(*(fired(item.run, at("11:00")) for item in claims.runs), now=at("11:00"))


async def test_prune_takes_settled_runs_only_and_says_up_to_where(world: World) -> None:
    await settled_hour(world)
    waiting = [run for run in await world.runs() if run.state is RunState.SCHEDULED]
    gone = await world.store.prune(at("11:01"), NOW - LONG, 100)
    assert gone == Pruned(11, 0)
    assert await world.runs() == waiting
    assert await world.rows(t.attempt) == []
    assert (await world.trigger("a")).pruned_before == at("10:55") + timedelta(microseconds=1)


async def test_prune_is_bounded_and_takes_the_oldest_first(world: World) -> None:
    await settled_hour(world)
    assert (await world.store.prune(at("11:01"), NOW - LONG, 4)).runs == 4
    assert (await world.slots("a"))[0] == at("10:25")
    assert (await world.trigger("a")).pruned_before == at("10:20") + timedelta(microseconds=1)
    assert (await world.store.prune(at("11:01"), NOW - LONG, 4)).runs == 4
    assert (await world.store.prune(at("11:01"), NOW - LONG, 4)).runs == 3
    assert (await world.store.prune(at("11:01"), NOW - LONG, 4)).runs == 0


async def test_prune_keeps_what_was_settled_late(world: World) -> None:
    await settled_hour(world)
    assert (await world.store.prune(at("10:59"), NOW - LONG, 100)).runs == 0


async def test_prune_takes_old_skips(world: World) -> None:
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    await world.plan_all(at("11:02"))
    assert (await world.store.prune(NOW - LONG, at("11:00"), 100)).skips == 0
    assert (await world.store.prune(NOW - LONG, at("11:01"), 100)) == Pruned(0, 1)


async def test_prune_takes_old_idempotency_keys(world: World) -> None:
    await world.store.remember("k", "d", NOW)
    await world.store.prune(at("10:01"), NOW - LONG, 100)
    assert await world.store.remember("k", "other", at("10:02")) is None


async def test_the_planner_never_brings_a_pruned_slot_back(world: World) -> None:
    await settled_hour(world)
    await world.store.prune(at("11:01"), NOW - LONG, 100)
    await world.edit("a", "*/5 * * * *", at("11:02"), parameters={"n": 1})
    await world.plan_all(at("11:03"))
    assert (await world.slots("a"))[0] == at("11:00")


async def test_an_open_backfill_keeps_its_triggers_runs_until_it_is_done(world: World) -> None:
    """It would take a pruned slot for a hole, and run it again."""
    await settled_hour(world)
    await world.backfill("a", at("10:00"), at("11:00"), at("11:01"))
    await world.plan(at("11:01"), Window(max_catchup_runs=2))
    assert (await world.store.prune(at("11:01"), NOW - LONG, 100)).runs == 0
    await world.plan_all(at("11:01"))
    # 10:00 was a hole, and the waiting run of 11:00 was taken over.
    assert await world.slots("a", origin="backfill") == [at("10:00"), at("11:00")]
    assert (await world.store.prune(at("11:01"), NOW - LONG, 100)).runs == 11


async def test_a_failed_run_that_is_retried_is_not_pruned(world: World) -> None:
    from horarium.core import trigger as decisions

    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    (item,) = (await world.claim(at("10:05"))).runs
    await world.settle(refused(item.run, at("10:05")), now=at("10:05"))
    await world.store.change_run(
        item.run.id, lambda state, run: decisions.retry_run(state, run, at("11:00")), at("11:00"), "ann"
    )
    assert (await world.store.prune(at("12:00"), NOW - LONG, 100)).runs == 0


# idempotency keys


async def test_a_key_is_ours_once_and_stands_for_its_answer(world: World) -> None:
    store = world.store
    assert await store.remember("k", "digest", NOW) is None
    assert await store.remember("k", "digest", NOW) == Remembered("digest", None, None)
    await store.answer("k", 201, '{"id": 1}')
    assert await store.remember("k", "other", NOW) == Remembered("digest", 201, '{"id": 1}')


async def test_a_key_that_is_given_up_is_free_again(world: World) -> None:
    await world.store.remember("k", "digest", NOW)
    await world.store.answer("k", None, None)
    assert await world.store.remember("k", "other", NOW) is None


# local executions


async def test_a_local_execution_from_its_start_to_its_end(world: World) -> None:
    await world.add("a")
    run, _ = await world.store.create_manual(ManualRequest(key("a"), "one", None, "ann"), NOW)
    name = f"default/default/{run.name}"
    store = world.store
    assert await store.local_begin(name, "me", NOW)
    assert not await store.local_begin(name, "me", at("10:01"))
    await store.local_running(name, 4_711)
    await store.local_output(name, b"half", 4)
    found = await store.local_run(name)
    assert found == LocalRun(name, "running", NOW, pid=4_711, output=b"half", output_total=4)
    await store.local_end(
        LocalRun(name, "failed", NOW, at("10:02"), 3, 4_711, b"half and half", 13, "exit code 3")
    )
    found = await store.local_run(name)
    assert found is not None
    assert (found.state, found.ended_at, found.exit_code) == ("failed", at("10:02"), 3)
    assert (found.output, found.output_total, found.detail) == (b"half and half", 13, "exit code 3")
    (stored,) = await world.runs()
    assert stored.result == "errored"
    await store.local_running(name, 1)
    found = await store.local_run(name)
    assert found is not None
    assert found.state == "failed"
    assert await store.local_run("default/default/never") is None


async def test_executions_of_a_server_that_is_gone_are_interrupted(world: World) -> None:
    await world.add("a")
    run, _ = await world.store.create_manual(ManualRequest(key("a"), "one", None, "ann"), NOW)
    store = world.store
    await store.local_begin(f"default/default/{run.name}", "dead", NOW)
    await store.local_begin("default/default/mine", "me", NOW)
    assert await store.local_interrupt("me", at("10:01")) == 1
    assert await store.local_interrupt("me", at("10:01")) == 0
    found = await store.local_run(f"default/default/{run.name}")
    assert found is not None
    assert (found.state, found.ended_at) == ("interrupted", at("10:01"))
    assert [item.result for item in await world.runs()] == ["interrupted"]
    mine = await store.local_run("default/default/mine")
    assert mine is not None
    assert mine.state == "starting"


# reads


async def test_times_keep_their_microseconds_and_come_back_in_utc(world: World) -> None:
    odd = NOW + timedelta(microseconds=123_457)
    trigger = await world.add("a", now=odd)
    assert trigger.cursor == odd
    assert trigger.cursor.utcoffset() == timedelta()


async def test_documents_come_back_as_they_were(world: World) -> None:
    parameters = {"n": None, "f": 1.5, "text": "ü\n\"'", "list": [1, {"x": True}], "big": 2**53}
    await world.add("a", parameters=parameters)
    (row,) = await world.store.fetch(select(t.trigger_revision.c.spec))
    assert row.spec["parameters"] == parameters
    await world.plan(NOW)
    (item,) = (await world.claim(at("10:05"))).runs
    assert item.spec.parameters == parameters


async def test_reads_see_what_was_just_written(world: World) -> None:
    await world.sync(listing(entry("a")))
    assert len(await world.store.fetch(select(t.trigger))) == 1


async def test_a_statement_that_fails_leaves_the_store_usable(world: World) -> None:
    from sqlalchemy import text

    await world.add("a")
    with pytest.raises(Exception, match="nowhere"):
        await world.store.fetch(text("select 1 from nowhere"))
    assert len(await world.triggers()) == 1
    await world.plan(NOW)
    assert await world.runs() != []
