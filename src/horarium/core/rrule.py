"""Recurrence sets of RFC 5545: reading them, and the union and difference of their parts.

A set is what RRULEs and RDATEs name, without what EXDATEs and EXRULEs name. It is written as a bare rule
(`FREQ=WEEKLY;BYDAY=FR`) that begins at the trigger's `start`, as RFC 5545's content lines (`DTSTART…`,
`RRULE…`), or as an `.ics` file with one event. `recurrence.py` evaluates a rule; this module joins them.

What RFC 5545 leaves open, here: DTSTART is an instance only where the rule names it; a DATE as UNTIL or
EXDATE means its whole local day; BYSECOND=60 is 59 (§3.3.12, there are no leap seconds here).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from horarium.core.civil import (
    DAY,
    FIRST_DAY,
    LAST_DAY,
    MONTH_NAMES,
    WEEKDAY_NAMES,
    day_of,
    first_pass,
    gap_at,
)
from horarium.core.instant import MAX_SECONDS, MIN_SECONDS, from_seconds, rfc3339
from horarium.core.recurrence import Freq, Parts, Recurrence
from horarium.core.schedule import Schedule
from horarium.core.zone import load_zone
from horarium.errors import InvalidInput, Problem, shown

if TYPE_CHECKING:
    from horarium.core.zone import Zone

_MAX_TEXT = 262_144  # an .ics event with ten years of daily EXDATEs has a fifth of this
_MAX_RULES = 20
_MAX_EXCLUDED = 100_000  # instances removed in a row before a search gives up: more than a day of seconds
_FEW_EXCLUDED = 8  # so many are looked at one by one before a search goes on in batches
_BATCH = 2_048
_MOST_PROBLEMS = 20  # named in one answer


@dataclass(frozen=True, slots=True)
class RRuleSet(Schedule):
    """A recurrence set in zone `place`; `text` is its canonical form, `start` DTSTART as local seconds."""

    text: str
    place: Zone
    start: int
    rules: tuple[Recurrence, ...] = field(compare=False)
    exrules: tuple[Recurrence, ...] = field(compare=False, default=())
    dates: tuple[int, ...] = ()
    without: frozenset[int] = frozenset()
    without_days: frozenset[int] = frozenset()
    plain: bool = field(init=False, compare=False, default=False)

    def __post_init__(self) -> None:
        excludes = self.exrules or self.without or self.without_days
        object.__setattr__(self, "plain", len(self.rules) == 1 and not self.dates and not excludes)

    @property
    def zone(self) -> Zone | None:
        return self.place

    def after(self, t: int) -> int | None:
        """The first instant strictly after `t`. Raises `InvalidInput` if EXRULE leaves next to nothing."""
        if self.plain:
            return self.rules[0].after(t)
        return self._search(t)

    def before(self, t: int) -> int | None:
        """The last instant at or before `t`. Raises `InvalidInput` if EXRULE leaves next to nothing."""
        if self.plain:
            return self.rules[0].before(t)
        since = t
        for _ in range(_FEW_EXCLUDED):
            found = self._previous(t)
            if found is None or not self._is_excluded(found):
                return found
            t = found - 1
        # What has been passed says how far a batch may reach back.
        width, passed = 8 * (since - t), _FEW_EXCLUDED
        while passed < _MAX_EXCLUDED:
            batch = self._named(t - width, t, _BATCH)
            if len(batch) == _BATCH and width > 1:
                width //= 2  # the latest of them may be missing
                continue
            kept = self._left_of(batch, t - width)
            if kept:
                return kept[-1]
            t -= width
            passed += len(batch) + 1
            width *= 4
            nearest = self._previous(t)
            if nearest is None:
                return None
            t = min(t, nearest)
        raise self._leaves_nothing()

    def between(self, a: int, b: int, limit: int = 10_000) -> list[int]:
        if self.plain:
            return self.rules[0].between(a, b, limit)
        found: list[int] = []
        passed = 0  # instances removed in a row
        while len(found) < limit:
            batch = self._named(a, b, min(_BATCH, 4 * limit))
            if not batch:
                break
            left = self._left_of(batch, a)
            found += left
            passed = 0 if left else passed + len(batch)
            if passed > _MAX_EXCLUDED:
                raise self._leaves_nothing()
            a = batch[-1]
        del found[limit:]
        return found

    def local_times(self, low: int, high: int) -> list[int]:
        """What RRULEs name in the local seconds `[low, high)`, whether the clock shows it or not.

        A time that the clock skips is no instance, one that it shows twice its first pass. EXDATEs, EXRULEs
        and RDATEs are left out of it.
        """
        return sorted({at for rule in self.rules for at in rule.local_times(low, high)})

    def describe(self) -> str:
        words = "; and ".join(_rule_in_words(rule) for rule in self.rules)
        if self.dates:
            words += (" and " if words else "") + _counted(len(self.dates), "single time")
        dropped = len(self.without) + len(self.without_days)
        if dropped:
            words += f", except {_counted(dropped, 'time' if self.without else 'day')}"
        for rule in self.exrules:
            words += f", except {_rule_in_words(rule)}"
        return f"{words}, {self.place.name}"

    def _search(self, t: int) -> int | None:
        for _ in range(_FEW_EXCLUDED):
            found = self._next(t)
            if found is None or not self._is_excluded(found):
                return found
            t = found
        passed = _FEW_EXCLUDED
        while passed < _MAX_EXCLUDED:
            batch = self._named(t, MAX_SECONDS, _BATCH)
            kept = self._left_of(batch, t)
            if kept or not batch:
                return kept[0] if kept else None
            t = batch[-1]
            passed += len(batch)
        raise self._leaves_nothing()

    def _named(self, a: int, b: int, limit: int) -> list[int]:
        """What RRULEs and RDATEs name in `(a, b]`, the first `limit` of it."""
        found = {at for rule in self.rules for at in rule.between(a, b, limit)}
        found.update(self.dates[bisect_right(self.dates, a) : bisect_right(self.dates, b)])
        return sorted(found)[:limit]

    def _left_of(self, named: list[int], a: int) -> list[int]:
        """`named`, the instants after `a`, without what is excluded."""
        left = [at for at in named if at not in self.without]
        if self.without_days:
            left = [at for at in left if self.place.to_local(at) // DAY not in self.without_days]
        for rule in self.exrules:
            if not left:
                break
            removed = rule.between(a, left[-1], 2 * _BATCH)
            known = left[-1] if len(removed) < 2 * _BATCH else removed[-1]
            gone = set(removed)
            # Where the rule that removes is the denser one, each of the others is asked for by itself.
            left = [at for at in left if (at not in gone if at <= known else not rule.has(at))]
        return left

    def _next(self, t: int) -> int | None:
        earliest = [found for rule in self.rules if (found := rule.after(t)) is not None]
        i = bisect_right(self.dates, t)
        if i < len(self.dates):
            earliest.append(self.dates[i])
        return min(earliest, default=None)

    def _previous(self, t: int) -> int | None:
        latest = [found for rule in self.rules if (found := rule.before(t)) is not None]
        i = bisect_right(self.dates, t)
        if i:
            latest.append(self.dates[i - 1])
        return max(latest, default=None)

    def _is_excluded(self, t: int) -> bool:
        return (
            t in self.without
            or (bool(self.without_days) and self.place.to_local(t) // DAY in self.without_days)
            or any(rule.has(t) for rule in self.exrules)
        )

    def _leaves_nothing(self) -> InvalidInput:
        rule = "EXRULE removes so much of this rule that no instant is found"
        return InvalidInput(
            Problem("/rrule", shown(self.text), rule, "say what is to fire in RRULE alone", code="never")
        )


def parse_rrule(
    value: object,
    zone: Zone,
    start: int | None = None,
    pointer: str = "/rrule",
    zones: Callable[[str], Zone] = load_zone,
) -> RRuleSet:
    """The recurrence set that `rrule: value` means.

    `value` is text (a bare rule, content lines, or an `.ics` event) or a list of content lines. Local times
    without a TZID are in `zone`. `start` (seconds since the epoch) is DTSTART where the text has none, else
    the midnight of the epoch is. `zones` finds the zone of a TZID. Raises `InvalidInput`, also for a rule
    that never fires.
    """
    document = _read(value, pointer)
    place = _place(document, zone, pointer, zones)
    if document.start is not None:
        local = document.start.local
    else:
        _check_without_start(document, start, value, pointer)
        local = start + place.offset_at(start) if start is not None else 0
        local = min(max(local, FIRST_DAY * DAY), LAST_DAY * DAY + DAY - 1)  # the zone's year 0 or 10000
    resolve = _Resolver(place, zone, pointer, zones)
    rules = [_with_until(parts, until, resolve) for parts, until in document.rules]
    exrules = [_with_until(parts, until, resolve) for parts, until in document.exrules]
    dates = [resolve.instant(stamp) for stamp in document.dates]
    if not rules and document.start is not None:
        dates.append(resolve.instant(document.start))  # without a rule DTSTART itself is the one instance
    whole_days = document.start is None or not document.start.is_date
    found = RRuleSet(
        _write(document),
        place,
        local,
        tuple(Recurrence(parts, place, local) for parts in rules),
        tuple(Recurrence(parts, place, local) for parts in exrules),
        tuple(sorted(set(dates))),
        frozenset(resolve.instant(stamp) for stamp in document.without if not (stamp.is_date and whole_days)),
        frozenset(stamp.local // DAY for stamp in document.without if stamp.is_date and whole_days),
    )
    try:
        first = found._search(MIN_SECONDS - 1)
    except InvalidInput as error:
        raise InvalidInput([replace(problem, pointer=pointer) for problem in error.problems]) from error
    if first is None:
        raise _wrong(
            value,
            pointer,
            "this rule never fires",
            "a date that exists, in a period that INTERVAL reaches from DTSTART, before UNTIL",
            code="never",
        )
    return found


def canonical_rrule(value: object, pointer: str = "/rrule") -> str:
    """The one way to write a recurrence set: equal rules give equal text. Raises `InvalidInput`."""
    return _write(_read(value, pointer))


# --- content lines --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stamp:
    """A DATE or DATE-TIME: local seconds, `tzid` as written (`Z` for UTC, empty for local time)."""

    local: int
    tzid: str = ""
    is_date: bool = False


@dataclass(slots=True)
class _Document:
    """What the content lines say. A rule comes with its UNTIL, whose meaning needs DTSTART's zone."""

    start: _Stamp | None = None
    rules: list[tuple[Parts, _Stamp | None]] = field(default_factory=list)
    exrules: list[tuple[Parts, _Stamp | None]] = field(default_factory=list)
    dates: list[_Stamp] = field(default_factory=list)
    without: list[_Stamp] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    params: dict[str, str]
    value: str


