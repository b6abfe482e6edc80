"""Every minute of three years, asked one by one: the evaluator agrees with a scanner that shares no code.

The scanner is written from the rules' text. It knows the wall clock of each minute from the standard
library's zones, marks the minutes whose wall clock matches, and then applies the policy:

- a minute whose wall clock was shown before is a second pass;
- where the wall clock leaves minutes out, fewer than three hours of them, a fixed-time job that names one
  of those is owed a run at the minute after.

The short form takes a seeded sample of the 5,000; `HORARIUM_FULL=1` runs them all.
"""

from __future__ import annotations

import os
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.unit.cron_random import ZONES, Expression, expression, parsed
from tests.unit.zones_of import library_zone

FULL = os.environ.get("HORARIUM_FULL") == "1"
COUNT = 5_000 if FULL else 240
SPANS = (1986, 1999, 2010, 2018, 2025) if FULL else (2010, 2024)
YEARS = 3

Array = Any  # a numpy array; numpy's own generic says no more


@dataclass(frozen=True)
class WallClock:
    """What the clock of a place shows at each minute of three years: minute `first + i` at index `i`."""

    first: int
    minute_of_day: Array
    day: Array  # days after `first_day`
    first_day: int
    shown_before: Array
    gaps: tuple[tuple[int, int, int], ...]
    """(index after the gap, the first and the last wall minute left out)"""


@lru_cache(maxsize=2)
def wall_clock(zone: str, year: int) -> WallClock:
    place = library_zone(zone)
    begin = datetime(year, 1, 1, tzinfo=UTC)
    first = int(begin.timestamp()) // 60
    last = int(datetime(year + YEARS, 1, 1, tzinfo=UTC).timestamp()) // 60
    utc = np.arange(first, last)
    offset = np.empty(len(utc), dtype=np.int64)

    def minutes_east(i: int) -> int:
        east = (begin + timedelta(minutes=i)).astimezone(place).utcoffset()
        assert east is not None
        return int(east.total_seconds()) // 60

    # Two looks an hour apart that agree have agreed in between: nowhere does a clock jump twice in an hour.
    for i in range(0, len(utc), 60):
        here, there = minutes_east(i), minutes_east(i + 60)
        offset[i : i + 60] = here
        if here != there:
            for j in range(60):
                offset[i + j] = minutes_east(i + j)
    wall = utc + offset
    first_day = int(wall.min()) // 1_440
    return WallClock(
        first=first,
        minute_of_day=(wall % 1_440).astype(np.int16),
        day=(wall // 1_440 - first_day).astype(np.int16),
        first_day=first_day,
        shown_before=np.concatenate(([False], wall[1:] <= np.maximum.accumulate(wall)[:-1])),
        gaps=tuple(
            (int(i) + 1, int(wall[i]) + 1, int(wall[i + 1]) - 1) for i in np.flatnonzero(np.diff(wall) > 1)
        ),
    )


def matching_minutes(rule: Expression) -> Array:
    """For each minute of a day, whether the expression names it."""
    return np.array([m // 60 in rule.hours and m % 60 in rule.minutes for m in range(1_440)])


def matching_dates(rule: Expression, first_day: int, count: int) -> Array:
    """For each of `count` dates, whether the expression names it."""
    dates = np.zeros(count, dtype=bool)
    for i in range(count):
        today = date(1970, 1, 1) + timedelta(days=first_day + i)
        if today.month in rule.months:
            begins, length = monthrange(today.year, today.month)  # Monday is 0
            ask = (today.day, length, (begins + 1) % 7)
            by_day, by_weekday = rule.day(*ask), rule.weekday(*ask)
            dates[i] = by_day or by_weekday if rule.either else by_day and by_weekday
    return dates


def scan(rule: Expression, clock: WallClock, policy: str) -> list[int]:
    """Every instant of the span, in seconds, but for its first day, which has no yesterday here."""
    minutes = matching_minutes(rule)
    dates = matching_dates(rule, clock.first_day, int(clock.day.max()) + 1)
    named = minutes[clock.minute_of_day] & dates[clock.day]
    if policy == "skip_once" or (policy == "vixie" and rule.fixed_time):
        named &= ~clock.shown_before
    if policy == "vixie" and rule.fixed_time:
        for index, low, high in clock.gaps:
            left_out = range(low, high + 1)
            owed = any(minutes[m % 1_440] and dates[m // 1_440 - clock.first_day] for m in left_out)
            if len(left_out) < 180 and owed:
                named[index] = True
    found = np.flatnonzero(named[1_440:]) + 1_440 + clock.first
    return [int(minute) * 60 for minute in found]


def matrix() -> list[tuple[int, str, int, str]]:
    """(seed of an expression, zone, first year, policy)"""
    rng = Random(20_260_329)
    policies = ("vixie", "vixie", "literal", "skip_once")
    return [(n, rng.choice(ZONES), rng.choice(SPANS), rng.choice(policies)) for n in range(COUNT)]


@pytest.mark.parametrize("zone", ZONES)
def test_every_minute_of_three_years(zone: str) -> None:
    compared = 0
    for seed, _, year, policy in sorted((row for row in matrix() if row[1] == zone), key=lambda row: row[2]):
        rule = expression(Random(seed), forms=True)
        clock = wall_clock(zone, year)
        expected = scan(rule, clock, policy)
        schedule = parsed(rule.text, zone, policy)
        if schedule is None:
            assert expected == [], rule.text
            continue
        begin, end = (clock.first + 1_440) * 60, (clock.first + len(clock.day)) * 60
        found = schedule.between(begin - 1, end - 1, 2_000_000)
        assert found == expected, (rule.text, zone, year, policy, _first_difference(found, expected))
        compared += len(found)
    assert compared > 0


def _first_difference(found: list[int], expected: list[int]) -> list[str]:
    odd = sorted(set(found) ^ set(expected))[:3]
    return [f"{datetime.fromtimestamp(t, UTC)} {'ours' if t in found else 'theirs'}" for t in odd]
