"""One recurrence rule of RFC 5545 §3.3.10, evaluated.

A rule is a set of *days* times a set of *times of day*, both on the wall clock of one place: the BYxxx parts
that speak of days filter the calendar, FREQ and INTERVAL make periods of it and leave only every n-th, and
the parts that speak of time fill a day. So a query jumps to its day by arithmetic; nothing is counted up from
DTSTART. COUNT is arithmetic on days too, kept at one mark a year.

The wall clock's times become instants at the very end. A time that the clock skips is no instance and is not
counted (nor does BYSETPOS see it); one that it shows twice means its first pass.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, product
from math import gcd

from horarium.core.civil import (
    CYCLE_DAYS,
    DAY,
    FIRST_DAY,
    LAST_DAY,
    day_of,
    days_before_year,
    is_leap,
    month_length,
    reach,
    weekday,
    year_of,
    ymd,
)
from horarium.core.instant import MAX_SECONDS, MIN_SECONDS
from horarium.core.zone import WIDEST_OFFSET, Zone


class Freq(IntEnum):
    """FREQ, from coarse to fine."""

    YEARLY = 0
    MONTHLY = 1
    WEEKLY = 2
    DAILY = 3
    HOURLY = 4
    MINUTELY = 5
    SECONDLY = 6


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a rule. Numbers as RFC 5545 has them, each tuple ascending and without repeats.

    `by_day` holds `(n, weekday)`, n 0 where no number was given and Monday 0. `until` is an instant,
    inclusive.
    """

    freq: Freq
    interval: int = 1
    count: int | None = None
    until: int | None = None
    by_month: tuple[int, ...] = ()
    by_week_no: tuple[int, ...] = ()
    by_year_day: tuple[int, ...] = ()
    by_month_day: tuple[int, ...] = ()
    by_day: tuple[tuple[int, int], ...] = ()
    by_hour: tuple[int, ...] = ()
    by_minute: tuple[int, ...] = ()
    by_second: tuple[int, ...] = ()
    by_set_pos: tuple[int, ...] = ()
    wkst: int = 0