_SPLIT = re.compile(r"[\r\n]+|[ \t]+(?=(?:DTSTART|RRULE|RDATE|EXDATE|EXRULE)[;:])", re.IGNORECASE)
_FOLD = re.compile(r"\r?\n[ \t]")
_NAME = re.compile(r"[A-Za-z0-9-]+")
_PARAM = re.compile(r';([A-Za-z0-9-]+)=("[^"]*"|[^";:,]*)((?:,(?:"[^"]*"|[^";:,]*))*)')
_KNOWN = ("DTSTART", "RRULE", "RDATE", "EXDATE", "EXRULE")
_FORMS = "FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9 with a start, or DTSTART and RRULE lines, or an .ics event"


def _read(value: object, pointer: str) -> _Document:
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        value = "\n".join(value)
    if not isinstance(value, str) or not value.strip():
        raise _wrong(value, pointer, "a recurrence rule is text", _FORMS)
    if len(value) > _MAX_TEXT:
        raise _wrong(
            value, pointer, f"a recurrence set has at most {_MAX_TEXT:,} characters", "an end (UNTIL)"
        )
    text = _FOLD.sub("", value.strip())
    if re.search(r"^BEGIN:", text, re.IGNORECASE | re.MULTILINE):
        return _read_calendar(text, pointer)
    document, problems = _Document(), list[Problem]()
    for raw in _SPLIT.split(text):
        trimmed = raw.strip()
        if not trimmed:
            continue
        if re.match(r"[A-Za-z-]+=", trimmed):
            line = _Line("RRULE", {}, trimmed)
        else:
            line = _line(trimmed, pointer, problems) or _Line("", {}, "")
        if line.name in _KNOWN:
            _add(document, line, pointer, problems)
        elif line.name:
            rule = f"a recurrence set has lines {', '.join(_KNOWN)}"
            problems.append(_problem(trimmed, pointer, rule, _FORMS))
    _finish(document, value, pointer, problems)
    return document


