"""Prefect's schedules in our words name what Prefect itself names. Its own server code is the oracle."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horarium.core.instant import to_seconds
from horarium.core.schedule import parse
from horarium.errors import InvalidInput
from horarium.prefect.schedules import of_schedule
from tests.prefect.server import Sdk

CRONS = [
    "*/5 * * * *", "30 2 * * *", "0 9 * * 1-5", "0 9 * * mon-fri", "15,45 8-18 * * *", "0 0 1 * *",
    "7/20 * * * *", "0 0 */2 * 1", "0 0 1-31 * 1", "0 0 31/3 * *", "0 0 13 * 5",
    "5-5 * * * *", "0 22-2 * * *", "0 0 * * 5-7",
    "0 0 * * sat-sun", "0 0 * * fri-mon", "0 0 * apr-jan/3 *", "50-10/7 * * * *", "0 0 * * L5", "0 0 L * *",
    "0 0 * * 1#2", "0 0 1,L * *", "0 0 15 * 1#3", "* * * * * 30",
    "0 0 * * * */20", "0 0 ? * 3",
    "0 12 1 1-12/2 *", "@hourly", "@daily", "@weekly", "@monthly", "@yearly", "0 0 * * 7", "0 0 * * 0-7",
]  # fmt: skip
"""Whatever croniter reads, above all what it reads otherwise than others do."""

START = "2026-01-05T00:00:00+00:00"
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"]
"""From January on: Prefect's habits at a change of the clock are its own (docs/prefect.md)."""

INTERVALS: list[dict[str, Any]] = [
    {"interval": 300, "anchor_date": "2025-12-31T23:58:00+00:00"},
    {"interval": 3_600, "anchor_date": "2026-02-01T00:17:00+00:00", "timezone": "Europe/Berlin"},
    {"interval": 90, "anchor_date": "2020-01-01T00:00:07+00:00", "timezone": "UTC"},
    {"interval": 86_400, "anchor_date": "2025-06-01T07:30:00+00:00", "timezone": "UTC"},
    {"interval": 86_400, "anchor_date": "2025-11-15T07:30:00+00:00", "timezone": "Europe/Berlin"},
    {"interval": 7 * 86_400, "anchor_date": "2026-03-02T07:30:00+00:00", "timezone": "America/New_York"},
    {"interval": 3 * 86_400, "anchor_date": "2025-12-29T23:30:00+00:00", "timezone": "Europe/Berlin"},
    {"interval": 129_600, "anchor_date": "2025-12-29T23:30:00+00:00", "timezone": "UTC"},
]

RRULES: list[dict[str, Any]] = [
    {"rrule": "FREQ=DAILY;BYHOUR=9;BYMINUTE=30;BYSECOND=0"},
    {"rrule": "FREQ=WEEKLY;BYDAY=MO,TH", "timezone": "Europe/Berlin"},
    {"rrule": "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17", "timezone": "America/New_York"},
    {"rrule": "DTSTART:20240101T090000\nRRULE:FREQ=DAILY;INTERVAL=3", "timezone": "Europe/Berlin"},
    {"rrule": "DTSTART:20240101T090000Z\nRRULE:FREQ=DAILY", "timezone": "America/New_York"},
    {"rrule": "DTSTART;TZID=Europe/Paris:20240101T090000\nRRULE:FREQ=WEEKLY", "timezone": "America/New_York"},
    {"rrule": "FREQ=HOURLY;INTERVAL=5", "timezone": "Asia/Kathmandu"},
    {"rrule": "FREQ=MINUTELY;INTERVAL=45", "timezone": "UTC"},
    {"rrule": "DTSTART:20260101T000000\nRRULE:FREQ=DAILY;COUNT=20", "timezone": "Europe/Berlin"},
    {
        "rrule": "DTSTART:20260101T060000\nRRULE:FREQ=DAILY\nEXDATE:20260107T060000",
        "timezone": "Europe/Berlin",
    },
    {
        "rrule": "DTSTART:20260101T000000Z\nRRULE:FREQ=DAILY;UNTIL=20260120T000000Z",
        "timezone": "Europe/Berlin",
    },
    {"rrule": "FREQ=YEARLY;BYMONTH=2,3;BYMONTHDAY=1,15"},
]


