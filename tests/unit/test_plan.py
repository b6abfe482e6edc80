"""plan(): when a top-up is due, how a step is bounded, what catch-up decides, what a backfill fills.

Expected slots are counted here, with nothing of horarium.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from horarium.core.keys import TriggerKey
from horarium.core.plan import Plan, PlanInput, Unplanned, Window, failed_plan, plan, plan_range
from horarium.core.revision import Revision, Skip, Status
from horarium.core.run import Origin, RunState
from horarium.core.spec import CatchUp, TriggerSpec
from horarium.core.trigger import Backfill, Trigger, TriggerState

NOW = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def given(
    schedule: dict[str, object],
    cursor: datetime = NOW,
    *later: Revision,
    state: Status = Status.ACTIVE,
    backfills: tuple[Backfill, ...] = (),
    decided: tuple[tuple[datetime, datetime], ...] = (),
    **rest: object,
) -> PlanInput:
    spec = TriggerSpec(schedule=schedule, target="work", **rest)  # type: ignore[arg-type]  # spec's own words
    revisions = (Revision(1, min(cursor, NOW), state, spec), *later)
    last = revisions[-1]
    trigger = Trigger(
        1, TriggerKey("p", "d", "a", "b"), "p/d/a/b", None, last.number, last.state, cursor, NOW
    )
    return PlanInput(trigger, revisions, NOW, backfills, decided)


def cron(text: str) -> dict[str, object]:
    return {"cron": text}


def slots(found: Plan) -> list[datetime]:
    return [datetime.fromtimestamp(run.scheduled_time, UTC) for run in found.runs]


def stepped(start: datetime, step: timedelta, count: int) -> list[datetime]:
    return [start + step * number for number in range(1, count + 1)]


# the window ahead


def test_a_frequent_rule_covers_twice_the_minimum_time() -> None:
    assert slots(plan(given(cron("*/5 * * * *")), NOW, Window())) == stepped(NOW, 5 * MINUTE, 24)


def test_a_rare_rule_has_twice_the_minimum_runs() -> None:
    found = plan(given(cron("0 * * * *")), NOW, Window())
    assert slots(found) == stepped(NOW, HOUR, 6)
    assert found.cursor == NOW + 6 * HOUR


def test_never_more_than_max_runs() -> None:
    assert len(plan(given({"every": "1s"}), NOW, Window()).runs) == 100


def test_never_past_the_maximum_time() -> None:
    found = plan(given(cron("0 0 1 * *")), NOW, Window())
    assert slots(found) == [datetime(2026, month, 1, tzinfo=UTC) for month in (2, 3, 4)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"every": "1s"}, 50),
        ({"every": "5s"}, 50),
        (cron("* * * * *"), 40),
        (cron("*/5 * * * *"), 12),
        (cron("0 * * * *"), 3),
        (cron("0 0 * * *"), 3),
        (cron("0 0 1 1 *"), 1),
    ],
)
def test_each_top_up_brings_many_runs(schedule: dict[str, object], expected: int) -> None:
    """A planner that woke for each slot would do its work fifty times."""
    item = given(schedule)
    found = plan(item, NOW, Window())
    for _ in range(4):
        assert found.plan_due_at is not None
        trigger = replace(item.trigger, cursor=found.cursor, plan_due_at=found.plan_due_at)
        item = replace(item, trigger=trigger, token=found.plan_due_at)
        found = plan(item, found.plan_due_at, Window())
        assert len(found.runs) == expected


def test_a_top_up_is_due_before_the_promise_would_fail() -> None:
    found = plan(given(cron("0 * * * *")), NOW, Window())
    # Six runs; three are left when the fourth hour strikes, so it is due a second earlier.
    assert found.plan_due_at == NOW + 4 * HOUR - timedelta(seconds=1)


def test_a_full_window_is_not_looked_at_before_there_is_room() -> None:
    found = plan(given(cron("* * * * *")), NOW, Window(max_runs=3, min_runs=3))
    assert found.plan_due_at == NOW + MINUTE


def test_the_last_slot_ends_a_trigger_only_once_it_has_come() -> None:
    once: dict[str, object] = {"at": "2026-01-05T11:00:00Z"}
    found = plan(given(once), NOW, Window())
    assert (found.status, found.plan_due_at) == (Status.ACTIVE, NOW + HOUR)
    done = plan(given(once, found.cursor), NOW + HOUR, Window())
    assert (done.status, done.plan_due_at, done.runs) == (Status.FINISHED, None, ())


def test_a_slot_cancelled_ahead_gets_no_run() -> None:
    cancelled = NOW + 10 * MINUTE
    found = plan(given(cron("*/5 * * * *"), decided=((cancelled, cancelled),)), NOW, Window())
    assert cancelled not in slots(found)
    assert len(slots(found)) == 23


# the past


def test_a_step_is_bounded_by_runs_and_the_cursor_stands_at_the_last_decided_slot() -> None:
    now = NOW + 5 * HOUR
    found = plan(given(cron("* * * * *")), now, Window(max_catchup_runs=7))
    assert slots(found) == stepped(NOW, MINUTE, 7)
    assert (found.cursor, found.plan_due_at) == (NOW + 7 * MINUTE, now)


def test_a_step_is_bounded_by_the_instants_it_walks() -> None:
    now = NOW + 5 * HOUR
    found = plan(given(cron("* * * * *"), catch_up=CatchUp.NONE), now, Window(max_walk=10))
    assert found.skips == (Skip(1, NOW + MINUTE, NOW + 10 * MINUTE, 10, "catch_up_none"),)
    assert found.cursor == NOW + 10 * MINUTE


def test_latest_runs_the_newest_owed_slot_only() -> None:
    now = NOW + 32 * MINUTE
    found = plan(given(cron("*/5 * * * *"), catch_up=CatchUp.LATEST), now, Window())
    assert slots(found)[0] == NOW + 30 * MINUTE
    assert found.skips == (Skip(1, NOW + 5 * MINUTE, NOW + 25 * MINUTE, 5, "catch_up_latest"),)


def test_none_still_runs_what_is_within_the_grace() -> None:
    now = NOW + 30 * MINUTE + timedelta(seconds=59)
    found = plan(given(cron("*/5 * * * *"), catch_up=CatchUp.NONE), now, Window())
    assert slots(found)[0] == NOW + 30 * MINUTE


def test_max_age_counts_from_the_first_try() -> None:
    now = NOW + 32 * MINUTE
    found = plan(given(cron("*/5 * * * *"), max_age=12 * MINUTE), now, Window())
    assert slots(found)[:3] == [NOW + 20 * MINUTE, NOW + 25 * MINUTE, NOW + 30 * MINUTE]
    assert found.skips == (Skip(1, NOW + 5 * MINUTE, NOW + 15 * MINUTE, 3, "max_age"),)


def test_each_slot_is_decided_by_the_revision_in_force_at_it() -> None:
    later = Revision(
        2, NOW + 30 * MINUTE, Status.ACTIVE, TriggerSpec(schedule=cron("*/7 * * * *"), target="work")
    )
    found = plan(given(cron("*/10 * * * *"), NOW, later), NOW + 50 * MINUTE, Window())
    past = [(at, run.revision) for at, run in zip(slots(found), found.runs, strict=True)][:5]
    assert past == [
        (NOW + 10 * MINUTE, 1),
        (NOW + 20 * MINUTE, 1),
        (NOW + 30 * MINUTE, 1),
        (NOW + 35 * MINUTE, 2),
        (NOW + 42 * MINUTE, 2),
    ]


def test_a_deleted_interval_owes_nothing_and_a_paused_one_is_a_skip() -> None:
    spec = TriggerSpec(schedule=cron("*/10 * * * *"), target="work")
    paused = Revision(2, NOW + 15 * MINUTE, Status.PAUSED, spec)
    deleted = Revision(3, NOW + 35 * MINUTE, Status.DELETED, spec)
    back = Revision(4, NOW + 55 * MINUTE, Status.ACTIVE, spec)
    found = plan(given(cron("*/10 * * * *"), NOW, paused, deleted, back), NOW + 62 * MINUTE, Window())
    assert slots(found)[:2] == [NOW + 10 * MINUTE, NOW + 60 * MINUTE]
    assert found.skips == (Skip(2, NOW + 20 * MINUTE, NOW + 30 * MINUTE, 2, "paused"),)


def test_owed_slots_of_a_paused_trigger_are_held() -> None:
    spec = TriggerSpec(schedule=cron("*/10 * * * *"), target="work")
    paused = Revision(2, NOW + 15 * MINUTE, Status.PAUSED, spec)
    found = plan(given(cron("*/10 * * * *"), NOW, paused), NOW + 20 * MINUTE, Window())
    assert [(run.state, run.revision) for run in found.runs] == [(RunState.HELD, 1)]
    assert (found.status, found.plan_due_at) == (Status.PAUSED, None)


@pytest.mark.parametrize(
    ("catch_up", "expires"),
    [
        (CatchUp.ALL, None),
        (CatchUp.LATEST, NOW + 10 * MINUTE),
        (CatchUp.NONE, NOW + 5 * MINUTE + timedelta(seconds=60)),
    ],
)
def test_a_planned_run_carries_the_time_at_which_catch_up_gives_it_up(
    catch_up: CatchUp, expires: datetime | None
) -> None:
    found = plan(given(cron("*/5 * * * *"), catch_up=catch_up), NOW, Window())
    assert found.runs[0].expires_at == expires


# backfills


def backfill(low: datetime, high: datetime) -> Backfill:
    return Backfill(1, 1, low, high, low - timedelta(microseconds=1))


def test_a_backfill_includes_both_ends() -> None:
    item = given(cron("*/5 * * * *"), backfills=(backfill(NOW - HOUR, NOW - 50 * MINUTE),))
    found = plan(item, NOW, Window())
    filled = [at for at, run in zip(slots(found), found.runs, strict=True) if run.origin is Origin.BACKFILL]
    assert filled == [NOW - HOUR, NOW - 55 * MINUTE, NOW - 50 * MINUTE]
    assert [(step.cursor, step.done) for step in found.backfills] == [(NOW - 50 * MINUTE, True)]


def test_a_backfill_goes_in_bounded_steps() -> None:
    item = given(cron("*/5 * * * *"), backfills=(backfill(NOW - HOUR, NOW),))
    found = plan(item, NOW, Window(max_catchup_runs=4))
    assert [(step.cursor, step.done) for step in found.backfills] == [(NOW - 45 * MINUTE, False)]
    assert found.plan_due_at == NOW


def test_a_backfill_waits_for_slots_that_are_not_decided_yet() -> None:
    """Else a slot would be a backfill run and inside a skip of catch-up at once."""
    now = NOW + HOUR
    item = given(cron("*/5 * * * *"), catch_up=CatchUp.NONE, backfills=(backfill(NOW - HOUR, now),))
    found = plan(item, now, Window(max_walk=2))
    filled = [at for at, run in zip(slots(found), found.runs, strict=True) if run.origin is Origin.BACKFILL]
    assert filled[-1] == NOW + 10 * MINUTE == found.cursor
    assert [(step.cursor, step.done) for step in found.backfills] == [(NOW + 10 * MINUTE, False)]


# errors


def test_a_trigger_that_cannot_be_planned_says_why_and_tries_later_and_later() -> None:
    item = given(cron("*/5 * * * *"))
    found = failed_plan(item, ValueError("no such rule"), NOW)
    assert (found.error, found.plan_due_at) == ("ValueError: no such rule", NOW + MINUTE)
    assert (found.cursor, found.runs, found.status) == (NOW, (), Status.ACTIVE)
    often = replace(item, trigger=replace(item.trigger, error_count=50))
    assert failed_plan(often, ValueError("x"), NOW).plan_due_at == NOW + HOUR


# a range that a person wants


def ranged(given: PlanInput, low: datetime, high: datetime, now: datetime = NOW) -> list[datetime]:
    found = plan_range(TriggerState(given.trigger, given.revisions), low, high, now, 1_000)
    assert found.change is not None
    return [datetime.fromtimestamp(run.scheduled_time, UTC) for run in found.change.planned]


def test_a_range_includes_both_ends_to_the_microsecond() -> None:
    item = given(cron("*/5 * * * *"))
    tick = timedelta(microseconds=1)
    first, last = NOW + HOUR, NOW + HOUR + 5 * MINUTE
    assert ranged(item, first, last) == [first, last]
    assert ranged(item, first + tick, last) == [last]
    assert ranged(item, first, last - tick) == [first]


def test_a_range_begins_after_now_and_after_the_revision() -> None:
    """An older rule's slots, which a clock that was ahead left, are the planner's."""
    item = given(cron("*/5 * * * *"))
    assert ranged(item, NOW, NOW + 10 * MINUTE) == stepped(NOW, 5 * MINUTE, 2)
    edited = replace(item.revisions[0], number=2, effective_from=NOW + 5 * MINUTE)
    item = replace(item, revisions=(*item.revisions, edited))
    assert ranged(item, NOW, NOW + 10 * MINUTE) == [NOW + 10 * MINUTE]


def test_a_range_is_not_planned_by_other_rules_of_the_clock_than_the_window_was() -> None:
    """The planner would withdraw it at once, since it plans anew what the old rules named."""
    item = given({"cron": "0 9 * * *", "timezone": "Europe/Berlin"})
    low, high = NOW, NOW + 72 * HOUR
    fresh = plan_range(TriggerState(item.trigger, item.revisions), low, high, NOW, 10)
    assert fresh.change is not None
    noted = fresh.change.trigger
    assert (noted.zone_digest is None, noted.tzdata_version is None) == (False, False)
    there = plan_range(TriggerState(noted, item.revisions), low, high, NOW, 10)
    assert (there.refused, there.planned) == (None, 3)
    moved = replace(item.trigger, zone_digest="another")
    refused = plan_range(TriggerState(moved, item.revisions), low, high, NOW, 10)
    assert (refused.refused, refused.change) == (Unplanned.TZDATA, None)
