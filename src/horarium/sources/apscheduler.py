"""Jobs of APScheduler 3 become a triggers file that calls the same functions at the same times.

`import_apscheduler` is pure: it takes jobs as `job_store.py` reads them from a store or an export, in which
their states are pickled. These are read by `pickles.py`, which runs nothing; the classes that are known here
are those of APScheduler's triggers, of `datetime` and of time zones, by their names alone.

All fields of a cron trigger must match, so `day_or` is false, and weekdays count from Monday. At a change of
the clock the nearest policy is `literal`: both passes of an overlap run; a time in a gap, which APScheduler
runs late, is skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from datetime import timezone as fixed_timezone
from typing import Any
from zoneinfo import ZoneInfo

from horarium.core.duration import format_duration
from horarium.core.instant import rfc3339
from horarium.core.spec import Json
from horarium.errors import InvalidInput
from horarium.sources.imported import (
    LARGEST,
    Drop,
    Entry,
    Imported,
    Report,
    brief,
    check_schedule,
    compact,
    name_of,
    plain,
    unique_names,
    written,
)
from horarium.sources.job_store import Job
from horarium.sources.pickles import Made, PickleRefused


def import_apscheduler(jobs: Sequence[Job], source: str, now: datetime) -> Imported:
    """The triggers file of `jobs`, which the report counts in this order. `source` names the store.

    A job whose one time is before `now` is left out.
    """
    report = Report()
    carried: list[tuple[str, int, dict[str, Json], list[dict[str, Json]]]] = []
    for line, job in enumerate(jobs, 1):
        about = Report()
        try:
            words, rules = _job(job, line, now, about)
            words = {key: plain(each) for key, each in words.items()}
            rules = [{key: plain(each) for key, each in rule.items()} for rule in rules]
        except (Drop, PickleRefused) as drop:
            report.drop(line, job.id, str(drop))
        else:
            carried.append((name_of(job.id, "job"), line, words, rules))
            report.add(about)
    names = unique_names((name, json.dumps([words, rules])) for name, _, words, rules in carried)
    entries = [
        Entry(name, line, {**words, **rules[0]})
        if len(rules) == 1
        else Entry(name, line, words, triggers=_triggers(rules))
        for name, (_, line, words, rules) in zip(names, carried, strict=True)
    ]
    return written(
        "Imported from APScheduler: each run calls the job's function, in a process of its own.",
        source,
        entries,
        report,
        unit="job",
    )


def _triggers(rules: list[dict[str, Json]]) -> list[Entry]:
    kinds = [next(kind for kind in ("cron", "every", "at") if kind in rule) for rule in rules]
    names = unique_names((kind, json.dumps(rule)) for kind, rule in zip(kinds, rules, strict=True))
    return [Entry(name, None, rule) for name, rule in zip(names, rules, strict=True)]


def _job(job: Job, line: int, now: datetime, report: Report) -> tuple[dict[str, Json], list[dict[str, Json]]]:
    """The words of the deployment, and those of its triggers."""
    state = _mapping(job.state(), "the job's state")
    words = _call(state)
    if state.get("coalesce"):
        words["catch_up"] = "latest"
    grace = state.get("misfire_grace_time")
    if isinstance(grace, int) and grace > 0:
        words["max_age"] = format_duration(timedelta(seconds=grace))
    instances = state.get("max_instances", 1)
    if instances == 1:
        words["overlap"] = "skip"
    else:
        reason = "runs of one trigger may overlap, in any number, or not at all"
        report.lose(line, f"max_instances {brief(instances)}", reason)
    if state.get("executor", "default") != "default":
        report.lose(line, f"executor {brief(state['executor'])}", "every run has a process of its own")
    following = state.get("next_run_time")
    rules = _rules(state.get("trigger"), None if following is None else _datetime(following))
    if len(rules) > 1:
        report.note(
            line,
            "an OrTrigger fires once where its triggers meet, and counts instances of all; here each of its "
            "triggers has runs of its own",
        )
    if following is None:
        report.note(line, "it is paused, so it is not active")
        rules = [{**rule, "active": False} for rule in rules]
    for rule in rules:
        check_schedule(rule)
        if "at" in rule and datetime.fromisoformat(str(rule["at"])) <= now:
            raise Drop(f"its time {rule['at']} has passed")
    return words, rules


# --- what it calls ------------------------------------------------------------------------------------

_REFERENCE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def _call(state: Mapping[str, Any]) -> dict[str, Json]:
    """`python` with parameters; by the interpreter where arguments are positional or no JSON."""
    function, args, kwargs = state.get("func"), state.get("args") or (), state.get("kwargs") or {}
    if not isinstance(function, str) or not _REFERENCE.fullmatch(function):
        raise Drop(f"{brief(function)} is no reference to a function")
    if function.startswith("__main__:"):
        raise Drop(f"its function {function} is in the script that was run: put it into a module")
    if not isinstance(args, list | tuple):
        raise Drop("its arguments are no list")
    kwargs = _mapping(kwargs, "its keyword arguments")
    if not args:
        try:
            parameters = plain(kwargs)
        except Drop:
            parameters = None  # an interpreter can write more than JSON can
        if parameters == kwargs and isinstance(parameters, dict):
            return {"python": function, **({"parameters": parameters} if parameters else {})}
    if not all(isinstance(key, str) and key.isidentifier() for key in kwargs):
        raise Drop("a keyword argument has no name of Python's")
    given = [*map(_literal, args), *(f"{key}={_literal(value)}" for key, value in kwargs.items())]
    module, _, name = function.partition(":")
    return {"run": ["python3", "-c", f"import {module}; {module}.{name}({', '.join(given)})"]}


def _literal(value: Any) -> str:
    """`value` as Python writes it. Raises `Drop` for what only running a pickle would make."""
    left = LARGEST

    def write(value: Any, depth: int) -> str:
        nonlocal left
        left -= 1
        if left < 0 or depth > 30:
            raise Drop(f"an argument is deeper than 30 levels or holds more than {LARGEST:,} others")
        match value:
            case None | bool() | int() | str() | bytes():
                return repr(value)
            case float() if value == value and abs(value) != float("inf"):
                return repr(value)
            case list():
                return "[" + ", ".join(write(item, depth + 1) for item in value) + "]"
            case tuple():
                return "(" + "".join(f"{write(item, depth + 1)}, " for item in value) + ")"
            case dict():
                items = (f"{write(key, depth + 1)}: {write(item, depth + 1)}" for key, item in value.items())
                return "{" + ", ".join(items) + "}"
        raise Drop(f"an argument is {brief(value)}, which a command line can't carry")

    return write(value, 0)


# --- when ---------------------------------------------------------------------------------------------

_TRIGGERS = "apscheduler.triggers."
_RECONSTRUCTORS = ("copyreg._reconstructor", "copy_reg._reconstructor")
"""How pickle's protocols 0 and 1 make an object: its class is the first argument."""


