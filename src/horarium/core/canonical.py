"""The one way to write a schedule: equal rules give equal mappings.

A redeploy that only spells a rule in other words (`mon-fri` for `1-5`, `@daily`, spaces, a default written
out) is the same rule and changes nothing. Cron fields are written from what they mean, except that `H`
keeps its letter, and that a field that begins with `*` keeps its star, because the star itself has a
meaning: it makes a field unrestricted and a job not fixed-time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horarium.core.cron import DayForm, FormKind
from horarium.core.cron_text import FIELDS, NICKNAMES, Dialect, Every, Field, Kind, read_cron, read_field
from horarium.core.instant import from_seconds, rfc3339
from horarium.core.interval import canonical_every
from horarium.core.once import parse_instant
from horarium.core.schedule import Problems, check_keys, cron_options, parse
from horarium.core.zone import DEFAULT_ZONES
from horarium.errors import InvalidInput

if TYPE_CHECKING:
    from horarium.core.zone import Zone

_WEEKDAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_H_FIELD = re.compile(r"(?:^|[\s,])H(?:$|[\s,(/])", re.IGNORECASE)
_H_ITEM = re.compile(r"[Hh](?:\((\w+)-(\w+)\))?(?:/(\w+))?")


def canonical_spec(spec: Mapping[str, Any], pointer: str = "") -> dict[str, Any]:
    """See `schedule.canonical`."""
    problems = Problems()
    kind = check_keys(spec, pointer, problems)
    problems.check()
    assert kind is not None
    days = {key: spec[key] for key in ("exclude", "only") if spec.get(key)}
    if not days:
        try:
            parse(
                {key: value for key, value in spec.items() if key not in ("exclude", "only", "on_excluded")}
            )
        except InvalidInput as error:
            # What `H` draws, and so whether a date matches, is known with the trigger's seed alone.
            if not _H_FIELD.search(str(spec.get("cron"))) or any(p.code != "never" for p in error.problems):
                raise
    name = spec.get("timezone") or "UTC"
    found: dict[str, Any] = {}
    zone_matters = bool(days)
    if kind == "cron":
        zone_matters = True
        name = _cron(spec, name, found, pointer)
    zone = DEFAULT_ZONES.get(name, f"{pointer}/timezone")
    if kind == "at":
        found["at"] = _instant(spec["at"], zone, f"{pointer}/at")
    elif kind == "rrule":
        from horarium.core.rrule import canonical_rrule

        zone_matters = True
        found["rrule"] = canonical_rrule(spec["rrule"], f"{pointer}/rrule")
    elif kind == "every":
        found["every"] = canonical_every(spec["every"], f"{pointer}/every")
        zone_matters = zone_matters or isinstance(found["every"], Mapping)
    if zone_matters and name != "UTC":
        found["timezone"] = name
    for key in ("start", "end"):
        if spec.get(key) is not None:
            found[key] = _instant(spec[key], zone, f"{pointer}/{key}", end_of_day=key == "end")
    for key, names in days.items():
        found[key] = sorted({names} if isinstance(names, str) else set(names))
    if days and spec.get("calendars"):
        from horarium.core.calendars import canonical_calendar, parse_calendars

        named = {name for names in days.values() for name in ([names] if isinstance(names, str) else names)}
        known = parse_calendars(spec["calendars"], f"{pointer}/calendars")
        found["calendars"] = {n: canonical_calendar(known[n]) for n in sorted(named & known.keys())}
    if days and spec.get("on_excluded") not in (None, "skip"):
        found["on_excluded"] = spec["on_excluded"]
    return found


def _instant(value: object, zone: Zone, pointer: str, *, end_of_day: bool = False) -> str:
    return rfc3339(from_seconds(parse_instant(value, zone, pointer, end_of_day=end_of_day)))


def _cron(spec: Mapping[str, Any], name: str, found: dict[str, Any], pointer: str) -> str:
    """Write the cron part into `found`; returns the zone's name."""
    dialect, dst, day_or = cron_options(spec, pointer)
    read = read_cron(spec["cron"], dialect=Dialect(dialect), day_or=day_or, pointer=f"{pointer}/cron")
    name = read.zone_name or name
    if isinstance(read.rule, Every):
        found["every"] = canonical_every(read.rule.duration, f"{pointer}/cron")
        return "UTC"  # elapsed time has no zone
    if dialect == "robfig":
        found["dialect"] = dialect
        found["cron"] = " ".join(NICKNAMES.get(read.text, read.text).lower().split())
    else:
        found["cron"] = canonical_cron(read.text)
        if dst != "vixie":
            found["dst"] = dst
    if not day_or and not _one_is_free(found["cron"], dialect):
        found["day_or"] = False
    return name


