"""Named sets of days, and schedules that keep to them.

A `Calendar` is the union of dates, ranges of dates, days that come back every year, weekly off-days and the
holidays of countries. `Filtered` takes a schedule's slots on days of `exclude` calendars (or outside of
`only` calendars) and drops them, or moves them to the next or previous business day at the same local time.

A slot's day is its local date in the schedule's zone. A *business day* is a day that no calendar takes out
and that is no weekend: Saturday and Sunday, or the weekend of the country whose holidays are named. Where an
`exclude` calendar names weekly off-days itself, those are the weekend; under `only` there is none.

Two slots that come to the same instant are one. A slot that would move by more than a year, or past `start`
or `end`, is dropped. A search ends after `_MOST_LOOKS` days that bring nothing: more than fifty years of a
daily rule.
"""

from __future__ import annotations

import difflib
import functools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from horarium.core.civil import (
    DAY,
    FIRST_DAY,
    LAST_DAY,
    WEEKDAY_NAMES,
    WEEKDAYS,
    day_of,
    first_pass,
    iso_date,
    reach,
    weekday,
    year_of,
    ymd,
)
from horarium.core.instant import MAX_SECONDS, MIN_SECONDS
from horarium.core.schedule import Bounded, Schedule
from horarium.errors import InvalidInput, Problem, shown

if TYPE_CHECKING:
    from horarium.core.zone import Zone

_MOST_LOOKS = 20_000  # 29 February comes back on a weekday within 40 years, which are 14,610 days
_LONGEST_MOVE = 366
_WEEKEND = frozenset((5, 6))
_MAX_DATES = 10_000
_MOST_MOVED = 2 * 1_440  # slots of two days
_MOST_NAMED = 3  # days that a note names
_MAX_DAY = 100_000  # more than the seconds of a day, so that a day's slots are never cut


@dataclass(frozen=True, slots=True)
class Country:
    """The public holidays of a country, or of a part of it, as the `holidays` package has them."""

    code: str
    subdiv: str | None = None
    observed: bool = True
    categories: tuple[str, ...] = ()

    @property
    def weekend(self) -> frozenset[int]:
        """The country's weekly rest days, Monday as 0."""
        return frozenset(self._entity(2000).weekend)

    def names(self, year: int) -> Mapping[int, str]:
        """The holidays of `year`: day → name in English where there is one."""
        return _holidays(self, year)

    def _entity(self, year: int) -> Any:
        import holidays  # a tenth of a second, and only for those who name a country

        options: dict[str, Any] = {"subdiv": self.subdiv, "observed": self.observed, "expand": False}
        if self.categories:
            options["categories"] = self.categories
        # A holiday that falls on a weekend can be observed on a day of the year beside.
        years = [y for y in (year - 1, year, year + 1) if 1 <= y <= 9999]
        entity = holidays.country_holidays(self.code, years=years, **options)
        if "en_US" in entity.supported_languages and entity.default_language != "en_US":
            entity = holidays.country_holidays(self.code, years=years, language="en_US", **options)
        return entity

    def __str__(self) -> str:
        return f"{self.code}-{self.subdiv}" if self.subdiv else self.code


@functools.lru_cache(maxsize=4_096)
def _holidays(country: Country, year: int) -> Mapping[int, str]:
    found = country._entity(year).items()
    return {day_of(on.year, on.month, on.day): name for on, name in found if on.year == year}


