"""Freezes: what a release gives up, and how plans and changes keep a frozen trigger still."""

from __future__ import annotations

from dataclasses import replace

import pytest

from horarium.core import trigger as decisions
from horarium.core.freeze import EVERYTHING, Owed, Scope, given_up
from horarium.core.keys import DeploymentKey
from horarium.core.plan import PlanInput, Window, plan
from horarium.core.run import Origin, RunState
from horarium.core.spec import CatchUp
from horarium.core.trigger import Backfill
from tests.unit.test_trigger import MINUTE, NOW, T, after, made, run, spec, state

HELD = RunState.HELD


@pytest.mark.parametrize(("owed", "gone"), [(Owed.ALL, []), (Owed.LATEST, [5, 6]), (Owed.DROP, [5, 6, 7, 8])])
def test_a_release_gives_up_none_all_but_the_latest_of_each_trigger_or_all(
    owed: Owed, gone: list[int]
) -> None:
    runs = [run(7), run(5), replace(run(8), trigger_id=2), replace(run(6), trigger_id=2)]
    assert sorted(item.id for item in given_up(owed, runs)) == gone


def test_a_scope_says_what_it_is() -> None:
    assert str(EVERYTHING) == "everything"
    assert str(Scope.deployment(DeploymentKey("p", "d", "a"))) == "deployment p/d/a"
    assert [item.of_targets for item in (EVERYTHING, Scope.target("x"), Scope.project("x"))] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(("frozen", "states"), [(True, {HELD}), (False, {RunState.SCHEDULED})])
def test_a_frozen_trigger_is_planned_as_held_backfills_too(frozen: bool, states: set[RunState]) -> None:
    of = state(frozen=frozen)
    fill = Backfill(1, 1, NOW - 10 * MINUTE, NOW, NOW - 11 * MINUTE)
    found = plan(PlanInput(of.trigger, of.revisions, NOW, (fill,)), NOW + 31 * MINUTE, Window())
    assert {item.origin for item in found.runs} == {Origin.SCHEDULE, Origin.BACKFILL}
    assert {item.state for item in found.runs} == states


def test_an_edit_of_a_frozen_trigger_takes_the_later_held_runs_and_no_owed_one() -> None:
    given = state(run(5, state=HELD), run(15, state=HELD), run(20, state=HELD, attempt=1), frozen=True)
    change = made(decisions.edit(given, spec("0 * * * *"), "ann", T))
    assert change.withdrawn == (15,)


def test_what_a_pause_holds_is_not_taken_by_an_edit() -> None:
    assert made(decisions.edit(state(run(15, state=HELD)), spec("0 * * * *"), "ann", T)).withdrawn == ()


def test_a_resume_under_a_freeze_releases_and_judges_nothing() -> None:
    given = state(run(5, state=HELD), run(10, state=HELD), of=spec(catch_up=CatchUp.NONE), frozen=True)
    paused = after(given, made(decisions.pause(given, "ann", T)))
    change = made(decisions.resume(paused, "ann", T + 20 * MINUTE))
    assert (change.withdrawn, change.skips) == ((), ())
    assert all("state" not in item.values for item in change.updated)


def test_a_failed_run_of_a_frozen_trigger_is_retried_when_that_is_released() -> None:
    failed = run(10, state=RunState.FAILED, attempt=3, origin=Origin.BACKFILL)
    (item,) = made(decisions.retry_run(state(frozen=True), failed, T)).updated
    assert item.values["state"] is HELD
