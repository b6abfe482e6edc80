"""Intervals: every so many seconds of elapsed time, or every so many calendar days, weeks, months, years.

The type says which. `Interval` counts real seconds from an anchor (`start`, else the epoch; never the start
of a process), so a day is 24 hours and the local hour moves when the clocks change. `CalendarInterval`
names local times of calendar dates, so the local hour stays. Both are one fixed series that queries look
into: where a query starts never changes it.

A calendar interval's local time that the clock skips means the first instant after the gap (unless the clock
jumps by three hours or more: then that slot falls away), one that it shows twice means the first pass.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from horarium.core.civil import (
    DAY,
    FIRST_DAY,
    LAST_DAY,
    MADE_UP_GAP,
    MONTH_NAMES,
    MONTHS,
    WEEKDAY_NAMES,
    WEEKDAYS,
    day_of,
    gap_at,
    month_length,
    reach,
    weekday,
    ymd,
)
from horarium.core.duration import format_duration, in_words, parse_duration
from horarium.core.instant import MAX_SECONDS, MIN_SECONDS, from_seconds, rfc3339
from horarium.core.schedule import Schedule
from horarium.errors import InvalidInput, Problem, shown

if TYPE_CHECKING:
    from horarium.core.zone import Zone


@dataclass(frozen=True, slots=True)
class Interval(Schedule):
    """Every `seconds` of elapsed time: the instants `anchor + k * seconds`, k any whole number."""

    seconds: int
    anchor: int = 0

    @property
    def zone(self) -> Zone | None:
        return None

    def after(self, t: int) -> int | None:
        t = max(t, MIN_SECONDS - 1)
        found = t + self.seconds - (t - self.anchor) % self.seconds
        return found if found <= MAX_SECONDS else None

    def before(self, t: int) -> int | None:
        t = min(t, MAX_SECONDS)
        found = t - (t - self.anchor) % self.seconds
        return found if found >= MIN_SECONDS else None

    def between(self, a: int, b: int, limit: int = 10_000) -> list[int]:
        first = self.after(a)
        if first is None or limit <= 0:
            return []
        last = min(b, MAX_SECONDS, first + (limit - 1) * self.seconds)
        return list(range(first, last + 1, self.seconds))

    def describe(self) -> str:
        text = f"every {_one_less(in_words(self.seconds))}"
        if self.anchor % self.seconds:
            text += f", counted from {rfc3339(from_seconds(self.anchor))}"
        return text


class Step(StrEnum):
    """What a calendar interval counts."""

    DAYS = "days"
    WEEKS = "weeks"
    MONTHS = "months"
    YEARS = "years"


@dataclass(frozen=True, slots=True)
class CalendarInterval(Schedule):
    """Every `count` days, weeks, months or years, at local times of `place`'s clock.

    `anchor` is the day (since the epoch) in whose period the counting begins; the series goes on before it.
    `times` are seconds of the day; `days` are weekdays (0 Monday) of a week, or days of a month, where one
    that a month lacks means its last day; `month` is that of yearly steps. Both ascend and are not empty.
    """

    step: Step
    count: int
    place: Zone
    anchor: int
    times: tuple[int, ...]
    days: tuple[int, ...] = ()
    month: int = 1

    @property
    def zone(self) -> Zone | None:
        return self.place

    def after(self, t: int) -> int | None:
        t = max(t, MIN_SECONDS - 1)
        if t >= MAX_SECONDS:
            return None
        local = reach(self.place, t)
        period = self._active_from(self._period_of(min(max(local // DAY, FIRST_DAY), LAST_DAY)))
        while (days := self._days_of(period)) is not None:
            for day in days[bisect_left(days, local // DAY) :]:
                for second in self.times[bisect_right(self.times, local - day * DAY) :]:
                    found = self._instant(day * DAY + second)
                    if found is not None:
                        return found if found <= MAX_SECONDS else None
            period += self.count
        return None

    def before(self, t: int) -> int | None:
        t = min(t, MAX_SECONDS)
        if t < MIN_SECONDS:
            return None
        local = reach(self.place, t)
        period = self._period_of(min(max(local // DAY, FIRST_DAY), LAST_DAY))
        period -= (period - self._period_of(self.anchor)) % self.count
        while (days := self._days_of(period)) is not None:
            for day in reversed(days[: bisect_right(days, local // DAY)]):
                for second in reversed(self.times[: bisect_right(self.times, local - day * DAY)]):
                    found = self._instant(day * DAY + second)
                    if found is not None:
                        return found if found >= MIN_SECONDS else None
            period -= self.count
        return None

    def local_times(self, low: int, high: int) -> list[int]:
        """What the rule names in the local seconds `[low, high)`, whether the clock shows it or not.

        A time that the clock skips means the first instant after the gap, unless it jumps by `MADE_UP_GAP` or
        more; one that it shows twice means the first pass.
        """
        found: list[int] = []
        period = self._active_from(self._period_of(min(max(low // DAY, FIRST_DAY), LAST_DAY)))
        while (days := self._days_of(period)) is not None:
            found += [day * DAY + second for day in days for second in self.times]
            if found and found[-1] >= high:
                break
            period += self.count
        return [at for at in found if low <= at < high]

    def describe(self) -> str:
        unit = self.step.value
        every = f"every {unit[:-1]}" if self.count == 1 else f"every {self.count:,} {unit}"
        where = ""
        if self.step is Step.WEEKS:
            where = " on " + _listed([WEEKDAY_NAMES[day] for day in self.days])
        elif self.days:
            where = " on day " + _listed([str(day) for day in self.days])
            if self.step is Step.YEARS:
                where = f" in {MONTH_NAMES[self.month - 1]}" + where
            if self.days[-1] > (28 if self.step is Step.MONTHS else month_length(2000, self.month)):
                where += " (or the month's last)"
        return f"{every}{where} at {_listed([_clock(second) for second in self.times])}, {self.place.name}"

    def _instant(self, local: int) -> int | None:
        found = self.place.resolve(local)
        if found:
            return found[0]
        at, jump = gap_at(self.place, local)
        return at if jump < MADE_UP_GAP else None

    def _period_of(self, day: int) -> int:
        match self.step:
            case Step.DAYS:
                return day
            case Step.WEEKS:
                return (day + 3) // 7  # weeks begin on Monday
            case Step.MONTHS:
                year, month, _ = ymd(day)
                return year * 12 + month - 1
            case Step.YEARS:
                return ymd(day)[0]

    def _active_from(self, period: int) -> int:
        """The first period at or after `period` that the interval counts."""
        return period + (self._period_of(self.anchor) - period) % self.count

    def _days_of(self, period: int) -> Sequence[int] | None:
        """The days that a period names, ascending; None outside the calendar."""
        match self.step:
            case Step.DAYS:
                return (period,) if FIRST_DAY <= period <= LAST_DAY else None
            case Step.WEEKS:
                monday = period * 7 - 3
                if monday + 6 < FIRST_DAY or monday > LAST_DAY:
                    return None
                days = [monday + day for day in self.days]
                return [day for day in days if FIRST_DAY <= day <= LAST_DAY]
            case Step.MONTHS:
                year, month = divmod(period, 12)
                return self._clamped(year, month + 1)
            case Step.YEARS:
                return self._clamped(period, self.month)

    def _clamped(self, year: int, month: int) -> Sequence[int] | None:
        if not 1 <= year <= 9999:
            return None
        first, length = day_of(year, month, 1) - 1, month_length(year, month)
        return sorted({first + min(day, length) for day in self.days})


def parse_every(
    value: object, timezone: Zone | None = None, start: int | None = None, pointer: str = "/every"
) -> Schedule:
    """The schedule that `every: value` means.

    A duration is elapsed time from `start` (seconds since the epoch), else from the epoch. A mapping is a
    calendar interval in `timezone`: `{months: 1, on_day: 31, at: "09:00"}`. What it leaves out comes from
    `start`'s local date and time, else from 1 January 1970, 00:00. Raises `InvalidInput`.
    """
    if isinstance(value, Mapping):
        if timezone is None:
            raise ValueError("a calendar interval needs a zone")
        return _parse_calendar(value, timezone, start, pointer)
    return Interval(_elapsed_seconds(value, pointer), 0 if start is None else start)


def canonical_every(value: object, pointer: str = "/every") -> Any:
    """The one way to write an interval, as JSON: equal rules give equal values. Raises `InvalidInput`."""
    if not isinstance(value, Mapping):
        return format_duration(timedelta(seconds=_elapsed_seconds(value, pointer)))
    typed = _read_calendar(value, pointer)
    canonical: dict[str, Any] = {typed.step.value: typed.count}
    if typed.times is not None:
        canonical["at"] = _scalar([_clock(second) for second in typed.times])
    if typed.days is not None:
        named = typed.step is Step.WEEKS
        canonical["on" if named else "on_day"] = _scalar([WEEKDAYS[d] if named else d for d in typed.days])
    if typed.month is not None:
        canonical["in_month"] = typed.month
    return canonical


def _elapsed_seconds(value: object, pointer: str) -> int:
    length = parse_duration(value, pointer)
    seconds, rest = divmod(length, timedelta(seconds=1))
    if rest or seconds < 1:
        raise _wrong(value, pointer, "an interval is whole seconds, at least one", "1s")
    return seconds


# --- calendar intervals as they are typed ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Typed:
    """What a calendar interval's mapping says; None is what it leaves out."""

    step: Step
    count: int
    times: tuple[int, ...] | None
    days: tuple[int, ...] | None
    month: int | None