_UNIT = {Freq.HOURLY: 3_600, Freq.MINUTELY: 60, Freq.SECONDLY: 1}
# How many periods of each kind the calendar's 400 years have: after that many, nothing new can be found.
_PERIODS = {Freq.YEARLY: 400, Freq.MONTHLY: 4_800, Freq.WEEKLY: CYCLE_DAYS // 7, Freq.DAILY: CYCLE_DAYS}
_FOOTER_ALONE = days_before_year(2100)  # no release of the tz database names changes after 2087
_TRIES = 1_000  # steps from period to period before the residues of the days are worked out instead
_MOST_RESIDUES = 20_000  # days of a drifting rule's round that are worked out for COUNT: some 0.1 s
_FIRST_FILL, _LAST_FILL = 4, 1_024  # instances found at once: a single question is cheap, a walk is fast


class Recurrence:
    """The instances of one rule from DTSTART on. Immutable to the eye; what it keeps are caches.

    `start` is DTSTART in local seconds of `zone`. DTSTART itself is an instance only if the rule names it.
    """

    __slots__ = (
        "_by_kind",
        "_chunk",
        "_cycle",
        "_days",
        "_drift_sizes",
        "_drift_totals",
        "_drifts",
        "_first_day",
        "_last",
        "_lock",
        "_marks",
        "_most",
        "_periodic",
        "_phases",
        "_ragged",
        "_repeats",
        "_residues",
        "_start_set",
        "_starts",
        "_step",
        "_times",
        "_window",
        "_within",
        "_zero",
        "count",
        "parts",
        "start",
        "zone",
    )

    def __init__(self, parts: Parts, zone: Zone, start: int) -> None:
        self.parts = _with_defaults(parts, start)
        self.zone = zone
        self.start = start
        self._first_day = start // DAY
        self._days = _Days(self.parts)
        self._chunk: tuple[int, list[int]] = (0, [])
        self._window = (1, 0, 0)
        self._ragged: dict[int, Sequence[int]] = {}
        self._phases: dict[
            int, Sequence[int]
        ] = {}  # times by phase; indices by size where BYSETPOS needs them
        self._by_kind: dict[tuple[int, tuple[int, ...]], list[int]] = {}  # what BYSETPOS leaves of a year
        self._residues: tuple[list[int], frozenset[int]] | None = None
        self._drift_sizes: dict[int, int] = {}  # times of the days of a round, by residue
        self._drift_totals: list[int] | None = None
        self._marks: tuple[list[int], list[int]] | None = None
        self._last: int | None = None
        self._lock = threading.Lock()
        self._cycle = _TRIES
        if parts.freq in _PERIODS:
            # Steps from kept period to kept period after which a search has seen everything there is to see.
            periods = _PERIODS[parts.freq]
            self._cycle = periods // gcd(parts.interval, periods) + 2
        self._build_times()
        if self._periodic and min(map(abs, parts.by_set_pos)) > self._largest_period() * len(self._within):
            self._days = _Days.none()  # no period has that many instances
        steps_by_weeks = self._step % (7 * DAY) == 0 if self._step else parts.interval % 7 == 0
        first_weekday = (0, weekday(self._first_day))
        if parts.freq >= Freq.DAILY and steps_by_weeks and parts.by_day and first_weekday not in parts.by_day:
            self._days = _Days.none()  # the weekday is always DTSTART's
        self.count = self._reachable_count()

    # --- questions ---------------------------------------------------------------------------------------

    def after(self, t: int) -> int | None:
        """The first instance strictly after the instant `t`."""
        since, found = self._chunk
        if found and since <= t < found[-1]:
            return found[bisect_right(found, t)]
        size = min(2 * len(found), _LAST_FILL) if found and t == found[-1] else _FIRST_FILL
        t = max(t, MIN_SECONDS - 1)
        if t >= MAX_SECONDS:
            return None
        found = self._fill(reach(self.zone, t), size)
        if not found:
            return None
        self._chunk = (t, found)
        return found[0]

    def before(self, t: int) -> int | None:
        """The last instance at or before the instant `t`."""
        t = min(t, MAX_SECONDS)
        if self.parts.until is not None:
            t = min(t, self.parts.until)
        if t < MIN_SECONDS:
            return None
        local = reach(self.zone, t)
        if self.count is not None:
            self._count_up_to(local // DAY)
            if self._last is not None and self._last < t:
                return self._last if self._last >= MIN_SECONDS else None
        found = self._last_local(local)
        if found is None:
            return None
        at = self._instant(found)
        return at if at >= MIN_SECONDS else None

    def between(self, a: int, b: int, limit: int) -> list[int]:
        """The instances in `(a, b]`, at most `limit`."""
        found: list[int] = []
        t = max(a, MIN_SECONDS - 1)
        size = _FIRST_FILL  # grows, so that a rare rule is not followed for centuries beyond `b`
        while t < min(b, MAX_SECONDS) and len(found) < limit:
            more = self._fill(reach(self.zone, t), min(limit - len(found), size))
            if not more or more[0] > b:
                break
            found += more[: bisect_right(more, b)]
            t, size = more[-1], min(4 * size, _LAST_FILL)
        return found

    def has(self, t: int) -> bool:
        """`t` is an instance."""
        return self.before(t) == t

    def local_times(self, low: int, high: int) -> list[int]:
        """What the rule names in the local seconds `[low, high)`, whether the clock shows it or not.

        For explanations: what a gap swallowed is here, while COUNT and UNTIL end it as they end `after`.
        """
        found: list[int] = []
        for day in self._kept_days(low // DAY, (high - 1) // DAY + 1):
            if self._periodic:
                first, end = self._period(day)
                days, each = self._days.within(first, end), len(self._within)
                named = [
                    days[i // each] * DAY + self._within[i % each] for i in self._places(len(days) * each)
                ]
                found += [at for at in named if at // DAY == day]
            else:
                found += [day * DAY + second for second in self._nominal(day)]
        end_of_rule = MAX_SECONDS if self.parts.until is None else self.parts.until
        if self.count is not None:
            self._count_up_to(high // DAY)
            end_of_rule = min(end_of_rule, MAX_SECONDS if self._last is None else self._last)
        latest = reach(self.zone, end_of_rule)
        return [at for at in found if max(low, self.start) <= at < high and at <= latest]

    # --- filling -----------------------------------------------------------------------------------------

    def _fill(self, local: int, size: int) -> list[int]:
        """The instants of at most `size` instances later than the local time `local`, ascending."""
        local = max(local, self.start - 1)
        found = self._fill_periods(local, size) if self._periodic else self._fill_days(local, size)
        if not found:
            return found
        end = MAX_SECONDS if self.parts.until is None else min(MAX_SECONDS, self.parts.until)
        if self.count is not None:
            self._count_up_to((found[-1] + WIDEST_OFFSET) // DAY)
            if self._last is not None:
                end = min(end, self._last)
        if found[-1] > end:
            del found[bisect_right(found, end) :]
        if found and found[0] < MIN_SECONDS:  # local year 1 begins before UTC's, east of Greenwich
            del found[: bisect_left(found, MIN_SECONDS)]
            return found or self._fill(local + DAY, size)
        return found

    def _fill_days(self, local: int, size: int) -> list[int]:
        found: list[int] = []
        today = local // DAY
        stretch = size if self._drifts else 32 * size
        start = self._next_day(today)
        while start is not None:
            end = min(days_before_year(year_of(start) + 1), start + stretch)
            for day in self._kept_days(start, end):
                times = self._times_on(day)
                first = bisect_right(times, local - today * DAY) if day == today else 0
                last = min(len(times), first + size - len(found))
                if first >= last:
                    continue
                low, high, offset = self._window
                midnight = day * DAY
                if low <= midnight and midnight + DAY <= high:
                    midnight -= offset
                    if last - first == 1:
                        found.append(midnight + times[first])
                    else:
                        found += [midnight + second for second in times[first:last]]
                else:
                    found += [self._instant(midnight + second) for second in times[first:last]]
                if len(found) >= size:
                    return found
            start = self._next_day(end)
        return found

    def _fill_periods(self, local: int, size: int) -> list[int]:
        found: list[int] = []
        day = self._next_day(self._period(max(local // DAY, self._first_day))[0])
        tries = self._cycle
        by_years = self.parts.interval == 1 and self.parts.freq <= Freq.WEEKLY and size > _FIRST_FILL
        while day is not None and len(found) < size and tries:
            first, end = self._period(day)
            chosen: Sequence[int] | None = None
            if by_years:
                first, end = self._year_around(day)
                chosen = self._chosen_in_year(first, end)
                if chosen is None:
                    first, end = self._period(day)
            if chosen is None:
                chosen = self._chosen(first, end)
            tries = self._cycle if chosen else tries - 1
            if chosen and chosen[0] <= local:
                chosen = chosen[bisect_right(chosen, local) :]
            found += self._instants(chosen)
            day = self._next_day(end)
        return found[:size]

    def _instants(self, local_times: Sequence[int]) -> list[int]:
        """The instants of local times that are all shown."""
        found: list[int] = []
        for at in local_times:
            low, high, offset = self._window
            if not low <= at < high:
                low, high, offset = self._window_at(at)
                if not low <= at < high:
                    found.append(self._instant(at))
                    continue
                self._window = low, high, offset
            found.append(at - offset)
        return found

    def _last_local(self, local: int) -> int | None:
        """The last instance at or before the local time `local`, in local seconds; UNTIL and COUNT aside."""
        if local < self.start:
            return None
        day = self._previous_day(min(local // DAY, LAST_DAY))
        if self._periodic:
            day = self._previous_day(self._period(min(local // DAY, LAST_DAY))[1] - 1)
        tries = self._cycle
        while day is not None and tries:
            if self._periodic:
                first, end = self._period(day)
                chosen = self._chosen(first, end)
                i = bisect_right(chosen, local)
                if i and chosen[i - 1] >= self.start:
                    return chosen[i - 1]
                day = self._previous_day(first - 1)
            else:
                times = self._times_on(day)
                i = bisect_right(times, local - day * DAY)
                if i:
                    found = day * DAY + times[i - 1]
                    return found if found >= self.start else None
                day = self._previous_day(day - 1)
            tries -= 1
        return None

    # --- days --------------------------------------------------------------------------------------------

    def _next_day(self, day: int) -> int | None:
        """The first day at or after `day` that has instances (skipped ones count here)."""
        found: int | None = max(day, self._first_day)
        for _ in range(self._cycle if self._residues is None else 1):  # once known, they are the shorter way
            found = self._days.following(found)  # type: ignore[arg-type]  # None ends the loop below
            if found is None:
                return None
            aligned = self._align(found)
            if aligned is None:
                return None
            if aligned == found:
                if self._times or self._nominal(found):
                    return found
                aligned += 1
            found = aligned
        return self._next_rare_day(found) if self._drifts and found is not None else None

    def _previous_day(self, day: int) -> int | None:
        """The last day at or before `day` that has instances, not before DTSTART's."""
        found = day
        for _ in range(self._cycle):
            if found < self._first_day:
                return None
            allowed = self._days.preceding(found)
            if allowed is None or allowed < self._first_day:
                return None
            aligned = self._align_down(allowed)
            if aligned == allowed:
                if self._times or self._nominal(allowed):
                    return allowed
                aligned -= 1
            found = aligned
        return self._previous_rare_day(found) if self._drifts else None

    def _align(self, day: int) -> int | None:
        """The first day at or after `day` that lies in a period that INTERVAL keeps."""
        interval = self.parts.interval
        if interval == 1:
            return day
        match self.parts.freq:
            case Freq.YEARLY:
                year = year_of(day)
                wait = (year_of(self._first_day) - year) % interval
                if wait and year + wait > 9999:
                    return None
                return days_before_year(year + wait) if wait else day
            case Freq.MONTHLY:
                month = _month_of(day)
                wait = (_month_of(self._first_day) - month) % interval
                return (_first_of(month + wait) if month + wait < 120_000 else None) if wait else day
            case Freq.WEEKLY:
                week = self._week_of(day)
                wait = (self._week_of(self._first_day) - week) % interval
                return (week + wait) * 7 - 3 + self.parts.wkst if wait else day
            case Freq.DAILY:
                return day + (self._first_day - day) % interval
            case _:
                if not self._drifts:
                    return day
                return (day * DAY + (self._zero - day * DAY) % self._step) // DAY

    def _align_down(self, day: int) -> int:
        """The last day at or before `day` that lies in a period that INTERVAL keeps."""
        interval = self.parts.interval
        if interval == 1:
            return day
        match self.parts.freq:
            case Freq.YEARLY:
                year = year_of(day)
                back = (year - year_of(self._first_day)) % interval
                return days_before_year(year - back + 1) - 1 if back else day
            case Freq.MONTHLY:
                month = _month_of(day)
                back = (month - _month_of(self._first_day)) % interval
                return _first_of(month - back + 1) - 1 if back else day
            case Freq.WEEKLY:
                week = self._week_of(day)
                back = (week - self._week_of(self._first_day)) % interval
                return (week - back) * 7 + 3 + self.parts.wkst if back else day
            case Freq.DAILY:
                return day - (day - self._first_day) % interval
            case _:
                if not self._drifts:
                    return day
                end = day * DAY + DAY - 1
                return (end - (end - self._zero) % self._step) // DAY

    def _period(self, day: int) -> tuple[int, int]:
        """The first day of the period around `day`, and the first day after it."""
        match self.parts.freq:
            case Freq.YEARLY:
                year = year_of(day)
                return days_before_year(year), days_before_year(year + 1)
            case Freq.MONTHLY:
                year, month, of_month = ymd(day)
                return day - of_month + 1, day - of_month + 1 + month_length(year, month)
            case Freq.WEEKLY:
                first = self._week_of(day) * 7 - 3 + self.parts.wkst
                return first, first + 7
            case _:
                return day, day + 1

    def _week_of(self, day: int) -> int:
        return (day + 3 - self.parts.wkst) // 7

    # --- times of a day ----------------------------------------------------------------------------------

    def _build_times(self) -> None:
        """Sorts out what a day's times are made of.

        `_times`: the seconds of every day that has instances, empty where they differ from day to day as
        INTERVAL does not divide a day (`_drifts`). `_starts`: the seconds at which a period may begin, for
        FREQ below DAILY. `_within`: the seconds of such a period. `_zero`, `_step`: the local seconds
        at which periods do begin.
        """
        parts = self.parts
        self._periodic = bool(parts.by_set_pos) and parts.freq <= Freq.WEEKLY
        self._start_set: frozenset[int] | None = None
        self._starts: Sequence[int] = ()
        self._times: Sequence[int] = ()
        self._step = self._zero = 0
        self._drifts = False
        if parts.freq <= Freq.DAILY:
            self._within = _seconds_of(parts.by_hour, parts.by_minute, parts.by_second)
            self._times = self._within
            if parts.by_set_pos and not self._periodic:
                self._times = [self._within[i] for i in _picked(len(self._within), parts.by_set_pos)]
            if not self._times:
                self._days = _Days.none()
            return
        unit = _UNIT[parts.freq]
        self._step = parts.interval * unit
        self._drifts = DAY % self._step != 0
        self._zero = self.start - self.start % unit
        match parts.freq:
            case Freq.HOURLY:
                self._within = _seconds_of((0,), parts.by_minute, parts.by_second)
                limited = bool(parts.by_hour)
            case Freq.MINUTELY:
                self._within = _seconds_of((0,), (0,), parts.by_second)
                limited = bool(parts.by_hour or parts.by_minute)
            case _:
                self._within = [0]
                limited = bool(parts.by_hour or parts.by_minute or parts.by_second)
        if limited:
            minutes = parts.by_minute or range(60) if parts.freq >= Freq.MINUTELY else (0,)
            seconds = parts.by_second or range(60) if parts.freq is Freq.SECONDLY else (0,)
            self._starts = _seconds_of(parts.by_hour or range(24), minutes, seconds)
            self._start_set = frozenset(self._starts)
        else:
            self._starts = range(0, DAY, unit)
        if not self._drifts:
            self._times = self._nominal(self._first_day)
        common = gcd(
            self._step, DAY
        )  # a drifting period begins at these distances from `_zero`, and no others
        if not self._picked_within(self._within) or not (
            self._times
            if not self._drifts
            else self._start_set is None
            or any((self._zero - second) % common == 0 for second in self._starts)
        ):
            self._days = _Days.none()

    def _nominal(self, day: int) -> Sequence[int]:
        """The times of `day` if the clock skipped none of them."""
        if self._times:
            return self._times
        phase = (self._zero - day * DAY) % self._step
        known = self._phases.get(phase)
        if known is None:
            within = self._picked_within(self._within)
            begins = self._begins(phase)
            known = begins if within == [0] else [begin + second for begin in begins for second in within]
            if len(self._phases) > 5_000:
                self._phases.clear()
            self._phases[phase] = known
        return known

    def _begins(self, phase: int) -> Sequence[int]:
        """The seconds of a day at which periods begin, if the first of all possible ones is `phase`."""
        every = range(phase, DAY, self._step)
        if self._start_set is None:
            return every
        if len(self._starts) < len(every):
            return [start for start in self._starts if start >= phase and (start - phase) % self._step == 0]
        return [start for start in every if start in self._start_set]

    def _picked_within(self, seconds: Sequence[int]) -> Sequence[int]:
        if not self.parts.by_set_pos:
            return seconds
        return [seconds[i] for i in _picked(len(seconds), self.parts.by_set_pos)]

    def _times_on(self, day: int) -> Sequence[int]:
        """The times of `day` that the clock shows, and `_window` moved to it where that is possible."""
        midnight = day * DAY
        low, high, _ = self._window
        if day == self._first_day and day in self._ragged:
            return self._ragged[day]
        if not (low <= midnight and midnight + DAY <= high):
            self._window = low, high, _ = self._window_at(midnight)
            if not (low <= midnight and midnight + DAY <= high):
                return self._ragged_times(day)
        times = self._nominal(day)
        if day != self._first_day:
            return times
        return self._ragged.setdefault(day, times[bisect_left(times, self.start - midnight) :])

    def _window_at(self, local: int) -> tuple[int, int, int]:
        """Local times around `local` that are each shown just once: `(from, to, their offset)`."""
        table = self.zone.table(local + 400 * DAY)
        starts, offsets = table.starts, table.offsets
        i = bisect_right(starts, local - offsets[bisect_right(starts, local) - 1]) - 1
        low, high = starts[i], min(table.until, starts[i + 1] if i + 1 < len(starts) else table.until)
        low += max(offsets[i], offsets[i - 1]) if i else 0
        high += min(offsets[i], offsets[i + 1]) if i + 1 < len(offsets) else -WIDEST_OFFSET
        return low, high, offsets[i]

    def _ragged_times(self, day: int) -> Sequence[int]:
        """The times of a day on which the clock jumps, or may."""
        known = self._ragged.get(day)
        if known is not None:
            return known
        midnight = day * DAY
        times = self._nominal(day)
        gaps = self._gaps(midnight, midnight + DAY)
        if gaps:
            times = self._repicked(day, times, gaps)
        if day == self._first_day:
            times = times[bisect_left(times, self.start - midnight) :]
        if len(self._ragged) > 1_000:
            self._ragged.clear()
        self._ragged[day] = times
        return times

    def _repicked(self, day: int, times: Sequence[int], gaps: list[tuple[int, int]]) -> Sequence[int]:
        """`times` without what the gaps swallow; BYSETPOS chooses among what is left."""
        midnight = day * DAY

        def shown(seconds: Sequence[int]) -> Sequence[int]:
            for low, high in gaps:
                i, j = bisect_left(seconds, low - midnight), bisect_left(seconds, high - midnight)
                if i < j:
                    # Two jumps in a row can show after all what the first one skipped.
                    kept = [second for second in seconds[i:j] if self.zone.resolve(midnight + second)]
                    seconds = [*seconds[:i], *kept, *seconds[j:]]
            return seconds

        if not self.parts.by_set_pos or self._periodic:
            return shown(times)
        if self.parts.freq is Freq.DAILY:
            return self._picked_within(shown(self._within))
        unit = _UNIT[self.parts.freq]
        found: list[int] = []
        for begin in self._begins((self._zero - midnight) % self._step):
            inside: Sequence[int] = [begin + second for second in self._within]
            if any(low < midnight + begin + unit and midnight + begin < high for low, high in gaps):
                inside = shown(inside)
            found += self._picked_within(inside)
        return found

    def _gaps(self, low: int, high: int) -> list[tuple[int, int]]:
        """The stretches of local time in `[low, high)` that the clock jumps over."""
        if self.zone.is_fixed:
            return []
        return [
            (change.at + change.before, change.at + change.after)
            for change in self.zone.transitions(low - 2 * DAY, high + 2 * DAY)
            if change.before < change.after
            and change.at + change.before < high
            and low < change.at + change.after
        ]

    def _instant(self, local: int) -> int:
        return self.zone.resolve(local)[0]

    # --- BYSETPOS over days, weeks, months, years ---------------------------------------------------------

    def _chosen(self, first: int, end: int) -> list[int]:
        """What BYSETPOS leaves of the period of days `[first, end)`, in local seconds."""
        days = self._days.within(first, end)
        each = len(self._within)
        low, high, _ = self._window
        if not (low <= first * DAY and end * DAY <= high):
            self._window = low, high, _ = self._window_at(first * DAY)
        if low <= first * DAY and end * DAY <= high:
            return [days[i // each] * DAY + self._within[i % each] for i in self._places(len(days) * each)]
        ragged = {day for low, high in self._gaps(first * DAY, end * DAY) for day in _days_of(low, high)}
        if not ragged.isdisjoint(days):
            # Some times of the period are not there: find the days of positions by running totals.
            seconds = [self._shown_on(day) if day in ragged else self._within for day in days]
            totals = [0, *accumulate(len(times) for times in seconds)]
            found = []
            for i in self._places(totals[-1]):
                at = bisect_right(totals, i) - 1
                found.append(days[at] * DAY + seconds[at][i - totals[at]])
            return found
        return [days[i // each] * DAY + self._within[i % each] for i in self._places(len(days) * each)]

    def _year_around(self, day: int) -> tuple[int, int]:
        """The first day of the year around `day`, and the first after it; a year of weeks is whole weeks."""
        year = year_of(day)
        first = self._boundary(year)
        if day < first:
            year, first = year - 1, self._boundary(year - 1)
        return first, self._boundary(year + 1)

    def _chosen_in_year(self, first: int, end: int) -> Sequence[int] | None:
        """What BYSETPOS leaves of all the periods of a year; None if a gap could have a say in it."""
        if self.parts.freq is Freq.WEEKLY:
            offsets = tuple([day - first for day in self._days.within(first, end)])
        else:
            offsets = self._days.of_year(year_of(first))
        for low, high in self._gaps(first * DAY, end * DAY):
            if any(_among(offsets, day - first) for day in _days_of(low, high)):
                return None
        known = self._by_kind.get((end - first, offsets))  # months lie otherwise in a leap year
        if known is None:
            named: list[int] = []
            each, period = len(self._within), first
            while period < end:
                start, period = self._period(period)
                days = self._days.within(start, period)
                named += [
                    (days[i // each] - first) * DAY + self._within[i % each]
                    for i in self._places(len(days) * each)
                ]
            known = self._by_kind[end - first, offsets] = named
        return [first * DAY + second for second in known]

    def _places(self, size: int) -> Sequence[int]:
        """The indices that BYSETPOS means in a period of `size` instances."""
        known = self._phases.get(size)
        if known is None:
            known = self._phases[size] = _picked(size, self.parts.by_set_pos)
        return known

    def _shown_on(self, day: int) -> Sequence[int]:
        return self._repicked(day, self._within, self._gaps(day * DAY, day * DAY + DAY))

    def _largest_period(self) -> int:
        """The most days that a period can have. 28 years have every kind of year but for its weeks."""
        match self.parts.freq:
            case Freq.WEEKLY:
                return len({day for _, day in self.parts.by_day})
            case Freq.YEARLY if self.parts.by_week_no:
                return len(self.parts.by_week_no) * 14  # a week of this year's number, at either end
            case _:
                first, end = days_before_year(2000), days_before_year(2028)
                sizes: dict[int, int] = {}
                for day in self._days.within(first, end):
                    period = self._period(day)[0]
                    sizes[period] = sizes.get(period, 0) + 1
                return max(sizes.values(), default=0)

    # --- COUNT -------------------------------------------------------------------------------------------

    def _reachable_count(self) -> int | None:
        """COUNT, or None if the calendar ends before it."""
        count = self.parts.count
        if count is None:
            return None
        if self._periodic:
            self._most = len(self.parts.by_set_pos)  # a day can be a period's whole
        else:
            self._most = (DAY // self._step + 1 if self._step else 1) * len(self._within)
        if self.parts.freq in _PERIODS:
            self._repeats = _PERIODS[self.parts.freq] % self.parts.interval == 0
        else:
            self._repeats = CYCLE_DAYS * DAY % self._step == 0
        return count if count < self._most * (LAST_DAY - self._first_day + 8) else None

    def _count_up_to(self, day: int) -> None:
        """Extend the marks beyond `day`, or until COUNT is reached and `_last` known."""
        if self._last is not None or (self._marks is not None and self._marks[0][-1] > day):
            return
        assert self.count is not None
        if self._most * (day - self._first_day + 8) < self.count:
            return  # not even instances at every chance would have used it up
        with self._lock:
            if self._marks is None:
                first = self._period(self._first_day)[0] if self._periodic else self._first_day
                self._marks = ([first], [0])
            days, totals = self._marks
            while self._last is None and days[-1] <= min(day, LAST_DAY):
                end = self._boundary(year_of(max(days[-1], FIRST_DAY)) + 1)
                if end <= days[-1]:
                    end = self._boundary(year_of(days[-1]) + 2)
                total = totals[-1] + self._count_of_year(days, totals, end)
                if total >= self.count:
                    self._last = self._nth(days[-1], end, self.count - totals[-1])
                    return
                totals.append(total)
                days.append(end)

    def _count_of_year(self, days: list[int], totals: list[int], end: int) -> int:
        """The instances from the last mark to `end`: those of 400 years before, where all repeats."""
        if not self._repeats or len(days) <= 400 or days[-401] < _FOOTER_ALONE:
            return self._count_of(days[-1], end)
        if days[-1] - days[-401] == end - days[-400] == CYCLE_DAYS:
            return totals[-400] - totals[-401]
        return self._count_of(days[-1], end)

    def _boundary(self, year: int) -> int:
        """The first day of `year`'s periods: 1 January, or the first week that begins in the year."""
        first = days_before_year(year)
        if self._periodic and self.parts.freq is Freq.WEEKLY:
            return first + (self.parts.wkst - weekday(first)) % 7
        return first

    def _count_of(self, first: int, end: int) -> int:
        """How many instances the days `[first, end)` have; these are whole periods."""
        if self._periodic:
            at_once = self._count_of_weeks(first, end) if self.parts.freq is Freq.WEEKLY else None
            if at_once is not None:
                return at_once
            return sum(len(self._chosen_from_start(period)) for period in self._kept_periods(first, end))
        if self._drifts and self._days.every:
            days: Sequence[int] = range(max(first, self._first_day), min(end, LAST_DAY + 1))  # kept or empty
        else:
            days = self._kept_days(first, end)
        if self._times:
            total = len(self._times) * len(days)
        elif self._start_set is None and self._days.every and days:
            last, before = days[-1] * DAY + DAY - 1 - self._zero, days[0] * DAY - 1 - self._zero
            total = (last // self._step - before // self._step) * len(self._picked_within(self._within))
        else:
            total = self._count_of_drifting(days) if days else 0
        special = {self._first_day}
        for low, high in self._gaps(first * DAY, end * DAY):
            if (
                self.parts.by_set_pos
                or low // DAY != (high - 1) // DAY
                or self.zone.resolve((low + high) // 2)
            ):
                special.update(_days_of(low, high))
            elif low // DAY != self._first_day:
                total -= self._swallowed(days, low, high)
        for day in special:
            if _among(days, day):
                total += len(self._times_on(day)) - len(self._nominal(day))
        return total

    def _count_of_drifting(self, days: Sequence[int]) -> int:
        """The times of `days` if the clock skipped none, where they come back after `modulus` days."""
        if not self._drifts:
            return sum(len(self._nominal(day)) for day in days)
        residues, members = self._day_residues()
        modulus = self._step // gcd(self._step, DAY)
        counted = len(self._marks[0]) * len(days) if self._marks is not None else 0
        if self._drift_totals is None and len(residues) > min(counted, _MOST_RESIDUES):
            return sum(len(self._nominal(day)) for day in days if day % modulus in members)
        if self._drift_totals is None:
            self._drift_sizes = {residue: len(self._nominal(residue)) for residue in residues}
            self._drift_totals = [0, *accumulate(self._drift_sizes.values())]
        if not self._days.every:
            sizes = self._drift_sizes
            return sum([sizes.get(day % modulus, 0) for day in days])
        totals = self._drift_totals

        def up_to(day: int) -> int:
            return day // modulus * totals[-1] + totals[bisect_left(residues, day % modulus)]

        return up_to(days[-1] + 1) - up_to(days[0])

    def _count_of_weeks(self, first: int, end: int) -> int | None:
        """The same for whole weeks after DTSTART's under BYSETPOS; None if a gap could have a say in it."""
        if first <= self._first_day:
            return None
        days = self._kept_days(first, end)
        for low, high in self._gaps(first * DAY, end * DAY):
            if any(_among(days, day) for day in _days_of(low, high)):
                return None
        sizes = Counter(map(self._week_of, days)).values()
        return sum(len(self._places(size * len(self._within))) for size in sizes)

    def _swallowed(self, days: Sequence[int], low: int, high: int) -> int:
        """How many instances a gap within one day costs."""
        day = low // DAY
        if not _among(days, day):
            return 0
        times = self._nominal(day)
        return bisect_left(times, high - day * DAY) - bisect_left(times, low - day * DAY)

    def _nth(self, first: int, end: int, n: int) -> int:
        """The instant of the `n`-th (from 1) instance in the days `[first, end)`."""
        if self._periodic:
            for period in self._kept_periods(first, end):
                chosen = self._chosen_from_start(period)
                if n <= len(chosen):
                    return self._instant(chosen[n - 1])
                n -= len(chosen)
        for day in () if self._periodic else self._kept_days(first, end):
            times = self._times_on(day)
            if n <= len(times):
                return self._instant(day * DAY + times[n - 1])
            n -= len(times)
        raise AssertionError("the count of a year and its instances disagree")

    def _chosen_from_start(self, period: tuple[int, int]) -> list[int]:
        chosen = self._chosen(*period)
        return chosen[bisect_left(chosen, self.start) :]

    def _kept_periods(self, first: int, end: int) -> Iterable[tuple[int, int]]:
        day = self._align(max(first, FIRST_DAY))
        while day is not None and day < min(end, LAST_DAY + 1):
            period = self._period(day)
            yield period
            day = self._align(period[1]) if period[1] <= LAST_DAY else None

    def _kept_days(self, first: int, end: int) -> Sequence[int]:
        """The days in `[first, end)` that pass the filter and lie in kept periods."""
        first, end = max(first, self._first_day), min(end, LAST_DAY + 1)
        freq, interval = self.parts.freq, self.parts.interval
        if freq is Freq.DAILY and self._days.every:
            return range(first + (self._first_day - first) % interval, end, interval)
        if freq is Freq.YEARLY and (year_of(first) - year_of(self._first_day)) % interval:
            return []
        days = self._days.within(first, end)
        if freq is Freq.YEARLY or not (self._step > DAY or (freq <= Freq.DAILY and interval > 1)):
            return days
        return [day for day in days if self._align(day) == day]

    # --- INTERVALs that drift through the day -------------------------------------------------------------

    def _day_residues(self) -> tuple[list[int], frozenset[int]]:
        """The days, modulo the days after which the phase comes back, that have a period's beginning.

        The beginnings are `zero + k * step`; one lies at second `s` of day `d` where `d * DAY + s = zero`
        modulo `step`, which has solutions only where `s = zero` modulo `gcd(step, DAY)`.
        """
        if self._residues is None:
            common = gcd(self._step, DAY)
            modulus = self._step // common
            inverse = pow(DAY // common, -1, modulus)
            found = {
                (self._zero - start) // common * inverse % modulus
                for start in self._starts
                if (self._zero - start) % common == 0
            }
            # A filter of dates can rule all of them out for ever: they meet within 400 years or not at all.
            shared = gcd(modulus, CYCLE_DAYS)
            if shared > 1 and found:
                allowed = {day % shared for day in self._days.within(0, CYCLE_DAYS)}
                found = {residue for residue in found if residue % shared in allowed}
            self._residues = (sorted(found), frozenset(found))
        return self._residues

    def _next_rare_day(self, day: int) -> int | None:
        residues, members = self._day_residues()
        modulus = self._step // gcd(self._step, DAY)
        if not residues:
            return None
        if self._days.share() * modulus <= len(residues):
            found = self._days.following(day)
            while found is not None and found % modulus not in members:
                found = self._days.following(found + 1)
            return found
        base, i = day - day % modulus, bisect_left(residues, day % modulus)
        while True:
            if i == len(residues):
                base, i = base + modulus, 0
            if base + residues[i] > LAST_DAY:
                return None
            if self._days.has(base + residues[i]):
                return base + residues[i]
            i += 1

    def _previous_rare_day(self, day: int) -> int | None:
        residues, members = self._day_residues()
        modulus = self._step // gcd(self._step, DAY)
        if not residues:
            return None
        if self._days.share() * modulus <= len(residues):
            found = self._days.preceding(day)
            while found is not None and found >= self._first_day and found % modulus not in members:
                found = self._days.preceding(found - 1)
            return found if found is not None and found >= self._first_day else None
        base, i = day - day % modulus, bisect_right(residues, day % modulus) - 1
        while True:
            if i < 0:
                base, i = base - modulus, len(residues) - 1
            if base + residues[i] < self._first_day:
                return None
            if self._days.has(base + residues[i]):
                return base + residues[i]
            i -= 1


class _Days:
    """The days that the BYxxx parts about days let through, worked out once for each kind of year."""

    __slots__ = ("_by_kind", "_by_year", "_none", "every", "parts")

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.every = not (
            parts.by_month or parts.by_week_no or parts.by_year_day or parts.by_month_day or parts.by_day
        )
        self._none = False
        self._by_kind: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._by_year: dict[int, tuple[int, ...]] = {}

    @classmethod
    def none(cls) -> _Days:
        """No day at all."""
        days = cls(Parts(Freq.DAILY))
        days.every, days._none = False, True
        return days

    def following(self, day: int) -> int | None:
        """The first such day at or after `day`."""
        if self.every:
            return max(day, FIRST_DAY) if day <= LAST_DAY else None
        if day > LAST_DAY or self._none:
            return None
        year = year_of(max(day, FIRST_DAY))
        for y in range(year, min(year + 401, 10_000)):
            offsets = self._by_year.get(y)
            if offsets is None:
                offsets = self.of_year(y)
            if offsets:
                first = days_before_year(y)
                i = bisect_left(offsets, day - first)
                if i < len(offsets):
                    return first + offsets[i]
        return None

    def preceding(self, day: int) -> int | None:
        """The last such day at or before `day`."""
        if self.every:
            return min(day, LAST_DAY) if day >= FIRST_DAY else None
        if day < FIRST_DAY or self._none:
            return None
        year = year_of(min(day, LAST_DAY))
        for y in range(year, max(year - 401, 0), -1):
            offsets = self.of_year(y)
            if offsets:
                first = days_before_year(y)
                i = bisect_right(offsets, day - first)
                if i:
                    return first + offsets[i - 1]
        return None

    def has(self, day: int) -> bool:
        return self.following(day) == day

    def within(self, first: int, end: int) -> Sequence[int]:
        """Such days in `[first, end)`, ascending."""
        first, end = max(first, FIRST_DAY), min(end, LAST_DAY + 1)
        if self.every:
            return range(first, max(first, end))
        if first >= end or self._none:
            return []
        year = year_of(first)
        base = days_before_year(year)
        if end - base <= 365:  # the most frequent question: some days of one year
            offsets = self._by_year.get(year) or self.of_year(year)
            low = bisect_left(offsets, first - base)
            return [base + offset for offset in offsets[low : bisect_left(offsets, end - base, low)]]
        found: list[int] = []
        for year in range(year_of(first), year_of(end - 1) + 1):
            offsets, base = self.of_year(year), days_before_year(year)
            low = bisect_left(offsets, first - base)
            found += [base + offset for offset in offsets[low : bisect_left(offsets, end - base)]]
        return found

    def share(self) -> float:
        """About which part of all days these are."""
        return 1.0 if self.every else sum(len(self.of_year(year)) for year in range(2000, 2028)) / 10_227

    def of_year(self, year: int) -> tuple[int, ...]:
        """Days after 1 January, ascending."""
        known = self._by_year.get(year)
        if known is None:
            kind: tuple[int, ...] = (is_leap(year), weekday(days_before_year(year)))
            if self.parts.by_week_no:  # weeks reach into the years beside
                kind += (is_leap(year - 1), is_leap(year + 1))
            known = self._by_kind.get(kind)
            if known is None:
                known = self._by_kind[kind] = self._work_out(year)
            self._by_year[year] = known
        return known

    def _work_out(self, year: int) -> tuple[int, ...]:
        parts = self.parts
        if self._none:
            return ()
        calendar = _Year(year)
        by_day = parts.by_day
        of_month = parts.freq is Freq.MONTHLY or bool(parts.by_month)
        found: set[int] = set(range(calendar.length))
        if parts.by_month:
            found = {day for month in parts.by_month for day in calendar.month(month)}
        if parts.by_month_day:
            found &= {
                days[n - 1] if n > 0 else days[n]
                for days in map(calendar.month, range(1, 13))
                for n in parts.by_month_day
                if abs(n) <= len(days)
            }
        if parts.by_year_day:
            found &= {n - 1 if n > 0 else calendar.length + n for n in parts.by_year_day}
        if by_day:
            stretches = list(map(calendar.month, range(1, 13))) if of_month else [range(calendar.length)]
            found &= {day for n, name in by_day for days in stretches for day in calendar.nth(days, n, name)}
        if parts.by_week_no:
            weeks, wanted = _Weeks(year, parts.wkst), set(parts.by_week_no)
            found = {day for day in found if not weeks.numbers(day).isdisjoint(wanted)}
        return tuple(sorted(found))


class _Year:
    """A year's months and weekdays, in days after 1 January."""

    def __init__(self, year: int) -> None:
        self.length = 366 if is_leap(year) else 365
        self._first_weekday = weekday(days_before_year(year))
        self._starts = [0, *accumulate(month_length(year, month) for month in range(1, 13))]

    def month(self, month: int) -> range:
        return range(self._starts[month - 1], self._starts[month])

    def nth(self, days: range, n: int, name: int) -> Sequence[int]:
        """The `n`-th weekday `name` in a stretch of days, from its end if `n` is negative; all if it is 0."""
        first = days.start + (name - self._first_weekday - days.start) % 7
        every = range(first, days.stop, 7)
        if n == 0:
            return every
        return every[n - 1 : n] if n > 0 else every[n : n + 1 or None]


class _Weeks:
    """The numbers of the weeks that days of `year` lie in: week 1 is the first with four days in its year."""

    def __init__(self, year: int, wkst: int) -> None:
        base = days_before_year(year)
        self._starts = [self._first_week(y, wkst) - base for y in (year - 1, year, year + 1, year + 2)]

    @staticmethod
    def _first_week(year: int, wkst: int) -> int:
        """The day on which week 1 begins."""
        fourth = days_before_year(year) + 3
        return fourth - (weekday(fourth) - wkst) % 7

    def numbers(self, offset: int) -> set[int]:
        """The week's number from the start of its year and from the end."""
        i = bisect_right(self._starts, offset) - 1
        number = (offset - self._starts[i]) // 7 + 1
        weeks = (self._starts[i + 1] - self._starts[i]) // 7
        return {number, number - weeks - 1}


def _with_defaults(parts: Parts, start: int) -> Parts:
    """The rule with what it leaves out taken from DTSTART (RFC 5545 §3.3.10)."""
    year_month_day = ymd(start // DAY)
    by_day, by_month, by_month_day = parts.by_day, parts.by_month, parts.by_month_day
    match parts.freq:
        case Freq.YEARLY if not (by_day or by_month_day or parts.by_year_day):
            if parts.by_week_no:
                by_day = ((0, weekday(start // DAY)),)
            else:
                by_month = by_month or (year_month_day[1],)
                by_month_day = (year_month_day[2],)
        case Freq.MONTHLY if not (by_day or by_month_day):
            by_month_day = (year_month_day[2],)
        case Freq.WEEKLY if not by_day:
            by_day = ((0, weekday(start // DAY)),)
        case _:
            pass
    hour, minute, second = start % DAY // 3_600, start % 3_600 // 60, start % 60
    return Parts(
        freq=parts.freq,
        interval=parts.interval,
        count=parts.count,
        until=parts.until,
        by_month=by_month,
        by_week_no=parts.by_week_no,
        by_year_day=parts.by_year_day,
        by_month_day=by_month_day,
        by_day=by_day,
        by_hour=parts.by_hour or ((hour,) if parts.freq <= Freq.DAILY else ()),
        by_minute=parts.by_minute or ((minute,) if parts.freq <= Freq.HOURLY else ()),
        by_second=parts.by_second or ((second,) if parts.freq <= Freq.MINUTELY else ()),
        by_set_pos=parts.by_set_pos,
        wkst=parts.wkst,
    )


def _seconds_of(hours: Iterable[int], minutes: Iterable[int], seconds: Iterable[int]) -> list[int]:
    return [h * 3_600 + m * 60 + s for h, m, s in product(hours, minutes, seconds)]


def _picked(size: int, positions: Sequence[int]) -> list[int]:
    """The indices that BYSETPOS means in a set of `size`."""
    found = {position - 1 if position > 0 else size + position for position in positions}
    return sorted(i for i in found if 0 <= i < size)


def _days_of(low: int, high: int) -> range:
    """The days that the local seconds `[low, high)` touch."""
    return range(low // DAY, (high - 1) // DAY + 1)


def _among(days: Sequence[int], day: int) -> bool:
    i = bisect_left(days, day)
    return i < len(days) and days[i] == day


def _month_of(day: int) -> int:
    year, month, _ = ymd(day)
    return year * 12 + month - 1


def _first_of(month: int) -> int:
    """The first day of a month counted from year 0."""
    return day_of(month // 12, month % 12 + 1, 1)
