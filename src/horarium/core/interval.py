"""Intervals: every so many seconds of elapsed time, or every so many calendar days, weeks, months, years.

The type says which. `Interval` counts real seconds from an anchor (`start`, else the epoch; never the start
of a process), so a day is 24 hours and the local hour moves when the clocks change. `CalendarInterval`
names local times of calendar dates, so the local hour stays. Both are one fixed series that queries look
into: where a query starts never changes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

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


def parse_every(
    value: object, *, timezone: Zone | None = None, start: int | None = None, pointer: str = "/every"
) -> Schedule:
    """The schedule that `every: value` means.

    A duration is elapsed time from `start` (seconds since the epoch), else from the epoch. `timezone`
    matters to calendar intervals only. Raises `InvalidInput`.
    """
    return Interval(_elapsed_seconds(value, pointer), 0 if start is None else start)


def canonical_every(value: object, pointer: str = "/every") -> str:
    """The one way to write an interval: equal rules give equal values. Raises `InvalidInput`."""
    return format_duration(timedelta(seconds=_elapsed_seconds(value, pointer)))


def _elapsed_seconds(value: object, pointer: str) -> int:
    length = parse_duration(value, pointer)
    seconds, rest = divmod(length, timedelta(seconds=1))
    if rest or seconds < 1:
        raise InvalidInput(
            Problem(
                pointer, shown(value), "an interval is whole seconds, at least one", "1s", code="interval"
            )
        )
    return seconds


def _one_less(words: str) -> str:
    """`every minute`, not `every 1 minute`; `every 1 hour 30 minutes` stays."""
    count, _, unit = words.partition(" ")
    return unit if count == "1" and " " not in unit else words
