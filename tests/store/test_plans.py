"""lease_due and apply_plans: each slot is decided once, whoever plans it and whatever changes meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update

from horarium.clock import SystemClock
from horarium.core.keys import long_run_name, run_name
from horarium.core.plan import Window, failed_plan, plan
from horarium.core.revision import Status
from horarium.core.run import Origin, RunState
from horarium.core.spec import CatchUp, TriggerEntry, TriggerSpec
from horarium.engine.planner import Planner
from horarium.engine.wake import Wake
from horarium.store import tables as t
from tests.store.world import NOW, World, at, entry, fired, key, listing, minutes


async def test_a_plan_writes_runs_cursor_and_the_next_time_together(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    applied = await world.plan(NOW)

    ahead = minutes(5, NOW, NOW + timedelta(hours=2))
    trigger = await world.trigger("a")
    assert await world.slots("a") == ahead
    assert applied.won == {trigger.id}
    assert applied.runs == len(ahead)
    assert trigger.cursor == ahead[-1]
    assert trigger.plan_due_at is not None
    assert trigger.plan_due_at > NOW
    (run, *_) = await world.runs("a")
    assert run.name == run_name(key("a"), run.scheduled_time)
    assert (run.state, run.attempt, run.due_at) == (RunState.SCHEDULED, 0, run.scheduled_time)


async def test_a_quiet_trigger_is_not_leased(world: World) -> None:
    await world.add("a")
    assert len(await world.lease(NOW)) == 1
    await world.plan(NOW + timedelta(minutes=1))
    assert await world.lease(NOW + timedelta(minutes=1)) == []


async def test_the_earliest_are_leased_first_and_at_most_the_limit(world: World) -> None:
    for minute, name in ((3, "c"), (1, "a"), (2, "b")):
        await world.add(name, now=NOW + timedelta(minutes=minute))
    leased = await world.lease(NOW + timedelta(minutes=5), limit=2)
    assert [item.trigger.key.deployment for item in leased] == ["a", "b"]
    assert await world.store.next_plan_due() is not None


async def test_two_planners_of_one_trigger_decide_each_slot_once(world: World) -> None:
    await world.add("a")
    (given,) = await world.lease(NOW)
    both = [plan(given, NOW, Window()), plan(given, NOW + timedelta(seconds=1), Window())]

    first = await world.store.apply_plans(both[:1], NOW)
    second = await world.store.apply_plans(both[1:], NOW)

    assert first.won == {given.trigger.id}
    assert second.lost == {given.trigger.id}
    assert second.runs == 0
    assert await world.slots("a") == minutes(5, NOW, NOW + timedelta(hours=2))


@pytest.mark.parametrize("moved", ["revision", "cursor", "plan_due_at"])
async def test_each_part_of_the_compare_and_set_refuses_a_stale_plan(world: World, moved: str) -> None:
    trigger = await world.add("a")
    (given,) = await world.lease(NOW)
    stale = plan(given, NOW, Window())
    tick = timedelta(microseconds=1)
    values: dict[str, Any] = {
        "revision": trigger.revision + 1,
        "cursor": trigger.cursor + tick,
        "plan_due_at": given.token + tick,
    }
    await world.run_sql(update(t.trigger).where(t.trigger.c.id == trigger.id).values({moved: values[moved]}))

    applied = await world.store.apply_plans([stale], NOW)

    assert applied.lost == {trigger.id}
    assert not applied.won
    assert await world.runs() == []
    assert (await world.trigger("a")).plan_due_at != stale.plan_due_at


async def test_an_edit_while_a_plan_is_computed_wins(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    (given,) = await world.lease(NOW)
    stale = plan(given, NOW, Window())
    await world.edit("a", "*/7 * * * *", NOW + timedelta(seconds=1))

    applied = await world.store.apply_plans([stale], NOW + timedelta(seconds=2))
    assert applied.lost == {given.trigger.id}
    await world.plan(NOW + timedelta(seconds=2))
    assert await world.slots("a") == minutes(7, NOW, NOW + timedelta(hours=2))


async def test_a_rename_while_a_plan_is_computed_wins(world: World) -> None:
    """It bumps no revision and moves no cursor, but the plan's names are of the old key."""
    await world.sync(listing(entry("old")))
    (given,) = await world.lease(NOW)
    stale = plan(given, NOW, Window())
    await world.sync(listing(entry("new", renamed_from="old/default")), NOW + timedelta(seconds=1))

    assert (await world.store.apply_plans([stale], NOW + timedelta(seconds=2))).runs == 0
    await world.plan(NOW + timedelta(seconds=2))
    (run, *_) = await world.runs("new")
    assert run.name == run_name(key("new"), run.scheduled_time)