def ours(schedule: dict[str, Any], n: int) -> list[int] | str:
    """What we name from `START` on, or what is wrong with it."""
    try:
        rule = parse(of_schedule(schedule, "/schedule", created=datetime(2026, 1, 1, tzinfo=UTC)))
    except InvalidInput as error:
        return str(error)
    first = to_seconds(datetime.fromisoformat(START)) - 1
    return rule.between(first, first + 200 * 366 * 86_400, n)


def compared(sdk: Sdk, schedules: list[dict[str, Any]], n: int = 40) -> None:
    theirs = sdk.ask("dates", schedules=schedules, start=START, n=n)
    different = [
        (schedule, named, mine)
        for schedule, named, mine in zip(
            schedules, theirs, (ours(item, n) for item in schedules), strict=True
        )
        if named != mine
    ]
    assert different == []


@pytest.mark.parametrize("zone", ZONES)
def test_cron_as_croniter_reads_it(sdk: Sdk, zone: str) -> None:
    # Not past March, where clocks change.
    n = 40 if zone in ("UTC", "Asia/Kathmandu") else 4
    compared(sdk, [{"cron": cron, "timezone": zone} for cron in CRONS if n == 40 or "L" not in cron], n)


def test_cron_with_both_day_fields(sdk: Sdk) -> None:
    crons = ["0 0 13 * 5", "0 0 */2 * 1", "0 0 1-7 * mon", "0 0 1-31 * 1", "0 0 * * 1"]
    compared(sdk, [{"cron": cron, "day_or": day_or} for cron in crons for day_or in (True, False)])


def test_a_first_of_march_that_prefect_loses(sdk: Sdk) -> None:
    """croniter steps from 21 February over the 1 March that `*/10` names."""
    schedule = {"cron": "0 0 */10 * *"}
    first_of_march = to_seconds(datetime(2026, 3, 1, tzinfo=UTC))
    (theirs,) = sdk.ask("dates", schedules=[schedule], start=START, n=10)
    mine = ours(schedule, 10)
    assert (first_of_march in theirs, first_of_march in mine) == (False, True)


def test_intervals(sdk: Sdk) -> None:
    compared(sdk, INTERVALS)


def test_recurrence_rules(sdk: Sdk) -> None:
    compared(sdk, RRULES, 8)


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ({"cron": "R(0-59) * * * *"}, "names other times at every look; try: H(0-59)"),
        ({"cron": "0 0 31 2 *"}, "would never run"),
        ({"cron": "0 0 1 1 * 0 2027"}, "a year"),
        ({"interval": 0.5}, "whole seconds"),
        ({"interval": 60, "anchor_date": "yesterday"}, "an anchor_date is a time"),
        ({"rrule": "FREQ=SOMETIMES"}, "FREQ is one of"),
        ({"cron": "* * * * *", "timezone": "Europe/Bielefeld"}, "Europe/Bielefeld"),
        ({}, "cron, interval or rrule"),
        (None, "cron, interval or rrule"),
    ],
)
def test_what_has_no_words_here_is_refused_with_its_place(schedule: Any, why: str) -> None:
    with pytest.raises(InvalidInput) as error:
        of_schedule(schedule, "/prefect/etl/nightly/weekday")
    assert why in str(error.value)
    assert all(problem.pointer.startswith("/prefect/etl/nightly/weekday") for problem in error.value.problems)


def test_an_anchor_in_the_future_does_not_begin_the_series(sdk: Sdk) -> None:
    schedule = {"interval": 86_400, "anchor_date": "2031-07-01T06:00:00+00:00", "timezone": "Europe/Berlin"}
    rule = of_schedule(schedule, "", created=datetime(2026, 6, 1, tzinfo=UTC))
    first = to_seconds(datetime(2026, 6, 10, tzinfo=UTC))
    named = parse(rule).between(first, first + 3 * 86_400)
    assert [datetime.fromtimestamp(at, UTC).hour for at in named] == [6, 6, 6]


def test_a_month_is_a_calendar_month() -> None:
    rule = of_schedule(
        {"interval": "P1M", "anchor_date": "2026-01-31T08:00:00Z", "timezone": "Europe/Berlin"}, ""
    )
    first = to_seconds(datetime(2026, 2, 1, tzinfo=UTC))
    named = [datetime.fromtimestamp(at, UTC) for at in parse(rule).between(first, first + 90 * 86_400)]
    assert [(at.month, at.day) for at in named] == [(2, 28), (3, 31), (4, 30)]
    assert named[1] - named[0] == timedelta(days=30, hours=23), "nine o'clock there, before and after"
