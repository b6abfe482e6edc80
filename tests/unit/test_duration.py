"""Durations: every form that people write, what is refused, and that text survives the round trip."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horarium.core.duration import LONGEST, format_duration, in_words, parse_duration
from horarium.errors import InvalidInput

S = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("20s", 20 * S),
        ("5m", 300 * S),
        ("1h30m", 5400 * S),
        ("1h 30m", 5400 * S),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)),
        ("1.5h", 5400 * S),
        (".5m", 30 * S),
        ("500ms", timedelta(milliseconds=500)),
        ("7us", timedelta(microseconds=7)),
        ("90", 90 * S),
        (" 90 ", 90 * S),
        ("+90", 90 * S),
        ("0", 0 * S),
        ("0.1", timedelta(milliseconds=100)),
        (90, 90 * S),
        (0.1, timedelta(milliseconds=100)),
        (1e-06, timedelta(microseconds=1)),
        (timedelta(minutes=3), 180 * S),
        ("PT20S", 20 * S),
        ("PT5M", 300 * S),
        ("P1D", timedelta(days=1)),
        ("P1DT12H", timedelta(days=1, hours=12)),
        ("P1W", timedelta(weeks=1)),
        ("PT0.5S", timedelta(milliseconds=500)),
        ("PT1,5H", 5400 * S),
        ("pt5m", 300 * S),
        ("2 hours 30 minutes", 9000 * S),
        ("1 Day", timedelta(days=1)),
        ("10min", 600 * S),
        ("30secs", 30 * S),
    ],
)
def test_each_form_means_its_length(value: object, expected: timedelta) -> None:
    assert parse_duration(value) == expected


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("", "not empty"),
        ("   ", "not empty"),
        ("abc", "numbers with units"),
        ("1:30", "instead of a colon"),
        ("-5m", "not negative"),
        (-5, "not negative"),
        (timedelta(seconds=-1), "not negative"),
        ("5x", "no unit"),
        ("1M", "m for minutes"),
        ("3 months", "months and years"),
        ("1y", "months and years"),
        ("P1M", "no one length"),
        ("P1Y", "no one length"),
        ("P1M1D", "no one length"),
        ("P", "PT5M"),
        ("PT", "PT5M"),
        ("P1DT", "PT5M"),
        ("PT1.5H30M", "only the last part"),
        ("30m1h", "large to small"),
        ("1h1h", "large to small"),
        ("5m3", "numbers with units"),
        ("100ns", "microsecond"),
        (0.00000012, "microseconds"),
        ("1" * 200, "characters"),
        ("999999999999999d", "9,998 years"),
        (10**30, "9,998 years"),
        (float("nan"), "text or a number"),
        (float("inf"), "text or a number"),
        (True, "text or a number"),
        (None, "text or a number"),
        (["5m"], "text or a number"),
        ("٣s", "numbers with units"),
    ],
)
def test_what_is_no_duration_is_refused_with_the_rule(value: object, word: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration(value, "/late_after")
    (problem,) = caught.value.problems
    assert problem.pointer == "/late_after"
    assert word in f"{problem.rule}; {problem.hint}"


def test_a_position_points_into_the_text() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration("1h30q")
    assert caught.value.problems[0].position == 4


def test_zero_is_refused_only_where_it_makes_no_sense() -> None:
    assert parse_duration("0s") == timedelta()
    with pytest.raises(InvalidInput, match="longer than zero"):
        parse_duration("0s", positive=True)


@given(st.timedeltas(min_value=timedelta(), max_value=LONGEST))
def test_formatted_text_reads_back(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "1 second"), (60, "1 minute"), (5400, "1 hour 30 minutes"), (172800, "2 days"), (0, "0 seconds")],
)
def test_in_words(seconds: int, text: str) -> None:
    assert in_words(seconds) == text


@pytest.mark.parametrize(("value", "text"), [("PT90M", "1h30m"), (0, "0s"), ("1w", "7d"), ("0.25", "250ms")])
def test_one_canonical_text(value: object, text: str) -> None:
    assert format_duration(parse_duration(value)) == text