async def test_a_loser_in_a_batch_costs_nobody_else(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.add(name)
    plans = [plan(item, NOW, Window()) for item in await world.lease(NOW)]
    await world.pause("b", NOW + timedelta(seconds=1))

    applied = await world.store.apply_plans(plans, NOW + timedelta(seconds=2))

    assert applied.lost == {(await world.trigger("b")).id}
    ahead = minutes(5, NOW, NOW + timedelta(hours=2))
    assert await world.slots("a") == await world.slots("c") == ahead
    assert await world.slots("b") == []


async def test_a_slot_that_has_a_run_keeps_it(world: World) -> None:
    """An edit moves the cursor back; the slot that was claimed already is not made again."""
    await world.add("a")
    await world.plan(NOW)
    first = (await world.slots("a"))[0]
    await world.claim(first)
    await world.edit("a", "*/5 * * * *", NOW + timedelta(minutes=1), parameters={"n": 1})
    await world.plan(NOW + timedelta(minutes=2))
    runs = await world.runs("a")
    assert [run.scheduled_time for run in runs] == minutes(5, NOW, NOW + timedelta(hours=2))
    assert [run.revision for run in runs[:2]] == [1, 2]
    assert runs[0].attempt == 1


async def test_a_name_that_another_slot_has_gives_way_to_the_long_name(world: World) -> None:
    other = await world.add("other", "0 0 1 1 *")
    await world.add("a")
    await world.plan(NOW, Window(min_runs=1, max_runs=1))  # "other" is out of the way
    await world.edit("a", "*/10 * * * *", NOW)
    slots = minutes(10, NOW, NOW + timedelta(hours=2))
    taken = run_name(key("a"), slots[1])
    await world.run_sql(
        insert(t.run).values(
            trigger_id=other.id,
            scheduled_time=NOW,
            origin="schedule",
            project="default",
            domain="default",
            name=taken,
            revision=1,
            target_id=await world.target_id(),
            state="fired",
            due_at=NOW,
            first_due_at=NOW,
        )
    )

    applied = await world.plan(NOW)

    assert applied.renamed == 1
    runs = await world.runs("a")
    assert [run.scheduled_time for run in runs] == slots
    assert [run.name for run in runs] == [
        long_run_name(key("a"), slot) if slot == slots[1] else run_name(key("a"), slot) for slot in slots
    ]
    assert applied.runs == len(slots)


async def test_a_plan_of_a_target_that_is_not_there_changes_nothing(world: World) -> None:
    """A batch with one bad plan is refused whole, so that the planner can take it apart."""
    await world.add("a")
    await world.add("b")
    plans = [plan(item, NOW, Window()) for item in await world.lease(NOW)]
    bad = replace(plans[1], runs=tuple(run._replace(target="gone") for run in plans[1].runs))
    before = await world.everything()
    with pytest.raises(Exception, match="gone"):
        await world.store.apply_plans([plans[0], bad], NOW)
    assert await world.everything() == before


@pytest.mark.parametrize("poison", ["rule", "target"])
async def test_one_poison_trigger_in_a_batch_of_a_hundred_costs_itself(world: World, poison: str) -> None:
    await world.sync(listing(*(entry(f"t{number:03}", "0 * * * *") for number in range(100))))
    bad = await world.trigger("t042")
    revision = (await world.rows(t.trigger_revision))[41]
    spoiled = (
        {**revision.spec, "schedule": {"cron": "not a rule"}}
        if poison == "rule"
        else {**revision.spec, "target": "gone"}
    )
    await world.run_sql(
        update(t.trigger_revision).where(t.trigger_revision.c.trigger_id == bad.id).values(spec=spoiled)
    )

    clock = Standing()
    planner = Planner(world.store, clock, Window(), Wake())
    assert await planner.run_once() == 100

    ahead = [NOW + timedelta(hours=hour) for hour in range(1, 7)]
    for item in await world.triggers():
        if item.id == bad.id:
            continue
        assert item.error is None
        assert item.cursor == ahead[-1]
    assert len(await world.runs()) == 99 * len(ahead)
    bad = await world.trigger("t042")
    assert bad.error is not None
    assert ("not a rule" if poison == "rule" else "gone") in bad.error
    assert (bad.cursor, bad.status, bad.error_count) == (NOW, Status.ACTIVE, 1)
    assert bad.plan_due_at == NOW + timedelta(minutes=1)


class Standing(SystemClock):
    """A clock that stands still at NOW; the monotonic one moves."""

    def now(self) -> datetime:
        return NOW


async def test_an_error_backs_off_and_goes_away_with_the_next_good_plan(world: World) -> None:
    await world.add("a")
    for count in (1, 2):
        now = NOW + timedelta(minutes=10 * count)
        (given,) = await world.lease(now)
        await world.store.apply_plans([failed_plan(given, ValueError("no"), now)], now)
        trigger = await world.trigger("a")
        assert (trigger.error, trigger.error_count) == ("ValueError: no", count)
        assert trigger.plan_due_at == now + timedelta(minutes=count)
    await world.plan_all(NOW + timedelta(hours=1))
    trigger = await world.trigger("a")
    assert (trigger.error, trigger.error_count) == (None, 0)
    assert await world.slots("a") == minutes(5, NOW, NOW + timedelta(hours=3))


async def test_a_trigger_after_its_last_slot_is_finished(world: World) -> None:
    once = TriggerSpec(schedule={"at": "2026-01-05T11:00:00Z"}, target="work")
    await world.sync(listing(TriggerEntry(key("once"), once)))
    await world.plan(NOW)
    trigger = await world.trigger("once")
    assert (trigger.status, trigger.plan_due_at) == (Status.ACTIVE, at("11:00"))
    await world.plan(at("11:00"))
    trigger = await world.trigger("once")
    assert (trigger.status, trigger.plan_due_at) == (Status.FINISHED, None)
    assert await world.slots("once") == [at("11:00")]


# catch-up, as the store keeps it


async def test_skips_of_catch_up_are_written_with_their_counts(world: World) -> None:
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    await world.plan_all(at("12:02"))
    assert await world.skips("a") == [(at("10:05"), at("12:00"), 24, "catch_up_none")]
    assert await world.slots("a") == minutes(5, at("12:02"), at("14:02"))


async def test_a_long_catch_up_comes_in_bounded_steps_and_loses_nothing(world: World) -> None:
    await world.add("a", "* * * * *")
    window = Window(max_catchup_runs=40)
    now = at("13:00")
    sizes = []
    for _ in range(5):
        sizes.append((await world.plan(now, window)).runs)
    assert sizes[:4] == [40, 40, 40, 40]
    await world.plan_all(now, window)
    assert await world.slots("a", origin="schedule") == minutes(1, NOW, now + timedelta(hours=2))[: 180 + 100]


# backfills


async def test_a_backfill_fills_holes_takes_over_pending_runs_and_repeats_nothing(world: World) -> None:
    await world.add("a", "*/10 * * * *")
    await world.plan(NOW)
    for slot in (at("10:10"), at("10:20")):
        (claimed,) = (await world.claim(slot)).runs
        await world.settle(fired(claimed.run, slot), now=slot)
    # 10:30 and 10:40 are owed; 09:00 to 10:00 is before the trigger was there: holes.
    now = at("10:45")
    await world.backfill("a", at("09:30"), now, now)
    await world.plan_all(now)

    by_slot = {run.scheduled_time: run for run in await world.runs("a")}
    assert sorted(by_slot) == minutes(10, at("09:29"), now + timedelta(hours=2))
    backfilled = [slot for slot, run in by_slot.items() if run.origin is Origin.BACKFILL]
    assert sorted(backfilled) == [
        at("09:30"),
        at("09:40"),
        at("09:50"),
        at("10:00"),
        at("10:30"),
        at("10:40"),
    ]
    assert all(by_slot[slot].expires_at is None for slot in backfilled)
    (row,) = await world.rows(t.backfill)
    assert (row.state, row.runs) == ("done", 6)

    before = await world.runs("a")
    await world.backfill("a", at("09:30"), now, now + timedelta(seconds=1))
    await world.plan_all(now + timedelta(seconds=1))
    assert await world.runs("a") == before
    assert [(row.state, row.runs) for row in await world.rows(t.backfill)] == [("done", 6), ("done", 0)]


async def test_a_backfill_splits_the_skip_it_fills_into(world: World) -> None:
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    now = at("12:02")
    await world.plan_all(now)  # 10:05 to 12:00 are one skip of 24
    await world.backfill("a", at("10:58"), at("11:11"), now)
    await world.plan_all(now)
    assert await world.skips("a") == [
        (at("10:05"), at("10:55"), 11, "catch_up_none"),
        (at("11:15"), at("12:00"), 10, "catch_up_none"),
    ]
    assert await world.slots("a", origin="backfill") == [at("11:00"), at("11:05"), at("11:10")]

    await world.backfill("a", at("10:00"), at("12:00"), now + timedelta(seconds=1))
    await world.plan_all(now + timedelta(seconds=1))
    assert await world.skips("a") == []
    assert await world.slots("a", origin="backfill") == minutes(5, at("09:59"), at("12:00"))


async def test_a_backfill_in_small_steps_splits_as_one_big_step_does(world: World) -> None:
    window = Window(max_catchup_runs=2)
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.NONE)
    now = at("12:02")
    await world.plan_all(now)
    await world.backfill("a", at("10:30"), at("10:55"), now)
    await world.plan_all(now, window)
    assert await world.slots("a", origin="backfill") == minutes(5, at("10:25"), at("10:55"))
    assert [skip[:3] for skip in await world.skips("a")] == [
        (at("10:05"), at("10:25"), 5),
        (at("11:00"), at("12:00"), 13),
    ]
    (row,) = await world.rows(t.backfill)
    assert (row.state, row.runs) == ("done", 6)