def _line(text: str, pointer: str, problems: list[Problem]) -> _Line | None:
    name = _NAME.match(text)
    at = name.end() if name else 0
    params: dict[str, str] = {}
    while name and (param := _PARAM.match(text, at)):
        params[param[1].upper()] = param[2].strip('"')
        at = param.end()
    if name is None or text[at : at + 1] != ":":
        problems.append(_problem(text, pointer, "a line is NAME:value or NAME;PARAMETER=value:value", _FORMS))
        return None
    return _Line(name[0].upper(), params, text[at + 1 :].strip())


def _add(document: _Document, line: _Line, pointer: str, problems: list[Problem]) -> None:
    match line.name:
        case "DTSTART":
            found = _stamps(line, pointer, problems)
            if document.start is not None:
                problems.append(
                    _problem(line.value, pointer, "there is one DTSTART", "RDATE for further times")
                )
            elif len(found) > 1:
                problems.append(
                    _problem(line.value, pointer, "DTSTART is one time", "RDATE for further times")
                )
            elif found:
                document.start = found[0]
        case "RRULE":
            document.rules += _rule(line.value, pointer, problems)
        case "EXRULE":
            document.exrules += _rule(line.value, pointer, problems)
        case "RDATE":
            document.dates += _stamps(line, pointer, problems)
        case _:
            document.without += _stamps(line, pointer, problems)


