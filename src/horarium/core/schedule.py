"""The `Schedule` contract, and how the mapping that people write becomes one.

A schedule is a pure rule of time on whole UTC seconds. It holds no state and reads no clock: the same
start always gives the same series. `parse` is the one way in: files, API, CLI and the engine's stored
revisions all pass the same mapping.

The mapping has exactly one of `cron`, `every`, `rrule`, `at`, and around it:

| key | what | default |
|---|---|---|
| `timezone` | a name of the tz database | `UTC` |
| `dialect` | of `cron`: `horarium`, `robfig` | `horarium` |
| `dst` | of `cron`: `vixie`, `literal`, `skip_once` | `vixie`; the robfig dialect is `literal` |
| `day_or` | of `cron`: two restricted day fields mean either | true |
| `start`, `end` | the first and the last instant that may be named, both included | no bound |
| `exclude`, `only` | names of calendars | none |
| `calendars` | what those names mean, so that a stored rule is whole | what `parse` is given |
| `on_excluded` | what becomes of a slot on an excluded day | `skip` |
"""

from __future__ import annotations

import difflib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from horarium.errors import InvalidInput, Problem, shown

if TYPE_CHECKING:
    from horarium.core.calendars import Calendar
    from horarium.core.zone import Zone, Zones

KINDS = ("cron", "every", "rrule", "at")
_CRON_KEYS = ("dialect", "dst", "day_or")
_CALENDAR_KEYS = ("exclude", "only", "on_excluded")
_KEYS = (*KINDS, "timezone", *_CRON_KEYS, "start", "end", *_CALENDAR_KEYS, "calendars")


class Schedule(ABC):
    """A rule that names instants. Instants are `int` seconds since the epoch, UTC."""

    __slots__ = ()

    @property
    @abstractmethod
    def zone(self) -> Zone | None:
        """The zone whose table decides, or None for a rule of elapsed time or an instant."""

    @property
    def wall_clock(self) -> bool:
        """Whether each of its local times is meant once, so that new tz data move it with its local day.

        A rule that runs all day long counts real time instead.
        """
        return self.zone is not None

    @abstractmethod
    def after(self, t: int) -> int | None:
        """The first instant strictly after `t`, or None when there is none."""

    @abstractmethod
    def before(self, t: int) -> int | None:
        """The last instant at or before `t`, or None when there is none."""

    @abstractmethod
    def describe(self) -> str:
        """The rule in plain English, one line."""

    def between(self, a: int, b: int, limit: int = 10_000) -> list[int]:
        """The instants in `(a, b]`, ascending, at most `limit` of them."""
        found: list[int] = []
        t = self.after(a)
        while t is not None and t <= b and len(found) < limit:
            found.append(t)
            t = self.after(t)
        return found


@dataclass(frozen=True, slots=True)
class Bounded(Schedule):
    """The instants of `rule` in `start..end`, both included; None is no bound."""

    rule: Schedule
    start: int | None
    end: int | None

    @property
    def zone(self) -> Zone | None:
        return self.rule.zone

    @property
    def wall_clock(self) -> bool:
        return self.rule.wall_clock

    def after(self, t: int) -> int | None:
        if self.start is not None and t < self.start:
            t = self.start - 1
        if self.end is not None and t >= self.end:
            return None
        found = self.rule.after(t)
        return None if found is None or (self.end is not None and found > self.end) else found

    def before(self, t: int) -> int | None:
        if self.end is not None and t > self.end:
            t = self.end
        if self.start is not None and t < self.start:
            return None
        found = self.rule.before(t)
        return None if found is None or (self.start is not None and found < self.start) else found

    def between(self, a: int, b: int, limit: int = 10_000) -> list[int]:
        a = a if self.start is None else max(a, self.start - 1)
        b = b if self.end is None else min(b, self.end)
        return self.rule.between(a, b, limit) if a < b else []

    def describe(self) -> str:
        from horarium.core.instant import from_seconds, rfc3339

        text = self.rule.describe()
        if self.start is not None:
            text += f", from {rfc3339(from_seconds(self.start))}"
        if self.end is not None:
            text += f", until {rfc3339(from_seconds(self.end))}"
        return text