def _rules(trigger: Any, following: datetime | None, jitter: Any = None) -> list[dict[str, Json]]:
    """The schedules that together name what `trigger` does. `following` is the job's next run time."""
    kind, state = _trigger(trigger)
    delay = _delay(state.get("jitter") or jitter)
    match kind:
        case "cron.CronTrigger":
            return [{**_Cron.of(state).words(), **delay}]
        case "interval.IntervalTrigger":
            return [{**_interval(state, following), **delay}]
        case "date.DateTrigger":
            at = following or _datetime(state.get("run_date"))
            return [{"at": rfc3339(at.replace(microsecond=0)), **delay}]
        case "calendarinterval.CalendarIntervalTrigger":
            return [{**_calendar(state), **delay}]
        case "combining.OrTrigger":
            inner = _list(state.get("triggers"), "its triggers")
            if not inner:
                raise Drop("an OrTrigger without triggers")
            # The next run time is that of the earliest of them, and says nothing of the others.
            alone = following if len(inner) == 1 else None
            return [rule for each in inner for rule in _rules(each, alone, state.get("jitter"))]
        case "combining.AndTrigger":
            parts = [_trigger(each) for each in _list(state.get("triggers"), "its triggers")]
            if not parts or any(name != "cron.CronTrigger" for name, _ in parts):
                raise Drop("an AndTrigger can be carried over if all of its triggers are cron triggers")
            if any(part.get("jitter") for _, part in parts):
                raise Drop("an AndTrigger of triggers with jitter has no times of its own")
            both, *more = [_Cron.of(part) for _, part in parts]
            for other in more:
                both = both.meet(other)
            return [{**both.words(), **delay}]
    raise Drop(f"{kind} is no trigger that is known here")


def _trigger(trigger: Any) -> tuple[str, Mapping[str, Any]]:
    """A trigger's class below `apscheduler.triggers`, and its state."""
    if isinstance(trigger, Made):
        what = trigger.args[0] if trigger.name in _RECONSTRUCTORS and trigger.args else trigger.what
        name, state = str(what), trigger.state
    elif isinstance(trigger, list | tuple) and len(trigger) == 2 and isinstance(trigger[0], str):
        name, state = trigger[0].replace(":", "."), trigger[1]
    else:
        raise Drop("it has no trigger")
    name = name.removeprefix(_TRIGGERS)
    return name, _mapping(state, "the trigger's state")


