"""prune, idempotency keys, local executions, and what a store says when its database fails it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from horarium.core.plan import Window
from horarium.core.run import RunState
from horarium.core.spec import CatchUp
from horarium.store import tables as t
from horarium.store.base import ManualRequest, Pruned, PrunedBeyond, Remembered
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


async def test_what_prune_takes_it_takes_whole(world: World) -> None:
    """Attempts, and what the local target kept; not a run whose process is still at work."""
    await settled_hour(world)
    first, second, *_ = await world.runs()
    for run in (first, second):
        await world.store.local_begin(f"default/default/{run.name}", "me", run.scheduled_time)
    ended = LocalRun(f"default/default/{first.name}", "succeeded", first.scheduled_time, at("10:06"), 0)
    await world.store.local_end(ended)
    assert (await world.store.prune(at("11:01"), NOW - LONG, 100)).runs == 10
    assert [row.run_name for row in await world.rows(t.local_run)] == [f"default/default/{second.name}"]
    assert [row.run_id for row in await world.rows(t.attempt)] == [second.id]
    assert (await world.slots("a"))[0] == second.scheduled_time


async def test_audit_and_keys_go_by_age_in_batches(world: World) -> None:
    await world.add("a")
    for minute in range(1, 6):
        moment = at(f"10:0{minute}")
        await world.pause("a", moment, note=str(minute))
        await world.store.remember(str(minute), "d", moment)
    lines = len(await world.rows(t.audit))
    assert await world.store.prune(NOW - LONG, NOW - LONG, 2) == Pruned()
    assert await world.store.prune(at("10:05"), NOW - LONG, 2, at("10:05")) == Pruned(audit=2, keys=2)
    left = await world.rows(t.audit)
    assert len(left) == lines - 2
    assert min(row.at for row in left) >= at("10:01")
    assert [row.key for row in await world.rows(t.idempotency)] == ["3", "4", "5"]


async def test_a_pruned_skip_is_known_to_be_pruned(world: World) -> None:
    """Else `why` would find a slot that is neither a run nor in a skip, which must not be."""
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    await world.plan_all(at("11:02"))
    assert (await world.store.prune(NOW - LONG, at("11:01"), 100)).skips == 1
    assert (await world.trigger("a")).pruned_before == at("11:00") + timedelta(microseconds=1)


# retention by count


async def test_of_each_trigger_the_newest_settled_runs_are_kept(world: World) -> None:
    await settled_hour(world)
    await world.add("b", "*/20 * * * *", now=at("11:00"))
    await world.plan(at("11:00"))
    gone = await world.store.prune_beyond(3, 0, 0, 100, 100)
    assert gone == PrunedBeyond(8, 0, None)
    assert [run.scheduled_time for run in await world.runs("a") if run.state is RunState.FIRED] == [
        at("10:45"),
        at("10:50"),
        at("10:55"),
    ]
    assert (await world.slots("a", state="scheduled"))[0] == at("11:00")
    assert (await world.trigger("a")).pruned_before == at("10:40") + timedelta(microseconds=1)
    assert await world.store.prune_beyond(3, 0, 0, 100, 100) == PrunedBeyond(0, 0, None)
    assert len(await world.rows(t.attempt)) == 3


async def test_what_is_owed_does_not_count_and_never_goes(world: World) -> None:
    """A backlog above the limit costs no history, and nothing of itself."""
    await settled_hour(world)
    await world.plan_all(at("15:00"))
    owed = await world.slots("a", state="scheduled")
    assert len(owed) > 20
    assert (await world.store.prune_beyond(5, 0, 0, 100, 100)).runs == 6
    assert await world.slots("a", state="scheduled") == owed
    assert len(await world.runs("a", state="fired")) == 5


async def test_runs_by_hand_are_counted_apart(world: World) -> None:
    await settled_hour(world)
    for number in range(4):
        asked = at(f"11:0{number}")
        await world.store.create_manual(ManualRequest(key("a"), str(number), None, "ann"), asked)
        claims = await world.claim(asked)
        await world.settle(*(fired(item.run, asked) for item in claims.runs), now=asked)
    assert (await world.store.prune_beyond(2, 0, 0, 100, 100)).runs > 0
    assert await world.slots("a", origin="manual", state="fired") == [at("11:02"), at("11:03")]
    assert len([run for run in await world.runs("a", state="fired") if run.origin != "manual"]) == 2


async def test_a_step_by_count_is_bounded_and_says_where_to_go_on(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.add(name, "*/5 * * * *")
    await world.plan(NOW)
    claims = await world.claim(at("11:00"), 100, backlog_first=True)
    await world.settle(*(fired(item.run, at("11:00")) for item in claims.runs), now=at("11:00"))
    ids = [item.id for item in await world.triggers()]
    before = {name: len(await world.runs(name, state="fired")) for name in "abc"}
    # Two triggers, four rows: not even the first one is done.
    gone = await world.store.prune_beyond(2, 0, 0, 2, 4)
    assert gone == PrunedBeyond(4, 0, ids[0] - 1)
    assert len(await world.runs("a", state="fired")) == before["a"] - 4
    gone = await world.store.prune_beyond(2, 0, ids[0] - 1, 2, 1_000)
    assert (gone.runs, gone.after) == (before["a"] - 6 + before["b"] - 2, ids[1])
    gone = await world.store.prune_beyond(2, 0, ids[1], 2, 1_000)
    assert (gone.runs, gone.after) == (before["c"] - 2, None)
    assert [len(await world.runs(name, state="fired")) for name in "abc"] == [2, 2, 2]


async def test_the_newest_skips_are_kept(world: World) -> None:
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    for moment in ("10:12", "10:22", "10:32"):
        await world.plan_all(at(moment), Window(min_runs=1, min_scheduled_time=timedelta(), max_runs=1))
        await world.look(at(moment))
    found = await world.skips("a")
    assert len(found) >= 3
    gone = await world.store.prune_beyond(0, 2, 0, 100, 100)
    assert gone == PrunedBeyond(0, len(found) - 2, None)
    assert await world.skips("a") == found[-2:]
    assert (await world.trigger("a")).pruned_before == found[-3][1] + timedelta(microseconds=1)


async def test_an_open_backfill_keeps_its_triggers_runs_also_by_count(world: World) -> None:
    await settled_hour(world)
    await world.backfill("a", at("10:00"), at("11:00"), at("11:01"))
    assert await world.store.prune_beyond(2, 0, 0, 100, 100) == PrunedBeyond(0, 0, None)
    await world.plan_all(at("11:01"))
    assert (await world.store.prune_beyond(2, 0, 0, 100, 100)).runs == 9


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
