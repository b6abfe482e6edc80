"""One-off schedules, and every form in which people write an instant."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from horarium.core.instant import MAX_SECONDS, MIN_SECONDS, from_seconds, rfc3339
from horarium.core.once import Once, parse_at, parse_instant
from horarium.core.zone import load_zone
from horarium.errors import InvalidInput


def test_it_fires_once() -> None:
    once = Once(100)
    assert [once.after(t) for t in (-(10**30), 99, 100, 10**30)] == [100, 100, None, None]
    assert [once.before(t) for t in (99, 100, 10**30)] == [None, 100, 100]
    assert once.between(0, 100) == [100]
    assert once.between(100, 200) == []
    assert once.describe() == "once, at 1970-01-01T00:01:40Z"
    assert once.zone is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-12-26T06:00:00+01:00", "2026-12-26T05:00:00Z"),
        ("2026-12-26T06:00:00Z", "2026-12-26T06:00:00Z"),
        ("2026-12-26t06:00:00z", "2026-12-26T06:00:00Z"),
        ("2026-12-26 06:00", "2026-12-26T05:00:00Z"),
        ("2026-12-26T06:00:00.000Z", "2026-12-26T06:00:00Z"),
        ("2026-12-26T06:00+0530", "2026-12-26T00:30:00Z"),
        ("2026-06-26T06:00", "2026-06-26T04:00:00Z"),
        ("2026-12-26", "2026-12-25T23:00:00Z"),
        (date(2026, 12, 26), "2026-12-25T23:00:00Z"),
        (datetime(2026, 12, 26, 6), "2026-12-26T05:00:00Z"),
        (datetime(2026, 12, 26, 6, tzinfo=UTC), "2026-12-26T06:00:00Z"),
        (datetime(2026, 12, 26, 6, tzinfo=timezone(timedelta(hours=-5))), "2026-12-26T11:00:00Z"),
        ("2026-03-29T02:30", "2026-03-29T01:00:00Z"),  # skipped: the first instant after the gap
        ("2026-10-25T02:30", "2026-10-25T00:30:00Z"),  # twice: the first pass
        ("2026-10-25T02:30+01:00", "2026-10-25T01:30:00Z"),
    ],
)
def test_each_form_of_an_instant(value: object, expected: str) -> None:
    assert rfc3339(from_seconds(parse_at(value, load_zone("Europe/Berlin")).at)) == expected


def test_a_date_as_an_end_takes_its_whole_day() -> None:
    berlin = load_zone("Europe/Berlin")
    end = parse_instant("2026-10-25", berlin, end_of_day=True)
    assert rfc3339(from_seconds(end)) == "2026-10-25T22:59:59Z"
    assert parse_instant("2026-10-25T12:00Z", berlin, end_of_day=True) == parse_instant(
        "2026-10-25T12:00Z", berlin
    )


def test_the_calendars_first_and_last_days_are_dates_too() -> None:
    east, west = load_zone("Pacific/Kiritimati"), load_zone("America/Los_Angeles")
    for zone in (east, west):
        assert MIN_SECONDS <= parse_instant("0001-01-01", zone) <= MAX_SECONDS
        assert MIN_SECONDS <= parse_instant("9999-12-31", zone, end_of_day=True) <= MAX_SECONDS


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("", "RFC 3339"),
        ("tomorrow", "RFC 3339"),
        ("2026-13-01", "no such date"),
        ("2026-02-30T00:00", "no such date"),
        ("2026-02-03T25:00", "no such date"),
        ("0000-01-01", "no such date"),
        ("2026-06-30T23:59:60Z", "leap seconds"),
        ("2026-06-30T23:59:59.5Z", "whole second"),
        (datetime(2026, 6, 30, 12, 0, 0, 5, tzinfo=UTC), "whole second"),
        ("2026-06-30T12:00+25:00", "offset"),
        ("9999-12-31T23:59:59-01:00", "years 1 to 9999"),
        ("0001-01-01T00:00:00+01:00", "years 1 to 9999"),
        (1767225600, "RFC 3339"),
        (None, "RFC 3339"),
        (True, "RFC 3339"),
    ],
)
def test_what_is_no_instant_is_refused(value: object, word: str) -> None:
    with pytest.raises(InvalidInput, match=word) as caught:
        parse_at(value, load_zone("UTC"), "/deployments/a/at")
    assert caught.value.problems[0].pointer == "/deployments/a/at"
    assert caught.value.problems[0].hint