def _delay(jitter: Any) -> dict[str, Json]:
    if isinstance(jitter, int | float) and not isinstance(jitter, bool) and jitter > 0:
        return {"jitter": f"{jitter:g}s"}
    return {}


def _interval(state: Mapping[str, Any], following: datetime | None) -> dict[str, Json]:
    seconds = _timedelta(state.get("interval")).total_seconds()
    if not seconds.is_integer() or seconds < 1:
        raise Drop(f"every {seconds:g} s: an interval is whole seconds, at least one")
    # Each run time counts from the one before it, so the next is where the series goes on.
    goes_on = following is not None and not state.get("jitter")
    start = following if goes_on and following is not None else _datetime(state.get("start_date"))
    words: dict[str, Json] = {
        "every": format_duration(timedelta(seconds=seconds)),
        "start": rfc3339(start.replace(microsecond=0)),
    }
    if state.get("end_date") is not None:
        words["end"] = rfc3339(_datetime(state["end_date"]).replace(microsecond=0))
    return words


def _calendar(state: Mapping[str, Any]) -> dict[str, Json]:
    years, months, weeks, days = _numbers(state.get("interval"), 4)
    hour, minute, second = _numbers(state.get("time"), 3)
    start = _date(state.get("start_date"))
    every: dict[str, Json] = {"at": f"{hour:02}:{minute:02}:{second:02}"}
    if years or months:
        if weeks or days:
            raise Drop("months beside days: a calendar interval has one unit")
        if start.day > 28:
            raise Drop("the 29th to 31st: APScheduler leaves out months without that day")
        every |= {"months": 12 * years + months, "on_day": start.day}
    else:
        every["days"] = 7 * weeks + days
    words: dict[str, Json] = {
        "every": every,
        "start": start.isoformat(),
        "timezone": _zone_name(_zone(state.get("timezone"))),
    }
    if state.get("end_date") is not None:
        words["end"] = _date(state["end_date"]).isoformat()
    return words


