"""The next instants of a rule for people, in the one shape that the API and the command line show. Pure.

What the clock and calendars do to them is worded by `core.explain`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from horarium.app.views import View
from horarium.core import schedule as schedules
from horarium.core.cron import Dst
from horarium.core.explain import explained, local_text, with_policy, year_of_anomalies
from horarium.core.instant import from_seconds, rfc3339, to_seconds
from horarium.core.keys import TriggerKey, jitter
from horarium.core.revision import schedule_of
from horarium.core.schedule import Schedule
from horarium.core.spec import TriggerSpec
from horarium.errors import InvalidInput, Problem, shown

MOST = 1_000
"""Instants in one preview: more than anybody reads."""


def preview_rule(
    words: Mapping[str, Any],
    *,
    start: datetime,
    number: int,
    key: str | None = None,
    compare: str | None = None,
    year: int | None = None,
) -> View:
    """The next `number` instants after `start` of the rule that `words` mean.

    `key` is the trigger whose hash `H` in a cron field takes. `compare` names DST policies, and adds the
    instants of each under `compare`. `year` gives what clock changes do in that year of UTC instead: an item
    a change. Raises `InvalidInput`.
    """
    seed = "" if key is None else str(TriggerKey.parse(key))
    rule = schedules.parse(dict(words), seed=seed)
    return _preview(rule, schedules.canonical(dict(words)), "", None, start, number, compare, year)


def preview_trigger(
    spec: TriggerSpec,
    seed: str,
    *,
    start: datetime,
    number: int,
    compare: str | None = None,
    year: int | None = None,
) -> View:
    """The same for a trigger's spec: with its own hash seed, and its jitter where it has any."""
    rule = schedule_of(spec, seed)
    return _preview(rule, dict(spec.schedule), seed, spec, start, number, compare, year)


def _preview(
    rule: Schedule,
    canonical: Mapping[str, Any],
    seed: str,
    spec: TriggerSpec | None,
    start: datetime,
    number: int,
    compare: str | None,
    year: int | None,
) -> View:
    if not 1 <= number <= MOST:
        raise InvalidInput(Problem("/n", str(number), f"a preview has 1 to {MOST:,} instants", "10"))
    if compare is not None and year is not None:
        raise InvalidInput(Problem("/year", str(year), "either compare or year", "one of the two"))

    def items_of(schedule: Schedule) -> list[View]:
        return _items(schedule, to_seconds(start), number, spec, seed)

    words: View = {"describe": rule.describe(), "canonical": canonical}
    if year is not None:
        return {"items": _year(rule, year), "year": year, **words}
    if compare is None:
        return {"items": items_of(rule), **words}
    policies = _policies(compare, canonical)
    compared = {policy.value: {"items": items_of(with_policy(rule, policy))} for policy in policies}
    return {"items": compared[policies[0].value]["items"], "compare": compared, **words}


def _items(rule: Schedule, start: int, number: int, spec: TriggerSpec | None, seed: str) -> list[View]:
    found = []
    for item in explained(rule, start, number):
        at = from_seconds(item.at)
        shown_item: View = {"utc": rfc3339(at), "local": item.local, "note": "; ".join(item.notes) or None}
        if spec is not None and spec.jitter:
            shown_item["due_at"] = rfc3339(at + jitter(seed, item.at, spec.jitter))
        found.append(shown_item)
    return found


def _policies(compare: str, canonical: Mapping[str, Any]) -> Sequence[Dst]:
    names = list(dict.fromkeys(name.strip() for name in compare.split(",") if name.strip()))
    known = [policy.value for policy in Dst]
    unknown = [name for name in names if name not in known]
    if unknown or len(names) < 2:
        got = shown(unknown[0]) if unknown else shown(compare)
        listed = ",".join(known)
        raise InvalidInput(Problem("/compare", got, f"at least two of {listed}", listed, code="compare"))
    if "cron" not in canonical:
        rule = "DST policies belong to cron expressions"
        raise InvalidInput(Problem("/compare", shown(compare), rule, "leave it out", code="compare"))
    return [Dst(name) for name in names]


def _year(rule: Schedule, year: int) -> list[View]:
    """What each clock change of a year does: an item a change, at the instant of the change."""
    if not 1 <= year <= 9998:
        raise InvalidInput(Problem("/year", str(year), "a year lies between 1 and 9998", "2026", code="year"))
    return [
        {
            "utc": rfc3339(from_seconds(item.at)),
            "local": local_text(rule.zone, item.at),
            "note": item.text,
            "outcome": item.outcome.value,
            "jump_seconds": item.jump,
            "runs": [rfc3339(from_seconds(run)) for run in item.runs],
        }
        for item in year_of_anomalies(rule, year)
    ]
