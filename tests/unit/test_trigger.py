"""Edits, pauses, deletes: what each does to the runs there are. The store suite shows the same with rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from horarium.core import trigger as decisions
from horarium.core.keys import TriggerKey
from horarium.core.revision import Revision, Skip, Status
from horarium.core.run import Origin, Run, RunState
from horarium.core.spec import CatchUp, TriggerSpec
from horarium.core.trigger import Backfill, Change, Trigger, TriggerState

NOW = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
T = NOW + 12 * MINUTE


def spec(cron: str = "*/5 * * * *", **rest: object) -> TriggerSpec:
    return TriggerSpec(schedule={"cron": cron}, target="work", **rest)  # type: ignore[arg-type]  # spec's own words


def run(minute: int, **values: object) -> Run:
    """The slot at 10:`minute`, its id the minute."""
    at = NOW + minute * MINUTE
    fresh = Run(minute, 1, at, Origin.SCHEDULE, f"r{minute}", 1, 1, RunState.SCHEDULED, at, at)
    return replace(fresh, **values)  # type: ignore[arg-type]  # the row's own words


def state(*pending: Run, of: TriggerSpec | None = None, **values: object) -> TriggerState:
    """Planned to 10:30; owed runs are those at or before T (10:12)."""
    of = of or spec()
    trigger = Trigger(
        1, TriggerKey("p", "d", "a", "b"), "p/d/a/b", None, 1, Status.ACTIVE, NOW + 30 * MINUTE, NOW
    )
    trigger = replace(trigger, **values)  # type: ignore[arg-type]  # the row's own words
    return TriggerState(trigger, (Revision(1, NOW, Status.ACTIVE, of),), pending)


def made(change: Change | None) -> Change:
    assert change is not None
    return change


def after(of: TriggerState, change: Change) -> TriggerState:
    """The state as a store would read it next."""
    updates: dict[int, dict[str, object]] = {}
    for item in change.updated:
        updates.setdefault(item.id, {}).update(item.values)
    pending = tuple(
        replace(item, **updates.get(item.id, {}))  # type: ignore[arg-type]  # columns are fields
        for item in of.pending
        if item.id not in change.withdrawn
    )
    revisions = of.revisions if change.revision is None else (*of.revisions, change.revision)
    return TriggerState(change.trigger, revisions, pending)


def test_an_edit_takes_later_runs_that_nobody_claimed() -> None:
    leased = run(20, attempt=1, lease_owner="me", due_at=T + MINUTE)
    backfill = run(25, origin=Origin.BACKFILL)
    change = made(
        decisions.edit(state(run(5), run(10), run(15), leased, backfill), spec("0 * * * *"), "ann", T)
    )
    assert change.withdrawn == (15,)
    assert (change.trigger.cursor, change.trigger.plan_due_at, change.trigger.revision) == (T, T, 2)
    assert change.revision == Revision(2, T, Status.ACTIVE, spec("0 * * * *"), "edit", "ann")


def test_a_slot_at_the_very_instant_of_an_edit_belongs_to_the_old_rule() -> None:
    change = made(decisions.edit(state(run(10), run(15)), spec("0 * * * *"), "ann", NOW + 10 * MINUTE))
    assert change.withdrawn == (15,)


def test_a_cursor_that_is_behind_stays_behind() -> None:
    """The planner has yet to decide the slots between; the old rule owes them."""
    behind = NOW + 3 * MINUTE
    change = made(decisions.edit(state(cursor=behind), spec("0 * * * *"), "ann", T))
    assert change.trigger.cursor == behind


def test_the_same_rule_is_no_change() -> None:
    assert decisions.edit(state(run(15)), spec(), "ann", T) is None


def test_effective_from_never_goes_back() -> None:
    change = made(decisions.edit(state(), spec("0 * * * *"), "ann", NOW - MINUTE))
    assert change.revision is not None
    assert change.revision.effective_from == NOW


def test_an_edit_keeps_the_operators_pause() -> None:
    paused = after(state(), made(decisions.pause(state(), "ann", T)))
    change = made(decisions.edit(paused, spec("0 * * * *"), "team", T + MINUTE))
    assert (change.trigger.paused, change.trigger.status) == (True, Status.PAUSED)


def test_a_pause_holds_what_has_no_live_lease() -> None:
    given = state(
        run(5),
        run(6, attempt=1, lease_owner="me", due_at=T + MINUTE),
        run(7, attempt=1, lease_owner="dead", due_at=T - MINUTE),
        run(8, attempt=1, due_at=T + MINUTE),
        run(9, origin=Origin.BACKFILL),
        run(15),
    )
    change = made(decisions.pause(given, "ann", T))
    held = {item.id: item.values["outcome_unknown"] for item in change.updated if "state" in item.values}
    assert held == {5: False, 7: True, 8: False}
    assert change.withdrawn == (15,)


def test_a_pause_again_with_another_note_moves_no_revision() -> None:
    paused = after(state(), made(decisions.pause(state(), "ann", T)))
    assert decisions.pause(paused, "ann", T) is None
    change = made(decisions.pause(paused, "ann", T, note="until monday", resume_at=T + MINUTE))
    assert change.revision is None
    assert (change.trigger.pause_note, change.trigger.plan_due_at) == ("until monday", T)


def test_a_pause_is_theirs_who_wrote_its_note() -> None:
    paused = after(state(), made(decisions.pause(state(), "ann", T, note="loud")))
    noted = made(decisions.pause(paused, "ben", T + MINUTE, note="until monday")).trigger
    assert (noted.paused_by, noted.paused_at) == ("ben", T)
    later = made(decisions.pause(paused, "ben", T, note="loud", resume_at=T + MINUTE)).trigger
    assert (later.paused_by, later.resume_at) == ("ann", T + MINUTE)


@pytest.mark.parametrize(
    ("catch_up", "released", "skipped"),
    [(CatchUp.ALL, [5, 10], []), (CatchUp.LATEST, [10], [5]), (CatchUp.NONE, [], [5, 10])],
)
def test_a_resume_releases_what_was_held_as_catch_up_says(
    catch_up: CatchUp, released: list[int], skipped: list[int]
) -> None:
    given = state(run(5), run(10), of=spec(catch_up=catch_up))
    paused = after(given, made(decisions.pause(given, "ann", T)))
    change = made(decisions.resume(paused, "ann", T + 20 * MINUTE))
    assert [item.id for item in change.updated if item.values.get("state") is RunState.SCHEDULED] == released
    assert list(change.withdrawn) == skipped
    assert [skip.first for skip in change.skips] == [NOW + minute * MINUTE for minute in skipped]
    assert change.trigger.paused is False


def test_a_tried_run_is_released_whatever_catch_up_says() -> None:
    given = state(run(5, attempt=1, due_at=T + MINUTE), of=spec(catch_up=CatchUp.NONE))
    paused = after(given, made(decisions.pause(given, "ann", T)))
    assert made(decisions.resume(paused, "ann", T + 20 * MINUTE)).withdrawn == ()


def test_a_resume_can_fill_the_paused_interval() -> None:
    paused = after(state(), made(decisions.pause(state(), "ann", T)))
    change = made(decisions.resume(paused, "ann", T + 20 * MINUTE, backfill=True))
    assert change.backfill == (T + timedelta(seconds=1), T + 20 * MINUTE)


def test_a_slot_at_the_instant_of_a_pause_was_owed_before_it() -> None:
    """A backfill of the pause would run it whatever the trigger's catch-up policy says."""
    slot = NOW + 10 * MINUTE
    given = state(run(10), of=spec(catch_up=CatchUp.NONE))
    paused = after(given, made(decisions.pause(given, "ann", slot)))
    change = made(decisions.resume(paused, "ann", T + 20 * MINUTE, backfill=True))
    assert change.withdrawn == (10,)
    assert [(skip.first, skip.count) for skip in change.skips] == [(slot, 1)]
    assert change.backfill is not None
    assert change.backfill[0] > slot


