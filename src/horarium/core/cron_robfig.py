"""The robfig dialect's answers: what robfig/cron v3's `SpecSchedule.Next` says, also where it is odd.

A trigger that comes from Flyte is to keep its runs, so this dialect repeats the library (spec.go) step by
step: it truncates a time by rebuilding it from local fields, adds days and hours, and looks again. Away
from jumps of the clock that is the literal rule. Near one it can lose a day whose midnight the clock
skips (Beirut, 31 March 2013), or a time after a jump of half an hour (Lord Howe). Three of its
answers are not repeated: it gives up five years ahead; where a whole date is missing (Apia, 30 December
2011) it can search for ever; and it can answer with the very instant it was asked about, for ever
(Chatham, 19 March 2006). All three end here with the literal answer.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import date

from horarium.core.cron import Cron
from horarium.core.instant import MAX_SECONDS, MIN_SECONDS
from horarium.core.zone import DAY, Zone

_EPOCH_DAY = 719_163  # the ordinal of 1970-01-01
_YEARS_AHEAD = 5
_FIRST_SAFE, _LAST_SAFE = MIN_SECONDS + 2 * DAY, MAX_SECONDS - (_YEARS_AHEAD + 2) * 366 * DAY
_MOST_STEPS = 10_000  # five years of days, a day of hours, an hour of minutes, some times over


class RobfigCron(Cron):
    """`Cron` with the library's steps near jumps of the clock."""

    __slots__ = ()

    def after(self, t: int) -> int | None:
        return self._after(t)

    def _after(self, t: int) -> int | None:
        literal = super()._after(t)
        if literal is None or self._zone.is_fixed or not _FIRST_SAFE <= t <= literal <= _LAST_SAFE:
            return literal
        starts, offsets, _ = self._zone.table(literal + 2 * DAY)
        near = bisect_right(starts, t - 2 * DAY)
        if near == len(starts) or starts[near] > literal + 2 * DAY:
            return literal
        i = bisect_right(starts, t + 1) - 1
        if (t + 1 + offsets[i]) // 3_600 == (literal + offsets[i]) // 3_600 and (
            i + 1 == len(starts) or literal < starts[i + 1]
        ):
            return literal  # in the hour where the search begins there is nothing to rebuild
        stepped = _next(self, self._zone, t)
        return literal if stepped is None or stepped <= t else stepped

    def between(self, a: int, b: int, limit: int = 10_000) -> list[int]:
        if self._zone.is_fixed:
            return super().between(a, b, limit)
        found: list[int] = []
        t = self._after(a)
        while t is not None and t <= b and len(found) < limit:
            found.append(t)
            t = self._after(t)
        return found

    def before(self, t: int) -> int | None:
        """The last instant at or before `t` of the series that passes the literal match before it."""
        literal = super().before(t)
        if literal is None or self._zone.is_fixed:
            return literal
        # An odd answer lies within a day of a jump, so the series is walked from before the last one.
        jumps = self._zone.transitions(literal - 2 * DAY, t)
        if not jumps:
            return literal
        start = super().before(jumps[0].at - 2 * DAY)
        found = literal if start is None else start
        step = self._after(found)
        while step is not None and step <= t:
            found, step = step, self._after(step)
        return max(found, literal)


def _next(rule: Cron, zone: Zone, t: int) -> int | None:
    """`SpecSchedule.Next` on instants; None where it finds no answer."""
    fields, clock = rule.fields, _Clock(zone)
    t += 1
    added = False
    limit = clock.date(t).year + _YEARS_AHEAD
    steps = 0
    while steps < _MOST_STEPS and clock.date(t).year <= limit:
        steps += 1
        # Each loop goes on until its field matches; one that comes round starts the search again.
        again = False
        while not again and not fields.months >> clock.date(t).month & 1:
            if not added:
                added = True
                t = clock.at(clock.date(t).toordinal() - clock.date(t).day + 1, 0)
            today = clock.date(t)
            following = date(today.year + today.month // 12, today.month % 12 + 1, 1)
            t = clock.at(following.toordinal() + today.day - 1, clock.second_of_day(t))
            again = clock.date(t).month == 1
        while not again and not rule.matches_date(clock.date(t).toordinal() - _EPOCH_DAY):
            steps += 1
            if steps > _MOST_STEPS:
                return None  # a date that does not exist: the library would try for ever
            if not added:
                added = True
                t = clock.at(clock.date(t).toordinal(), 0)
            t = clock.at(clock.date(t).toordinal() + 1, clock.second_of_day(t))
            hour = clock.second_of_day(t) // 3_600
            if hour != 0:  # the clock skips that midnight
                t += (24 - hour if hour > 12 else -hour) * 3_600
            again = clock.date(t).day == 1
        while not again and not fields.hours >> clock.second_of_day(t) // 3_600 & 1:
            if not added:
                added = True
                t = clock.at(clock.date(t).toordinal(), clock.second_of_day(t) // 3_600 * 3_600)
            t += 3_600
            again = clock.second_of_day(t) < 3_600
        while not again and not fields.minutes >> clock.second_of_day(t) // 60 % 60 & 1:
            if not added:
                added = True
                t -= t % 60
            t += 60
            again = clock.second_of_day(t) // 60 % 60 == 0
        if not again and clock.second_of_day(t) % 60:
            added = True
            t += 60 - clock.second_of_day(t) % 60
            again = True
        if not again:
            return t
    return None


class _Clock:
    """Go's `time` package in one zone: dates of instants, and instants of dates."""

    def __init__(self, zone: Zone) -> None:
        self._zone = zone

    def date(self, t: int) -> date:
        return date.fromordinal((t + self._zone.offset_at(t)) // DAY + _EPOCH_DAY)

    def second_of_day(self, t: int) -> int:
        return (t + self._zone.offset_at(t)) % DAY

    def at(self, ordinal: int, second: int) -> int:
        """`time.Date`: guess the offset as if the local time were UTC, and correct the guess once."""
        local = (ordinal - _EPOCH_DAY) * DAY + second
        starts, offsets, _ = self._zone.table(local)
        i = bisect_right(starts, local) - 1
        utc = local - offsets[i]
        if starts[i] <= utc and (i + 1 == len(starts) or utc < starts[i + 1]):
            return utc
        return local - self._zone.offset_at(utc)
