"""Cron expressions as text: the `horarium` and the `robfig` dialect, read into `CronFields`.

`horarium` has 5 fields, or 6 with seconds first: minute, hour, day of month, month, day of week.

    field  = item {"," item}
    item   = ("*" | value | value "-" value) ["/" step] | "H" ["(" value "-" value ")"] ["/" step]
    "?"      a whole field that is not restricted, as "*"
    day of month also: "L" (last), "L-n", "LW" (last weekday), "nW" (weekday nearest to the nth)
    day of week also: "d#n" (nth d of the month), "dL" (last d of the month)

or a nickname (`@daily`), or `@every DURATION`; `CRON_TZ=ZONE ` may stand before either. `value/step` runs
to the end of the field's range. `robfig` is what robfig/cron v3's `ParseStandard` takes, no more and no
less (github.com/robfig/cron, parser.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from horarium.core import keys
from horarium.core.civil import MONTHS
from horarium.core.cron import CronFields, DayForm, FormKind
from horarium.errors import InvalidInput, Problem, shown

LONGEST = 10_240
"""Characters of the longest expression that is read at all."""


class Dialect(StrEnum):
    """Whose words an expression is written in."""

    HORARIUM = "horarium"
    ROBFIG = "robfig"


class Every(NamedTuple):
    """`@every` in place of fields: elapsed time, as it was written (`horarium`) or in seconds (`robfig`)."""

    duration: str | int


class CronText(NamedTuple):
    """An expression taken apart. `zone_name` is what `CRON_TZ=` named, if it was there."""

    zone_name: str | None
    rule: CronFields | Every
    text: str


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the fields. `key` is the word under which `H` is drawn: it must never change."""

    name: str
    key: str
    low: int
    high: int
    names: Mapping[str, int]
    h_high: int

    @property
    def rule(self) -> str:
        text = f"{self.name} is {self.low} to {self.high}"
        if self.key == "day_of_week":
            return "day of week is 0 to 7 (0 and 7 are Sunday) or sun to sat"
        return text + " or jan to dec" if self.names else text


_MONTHS = {name: i for i, name in enumerate(MONTHS, start=1)}
_WEEKDAYS = {name: i for i, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}

