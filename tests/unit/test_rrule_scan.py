"""Recurrence rules against a plain scanner, written from RFC 5545's text.

It shares no code with the evaluator: it walks period by period from DTSTART with `datetime`, expands and
limits as the table of §3.3.10 says, drops times that `zoneinfo` can't show, and counts. Slow and obvious;
zones and spans are chosen so that clocks jump.
"""

from __future__ import annotations

import random
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest

from horarium.core.instant import to_seconds
from horarium.core.rrule import parse_rrule
from horarium.core.zone import load_zone
from horarium.errors import InvalidInput

DAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
# Each with a date near which its clock jumps, and in which way.
PLACES = [
    ("Europe/Berlin", date(2026, 3, 29)),
    ("Europe/Berlin", date(2026, 10, 25)),
    ("America/New_York", date(2026, 3, 8)),
    ("America/New_York", date(2026, 11, 1)),
    ("Australia/Lord_Howe", date(2026, 10, 4)),  # half an hour
    ("Australia/Lord_Howe", date(2026, 4, 5)),
    ("Africa/Cairo", date(2026, 4, 24)),  # at midnight
    ("America/Havana", date(2026, 11, 1)),
    ("Pacific/Apia", date(2011, 12, 30)),  # a day that never was
    ("Europe/Dublin", date(2026, 3, 29)),  # negative daylight time
    ("Africa/Casablanca", date(2026, 2, 15)),  # Ramadan
    ("Asia/Kathmandu", date(1986, 1, 1)),  # a quarter of an hour
    ("UTC", date(2026, 6, 1)),
]
SPANS = {  # how far a scan goes, in days
    "YEARLY": 365 * 14,
    "MONTHLY": 365 * 4,
    "WEEKLY": 365 * 2,
    "DAILY": 365,
    "HOURLY": 40,
    "MINUTELY": 3,
    "SECONDLY": 0.2,
}


class Rule:
    """The parts as lists; absent ones are empty."""

    def __init__(self, text: str) -> None:
        self.text = text
        given = dict(part.split("=") for part in text.split(";"))
        self.freq = given["FREQ"]
        self.interval = int(given.get("INTERVAL", 1))
        self.count = int(given["COUNT"]) if "COUNT" in given else None
        self.wkst = DAYS.index(given.get("WKST", "MO"))
        numbers = {key: [int(n) for n in given.get(key, "").split(",") if n] for key in NUMBERS}
        self.month, self.week, self.year_day, self.month_day = (numbers[key] for key in NUMBERS[:4])
        self.hour, self.minute, self.second, self.position = (numbers[key] for key in NUMBERS[4:])
        self.day = [
            (int(item[:-2] or 0), DAYS.index(item[-2:])) for item in given.get("BYDAY", "").split(",") if item
        ]


NUMBERS = [
    "BYMONTH",
    "BYWEEKNO",
    "BYYEARDAY",
    "BYMONTHDAY",
    "BYHOUR",
    "BYMINUTE",
    "BYSECOND",
    "BYSETPOS",
]


def scan(rule: Rule, start: datetime, zone: zoneinfo.ZoneInfo, end: datetime) -> list[int]:
    """The instants from `start` (a wall clock's time) to `end`."""
    found: list[int] = []
    for period in periods(rule, start, end):
        shown = sorted({at for at in candidates(rule, start, period) if exists(at, zone)})
        if rule.position:
            n = len(shown)
            places = {p - 1 if p > 0 else n + p for p in rule.position}
            shown = [shown[i] for i in sorted(places) if 0 <= i < n]
        for at in shown:
            if at >= start and (rule.count is None or len(found) < rule.count):
                found.append(to_seconds(at.replace(tzinfo=zone, fold=0).astimezone(UTC)))
    return found


def exists(at: datetime, zone: zoneinfo.ZoneInfo) -> bool:
    return at.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) == at


