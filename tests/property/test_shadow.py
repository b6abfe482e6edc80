"""Comparing with another scheduler: every slot and every run has one place, and the surest match counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from horarium.core.shadow import Comparison, OurSlot, TheirRun, compare

START = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
TOLERANCE = timedelta(seconds=40)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def our(seconds: int) -> OurSlot:
    return OurSlot(at(seconds), f"r{seconds}", at(seconds + 1))


slots = st.sets(st.integers(0, 600), max_size=12).map(
    lambda found: [our(seconds) for seconds in sorted(found)]
)
named = st.builds(
    lambda s, late: TheirRun(None, at(s + late), f"r{s}"), st.integers(0, 600), st.integers(0, 900)
)
scheduled = st.builds(lambda s: TheirRun(at(s), at(s + 2)), st.integers(0, 600))
made = st.builds(lambda s: TheirRun(None, at(s)), st.integers(-60, 700))
runs = st.lists(st.one_of(named, scheduled, made), max_size=12)


@given(slots, runs)
def test_each_slot_and_each_run_has_one_place(ours: list[OurSlot], theirs: list[TheirRun]) -> None:
    found = compare(ours, theirs, TOLERANCE)
    mine = [*(pair.ours for pair in found.both), *found.only_ours, *found.pending]
    others = [*(pair.theirs for pair in found.both), *found.only_theirs]
    assert sorted(mine, key=str) == sorted(ours, key=str)
    assert sorted(others, key=str) == sorted(theirs, key=str)


@given(slots, runs)
def test_a_pair_has_a_reason(ours: list[OurSlot], theirs: list[TheirRun]) -> None:
    for pair in compare(ours, theirs, TOLERANCE).both:
        run, slot = pair.theirs, pair.ours
        assert (
            run.name == slot.name
            or run.scheduled_time == slot.scheduled_time
            or (run.scheduled_time is None and abs(run.at - slot.scheduled_time) <= TOLERANCE)
        )


@given(slots)
def test_the_same_slots_are_equal_however_they_are_told(ours: list[OurSlot]) -> None:
    tellings = (
        [TheirRun(None, at(9_999), slot.name) for slot in ours],
        [TheirRun(slot.scheduled_time) for slot in ours],
        [TheirRun(None, slot.scheduled_time) for slot in ours],
    )
    for theirs in tellings:
        found = compare(ours, reversed(theirs), TOLERANCE)
        assert found.equal
        assert [pair.ours for pair in found.both] == ours


@given(slots, runs)
def test_what_is_equal_has_no_difference_and_the_other_way_round(
    ours: list[OurSlot], theirs: list[TheirRun]
) -> None:
    found = compare(ours, theirs, TOLERANCE)
    assert found.equal == (len(found.both) == len(ours) == len(theirs))


@given(slots, st.lists(made, max_size=12))
def test_of_times_the_closest_belong_together(ours: list[OurSlot], theirs: list[TheirRun]) -> None:
    """No slot and run are left that are closer to each other than each is to what it was matched with."""
    found = compare(ours, theirs, TOLERANCE)
    apart = {id(pair.ours): _apart(pair.ours, pair.theirs) for pair in found.both}
    apart |= {id(pair.theirs): _apart(pair.ours, pair.theirs) for pair in found.both}
    far = TOLERANCE + timedelta(microseconds=1)
    for slot in ours:
        for run in theirs:
            if not any(pair.ours is slot and pair.theirs is run for pair in found.both):
                best = min(apart.get(id(slot), far), apart.get(id(run), far))
                assert _apart(slot, run) >= best


@given(slots, runs, st.randoms())
def test_the_order_in_which_runs_are_told_does_not_matter(
    ours: list[OurSlot], theirs: list[TheirRun], chance: object
) -> None:
    shuffled = list(theirs)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert _sizes(compare(ours, shuffled, TOLERANCE)) == _sizes(compare(ours, theirs, TOLERANCE))


@given(slots, runs)
def test_what_is_not_decided_yet_is_no_difference(ours: list[OurSlot], theirs: list[TheirRun]) -> None:
    open_ones = [replace(slot, decided_at=None) for slot in ours]
    found, decided = compare(open_ones, theirs, TOLERANCE), compare(ours, theirs, TOLERANCE)
    assert not found.only_ours
    assert len(found.pending) == len(decided.only_ours)
    assert found.only_theirs == decided.only_theirs


def _apart(slot: OurSlot, run: TheirRun) -> timedelta:
    return abs(run.at - slot.scheduled_time)


def _sizes(found: Comparison) -> tuple[int, int, int]:
    return len(found.both), len(found.only_ours), len(found.only_theirs)
