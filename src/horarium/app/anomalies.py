"""What clock changes do to a rule over a whole year: only the instants that a clock change touches. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from horarium.app.preview import Instant, instants
from horarium.core import schedule as schedules
from horarium.core.keys import TriggerKey
from horarium.core.once import parse_instant
from horarium.core.schedule import Schedule
from horarium.core.zone import Transition
from horarium.errors import InvalidInput, Problem

_MOST = 20_000
"""Slots looked at around one clock change: a rule of every second in a jump of three hours, twice over."""


def preview_year(words: Mapping[str, Any], *, year: int, key: str | None = None) -> dict[str, Any]:
    """The anomalies of the rule that `words` mean in the local year `year`; as `preview_rule` answers.

    Raises `InvalidInput`.
    """
    if not 1 <= year <= 9998:
        raise InvalidInput(Problem("/year", str(year), "a year lies between 1 and 9998", "2026", code="year"))
    seed = "" if key is None else str(TriggerKey.parse(key))
    rule = schedules.parse(dict(words), seed=seed)
    found = [item.to_json() for item in anomalies(rule, year)]
    return {
        "items": found,
        "year": year,
        "describe": rule.describe(),
        "canonical": schedules.canonical(dict(words)),
    }


def anomalies(rule: Schedule, year: int) -> list[Instant]:
    """The slots of a local year that a clock change moves, drops before, or makes come twice."""
    zone = rule.zone
    if zone is None:
        return []
    start = parse_instant(f"{year:04d}-01-01", zone)
    end = parse_instant(f"{year + 1:04d}-01-01", zone)
    found: dict[int, Instant] = {}
    for change in zone.transitions(start - 1, end - 1):
        found |= {item.at: item for item in _around(rule, change) if item.note}
    return [found[at] for at in sorted(found)]


def _around(rule: Schedule, change: Transition) -> list[Instant]:
    """The slots from before the jump to the first one behind all that it touches."""
    reach = abs(change.jump)
    last = rule.before(change.at - reach - 1)
    last = change.at - reach - 1 if last is None else last
    found: list[Instant] = []
    while len(found) < _MOST:
        batch = instants(rule, last, 100)
        for item in batch:
            found.append(item)
            if item.at > change.at + reach:
                return found
        if len(batch) < 100:
            return found
        last = batch[-1].at
    return found
