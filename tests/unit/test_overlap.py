"""The rule of `core/overlap.py`, case by case."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from horarium.core.overlap import Candidate, GiveUp, Go, Stage, UnderWay, Wait, ask_again, judge
from horarium.core.spec import Overlap

TEN = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)


def at(minute: int) -> datetime:
    return TEN.replace(minute=minute)


RUNNING = UnderWay(1, "r1", Stage.RUNNING)
RETRYING = UnderWay(2, "r2", Stage.RETRYING)
CALLING = UnderWay(3, "r3", Stage.CALLING)


def candidate(policy: Overlap, *, asked_for: bool = False, attempt: int = 1) -> Candidate:
    return Candidate(9, at(10), policy, asked_for, attempt)


@pytest.mark.parametrize("policy", Overlap)
@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("asked_for", [False, True])
def test_with_nobody_in_the_way_it_goes(policy: Overlap, attempt: int, asked_for: bool) -> None:
    mine = UnderWay(9, "r9", Stage.CALLING)
    assert judge(candidate(policy, asked_for=asked_for, attempt=attempt), [mine], []) == Go()


@pytest.mark.parametrize("other", [RUNNING, RETRYING, CALLING])
def test_skip_gives_the_slot_up_and_says_for_whom(other: UnderWay) -> None:
    found = judge(candidate(Overlap.SKIP), [other], [])
    assert isinstance(found, GiveUp)
    assert other.name in found.detail


def test_queue_lets_one_slot_wait_the_earliest() -> None:
    assert judge(candidate(Overlap.QUEUE), [RUNNING], []) == Wait(RUNNING)
    assert judge(candidate(Overlap.QUEUE), [RUNNING], [at(15)]) == Wait(RUNNING)
    assert isinstance(judge(candidate(Overlap.QUEUE), [RUNNING], [at(5)]), GiveUp)


def test_replace_cancels_what_the_target_has_and_drops_what_it_has_not() -> None:
    found = judge(candidate(Overlap.REPLACE), [RETRYING, RUNNING], [])
    assert found == Go((RUNNING,), (RETRYING,))


def test_replace_cancels_one_that_is_to_be_tried_again_though_its_target_says_that_it_runs() -> None:
    told = UnderWay(2, "r2", Stage.RETRYING, there=True)
    assert judge(candidate(Overlap.REPLACE), [told], []) == Go((told,), (told,))


def test_replace_waits_for_a_call_that_may_be_under_way() -> None:
    assert judge(candidate(Overlap.REPLACE), [RUNNING, CALLING], []) == Wait(CALLING)


def test_replace_gives_way_to_a_later_slot_that_is_due() -> None:
    assert isinstance(judge(candidate(Overlap.REPLACE), [RUNNING], [at(15)]), GiveUp)
    assert isinstance(judge(candidate(Overlap.REPLACE), [], [at(15)]), GiveUp)
    assert judge(candidate(Overlap.REPLACE), [], [at(5)]) == Go()


@pytest.mark.parametrize("policy", [Overlap.SKIP, Overlap.QUEUE, Overlap.REPLACE])
def test_what_a_person_asked_for_waits_however_many_do(policy: Overlap) -> None:
    assert judge(candidate(policy, asked_for=True), [RUNNING], [at(5), at(15)]) == Wait(RUNNING)


@pytest.mark.parametrize("policy", [Overlap.SKIP, Overlap.QUEUE])
def test_what_was_called_before_goes_on_unless_another_has_begun(policy: Overlap) -> None:
    assert judge(candidate(policy, attempt=2), [RETRYING], [at(5)]) == Go()
    assert judge(candidate(policy, attempt=2), [RUNNING, RETRYING], [at(5)]) == Wait(RUNNING)
    assert judge(candidate(policy, attempt=2), [CALLING], [at(5)]) == Wait(CALLING)


def test_a_second_claim_says_again_what_it_replaces() -> None:
    assert judge(candidate(Overlap.REPLACE, attempt=2), [RUNNING], [at(15)]) == Go((RUNNING,))
    assert judge(candidate(Overlap.REPLACE, attempt=2), [RUNNING, CALLING], [at(15)]) == Wait(CALLING)


@pytest.mark.parametrize(("age", "pause"), [(0, 2), (30, 3), (300, 30), (86_400, 60), (-5, 2)])
def test_the_longer_it_goes_on_the_less_often_its_target_is_asked(age: int, pause: int) -> None:
    assert ask_again(TEN, TEN + timedelta(seconds=age)) == TEN + timedelta(seconds=age + pause)