def _one_is_free(text: str, dialect: str) -> bool:
    """One of the day fields is not restricted, so that `day_or` says nothing."""
    every = read_cron(text, dialect=Dialect(dialect), day_or=True).rule
    return not isinstance(every, Every) and not every.either


def canonical_cron(text: str) -> str:
    """An expression of the dialect horarium without a zone, in the one way to write it."""
    parts = NICKNAMES.get(text.lower(), text).split()
    fields = FIELDS[6 - len(parts) :]
    written = [_canonical_field(kind, part) for kind, part in zip(fields, parts, strict=True)]
    return " ".join(written[1:] if len(written) == 6 and written[0] == "0" else written)


def _canonical_field(kind: Kind, text: str) -> str:
    items = text.split(",")
    hashed = sorted({_canonical_h(kind, item) for item in items if item[:1] in ("H", "h")})
    plain = ",".join(item for item in items if item[:1] not in ("H", "h"))
    parts = []
    if plain:
        field = read_field(kind, plain, "")
        starred = text.startswith(("*", "?"))
        parts.append(_starred(kind, field) if starred else _values(field.mask))
        parts += [_form(form) for form in field.forms]
    return ",".join([part for part in parts if part] + hashed)


def _canonical_h(kind: Kind, item: str) -> str:
    match = _H_ITEM.fullmatch(item)
    assert match is not None, item  # the field has been read before
    low, high, step = match.groups()
    text = "H"
    if low is not None:
        text += f"({kind.names.get(low.lower(), low)}-{kind.names.get(high.lower(), high)})"
    return text + (f"/{int(step)}" if step else "")


def _starred(kind: Kind, field: Field) -> str:
    """A field that begins with `*`: `*`, `*/n`, or `*/n` and the values that it lacks."""
    values = _of(field.mask)
    if len(values) == kind.high - kind.low + 1:
        return "*"
    for step in range(2, kind.high - kind.low + 2):
        steps = set(range(kind.low, kind.high + 1, step))
        if steps <= set(values):
            rest = _values(sum(1 << value for value in values if value not in steps))
            return f"*/{step}" + (f",{rest}" if rest else "")
    return "*/100," + _values(field.mask)  # the lowest value, and the rest


def _values(mask: int) -> str:
    """`1-5,9`, or `0-55/5` where the values are evenly spaced."""
    values = _of(mask)
    if len(values) >= 4:
        step = values[1] - values[0]
        if step > 1 and values == list(range(values[0], values[-1] + 1, step)):
            return f"{values[0]}-{values[-1]}/{step}"
    parts: list[str] = []
    while values:
        run = 1
        while run < len(values) and values[run] == values[0] + run:
            run += 1
        parts += [f"{values[0]}-{values[run - 1]}"] if run >= 3 else [str(value) for value in values[:run]]
        values = values[run:]
    return ",".join(parts)


def _form(form: DayForm) -> str:
    match form.kind:
        case FormKind.FROM_LAST:
            return f"L-{form.a}" if form.a else "L"
        case FormKind.LAST_WEEKDAY:
            return "LW"
        case FormKind.NEAREST_WEEKDAY:
            return f"{form.a}W"
        case FormKind.NTH:
            return f"{_WEEKDAY_NAMES[form.a]}#{form.b}"
    return f"{_WEEKDAY_NAMES[form.a]}L"


def _of(mask: int) -> list[int]:
    return [n for n in range(mask.bit_length()) if mask >> n & 1]
