"""Cron fields in plain English.

Written from the sets that decide, not from the text that was typed, so that what it says is what runs:
`H` shows the value that was drawn, `0-59/15` and `*/15` read the same.
"""

from __future__ import annotations

from collections.abc import Callable

from horarium.core.civil import MONTH_NAMES, WEEKDAY_NAMES
from horarium.core.cron import CronFields, DayForm, FormKind

_FEW = 6  # times of day that are listed one by one
_ALL_60 = (1 << 60) - 1
_ALL_HOURS = (1 << 24) - 1
_ALL_DAYS = (1 << 32) - 2
_ALL_MONTHS = (1 << 13) - 2
_ALL_WEEKDAYS = (1 << 7) - 1


def describe_fields(fields: CronFields) -> str:
    """One line, such as `at 09:00, Monday to Friday`."""
    times = _times(fields)
    dates = _dates(fields)
    if fields.months != _ALL_MONTHS:
        months = _listed(fields.months, lambda n: MONTH_NAMES[n - 1])
        dates = f"{dates} in {months}" if dates else f"every day in {months}"
    if not dates:
        return f"{times} every day" if times.startswith("at ") and "hour" not in times else times
    return f"{times}, {dates}"


def _times(fields: CronFields) -> str:
    seconds, minutes, hours = _of(fields.seconds), _of(fields.minutes), _of(fields.hours)
    if len(seconds) * len(minutes) * len(hours) <= _FEW:
        tail = [""] if seconds == [0] else [f":{second:02}" for second in seconds]
        return "at " + _and([f"{h:02}:{m:02}{s}" for h in hours for m in minutes for s in tail])
    inside = _each(fields.minutes, "minute")
    if seconds != [0]:
        second = _each(fields.seconds, "second")
        inside = second if fields.minutes == _ALL_60 else f"{second} of {_bare(inside)}"
    if fields.hours == _ALL_HOURS:
        return inside if inside.startswith("every") else f"{inside} of every hour"
    if _is_run(hours) and inside.startswith("every"):
        return f"{inside} from {hours[0]:02}:00 to {hours[-1]:02}:59"
    step = _step_of(fields.hours, 24)
    if step:
        return f"{inside} of every {_ordinal(step)} hour from 00"
    return f"{inside} of the hours " + _listed(fields.hours, lambda hour: f"{hour:02}")


def _each(mask: int, unit: str) -> str:
    if mask == _ALL_60:
        return f"every {unit}"
    step = _step_of(mask, 60)
    if step and 60 % step == 0:
        return f"every {step} {unit}s"
    values = _of(mask)
    return f"at {unit} {values[0]}" if len(values) == 1 else f"at {unit}s {_listed(mask, str)}"


def _bare(text: str) -> str:
    return text.removeprefix("at ")


def _dates(fields: CronFields) -> str:
    days = _day_words(fields)
    weekdays = _weekday_words(fields)
    if days and weekdays:
        return f"on {days} or on {weekdays}" if fields.either else f"on {days} if it is {_article(weekdays)}"
    if days:
        return f"on {days}"
    if not weekdays:
        return ""
    return weekdays if " to " in weekdays and not fields.weekday_forms else f"on {weekdays}"


def _day_words(fields: CronFields) -> str:
    if fields.days == _ALL_DAYS:
        return ""
    parts = []
    values = _of(fields.days)
    if values:
        word = "day" if len(values) == 1 else "days"
        parts.append(f"{word} {_listed(fields.days, str)} of the month")
    parts += [_form(form) for form in fields.day_forms]
    return " and ".join(parts)


def _weekday_words(fields: CronFields) -> str:
    if fields.weekdays == _ALL_WEEKDAYS:
        return ""
    # Monday first, as people list a week: Sunday goes to the end.
    mask = fields.weekdays & ~1 | (fields.weekdays & 1) << 7
    parts = [_listed(mask, _weekday)] if mask else []
    parts += [_form(form) for form in fields.weekday_forms]
    return " and ".join(parts)


def _form(form: DayForm) -> str:
    match form.kind:
        case FormKind.FROM_LAST:
            if form.a == 0:
                return "the last day of the month"
            return f"{form.a} day{'s' if form.a > 1 else ''} before the last day of the month"
        case FormKind.NEAREST_WEEKDAY:
            return f"the Monday to Friday nearest to day {form.a} of the month"
        case FormKind.LAST_WEEKDAY:
            return "the last Monday to Friday of the month"
        case FormKind.NTH:
            return f"the {_ordinal(form.b)} {_weekday(form.a)} of the month"
        case FormKind.LAST_OF:
            return f"the last {_weekday(form.a)} of the month"


def _of(mask: int) -> list[int]:
    return [n for n in range(mask.bit_length()) if mask >> n & 1]


def _is_run(values: list[int]) -> bool:
    return values[-1] - values[0] == len(values) - 1


def _step_of(mask: int, size: int) -> int:
    """n if the mask is what `*/n` means in a field of `size` values from 0, n above 1; else 0."""
    values = _of(mask)
    if len(values) < 2 or values[0] != 0:
        return 0
    step = values[1]
    return step if step > 1 and values == list(range(0, size, step)) else 0


def _listed(mask: int, word: Callable[[int], str]) -> str:
    """Values in words, runs of three or more as `a to b`."""
    parts: list[str] = []
    values = _of(mask)
    while values:
        run = 1
        while run < len(values) and values[run] == values[0] + run:
            run += 1
        if run >= 3:
            parts.append(f"{word(values[0])} to {word(values[run - 1])}")
        else:
            parts += [word(value) for value in values[:run]]
        values = values[run:]
    return _and(parts)


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _article(words: str) -> str:
    return words if words.startswith("the ") else f"a {words}"


def _weekday(number: int) -> str:
    return WEEKDAY_NAMES[(number - 1) % 7]  # cron counts from Sunday, and has it twice


def _ordinal(n: int) -> str:
    ending = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
