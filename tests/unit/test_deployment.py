"""The pause of a deployment beside each trigger's own and its spec's `active`: none of them moves another."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from horarium.core import deployment
from horarium.core import trigger as decisions
from horarium.core.deployment import Deployment, DeploymentChange, DeploymentState, Pause
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.plan import PlanInput, Window, plan
from horarium.core.revision import Revision, Status
from horarium.core.run import Origin, Run, RunState
from horarium.core.spec import TriggerSpec
from horarium.core.trigger import Trigger, TriggerState

NOW = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
T = NOW + 12 * MINUTE
LATER = T + 10 * MINUTE
KEY = DeploymentKey("p", "d", "a")


def run(trigger_id: int, minute: int) -> Run:
    """The slot at 10:`minute`."""
    at = NOW + minute * MINUTE
    number = 100 * trigger_id + minute
    return Run(number, trigger_id, at, Origin.SCHEDULE, f"r{number}", 1, 1, RunState.SCHEDULED, at, at)


def trigger(number: int, *pending: Run, active: bool = True) -> TriggerState:
    key = TriggerKey("p", "d", "a", f"t{number}")
    spec = TriggerSpec(schedule={"cron": "*/5 * * * *"}, target="work", active=active)
    status = Status.ACTIVE if active else Status.PAUSED
    row = Trigger(number, key, str(key), None, 1, status, NOW + 30 * MINUTE, NOW)
    return TriggerState(row, (Revision(1, NOW, status, spec),), pending)


def state(*triggers: TriggerState, pause: Pause | None = None, **since: datetime) -> DeploymentState:
    row = Deployment(1, KEY, "digest", False, NOW, pause)
    return DeploymentState(row, triggers, {int(name[1:]): at for name, at in since.items()})


def made(change: DeploymentChange | None) -> DeploymentChange:
    assert change is not None
    return change


def after(of: DeploymentState, change: DeploymentChange) -> DeploymentState:
    """The state as a store would read it next."""
    changed = {before.trigger.id: (before, item) for before, item in change.triggers}
    triggers = []
    for item in of.triggers:
        if item.trigger.id in changed:
            before, wanted = changed[item.trigger.id]
            item = TriggerState(wanted.trigger, (*before.revisions, *wanted.revisions), item.pending)
        triggers.append(item)
    since = {
        item.trigger.id: of.paused_since.get(item.trigger.id, item.current.effective_from)
        for item in triggers
        if item.current.deployment_paused
    }
    return DeploymentState(change.deployment, tuple(triggers), since)


def statuses(of: DeploymentState) -> list[Status]:
    return [item.trigger.status for item in of.triggers]


def test_a_pause_stops_every_trigger_as_its_own_would() -> None:
    one = trigger(1, run(1, 10), run(1, 15))
    change = made(deployment.pause(state(one, trigger(2)), "ann", T, note="moving house"))
    assert change.deployment.pause == Pause("ann", T, "moving house")
    (_, first), (_, second) = change.triggers
    assert (first.withdrawn, [(item.id, item.values["state"]) for item in first.updated]) == (
        (115,),
        [(110, RunState.HELD)],
    )
    own = decisions.pause(one, "ann", T)
    assert own is not None
    assert (first.withdrawn, first.updated, first.skips) == (own.withdrawn, own.updated, own.skips)
    for item in (first, second):
        assert item.revision is not None
        assert (item.revision.state, item.revision.deployment_paused) == (Status.PAUSED, True)
        assert (item.revision.effective_from, item.what) == (T, "pause-deployment")
        assert not item.trigger.paused


def test_each_ones_own_pause_and_its_spec_stay_what_they_are() -> None:
    own = trigger(1)
    change = decisions.pause(own, "ben", T, note="mine", resume_at=LATER)
    assert change is not None
    own = replace(own, trigger=change.trigger, revisions=(*own.revisions, *change.revisions))
    before = state(own, trigger(2, active=False), trigger(3))
    paused = after(before, made(deployment.pause(before, "ann", T)))
    assert statuses(paused) == [Status.PAUSED] * 3
    kept = paused.triggers[0].trigger
    assert (kept.paused, kept.pause_note, kept.paused_by, kept.resume_at) == (True, "mine", "ben", LATER)

    resumed = after(paused, made(deployment.resume(paused, "ann", LATER)))
    assert resumed.deployment.pause is None
    assert statuses(resumed) == [Status.PAUSED, Status.PAUSED, Status.ACTIVE]
    kept = resumed.triggers[0].trigger
    assert (kept.paused, kept.pause_note, kept.paused_by, kept.resume_at) == (True, "mine", "ben", LATER)


def test_a_trigger_that_is_resumed_in_a_paused_deployment_does_not_run_yet() -> None:
    before = state(trigger(1))
    paused = after(before, made(deployment.pause(before, "ann", T)))
    (one,) = paused.triggers
    own = decisions.pause(one, "ben", T + MINUTE)
    assert own is not None
    one = replace(one, trigger=own.trigger, revisions=(*one.revisions, *own.revisions))
    change = decisions.resume(one, "ben", LATER)
    assert change is not None
    assert (change.trigger.paused, change.trigger.status) == (False, Status.PAUSED)
    assert change.revision is not None
    assert change.revision.deployment_paused


def test_an_edit_and_a_change_of_shadow_do_not_end_it() -> None:
    before = state(trigger(1))
    (one,) = after(before, made(deployment.pause(before, "ann", T))).triggers
    spec = TriggerSpec(schedule={"cron": "0 * * * *"}, target="work")
    for change in (decisions.edit(one, spec, "team", LATER), decisions.shadow(one, True, "ann", LATER)):
        assert change is not None
        assert change.revision is not None
        assert (change.trigger.status, change.revision.deployment_paused) == (Status.PAUSED, True)


@pytest.mark.parametrize("into", [True, False])
def test_a_trigger_that_comes_from_elsewhere_takes_the_mark_of_where_it_is(into: bool) -> None:
    """Renamed or revived, with the same rule; the store says what its deployment is."""
    before = state(trigger(1))
    (one,) = after(before, made(deployment.pause(before, "ann", T))).triggers if not into else before.triggers
    change = decisions.edit(one, one.current.spec, "team", LATER, deployment_paused=into)
    assert change is not None
    assert change.revision is not None
    assert change.revision.deployment_paused is into
    assert change.trigger.status is (Status.PAUSED if into else Status.ACTIVE)


def test_the_slots_meanwhile_are_a_skip_that_says_whose_pause_it_was() -> None:
    before = state(trigger(1))
    (one,) = after(before, made(deployment.pause(before, "ann", T))).triggers
    row = replace(one.trigger, cursor=T, plan_due_at=LATER)
    decided = plan(PlanInput(row, one.revisions, LATER), LATER, Window())
    assert [(skip.count, skip.reason, skip.detail) for skip in decided.skips] == [
        (2, "paused", "its deployment was paused")
    ]
    gone = decisions.delete(replace(one, trigger=row), "ann", LATER)
    assert gone is not None
    assert [(skip.reason, skip.detail) for skip in gone.skips] == [("paused", "its deployment was paused")]


def test_a_tombstone_is_left_alone() -> None:
    one = trigger(1)
    deleted = decisions.delete(one, "ann", T)
    assert deleted is not None
    one = replace(one, trigger=deleted.trigger, revisions=(*one.revisions, *deleted.revisions))
    paused = made(deployment.pause(state(one), "ann", T))
    assert paused.triggers == ()
    assert made(deployment.resume(state(one, pause=Pause("ann", T)), "ann", LATER)).triggers == ()


def test_the_same_pause_again_is_no_change_and_another_note_is_one() -> None:
    before = state(trigger(1))
    paused = after(before, made(deployment.pause(before, "ann", T, note="a")))
    assert deployment.pause(paused, "ben", LATER, note="a") is None
    noted = made(deployment.pause(paused, "ben", LATER, note="b"))
    assert (noted.deployment.pause, noted.triggers) == (Pause("ben", T, "b"), ())


def test_the_same_pause_again_stops_a_trigger_that_an_older_program_has_made() -> None:
    before = state(trigger(1))
    paused = after(before, made(deployment.pause(before, "ann", T)))
    again = made(deployment.pause(replace(paused, triggers=(*paused.triggers, trigger(2))), "ann", LATER))
    assert [item.trigger.id for item, _ in again.triggers] == [2]


def test_what_is_not_paused_is_not_resumed() -> None:
    assert deployment.resume(state(trigger(1)), "ann", T) is None


def test_a_backfill_is_of_those_that_go_on_and_of_the_time_that_each_was_paused() -> None:
    own = trigger(2)
    change = decisions.pause(own, "ben", T)
    assert change is not None
    own = replace(own, trigger=change.trigger, revisions=(*own.revisions, *change.revisions))
    before = state(trigger(1), own, trigger(3), trigger(4))
    paused = after(before, made(deployment.pause(before, "ann", T)))
    # The third is in shadow; the fourth was made, or came back, five minutes after.
    since = {1: T, 2: T, 4: T + 5 * MINUTE}
    change_of = made(deployment.resume(replace(paused, paused_since=since), "ann", LATER, backfill=True))
    second = timedelta(seconds=1)
    assert [(item.trigger.id, found.backfill) for item, found in change_of.triggers] == [
        (1, (T + second, LATER)),
        (2, None),
        (3, None),
        (4, (T + 5 * MINUTE + second, LATER)),
    ]


def test_a_backfill_of_a_pause_that_lasted_no_second_is_none() -> None:
    before = state(trigger(1))
    paused = after(before, made(deployment.pause(before, "ann", T)))
    ((_, change),) = made(deployment.resume(paused, "ann", T, backfill=True)).triggers
    assert (change.backfill, change.trigger.status) == (None, Status.ACTIVE)