_SECOND = Kind("second", "second", 0, 59, {}, 59)
_MINUTE = Kind("minute", "minute", 0, 59, {}, 59)
_HOUR = Kind("hour", "hour", 0, 23, {}, 23)
_DAY = Kind("day of month", "day_of_month", 1, 31, {}, 28)  # H: a day that every month has
_MONTH = Kind("month", "month", 1, 12, _MONTHS, 12)
_WEEKDAY = Kind("day of week", "day_of_week", 0, 6, _WEEKDAYS, 6)
FIELDS = (_SECOND, _MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FORMS = "minute hour day-of-month month day-of-week, such as 30 2 * * mon-fri"


class Field(NamedTuple):
    """One field, read: its values as a mask, its forms, whether it begins with a star."""

    mask: int
    forms: tuple[DayForm, ...]
    star: bool


class _Bad(Exception):
    """What is wrong with an item, `at` characters into its field."""

    def __init__(self, at: int, got: str, rule: str, hint: str = "") -> None:
        self.at, self.got, self.rule, self.hint = at, got, rule, hint
        super().__init__(rule)


def read_cron(
    text: object,
    *,
    dialect: Dialect = Dialect.HORARIUM,
    day_or: bool = True,
    seed: str = "",
    pointer: str = "/cron",
) -> CronText:
    """Take a cron expression apart. Raises `InvalidInput` with every field that is wrong.

    `seed` is the trigger's hash seed, for `H`. `day_or` False asks for dates that match both day fields.
    """
    if not isinstance(text, str):
        raise _problem(pointer, text, "a cron expression is text", f"quotes around it: {_FORMS}")
    if len(text) > LONGEST:
        raise _problem(pointer, text, f"a cron expression has at most {LONGEST:,} characters", _FORMS)
    if dialect is Dialect.ROBFIG:
        return _read_robfig(text, day_or, pointer)
    return _read_horarium(text, day_or, seed, pointer)


def _problem(
    pointer: str, got: object, rule: str, hint: str = "", position: int | None = None
) -> InvalidInput:
    return InvalidInput(Problem(pointer, shown(got), rule, hint, code="cron", position=position))


# --- the dialect horarium -------------------------------------------------------------------------------


def _read_horarium(text: str, day_or: bool, seed: str, pointer: str) -> CronText:
    zone_name, body, offset = _split_zone(text, pointer)
    if body.startswith("@"):
        word, _, rest = body.partition(" ")
        word = word.lower()
        if word == "@every":
            if not rest.strip():
                raise _problem(pointer, text, "@every takes a duration", "@every 15m")
            return CronText(zone_name, Every(rest.strip()), body)
        if rest.strip() or word not in NICKNAMES:
            raise _problem(
                pointer,
                text,
                f"nicknames are {', '.join(NICKNAMES)} and @every DURATION",
                "a trigger with 'at', or the service's own start" if word == "@reboot" else "@daily",
                offset,
            )
        body = NICKNAMES[word]
    parts = body.split()
    if len(parts) == 5:
        parts.insert(0, "0")
    elif len(parts) != 6:
        hint = "leave the year out, and put it into start and end" if len(parts) == 7 else _FORMS
        raise _problem(
            pointer, text, f"a cron expression has 5 fields, or 6 with seconds first, not {len(parts)}", hint
        )
    read: list[Field] = []
    problems: list[Problem] = []
    for index, part in enumerate(parts):
        try:
            if len(part) <= 40 and "H" not in part and "h" not in part:
                read.append(_plain_field(index, part))
            else:
                read.append(read_field(FIELDS[index], part, seed))
        except _Bad as bad:
            starts = [match.start() for match in re.finditer(r"\S+", text)]
            position = starts[index - 6] + bad.at if not body.startswith("@") and starts else None
            problems.append(
                Problem(pointer, shown(bad.got), bad.rule, bad.hint, code="cron", position=position)
            )
    if problems:
        raise InvalidInput(problems)
    second, minute, hour, day, month, weekday = read
    return CronText(
        zone_name,
        CronFields(
            second.mask,
            minute.mask,
            hour.mask,
            day.mask,
            day.forms,
            month.mask,
            weekday.mask,
            weekday.forms,
            day_or and not day.star and not weekday.star,
            not minute.star and not hour.star,
        ),
        body,
    )


def _split_zone(text: str, pointer: str) -> tuple[str | None, str, int]:
    """`CRON_TZ=`'s zone, the rest, and where the rest begins in `text`."""
    body = text.strip()
    offset = text.find(body)
    if not body:
        raise _problem(pointer, text, "a cron expression is not empty", _FORMS)
    if body.startswith(("CRON_TZ=", "TZ=")):
        head, _, rest = body.partition("=")[2].partition(" ")
        if not head or not rest.strip():
            raise _problem(
                pointer,
                text,
                "CRON_TZ= names a zone, and an expression follows it",
                "CRON_TZ=Europe/Berlin 0 9 * * *",
                offset,
            )
        return head, rest.strip(), offset + len(body) - len(rest.lstrip())
    return None, body, offset


@lru_cache(maxsize=4_096)
def _plain_field(index: int, text: str) -> Field:
    """A field without `H`, which means the same in every expression."""
    return read_field(FIELDS[index], text, "")


def read_field(kind: Kind, text: str, seed: str) -> Field:
    if text == "*" or text == "?":
        return Field(_span(kind.low, kind.high, 1), (), True)
    mask, at = 0, 0
    forms: list[DayForm] = []
    for item in text.split(","):
        found = _item(kind, item, at, seed)
        if isinstance(found, DayForm):
            if found not in forms:
                forms.append(found)
        else:
            mask |= found
        at += len(item) + 1
    return Field(mask, tuple(sorted(forms)), text.startswith("*"))


def _item(kind: Kind, item: str, at: int, seed: str) -> int | DayForm:
    if item.isdecimal() and len(item) <= 4:
        value = _value(kind, item, at)
        return 1 << (value % 7 if kind is _WEEKDAY else value)
    if not item:
        raise _Bad(
            at, item, f"{kind.name} has an empty item between commas", "a value on each side of a comma"
        )
    body, slash, step_text = item.partition("/")
    step = _step(kind, step_text, at + len(body) + 1) if slash else 1
    if body == "*":
        return _span(kind.low, kind.high, step)
    if body[:1] in ("H", "h") and (len(body) == 1 or body[1] == "("):
        return _hashed(kind, body, step if slash else 0, at, seed)
    if "?" in body:
        raise _Bad(at, item, "? stands alone in a field", "*" + slash + step_text)
    form = _form(kind, body, at)
    if form is not None:
        if slash:
            raise _Bad(at, item, f"a step does not go with {body}", "the days written out")
        return form
    low_text, dash, high_text = body.partition("-")
    low = _value(kind, low_text, at)
    if not dash:
        low = low % 7 if kind is _WEEKDAY else low
        return _span(low, kind.high if slash else low, step)
    high = _value(kind, high_text, at + len(low_text) + 1)
    if kind is _WEEKDAY and high == 0 and low > 0 and not high_text[:1].isdecimal():
        high = 7  # fri-sun: a range that ends on Sunday
    if high < low:
        raise _Bad(
            at,
            item,
            f"{kind.name} ranges go up, from {low_text} to {high_text} does not",
            _unwrapped(kind, item),
        )
    mask = _span(low, high, step)
    return (mask & 0x7F) | mask >> 7 if kind is _WEEKDAY else mask


def _value(kind: Kind, text: str, at: int) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 9:
        value = int(text)
        if kind.low <= value <= kind.high or (kind is _WEEKDAY and value == 7):
            return value
        raise _Bad(at, text, kind.rule)
    value = kind.names.get(text.lower(), -1)
    if value < 0:
        short = text[:3].lower()
        raise _Bad(at, text, kind.rule, short if short in kind.names and text.isalpha() else "")
    return value


def _step(kind: Kind, text: str, at: int) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) > 0:
        return int(text)
    raise _Bad(at, text, f"the step of {kind.name} is a whole number from 1", "*/5")