async def test_a_backfill_works_while_its_trigger_is_paused(world: World) -> None:
    await world.add("a", "*/10 * * * *")
    await world.pause("a", NOW)
    now = at("11:00")
    await world.backfill("a", at("10:10"), at("10:30"), now)
    await world.plan_all(now)
    runs = await world.runs("a")
    assert [(run.scheduled_time, run.origin, run.state) for run in runs] == [
        (slot, Origin.BACKFILL, RunState.SCHEDULED) for slot in minutes(10, NOW, at("10:30"))
    ]
    assert await world.skips("a") == [(at("10:40"), at("11:00"), 3, "paused")]


async def test_resume_with_backfill_fills_the_paused_interval(world: World) -> None:
    await world.add("a", "*/10 * * * *")
    await world.plan(NOW)
    await world.pause("a", at("10:15"))
    await world.resume("a", at("10:45"), backfill=True)
    await world.plan_all(at("10:46"))
    assert await world.slots("a") == minutes(10, NOW, at("12:46"))
    assert await world.slots("a", origin="backfill") == [at("10:20"), at("10:30"), at("10:40")]
    assert await world.skips("a") == []


async def test_a_backfilled_slot_with_a_taken_name_gets_the_long_name(world: World) -> None:
    other = await world.add("other", "0 0 1 1 *")
    await world.add("a", "*/10 * * * *")
    await world.plan(NOW)
    slot = at("09:30")
    await world.run_sql(
        insert(t.run).values(
            trigger_id=other.id,
            scheduled_time=NOW,
            origin="schedule",
            project="default",
            domain="default",
            name=run_name(key("a"), slot),
            revision=1,
            target_id=await world.target_id(),
            state="fired",
            due_at=NOW,
            first_due_at=NOW,
        )
    )
    now = NOW + timedelta(seconds=1)
    await world.backfill("a", slot, slot, now)
    applied = await world.plan(now)
    assert (applied.runs, applied.renamed) == (1, 1)
    (run,) = await world.runs("a", origin="backfill")
    assert run.name == long_run_name(key("a"), slot)
