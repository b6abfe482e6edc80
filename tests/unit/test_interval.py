"""Intervals: elapsed ones count seconds from an anchor, calendar ones name local times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from horarium.core.instant import MAX_SECONDS, MIN_SECONDS, from_seconds, rfc3339, to_seconds
from horarium.core.interval import CalendarInterval, Interval, canonical_every, parse_every
from horarium.core.schedule import Schedule
from horarium.core.zone import load_zone
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


# --- calendar intervals ---------------------------------------------------------------------------------


def texts(schedule: Schedule, after: str, count: int) -> list[str]:
    return [rfc3339(from_seconds(t)) for t in walk(schedule, at(after), count)]


def test_the_31st_is_the_last_day_of_every_month() -> None:
    every = parse_every({"months": 1, "at": "09:00", "on_day": 31}, timezone=load_zone("UTC"))
    assert [text[:10] for text in texts(every, "2028-01-01T00:00:00", 4)] == [
        "2028-01-31",
        "2028-02-29",
        "2028-03-31",
        "2028-04-30",
    ]


def test_a_day_is_a_date_not_24_hours() -> None:
    start = at("2018-11-03T07:00:00")
    angeles = load_zone("America/Los_Angeles")
    assert texts(parse_every({"days": 1}, timezone=angeles, start=start), "2018-11-03T06:59:59", 4) == [
        "2018-11-03T07:00:00Z",
        "2018-11-04T07:00:00Z",
        "2018-11-05T08:00:00Z",
        "2018-11-06T08:00:00Z",
    ]
    assert texts(parse_every("1d", timezone=angeles, start=start), "2018-11-04T07:00:00", 1) == [
        "2018-11-05T07:00:00Z"
    ]


def test_a_skipped_time_means_the_first_instant_after_the_gap() -> None:
    every = parse_every({"days": 1, "at": ["02:30", "03:00"]}, timezone=load_zone("Europe/Berlin"))
    assert texts(every, "2026-03-28T12:00:00", 3) == [
        "2026-03-29T01:00:00Z",  # both: 02:30 is not there, and 03:00 is that instant
        "2026-03-30T00:30:00Z",
        "2026-03-30T01:00:00Z",
    ]


def test_a_repeated_time_means_the_first_pass() -> None:
    every = parse_every({"days": 1, "at": "02:30"}, timezone=load_zone("Europe/Berlin"))
    expected = ["2026-10-26T01:30:00Z"]
    assert texts(every, "2026-10-24T12:00:00", 2) == ["2026-10-25T00:30:00Z", *expected]
    for inside in ("2026-10-25T00:30:00", "2026-10-25T01:15:00", "2026-10-25T01:45:00"):
        assert texts(every, inside, 1) == expected
        assert every.before(at(inside)) == at("2026-10-25T00:30:00")


def test_a_date_that_never_was_has_no_slot() -> None:
    every = parse_every({"days": 1, "at": "09:00"}, timezone=load_zone("Pacific/Apia"))
    assert texts(every, "2011-12-29T00:00:00", 2) == ["2011-12-29T19:00:00Z", "2011-12-30T19:00:00Z"]


def test_weeks_count_from_the_week_of_the_start() -> None:
    every = parse_every(
        {"weeks": 2, "on": ["fri", "Monday"], "at": "9:00"},
        timezone=load_zone("UTC"),
        start=at("2026-01-07T00:00:00"),
    )
    assert [text[:10] for text in texts(every, "2026-01-06T00:00:00", 4)] == [
        "2026-01-09",
        "2026-01-19",
        "2026-01-23",
        "2026-02-02",
    ]


def test_a_year_names_its_month() -> None:
    every = parse_every({"years": 4, "in_month": "feb", "on_day": 29}, timezone=load_zone("UTC"))
    assert [text[:10] for text in texts(every, "2095-01-01T00:00:00", 3)] == [
        "2098-02-28",
        "2102-02-28",
        "2106-02-28",
    ]


def test_what_is_left_out_comes_from_the_start() -> None:
    berlin, start = load_zone("Europe/Berlin"), at("2026-05-20T14:45:00")
    for value, described in [
        ({"days": 3}, "every 3 days at 16:45, Europe/Berlin"),
        ({"weeks": 1}, "every week on Wednesday at 16:45, Europe/Berlin"),
        ({"months": 2}, "every 2 months on day 20 at 16:45, Europe/Berlin"),
        ({"years": 1}, "every year in May on day 20 at 16:45, Europe/Berlin"),
    ]:
        every = parse_every(value, timezone=berlin, start=start)
        assert every.describe() == described
        assert every.before(start) == start
    assert (
        parse_every({"weeks": 1}, timezone=berlin).describe()
        == "every week on Monday at 00:00, Europe/Berlin"
    )


@pytest.mark.parametrize(
    ("value", "pointers"),
    [
        ({}, ["/every"]),
        ({"hours": 2}, ["/every"]),
        ({"days": 1, "months": 1}, ["/every"]),
        ({"days": 0}, ["/every/days"]),
        ({"days": True}, ["/every/days"]),
        ({"days": "2"}, ["/every/days"]),
        ({"days": 10**9}, ["/every/days"]),
        ({"days": 1, "on": "mon"}, ["/every/on"]),
        ({"days": 1, "at": 900}, ["/every/at"]),
        ({"days": 1, "at": "24:00"}, ["/every/at"]),
        ({"days": 1, "at": ["09:00", "9"]}, ["/every/at/1"]),
        ({"days": 1, "at": []}, ["/every/at"]),
        ({"weeks": 1, "on": ["mon", "xyz"]}, ["/every/on/1"]),
        ({"weeks": 1, "on_day": 3}, ["/every/on_day"]),
        ({"months": 1, "on_day": 0}, ["/every/on_day"]),
        ({"months": 1, "on_day": 32, "at": "25:00"}, ["/every/at", "/every/on_day"]),
        ({"years": 1, "in_month": 13}, ["/every/in_month"]),
        ({"years": 1, "in_month": ["jan", "feb"]}, ["/every/in_month"]),
    ],
)
def test_every_problem_of_a_calendar_interval_is_named_at_once(value: object, pointers: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_every(value, timezone=load_zone("UTC"))
    assert [problem.pointer for problem in caught.value.problems] == pointers
    assert all(problem.hint for problem in caught.value.problems)


def test_a_finer_unit_is_told_its_form() -> None:
    with pytest.raises(InvalidInput, match="every: 2h"):
        parse_every({"hours": 2}, timezone=load_zone("UTC"))


def test_calendar_intervals_have_one_canonical_form() -> None:
    assert canonical_every({"weeks": 1, "on": ["fri", "Monday", "mon"], "at": ["9:00"]}) == {
        "weeks": 1,
        "at": "09:00",
        "on": ["mon", "fri"],
    }


@pytest.mark.parametrize(
    "value",
    [
        {"days": 1},
        {"days": 1_000_000},
        {"weeks": 1_000_000, "on": "sun"},
        {"months": 7, "on_day": 31},
        {"years": 999_999},
        {"years": 3, "in_month": 2, "on_day": 30},
    ],
)
@pytest.mark.parametrize("name", ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"])
def test_calendar_intervals_answer_at_the_calendars_ends(value: dict[str, object], name: str) -> None:
    every = parse_every(value, timezone=load_zone(name))
    for t in (-(10**30), MIN_SECONDS - 1, MIN_SECONDS, MAX_SECONDS - 1, MAX_SECONDS, 10**30):
        following, last = every.after(t), every.before(t)
        assert following is None or max(t + 1, MIN_SECONDS) <= following <= MAX_SECONDS
        assert last is None or MIN_SECONDS <= last <= min(t, MAX_SECONDS)
    assert every.after(10**30) is None
    assert every.before(-(10**30)) is None


def test_local_times_name_what_the_clock_skips_too() -> None:
    every = parse_every({"days": 1, "at": ["02:30", "09:00"]}, timezone=load_zone("Europe/Berlin"))
    assert isinstance(every, CalendarInterval)
    gap = at("2026-03-29T02:00:00"), at("2026-03-29T03:00:00")
    assert every.local_times(*gap) == [at("2026-03-29T02:30:00")]
    assert every.local_times(at("2026-03-29T03:00:00"), at("2026-03-29T09:00:00")) == []