def parse(
    spec: Mapping[str, Any],
    *,
    seed: str = "",
    zones: Zones | None = None,
    calendars: Mapping[str, Calendar] | None = None,
    pointer: str = "",
) -> Schedule:
    """The schedule that `spec` means; see the module for its words.

    `seed` is the trigger's hash seed, for `H` in cron fields. `zones` are the process's unless given.
    `calendars` are the named calendars that `exclude` and `only` may refer to. `pointer` is where the
    mapping stands in its document. Raises `InvalidInput` with every problem found. Results are shared:
    a schedule is immutable.
    """
    if zones is None and not calendars and isinstance(spec, dict):
        try:
            frozen = _FREEZE(spec)
        except (TypeError, ValueError):
            pass  # not a mapping of plain data: the checks below say what is wrong with it
        else:
            if len(frozen) <= 2_000:  # a cache of hostile texts would be memory for nothing
                return _parse_shared(frozen, _Held(spec), seed, pointer)
    return _parse(spec, seed, zones, calendars or {}, pointer)


def canonical(spec: Mapping[str, Any], *, pointer: str = "") -> dict[str, Any]:
    """`spec` in the one way to write it: equal rules give equal mappings. Raises `InvalidInput`.

    Defaults are left out, names and spaces in expressions are normalised, instants are RFC 3339 in UTC.
    """
    from horarium.core.canonical import canonical_spec

    return canonical_spec(spec, pointer)


class _Held:
    """A value that rides along in a cached call and takes no part in the cache's key."""

    __slots__ = ("value",)

    def __init__(self, value: Mapping[str, Any]) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


def _frozen(value: object) -> str:
    """What YAML makes of dates and times, as text of its own kind."""
    return f"{type(value).__name__} {value!r}"


_FREEZE = json.JSONEncoder(sort_keys=True, default=_frozen).encode


@lru_cache(maxsize=2_048)
def _parse_shared(frozen: str, spec: _Held, seed: str, pointer: str) -> Schedule:
    return _parse(spec.value, seed, None, {}, pointer)


_T = TypeVar("_T")