def periods(rule: Rule, start: datetime, end: datetime) -> Iterator[datetime]:
    """The beginning of each period that INTERVAL keeps."""
    match rule.freq:
        case "YEARLY":
            for year in range(start.year, end.year, rule.interval):
                yield datetime(year, 1, 1)
        case "MONTHLY":
            for month in range(
                start.year * 12 + start.month - 1, end.year * 12 + end.month - 1, rule.interval
            ):
                yield datetime(month // 12, month % 12 + 1, 1)
        case _:
            midnight = start.replace(hour=0, minute=0, second=0)
            first = {
                "WEEKLY": midnight - timedelta(days=(start.weekday() - rule.wkst) % 7),
                "DAILY": midnight,
                "HOURLY": start.replace(minute=0, second=0),
                "MINUTELY": start.replace(second=0),
                "SECONDLY": start,
            }[rule.freq]
            step = {"WEEKLY": 604800, "DAILY": 86400, "HOURLY": 3600, "MINUTELY": 60, "SECONDLY": 1}[
                rule.freq
            ]
            while first < end:
                yield first
                first += timedelta(seconds=step * rule.interval)


def candidates(rule: Rule, start: datetime, period: datetime) -> Iterator[datetime]:
    """Everything in a period that the BYxxx parts admit, and what they leave out taken from DTSTART."""
    length = {"YEARLY": 366, "MONTHLY": 31, "WEEKLY": 7}.get(rule.freq, 1)
    coarse = rule.freq in ("YEARLY", "MONTHLY", "WEEKLY", "DAILY")
    hours = (rule.hour or [start.hour]) if coarse else [period.hour]
    minutes = (rule.minute or [start.minute]) if coarse or rule.freq == "HOURLY" else [period.minute]
    seconds = (rule.second or [start.second]) if rule.freq != "SECONDLY" else [period.second]
    for offset in range(length):
        day = (period + timedelta(days=offset)).date()
        if rule.freq == "YEARLY" and day.year != period.year:
            continue
        if rule.freq == "MONTHLY" and day.month != period.month:
            continue
        if not admits(rule, start, day):
            continue
        for hour in hours:
            for minute in minutes:
                for second in seconds:
                    at = datetime(day.year, day.month, day.day, hour, minute, second)
                    if (
                        (not rule.hour or hour in rule.hour)
                        and (not rule.minute or minute in rule.minute)
                        and (not rule.second or second in rule.second)
                    ):
                        yield at


def admits(rule: Rule, start: datetime, day: date) -> bool:
    months, month_days, weekdays = rule.month, rule.month_day, rule.day
    if rule.freq == "YEARLY" and not (rule.week or rule.year_day or month_days or weekdays):
        months, month_days = months or [start.month], [start.day]
    if rule.freq == "YEARLY" and rule.week and not (rule.year_day or month_days or weekdays):
        weekdays = [(0, start.weekday())]
    if rule.freq == "MONTHLY" and not (month_days or weekdays):
        month_days = [start.day]
    if rule.freq == "WEEKLY" and not weekdays:
        weekdays = [(0, start.weekday())]
    if months and day.month not in months:
        return False
    following_month = date(day.year + day.month // 12, day.month % 12 + 1, 1)
    left = (following_month - day).days  # 1 on the month's last day
    if month_days and day.day not in month_days and -left not in month_days:
        return False
    of_year = day.timetuple().tm_yday
    left_of_year = (date(day.year + 1, 1, 1) - day).days
    if rule.year_day and of_year not in rule.year_day and -left_of_year not in rule.year_day:
        return False
    if rule.week and not week_numbers(day, rule.wkst) & set(rule.week):
        return False
    if not weekdays:
        return True
    in_month = rule.freq == "MONTHLY" or bool(rule.month)
    nth = (day.day if in_month else of_year) + 6
    nth_last = (left if in_month else left_of_year) + 6
    return any(
        name == day.weekday() and (n == 0 or n == nth // 7 or n == -(nth_last // 7)) for n, name in weekdays
    )


def week_numbers(day: date, wkst: int) -> set[int]:
    """§3.3.10: week one is the first that has at least four days in its year; -1 is the last."""

    def week_one(year: int) -> date:
        first = date(year, 1, 1) - timedelta(days=(date(year, 1, 1).weekday() - wkst) % 7)
        return first if (date(year, 1, 1) - first).days <= 3 else first + timedelta(days=7)

    year = max(y for y in (day.year - 1, day.year, day.year + 1) if week_one(y) <= day)
    number = (day - week_one(year)).days // 7 + 1
    return {number, number - (week_one(year + 1) - week_one(year)).days // 7 - 1}


def random_rule(rng: random.Random) -> str:
    freq = rng.choice(list(SPANS))
    parts = [f"FREQ={freq}"]
    most = {"YEARLY": 3, "MONTHLY": 6, "WEEKLY": 6, "DAILY": 20}.get(freq, 100)
    if rng.random() < 0.5:
        parts.append(f"INTERVAL={rng.randint(1, most)}")

    def some(low: int, high: int, count: int, signed: bool = False) -> str:
        numbers = rng.sample(range(low, high + 1), count)
        return ",".join(str(n * rng.choice([1, -1]) if signed else n) for n in numbers)

    by = []
    if rng.random() < 0.25:
        by.append("BYMONTH=" + some(1, 12, rng.randint(2, 6)))
    if freq == "YEARLY" and rng.random() < 0.25:
        by.append("BYWEEKNO=" + some(1, 53, rng.randint(1, 4), signed=True))
    if freq in ("YEARLY", "HOURLY", "MINUTELY", "SECONDLY") and rng.random() < 0.1:
        by.append("BYYEARDAY=" + some(1, 366, 40, signed=True))
    if freq != "WEEKLY" and rng.random() < 0.25:
        by.append("BYMONTHDAY=" + some(1, 31, rng.randint(1, 12), signed=True))
    if rng.random() < 0.4:
        days = rng.sample(DAYS, rng.randint(1, 5))
        if freq in ("YEARLY", "MONTHLY") and not any(part.startswith("BYWEEKNO") for part in by):
            days = [
                rng.choice(["", "", "1", "2", "-1", "-2", "5", "20"][: 7 + (freq == "YEARLY")]) + d
                for d in days
            ]
        by.append("BYDAY=" + ",".join(days))
    if rng.random() < 0.35:
        by.append("BYHOUR=" + some(0, 3, rng.randint(1, 3)))  # where clocks jump
    if rng.random() < 0.35:
        by.append("BYMINUTE=" + some(0, 59, rng.randint(1, 5)))
    if rng.random() < 0.2:
        by.append("BYSECOND=" + some(0, 59, rng.randint(1, 3)))
    if by and rng.random() < 0.35:
        by.append("BYSETPOS=" + some(1, rng.choice([2, 5, 12]), rng.randint(1, 2), signed=True))
    parts += by
    if rng.random() < 0.3:
        parts.append("WKST=" + rng.choice(DAYS))
    if rng.random() < 0.3:
        parts.append(f"COUNT={rng.choice([1, 2, 5, 17, 60, 400])}")
    rng.shuffle(parts)
    return ";".join(parts)


@pytest.fixture(scope="module", autouse=True)
def _the_packages_zones() -> Iterator[None]:
    """`zoneinfo` reads the `tzdata` package, as Horarium does, whatever the host has."""
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.parametrize("seed", range(12))
def test_the_scanner_agrees(seed: int) -> None:
    rng = random.Random(f"scan-{seed}")
    compared = 0
    for _ in range(50):
        name, change = rng.choice(PLACES)
        rule = Rule(random_rule(rng))
        span = SPANS[rule.freq]
        back = timedelta(days=min(span / 2, 40) * rng.random())
        start = datetime(change.year, change.month, change.day, 3) - back
        start = start.replace(microsecond=0, second=rng.choice([0, 0, start.second]))
        end = start + timedelta(days=span)
        text = f"DTSTART;TZID={name}:{start:%Y%m%dT%H%M%S}\nRRULE:{rule.text}"
        expected = scan(rule, start, zoneinfo.ZoneInfo(name), end)
        try:
            schedule = parse_rrule(text, load_zone("UTC"))
        except InvalidInput as refused:
            never = "never fires" in str(refused)
            if expected or not never:
                raise
            continue
        if not expected:
            continue
        compared += 1
        # Later periods can lie past the scan's end, so what is compared ends with the scan's last instance.
        found = schedule.between(-(10**20), expected[-1], 100_000)
        assert found == expected, text
        for i in rng.sample(range(len(expected)), min(len(expected), 6)):
            t = expected[i]
            fresh = parse_rrule(text, load_zone("UTC"))
            assert fresh.before(t) == t, text
            assert fresh.before(t - 1) == (expected[i - 1] if i else None), text
            if i + 1 < len(expected):
                between = rng.randint(t, expected[i + 1] - 1)
                assert fresh.after(between) == expected[i + 1], text
                assert fresh.before(between) == t, text
        if rule.count is not None and len(expected) == rule.count:
            assert schedule.after(expected[-1]) is None, text
            assert schedule.before(10**20) == expected[-1], text
    assert compared > 20