_MAX_COUNT = 1_000_000
_MAX_TIMES = 1_440
_KEYS = {
    Step.DAYS: ("at",),
    Step.WEEKS: ("at", "on"),
    Step.MONTHS: ("at", "on_day"),
    Step.YEARS: ("at", "on_day", "in_month"),
}
_TIME = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?", re.ASCII)


def _parse_calendar(
    value: Mapping[Any, Any], place: Zone, start: int | None, pointer: str
) -> CalendarInterval:
    typed = _read_calendar(value, pointer)
    local = 0 if start is None else start + place.offset_at(start)
    anchor = min(max(local // DAY, FIRST_DAY), LAST_DAY)
    _, month, day = ymd(anchor)
    days = typed.days
    if days is None and typed.step is Step.WEEKS:
        # The epoch was a Thursday, which nobody would expect: without a start, weeks begin on Monday.
        days = (0,) if start is None else (weekday(anchor),)
    elif days is None:
        days = () if typed.step is Step.DAYS else (day,)
    return CalendarInterval(
        typed.step,
        typed.count,
        place,
        anchor,
        typed.times if typed.times is not None else (local % DAY,),
        days,
        typed.month if typed.month is not None else month,
    )


def _read_calendar(value: Mapping[Any, Any], pointer: str) -> _Typed:
    problems: list[Problem] = []
    steps = [step for step in Step if step.value in value]
    if len(steps) != 1:
        finer = next((str(key) for key in value if key in ("hours", "minutes", "seconds")), None)
        hint = f"every: {value[finer]}{finer[0]}" if finer else '{days: 1, at: "09:00"}'
        raise _wrong(dict(value), pointer, "a calendar interval has one of days, weeks, months, years", hint)
    step = steps[0]
    count = value[step.value]
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MAX_COUNT:
        rule = f"{step.value} is a whole number from 1 to {_MAX_COUNT:,}"
        problems.append(_problem(count, f"{pointer}/{step.value}", rule, "1"))
    for key in value:
        if key != step.value and key not in _KEYS[step]:
            fits = [other.value for other in Step if key in _KEYS[other]]
            hint = f"{key} goes with {_listed(fits)}" if fits else "leave it out"
            rule = f"an interval of {step.value} takes {_listed([step.value, *_KEYS[step]])}"
            problems.append(_problem(key, f"{pointer}/{key}", rule, hint))
    times = _many(value, "at", _second_of_day, pointer, problems)
    days = _many(value, "on", _weekday, pointer, problems) if step is Step.WEEKS else None
    if step in (Step.MONTHS, Step.YEARS):
        days = _many(value, "on_day", _day_of_month, pointer, problems)
    month = _many(value, "in_month", _month, pointer, problems) if step is Step.YEARS else None
    if month is not None and len(month) > 1:
        problems.append(_problem(value["in_month"], f"{pointer}/in_month", "one month", "12"))
    if problems:
        raise InvalidInput(problems)
    return _Typed(step, count, times, days, month[0] if month else None)


def _many(
    value: Mapping[Any, Any], key: str, read: Any, pointer: str, problems: list[Problem]
) -> tuple[int, ...] | None:
    """The numbers under `key`, which holds one or a list; None if it is not there or one is wrong."""
    if key not in value:
        return None
    listed = isinstance(value[key], list | tuple)
    items = value[key] if listed else [value[key]]
    if not 0 < len(items) <= _MAX_TIMES:
        rule = f"{key} names 1 to {_MAX_TIMES:,} values"
        problems.append(_problem(value[key], f"{pointer}/{key}", rule, "leave it out, or name one"))
        return None
    found: set[int] = set()
    for i, item in enumerate(items):
        where = f"{pointer}/{key}/{i}" if listed else f"{pointer}/{key}"
        try:
            found.add(read(item))
        except _Refused as refused:
            problems.append(_problem(item, where, refused.rule, refused.hint))
    return tuple(sorted(found))


class _Refused(Exception):
    def __init__(self, rule: str, hint: str) -> None:
        self.rule, self.hint = rule, hint


def _second_of_day(item: object) -> int:
    found = _TIME.fullmatch(item.strip()) if isinstance(item, str) else None
    if found is None or int(found[1]) > 23 or int(found[2]) > 59 or int(found[3] or 0) > 59:
        raise _Refused("a time of day is HH:MM or HH:MM:SS, 00:00 to 23:59:59, in quotes", '"09:00"')
    return int(found[1]) * 3_600 + int(found[2]) * 60 + int(found[3] or 0)


def _weekday(item: object) -> int:
    if isinstance(item, str):
        for i, name in enumerate(WEEKDAY_NAMES):
            if item.strip().lower() in (name.lower(), name[:3].lower()):
                return i
    raise _Refused("a weekday is mon, tue, wed, thu, fri, sat or sun", "mon")


def _day_of_month(item: object) -> int:
    if isinstance(item, int) and not isinstance(item, bool) and 1 <= item <= 31:
        return item
    raise _Refused("a day of the month is 1 to 31, where 31 is the last day of every month", "31")


def _month(item: object) -> int:
    if isinstance(item, int) and not isinstance(item, bool) and 1 <= item <= 12:
        return item
    if isinstance(item, str):
        for i, name in enumerate(MONTH_NAMES):
            if item.strip().lower() in (name.lower(), MONTHS[i]):
                return i + 1
    raise _Refused("a month is 1 to 12 or its name", "12 or dec")


# --- words ----------------------------------------------------------------------------------------------


def _clock(second: int) -> str:
    text = f"{second // 3600:02}:{second // 60 % 60:02}"
    return f"{text}:{second % 60:02}" if second % 60 else text


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _scalar(items: list[Any]) -> Any:
    return items[0] if len(items) == 1 else items


def _problem(value: object, pointer: str, rule: str, hint: str) -> Problem:
    return Problem(pointer, shown(value), rule, hint, code="interval")


def _wrong(value: object, pointer: str, rule: str, hint: str) -> InvalidInput:
    return InvalidInput(_problem(value, pointer, rule, hint))


def _one_less(words: str) -> str:
    """`every minute`, not `every 1 minute`; `every 1 hour 30 minutes` stays."""
    count, _, unit = words.partition(" ")
    return unit if count == "1" and " " not in unit else words