class Problems:
    """Collects what is wrong, so that one reply names all of it."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, pointer: str, got: object, rule: str, hint: str = "", code: str = "schedule") -> None:
        self.found.append(Problem(pointer, shown(got), rule, hint, code=code))

    def catch(self, read: Callable[[], _T]) -> _T | None:
        try:
            return read()
        except InvalidInput as error:
            self.found += error.problems
            return None

    def check(self) -> None:
        if self.found:
            raise InvalidInput(self.found)


def _parse(
    spec: Mapping[str, Any], seed: str, zones: Zones | None, calendars: Mapping[str, Calendar], pointer: str
) -> Schedule:
    # The rules import this module for its contract, so they are imported when the first one is read.
    from horarium.core.once import parse_instant
    from horarium.core.zone import DEFAULT_ZONES

    known = zones or DEFAULT_ZONES
    problems = Problems()
    kind = check_keys(spec, pointer, problems)
    name = spec.get("timezone")
    zone = problems.catch(lambda: known.get("UTC" if name is None else name, f"{pointer}/timezone"))
    if zone is None:
        zone, name = known.get("UTC"), None  # to find what else is wrong
    bounds: dict[str, int | None] = {"start": None, "end": None}
    for word in bounds:
        value = spec.get(word)
        if value is not None:
            bounds[word] = problems.catch(
                lambda value=value, word=word: parse_instant(  # type: ignore[misc]  # mypy can't type defaults
                    value, zone, f"{pointer}/{word}", end_of_day=word == "end"
                )
            )
    start, end = bounds["start"], bounds["end"]
    if start is not None and end is not None and start > end:
        problems.add(f"{pointer}/end", spec["end"], "a schedule ends at or after its start", "a later end")
    if kind is None:
        problems.check()
        raise AssertionError("a mapping without a kind has a problem")
    where, value = f"{pointer}/{kind}", spec[kind]
    rule = problems.catch(
        lambda: _rule(kind, value, where, spec, known, zone, name is not None, start, seed, pointer)
    )
    problems.check()
    assert rule is not None
    if start is not None or end is not None:
        rule = Bounded(rule, start, end)
    if spec.get("calendars") is not None:
        from horarium.core.calendars import parse_calendars

        calendars = {**calendars, **parse_calendars(spec["calendars"], f"{pointer}/calendars")}
    if any(spec.get(key) is not None for key in _CALENDAR_KEYS):
        from horarium.core.calendars import filtered

        rule = filtered(rule, spec, calendars, zone, pointer)
    return rule


def _rule(
    kind: str,
    value: object,
    where: str,
    spec: Mapping[str, Any],
    zones: Zones,
    zone: Zone,
    zone_given: bool,
    start: int | None,
    seed: str,
    pointer: str,
) -> Schedule:
    if kind == "cron":
        return _cron(value, where, spec, zones, zone, zone_given, start, seed, pointer)
    if kind == "every":
        from horarium.core.interval import parse_every

        return parse_every(value, timezone=zone, start=start, pointer=where)
    if kind == "at":
        from horarium.core.once import parse_at

        return parse_at(value, zone, where)
    from horarium.core.rrule import parse_rrule

    return parse_rrule(
        value, zone=zone, start=start, pointer=where, zones=lambda name: zones.get(name, where)
    )


def _cron(
    value: object,
    where: str,
    spec: Mapping[str, Any],
    zones: Zones,
    zone: Zone,
    zone_given: bool,
    start: int | None,
    seed: str,
    pointer: str,
) -> Schedule:
    from horarium.core.cron import Cron, Dst
    from horarium.core.cron_text import Dialect, Every, read_cron
    from horarium.core.interval import parse_every

    dialect, dst, day_or = cron_options(spec, pointer)
    read = read_cron(value, dialect=Dialect(dialect), day_or=day_or, seed=seed, pointer=where)
    if read.zone_name is not None:
        own = zones.get(read.zone_name, where)
        if zone_given and own.name != zone.name and dialect != "robfig":
            raise InvalidInput(
                Problem(
                    where,
                    shown(value),
                    f"CRON_TZ={own.name} contradicts the trigger's timezone {zone.name}",
                    "one of the two",
                    code="timezone",
                )
            )
        zone = own
    if isinstance(read.rule, Every):
        return parse_every(read.rule.duration, timezone=zone, start=start, pointer=where)
    if dialect == "robfig":
        from horarium.core.cron_robfig import RobfigCron

        return RobfigCron(read.text, read.rule, zone, Dst(dst))
    cron = Cron(read.text, read.rule, zone, Dst(dst))
    if _may_never(read.rule) and cron.never:
        raise InvalidInput(
            Problem(
                where,
                shown(value),
                "no date matches, in any year, so this would never run",
                "L for the last day of a month" if read.rule.days >> 29 else "days that the months have",
                code="never",
            )
        )
    return cron


def _may_never(fields: Any) -> bool:
    """A cheap look: a rule that takes some day up to the 28th and plain weekdays always has dates."""
    return bool(fields.weekday_forms or fields.day_forms) or not fields.days & 0x1FFF_FFFE


def cron_options(spec: Mapping[str, Any], pointer: str) -> tuple[str, str, bool]:
    """`dialect`, `dst` and `day_or` of a cron mapping, checked. Raises `InvalidInput`."""
    problems = Problems()
    dialect = spec.get("dialect")
    if dialect is None:
        dialect = "horarium"
    elif dialect not in ("horarium", "robfig"):
        problems.add(f"{pointer}/dialect", dialect, "a dialect is horarium or robfig", "horarium")
        dialect = "horarium"
    dst = spec.get("dst")
    if dst is None:
        dst = "literal" if dialect == "robfig" else "vixie"
    elif dst not in ("vixie", "literal", "skip_once"):
        problems.add(f"{pointer}/dst", dst, "dst is vixie, literal or skip_once", "vixie")
    elif dialect == "robfig" and dst != "literal":
        problems.add(
            f"{pointer}/dst", dst, "the robfig dialect is literal", "dialect: horarium for another policy"
        )
    day_or = spec.get("day_or")
    if day_or is None:
        day_or = True
    elif not isinstance(day_or, bool):
        problems.add(f"{pointer}/day_or", day_or, "day_or is true or false", "false")
    problems.check()
    return dialect, dst, day_or


def check_keys(spec: object, pointer: str, problems: Problems) -> str | None:
    """The one kind of schedule that `spec` has, if it has; what is wrong with its keys goes to `problems`."""
    if not isinstance(spec, Mapping):
        problems.add(pointer, spec, "a schedule is a mapping", 'such as {"cron": "0 9 * * *"}')
        raise InvalidInput(problems.found)
    for key in spec:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, n=1) if isinstance(key, str) else []
            problems.add(
                f"{pointer}/{key}",
                spec[key],
                "no such key in a schedule",
                close[0] if close else ", ".join(_KEYS),
                code="unknown_key",
            )
    kinds = [kind for kind in KINDS if spec.get(kind) is not None]
    if len(kinds) != 1:
        got = {kind: spec[kind] for kind in kinds}
        problems.add(pointer, got, "a schedule has exactly one of cron, every, rrule and at", "one of them")
        return None
    for key in _CRON_KEYS:
        if spec.get(key) is not None and kinds[0] != "cron":
            problems.add(
                f"{pointer}/{key}", spec[key], f"{key} belongs to cron, not to {kinds[0]}", "leave it out"
            )
    return kinds[0]