def _finish(document: _Document, value: object, pointer: str, problems: list[Problem]) -> None:
    if len(document.rules) > _MAX_RULES or len(document.exrules) > _MAX_RULES:
        problems.append(
            _problem(value, pointer, f"a set has at most {_MAX_RULES} rules", "a trigger for each")
        )
    if not problems and not (document.rules or document.dates or document.start):
        problems.append(_problem(value, pointer, "a recurrence set names at least one time", _FORMS))
    if problems:
        raise InvalidInput(problems[:_MOST_PROBLEMS])


_STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)(Z)?)?", re.ASCII | re.IGNORECASE)


def _stamps(line: _Line, pointer: str, problems: list[Problem]) -> list[_Stamp]:
    found: list[_Stamp] = []
    for item in line.value.split(","):
        # A PERIOD (RDATE;VALUE=PERIOD) is its beginning and, after a slash, how long it lasts.
        stamp = _stamp(item.strip().split("/")[0], line.params.get("TZID", ""))
        if stamp is None:
            rule = f"{line.name} has dates (20261231) or times (20261231T180000, with Z for UTC)"
            problems.append(_problem(item, pointer, rule, "20261231T180000"))
        else:
            found.append(stamp)
    return found


def _stamp(text: str, tzid: str = "") -> _Stamp | None:
    found = _STAMP.fullmatch(text)
    if found is None:
        return None
    try:
        day = day_of(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        return None
    if found[4] is None:
        return _Stamp(day * DAY, tzid, is_date=True)
    hour, minute, second = int(found[4]), int(found[5]), min(int(found[6]), 60)
    if hour > 23 or minute > 59 or int(found[6]) > 60:
        return None
    return _Stamp(day * DAY + hour * 3_600 + minute * 60 + min(second, 59), "Z" if found[7] else tzid)


# --- rules ----------------------------------------------------------------------------------------------

_DAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_INT = re.compile(r"[+-]?\d{1,10}", re.ASCII)
_BY_DAY = re.compile(r"([+-]?\d{1,3})?(MO|TU|WE|TH|FR|SA|SU)", re.ASCII)


@dataclass(frozen=True, slots=True)
class _By:
    """A BYxxx part: the field that holds it, its range, and whether it counts from the end too."""

    field: str
    low: int
    high: int
    signed: bool = False


_BYS = {
    "BYMONTH": _By("by_month", 1, 12),
    "BYWEEKNO": _By("by_week_no", 1, 53, signed=True),
    "BYYEARDAY": _By("by_year_day", 1, 366, signed=True),
    "BYMONTHDAY": _By("by_month_day", 1, 31, signed=True),
    "BYHOUR": _By("by_hour", 0, 23),
    "BYMINUTE": _By("by_minute", 0, 59),
    "BYSECOND": _By("by_second", 0, 60),
    "BYSETPOS": _By("by_set_pos", 1, 366, signed=True),
}
_PARTS = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "WKST", *_BYS)
_MAX_NUMBER = 9_999_999_999


def _rule(text: str, pointer: str, problems: list[Problem]) -> list[tuple[Parts, _Stamp | None]]:
    """The rule that the value of an RRULE line is, in a list of its own; empty if it has problems."""
    reading = _RuleReader(text, pointer)
    parts = reading.parts()
    problems += reading.problems
    return [(parts, reading.until)] if parts is not None and not reading.problems else []