def _hashed(kind: Kind, body: str, step: int, at: int, seed: str) -> int:
    """`H`, `H(a-b)`, with a step (0 for none): drawn from `seed`, the same for ever."""
    low, high = kind.low, kind.h_high
    if len(body) > 1:
        inside = body[2:-1]
        low_text, dash, high_text = inside.partition("-")
        if body[-1] != ")" or not dash:
            raise _Bad(at, body, "H takes a range in brackets", f"H({kind.low}-{kind.high})")
        low = _value(kind, low_text, at + 2)
        high = _value(kind, high_text, at + 3 + len(low_text))
        if high < low:
            raise _Bad(at, body, "the range of H goes up", f"H({high_text}-{low_text})")
    if not step:
        drawn = keys.spread(seed, kind.key, low, high)
        return 1 << (drawn % 7 if kind is _WEEKDAY else drawn)
    first = keys.spread(seed, kind.key, low, min(low + step - 1, high))
    mask = _span(first, high, step)
    return (mask & 0x7F) | mask >> 7 if kind is _WEEKDAY else mask


_DAY_FORM = re.compile(r"(?:(L)(?:-([0-9]{1,9}))?|(LW)|([0-9]{1,9})W)", re.IGNORECASE)
_WEEKDAY_FORM = re.compile(r"([A-Za-z]{3}|[0-9]{1,9})(?:(L)|#([0-9]{1,9}))", re.IGNORECASE)


