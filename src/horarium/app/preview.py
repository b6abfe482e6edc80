"""The next instants of a rule for people: UTC, the wall clock, and what clock changes do to them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from horarium.app.views import View, local_time
from horarium.core import schedule as schedules
from horarium.core.cron import Cron
from horarium.core.instant import MAX_SECONDS, from_seconds, rfc3339, to_seconds
from horarium.core.keys import TriggerKey, jitter
from horarium.core.revision import schedule_of
from horarium.core.schedule import Schedule
from horarium.core.spec import TriggerSpec
from horarium.core.zone import Transition, Zone
from horarium.errors import InvalidInput, Problem

MOST = 1_000
"""Instants in one preview: more than anybody reads."""


@dataclass(frozen=True, slots=True)
class Instant:
    """One slot as a preview shows it."""

    at: int
    local: str
    note: str | None

    def to_json(self) -> View:
        return {"utc": rfc3339(from_seconds(self.at)), "local": self.local, "note": self.note}


def preview_rule(words: Mapping[str, Any], *, start: datetime, number: int, key: str | None = None) -> View:
    """The next `number` instants after `start` of the rule that `words` mean.

    `key` is the trigger whose hash `H` in a cron field takes. Raises `InvalidInput`.
    """
    seed = "" if key is None else str(TriggerKey.parse(key))
    rule = schedules.parse(dict(words), seed=seed)
    return {
        "items": [item.to_json() for item in instants(rule, to_seconds(start), checked_number(number))],
        "describe": rule.describe(),
        "canonical": schedules.canonical(dict(words)),
    }


def preview_trigger(spec: TriggerSpec, seed: str, *, start: datetime, number: int) -> View:
    """The same for a trigger's spec: with its own hash seed, and its jitter where it has any."""
    rule = schedule_of(spec, seed)
    items = []
    for item in instants(rule, to_seconds(start), checked_number(number)):
        shown = item.to_json()
        if spec.jitter:
            shown["due_at"] = rfc3339(from_seconds(item.at) + jitter(seed, item.at, spec.jitter))
        items.append(shown)
    return {"items": items, "describe": rule.describe(), "canonical": dict(spec.schedule)}


def checked_number(number: int) -> int:
    """`number` if it can be asked for."""
    if 1 <= number <= MOST:
        return number
    raise InvalidInput(Problem("/n", str(number), f"a preview has 1 to {MOST:,} instants", "10"))


def instants(rule: Schedule, start: int, number: int) -> list[Instant]:
    """The slots after `start`, at most `number`, each with what a clock change does to it."""
    found: list[Instant] = []
    last = start
    while len(found) < number:
        slot = rule.after(last)
        if slot is None or slot > MAX_SECONDS:
            break
        found.append(_instant(rule, last, slot))
        last = slot
    return found


def _instant(rule: Schedule, last: int, slot: int) -> Instant:
    zone = rule.zone
    if zone is None:
        return Instant(slot, local_time(from_seconds(slot), timedelta()), None)
    local = _local(zone, slot)
    if zone.is_fixed:
        return Instant(slot, local, None)
    notes = [*_gaps(rule, zone, last, slot), *_overlap(rule, zone, slot)]
    return Instant(slot, local, "; ".join(notes) or None)


def _gaps(rule: Schedule, zone: Zone, last: int, slot: int) -> list[str]:
    """What became of local times that did not exist since the slot before."""
    cron = _cron(rule)
    if cron is None:
        return []
    notes = []
    # A slot follows the one before it by years at most for a rule of leap days; bounded for the odd one.
    for change in zone.transitions(max(last, slot - 400 * 86_400), slot):
        if change.jump <= 0:
            continue
        missing = cron.next_local(change.at + change.before - 1)
        if missing is None or missing >= change.at + change.after:
            continue
        when = f"{_clock(missing)} does not exist on {_day(missing)}, {_jump(change)}"
        if change.at == slot and not cron.matches_local(zone.to_local(slot)):
            notes.append(f"{when}: runs at the first instant after it")
        elif change.at != slot:
            notes.append(f"{when}: skipped")
    return notes


def _overlap(rule: Schedule, zone: Zone, slot: int) -> list[str]:
    """Which pass of a local time that comes twice this is."""
    both = zone.resolve(zone.to_local(slot))
    if len(both) < 2:
        return []
    local = zone.to_local(slot)
    first = slot == both[0]
    other = both[1] if first else both[0]
    note = f"{_clock(local)} comes twice on {_day(local)}: this is the {'first' if first else 'second'} pass"
    if rule.after(other - 1) != other:
        note += f"; the {'second' if first else 'first'} does not run"
    return [note]


def _cron(rule: Schedule) -> Cron | None:
    while isinstance(rule, schedules.Bounded):
        rule = rule.rule
    return rule if isinstance(rule, Cron) else None


def _local(zone: Zone, slot: int) -> str:
    return local_time(from_seconds(slot), timedelta(seconds=zone.offset_at(slot)))


def _clock(local: int) -> str:
    second = local % 86_400
    text = f"{second // 3600:02d}:{second // 60 % 60:02d}"
    return text if second % 60 == 0 else f"{text}:{second % 60:02d}"


def _day(local: int) -> str:
    return from_seconds(local).date().isoformat()


def _jump(change: Transition) -> str:
    return f"the clock jumps from {_clock(change.at + change.before)} to {_clock(change.at + change.after)}"
