"""Civil dates as day numbers, and the wall clock's times as instants.

A *day* is a count of days since 1970-01-01, a Thursday. *Local seconds* are what a wall clock shows, read
as if it were UTC (`day * 86_400 + second_of_day`). Weekdays count from Monday as 0. The calendar is the
Gregorian one over the years 1 to 9999, before its adoption too (ISO 8601). It repeats after 400 years,
which are 146,097 days and so a whole number of weeks: no search needs to look further.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horarium.core.zone import Zone

DAY = 86_400
FIRST_DAY = -719_162
"""0001-01-01."""
LAST_DAY = 2_932_896
"""9999-12-31."""
CYCLE_DAYS = 146_097
"""Days of 400 years."""

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEKDAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH_NAMES = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

_EPOCH_ORDINAL = 719_163
_LONGEST_JUMP = 2 * DAY  # no clock ever jumped by more than a day; twice that is room enough

MADE_UP_GAP = 3 * 3_600
"""A clock that jumps by this many seconds or more changed its date line, not its season: there is no gap
to make up for (Samoa's 30 December 2011 never was)."""


def is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_before_year(year: int) -> int:
    """The day of 1 January; `year` may lie outside 1 to 9999."""
    y = year - 1
    return y * 365 + y // 4 - y // 100 + y // 400 + FIRST_DAY


def month_length(year: int, month: int) -> int:
    if month == 2:
        return 29 if is_leap(year) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def ymd(day: int) -> tuple[int, int, int]:
    """Year, month and day of month of a day within the calendar."""
    found = date.fromordinal(day + _EPOCH_ORDINAL)
    return found.year, found.month, found.day


def day_of(year: int, month: int, day: int) -> int:
    """The day number of a date; raises `ValueError` if there is no such date."""
    return date(year, month, day).toordinal() - _EPOCH_ORDINAL


def year_of(day: int) -> int:
    """The year of a day within the calendar."""
    return date.fromordinal(day + _EPOCH_ORDINAL).year


def weekday(day: int) -> int:
    """0 for Monday to 6 for Sunday."""
    return (day + 3) % 7


def iso_date(day: int) -> str:
    return date.fromordinal(day + _EPOCH_ORDINAL).isoformat()


def reach(zone: Zone, t: int) -> int:
    """The latest local time that the clock of `zone` has shown up to the instant `t`.

    What the wall shows at `t`, except in the second pass of an overlap: there it is the end of the first
    pass. So a rule's local times at or before `reach` are just those whose first pass is at or before `t`.
    """
    latest = t + zone.offset_at(t)
    if not zone.is_fixed:
        for change in zone.transitions(t - _LONGEST_JUMP, t):
            latest = max(latest, change.at + change.before - 1)
    return latest


def first_pass(zone: Zone, local: int) -> int:
    """The instant of a local time: the first pass in an overlap, the first instant after a gap."""
    found = zone.resolve(local)
    return found[0] if found else gap_at(zone, local)[0]


def gap_at(zone: Zone, local: int) -> tuple[int, int]:
    """The jump over `local`, which `zone` never shows: its instant, and by how many seconds."""
    for change in zone.transitions(local - _LONGEST_JUMP, local + _LONGEST_JUMP):
        if change.at + change.before <= local < change.at + change.after:
            return change.at, change.after - change.before
    raise ValueError(f"local second {local} is not in a gap of {zone.name}")
