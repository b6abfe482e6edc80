"""Lengths of time as people write them, and back.

One grammar for every duration of the triggers file, the settings and the CLI: `20s`, `1h30m`, `2d`, `1w`,
`1.5h`, `500ms`, a bare number of seconds (`90`, `0.5`), or an ISO 8601 duration (`PT5M`, `P1DT12H`).
Only lengths that are the same everywhere: a day is 24 hours, and months and years, which have no one
length, are refused. Exact: no float takes part in reading text.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from fractions import Fraction

from horarium.errors import InvalidInput, Problem, shown

LONGEST = timedelta(days=3_652_058, seconds=86_399)
"""The whole range of instants, 0001-01-01 to 9999-12-31: nothing that is planned can be longer."""

_UNIT_MICROS = {
    "us": 1,
    "µs": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_WORDS = {
    "micros": "us",
    "microsecond": "us",
    "millis": "ms",
    "millisecond": "ms",
    "sec": "s",
    "second": "s",
    "min": "m",
    "minute": "m",
    "hr": "h",
    "hour": "h",
    "day": "d",
    "week": "w",
}
_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?|\.[0-9]{1,18}")
_PART = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?|\.[0-9]{1,18})\s*([A-Za-zµ]+)")
_ISO = re.compile(
    r"P(?:(?P<w>{n})W)?(?:(?P<d>{n})D)?(?:T(?:(?P<h>{n})H)?(?:(?P<m>{n})M)?(?:(?P<s>{n})S)?)?".format(
        n=r"[0-9]{1,18}(?:[.,][0-9]{1,18})?"
    )
)
_FORMS = "write 20s, 5m, 1h30m, 2d, a number of seconds, or an ISO 8601 duration such as PT5M"
_MAX_TEXT = 100


def parse_duration(value: object, pointer: str = "", *, positive: bool = False) -> timedelta:
    """The length that `value` means; never negative, and above zero where `positive`.

    `value` is text, a number of seconds, or a `timedelta`. `pointer` is the JSON pointer that a message
    names. Raises `InvalidInput`.
    """
    micros = _micros(value, pointer)
    if micros.denominator != 1:
        raise _wrong(value, pointer, "a duration is a whole number of microseconds", "fewer decimals")
    if micros < 0:
        raise _wrong(value, pointer, "a duration is not negative", "leave the sign out")
    if positive and micros == 0:
        raise _wrong(value, pointer, "this duration is longer than zero", "1s")
    if micros > LONGEST // timedelta(microseconds=1):
        raise _wrong(value, pointer, "a duration is at most 9,998 years long", "a shorter one")
    return timedelta(microseconds=int(micros))


def format_duration(duration: timedelta) -> str:
    """The canonical text of a duration: `1h30m`, `2d`, `500ms`, `0s`. `parse_duration` reads it back."""
    micros = duration // timedelta(microseconds=1)
    if micros == 0:
        return "0s"
    text = "-" if micros < 0 else ""
    rest = abs(micros)
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, rest = divmod(rest, _UNIT_MICROS[unit])
        if count:
            text += f"{count}{unit}"
    return text


def in_words(seconds: int) -> str:
    """A length in English: `20 seconds`, `1 hour 30 minutes`, `2 days`."""
    parts: list[str] = []
    rest = seconds
    for name, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {name}" if count == 1 else f"{count:,} {name}s")
    return " ".join(parts) or "0 seconds"


def _micros(value: object, pointer: str) -> Fraction:
    match value:
        case bool():
            raise _wrong(value, pointer, "a duration is text or a number of seconds", _FORMS)
        case timedelta():
            return Fraction(value // timedelta(microseconds=1))
        case int():
            return Fraction(value) * 1_000_000
        case float() if math.isfinite(value):
            # What was typed, not its nearest binary fraction: 0.1 is a tenth of a second.
            return Fraction(repr(value)) * 1_000_000
        case str():
            return _micros_of_text(value, pointer)
        case _:
            raise _wrong(value, pointer, "a duration is text or a number of seconds", _FORMS)


def _micros_of_text(text: str, pointer: str) -> Fraction:
    trimmed = text.strip()
    if len(trimmed) > _MAX_TEXT:
        raise _wrong(text, pointer, f"a duration has at most {_MAX_TEXT} characters", _FORMS)
    if trimmed.startswith("-"):
        raise _wrong(text, pointer, "a duration is not negative", "leave the sign out")
    trimmed = trimmed.removeprefix("+")
    if _NUMBER.fullmatch(trimmed):
        return Fraction(trimmed) * 1_000_000
    if trimmed[:1] in ("P", "p"):
        return _micros_of_iso(trimmed.upper(), text, pointer)
    return _micros_of_parts(trimmed, text, pointer)


def _micros_of_iso(iso: str, text: str, pointer: str) -> Fraction:
    found = _ISO.fullmatch(iso)
    if found is None or iso.endswith("T") or not any(found.groups()):
        if re.search(r"[0-9]Y|^P[^T]*[0-9]M", iso):
            raise _wrong(
                text,
                pointer,
                "months and years have no one length, so they are not a duration",
                "days (P30D); a schedule takes calendar steps: every: {months: 1}",
            )
        raise _wrong(text, pointer, "an ISO 8601 duration looks like PT5M or P1DT12H", _FORMS)
    given = [(unit, raw) for unit, raw in found.groupdict().items() if raw is not None]
    if any(("." in raw or "," in raw) for _, raw in given[:-1]):
        raise _wrong(text, pointer, "only the last part of an ISO 8601 duration has decimals", "PT1H30M")
    total = Fraction(0)
    for unit, raw in given:
        total += Fraction(raw.replace(",", ".")) * _UNIT_MICROS[unit]
    return total


def _micros_of_parts(trimmed: str, text: str, pointer: str) -> Fraction:
    total, at, smallest = Fraction(0), 0, 10**18
    while at < len(trimmed):
        part = _PART.match(trimmed, at)
        if part is None:
            hint = "1m30s or 1h30m instead of a colon" if ":" in trimmed else _FORMS
            raise _wrong(text, pointer, "a duration is numbers with units (us ms s m h d w)", hint, at)
        unit = _unit(part[2])
        if unit is None:
            raise _wrong(text, pointer, f"{part[2]!r} is no unit of time", _unit_hint(part[2]), part.start(2))
        if _UNIT_MICROS[unit] >= smallest:
            raise _wrong(
                text, pointer, "units go from large to small, each once", "1h30m, not 30m1h", part.start(2)
            )
        smallest = _UNIT_MICROS[unit]
        total += Fraction(part[1]) * smallest
        at = part.end()
    if at == 0:
        raise _wrong(text, pointer, "a duration is not empty", _FORMS)
    return total


def _unit(word: str) -> str | None:
    if word in _UNIT_MICROS:
        return word
    lower = word.lower()
    # A capital M alone is refused: it means months to some and minutes to others.
    if lower in _UNIT_MICROS and word != "M":
        return lower
    return _WORDS.get(lower) or _WORDS.get(lower.removesuffix("s"))


def _unit_hint(word: str) -> str:
    lower = word.lower()
    if word == "M" or lower.startswith(("mo", "y")):
        return "m for minutes; months and years have no one length, so say days, or every: {months: 1}"
    if lower.startswith("n"):
        return "us; the finest unit is the microsecond"
    return "us, ms, s, m, h, d or w"


def _wrong(value: object, pointer: str, rule: str, hint: str, position: int | None = None) -> InvalidInput:
    return InvalidInput(Problem(pointer, shown(value), rule, hint, code="duration", position=position))