@dataclass(frozen=True)
class _Cron:
    """A cron trigger as sets of numbers; `weekdays` count from Sunday, `forms` are `mon#1`, `5L` and `L`."""

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    years: frozenset[int]
    weeks: frozenset[int]
    forms: frozenset[str]
    zone: str
    start: datetime | None
    end: datetime | None

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> _Cron:
        fields = {}
        for made in _list(state.get("fields"), "the trigger's fields"):
            inner = _mapping(made.state if isinstance(made, Made) else None, "a field")
            fields[inner.get("name")] = _list(inner.get("expressions"), "a field's expressions")
        if set(fields) != set(_BOUNDS):
            raise Drop("a cron trigger has eight fields")
        zone = _zone(state.get("timezone"))
        start, end = (
            None if state.get(key) is None else _datetime(state[key]) for key in ("start_date", "end_date")
        )
        sets = {name: _values(name, expressions) for name, expressions in fields.items()}
        numbers = {
            name: frozenset(one for one in found if isinstance(one, int)) for name, found in sets.items()
        }
        return cls(
            numbers["second"],
            numbers["minute"],
            numbers["hour"],
            numbers["day"],
            numbers["month"],
            frozenset((day + 1) % 7 for day in numbers["day_of_week"]),
            numbers["year"],
            numbers["week"],
            frozenset(str(form) for form in sets["day"] if isinstance(form, str)),
            _zone_name(zone),
            None if start is None else (start + timedelta(microseconds=999_999)).replace(microsecond=0),
            None if end is None else end.replace(microsecond=0),
        )

    def meet(self, other: _Cron) -> _Cron:
        """What both name."""
        if self.zone != other.zone:
            raise Drop("an AndTrigger of two time zones")
        every_day = frozenset(range(1, 32))
        if (self.forms and other.days != every_day) or (other.forms and self.days != every_day):
            raise Drop("an AndTrigger of days such as the last and days of the month")
        has_forms = self if self.forms else other
        return _Cron(
            self.seconds & other.seconds,
            self.minutes & other.minutes,
            self.hours & other.hours,
            has_forms.days if has_forms.forms else self.days & other.days,
            self.months & other.months,
            self.weekdays & other.weekdays,
            self.years & other.years,
            self.weeks & other.weeks,
            has_forms.forms,
            self.zone,
            max((at for at in (self.start, other.start) if at), default=None),
            min((at for at in (self.end, other.end) if at), default=None),
        )

    def words(self) -> dict[str, Json]:
        fields_of = (
            self.seconds,
            self.minutes,
            self.hours,
            self.months,
            self.weekdays,
            self.years,
            self.weeks,
        )
        if not all(fields_of) or not (self.days or self.forms):
            raise Drop("nothing matches all of its fields")
        if len(self.weeks) != 53:
            raise Drop("week: cron has no weeks of the year; an rrule with BYWEEKNO has")
        fields = [
            compact(self.minutes, 0, 59),
            compact(self.hours, 0, 23),
            *self._day_fields(compact(self.months, 1, 12)),
        ]
        if self.seconds != {0}:
            fields.insert(0, compact(self.seconds, 0, 59))
        words: dict[str, Json] = {
            "cron": " ".join(fields),
            "timezone": self.zone,
            "dst": "literal",
            **({} if self._either else {"day_or": False}),
        }
        start, end = self._bounds()
        if start is not None:
            words["start"] = rfc3339(start)
        if end is not None:
            words["end"] = rfc3339(end)
        return words

    @property
    def _every_day(self) -> bool:
        return len(self.days) == 31

    @property
    def _either(self) -> bool:
        """Whether days of the month and forms of weekdays stand in both day fields, and either is enough."""
        return bool(self.forms - {"L"}) and bool(self.days or "L" in self.forms) and not self._every_day

    def _day_fields(self, months: str) -> list[str]:
        of_weekdays = sorted(self.forms - {"L"})
        days = "" if not self.days else compact(self.days, 1, 31)
        if self._every_day or not self.forms:
            return [days, months, compact(self.weekdays, 0, 6)]
        if "L" in self.forms:
            days = f"{days},L" if days else "L"
        if not of_weekdays:
            return [days, months, compact(self.weekdays, 0, 6)]
        if len(self.weekdays) != 7:
            raise Drop("day names weekdays of the month, and day_of_week restricts them")
        if days.startswith("*"):
            days = f"1-31{days[1:]}"  # what begins with a star is not restricted, and so not one of two
        return [days or "*", months, ",".join(of_weekdays)]

    def _bounds(self) -> tuple[datetime | None, datetime | None]:
        """The bounds, and those of a span of years."""
        start, end = self.start, self.end
        years = sorted(self.years)
        if years[-1] - years[0] + 1 != len(years):
            raise Drop("year: cron has no years, and these are not one after the other")
        place = ZoneInfo(self.zone)
        if years[0] > 1970:
            first = datetime(years[0], 1, 1, tzinfo=place).astimezone(UTC)
            start = first if start is None else max(start, first)
        if years[-1] < 9999:
            last = datetime(years[-1] + 1, 1, 1, tzinfo=place).astimezone(UTC) - timedelta(seconds=1)
            end = last if end is None else min(end, last)
        if start is not None and end is not None and start > end:
            raise Drop("it ends before it starts")
        return start, end


_BOUNDS = {
    "year": (1970, 9999),
    "month": (1, 12),
    "day": (1, 31),
    "week": (1, 53),
    "day_of_week": (0, 6),
    "hour": (0, 23),
    "minute": (0, 59),
    "second": (0, 59),
}


def _values(name: Any, expressions: list[Any]) -> set[int | str]:
    """The numbers, and the forms, that the expressions of a field stand for."""
    low, high = _BOUNDS[name]
    found: set[int | str] = set()
    for made in expressions:
        kind = made.name.rpartition(".")[2] if isinstance(made, Made) else ""
        if isinstance(made, Made) and made.name in _RECONSTRUCTORS and made.args:
            kind = str(made.args[0]).rpartition(".")[2]
        state = _mapping(made.state if isinstance(made, Made) else None, "an expression")
        match kind:
            case "AllExpression":
                found |= set(range(low, high + 1, _whole(state.get("step"), 1)))
            case "RangeExpression" | "MonthRangeExpression" | "WeekdayRangeExpression":
                first, last = _whole(state.get("first"), low), _whole(state.get("last"), high)
                found |= set(range(max(low, first), min(high, last) + 1, _whole(state.get("step"), 1)))
            case "WeekdayPositionExpression" if name == "day":
                weekday = (_whole(state.get("weekday"), 0) + 1) % 7
                position = _whole(state.get("option_num"), 0)
                found.add(f"{weekday}L" if position == 5 else f"{weekday}#{position + 1}")
            case "LastDayOfMonthExpression" if name == "day":
                found.add("L")
            case _:
                raise Drop(f"{kind or 'an expression'} in {name} is not known here")
    return found