@dataclass(frozen=True, slots=True)
class Calendar:
    """A named set of days. `days` ascend; `yearly` are (month, day); `weekdays` count from Monday as 0."""

    name: str
    days: tuple[int, ...] = ()
    yearly: frozenset[tuple[int, int]] = frozenset()
    weekdays: frozenset[int] = frozenset()
    countries: tuple[Country, ...] = ()

    def __contains__(self, day: object) -> bool:
        return isinstance(day, int) and self.reason(day) is not None

    def reason(self, day: int) -> str | None:
        """Why `day` is in the set, in words; None if it is not. A date has no name but the set's."""
        if self.weekdays and weekday(day) in self.weekdays:
            return WEEKDAY_NAMES[weekday(day)]
        i = bisect_left(self.days, day)
        if i < len(self.days) and self.days[i] == day:
            return self.name
        if self.yearly and ymd(day)[1:] in self.yearly:
            return self.name
        if self.countries:
            year = year_of(day)
            for country in self.countries:
                found = country.names(year).get(day)
                if found is not None:
                    return f"{found}, {country}"
        return None

    def describe(self) -> str:
        """The set in plain English, one line."""
        parts = [f"holidays of {country}" for country in self.countries]
        if self.weekdays:
            parts.append(", ".join(WEEKDAY_NAMES[day] + "s" for day in sorted(self.weekdays)))
        if self.yearly:
            parts.append(
                ", ".join(f"{month:02}-{day:02}" for month, day in sorted(self.yearly)) + " every year"
            )
        if self.days:
            parts.append(f"{len(self.days)} date{'s' if len(self.days) != 1 else ''}")
        return f"{self.name}: " + "; ".join(parts)


class OnExcluded(StrEnum):
    """What becomes of a slot on a day that the calendars take out."""

    SKIP = "skip"
    NEXT = "next_business_day"
    PREVIOUS = "previous_business_day"


