"""Random cron expressions, together with what they mean: written without a look at the evaluator.

An expression is made from sets, so its meaning does not come from the parser. Days of the month and of
the week are predicates on (day, length of the month, weekday of the 1st), with Sunday as 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from horarium.core.cron import Cron
from horarium.core.schedule import parse
from horarium.errors import InvalidInput

DayTest = Callable[[int, int, int], bool]

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # moves by half an hour
    "Africa/Cairo",  # skips midnight
    "America/Havana",  # skips and repeats midnight
    "Pacific/Apia",  # has no 30 December 2011
    "Europe/Dublin",  # "daylight saving" is negative, in winter
    "Africa/Casablanca",  # goes back for Ramadan
    "Asia/Tehran",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "America/St_Johns",  # moved a minute after midnight
    "America/Sao_Paulo",
    "America/Santiago",
    "Pacific/Chatham",  # 12:45 ahead
    "Antarctica/Troll",  # moves by two hours
    "Europe/London",
    "Etc/GMT+5",
    "UTC",
)


@dataclass(frozen=True)
class Expression:
    """An expression and its meaning."""

    text: str
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    months: frozenset[int]
    day: DayTest
    weekday: DayTest
    either: bool
    fixed_time: bool


def expression(rng: Random, *, forms: bool, seconds: bool = False) -> Expression:
    """One more. `forms` adds what only some libraries know: `L-n`, `nW`, `?`, names."""
    second = _field(rng, 0, 59, stars=0.2) if seconds else ("", frozenset({0}))
    minute = _field(rng, 0, 59, stars=0.15)
    hour = _field(rng, 0, 23, stars=0.3)
    month = _field(rng, 1, 12, stars=0.75)
    day_text, day = _day(rng, forms)
    weekday_text, weekday = _weekday(rng, forms)
    fields = [second[0], minute[0], hour[0], day_text, month[0], weekday_text]
    open_fields = [text.startswith(("*", "?")) for text in (day_text, weekday_text)]
    return Expression(
        text=" ".join(fields).strip(),
        seconds=second[1],
        minutes=minute[1],
        hours=hour[1],
        months=month[1],
        day=day,
        weekday=weekday,
        either=not any(open_fields),
        fixed_time=not minute[0].startswith("*") and not hour[0].startswith("*"),
    )


def parsed(text: str, zone: str, dst: str = "vixie") -> Cron | None:
    """The schedule of an expression, None if it is refused because it has no date; else raises."""
    try:
        found = parse({"cron": text, "timezone": zone, "dst": dst})
    except InvalidInput as refused:
        if [problem.code for problem in refused.problems] != ["never"]:
            raise
        return None
    assert isinstance(found, Cron)
    return found


def _field(rng: Random, low: int, high: int, stars: float) -> tuple[str, frozenset[int]]:
    every = frozenset(range(low, high + 1))
    draw = rng.random()
    if draw < stars:
        return "*", every
    if draw < stars + 0.15:
        step = rng.randint(1, high)
        return f"*/{step}", frozenset(range(low, high + 1, step))
    texts, values = [], set()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        first = rng.randint(low, high)
        last = rng.randint(first, high)
        step = rng.randint(1, 9)
        match rng.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                texts.append(f"{first}")
                values.add(first)
            case 5 | 6 | 7:
                texts.append(f"{first}-{last}")
                values |= set(range(first, last + 1))
            case 8:
                texts.append(f"{first}-{last}/{step}")
                values |= set(range(first, last + 1, step))
            case _:
                texts.append(f"{first}/{step}")
                values |= set(range(first, high + 1, step))
    return ",".join(texts), frozenset(values)


def _day(rng: Random, forms: bool) -> tuple[str, DayTest]:
    draw = rng.randrange(12)
    if draw == 0:
        return "L", lambda day, length, first: day == length
    if draw == 1:
        return "LW", lambda day, length, first: day == _near(length, length, first)
    if forms and draw == 2:
        back = rng.randint(1, 30)
        return f"L-{back}", lambda day, length, first: day == length - back
    if forms and draw == 3:
        near = rng.randint(1, 31)
        return f"{near}W", lambda day, length, first: near <= length and day == _near(near, length, first)
    if forms and draw == 4:
        return "?", lambda day, length, first: True
    text, values = _field(rng, 1, 31, stars=0.55)
    return text, lambda day, length, first: day in values


def _near(day: int, length: int, first: int) -> int:
    """The Monday to Friday nearest to `day` in its month: the one before a Saturday, after a Sunday."""
    inside = [other for other in range(1, length + 1) if (first + other - 1) % 7 in (1, 2, 3, 4, 5)]
    return min(inside, key=lambda other: (abs(other - day), other))


def _weekday(rng: Random, forms: bool) -> tuple[str, DayTest]:
    draw = rng.randrange(12)
    named = rng.randint(0, 7)
    if draw == 0:
        nth = rng.randint(1, 5)
        return (
            f"{named}#{nth}",
            lambda day, length, first: (first + day - 1) % 7 == named % 7 and (day - 1) // 7 + 1 == nth,
        )
    if draw == 1:
        return f"{named}L", lambda day, length, first: (first + day - 1) % 7 == named % 7 and day + 7 > length
    if forms and draw == 2:
        a, b = sorted((rng.randint(0, 6), rng.randint(0, 6)))
        names = ("sun", "Mon", "TUE", "wed", "thu", "fri", "sat")
        return f"{names[a]}-{names[b]}", lambda day, length, first: a <= (first + day - 1) % 7 <= b
    text, values = _field(rng, 0, 6, stars=0.55)
    return text, lambda day, length, first: (first + day - 1) % 7 in values
