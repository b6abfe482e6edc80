"""Calendars: named sets of days, and what becomes of slots on them."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from horarium.core.calendars import (
    Calendar,
    Country,
    Filtered,
    OnExcluded,
    canonical_calendar,
    filtered,
    parse_calendar,
    parse_calendars,
)
from horarium.core.civil import day_of
from horarium.core.instant import from_seconds, rfc3339, to_seconds
from horarium.core.interval import Interval, parse_every
from horarium.core.once import Once
from horarium.core.rrule import parse_rrule
from horarium.core.schedule import Bounded, Schedule
from horarium.core.zone import load_zone
from horarium.errors import InvalidInput

BERLIN = load_zone("Europe/Berlin")


def at(text: str) -> int:
    return to_seconds(datetime.fromisoformat(text).replace(tzinfo=UTC))


def walk(schedule: Schedule, after: str, count: int) -> list[str]:
    found: list[str] = []
    t: int | None = at(after)
    while len(found) < count:
        assert t is not None
        t = schedule.after(t)
        if t is None:
            break
        assert schedule.before(t) == t
        found.append(rfc3339(from_seconds(t)))
    return found


def daily(hour: str = "17:00") -> Schedule:
    return parse_every({"days": 1, "at": hour}, timezone=BERLIN)


GERMAN = parse_calendar("de", {"holidays": "DE"}, "/calendars/de")
WEEKENDS = parse_calendar("weekends", {"weekdays": ["sat", "sun"]}, "/calendars/weekends")


# --- sets of days ---------------------------------------------------------------------------------------


def test_a_calendar_is_the_union_of_its_parts() -> None:
    calendar = parse_calendar(
        "c",
        {
            "dates": [date(2026, 5, 4), "2026-05-06", "12-24", "2026-08-01/2026-08-03"],
            "ranges": [{"from": "2026-09-01", "to": "2026-09-02"}, ["2027-01-01", "2027-01-02"]],
            "weekdays": "Sunday",
            "holidays": {"country": "DE", "subdiv": "BY"},
        },
        "/calendars/c",
    )
    inside = [
        (2026, 5, 4),
        (2026, 5, 6),
        (1999, 12, 24),
        (2026, 8, 2),
        (2026, 9, 2),
        (2027, 1, 2),
        (2026, 5, 10),
        (2026, 6, 4),  # Corpus Christi, in Bavaria
    ]
    outside = [(2026, 5, 5), (2026, 8, 4), (2026, 12, 23), (2026, 10, 31)]  # Reformation Day, not in Bavaria
    assert [d for d in inside if day_of(*d) not in calendar] == []
    assert [d for d in outside if day_of(*d) in calendar] == []


def test_a_day_of_every_year_can_be_the_29th_of_february() -> None:
    calendar = parse_calendar("c", {"dates": ["02-29"]}, "")
    assert day_of(2028, 2, 29) in calendar
    assert day_of(2027, 2, 28) not in calendar


def test_a_reason_names_the_holiday() -> None:
    assert GERMAN.reason(day_of(2026, 4, 3)) == "Good Friday, DE"
    assert WEEKENDS.reason(day_of(2026, 4, 4)) == "Saturday"
    assert GERMAN.reason(day_of(2026, 4, 2)) is None


def test_an_observed_holiday_can_lie_in_the_year_before() -> None:
    """1 January 2028 is a Saturday, and federal offices are closed on the Friday before."""
    calendar = parse_calendar("us", {"holidays": "US"}, "")
    assert day_of(2027, 12, 31) in calendar
    plain = parse_calendar("us", {"holidays": {"country": "US", "observed": False}}, "")
    assert day_of(2027, 12, 31) not in plain


def test_holidays_are_what_the_law_says_for_those_years() -> None:
    """Against dates looked up by hand: Germany's nine nationwide holidays of 2026."""
    dates = [(1, 1), (4, 3), (4, 6), (5, 1), (5, 14), (5, 25), (10, 3), (12, 25), (12, 26)]
    expected = {day_of(2026, month, day) for month, day in dates}
    assert {day for day in range(day_of(2026, 1, 1), day_of(2027, 1, 1)) if day in GERMAN} == expected


