"""A schedule of one instant, and the instants that people write.

`parse_instant` reads RFC 3339 (`2026-12-26T06:00:00+01:00`), the same without an offset (local to the
trigger's zone), and plain dates. A local time that the zone's clock skips means the first instant after
the gap; one that it shows twice means the first pass. An offset that is written out says exactly which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING

from horarium.core.civil import DAY, day_of, first_pass
from horarium.core.instant import MAX_SECONDS, MIN_SECONDS, from_seconds, rfc3339
from horarium.core.schedule import Schedule
from horarium.errors import InvalidInput, Problem, shown

if TYPE_CHECKING:
    from horarium.core.zone import Zone

_RFC3339 = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
    r"(?:[Tt ](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?)?"
    r"\s?(?P<offset>[Zz]|[+-]\d\d:?\d\d)?)?",
    re.ASCII,
)
_FORMS = "2026-12-26T06:00:00+01:00, 2026-12-26T06:00 (in the trigger's timezone) or 2026-12-26"


@dataclass(frozen=True, slots=True)
class Once(Schedule):
    """One instant, `at` seconds since the epoch."""

    at: int

    @property
    def zone(self) -> Zone | None:
        return None

    def after(self, t: int) -> int | None:
        return self.at if self.at > t else None

    def before(self, t: int) -> int | None:
        return self.at if self.at <= t else None

    def describe(self) -> str:
        return f"once, at {rfc3339(from_seconds(self.at))}"


def parse_at(value: object, zone: Zone, pointer: str = "/at") -> Once:
    """The one-off schedule that `at: value` means in `zone`. Raises `InvalidInput`."""
    return Once(parse_instant(value, zone, pointer))


def parse_instant(value: object, zone: Zone, pointer: str = "", *, end_of_day: bool = False) -> int:
    """The instant that `value` means, whole seconds since the epoch.

    `value` is text or what YAML made of it (a `datetime` or `date`). A date is its midnight in `zone`, or
    the last second of that local day where `end_of_day`. Raises `InvalidInput`.
    """
    match value:
        case datetime():
            return _of_datetime(value, zone, pointer)
        case date():
            return _of_local(_local_seconds(value.year, value.month, value.day), zone, end_of_day)
        case str():
            return _of_text(value, zone, pointer, end_of_day)
        case _:
            raise _wrong(value, pointer, "a time is text in RFC 3339's form, or a date", _FORMS)


def _of_text(text: str, zone: Zone, pointer: str, end_of_day: bool) -> int:
    found = _RFC3339.fullmatch(text.strip())
    if found is None:
        raise _wrong(text, pointer, "a time has RFC 3339's form", _FORMS)
    part = found.groupdict()
    if part["second"] == "60":
        raise _wrong(
            text, pointer, "seconds are 00 to 59: schedules have no leap seconds", "the second before"
        )
    try:
        civil = datetime(
            int(part["year"]),
            int(part["month"]),
            int(part["day"]),
            int(part["hour"] or 0),
            int(part["minute"] or 0),
            int(part["second"] or 0),
        )
    except ValueError as error:
        raise _wrong(text, pointer, f"no such date or time: {error}", _FORMS) from error
    if int(part["fraction"] or 0):
        raise _wrong(text, pointer, "a time of a schedule is a whole second", "leave the fraction out")
    local = _local_seconds(
        civil.year, civil.month, civil.day, civil.hour * 3600 + civil.minute * 60 + civil.second
    )
    if part["hour"] is None:
        return _of_local(local, zone, end_of_day)
    if part["offset"] is None:
        return _of_local(local, zone, False)
    return _checked(local - _offset(part["offset"], text, pointer), text, pointer)


def _offset(raw: str, text: str, pointer: str) -> int:
    if raw in "Zz":
        return 0
    hours, minutes = int(raw[1:3]), int(raw[-2:])
    if hours > 23 or minutes > 59:
        raise _wrong(text, pointer, "an offset is at most 23:59", "+01:00")
    return (hours * 3600 + minutes * 60) * (-1 if raw[0] == "-" else 1)


def _of_datetime(value: datetime, zone: Zone, pointer: str) -> int:
    if value.microsecond:
        raise _wrong(str(value), pointer, "a time of a schedule is a whole second", "leave the fraction out")
    naive = value.replace(tzinfo=None)
    local = (naive - datetime(1970, 1, 1)).days * DAY + (naive - datetime(1970, 1, 1)).seconds
    offset = value.utcoffset()
    if offset is None:
        return _of_local(local, zone, False)
    return _checked(local - (offset.days * DAY + offset.seconds), str(value), pointer)


def _of_local(local: int, zone: Zone, end_of_day: bool) -> int:
    at = first_pass(zone, local + DAY) - 1 if end_of_day else first_pass(zone, local)
    # Midnight of the calendar's first and last days can lie outside it in UTC.
    return min(max(at, MIN_SECONDS), MAX_SECONDS)


def _checked(at: int, text: str, pointer: str) -> int:
    if MIN_SECONDS <= at <= MAX_SECONDS:
        return at
    raise _wrong(text, pointer, "a time lies in the years 1 to 9999, in UTC too", _FORMS)


def _local_seconds(year: int, month: int, day: int, second_of_day: int = 0) -> int:
    return day_of(year, month, day) * DAY + second_of_day


def _wrong(value: object, pointer: str, rule: str, hint: str) -> InvalidInput:
    return InvalidInput(Problem(pointer, shown(value), rule, hint, code="time"))
