"""change and change_run: the past does not change, nothing is lost between two edits, and a decision that
fails changes nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select

from horarium.core import trigger as decisions
from horarium.core.revision import Status
from horarium.core.run import Run, RunState
from horarium.core.spec import CatchUp
from horarium.core.trigger import Change, TriggerState
from horarium.errors import NotFound
from horarium.store import tables as t
from tests.store.world import NOW, World, at, fired, key, minutes, refused, unavailable

SECOND = timedelta(seconds=1)


async def test_an_edit_leaves_what_is_owed_and_replaces_what_is_ahead(world: World) -> None:
    await world.add("a", "*/5 * * * *", parameters={"v": 1})
    await world.plan(NOW)
    now = at("10:12")  # 10:05 and 10:10 are owed
    await world.edit("a", "*/7 * * * *", now, parameters={"v": 2})
    await world.plan(now)

    runs = await world.runs("a")
    assert [run.scheduled_time for run in runs] == [
        at("10:05"),
        at("10:10"),
        *minutes(7, now, now + timedelta(hours=2)),
    ]
    assert [run.revision for run in runs] == [1, 1] + [2] * (len(runs) - 2)
    claimed = (await world.claim(at("10:14"))).runs
    assert [item.spec.parameters for item in claimed] == [{"v": 2}, {"v": 1}, {"v": 1}]


async def test_a_to_b_to_a_within_a_look_ahead_loses_nothing(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    await world.edit("a", "0 0 1 1 *", at("10:01"))
    await world.plan(at("10:01"))
    assert await world.slots("a") == []
    await world.edit("a", "*/5 * * * *", at("10:03"))
    await world.plan(at("10:03"))
    assert await world.slots("a") == minutes(5, NOW, at("12:03"))


async def test_a_to_b_to_a_without_a_plan_between_owes_b_its_slots(world: World) -> None:
    """The planner was away for both edits; each slot belongs to the rule in force at that slot."""
    await world.add("a", "*/10 * * * *")
    await world.edit("a", "*/7 * * * *", at("10:15"))
    await world.edit("a", "*/10 * * * *", at("10:32"))
    await world.plan_all(at("11:00"))
    owed = [*minutes(10, NOW, at("10:15")), *minutes(7, at("10:15"), at("10:32"))]
    assert await world.slots("a") == [*owed, *minutes(10, at("10:32"), at("13:00"))]


async def test_the_same_rule_again_changes_nothing(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    before = await world.everything()
    assert await world.edit("a", "*/5 * * * *", at("10:01")) == []
    assert await world.everything() == before


async def test_an_editor_whose_clock_is_behind_never_goes_back(world: World) -> None:
    await world.add("a", now=NOW)
    await world.edit("a", "*/7 * * * *", NOW - timedelta(hours=1))
    rows = await world.rows(t.trigger_revision)
    assert [row.effective_from for row in rows] == [NOW, NOW]


async def test_a_change_takes_effect_no_earlier_than_a_slot_that_was_claimed_already(world: World) -> None:
    """The claim's clock is ahead of the editor's, or the editor waited for a lock: either way the slot was
    called under the old rule, pending or settled, and the new one begins after it."""
    for name, settle in (("a", False), ("b", True)):
        await world.add(name, "*/5 * * * *", parameters={"v": 1})
        await world.plan(NOW)
        (run,) = (await world.claim(at("10:05"))).runs
        if settle:
            await world.settle(fired(run.run, at("10:05")), now=at("10:05"))
        early = at("10:05") - timedelta(milliseconds=50)
        await world.edit(name, "*/7 * * * *", early, parameters={"v": 2})
        await world.plan(early)
        runs = await world.runs(name)
        assert [run.scheduled_time for run in runs] == [
            at("10:05"),
            *minutes(7, at("10:05"), at("10:05") + timedelta(hours=2)),
        ]
        assert [run.revision for run in runs] == [1] + [2] * (len(runs) - 1)
        await world.delete(name, early)
        trigger = await world.trigger(name)
        begins = [
            row.effective_from
            for row in await world.rows(t.trigger_revision)
            if row.trigger_id == trigger.id and row.number > 1
        ]
        assert begins == [at("10:05"), at("10:05")]


async def test_a_pause_withdraws_what_is_ahead_and_holds_what_is_owed(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    await world.pause("a", at("10:12"), note="maintenance")
    trigger = await world.trigger("a")
    assert (trigger.status, trigger.paused, trigger.pause_note) == (Status.PAUSED, True, "maintenance")
    assert await world.slots("a", state="held") == [at("10:05"), at("10:10")]
    assert await world.slots("a", state="scheduled") == []
    assert (await world.claim(at("10:13"))).runs == ()


async def test_a_resume_releases_what_was_held_and_records_the_paused_interval(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    await world.pause("a", at("10:12"))
    await world.resume("a", at("10:31"))
    await world.plan_all(at("10:31"))
    assert await world.slots("a", state="scheduled") == [
        at("10:05"),
        at("10:10"),
        *minutes(5, at("10:31"), at("12:31")),
    ]
    assert await world.skips("a") == [(at("10:15"), at("10:30"), 4, "paused")]


async def test_a_resume_judges_held_runs_by_catch_up(world: World) -> None:
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.LATEST)
    await world.plan(NOW)
    await world.pause("a", at("10:12"))
    await world.resume("a", at("10:31"))
    assert await world.slots("a", state="scheduled") == [at("10:10")]
    assert await world.skips("a") == [(at("10:05"), at("10:05"), 1, "catch_up_latest")]


async def test_an_edit_gives_the_last_owed_latest_run_its_new_successor(world: World) -> None:
    await world.add("a", "*/5 * * * *", catch_up=CatchUp.LATEST)
    await world.plan(NOW)
    await world.edit("a", "0 * * * *", at("10:07"), catch_up=CatchUp.LATEST)
    (owed,) = await world.runs("a")
    assert (owed.scheduled_time, owed.expires_at) == (at("10:05"), at("11:00"))


async def test_a_waiting_retry_of_a_paused_trigger_is_held(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    (claimed,) = (await world.claim(at("10:05"))).runs
    await world.settle(unavailable(claimed.run, at("10:05"), at("10:06")), now=at("10:05"))
    await world.pause("a", at("10:05:30"))
    (run,) = await world.runs("a")
    assert run.state is RunState.HELD
    await world.resume("a", at("10:20"))
    (run, *_) = await world.runs("a")
    assert (run.state, run.due_at) == (RunState.SCHEDULED, at("10:20"))


async def test_a_pause_leaves_a_live_lease_alone(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    (claimed,) = (await world.claim(at("10:05"))).runs
    await world.pause("a", at("10:05:30"))
    (run,) = await world.runs("a")
    assert (run.state, run.lease_owner) == (RunState.SCHEDULED, "me")
    assert await world.settle(fired(claimed.run, at("10:05:40")), now=at("10:05:40")) == {run.id}


async def test_a_delete_turns_all_that_is_owed_into_skips_and_moves_the_cursor(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    (claimed,) = (await world.claim(at("10:05"))).runs
    await world.settle(fired(claimed.run, at("10:05")), now=at("10:05"))
    await world.delete("a", at("10:12"))

    trigger = await world.trigger("a")
    assert (trigger.status, trigger.cursor, trigger.plan_due_at) == (Status.DELETED, at("10:12"), None)
    assert await world.slots("a") == [at("10:05")]
    assert await world.skips("a") == [(at("10:10"), at("10:10"), 1, "deleted")]


async def test_a_delete_of_a_trigger_the_planner_never_saw_counts_its_slots(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.delete("a", at("11:00"))
    assert await world.skips("a") == [(at("10:05"), at("11:00"), 12, "deleted")]


async def test_a_slot_cancelled_ahead_is_counted_once_by_a_later_delete(world: World) -> None:
    await world.add("a", "*/10 * * * *")
    await world.plan(NOW)
    ahead = next(run for run in await world.runs("a") if run.scheduled_time == at("10:30"))
    await world.store.change_run(
        ahead.id, lambda state, run: decisions.cancel_run(state, run, "ann", at("10:01")), at("10:01"), "ann"
    )
    await world.edit("a", "*/10 * * * *", at("10:02"), parameters={"n": 1})
    await world.delete("a", at("11:00"))
    assert await world.skips("a") == [
        (at("10:10"), at("10:20"), 2, "deleted"),
        (at("10:30"), at("10:30"), 1, "cancelled"),
        (at("10:40"), at("11:00"), 3, "deleted"),
    ]


async def test_a_slot_cancelled_ahead_stays_cancelled_through_an_edit(world: World) -> None:
    await world.add("a", "*/10 * * * *")
    await world.plan(NOW)
    ahead = next(run for run in await world.runs("a") if run.scheduled_time == at("10:30"))
    await world.store.change_run(
        ahead.id, lambda state, run: decisions.cancel_run(state, run, "ann", at("10:01")), at("10:01"), "ann"
    )
    await world.edit("a", "*/10 * * * *", at("10:02"), parameters={"n": 1})
    await world.plan(at("10:02"))
    expected = [slot for slot in minutes(10, NOW, at("12:02")) if slot != at("10:30")]
    assert await world.slots("a") == expected
    assert await world.skips("a") == [(at("10:30"), at("10:30"), 1, "cancelled")]


async def test_deleted_and_added_again_is_the_same_trigger_and_owes_nothing_between(world: World) -> None:
    first = await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    await world.delete("a", at("10:07"))
    again = await world.add("a", "*/5 * * * *", now=at("10:31"))
    assert (again.id, again.hash_seed) == (first.id, first.hash_seed)
    assert again.revision == 3
    await world.plan_all(at("10:31"))
    assert await world.slots("a") == minutes(5, at("10:31"), at("12:31"))
    assert await world.skips("a") == [(at("10:05"), at("10:05"), 1, "deleted")]


async def test_a_delete_ends_backfills_and_what_was_tried_ends_failed(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    (claimed,) = (await world.claim(at("10:05"))).runs
    await world.settle(unavailable(claimed.run, at("10:05"), at("10:06")), now=at("10:05"))
    await world.backfill("a", at("09:00"), at("10:00"), at("10:05:20"))
    await world.delete("a", at("10:05:30"))
    (run,) = await world.runs("a")
    assert run.state is RunState.FAILED
    assert run.reason == "trigger deleted by ann while it waited"
    (row,) = await world.rows(t.backfill)
    assert (row.state, row.ended_at) == ("ended", at("10:05:30"))


# single runs


async def test_a_cancelled_slot_becomes_a_skip(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    (first, *_) = await world.runs("a")
    changed = await world.store.change_run(
        first.id, lambda state, run: decisions.cancel_run(state, run, "ann", NOW), NOW, "ann"
    )
    assert changed is not None
    assert changed.change.what == "cancel"
    assert await world.skips("a") == [(at("10:05"), at("10:05"), 1, "cancelled")]
    assert at("10:05") not in await world.slots("a")


async def test_a_failed_run_is_retried_by_hand_with_the_spec_of_its_own_revision(world: World) -> None:
    await world.add("a", "*/5 * * * *", parameters={"v": 1})
    await world.plan(NOW)
    (claimed,) = (await world.claim(at("10:05"))).runs
    await world.settle(refused(claimed.run, at("10:05")), now=at("10:05"))
    await world.edit("a", "0 0 1 1 *", at("10:06"), parameters={"v": 2})
    seen: list[int] = []

    def retry(state: TriggerState, run: Run) -> Change | None:
        seen.append(int(state.spec_of(run.revision).parameters["v"]))  # type: ignore[arg-type]  # it is 1
        return decisions.retry_run(state, run, at("10:30"))

    await world.store.change_run(claimed.run.id, retry, at("10:30"), "ann")
    assert seen == [1]
    (again,) = (await world.claim(at("10:30"))).runs
    assert (again.run.id, again.run.attempt, again.spec.parameters) == (claimed.run.id, 2, {"v": 1})
    assert again.run.first_claimed_at == at("10:30")


async def test_none_from_a_decision_writes_nothing(world: World) -> None:
    await world.add("a")
    await world.plan(NOW)
    (first, *_) = await world.runs("a")
    before = await world.everything()
    assert await world.change("a", lambda state: None, at("10:01")) == []
    assert await world.store.change_run(first.id, lambda state, run: None, at("10:01"), "ann") is None
    assert await world.everything() == before


# what a decision may look at


async def test_a_decision_sees_pending_runs_their_revisions_and_open_backfills(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    await world.plan(NOW)
    await world.edit("a", "*/10 * * * *", at("10:06"))
    await world.plan(at("10:06"))
    await world.backfill("a", at("09:00"), at("09:10"), at("10:07"))
    states: list[TriggerState] = []

    def note(state: TriggerState) -> None:
        states.append(state)

    await world.change("a", note, at("10:08"))
    (state,) = states
    assert [item.number for item in state.revisions] == [1, 2]
    assert [run.scheduled_time for run in state.pending] == [at("10:05"), *minutes(10, NOW, at("12:06"))]
    assert [(item.from_time, item.to_time) for item in state.backfills] == [(at("09:00"), at("09:10"))]
    assert state.current.spec.schedule == {"cron": "*/10 * * * *"}


async def test_revisions_that_decide_nothing_more_are_not_read(world: World) -> None:
    await world.add("a", "*/5 * * * *")
    for minute in range(1, 5):
        await world.edit("a", f"{minute} * * * *", NOW + timedelta(minutes=minute))
    await world.plan_all(at("10:50"))
    for run in (await world.claim(at("11:00"))).runs:
        await world.settle(fired(run.run, at("11:00")), now=at("11:00"))
    states: list[TriggerState] = []
    await world.change("a", lambda state: states.append(state), at("11:01"))
    assert [item.number for item in states[0].revisions] == [5]


# atomicity


async def test_a_key_that_was_never_there_is_not_found_and_nothing_is_changed(world: World) -> None:
    await world.add("a")
    before = await world.everything()
    with pytest.raises(NotFound, match="never"):
        await world.store.change(
            [key("a"), key("never")], lambda state: decisions.pause(state, "ann", NOW), NOW, "ann"
        )
    with pytest.raises(NotFound):
        await world.store.change_run(4_711, lambda state, run: None, NOW, "ann")
    assert await world.everything() == before


async def test_a_decision_that_raises_on_the_last_of_three_changes_none(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.add(name)
    await world.plan(NOW)
    before = await world.everything()

    def decide(state: TriggerState) -> Change | None:
        if state.trigger.key == key("c"):
            raise LookupError("not this one")
        return decisions.pause(state, "ann", at("10:01"))

    with pytest.raises(LookupError):
        await world.store.change([key("a"), key("b"), key("c")], decide, at("10:01"), "ann")
    assert await world.everything() == before


async def test_a_change_that_breaks_a_check_changes_nothing(world: World) -> None:
    """An active trigger without a plan_due_at would be stuck for ever: the database refuses it."""
    from dataclasses import replace

    from sqlalchemy.exc import IntegrityError

    await world.add("a")
    before = await world.everything()
    with pytest.raises(IntegrityError):
        await world.change("a", lambda state: Change("break", replace(state.trigger, plan_due_at=None)), NOW)
    assert await world.everything() == before


async def test_every_change_is_in_the_audit(world: World) -> None:
    await world.add("a")
    await world.pause("a", at("10:01"))
    await world.resume("a", at("10:02"))
    await world.edit("a", "0 * * * *", at("10:03"))
    await world.delete("a", at("10:04"))
    rows = await world.store.fetch(
        select(t.audit.c.what, t.audit.c.who, t.audit.c.key).order_by(t.audit.c.id)
    )
    assert [tuple(row) for row in rows] == [
        (what, "ann", "default/default/a/default") for what in ("create", "pause", "resume", "edit", "delete")
    ]