class _RuleReader:
    """Reads one rule and gathers everything that is wrong with it."""

    def __init__(self, text: str, pointer: str) -> None:
        self.text = text.strip().rstrip(";")
        self.pointer = pointer
        self.problems: list[Problem] = []
        self.until: _Stamp | None = None
        self._given: dict[str, tuple[str, int]] = {}
        at = 0
        for raw in self.text.split(";"):
            name, equals, value = raw.partition("=")
            key = name.strip().upper()
            if not equals or not value.strip():
                self._problem(
                    raw, at, "a rule is NAME=value parts with ';' between them", "FREQ=DAILY;INTERVAL=2"
                )
            elif key in self._given:
                self._problem(raw, at, f"{key} is given once", "join the values with ','")
            elif key in ("RSCALE", "SKIP"):
                self._problem(raw, at, f"{key} (RFC 7529) is not supported", "BYMONTHDAY=-1 for the last day")
            elif key not in _PARTS:
                self._problem(raw, at, f"{key or 'an empty name'} is no part of a rule", ", ".join(_PARTS))
            else:
                self._given[key] = (value.strip().upper(), at + len(name) + 1)
            at += len(raw) + 1

    def parts(self) -> Parts | None:
        names = [freq.name for freq in Freq]
        name, at = self._given.get("FREQ", ("", 0))
        if name not in names:
            rule = "FREQ is one of " + ", ".join(names)
            self._problem(name or self.text, at, rule if name else f"a rule has FREQ; {rule}", "FREQ=DAILY")
            return None
        freq = Freq[name]
        wkst, at = self._given.get("WKST", ("MO", 0))
        if wkst not in _DAYS:
            self._problem(wkst, at, "WKST is a weekday: " + ", ".join(_DAYS), "WKST=MO")
            wkst = "MO"
        by = {spec.field: self._numbers(key, spec) for key, spec in _BYS.items() if key in self._given}
        if "by_second" in by:
            by["by_second"] = tuple(sorted({min(second, 59) for second in by["by_second"]}))
        parts = Parts(
            freq=freq,
            interval=self._number("INTERVAL") or 1,
            count=self._number("COUNT"),
            by_month=by.get("by_month", ()),
            by_week_no=by.get("by_week_no", ()),
            by_year_day=by.get("by_year_day", ()),
            by_month_day=by.get("by_month_day", ()),
            by_day=self._weekdays(),
            by_hour=by.get("by_hour", ()),
            by_minute=by.get("by_minute", ()),
            by_second=by.get("by_second", ()),
            by_set_pos=by.get("by_set_pos", ()),
            wkst=_DAYS.index(wkst),
        )
        self._read_until()
        self._check(parts)
        return parts

    def _number(self, key: str) -> int | None:
        if key not in self._given:
            return None
        text, at = self._given[key]
        if _INT.fullmatch(text) and 1 <= int(text) <= _MAX_NUMBER:
            return int(text)
        self._problem(text, at, f"{key} is a whole number from 1 to {_MAX_NUMBER:,}", f"{key}=1")
        return None

    def _numbers(self, key: str, by: _By) -> tuple[int, ...]:
        text, at = self._given[key]
        found: set[int] = set()
        for item in text.split(","):
            number = int(item) if _INT.fullmatch(item.strip()) else None
            size = abs(number) if number is not None and by.signed else number
            if number is None or size is None or not by.low <= size <= by.high:
                sign = f", or -{by.low} to -{by.high} from the end" if by.signed else ""
                self._problem(
                    item, at, f"{key} has numbers from {by.low} to {by.high}{sign}", f"{key}={by.low}"
                )
                break  # one of ten thousand wrong numbers says it
            found.add(number)
            at += len(item) + 1
        return tuple(sorted(found))

    def _weekdays(self) -> tuple[tuple[int, int], ...]:
        if "BYDAY" not in self._given:
            return ()
        text, at = self._given["BYDAY"]
        found: set[tuple[int, int]] = set()
        for item in text.split(","):
            match = _BY_DAY.fullmatch(item.strip())
            number = int(match[1] or 0) if match else 0
            if match is None or abs(number) > 53 or (match[1] is not None and number == 0):
                rule = "BYDAY has weekdays " + ", ".join(_DAYS) + ", in FREQ=MONTHLY or YEARLY with a number"
                self._problem(item, at, rule, "BYDAY=MO,FR or BYDAY=1MO,-1FR")
                break
            found.add((number, _DAYS.index(match[2])))
            at += len(item) + 1
        return tuple(sorted(found))

    def _read_until(self) -> None:
        if "UNTIL" not in self._given:
            return
        text, at = self._given["UNTIL"]
        self.until = _stamp(text)
        if self.until is None:
            rule = "UNTIL is a date (20261231) or a time (20261231T180000Z)"
            self._problem(text, at, rule, "20261231T180000Z")
        if "COUNT" in self._given:
            self._problem(text, at, "a rule has UNTIL or COUNT, not both", "leave one out")

    def _check(self, parts: Parts) -> None:
        """What RFC 5545 §3.3.10 says MUST NOT be together."""
        freq, name = parts.freq, parts.freq.name
        numbered = any(n for n, _ in parts.by_day)
        if numbered and freq not in (Freq.MONTHLY, Freq.YEARLY):
            self._refuse(
                "BYDAY", f"a number before a weekday goes with MONTHLY or YEARLY, not {name}", "BYDAY=MO"
            )
        if numbered and parts.by_week_no:
            self._refuse("BYDAY", "with BYWEEKNO a weekday has no number", "BYDAY=MO")
        if parts.by_week_no and freq is not Freq.YEARLY:
            self._refuse("BYWEEKNO", f"BYWEEKNO goes with FREQ=YEARLY, not {name}", "FREQ=YEARLY")
        if parts.by_year_day and freq in (Freq.DAILY, Freq.WEEKLY, Freq.MONTHLY):
            self._refuse("BYYEARDAY", f"BYYEARDAY does not go with FREQ={name}", "FREQ=YEARLY")
        if parts.by_month_day and freq is Freq.WEEKLY:
            self._refuse(
                "BYMONTHDAY", "BYMONTHDAY does not go with FREQ=WEEKLY", "FREQ=MONTHLY or FREQ=DAILY"
            )
        if parts.by_set_pos and not (
            parts.by_month
            or parts.by_week_no
            or parts.by_year_day
            or parts.by_month_day
            or parts.by_day
            or parts.by_hour
            or parts.by_minute
            or parts.by_second
        ):
            self._refuse(
                "BYSETPOS", "BYSETPOS chooses from what another BYxxx part names", "BYDAY=MO;BYSETPOS=1"
            )

    def _refuse(self, key: str, rule: str, hint: str) -> None:
        value, at = self._given[key]
        self._problem(f"{key}={value}", at - len(key) - 1, rule, hint)

    def _problem(self, got: str, position: int, rule: str, hint: str) -> None:
        self.problems.append(replace(_problem(got, self.pointer, rule, hint), position=position))


