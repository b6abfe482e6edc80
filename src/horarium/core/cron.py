"""Cron schedules: which instants a parsed expression names in a zone.

Owns the evaluation; `cron_text.py` reads expressions, `cron_words.py` puts them into English.

An expression is a rule about the wall clock: a set of dates and a set of times of day. The calendar repeats
every 400 years, and the days of a month depend only on its length and on the weekday it begins with, so
a rule's dates are at most 28 bit masks. The clock of a zone is a row of stretches of constant offset. In
each of them the rule is evaluated on local seconds; what happens where two of them meet is the policy:

| `Dst` | a gap (the clock jumps forward) | an overlap (it jumps back) |
|---|---|---|
| `VIXIE` | fixed-time jobs run at the first instant after it, once | fixed-time jobs on the first pass only |
| `LITERAL` | skipped | both passes |
| `SKIP_ONCE` | skipped | first pass only |

A job is fixed-time if neither its minute nor its hour field begins with `*` (Debian's cron(8)). A jump of
three hours or more is a correction of the clock, not a gap to make up for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from horarium.core.instant import MAX_SECONDS, MIN_SECONDS
from horarium.core.schedule import Schedule
from horarium.core.zone import DAY, WIDEST_OFFSET, Zone

CORRECTION = 10_800
"""Seconds: a jump this long or longer is no daylight saving (Samoa, 2011: 24 hours)."""

_CYCLE_DAYS = 146_097  # 400 Gregorian years
_CYCLE_MONTHS = 4_800
_TO_YEAR_0 = 719_528  # days from 0000-01-01, where our cycles begin, to 1970-01-01
_CYCLE_SECONDS = _CYCLE_DAYS * DAY
_ONLY_FOOTERS = 4_102_444_800  # 2100-01-01: no zone's data name jumps beyond, only its yearly rule does
_FEW_TIMES = 4  # times of day up to which a month at a time is faster than a day at a time
_NEAR = 2 * DAY  # longer than any jump of a clock
_CHUNK = 128  # instants kept for a caller that walks: some 10 kB a schedule that is walked
_CHUNK_REACH = 400 * DAY  # and no further ahead than this, where far years of a zone would be worked out
_RARE = 90 * DAY  # rules with longer steps are not looked ahead for


class Dst(StrEnum):
    """What a rule about the wall clock does where the clock jumps."""

    VIXIE = "vixie"
    LITERAL = "literal"
    SKIP_ONCE = "skip_once"


class FormKind(StrEnum):
    """A day that depends on the month."""

    FROM_LAST = "L"  # the last day, or `a` days before it
    NEAREST_WEEKDAY = "W"  # the Monday to Friday nearest to day `a`, inside the month
    LAST_WEEKDAY = "LW"  # the last Monday to Friday
    NTH = "#"  # the `b`th weekday `a`
    LAST_OF = "dL"  # the last weekday `a`


class DayForm(NamedTuple):
    """One `L`, `L-n`, `nW`, `LW`, `d#n` or `dL`. Weekdays are 0 (Sunday) to 6."""

    kind: FormKind
    a: int = 0
    b: int = 0


class CronFields(NamedTuple):
    """What an expression says. Sets are bit masks: bit `n` stands for the value `n`."""

    seconds: int
    minutes: int
    hours: int
    days: int
    day_forms: tuple[DayForm, ...]
    months: int
    weekdays: int
    weekday_forms: tuple[DayForm, ...]
    either: bool
    """A date needs to match only one of the two day fields."""
    fixed_time: bool


class Cron(Schedule):
    """A cron expression in a zone under a DST policy. Immutable: what changes inside is a cache."""

    __slots__ = (
        "_ahead",
        "_clock",
        "_first",
        "_last",
        "_masks",
        "_month_steps",
        "_seconds",
        "_single",
        "_walked_to",
        "_zone",
        "dst",
        "fields",
        "makes_up",
        "once",
        "text",
    )

    def __init__(self, text: str, fields: CronFields, zone: Zone, dst: Dst) -> None:
        self.text = text
        self.fields = fields
        self.dst = dst
        self._zone = zone
        self.makes_up = dst is Dst.VIXIE and fields.fixed_time
        """Times that fall into a gap run at its end."""
        self.once = dst is Dst.SKIP_ONCE or self.makes_up
        """Times that the clock shows twice run on the first pass."""
        self._clock = _clock(fields.minutes, fields.hours)
        self._seconds = _values(fields.seconds)
        self._month_steps = _month_steps(fields.months)
        self._single = len(self._seconds) == 1
        # The robfig dialect lets a field be empty: such a rule has no times, so no dates either.
        empty = not self._clock or not self._seconds
        self._first = 0 if empty else self._clock[0] + self._seconds[0]
        self._last = 0 if empty else self._clock[-1] + self._seconds[-1]
        self._masks = (0,) * 28 if empty else _month_masks(*fields[3:5], *fields[6:9])
        self._walked_to: int | None = None
        self._ahead: dict[int, int] = {}  # instant → the next one

    def __repr__(self) -> str:
        return f"Cron({self.text!r}, {self._zone.name!r}, {self.dst.value!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cron):
            return NotImplemented
        mine, its = (self.fields, self.dst, self._zone.digest), (other.fields, other.dst, other._zone.digest)
        return mine == its

    def __hash__(self) -> int:
        return hash((self.fields, self.dst, self._zone.digest))

    @property
    def zone(self) -> Zone:
        return self._zone

    @property
    def wall_clock(self) -> bool:
        return self.fields.fixed_time

    def describe(self) -> str:
        from horarium.core.cron_words import describe_fields  # which reads this module's types

        words = "never" if self.never else describe_fields(self.fields)
        return f"{words}, in {self._zone.name}"

    @property
    def never(self) -> bool:
        """No date of the calendar matches, in any year."""
        return not any(
            self._masks[combo]
            for month in _values(self.fields.months)
            for combo in _COMBOS_OF_MONTH[month - 1]
        )

    def after(self, t: int) -> int | None:
        ahead = self._ahead
        if t in ahead:  # quicker than the call of a method
            return ahead[t]
        if t == self._walked_to:
            # The caller walks: look ahead once, then answer from that.
            found = self.between(t, t + _CHUNK_REACH, _CHUNK)
            if found:
                self._ahead = dict(zip((t, *found), found, strict=False))
                self._walked_to = found[-1]
                return found[0]
        at = self._after(t)
        self._walked_to = at if at is not None and at - t < _RARE else None
        return at

    def before(self, t: int) -> int | None:
        u = min(t, MAX_SECONDS)
        horizon = u - _CYCLE_SECONDS
        zone = self._zone
        while u >= MIN_SECONDS:
            starts, offsets, _ = zone.table(u)
            i = bisect_right(starts, u) - 1
            start, offset = starts[i], offsets[i]
            local = self._local_at_or_before(u + offset)
            if local is None:
                return None
            left = offsets[i - 1] if i else offset
            if local - offset >= start and not (self.once and local < start + left):
                found = local - offset
                return found if found >= MIN_SECONDS else None
            if i == 0:
                return None
            if self._makes_up_at(start, left, offset):
                return start
            # Nothing since `start`. The next match down is `local`, or older if that was a second pass.
            u = min(start - 1, local + WIDEST_OFFSET) if u - start > _NEAR else start - 1
            if u < horizon and u > _ONLY_FOOTERS:
                u = _ONLY_FOOTERS  # 400 years of a yearly rule have shown all that it does
        return None

    def between(self, a: int, b: int, limit: int = 10_000) -> list[int]:
        found: list[int] = []
        u, b = max(a + 1, MIN_SECONDS), min(b, MAX_SECONDS)
        horizon = max(u, _ONLY_FOOTERS) + _CYCLE_SECONDS
        zone = self._zone
        while u <= b and u <= horizon and len(found) < limit:
            starts, offsets, until = zone.table(u)
            i = bisect_right(starts, u) - 1
            start, offset = starts[i], offsets[i]
            end = starts[i + 1] if i + 1 < len(starts) else until
            low = u + offset
            if i and self.once:
                left = offsets[i - 1]
                low = max(low, start + left)  # after the second pass of an overlap
                if u == start and self._makes_up_at(start, left, offset):
                    found.append(start)
                    low += 1  # a time that the end of the gap has by itself is the same run
            before = len(found)
            far = self._walk(found, low, min(end - 1, b) + offset, offset, limit)
            if far is None:
                break
            u = _onward(u, end, far) if len(found) == before else end
            if found:
                horizon = max(found[-1], _ONLY_FOOTERS) + _CYCLE_SECONDS
        del found[limit:]
        return found

    def walk(self, t: int) -> Iterator[int]:
        """Every instant after `t`, ascending, without end."""
        size = 8  # grows, so that a few of a rare rule do not cost a thousand
        while batch := self.between(t, MAX_SECONDS, size):
            yield from batch
            t, size = batch[-1], min(2 * size, 1_024)

    def matches_local(self, local: int) -> bool:
        """The wall clock at `local` is one that the expression names."""
        return self.next_local(local) == local

    def matches_date(self, day: int) -> bool:
        """The day fields match the date `day` days after 1970-01-01, its month apart."""
        day = (day + _TO_YEAR_0) % _CYCLE_DAYS
        k = bisect_right(_MONTH_START, day) - 1
        return bool(self._masks[_COMBO[k]] >> (day - _MONTH_START[k] + 1) & 1)

    def next_local(self, local: int) -> int | None:
        """The first local time at or after `local` that the expression names, DST apart."""
        day, second = divmod(local, DAY)
        cycle, day = divmod(day + _TO_YEAR_0, _CYCLE_DAYS)
        k = day * _CYCLE_MONTHS // _CYCLE_DAYS  # at most one off
        if _MONTH_START[k] > day:
            k -= 1
        elif _MONTH_START[k + 1] <= day:
            k += 1
        step = self._month_steps[k % 12]
        if step == 0:
            days = self._masks[_COMBO[k]] >> (day - _MONTH_START[k] + 1)
            if days & 1:
                at = self._time_from(second)
                if at >= 0:
                    return local - second + at
            days >>= 1
            if days:
                ahead = (days & -days).bit_length()
                return local - second + ahead * DAY + self._first
            k += 1
            step = self._month_steps[k % 12]
        elif step < 0:
            return None
        passed = 0
        while passed <= _CYCLE_MONTHS:
            k += step
            passed += step + 1
            if k >= _CYCLE_MONTHS:
                k -= _CYCLE_MONTHS
                cycle += 1
            days = self._masks[_COMBO[k]]
            if days:
                first = _MONTH_START[k] + (days & -days).bit_length() - 2
                return (cycle * _CYCLE_DAYS + first - _TO_YEAR_0) * DAY + self._first
            k += 1
            step = self._month_steps[k % 12]
        return None

    def _after(self, t: int) -> int | None:
        u = max(t + 1, MIN_SECONDS)
        horizon = max(u, _ONLY_FOOTERS) + _CYCLE_SECONDS
        zone = self._zone
        once, makes_up = self.once, self.makes_up
        while u <= MAX_SECONDS and u <= horizon:
            starts, offsets, until = zone.table(u)
            i = bisect_right(starts, u) - 1
            start, offset = starts[i], offsets[i]
            low = u + offset
            if i and once:
                left = offsets[i - 1]
                if low < start + left:
                    low = start + left  # the second pass of an overlap
                elif makes_up and u == start and self._makes_up_at(start, left, offset):
                    return start
            local = self.next_local(low)
            if local is None:
                return None
            found = local - offset
            end = starts[i + 1] if i + 1 < len(starts) else until
            if found < end:
                return found if found <= MAX_SECONDS else None
            u = _onward(u, end, local)
        return None

    def _makes_up_at(self, start: int, left: int, offset: int) -> bool:
        """The clock jumps forward at `start`, from offset `left`, over a time that is owed a run."""
        if not self.makes_up or not 0 < offset - left < CORRECTION:
            return False
        local = self.next_local(start + left)
        return local is not None and local < start + offset

    def _walk(self, found: list[int], low: int, high: int, offset: int, limit: int) -> int | None:
        """Add the instants of the local times in `low..high`, of one offset; enough to pass `limit`.

        Returns the first local time that matches after `high`; None when nothing ever matches again.
        """
        clock, last_time = self._clock, self._last
        if self._single and len(clock) <= _FEW_TIMES:
            return self._walk_months(found, low, high, offset, limit)
        local = self.next_local(low)
        while local is not None and local <= high and len(found) < limit:
            midnight = local - local % DAY
            if self._single:
                second = self._seconds[0]
                base = midnight + second - offset
                i = bisect_left(clock, local - midnight - second)
                j = len(clock)
                if high - midnight < last_time:
                    j = bisect_right(clock, high - midnight - second)
                found += [base + at for at in clock[i:j]]
            else:
                i = bisect_left(clock, (local - midnight) // 60 * 60)
                for minute in clock[i:]:
                    at = midnight + minute
                    if at > high or len(found) >= limit:
                        break
                    found += [
                        at + second - offset for second in self._seconds if local <= at + second <= high
                    ]
            local = self.next_local(midnight + DAY)
        return self.next_local(max(low, high + 1))  # the day of `high` may have more

    def _walk_months(self, found: list[int], low: int, high: int, offset: int, limit: int) -> int | None:
        """`_walk` for a rule with few times a day: a month at a time."""
        clock, second = self._clock, self._seconds[0]
        local = self.next_local(low)
        while local is not None and local <= high and len(found) < limit:
            cycle, date = divmod(local // DAY + _TO_YEAR_0, _CYCLE_DAYS)
            k = bisect_right(_MONTH_START, date) - 1
            midnight = (cycle * _CYCLE_DAYS + _MONTH_START[k] - _TO_YEAR_0) * DAY
            base = midnight + second - offset
            batch = [base + day + at for day in _day_starts(self._masks[_COMBO[k]]) for at in clock]
            if batch[0] < local - offset:
                del batch[: bisect_left(batch, local - offset)]
            if batch[-1] > high - offset:
                del batch[bisect_right(batch, high - offset) :]
            found += batch
            local = self.next_local(midnight + (_MONTH_START[k + 1] - _MONTH_START[k]) * DAY)
        return self.next_local(max(low, high + 1))

    def _time_from(self, second: int) -> int:
        """The first time of day at or after `second`, or -1."""
        clock, seconds = self._clock, self._seconds
        if self._single:
            i = bisect_left(clock, second - seconds[0])
            return clock[i] + seconds[0] if i < len(clock) else -1
        minute = second - second % 60
        i = bisect_left(clock, minute)
        if i < len(clock) and clock[i] == minute:
            j = bisect_left(seconds, second - minute)
            if j < len(seconds):
                return minute + seconds[j]
            i += 1
        return clock[i] + seconds[0] if i < len(clock) else -1

    def _time_to(self, second: int) -> int:
        """The last time of day at or before `second`, or -1."""
        clock, seconds = self._clock, self._seconds
        minute = second - second % 60
        i = bisect_right(clock, minute) - 1
        if i >= 0 and clock[i] == minute:
            j = bisect_right(seconds, second - minute) - 1
            if j >= 0:
                return minute + seconds[j]
            i -= 1
        return clock[i] + seconds[-1] if i >= 0 else -1

    def _local_at_or_before(self, local: int) -> int | None:
        """The last local time at or before `local` that the expression names, DST apart."""
        day, second = divmod(local, DAY)
        cycle, day = divmod(day + _TO_YEAR_0, _CYCLE_DAYS)
        k = bisect_right(_MONTH_START, day) - 1
        dom = day - _MONTH_START[k] + 1
        months, masks = self.fields.months, self._masks
        if months >> (k % 12 + 1) & 1:
            days = masks[_COMBO[k]]
            if days >> dom & 1:
                at = self._time_to(second)
                if at >= 0:
                    return local - second + at
            days &= (1 << dom) - 1
            if days:
                return local - second + (days.bit_length() - 1 - dom) * DAY + self._last
        for _ in range(_CYCLE_MONTHS):
            k -= 1
            if k < 0:
                k += _CYCLE_MONTHS
                cycle -= 1
            if months >> (k % 12 + 1) & 1 and masks[_COMBO[k]]:
                last = _MONTH_START[k] + masks[_COMBO[k]].bit_length() - 2
                return (cycle * _CYCLE_DAYS + last - _TO_YEAR_0) * DAY + self._last
        return None


def _onward(u: int, end: int, local: int) -> int:
    """Where to look on when the stretch of `u`, up to `end`, has no match left and `local` is the next one.

    Stretches that end well before `local` are skipped. Not the next one, if it is near: where the clock
    jumps back, it shows times again that were passed before `u`.
    """
    return max(end, local - WIDEST_OFFSET) if end - u > _NEAR else end


# --- tables ---------------------------------------------------------------------------------------------


def _build_months() -> tuple[tuple[int, ...], bytes]:
    """The first day of every month of a cycle, and its combination of first weekday and length."""
    starts, combos = [], []
    day = 0
    for year in range(400):
        leap = year % 4 == 0 and (year % 100 != 0 or year == 0)
        for length in (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31):
            starts.append(day)
            combos.append((day + 6) % 7 * 4 + length - 28)  # 0000-01-01 was a Saturday
            day += length
    starts.append(day)
    return tuple(starts), bytes(combos)


_MONTH_START, _COMBO = _build_months()
_COMBOS_OF_MONTH = tuple(tuple(sorted(set(_COMBO[month::12]))) for month in range(12))


@lru_cache(maxsize=4_096)
def _values(mask: int) -> tuple[int, ...]:
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


@lru_cache(maxsize=1_024)
def _day_starts(days: int) -> tuple[int, ...]:
    """The days of a month as seconds from its first midnight."""
    return tuple((day - 1) * DAY for day in _values(days))


@lru_cache(maxsize=512)
def _clock(minutes: int, hours: int) -> tuple[int, ...]:
    """The seconds of day of every (hour, minute), ascending. Shared by the schedules that have them."""
    inside = [minute * 60 for minute in _values(minutes)]
    return tuple(hour * 3_600 + minute for hour in _values(hours) for minute in inside)


@lru_cache(maxsize=512)
def _month_steps(months: int) -> tuple[int, ...]:
    """For each month (0 is January), how many months until one that matches; -1 if none does."""
    wanted = [months >> (month + 1) & 1 for month in range(12)]
    if not any(wanted):
        return (-1,) * 12
    return tuple(next(n for n in range(12) if wanted[(month + n) % 12]) for month in range(12))


@lru_cache(maxsize=1_024)
def _month_masks(
    days: int,
    day_forms: tuple[DayForm, ...],
    weekdays: int,
    weekday_forms: tuple[DayForm, ...],
    either: bool,
) -> tuple[int, ...]:
    """For each combination of first weekday and length, the days that match (bit 1 is the 1st)."""
    masks = []
    for first in range(7):
        for length in range(28, 32):
            by_day = days & ((2 << length) - 2)
            for form in day_forms:
                by_day |= _form_mask(form, first, length)
            by_weekday = 0
            for weekday in _values(weekdays):
                by_weekday |= _weekday_mask(weekday, first, length)
            for form in weekday_forms:
                by_weekday |= _form_mask(form, first, length)
            masks.append(by_day | by_weekday if either else by_day & by_weekday)
    return tuple(masks)


@lru_cache(maxsize=196)
def _weekday_mask(weekday: int, first: int, length: int) -> int:
    return sum(1 << day for day in range(1 + (weekday - first) % 7, length + 1, 7))


def _form_mask(form: DayForm, first: int, length: int) -> int:
    match form.kind:
        case FormKind.FROM_LAST:
            day = length - form.a
        case FormKind.LAST_WEEKDAY:
            day = _nearest_weekday(length, first, length)
        case FormKind.NEAREST_WEEKDAY:
            day = _nearest_weekday(form.a, first, length)
        case FormKind.NTH:
            day = 1 + (form.a - first) % 7 + (form.b - 1) * 7
        case FormKind.LAST_OF:
            day = _weekday_mask(form.a, first, length).bit_length() - 1
    return 1 << day if 1 <= day <= length else 0


def _nearest_weekday(day: int, first: int, length: int) -> int:
    """The Monday to Friday nearest to `day` that lies in the same month; 0 if the month has no such day."""
    if day > length:
        return 0
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day