def _form(kind: Kind, body: str, at: int) -> DayForm | None:
    if kind is _DAY:
        match = _DAY_FORM.fullmatch(body)
        if match is None:
            return None
        _, before, last_weekday, near = match.groups()
        if last_weekday:
            return DayForm(FormKind.LAST_WEEKDAY)
        if near:
            return DayForm(FormKind.NEAREST_WEEKDAY, _value(kind, near, at))
        if before and not 1 <= int(before) <= 30:
            raise _Bad(at, body, "L-n counts 1 to 30 days back from the last day of the month", "L-3")
        return DayForm(FormKind.FROM_LAST, int(before or 0))
    if kind is _WEEKDAY:
        match = _WEEKDAY_FORM.fullmatch(body)
        if match is None:
            if body.upper() == "L":
                raise _Bad(at, body, "L in day of week follows a day", "friL for the last Friday, or sat")
            return None
        weekday = _value(kind, match[1], at) % 7
        if match[2]:
            return DayForm(FormKind.LAST_OF, weekday)
        if not 1 <= int(match[3]) <= 5:
            raise _Bad(at, body, "d#n is the 1st to 5th such day of the month", f"{match[1]}#1")
        return DayForm(FormKind.NTH, weekday, int(match[3]))
    if body.upper() in ("L", "LW") or "#" in body:
        raise _Bad(at, body, kind.rule, "L, W and # belong to the day fields")
    return None


def _unwrapped(kind: Kind, item: str) -> str:
    """`fri-mon` as the two ranges that it means: `fri-sat,sun-mon`."""
    body, slash, step = item.partition("/")
    low, _, high = body.partition("-")
    by_number = {number: name for name, number in kind.names.items()}
    named = low[:1].isalpha()

    def word(value: int) -> str:
        return by_number[value] if named and value in by_number else str(value)

    if kind is _WEEKDAY and high == "0":
        return f"{low}-7{slash}{step}"
    first = low if low == word(kind.high) else f"{low}-{word(kind.high)}"
    second = high if high == word(kind.low) else f"{word(kind.low)}-{high}"
    return f"{first}{slash}{step},{second}{slash}{step}"


def _span(low: int, high: int, step: int) -> int:
    """The mask of every `step`th value in `low..high`."""
    if step == 1:
        return (2 << high) - (1 << low)
    return sum(1 << value for value in range(low, high + 1, step))


# --- the dialect robfig ---------------------------------------------------------------------------------

_GO_SPACES = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)
_GO_SPACE = re.compile(f"[{_GO_SPACES}]+")
_GO_INT = re.compile(r"[+-]?[0-9]+")
_GO_DURATION_PART = re.compile(r"(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))([^0-9.]+)")
_GO_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}


def _read_robfig(text: str, day_or: bool, pointer: str) -> CronText:
    zone_name: str | None = None
    body = text
    if text.startswith(("TZ=", "CRON_TZ=")):
        head, space, rest = text.partition(" ")
        if not space:
            # The Go library panics here.
            raise _problem(pointer, text, "CRON_TZ= names a zone, and an expression follows it after a space")
        zone_name = head.partition("=")[2] or "UTC"
        if zone_name == "Local":
            zone_name = None  # which to the library means: the zone it is asked in
        body = rest.strip(_GO_SPACES)
    if body.startswith("@"):
        if body.startswith("@every "):
            return CronText(zone_name, Every(_go_every(body[7:], text, pointer)), body)
        if body not in NICKNAMES:
            raise _problem(pointer, text, f"unrecognized descriptor: {shown(body)}", ", ".join(NICKNAMES))
        body = NICKNAMES[body]
    parts = [part for part in _GO_SPACE.split(body) if part]
    if len(parts) != 5:
        raise _problem(pointer, text, f"the robfig dialect has exactly 5 fields, found {len(parts)}", _FORMS)
    read: list[tuple[int, bool]] = []
    problems: list[Problem] = []
    for kind, part in zip(FIELDS[1:], parts, strict=True):
        try:
            read.append(_robfig_field(kind, part))
        except _Bad as bad:
            position = text.find(part)
            problems.append(Problem(pointer, shown(bad.got), bad.rule, code="cron", position=position))
    if problems:
        raise InvalidInput(problems)
    (minute, _), (hour, _), (day, day_star), (month, _), (weekday, weekday_star) = read
    either = day_or and not day_star and not weekday_star
    # The library has no such word: this is for advice, and for new tz data.
    fixed_time = not parts[0].startswith(("*", "?")) and not parts[1].startswith(("*", "?"))
    return CronText(
        zone_name, CronFields(1, minute, hour, day, (), month, weekday, (), either, fixed_time), body
    )