# --- zones and instants ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Turns what is written into instants. Local times are in `place`, the zone of DTSTART."""

    place: Zone
    default: Zone
    pointer: str
    zones: Callable[[str], Zone]

    def instant(self, stamp: _Stamp) -> int:
        """A time that the clock skips is read with the offset before the gap (RFC 5545 §3.3.5)."""
        zone = self.place if not stamp.tzid else _zone_of(stamp.tzid, self.pointer, self.zones)
        found = zone.resolve(stamp.local)
        at = found[0] if found else stamp.local - zone.offset_at(gap_at(zone, stamp.local)[0] - 1)
        return min(max(at, MIN_SECONDS), MAX_SECONDS)

    def until(self, stamp: _Stamp) -> int:
        """The last instant that UNTIL admits."""
        if stamp.is_date:
            return first_pass(self.place, stamp.local + DAY) - 1
        return self.instant(stamp)


def _with_until(parts: Parts, until: _Stamp | None, resolve: _Resolver) -> Parts:
    return parts if until is None else replace(parts, until=resolve.until(until))


def _place(document: _Document, zone: Zone, pointer: str, zones: Callable[[str], Zone]) -> Zone:
    if document.start is None or not document.start.tzid:
        return zone
    return _zone_of(document.start.tzid, pointer, zones)


def _zone_of(tzid: str, pointer: str, zones: Callable[[str], Zone]) -> Zone:
    if tzid == "Z":
        return zones("UTC")
    # Some programs write globally unique names that end in the tz database's: /example.org/Europe/Berlin.
    names = [tzid]
    if tzid.startswith("/"):
        names = ["/".join(tzid.split("/")[-count:]) for count in (2, 3, 1)]
    for name in names[:-1]:
        try:
            return zones(name)
        except InvalidInput:
            continue
    try:
        return zones(names[-1])
    except InvalidInput as unknown:
        raise InvalidInput(
            [replace(problem, pointer=pointer, got=shown(f"TZID={tzid}")) for problem in unknown.problems]
        ) from unknown


def _check_without_start(document: _Document, start: int | None, value: object, pointer: str) -> None:
    """Without DTSTART and `start` a rule counts from the epoch, so it may not lean on that day."""
    if start is not None:
        return
    for parts, _ in document.rules:
        if parts.count is not None:
            raise _wrong(value, pointer, "COUNT counts from a beginning", "add start: 2026-01-01 or DTSTART")
        if parts.freq is Freq.WEEKLY and not parts.by_day:
            hint = "add BYDAY=MO, or start: 2026-01-05"
            raise _wrong(value, pointer, "a weekly rule needs a weekday or a beginning", hint)


# --- .ics -----------------------------------------------------------------------------------------------


