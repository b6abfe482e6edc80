"""Intervals: elapsed ones count seconds from an anchor, calendar ones name local times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from horarium.core.instant import MAX_SECONDS, MIN_SECONDS, to_seconds
from horarium.core.interval import Interval, canonical_every, parse_every
from horarium.core.schedule import Schedule
from horarium.errors import InvalidInput


def at(text: str) -> int:
    return to_seconds(datetime.fromisoformat(text).replace(tzinfo=UTC))


def walk(schedule: Schedule, t: int, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        following = schedule.after(t)
        assert following is not None
        found.append(following)
        t = following
    return found


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("20s", 20), (20, 20), ("20", 20), ("1h30m", 5400), ("PT20S", 20), ("1d", 86400), (20.0, 20)],
)
def test_a_duration_is_elapsed_time(value: object, seconds: int) -> None:
    assert parse_every(value) == Interval(seconds)


def test_without_a_start_the_phase_comes_from_the_epoch() -> None:
    assert walk(Interval(20), at("2026-01-05T10:00:01"), 2) == [
        at("2026-01-05T10:00:20"),
        at("2026-01-05T10:00:40"),
    ]


def test_with_a_start_the_phase_comes_from_it() -> None:
    every = parse_every("1h", start=at("2022-09-15T10:20:00"))
    assert walk(every, at("2022-09-15T13:47:30"), 2) == [at("2022-09-15T14:20:00"), at("2022-09-15T15:20:00")]


def test_after_is_strict_and_before_is_not() -> None:
    every = Interval(60)
    noon = at("2026-01-05T12:00:00")
    assert every.after(noon) == noon + 60
    assert every.before(noon) == noon
    assert every.before(noon - 1) == noon - 60


def test_between_is_open_below_and_closed_above() -> None:
    assert Interval(10).between(0, 30) == [10, 20, 30]
    assert Interval(10).between(0, 30, limit=2) == [10, 20]
    assert Interval(10).between(0, 9) == []
    assert Interval(10).between(0, 100, limit=0) == []


@pytest.mark.parametrize("t", [-(10**30), MIN_SECONDS - 5, MIN_SECONDS, MAX_SECONDS, 10**30])
def test_the_ends_of_the_calendar_answer(t: int) -> None:
    every = Interval(7, anchor=MIN_SECONDS % 7)
    following, last = every.after(t), every.before(t)
    assert following is None or MIN_SECONDS <= following <= MAX_SECONDS
    assert last is None or MIN_SECONDS <= last <= MAX_SECONDS
    assert (following is None) == (t >= MAX_SECONDS - 6)
    assert (last is None) == (t < MIN_SECONDS)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("0s", "at least one"),
        (0, "at least one"),
        ("500ms", "at least one"),
        ("1.5s", "whole seconds"),
        ("-5m", "not negative"),
        ("P1M", "no one length"),
        (None, "text or a number"),
    ],
)
def test_what_is_no_interval_is_refused(value: object, word: str) -> None:
    with pytest.raises(InvalidInput, match=word) as caught:
        parse_every(value, pointer="/deployments/a/every")
    assert caught.value.problems[0].pointer == "/deployments/a/every"


def test_equal_rules_have_one_canonical_form() -> None:
    assert {canonical_every(value) for value in ("90m", "1h30m", 5400, "PT5400S")} == {"1h30m"}


def test_described_in_english() -> None:
    assert parse_every("1m").describe() == "every minute"
    assert parse_every("90m").describe() == "every 1 hour 30 minutes"
    assert parse_every("1h", start=600).describe() == "every hour, counted from 1970-01-01T00:10:00Z"
