"""Prefect's schedules in our words. Pure.

Prefect evaluates cron by croniter, recurrence rules by dateutil, intervals by itself, each with habits of its
own. What a schedule names over there is what it names here, but where there is no fixed answer to copy: near
changes of the clock, and for intervals of days and hours (docs/prefect.md has the table). What can't be said
in our words is refused with `InvalidInput`, never bent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from horarium.core.civil import DAY, ymd
from horarium.core.cron_text import FIELDS, Field, Kind, read_field
from horarium.core.duration import format_duration
from horarium.core.instant import from_seconds, rfc3339, to_seconds
from horarium.core.schedule import canonical, parse
from horarium.core.spec import canonical_json
from horarium.core.zone import load_zone
from horarium.errors import InvalidInput, Problem, shown

FIRST_DTSTART = "20200101T000000"
"""Where Prefect lets a rule begin that doesn't say: midnight of 1 January 2020 in the schedule's zone."""


def slug_of(schedule: Mapping[str, Any]) -> str:
    """The slug of a deployment's schedule; without one a name of its id, which an edit of it keeps."""
    return str(schedule.get("slug") or f"schedule-{str(schedule.get('id')).rpartition('-')[2]}")


def of_schedule(schedule: object, pointer: str, *, created: datetime | None = None) -> dict[str, Any]:
    """The mapping for `core.schedule.parse`, canonical, of what Prefect has as `schedule`.

    `created` is when the schedule was made there: an interval's series reaches back to it even where its
    anchor lies later. Raises `InvalidInput`.
    """
    if not isinstance(schedule, Mapping):
        raise _wrong(pointer, schedule, "a schedule has cron, interval or rrule")
    try:
        # Many have the same rule, and to read one costs more than all else of a listing.
        found = _of_text(canonical_json(schedule), created if "interval" in schedule else None)
    except InvalidInput as error:
        raise InvalidInput([problem.under(pointer) for problem in error.problems]) from error
    return dict(found)


@lru_cache(maxsize=10_000)
def _of_text(text: str, created: datetime | None) -> dict[str, Any]:
    schedule = json.loads(text)
    if schedule.get("cron") is not None:
        found = _cron(schedule, "")
    elif schedule.get("interval") is not None:
        found = _interval(schedule, "", created)
    elif schedule.get("rrule") is not None:
        found = _rrule(schedule, "")
    else:
        raise _wrong("", schedule, "a schedule has cron, interval or rrule")
    parse(found)
    return canonical(found)


def _wrong(pointer: str, got: object, rule: str, hint: str = "") -> InvalidInput:
    return InvalidInput(Problem(pointer, shown(got), rule, hint, code="schedule"))


def _timezone(schedule: Mapping[str, Any]) -> str:
    return schedule.get("timezone") or "UTC"


# --- cron: as croniter reads it -------------------------------------------------------------------------

_SECOND, _MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY = FIELDS
_RANGE = re.compile(r"([^-]+)-([^-/]+)(?:/(\d+))?")
_LAST_OF = re.compile(r"[lL]([0-7])")
_RANDOM = re.compile(r"[rR](\(|/|$)")