def _robfig_field(kind: Kind, text: str) -> tuple[int, bool]:
    """The mask and the star bit, which any item of a list sets. Empty items are dropped, as there."""
    mask, star = 0, False
    for item in text.split(","):
        if item:
            more, starred = _robfig_range(kind, item)
            mask |= more
            star = star or starred
    return mask, star


def _robfig_range(kind: Kind, item: str) -> tuple[int, bool]:
    range_text, *steps = item.split("/")
    ends = range_text.split("-")
    star = ends[0] in ("*", "?")
    if star:
        low, high = kind.low, kind.high  # whatever follows a hyphen is not read
    elif len(ends) > 2:
        raise _Bad(0, item, "too many hyphens")
    else:
        low = _robfig_value(kind, ends[0])
        high = _robfig_value(kind, ends[1]) if len(ends) == 2 else low
    if len(steps) > 1:
        raise _Bad(0, item, "too many slashes")
    step = 1
    if steps:
        step = _go_int(steps[0])
        if len(ends) == 1:
            high = kind.high
        if step > 1:
            star = False
    if low < kind.low:
        raise _Bad(0, item, f"{kind.name} begins at {kind.low}")
    if high > kind.high:
        raise _Bad(0, item, f"{kind.name} ends at {kind.high}")
    if low > high:
        raise _Bad(0, item, f"the beginning of the range ({low}) is beyond its end ({high})")
    if step == 0:
        raise _Bad(0, item, "a step is a positive number")
    return _span(low, high, step), star


def _robfig_value(kind: Kind, text: str) -> int:
    named = kind.names.get(text.lower())
    return _go_int(text) if named is None else named


def _go_int(text: str) -> int:
    if not _GO_INT.fullmatch(text) or len(text.lstrip("+-0")) > 19:
        raise _Bad(0, text, "not a whole number")
    value = int(text[:1].strip("0123456789") + (text.lstrip("+-0") or "0"))
    if not 0 <= value < 1 << 63:
        raise _Bad(0, text, "negative, or too large")
    return value


def _go_every(duration: str, text: str, pointer: str) -> int:
    """Whole seconds, at least one, of a Go duration (`time.ParseDuration`, then `cron.Every`)."""
    sign, rest = (duration[0], duration[1:]) if duration[:1] in ("+", "-") else ("", duration)
    nanos, at = 0, 0
    while at < len(rest) and rest != "0":
        match = _GO_DURATION_PART.match(rest, at)
        if match is None or match[4] not in _GO_UNITS:
            raise _problem(pointer, text, "@every takes a Go duration", "@every 1h30m")
        unit = _GO_UNITS[match[4]]
        # Go's clock of nanoseconds has 63 bits, so 18 digits decide.
        fraction = (match[2] or match[3] or "")[:18]
        nanos += int((match[1] or "0").lstrip("0")[:20] or 0) * unit
        nanos += int(fraction or 0) * unit // 10 ** len(fraction)
        at = match.end()
    if not rest or nanos >= 1 << 63:
        raise _problem(pointer, text, "@every takes a Go duration of less than 292 years", "@every 1h30m")
    return 1 if sign == "-" else max(1, nanos // 1_000_000_000)
