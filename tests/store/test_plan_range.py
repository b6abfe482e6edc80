"""Runs of a range that a person asks for: plain runs, made before the window reaches them, and once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import insert

from horarium.core.freeze import Owed, Scope, ScopeKind
from horarium.core.keys import long_run_name, run_name
from horarium.core.plan import Unplanned, Window
from horarium.core.revision import Status
from horarium.core.run import Origin, Run, RunState
from horarium.core.spec import CatchUp, TriggerEntry, TriggerSpec
from horarium.core.trigger import cancel_run
from horarium.store import tables as t
from horarium.store.base import Audit
from tests.store.world import NOW, World, at, key, listing, minutes

SMALL = Window(min_runs=1, max_runs=100, min_scheduled_time=timedelta(minutes=10))
"""A plan fills twenty minutes."""
NEAR = minutes(5, NOW, at("10:20"))
FAR = minutes(5, at("11:55"), at("13:00"))
LOW, HIGH = at("12:00"), at("13:00")


async def near_and_far(world: World, **rest: Any) -> None:
    """A window that is planned, and a range far behind it."""
    await world.add("a", **rest)
    await world.plan(NOW, SMALL)
    assert await world.slots("a") == NEAR
    found = await world.plan_range("a", LOW, HIGH, NOW)
    assert (found.planned, found.existing, found.decided) == (len(FAR), 0, 0)


async def test_the_runs_of_a_range_are_those_that_the_planner_makes(world: World) -> None:
    """With jitter, an end and a parameter: nothing of a run tells who made it."""
    rest: dict[str, Any] = {
        "jitter": timedelta(seconds=40),
        "catch_up": CatchUp.LATEST,
        "max_age": timedelta(minutes=9),
    }
    await world.add("a", **rest)
    await world.plan_range("a", NOW, at("12:00"), NOW)
    made = await world.runs("a")
    await world.delete("a", NOW)
    await world.add("a", **rest)
    await world.plan(NOW)
    planned = await world.runs("a")
    assert [run.scheduled_time for run in made] == minutes(5, NOW, at("12:00"))
    assert [plain(run) for run in made] == [plain(run) for run in planned]


def plain(run: Run) -> tuple[object, ...]:
    return (
        *(run.scheduled_time, run.origin, run.name, run.state, run.due_at, run.first_due_at),
        *(run.expires_at, run.target_id, run.utc_offset, run.attempt),
    )


async def test_both_ends_are_in_the_range_and_the_cursor_stays(world: World) -> None:
    await near_and_far(world)
    assert await world.slots("a") == [*NEAR, *FAR]
    assert (await world.trigger("a")).cursor == NEAR[-1]
    assert (await world.trigger("a")).plan_due_at == NOW


async def test_the_same_range_again_writes_nothing(world: World) -> None:
    await near_and_far(world)
    before = await world.everything()
    again = await world.plan_range("a", LOW, HIGH, NOW + timedelta(seconds=1))
    assert (again.planned, again.existing, again.decided) == (0, len(FAR), 0)
    assert await world.everything() == before


async def test_a_range_over_the_window_counts_what_is_there(world: World) -> None:
    await world.add("a")
    await world.plan(NOW, SMALL)
    found = await world.plan_range("a", at("10:10"), at("10:30"), NOW)
    assert (found.planned, found.existing) == (2, 3)
    assert await world.slots("a") == minutes(5, NOW, at("10:30"))


async def test_the_window_goes_on_as_if_they_were_not_there_and_doubles_none(world: World) -> None:
    """Top-ups come at the same moments, count the same, and pass by what is there."""
    await near_and_far(world)
    await world.add("b")
    await world.plan(NOW, SMALL)
    now = NOW
    while now < at("13:30"):
        for name in ("a", "b"):
            upcoming = [slot for slot in await world.slots(name) if slot > now]
            assert upcoming[: 10 // 5] == minutes(5, now, now + timedelta(minutes=10))
        a, b = await world.trigger("a"), await world.trigger("b")
        assert (a.cursor, a.plan_due_at) == (b.cursor, b.plan_due_at)
        assert a.plan_due_at is not None
        now = a.plan_due_at
        await world.plan(now, SMALL)
    cursor = (await world.trigger("a")).cursor
    assert await world.slots("a") == await world.slots("b") == minutes(5, NOW, cursor)


async def test_they_are_claimed_at_their_time_though_nobody_has_planned_since(world: World) -> None:
    await near_and_far(world)
    claimed = await world.claim(at("12:00"))
    assert {item.run.scheduled_time for item in claimed.runs} == {*NEAR, at("12:00")}
    await world.plan_all(at("12:01"), SMALL)
    assert await world.slots("a") == minutes(5, NOW, HIGH)


async def test_an_edit_withdraws_them_and_they_come_back_with_the_window_only(world: World) -> None:
    await near_and_far(world)
    now = NOW + timedelta(minutes=1)
    await world.edit("a", "*/10 * * * *", now)
    await world.plan_all(now, SMALL)
    assert await world.slots("a") == minutes(10, now, at("10:20"))


async def test_a_pause_withdraws_them_and_a_freeze_holds_them(world: World) -> None:
    await near_and_far(world)
    scope = Scope(ScopeKind.PROJECT, "default")
    await world.store.freeze(scope, None, "ann", NOW)
    assert {run.state for run in await world.runs("a")} == {RunState.HELD}
    found = await world.plan_range("a", at("14:00"), at("14:00"), NOW)
    assert found.planned == 1
    assert {run.state for run in await world.runs("a")} == {RunState.HELD}, "what is made now is held too"
    await world.store.release(scope, Owed.ALL, "ann", NOW)
    assert await world.slots("a", state="scheduled") == [*NEAR, *FAR, at("14:00")]
    await world.pause("a", NOW)
    assert await world.slots("a") == []
    paused = await world.plan_range("a", LOW, HIGH, NOW)
    assert (paused.refused, paused.planned) == (Unplanned.PAUSED, 0)
    assert await world.slots("a") == []


async def test_one_that_is_cancelled_stays_so_whoever_plans(world: World) -> None:
    await near_and_far(world)
    (run,) = [item for item in await world.runs("a") if item.scheduled_time == at("12:30")]
    await world.store.change_run(run.id, lambda state, item: cancel_run(state, item, "ann", NOW), NOW, "ann")
    again = await world.plan_range("a", LOW, HIGH, NOW)
    assert (again.planned, again.existing, again.decided) == (0, len(FAR) - 1, 1)
    await world.plan_all(NOW)
    await world.plan_all(at("12:10"))
    assert at("12:30") not in await world.slots("a")
    assert await world.skips("a") == [(at("12:30"), at("12:30"), 1, "cancelled")]


async def test_a_delete_takes_them_along(world: World) -> None:
    await near_and_far(world)
    await world.delete("a", at("10:07"))
    assert await world.runs("a") == []
    assert await world.skips("a") == [(at("10:05"), at("10:05"), 1, "deleted")]
    assert (await world.plan_range("a", LOW, HIGH, at("10:08"))).refused is Unplanned.DELETED


async def test_a_first_look_skips_those_that_expired_while_nobody_was_there(world: World) -> None:
    """`latest` drops a slot whose successor has come, whoever has planned it, and keeps the last."""
    await near_and_far(world, catch_up=CatchUp.LATEST)
    await world.look(at("11:58"))
    _, skipped = await world.look(at("12:22"))
    assert skipped == 4
    assert [slot for slot in await world.slots("a") if slot > at("11:58")] == minutes(5, at("12:15"), HIGH)
    await world.plan_all(at("12:22"), SMALL)
    slots = {
        *await world.slots("a"),
        *(slot for first, last, _, _ in await world.skips("a") for slot in every(first, last)),
    }
    assert slots == set(minutes(5, NOW, HIGH)), "each slot is a run or in a skip, and none is lost"


def every(first: datetime, last: datetime) -> list[datetime]:
    return minutes(5, first - timedelta(seconds=1), last)


async def test_a_backfill_takes_over_those_whose_time_has_come(world: World) -> None:
    await near_and_far(world)
    now = at("12:12")
    await world.backfill("a", at("12:00"), at("12:10"), now)
    await world.plan_all(now, SMALL)
    assert await world.slots("a", origin="backfill") == [at("12:00"), at("12:05"), at("12:10")]
    assert await world.slots("a") == minutes(5, NOW, HIGH)


async def test_more_than_there_is_room_for_is_nothing(world: World) -> None:
    await world.add("a")
    before = await world.everything()
    found = await world.plan_range("a", LOW, HIGH, NOW, room=len(FAR) - 1)
    assert found.change is None
    assert found.last == FAR[-2], "the range up to there would do"
    assert await world.everything() == before
    assert (await world.plan_range("a", LOW, HIGH, NOW, room=len(FAR))).planned == len(FAR)


async def test_what_has_come_is_the_planners(world: World) -> None:
    await world.add("a")
    found = await world.plan_range("a", NOW, at("12:00"), at("11:50"))
    assert found.planned == 2
    assert await world.slots("a") == [at("11:55"), at("12:00")]
    await world.plan_all(at("11:50"), SMALL)
    assert await world.slots("a") == minutes(5, NOW, at("12:10"))


async def test_a_trigger_after_its_last_slot_has_nothing_to_plan(world: World) -> None:
    once = TriggerSpec(schedule={"at": "2027-02-09T10:00:00Z"}, target="work")
    await world.sync(listing(TriggerEntry(key("a"), once)))
    found = await world.plan_range("a", NOW, NOW + timedelta(days=401), NOW)
    assert found.planned == 1, "further than the window ever reaches"
    await world.plan_all(NOW)
    assert await world.slots("a") == [NOW + timedelta(days=400)]
    await world.claim(NOW + timedelta(days=400))
    await world.plan_all(NOW + timedelta(days=401))
    assert (await world.trigger("a")).status is Status.FINISHED
    later = NOW + timedelta(days=402)
    assert (await world.plan_range("a", later, later, later)).refused is Unplanned.FINISHED


async def test_a_name_that_another_slot_has_gives_way_to_the_long_name(world: World) -> None:
    other = await world.add("other", "0 0 1 1 *")
    await world.add("a")
    taken = run_name(key("a"), at("12:05"))
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
    await world.plan_range("a", LOW, at("12:10"), NOW)
    names = {run.scheduled_time: run.name for run in await world.runs("a")}
    assert names == {
        LOW: run_name(key("a"), LOW),
        at("12:05"): long_run_name(key("a"), at("12:05")),
        at("12:10"): run_name(key("a"), at("12:10")),
    }


async def test_it_is_in_the_audit(world: World) -> None:
    await near_and_far(world)
    line = (await world.rows(t.audit))[-1]
    assert Audit(line.who, line.what, line.kind, line.key, line.detail) == Audit(
        "ann",
        "plan",
        "trigger",
        "default/default/a/default",
        {"from": "2026-01-05T12:00:00Z", "to": "2026-01-05T13:00:00Z", "runs": len(FAR)},
    )
    assert {run.origin for run in await world.runs("a")} == {Origin.SCHEDULE}