@dataclass(frozen=True, slots=True)
class Change:
    """What the calendars did to a slot: `at` is where it went, None if it was dropped."""

    slot: int
    at: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Filtered(Schedule):
    """`rule` kept to calendars. `place` is the zone whose dates count."""

    rule: Schedule
    place: Zone
    exclude: tuple[Calendar, ...] = ()
    only: tuple[Calendar, ...] = ()
    on_excluded: OnExcluded = OnExcluded.SKIP
    weekend: frozenset[int] = field(init=False, compare=False, default=frozenset())
    _seen: dict[int, list[int]] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.on_excluded is not OnExcluded.SKIP:
            object.__setattr__(self, "weekend", self._implied_weekend())

    @property
    def zone(self) -> Zone | None:
        return self.place

    @property
    def wall_clock(self) -> bool:
        return self.rule.wall_clock

    def after(self, t: int) -> int | None:
        t = max(t, MIN_SECONDS - 1)
        if t >= MAX_SECONDS:
            return None
        if self.on_excluded is OnExcluded.SKIP:
            return self._kept_after(t)
        day = self._day(t)
        for _ in range(_MOST_LOOKS):
            slots = self._slots_on(day)
            i = bisect_right(slots, t)
            if i < len(slots):
                return slots[i] if slots[i] <= MAX_SECONDS else None
            beside = self._later_day(day)
            if beside is None:
                break
            day = beside
        return None

    def before(self, t: int) -> int | None:
        t = min(t, MAX_SECONDS)
        if t < MIN_SECONDS:
            return None
        if self.on_excluded is OnExcluded.SKIP:
            return self._kept_before(t)
        day = min(reach(self.place, t) // DAY, LAST_DAY)
        for _ in range(_MOST_LOOKS):
            slots = self._slots_on(day)
            i = bisect_right(slots, t)
            if i:
                return slots[i - 1] if slots[i - 1] >= MIN_SECONDS else None
            beside = self._earlier_day(day)
            if beside is None:
                break
            day = beside
        return None

    def describe(self) -> str:
        text = self.rule.describe()
        if self.exclude:
            text += " except on days of " + _listed([calendar.name for calendar in self.exclude])
        if self.only:
            text += " only on days of " + _listed([calendar.name for calendar in self.only])
        if self.on_excluded is not OnExcluded.SKIP:
            text += f", else on the {self.on_excluded.value.replace('_', ' ')}"
        return text

    def changes(self, a: int, b: int, limit: int = 1_000) -> list[Change]:
        """What the calendars did to the rule's own slots in `(a, b]`: those moved or dropped, and why."""
        found: list[Change] = []
        for slot in self.rule.between(a, b, 10 * limit):
            day = self._day(slot)
            reason = self._taken_out(day)
            if reason is None:
                continue
            target = None
            if self.on_excluded is OnExcluded.NEXT:
                target = self._business_day(day, 1)
            elif self.on_excluded is OnExcluded.PREVIOUS:
                target = self._business_day(day, -1)
            moved = None if target is None else self._moved(slot, target)
            low, high = self._bounds
            found.append(Change(slot, moved if moved is not None and low <= moved <= high else None, reason))
            if len(found) >= limit:
                break
        return found

    def note(self, t: int) -> str | None:
        """Which moved slots came to `t`: `moved from 2026-04-03 (Good Friday, DE)`; None if none did."""
        day = self._day(t)
        if self.on_excluded is OnExcluded.SKIP:
            return None
        sources = [
            f"{iso_date(source)} ({self._taken_out(source)})"
            for source in sorted(self._sources(day))
            if any(self._moved(slot, day) == t for slot in self._rules_own(source))
        ]
        if not sources:
            return None
        own = self._taken_out(day) is None and self.rule.before(t) == t
        more = f" and {len(sources) - _MOST_NAMED} more" if len(sources) > _MOST_NAMED else ""
        return f"{'also ' if own else ''}moved from {', '.join(sources[:_MOST_NAMED])}{more}"

    # --- days --------------------------------------------------------------------------------------------

    def _day(self, t: int) -> int:
        return min(max(self.place.to_local(t) // DAY, FIRST_DAY), LAST_DAY)

    def _taken_out(self, day: int) -> str | None:
        """Why the calendars take `day` out; None if they do not."""
        for calendar in self.exclude:
            reason = calendar.reason(day)
            if reason is not None:
                return reason
        if self.only and not any(day in calendar for calendar in self.only):
            return "not in " + _listed([calendar.name for calendar in self.only])
        return None

    def _implied_weekend(self) -> frozenset[int]:
        if self.only or any(calendar.weekdays for calendar in self.exclude):
            return frozenset()
        countries = [country for calendar in self.exclude for country in calendar.countries]
        weekends = [country.weekend for country in countries]
        return frozenset().union(*weekends) if weekends else _WEEKEND

    def _is_business_day(self, day: int) -> bool:
        return weekday(day) not in self.weekend and self._taken_out(day) is None

    def _business_day(self, day: int, step: int) -> int | None:
        """The nearest business day after (`step` 1) or before (-1) `day`."""
        for distance in range(1, _LONGEST_MOVE + 1):
            found = day + step * distance
            if not FIRST_DAY <= found <= LAST_DAY:
                return None
            if self._is_business_day(found):
                return found
        return None

    # --- skip --------------------------------------------------------------------------------------------

    def _kept_after(self, t: int) -> int | None:
        looks = 0
        found = self.rule.after(t)
        while found is not None and looks < _MOST_LOOKS:
            day = self._day(found)
            if self._taken_out(day) is None:
                return found
            # One look a day, however many slots the day has.
            following, passed = self._day_left_in(day, 1, _MOST_LOOKS - looks)
            if following is None:
                return None
            looks += passed
            # A clock that went back over midnight may show the day out for a while yet: never step back.
            found = self.rule.after(max(first_pass(self.place, following * DAY) - 1, found))
        return None

    def _kept_before(self, t: int) -> int | None:
        looks = 0
        found = self.rule.before(t)
        while found is not None and looks < _MOST_LOOKS:
            day = self._day(found)
            if self._taken_out(day) is None:
                return found
            last, passed = self._day_left_in(day, -1, _MOST_LOOKS - looks)
            if last is None:
                return None
            looks += passed
            found = self.rule.before(min(self._end_of(last), found - 1))
        return None

    def _day_left_in(self, day: int, step: int, most: int) -> tuple[int | None, int]:
        """The nearest day after (`step` 1) or before (-1) `day` that is left in, and the looks it took."""
        listed = self._listed_days()
        for looks in range(1, most + 1):
            if listed is None:
                day += step
            else:
                i = bisect_right(listed, day) if step > 0 else bisect_left(listed, day) - 1
                if not 0 <= i < len(listed):
                    return None, looks
                day = listed[i]
            if not FIRST_DAY <= day <= LAST_DAY:
                return None, looks
            if self._taken_out(day) is None:
                return day, looks
        return None, most

    def _listed_days(self) -> Sequence[int] | None:
        """All the days that can be left in, where `only` lists them one by one; None where it does not."""
        if not self.only or any(c.yearly or c.weekdays or c.countries for c in self.only):
            return None
        if len(self.only) == 1:
            return self.only[0].days
        return sorted({day for calendar in self.only for day in calendar.days})

    def _end_of(self, day: int) -> int:
        """The last instant at which the clock shows `day`."""
        following = first_pass(self.place, (day + 1) * DAY)
        last = following - 1
        for change in self.place.transitions(following - 1, following + DAY):
            if change.before > change.after and (change.at + change.after) // DAY <= day:
                last = (day + 1) * DAY - change.after - 1  # it went back over midnight
        return last

    # --- moves -------------------------------------------------------------------------------------------

    def _slots_on(self, day: int) -> list[int]:
        """All slots whose local date is `day` after moving, ascending."""
        known = self._seen.get(day)
        if known is not None:
            return known
        found: set[int] = set()
        if self._taken_out(day) is None:
            found.update(self._rules_own(day))
        times: set[int] = set()
        for source in self._sources(day):
            times.update(self._times_on(source))
        if times:
            offset = self._offset_of(day)
            if offset is None:
                found.update(first_pass(self.place, day * DAY + second) for second in times)
            else:
                midnight = day * DAY - offset
                found.update([midnight + second for second in times])
        if len(self._seen) >= 16:  # a walk asks for the same day many times, and for few days at once
            self._seen.clear()
        low, high = self._bounds
        slots = self._seen[day] = sorted(slot for slot in found if low <= slot <= high)
        return slots

    def _sources(self, day: int) -> Iterable[int]:
        """The days whose slots move to `day`."""
        if self.on_excluded is OnExcluded.SKIP or not self._is_business_day(day):
            return
        step = -1 if self.on_excluded is OnExcluded.NEXT else 1
        for distance in range(1, _LONGEST_MOVE + 1):
            source = day + step * distance
            if not FIRST_DAY <= source <= LAST_DAY or self._is_business_day(source):
                return
            if self._taken_out(source) is not None:
                yield source

    def _rules_own(self, day: int) -> list[int]:
        first = first_pass(self.place, day * DAY)
        slots = self.rule.between(first - 1, self._end_of(day), _MAX_DAY)
        if self._offset_of(day) is not None:
            return slots
        return [slot for slot in slots if self.place.to_local(slot) // DAY == day]

    def _times_on(self, day: int) -> list[int]:
        """The local times of the rule's own slots on `day`."""
        slots, offset = self._rules_own(day), self._offset_of(day)
        if offset is None:
            return [self.place.to_local(slot) % DAY for slot in slots]
        midnight = day * DAY - offset
        return [slot - midnight for slot in slots]

    @property
    def _bounds(self) -> tuple[int, int]:
        """The rule's `start` and `end`, which hold for where a slot has moved to as well."""
        start = end = None
        if isinstance(self.rule, Bounded):
            start, end = self.rule.start, self.rule.end
        return MIN_SECONDS if start is None else start, MAX_SECONDS if end is None else end

    def _offset_of(self, day: int) -> int | None:
        """Seconds east of UTC on a day around which the clock does not jump; None where it may."""
        if self.place.is_fixed:
            return self.place.offset_at(day * DAY)
        if self.place.transitions((day - 2) * DAY, (day + 3) * DAY):
            return None
        return self.place.offset_at(day * DAY)

    def _moved(self, slot: int, day: int) -> int:
        return first_pass(self.place, day * DAY + self.place.to_local(slot) % DAY)

    def _later_day(self, day: int) -> int | None:
        """A day after `day`, before which no slot can be: the rule's next, or one that it can be moved to."""
        following = self.rule.after(self._end_of(day))
        own = None if following is None else self._day(following)
        if self.on_excluded is OnExcluded.NEXT:
            target = None if self._is_business_day(day) else self._business_day(day, 1)
        else:
            target = None
            if own is not None and not self._is_business_day(own):
                target = self._business_day(own, -1)
                if target is not None and target <= day:
                    target = None
        found = [candidate for candidate in (own, target) if candidate is not None and candidate > day]
        return min(found, default=None)

    def _earlier_day(self, day: int) -> int | None:
        """A day before `day`, after which no slot can be."""
        last = self.rule.before(first_pass(self.place, day * DAY) - 1)
        own = None if last is None else self._day(last)
        if self.on_excluded is OnExcluded.NEXT:
            target = None
            if own is not None and not self._is_business_day(own):
                target = self._business_day(own, 1)
                if target is not None and target >= day:
                    target = None
        else:
            target = None if self._is_business_day(day) else self._business_day(day, -1)
        found = [candidate for candidate in (own, target) if candidate is not None and candidate < day]
        return max(found, default=None)


def filtered(
    rule: Schedule, spec: Mapping[str, Any], calendars: Mapping[str, Calendar], zone: Zone, pointer: str = ""
) -> Schedule:
    """`rule` under the `exclude`, `only` and `on_excluded` of `spec`, whose names are of `calendars`.

    Dates are those of `zone` where the rule has no zone of its own. Raises `InvalidInput`.
    """
    problems: list[Problem] = []
    exclude = _named(spec, "exclude", calendars, pointer, problems)
    only = _named(spec, "only", calendars, pointer, problems)
    word = spec.get("on_excluded")
    if word is not None and word not in list(OnExcluded):
        rule_text = "on_excluded is " + _listed([item.value for item in OnExcluded], "or")
        problems.append(_problem(word, f"{pointer}/on_excluded", rule_text, "skip"))
    elif word is not None and not (exclude or only or problems):
        problems.append(
            _problem(
                word, f"{pointer}/on_excluded", "on_excluded goes with exclude or only", "exclude: [holidays]"
            )
        )
    elif word not in (None, "skip") and _often(rule):
        rule_text = "a rule that runs more often than once a minute is not moved to other days"
        problems.append(_problem(word, f"{pointer}/on_excluded", rule_text, "skip"))
    if problems:
        raise InvalidInput(problems)
    if not exclude and not only:
        return rule
    return Filtered(rule, rule.zone or zone, exclude, only, OnExcluded(word or "skip"))


def _often(rule: Schedule) -> bool:
    """The rule has more slots on its first days than there are minutes.

    Moving them would only repeat what the business day has by itself, and cost a look at a year of seconds.
    """
    first = rule.after(MIN_SECONDS - 1)
    if first is None:
        return False
    return len(rule.between(first - 1, first + 2 * DAY - 1, _MOST_MOVED + 1)) > _MOST_MOVED


def _named(
    spec: Mapping[str, Any],
    key: str,
    calendars: Mapping[str, Calendar],
    pointer: str,
    problems: list[Problem],
) -> tuple[Calendar, ...]:
    value = spec.get(key)
    names = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        problems.append(
            _problem(value, f"{pointer}/{key}", f"{key} is a list of names of calendars", "[holidays]")
        )
        return ()
    found: dict[str, Calendar] = {}
    for i, name in enumerate(names):
        if isinstance(name, str) and name in calendars:
            found[name] = calendars[name]
            continue
        close = difflib.get_close_matches(str(name), list(calendars), 1)
        known = ", ".join(sorted(calendars)[:10])
        hint = close[0] if close else f"one of {known}" if known else "declare it under calendars:"
        where = f"{pointer}/{key}" if isinstance(value, str) else f"{pointer}/{key}/{i}"
        problems.append(_problem(name, where, "there is no calendar of this name", hint))
    return tuple(found.values())


# --- calendars as they are typed ------------------------------------------------------------------------

_KEYS = ("dates", "ranges", "weekdays", "holidays")
_COUNTRY_KEYS = ("country", "subdiv", "observed", "categories")
_YEARLY = re.compile(r"(\d\d)-(\d\d)", re.ASCII)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_RANGE = re.compile(r"(\d{4}-\d\d-\d\d)\s*(?:/|\.\.|to)\s*(\d{4}-\d\d-\d\d)", re.ASCII)
_FORM = "{holidays: DE}, {dates: [2026-12-24, 2026-12-31]}, {weekdays: [sat, sun]}, or these together"


def parse_calendars(value: object, pointer: str = "/calendars") -> dict[str, Calendar]:
    """The named calendars of a triggers file. Raises `InvalidInput` with everything that is wrong."""
    if not isinstance(value, Mapping):
        raise InvalidInput(_problem(value, pointer, "calendars is a mapping of names to sets of days", _FORM))
    found: dict[str, Calendar] = {}
    problems: list[Problem] = []
    for name, body in value.items():
        try:
            found[str(name)] = parse_calendar(str(name), body, f"{pointer}/{name}")
        except InvalidInput as error:
            problems += error.problems
    if problems:
        raise InvalidInput(problems)
    return found


def parse_calendar(name: str, value: object, pointer: str) -> Calendar:
    """The calendar that `name: value` means. Raises `InvalidInput`."""
    if not isinstance(value, Mapping) or not value:
        raise InvalidInput(_problem(value, pointer, "a calendar is a mapping", _FORM))
    problems = [
        _problem(key, f"{pointer}/{key}", f"a calendar has {_listed(_KEYS)}", _FORM)
        for key in value
        if key not in _KEYS
    ]
    days: set[int] = set()
    yearly: set[tuple[int, int]] = set()
    for key in ("dates", "ranges"):
        for where, item in _items(value, key, pointer):
            _read_dates(item, where, key == "ranges", days, yearly, problems)
    weekdays: set[int] = set()
    for where, item in _items(value, "weekdays", pointer):
        short = item.strip().lower() if isinstance(item, str) else ""
        matches = [i for i in range(7) if short in (WEEKDAYS[i], WEEKDAY_NAMES[i].lower())]
        weekdays.update(matches)
        if not matches:
            problems.append(_problem(item, where, f"a weekday is {_listed(WEEKDAYS, 'or')}", "sat"))
    countries = [_country(item, where, problems) for where, item in _items(value, "holidays", pointer)]
    if len(weekdays) == 7:
        problems.append(
            _problem(value["weekdays"], f"{pointer}/weekdays", "some weekday is left", "[sat, sun]")
        )
    if len(days) > _MAX_DATES:
        rule = f"a calendar has at most {_MAX_DATES:,} dates"
        problems.append(_problem(len(days), pointer, rule, "weekdays or days of every year (12-24)"))
    if not problems and not (days or yearly or weekdays or countries):
        problems.append(_problem(dict(value), pointer, "a calendar names at least one day", _FORM))
    if problems:
        raise InvalidInput(problems)
    return Calendar(
        name,
        tuple(sorted(days)),
        frozenset(yearly),
        frozenset(weekdays),
        tuple(country for country in countries if country is not None),
    )


def canonical_calendar(calendar: Calendar) -> dict[str, Any]:
    """The one way to write a calendar, as JSON: equal sets give equal mappings."""
    canonical: dict[str, Any] = {}
    if calendar.days or calendar.yearly:
        canonical["dates"] = [f"{month:02}-{day:02}" for month, day in sorted(calendar.yearly)]
        canonical["dates"] += [iso_date(day) for day in calendar.days]
    if calendar.weekdays:
        canonical["weekdays"] = [WEEKDAYS[day] for day in sorted(calendar.weekdays)]
    if calendar.countries:
        canonical["holidays"] = [
            {
                "country": country.code,
                **({"subdiv": country.subdiv} if country.subdiv else {}),
                **({} if country.observed else {"observed": False}),
                **({"categories": list(country.categories)} if country.categories else {}),
            }
            for country in sorted(calendar.countries, key=lambda item: (str(item), item.categories))
        ]
    return canonical


def _items(value: Mapping[Any, Any], key: str, pointer: str) -> list[tuple[str, Any]]:
    """What `key` holds, one value or a list, each with its pointer."""
    if key not in value:
        return []
    held = value[key]
    if isinstance(held, list | tuple):
        return [(f"{pointer}/{key}/{i}", item) for i, item in enumerate(held)]
    return [(f"{pointer}/{key}", held)]


def _read_dates(
    item: Any,
    where: str,
    ranges: bool,
    days: set[int],
    yearly: set[tuple[int, int]],
    problems: list[Problem],
) -> None:
    if isinstance(item, str) and not ranges and (match := _YEARLY.fullmatch(item.strip())):
        month, day = int(match[1]), int(match[2])
        if _exists(2000, month, day):
            yearly.add((month, day))
        else:
            problems.append(_problem(item, where, "MM-DD is a day of every year", "12-24"))
        return
    first = last = _one_date(item)
    if first is None:
        ends: Sequence[Any] = ()
        if isinstance(item, str) and (match := _RANGE.fullmatch(item.strip())):
            ends = match.groups()
        elif isinstance(item, Mapping) and set(item) == {"from", "to"}:
            ends = (item["from"], item["to"])
        elif isinstance(item, list | tuple) and len(item) == 2:
            ends = item
        first, last = (_one_date(ends[0]), _one_date(ends[1])) if ends else (None, None)
    if first is None or last is None:
        rule = "a date is YYYY-MM-DD or MM-DD, a range YYYY-MM-DD/YYYY-MM-DD or {from, to}"
        problems.append(_problem(item, where, rule, "2026-12-24/2027-01-02"))
    elif last < first:
        problems.append(_problem(item, where, "a range ends at or after its beginning", "swap the dates"))
    elif last - first > _MAX_DATES:
        problems.append(_problem(item, where, f"a range has at most {_MAX_DATES:,} days", "start and end"))
    else:
        days.update(range(first, last + 1))


def _one_date(item: Any) -> int | None:
    if isinstance(item, datetime):
        return day_of(item.year, item.month, item.day) if item.time() == datetime.min.time() else None
    if isinstance(item, date):
        return day_of(item.year, item.month, item.day)
    match = _DATE.fullmatch(item.strip()) if isinstance(item, str) else None
    if match is None or not _exists(int(match[1]), int(match[2]), int(match[3])):
        return None
    return day_of(int(match[1]), int(match[2]), int(match[3]))


def _exists(year: int, month: int, day: int) -> bool:
    try:
        day_of(year, month, day)
    except ValueError:
        return False
    return True


def _country(item: Any, where: str, problems: list[Problem]) -> Country | None:
    body: Mapping[Any, Any] = item if isinstance(item, Mapping) else {"country": item}
    before = len(problems)
    for key in body:
        if key not in _COUNTRY_KEYS:
            rule = f"holidays have {_listed(_COUNTRY_KEYS)}"
            problems.append(_problem(key, f"{where}/{key}", rule, "{country: DE, subdiv: BY}"))
    code, subdiv, observed = body.get("country"), body.get("subdiv"), body.get("observed", True)
    categories = body.get("categories", ())
    categories = (categories,) if isinstance(categories, str) else categories
    if not isinstance(code, str):
        hint = 'quote it: "NO"' if code is False else "DE"
        problems.append(_problem(code, where, "a country is its ISO 3166 code of two letters", hint))
        return None
    if not isinstance(observed, bool):
        problems.append(_problem(observed, f"{where}/observed", "observed is true or false", "true"))
    if not isinstance(categories, list | tuple) or not all(isinstance(word, str) for word in categories):
        problems.append(
            _problem(categories, f"{where}/categories", "categories is a list of words", "[public]")
        )
    if len(problems) > before:
        return None
    return _known_country(code.strip().upper(), subdiv, observed, tuple(categories), where, problems)


def _known_country(
    code: str,
    subdiv: Any,
    observed: bool,
    categories: tuple[str, ...],
    where: str,
    problems: list[Problem],
) -> Country | None:
    from holidays import country_holidays, list_supported_countries

    supported = list_supported_countries(include_aliases=True)
    if len(code) != 2 or code not in supported:
        close = difflib.get_close_matches(code, [known for known in supported if len(known) == 2], 1)
        hint = close[0] if close else "DE; dates: [...] where a country is not known"
        problems.append(_problem(code, where, "there are no holidays of this country", hint))
        return None
    entity = country_holidays(code)
    if subdiv is not None and subdiv not in supported[code]:
        close = difflib.get_close_matches(str(subdiv), supported[code], 1)
        hint = close[0] if close else ", ".join(supported[code][:12]) or "leave it out"
        problems.append(_problem(subdiv, f"{where}/subdiv", f"{code} has no such part", hint))
        return None
    unknown = [word for word in categories if word not in entity.supported_categories]
    if unknown:
        hint = _listed(list(entity.supported_categories), "or")
        problems.append(_problem(unknown[0], f"{where}/categories", f"{code} has no such category", hint))
        return None
    return Country(code, subdiv, observed, tuple(sorted(set(categories))))


def _listed(words: Sequence[str], joint: str = "and") -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" {joint} " + words[-1]


def _problem(value: object, pointer: str, rule: str, hint: str) -> Problem:
    return Problem(pointer, shown(value), rule, hint, code="calendar")