@pytest.mark.parametrize(
    ("value", "pointer", "word"),
    [
        (None, "/calendars/c", "mapping"),
        ({}, "/calendars/c", "mapping"),
        ({"dates": []}, "/calendars/c", "at least one day"),
        ({"date": ["2026-01-01"]}, "/calendars/c/date", "dates, ranges"),
        ({"dates": ["2026-02-30"]}, "/calendars/c/dates/0", "YYYY-MM-DD"),
        ({"dates": ["13-01"]}, "/calendars/c/dates/0", "every year"),
        ({"dates": ["02-30"]}, "/calendars/c/dates/0", "every year"),
        ({"dates": [5]}, "/calendars/c/dates/0", "YYYY-MM-DD"),
        ({"dates": "2026-01-05/2026-01-01"}, "/calendars/c/dates", "at or after"),
        ({"dates": "0001-01-01/9999-12-31"}, "/calendars/c/dates", "10,000"),
        ({"ranges": [["2026-01-01"]]}, "/calendars/c/ranges/0", "range"),
        ({"weekdays": ["sat", "sunny"]}, "/calendars/c/weekdays/1", "weekday"),
        (
            {"weekdays": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]},
            "/calendars/c/weekdays",
            "some weekday",
        ),
        ({"holidays": "XX"}, "/calendars/c/holidays", "no holidays"),
        ({"holidays": False}, "/calendars/c/holidays", '"NO"'),
        ({"holidays": {"country": "DE", "subdiv": "ZZ"}}, "/calendars/c/holidays/subdiv", "no such part"),
        ({"holidays": {"country": "DE", "region": "BY"}}, "/calendars/c/holidays/region", "country, subdiv"),
        ({"holidays": {"country": "DE", "observed": 1}}, "/calendars/c/holidays/observed", "true or false"),
        (
            {"holidays": {"country": "DE", "categories": ["x"]}},
            "/calendars/c/holidays/categories",
            "category",
        ),
    ],
)
def test_what_is_no_calendar_is_refused(value: object, pointer: str, word: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_calendar("c", value, "/calendars/c")
    (problem,) = caught.value.problems
    assert problem.pointer == pointer
    assert word in str(problem)


def test_every_wrong_calendar_is_named_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_calendars({"a": {"dates": ["x"]}, "b": {"dates": ["2026-01-01"]}, "c": 5})
    assert [problem.pointer for problem in caught.value.problems] == ["/calendars/a/dates/0", "/calendars/c"]


def test_equal_calendars_have_one_canonical_form() -> None:
    one = parse_calendar(
        "c", {"dates": ["2026-01-01/2026-01-02"], "weekdays": ["Sun", "sat"], "holidays": "de"}, ""
    )
    other = parse_calendar(
        "c",
        {
            "weekdays": ["sat", "sunday"],
            "dates": [date(2026, 1, 2), "2026-01-01"],
            "holidays": [{"country": "DE"}],
        },
        "",
    )
    assert canonical_calendar(one) == canonical_calendar(other)
    assert canonical_calendar(one) == {
        "dates": ["2026-01-01", "2026-01-02"],
        "weekdays": ["sat", "sun"],
        "holidays": [{"country": "DE"}],
    }
    assert parse_calendar("c", canonical_calendar(one), "") == one


# --- slots ----------------------------------------------------------------------------------------------


def test_skip_drops_the_slots_of_excluded_days() -> None:
    rule = Filtered(daily(), BERLIN, exclude=(GERMAN,))
    assert walk(rule, "2026-04-02T00:00:00", 4) == [
        "2026-04-02T15:00:00Z",
        "2026-04-04T15:00:00Z",
        "2026-04-05T15:00:00Z",
        "2026-04-07T15:00:00Z",
    ]
    assert rule.before(at("2026-04-06T20:00:00")) == at("2026-04-05T15:00:00")


def test_next_business_day_moves_over_holidays_and_the_weekend() -> None:
    """Good Friday's slot lands on Tuesday: Saturday and Sunday are no business days, Easter Monday is out."""
    rule = Filtered(
        parse_rrule("FREQ=WEEKLY;BYDAY=FR;BYHOUR=17", BERLIN, at("2026-01-01T00:00:00")),
        BERLIN,
        exclude=(GERMAN,),
        on_excluded=OnExcluded.NEXT,
    )
    assert walk(rule, "2026-03-26T00:00:00", 3) == [
        "2026-03-27T16:00:00Z",
        "2026-04-07T15:00:00Z",
        "2026-04-10T15:00:00Z",
    ]
    assert rule.note(at("2026-04-07T15:00:00")) == "moved from 2026-04-03 (Good Friday, DE)"
    assert rule.note(at("2026-04-10T15:00:00")) is None
    (change,) = rule.changes(at("2026-03-26T00:00:00"), at("2026-04-11T00:00:00"))
    assert (change.slot, change.at) == (at("2026-04-03T15:00:00"), at("2026-04-07T15:00:00"))


def test_previous_business_day() -> None:
    rule = Filtered(
        parse_every({"months": 1, "on_day": 31, "at": "18:00"}, timezone=BERLIN),
        BERLIN,
        exclude=(WEEKENDS, GERMAN),
        on_excluded=OnExcluded.PREVIOUS,
    )
    assert walk(rule, "2026-01-01T00:00:00", 5) == [
        "2026-01-30T17:00:00Z",  # the 31st is a Saturday
        "2026-02-27T17:00:00Z",
        "2026-03-31T16:00:00Z",
        "2026-04-30T16:00:00Z",
        "2026-05-29T16:00:00Z",  # the 31st is a Sunday
    ]


def test_slots_that_meet_are_one() -> None:
    rule = Filtered(daily(), BERLIN, exclude=(WEEKENDS,), on_excluded=OnExcluded.NEXT)
    assert walk(rule, "2026-05-08T00:00:00", 3) == [
        "2026-05-08T15:00:00Z",
        "2026-05-11T15:00:00Z",  # Saturday's, Sunday's and Monday's own
        "2026-05-12T15:00:00Z",
    ]


def test_a_slot_on_a_weekend_that_is_not_excluded_stays() -> None:
    rule = Filtered(daily(), BERLIN, exclude=(GERMAN,), on_excluded=OnExcluded.NEXT)
    assert walk(rule, "2026-04-03T00:00:00", 3) == [
        "2026-04-04T15:00:00Z",
        "2026-04-05T15:00:00Z",
        "2026-04-07T15:00:00Z",
    ]


def test_the_weekend_is_the_countrys() -> None:
    """In Israel Friday and Saturday are off, so a Friday's slot moves to Sunday."""
    place = load_zone("Asia/Jerusalem")
    on_friday = parse_calendar("own", {"dates": ["2026-05-01"], "holidays": "IL"}, "")
    rule = Filtered(Once(at("2026-05-01T09:00:00")), place, exclude=(on_friday,), on_excluded=OnExcluded.NEXT)
    assert walk(rule, "2026-04-20T00:00:00", 1) == ["2026-05-03T09:00:00Z"]  # a Sunday
    assert rule.weekend == {4, 5}


def test_only_keeps_the_named_days() -> None:
    close = parse_calendar("close", {"dates": ["2026-12-24", "2026-12-31"]}, "")
    rule = Filtered(daily("04:00"), BERLIN, only=(close,))
    assert walk(rule, "2026-01-01T00:00:00", 5) == ["2026-12-24T03:00:00Z", "2026-12-31T03:00:00Z"]
    assert rule.after(at("2026-12-31T03:00:00")) is None
    assert rule.before(at("2030-01-01T00:00:00")) == at("2026-12-31T03:00:00")
    assert rule.before(at("2026-01-01T00:00:00")) is None


def test_exclude_and_only_hold_together() -> None:
    year_end = parse_calendar("year-end", {"dates": ["12-24", "12-28", "12-26"]}, "")
    rule = Filtered(daily(), BERLIN, exclude=(GERMAN,), only=(year_end,))
    assert [text[:10] for text in walk(rule, "2026-12-01T00:00:00", 2)] == ["2026-12-24", "2026-12-28"]


def test_an_elapsed_rule_keeps_to_local_dates() -> None:
    """23:00 UTC on Thursday is Good Friday in Berlin already."""
    rule = filtered(Interval(3600), {"exclude": ["de"]}, {"de": GERMAN}, BERLIN)
    assert rule.after(at("2026-04-02T21:00:00")) == at("2026-04-03T22:00:00")


def test_a_moved_slot_keeps_its_local_time_over_a_change_of_the_clock() -> None:
    saturday = parse_calendar("c", {"dates": ["2026-03-28"]}, "")
    weekdays_only = Filtered(Once(at("2026-03-28T08:00:00")), BERLIN, (saturday,), (), OnExcluded.NEXT)
    assert walk(weekdays_only, "2026-03-01T00:00:00", 1) == ["2026-03-30T07:00:00Z"]


@pytest.mark.parametrize("on_excluded", list(OnExcluded))
def test_a_rule_that_calendars_leave_nothing_of_ends(on_excluded: OnExcluded) -> None:
    christmas = parse_rrule(
        "FREQ=YEARLY;BYMONTH=12;BYMONTHDAY=25", load_zone("UTC"), at("2000-01-01T00:00:00")
    )
    nothing = parse_calendar("c", {"dates": ["12-25"]}, "")
    only = parse_calendar("o", {"dates": ["1990-01-01"]}, "")
    rule = Filtered(christmas, load_zone("UTC"), (nothing,), (only,), on_excluded)
    assert rule.after(at("2026-01-01T00:00:00")) is None
    assert rule.before(at("2026-01-01T00:00:00")) is None


def test_names_and_words_are_checked_together() -> None:
    with pytest.raises(InvalidInput) as caught:
        filtered(
            daily(),
            {"exclude": ["dee", "de"], "only": "close", "on_excluded": "later"},
            {"de": GERMAN},
            BERLIN,
            "/triggers/a",
        )
    assert [problem.pointer for problem in caught.value.problems] == [
        "/triggers/a/exclude/0",
        "/triggers/a/only",
        "/triggers/a/on_excluded",
    ]
    assert caught.value.problems[0].hint == "de"
    with pytest.raises(InvalidInput, match="goes with exclude or only"):
        filtered(daily(), {"on_excluded": "skip"}, {}, BERLIN)


def test_without_calendars_the_rule_is_left_alone() -> None:
    rule = daily()
    assert filtered(rule, {"exclude": [], "only": None}, {}, BERLIN) is rule


def test_described_in_english() -> None:
    rule = Filtered(daily(), BERLIN, exclude=(GERMAN, WEEKENDS), on_excluded=OnExcluded.NEXT)
    assert rule.describe() == (
        "every day at 17:00, Europe/Berlin except on days of de and weekends, else on the next business day"
    )
    assert GERMAN.describe() == "de: holidays of DE"
    assert Calendar("x", countries=(Country("DE", "BY"),)).describe() == "x: holidays of DE-BY"


# --- far and dense --------------------------------------------------------------------------------------


def test_a_rare_rule_is_followed_as_far_as_its_slots_are() -> None:
    """Eleven years from slot to slot, and most of them out: the next one is 121 years away."""
    workdays = parse_calendar("x", {"weekdays": ["mon", "tue", "wed"]}, "/calendars/x")
    rule = parse_every(
        {"years": 11, "on_day": 1, "in_month": 1}, timezone=load_zone("UTC"), start=at("1990-01-01")
    )
    schedule = Filtered(rule, load_zone("UTC"), (workdays,))
    previous, following = at("1891-01-01"), at("2012-01-01")
    assert schedule.after(previous) == following
    assert schedule.before(following - 1) == previous


def test_the_dates_of_only_are_gone_through_not_the_days_between() -> None:
    close = parse_calendar("close", {"dates": ["2026-12-24", "2426-12-31"]}, "/calendars/close")
    schedule = Filtered(Interval(3_600), BERLIN, (), (close,))
    last_of_2026 = at("2026-12-24T22:00")
    assert schedule.after(last_of_2026) == at("2426-12-30T23:00")
    assert schedule.before(at("2426-12-30T22:59:59")) == last_of_2026
    assert schedule.after(at("2426-12-31T22:00")) is None
    assert schedule.before(at("2026-12-23T22:59:59")) is None


def test_more_often_than_once_a_minute_is_not_moved() -> None:
    days = {"x": parse_calendar("x", {"dates": ["02-29"]}, "/calendars/x")}
    spec = {"only": ["x"], "on_excluded": "next_business_day"}
    with pytest.raises(InvalidInput) as refused:
        filtered(Interval(59), spec, days, BERLIN)
    assert [problem.pointer for problem in refused.value.problems] == ["/on_excluded"]
    assert filtered(Interval(59), {"only": ["x"]}, days, BERLIN).after(0) == at("1972-02-28T23:00:04")
    # A year of minutes that come to one day are as many slots as a day has minutes.
    moved = filtered(Interval(60), spec, days, BERLIN)
    assert len(moved.between(at("1972-02-28T22:59:59"), at("1972-02-29T22:59:59"))) == 1_440


def test_a_note_names_each_slot_that_came_to_an_instant() -> None:
    """A daily rule has its own slot on the day that Good Friday's and Easter Monday's move to."""
    schedule = filtered(
        daily(), {"exclude": ["de"], "on_excluded": "next_business_day"}, {"de": GERMAN}, BERLIN
    )
    assert isinstance(schedule, Filtered)
    assert schedule.note(at("2026-04-07T15:00")) == (
        "also moved from 2026-04-03 (Good Friday, DE), 2026-04-06 (Easter Monday, DE)"
    )
    assert schedule.note(at("2026-04-08T15:00")) is None


@pytest.mark.parametrize(
    ("word", "bounds", "expected"),
    [
        ("next_business_day", (None, "2026-04-06T21:59:59"), ["2026-03-27T16:00:00Z"]),
        (
            "next_business_day",
            (None, "2026-04-07T15:00:00"),
            ["2026-03-27T16:00:00Z", "2026-04-07T15:00:00Z"],
        ),
        ("previous_business_day", ("2026-04-03T00:00:00", None), ["2026-04-10T15:00:00Z"]),
        (
            "previous_business_day",
            ("2026-04-02T15:00:00", None),
            ["2026-04-02T15:00:00Z", "2026-04-10T15:00:00Z"],
        ),
    ],
)
def test_a_move_stays_within_start_and_end(
    word: str, bounds: tuple[str | None, str | None], expected: list[str]
) -> None:
    """Good Friday's slot would move to Tuesday, or to Thursday."""
    fridays = parse_every({"weeks": 1, "on": "fri", "at": "17:00"}, timezone=BERLIN)
    start, end = (None if text is None else at(text) for text in bounds)
    schedule = Filtered(Bounded(fridays, start, end), BERLIN, (GERMAN,), (), OnExcluded(word))
    assert walk(schedule, "2026-03-26T00:00", 9)[: len(expected)] == expected
    if end is not None:
        assert walk(schedule, "2026-03-26T00:00", 9) == expected
    changes = schedule.changes(at("2026-04-01T00:00"), at("2026-04-08T00:00"))
    assert [change.at is None for change in changes] == [len(expected) == 1]
