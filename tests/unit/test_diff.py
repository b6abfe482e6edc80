"""What a change would do: fields by name, and slots as the planner itself would decide them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from horarium.app.diff import new_slots, revised, slot_diff, spec_changes
from horarium.core import trigger as decisions
from horarium.core.keys import TriggerKey
from horarium.core.plan import PlanInput, Window, plan
from horarium.core.revision import Revision, Status
from horarium.core.run import Run
from horarium.core.spec import CatchUp, TriggerEntry, TriggerSpec
from horarium.core.trigger import Trigger, TriggerState

NOW = datetime(2026, 1, 5, 10, 0, 30, tzinfo=UTC)
KEY = TriggerKey("default", "default", "tick", "default")
WINDOW = Window(min_runs=3, max_runs=10, min_scheduled_time=timedelta(minutes=1))
SPEC = TriggerSpec({"cron": "* * * * *"}, "local", {"run": "date"}, {"a": 1})


def state(spec: TriggerSpec = SPEC) -> TriggerState:
    """A trigger that was planned a moment ago: six runs ahead."""
    trigger = Trigger(1, KEY, str(KEY), None, 1, Status.ACTIVE, NOW, NOW)
    first = Revision(1, NOW - timedelta(days=1), Status.ACTIVE, spec)
    planned = plan(PlanInput(trigger, (first,), NOW), NOW, WINDOW)
    runs = tuple(
        Run(
            id=number,
            trigger_id=1,
            scheduled_time=item.due_at,
            origin=item.origin,
            name=item.name,
            revision=1,
            target_id=1,
            state=item.state,
            due_at=item.due_at,
            first_due_at=item.due_at,
        )
        for number, item in enumerate(planned.runs, start=1)
    )
    moved = replace(trigger, cursor=planned.cursor, plan_due_at=planned.plan_due_at)
    return TriggerState(moved, (first,), runs)


def minute(*minutes: int) -> tuple[datetime, ...]:
    return tuple(datetime(2026, 1, 5, 10, at, tzinfo=UTC) for at in minutes)


def test_equal_specs_differ_in_nothing() -> None:
    assert spec_changes(SPEC, replace(SPEC)) == ()


def test_fields_are_named_in_the_words_of_the_triggers_file() -> None:
    new = TriggerSpec(
        {"cron": "0 3 * * *", "timezone": "Europe/Berlin"},
        "local",
        {"run": "date", "timeout": 60},
        {"a": 2, "b": [1]},
        jitter=timedelta(minutes=5),
        catch_up=CatchUp.LATEST,
        owner="data",
    )
    assert [(item.field, item.old, item.new) for item in spec_changes(SPEC, new)] == [
        ("cron", "* * * * *", "0 3 * * *"),
        ("parameters.a", 1, 2),
        ("catch_up", "all", "latest"),
        ("owner", None, "data"),
        ("jitter", "0s", "5m"),
        ("timezone", None, "Europe/Berlin"),
        ("timeout", None, 60),
        ("parameters.b", None, [1]),
    ]


def test_another_rule_moves_slots() -> None:
    before = state()
    change = decisions.edit(before, replace(SPEC, schedule={"cron": "*/2 * * * *"}), "me", NOW)
    assert change is not None
    found = slot_diff(before, change, NOW, WINDOW)
    assert found.withdrawn == minute(1, 3, 5)
    assert found.added == minute(8, 10, 12)
    assert found.kept == 3
    assert [item.field for item in revised(before, change)] == ["cron"]


def test_other_parameters_keep_every_slot() -> None:
    before = state()
    change = decisions.edit(before, replace(SPEC, parameters={"a": 2}), "me", NOW)
    assert change is not None
    found = slot_diff(before, change, NOW, WINDOW)
    assert (found.withdrawn, found.added, found.kept) == ((), (), 6)


def test_what_is_owed_stays_out_of_it() -> None:
    before = state()
    later = NOW + timedelta(minutes=2)  # 10:02:30: two runs are owed
    change = decisions.edit(before, replace(SPEC, schedule={"cron": "0 * * * *"}), "me", later)
    assert change is not None
    found = slot_diff(before, change, later, WINDOW)
    assert found.withdrawn == minute(3, 4, 5, 6)


def test_a_delete_withdraws_what_is_ahead_and_skips_what_was_owed() -> None:
    before = state()
    later = NOW + timedelta(minutes=2)
    change = decisions.delete(before, "me", later)
    assert change is not None
    found = slot_diff(before, change, later, WINDOW)
    assert (found.withdrawn, found.added, found.skipped) == (minute(3, 4, 5, 6), (), 2)


def test_a_pause_withdraws_and_a_resume_plans_again() -> None:
    before = state()
    change = decisions.pause(before, "me", NOW)
    assert change is not None
    assert slot_diff(before, change, NOW, WINDOW).withdrawn == minute(1, 2, 3, 4, 5, 6)
    assert change.revision is not None
    paused = TriggerState(change.trigger, (*before.revisions, change.revision))
    again = decisions.resume(paused, "me", NOW)
    assert again is not None
    assert slot_diff(paused, again, NOW, WINDOW).added == minute(1, 2, 3, 4, 5, 6)


def test_a_new_trigger_brings_its_first_slots() -> None:
    entry = TriggerEntry(KEY, SPEC)
    assert new_slots(entry, "git/etl", NOW, WINDOW).added == minute(1, 2, 3, 4, 5, 6)
    asleep = TriggerEntry(KEY, replace(SPEC, active=False))
    assert new_slots(asleep, "git/etl", NOW, WINDOW).added == ()


def test_a_long_list_of_slots_is_cut_but_counted() -> None:
    wide = Window(min_runs=200, max_runs=300)
    shown = new_slots(TriggerEntry(KEY, SPEC), None, NOW, wide).to_json()
    assert (len(shown["runs_added"]), shown["runs_added_count"]) == (100, 300)