def _read_calendar(text: str, pointer: str) -> _Document:
    """The one recurring event of an iCalendar file, with its moved and cancelled instances."""
    events = _events(text, pointer)
    masters = [event for event in events if not any(line.name == "RECURRENCE-ID" for line in event)]
    if len(masters) != 1:
        rule = f"an .ics text has one event, this one has {len(masters)}"
        raise _wrong(text, pointer, rule, "a trigger for each event")
    document, problems = _Document(), list[Problem]()
    for line in masters[0]:
        if line.name in _KNOWN:
            _add(document, line, pointer, problems)
        elif line.name == "STATUS" and line.value.upper() == "CANCELLED":
            problems.append(
                _problem("STATUS:CANCELLED", pointer, "a cancelled event never fires", "active: false")
            )
    moved: list[_Stamp] = []
    for event in events:
        if event is not masters[0]:
            _override(document, event, moved, pointer, problems)
    # An instance stands where it was moved to, also where it (or another that was moved away) has been.
    document.dates += moved
    document.without = [stamp for stamp in document.without if stamp not in moved]
    if document.start is None and not problems:
        problems.append(_problem(text, pointer, "an event has a DTSTART", "DTSTART:20260101T090000Z"))
    _finish(document, text, pointer, problems)
    return document


# Other properties (descriptions, attendees) may hold anything; only these are read.
_READ_OF_EVENTS = re.compile(r"(?:DTSTART|RRULE|RDATE|EXDATE|EXRULE|RECURRENCE-ID|STATUS)[;:]", re.IGNORECASE)


def _events(text: str, pointer: str) -> list[list[_Line]]:
    """The properties of each VEVENT, without those of what it contains (alarms)."""
    problems: list[Problem] = []
    events: list[list[_Line]] = []
    inside: list[str] = []
    for raw in re.split(r"[\r\n]+", text):
        if not raw.strip():
            continue
        head, _, rest = raw.strip().partition(":")
        if head.upper() == "BEGIN":
            inside.append(rest.upper())
            if inside[-1] == "VEVENT":
                events.append([])
        elif head.upper() == "END":
            if not inside or inside.pop() != rest.upper():
                raise _wrong(raw, pointer, "each END closes the last BEGIN", "END:VEVENT")
        elif inside and inside[-1] == "VEVENT" and _READ_OF_EVENTS.match(raw):
            line = _line(raw.strip(), pointer, problems)
            if line is not None:
                events[-1].append(line)
    if inside:
        raise _wrong(f"BEGIN:{inside[-1]}", pointer, "each BEGIN has its END", f"END:{inside[-1]}")
    if problems:
        raise InvalidInput(problems[:_MOST_PROBLEMS])
    return events


def _override(
    document: _Document, event: list[_Line], moved: list[_Stamp], pointer: str, problems: list[Problem]
) -> None:
    """An event with RECURRENCE-ID changes, moves or cancels one instance of the series."""
    cancelled = any(line.name == "STATUS" and line.value.upper() == "CANCELLED" for line in event)
    for line in event:
        if line.name == "RECURRENCE-ID":
            if "RANGE" in line.params:
                rule = "a change of this and all later instances is not supported"
                problems.append(
                    _problem(line.value, pointer, rule, "end the rule by UNTIL, and a new trigger")
                )
            document.without += _stamps(line, pointer, problems)
        elif line.name == "DTSTART" and not cancelled:
            moved += _stamps(line, pointer, problems)


# --- canonical text -------------------------------------------------------------------------------------


def _write(document: _Document) -> str:
    rules = sorted({_write_rule(parts, until) for parts, until in document.rules})
    beside = document.start or document.dates or document.without or document.exrules
    if len(rules) == 1 and not beside:
        return rules[0]
    lines = [] if document.start is None else [_write_stamps("DTSTART", [document.start])]
    lines += [f"RRULE:{rule}" for rule in rules]
    lines += sorted({_write_stamps("RDATE", [stamp]) for stamp in document.dates})
    lines += sorted({_write_stamps("EXDATE", [stamp]) for stamp in document.without})
    lines += sorted({f"EXRULE:{_write_rule(parts, until)}" for parts, until in document.exrules})
    return "\n".join(lines)


def _write_stamps(name: str, stamps: Sequence[_Stamp]) -> str:
    first = stamps[0]
    params = ";VALUE=DATE" if first.is_date else ""
    if first.tzid not in ("", "Z"):
        params += f";TZID={first.tzid}"
    return f"{name}{params}:" + ",".join(_write_stamp(stamp) for stamp in stamps)


def _write_stamp(stamp: _Stamp) -> str:
    at = from_seconds(stamp.local)
    if stamp.is_date:
        return f"{at.year:04}{at.month:02}{at.day:02}"
    text = f"{at.year:04}{at.month:02}{at.day:02}T{at.hour:02}{at.minute:02}{at.second:02}"
    return text + ("Z" if stamp.tzid == "Z" else "")