# --- values that a pickle would make ------------------------------------------------------------------


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Drop(f"{what} is no mapping")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise Drop(f"{what} are no list")
    return list(value)


def _whole(value: Any, otherwise: int) -> int:
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10_000:
        raise Drop(f"{brief(value)} is no number of a field")
    return value or (otherwise if otherwise == 1 else 0)


def _numbers(value: Any, count: int) -> list[int]:
    found = _list(value, "an interval's parts")
    if len(found) != count or not all(type(each) is int and 0 <= each < 100_000 for each in found):
        raise Drop("an interval's parts are no numbers")
    return found


def _bytes(value: Any, size: int) -> bytes:
    if isinstance(value, Made) and value.name == "_codecs.encode" and len(value.args) == 2:
        text, codec = value.args  # as protocols below 3 write bytes
        if isinstance(text, str) and codec == "latin1":
            value = text.encode("latin1")
    if isinstance(value, str):
        value = value.encode("latin1", "replace")
    if not isinstance(value, bytes) or len(value) != size:
        raise Drop("a date in it is broken")
    return value


def _datetime(value: Any) -> datetime:
    """An aware time, in UTC."""
    if not isinstance(value, Made) or value.name != "datetime.datetime" or not value.args:
        raise Drop(f"{brief(value)} is no time")
    raw = _bytes(value.args[0], 10)
    zone = _zone(value.args[1]) if len(value.args) > 1 else None
    if zone is None:
        raise Drop("a time in it has no zone")
    try:
        local = datetime(raw[0] << 8 | raw[1], raw[2] & 0x7F, raw[3], raw[4], raw[5], raw[6])
        micro = raw[7] << 16 | raw[8] << 8 | raw[9]
        local = local.replace(microsecond=micro, fold=raw[2] >> 7, tzinfo=zone)
        return local.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Drop(f"a time in it is broken ({error})") from error


def _date(value: Any) -> date:
    if not isinstance(value, Made) or value.name != "datetime.date" or len(value.args) != 1:
        raise Drop(f"{brief(value)} is no date")
    raw = _bytes(value.args[0], 4)
    try:
        return date(raw[0] << 8 | raw[1], raw[2], raw[3])
    except ValueError as error:
        raise Drop(f"a date in it is broken ({error})") from error


def _timedelta(value: Any) -> timedelta:
    if isinstance(value, Made) and value.name == "datetime.timedelta":
        parts = value.args
        if len(parts) == 3 and all(type(part) is int and abs(part) < 10**9 for part in parts):
            return timedelta(parts[0], parts[1], parts[2])
    raise Drop(f"{brief(value)} is no length of time")


def _zone(value: Any) -> tzinfo:
    if isinstance(value, Made):
        args = value.args
        match value.name:
            case "zoneinfo.ZoneInfo" | "zoneinfo.ZoneInfo._unpickle" | "pytz._p" if args:
                return _named(args[0])
            case "pytz._UTC":
                return _named("UTC")
            case "datetime.timezone" if args:
                try:
                    return fixed_timezone(_timedelta(args[0]))
                except ValueError as error:
                    raise Drop(f"a zone in it is broken ({error})") from error
        # Below protocol 4: getattr(ZoneInfo, "_unpickle")(key, ...)
        how = value.what
        if isinstance(how, Made) and how.name in ("builtins.getattr", "__builtin__.getattr") and args:
            owner = how.args[0] if how.args else None
            if str(owner) == "zoneinfo.ZoneInfo" and how.args[1:] == ("_unpickle",):
                return _named(args[0])
    raise Drop(f"{brief(value)} is no time zone that is known here")


def _named(name: Any) -> ZoneInfo:
    if isinstance(name, str):
        try:
            check_schedule({"cron": "0 0 * * *", "timezone": name})
            return ZoneInfo(name)
        except (Drop, OSError, LookupError, ValueError, InvalidInput):
            pass
    raise Drop(f"the time zone {brief(name)} is none of the tz database")


def _zone_name(zone: tzinfo) -> str:
    """The tz database's name of a zone; whole hours from UTC have one, with their sign turned round."""
    if isinstance(zone, ZoneInfo):
        return str(zone.key)
    offset = zone.utcoffset(None) or timedelta(0)
    hours = offset / timedelta(hours=1)
    if not hours.is_integer() or not -12 <= hours <= 14:
        raise Drop(f"a fixed offset of {offset} is no zone of the tz database")
    return "UTC" if not hours else f"Etc/GMT{-int(hours):+d}"