def _cron(schedule: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    text, where = schedule["cron"], f"{pointer}/cron"
    day_or = schedule.get("day_or", True) is not False
    if not isinstance(text, str):
        raise _wrong(where, text, "a cron expression is text")
    return {
        "cron": cron_of(text, day_or=day_or, pointer=where),
        "timezone": _timezone(schedule),
        "day_or": day_or,
    }


def cron_of(text: str, *, day_or: bool = True, pointer: str = "/cron") -> str:
    """An expression that means to us what `text` means to croniter. Raises `InvalidInput`.

    croniter has seconds in the sixth field and a year in the seventh; a range that goes down wraps around;
    one from a value to itself is the whole field. Of the two day fields either matches, even where one begins
    with a star and a step, or names every value; the latter is not restricted if the other has a star in it.
    Beside the nth weekday of a month the day of month is not read.
    """
    parts = text.split()
    if text.strip().startswith("@"):
        return text.strip()
    if len(parts) not in (5, 6, 7):
        raise _wrong(pointer, text, f"a cron expression of Prefect has 5 to 7 fields, not {len(parts)}")
    if len(parts) == 7 and parts[6] != "*":
        rule = "a year as the seventh field has no word here"
        raise _wrong(pointer, text, rule, "a schedule for that year alone, or none")
    seconds = parts[5] if len(parts) > 5 else None
    kinds = (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)
    fields = [_field(kind, part, pointer) for kind, part in zip(kinds, parts, strict=False)]
    if day_or:
        day, weekday = parts[2], parts[4]
        if "#" in weekday:
            fields[2] = day = "*"
        if fields[2] == "*" and day not in ("*", "?") and "*" not in weekday and "?" not in weekday:
            fields[2] = f"{_DAY.low}-{_DAY.high}"
        if fields[4] == "*" and weekday not in ("*", "?") and "*" not in day and "?" not in day:
            fields[4] = f"{_WEEKDAY.low}-{_WEEKDAY.high}"
        if fields[2] != "*" and fields[4] != "*":
            fields[2], fields[4] = _restricted(_DAY, fields[2]), _restricted(_WEEKDAY, fields[4])
    if seconds is not None:
        fields.insert(0, _field(_SECOND, seconds, pointer))
    return " ".join(fields)


def _field(kind: Kind, text: str, pointer: str) -> str:
    """A field in our words: as it is where it means the same, else its values written out."""
    if text in ("*", "?"):
        return "*"
    if _RANDOM.match(text):
        # Prefect takes it, and draws anew in every pass of its scheduler.
        raise _wrong(pointer, text, "a random field names other times at every look", f"H{text[1:]}")
    if text[:1] in "hH":
        return text
    values: set[int] = set()
    words: list[str] = []
    for item in text.split(","):
        last_of = _LAST_OF.fullmatch(item) if kind is _WEEKDAY else None
        if last_of is not None:
            words.append(f"{last_of[1]}L")
        elif "#" in item or (kind is _DAY and item in "lL"):
            words.append(item)
        else:
            values |= _values(kind, item, pointer)
    every = {*range(kind.low, kind.high + 1)}
    if values == every:
        return "*"
    if not words and _reads(kind, text) == values:
        return text
    return ",".join([*map(str, sorted(values)), *words])


def _values(kind: Kind, item: str, pointer: str) -> set[int]:
    """What an item without forms names, as croniter expands it."""
    body, slash, step_text = item.partition("/")
    if body == "*":
        body = f"{kind.low}-{kind.high}"
    elif slash and "-" not in body:
        body = f"{body}-{kind.high}"
    step = int(step_text) if step_text.isdecimal() and step_text.isascii() else 0 if slash else 1
    if step < 1:
        raise _wrong(pointer, item, f"the step of {kind.name} is a whole number from 1")
    span = _RANGE.fullmatch(body)
    if span is None:
        return {_value(kind, body, pointer)}
    low, high = _value(kind, span[1], pointer), _value(kind, span[2], pointer)
    if low == high:
        return {*range(kind.low, kind.high + 1, step)}
    if low < high:
        return {*range(low, high + 1, step)}
    first = [*range(low, kind.high + 1, step)]
    # The count goes on from the last value before the turn, as far as croniter keeps it.
    left = kind.high - first[-1]
    size = kind.high - kind.low + 1
    skip = step - left if first[-1] - kind.low + step > size and left < step else 0
    return {*first, *range(kind.low + skip, high + 1, step)}


def _value(kind: Kind, text: str, pointer: str) -> int:
    found = int(text) if text.isascii() and text.isdecimal() else kind.names.get(text.lower(), -1)
    if kind is _WEEKDAY and found == 7:
        return 0
    if kind in (_DAY, _MONTH) and found == 0:
        return 1
    if not kind.low <= found <= kind.high:
        raise _wrong(pointer, text, kind.rule)
    return found


def _reads(kind: Kind, text: str) -> set[int] | None:
    try:
        field: Field = read_field(kind, text, "")
    except Exception:  # whatever is wrong with it, it doesn't mean the same
        return None
    return None if field.forms else {value for value in range(64) if field.mask >> value & 1}


def _restricted(kind: Kind, text: str) -> str:
    """`text` without a star at its beginning, which would mean to us that the field is not restricted."""
    return f"{kind.low}-{kind.high}{text[1:]}" if text.startswith("*") else text


# --- intervals ------------------------------------------------------------------------------------------

_MONTHS = re.compile(r"P(?:(\d+)Y)?(?:(\d+)M)?")
_ISO = re.compile(
    r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?"
)


def _interval(schedule: Mapping[str, Any], pointer: str, created: datetime | None) -> dict[str, Any]:
    """Whole days in a zone are calendar days there, anything else is elapsed time."""
    raw, where = schedule["interval"], f"{pointer}/interval"
    name = _timezone(schedule)
    anchor = _anchor(schedule.get("anchor_date"), f"{pointer}/anchor_date")
    reach = anchor if created is None else min(anchor, int(created.timestamp()))
    months = _months(raw)
    if months is not None:
        zone = load_zone(name, f"{pointer}/timezone")
        local, first = from_seconds(zone.to_local(anchor)), from_seconds(zone.to_local(reach))
        # A month before the one that is reached back to, or the anchor's own, and always in its rhythm.
        later = 0 if reach == anchor else (local.year - first.year) * 12 + local.month - first.month + 1
        month = local.year * 12 + local.month - 1 - -(-later // months) * months
        return {
            "every": {"months": months, "on_day": local.day, "at": f"{local:%H:%M:%S}"},
            "start": f"{month // 12:04}-{month % 12 + 1:02}-01",
            "timezone": name,
        }
    seconds = _seconds(raw, where)
    if seconds % DAY or name == "UTC":
        back = -(-max(0, anchor - reach) // seconds)
        start = rfc3339(from_seconds(anchor - back * seconds))
        return {"every": format_duration(timedelta(seconds=seconds)), "start": start}
    days = seconds // DAY
    local_seconds = load_zone(name, f"{pointer}/timezone").to_local(anchor)
    day, second = divmod(local_seconds, DAY)
    back = -(-max(0, anchor - reach) // seconds)
    year, month, of_month = ymd(day - back * days)
    at = f"{second // 3_600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return {
        "every": {"days": days, "at": at},
        "start": f"{year:04}-{month:02}-{of_month:02}",
        "timezone": name,
    }


def _anchor(value: object, pointer: str) -> int:
    """Whole seconds: the part of a second that Prefect's `now` leaves in an anchor falls away."""
    if value is None:
        return 0
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        raise _wrong(pointer, value, "an anchor_date is a time", "2026-01-01T00:00:00Z") from None
    return to_seconds((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).replace(microsecond=0))


def _months(raw: object) -> int | None:
    """Months of a calendar interval; a Prefect on Python 3.13 has them."""
    found = _MONTHS.fullmatch(raw) if isinstance(raw, str) else None
    months = int(found[1] or 0) * 12 + int(found[2] or 0) if found is not None else 0
    return months or None


def _seconds(raw: object, pointer: str) -> int:
    seconds: float | None = None
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        seconds = float(raw)
    elif isinstance(raw, str) and (found := _ISO.fullmatch(raw)) is not None and raw not in ("P", "PT"):
        units = (7 * DAY, DAY, 3_600, 60, 1)
        seconds = sum(float(part or 0) * unit for part, unit in zip(found.groups(), units, strict=True))
    if seconds is None or not seconds.is_integer() or not 1 <= seconds < 2**40:
        raise _wrong(pointer, raw, "an interval is whole seconds, at least one", "60")
    return int(seconds)


# --- recurrence rules: as dateutil reads them -----------------------------------------------------------

_STAMP_Z = re.compile(r"(\d{8}T\d{6})Z", re.IGNORECASE)
_DATE = re.compile(r"(\d{8})(?!T)", re.IGNORECASE)


def _rrule(schedule: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """Prefect relabels every time of a rule with the schedule's zone, whatever zone the rule itself names.

    An UNTIL in UTC beside a DTSTART without a zone, which Prefect accepts and then can't evaluate, is the
    instant that it says (RFC 5545).
    """
    text, where = schedule["rrule"], f"{pointer}/rrule"
    if not isinstance(text, str):
        raise _wrong(where, text, "an rrule is text")
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    if len(lines) == 1:
        lines = lines[0].split()  # dateutil takes spaces for line breaks
    starts = [line for line in lines if line.upper().startswith("DTSTART")]
    zoned = any(line.upper().endswith("Z") or "TZID=" in line.upper() for line in starts)
    kept = [] if starts else [f"DTSTART:{FIRST_DTSTART}"]
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            name, value = "RRULE", line
        bare = name.partition(";")[0].upper()
        if bare in ("DTSTART", "RDATE", "EXDATE"):
            value = _STAMP_Z.sub(r"\1", value)
            if bare == "DTSTART":
                value = _DATE.sub(r"\1T000000", value)
        elif bare in ("RRULE", "EXRULE") and zoned:
            value = _STAMP_Z.sub(r"\1", value)
        kept.append(f"{bare}:{value}")
    return {"rrule": "\n".join(kept), "timezone": _timezone(schedule)}