def _write_rule(parts: Parts, until: _Stamp | None) -> str:
    written = [f"FREQ={parts.freq.name}"]
    if parts.interval != 1:
        written.append(f"INTERVAL={parts.interval}")
    if parts.count is not None:
        written.append(f"COUNT={parts.count}")
    if until is not None:
        written.append(f"UNTIL={_write_stamp(until)}")
    for key, by in _BYS.items():
        values = getattr(parts, by.field)
        if key == "BYHOUR" and parts.by_day:
            written.append("BYDAY=" + ",".join(f"{n or ''}{_DAYS[day]}" for n, day in parts.by_day))
        if values:
            written.append(f"{key}=" + ",".join(map(str, values)))
    if parts.wkst:
        written.append(f"WKST={_DAYS[parts.wkst]}")
    return ";".join(written)


# --- words ----------------------------------------------------------------------------------------------

_UNITS = ("year", "month", "week", "day", "hour", "minute", "second")
_ORDINALS = ("", "first", "second", "third", "fourth", "fifth")


def _rule_in_words(rule: Recurrence) -> str:
    """`every 2 weeks on Monday and Friday at 09:00`."""
    parts = rule.parts
    unit = _UNITS[parts.freq]
    words = [f"every {unit}" if parts.interval == 1 else f"every {parts.interval:,} {unit}s"]
    if parts.by_month:
        words.append("in " + _listed([MONTH_NAMES[month - 1] for month in parts.by_month]))
    if parts.by_week_no:
        words.append("in week " + _numbers_in_words(parts.by_week_no))
    if parts.by_year_day:
        words.append("on day " + _numbers_in_words(parts.by_year_day) + " of the year")
    if parts.by_month_day:
        words.append("on day " + _numbers_in_words(parts.by_month_day) + " of the month")
    if parts.by_day:
        words.append("on " + _listed([_weekday_in_words(n, day) for n, day in parts.by_day]))
    words += _times_in_words(parts)
    if parts.by_set_pos:
        chosen = _listed([_ordinal(n) for n in parts.by_set_pos])
        words.append(f"(only the {chosen} of these in each {unit})")
    if parts.count is not None:
        words.append("once" if parts.count == 1 else f"{parts.count:,} times")
    if parts.until is not None:
        words.append(f"until {rfc3339(from_seconds(parts.until))}")
    return " ".join(words)


def _times_in_words(parts: Parts) -> list[str]:
    if parts.freq <= Freq.DAILY and len(parts.by_hour) * len(parts.by_minute) * len(parts.by_second) <= 12:
        times = [
            f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")
            for hour in parts.by_hour
            for minute in parts.by_minute
            for second in parts.by_second
        ]
        return ["at " + _listed(times)]
    words: list[str] = []
    for values, name in ((parts.by_hour, "hour"), (parts.by_minute, "minute"), (parts.by_second, "second")):
        if values and not (name == "second" and values == (0,)):
            words.append(f"in {name} {_listed(_runs(values))}")
    return words


def _runs(values: Sequence[int]) -> list[str]:
    """`6 to 17` for neighbours, single numbers else."""
    found: list[list[int]] = []
    for value in values:
        if found and value == found[-1][-1] + 1:
            found[-1].append(value)
        else:
            found.append([value])
    return [
        f"{run[0]} to {run[-1]}" if len(run) > 2 else _listed([str(value) for value in run]) for run in found
    ]


def _weekday_in_words(n: int, day: int) -> str:
    return WEEKDAY_NAMES[day] if n == 0 else f"the {_ordinal(n)} {WEEKDAY_NAMES[day]}"


def _ordinal(n: int) -> str:
    if n < 0:
        return "last" if n == -1 else f"{_ordinal(-n)} to last"
    if n < len(_ORDINALS):
        return _ORDINALS[n]
    suffix = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


def _numbers_in_words(numbers: Sequence[int]) -> str:
    """`1, 15 and the last`."""
    from_end = [f"the {_ordinal(n)}" for n in reversed(numbers) if n < 0]
    return _listed([*_runs([n for n in numbers if n > 0]), *from_end])


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number:,} {unit}s"


def _problem(value: object, pointer: str, rule: str, hint: str, code: str = "rrule") -> Problem:
    return Problem(pointer, shown(value), rule, hint, code=code)


def _wrong(value: object, pointer: str, rule: str, hint: str, code: str = "rrule") -> InvalidInput:
    return InvalidInput(_problem(value, pointer, rule, hint, code))