def test_a_pause_that_held_no_whole_second_has_nothing_to_fill() -> None:
    paused = after(state(), made(decisions.pause(state(), "ann", T)))
    soon = T + timedelta(milliseconds=900)
    assert made(decisions.resume(paused, "ann", soon, backfill=True)).backfill is None


def test_a_delete_accounts_for_every_run() -> None:
    given = state(
        run(5),
        run(6, attempt=1, lease_owner="me", due_at=T + MINUTE),
        run(7, attempt=1, due_at=T + MINUTE),
        run(9, origin=Origin.MANUAL, request_key="k"),
        run(15),
    )
    given = replace(given, backfills=(Backfill(3, 1, NOW, T, NOW),))
    change = made(decisions.delete(given, "ann", T))
    assert change.withdrawn == (5, 15)
    assert change.skips == (Skip(1, NOW + 5 * MINUTE, NOW + 5 * MINUTE, 1, "deleted", "deleted by ann"),)
    assert {item.id: item.values["state"] for item in change.updated} == {
        7: RunState.FAILED,
        9: RunState.CANCELLED,
    }
    assert change.ended_backfills == (3,)
    assert (change.trigger.cursor, change.trigger.plan_due_at) == (T, None)
    assert decisions.delete(after(given, change), "ann", T) is None


def test_a_delete_counts_what_the_planner_had_not_decided_but_not_twice() -> None:
    given = state(cursor=NOW)
    cancelled = NOW + 15 * MINUTE
    given = replace(given, decided=((cancelled, cancelled),))
    change = made(decisions.delete(given, "ann", NOW + 31 * MINUTE))
    assert [(skip.first, skip.last, skip.count) for skip in change.skips] == [
        (NOW + 5 * MINUTE, NOW + 10 * MINUTE, 2),
        (NOW + 20 * MINUTE, NOW + 30 * MINUTE, 3),
    ]


def test_a_revival_owes_nothing_before_it() -> None:
    deleted = after(state(), made(decisions.delete(state(), "ann", T)))
    change = made(decisions.edit(deleted, spec(), "bob", T + 20 * MINUTE))
    assert (change.what, change.trigger.cursor, change.trigger.status) == (
        "revive",
        T + 20 * MINUTE,
        Status.ACTIVE,
    )


def test_cancel_leaves_a_leased_run_alone() -> None:
    leased = run(10, attempt=1, lease_owner="me", due_at=T + MINUTE)
    assert decisions.cancel_run(state(leased), leased, "ann", T) is None
    tried = run(10, attempt=1, due_at=T + MINUTE)
    change = made(decisions.cancel_run(state(tried), tried, "ann", T))
    assert [item.values["state"] for item in change.updated] == [RunState.FAILED]


def test_only_a_failed_run_is_retried_by_hand() -> None:
    assert decisions.retry_run(state(), run(10, state=RunState.FIRED), T) is None
    change = made(decisions.retry_run(state(), run(10, state=RunState.FAILED, attempt=3), T))
    (item,) = change.updated
    assert (item.values["state"], item.values["due_at"]) == (RunState.SCHEDULED, T)
