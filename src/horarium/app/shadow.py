"""The shadow report: what was decided in shadow beside what the other scheduler ran, trigger by trigger.

Only time that a trigger spent in shadow is compared. The runs come from here by the thousand, and those of
the other side from whoever knows them; the comparison itself is `core/shadow.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from typing import Any, Protocol

from sqlalchemy import ColumnElement, select, tuple_

from horarium.app.reads import shadow_times
from horarium.app.selects import LIVE, NOT_MANUAL, is_key, key_of, stored_source
from horarium.app.views import View, moment
from horarium.core.duration import format_duration
from horarium.core.instant import rfc3339
from horarium.core.keys import TriggerKey
from horarium.core.shadow import Comparison, OurSlot, Pair, TheirRun, compare
from horarium.core.spec import TargetSpec
from horarium.errors import Conflict, InvalidInput, NotFound, Problem
from horarium.sources.base import Incumbent, Incumbents
from horarium.store import tables as t
from horarium.store.base import Store

TOLERANCE = timedelta(seconds=60)
"""How far a run that only says when it was made may lie from its slot, unless told."""

MOST_TOLERANCE = timedelta(hours=6)
PERIOD = timedelta(days=1)
"""How much is compared unless told."""

SETTLING = timedelta(seconds=60)
"""The newest slots are left out unless asked for: the other side may still be making theirs."""

BATCH = 500
"""Triggers that are compared at once."""

MOST_RUNS = 500_000
"""Slots of ours that one report compares: some ten seconds. More is asked for in parts."""

SHOWN = 100
"""Slots of one trigger that an answer names; the counts are whole."""

EXPLAINED = 100
"""Runs of theirs alone that an answer says the reason of, which takes a look into history each."""


class Why(Protocol):
    """What became of an instant of a trigger; `Queries.why` is one."""

    async def __call__(self, key: TriggerKey, at: datetime) -> View: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What a report is about. `triggers` empty: those of `source`, or all. `to_time` None: a minute ago,
    `from_time` None: a day before that. `text`: what the other side ran, where it is not asked itself.
    `everything`: name the slots that both have, too."""

    triggers: tuple[TriggerKey, ...] = ()
    source: str | None = None
    from_time: datetime | None = None
    to_time: datetime | None = None
    tolerance: timedelta = TOLERANCE
    text: str | None = None
    everything: bool = False


@dataclass(frozen=True, slots=True)
class _Shadowed:
    """A trigger with the parts of the period that it spent in shadow."""

    id: int
    key: TriggerKey
    shadow: bool
    target: str
    parts: Sequence[tuple[datetime, datetime]]


@dataclass(slots=True)
class _Sums:
    """What is counted over all triggers."""

    both: int = 0
    only_ours: int = 0
    only_theirs: int = 0
    pending: int = 0
    compared: int = 0
    explained: int = 0
    differences: list[float] = field(default_factory=list)


class ShadowReport:
    """See the module. Raises `InvalidInput`, `NotFound`, `Conflict`, `SourceUnavailable`,
    `StoreUnavailable`."""

    def __init__(self, store: Store, why: Why, incumbents: Incumbents, now: datetime) -> None:
        self._store = store
        self._why = why
        self._incumbents = incumbents
        self._now = now
        self._of_targets: dict[str, Incumbent] = {}

    async def view(self, asked: Asked) -> View:
        """The report."""
        low, high = self._period(asked)
        told = None if asked.text is None else self._incumbents.of_text(asked.text)
        sums = _Sums()
        shown: list[View] = []
        async for batch in self._batches(asked, low, high):
            ours = await self._ours(batch, low, high, sums)
            theirs = await self._theirs(batch, told, low, high + asked.tolerance)
            for item in batch:
                found = compare(ours.get(item.id, ()), theirs.get(item.key, ()), asked.tolerance, item.parts)
                shown.append(await self._trigger_view(item, found, sums, everything=asked.everything))
        if not shown:
            raise Conflict(
                f"no such trigger was in shadow between {rfc3339(low)} and {rfc3339(high)}: there is nothing "
                "to compare",
                "another period; `horarium triggers list --shadow` shows what is in shadow now",
            )
        unknown: list[TriggerKey] = []
        aside: list[TriggerKey] = []
        if told is not None and not asked.triggers and asked.source is None:
            unknown, aside = await self._others(told.triggers, {str(item["trigger"]) for item in shown})
        return {
            "from": rfc3339(low),
            "to": rfc3339(high),
            "tolerance": format_duration(asked.tolerance),
            "equal": not (sums.only_ours or sums.only_theirs or unknown),
            "counts": {
                "triggers": len(shown),
                "both": sums.both,
                "only_ours": sums.only_ours,
                "only_theirs": sums.only_theirs,
                "pending": sums.pending,
            },
            "lateness": _lateness(sums.differences),
            "triggers": shown,
            "unknown": [str(key) for key in unknown],
            "not_in_shadow": [str(key) for key in aside],
        }

    def _period(self, asked: Asked) -> tuple[datetime, datetime]:
        problems = []
        high = asked.to_time or (self._now - SETTLING).replace(microsecond=0)
        low = asked.from_time or high - PERIOD
        if high > self._now:
            problems.append(
                Problem(
                    "/to", rfc3339(high), "a report ends at the present at the latest", rfc3339(self._now)
                )
            )
        if low >= high:
            problems.append(
                Problem("/from", rfc3339(low), "the period begins before it ends", f"before {rfc3339(high)}")
            )
        if not timedelta() <= asked.tolerance <= MOST_TOLERANCE:
            rule = f"a tolerance is at most {format_duration(MOST_TOLERANCE)}"
            problems.append(Problem("/tolerance", format_duration(asked.tolerance), rule, "60s"))
        if asked.triggers and asked.source is not None:
            problems.append(
                Problem("/source", asked.source, "a report is about triggers or a source", "one of the two")
            )
        if problems:
            raise InvalidInput(problems)
        return low, high

    async def _batches(self, asked: Asked, low: datetime, high: datetime) -> AsyncIterator[list[_Shadowed]]:
        """The triggers that were in shadow in the period, by key, so many at a time."""
        for number in range(0, len(asked.triggers), BATCH):
            keys = asked.triggers[number : number + BATCH]
            rows = [await self._row(key) for key in keys]
            yield await self._shadowed(rows, low, high)
        if asked.triggers:
            return
        trigger, revision = t.trigger.c, t.trigger_revision.alias("was")
        key = (trigger.project, trigger.domain, trigger.deployment, trigger.name)
        was = (
            select(revision.c.number)
            .where(revision.c.trigger_id == trigger.id, revision.c.shadow, revision.c.effective_from < high)
            .exists()
        )
        terms: list[ColumnElement[bool]] = [was]
        if asked.source is not None:
            stored = stored_source(asked.source)
            terms.append(trigger.source.is_(None) if stored is None else trigger.source == stored)
        after: Any = None
        while True:
            past = [] if after is None else [tuple_(*key) > after]
            rows = list(
                await self._store.fetch(_trigger_select().where(*terms, *past).order_by(*key).limit(BATCH))
            )
            if rows:
                yield await self._shadowed(rows, low, high)
            if len(rows) < BATCH:
                return
            last = rows[-1]
            after = (last.project, last.domain, last.deployment, last.name)

    async def _row(self, key: TriggerKey) -> Any:
        rows = await self._store.fetch(_trigger_select().where(is_key(key)))
        if not rows:
            raise NotFound("trigger", str(key), "`horarium triggers list --shadow` shows those in shadow")
        return rows[0]

    async def _shadowed(self, rows: Sequence[Any], low: datetime, high: datetime) -> list[_Shadowed]:
        parts = await shadow_times(self._store, [row.id for row in rows], low, high)
        return [
            _Shadowed(row.id, key_of(row), bool(row.shadow), row.target, parts[row.id])
            for row in rows
            if row.id in parts
        ]

    async def _ours(
        self, batch: Sequence[_Shadowed], low: datetime, high: datetime, sums: _Sums
    ) -> dict[int, list[OurSlot]]:
        """The slots that revisions in shadow had runs for."""
        run, revision = t.run.c, t.trigger_revision.c
        room = MOST_RUNS - sums.compared
        rows = await self._store.fetch(
            select(run.trigger_id, run.scheduled_time, run.name, run.settled_at)
            .join(
                t.trigger_revision,
                (revision.trigger_id == run.trigger_id) & (revision.number == run.revision),
            )
            .where(
                run.trigger_id.in_([item.id for item in batch]),
                NOT_MANUAL,
                run.origin == "schedule",
                revision.shadow,
                run.scheduled_time > low,
                run.scheduled_time <= high,
            )
            .limit(room + 1)
        )
        sums.compared += len(rows)
        if sums.compared > MOST_RUNS:
            raise InvalidInput(
                Problem(
                    "/from",
                    rfc3339(low),
                    f"a report compares at most {MOST_RUNS:,} slots, and this period has more",
                    "a later beginning, or some of the triggers",
                    code="size",
                )
            )
        found: dict[int, list[OurSlot]] = {}
        for row in rows:
            found.setdefault(row.trigger_id, []).append(OurSlot(row.scheduled_time, row.name, row.settled_at))
        return found

    async def _theirs(
        self, batch: Sequence[_Shadowed], told: Incumbent | None, low: datetime, high: datetime
    ) -> Mapping[TriggerKey, Sequence[TheirRun]]:
        if told is not None:
            return await told.runs([item.key for item in batch], low, high)
        found: dict[TriggerKey, Sequence[TheirRun]] = {}
        for target in sorted({item.target for item in batch}):
            keys = [item.key for item in batch if item.target == target]
            found.update(await (await self._of_target(target)).runs(keys, low, high))
        return found

    async def _of_target(self, name: str) -> Incumbent:
        known = self._of_targets.get(name)
        if known is not None:
            return known
        rows = await self._store.fetch(select(t.target.c.spec).where(t.target.c.name == name))
        spec = TargetSpec.from_json(name, rows[0].spec)
        incumbent = self._incumbents.of_target(spec)
        if incumbent is None:
            raise InvalidInput(
                Problem(
                    "/incumbent",
                    "nothing",
                    f"target {name!r} ({spec.kind}) can't be asked what another scheduler ran",
                    "--incumbent FILE: a line a run, `trigger,time`; docs/shadow.md has its form",
                    code="missing",
                )
            )
        self._of_targets[name] = incumbent
        return incumbent

    async def _others(
        self, told: Iterable[TriggerKey], compared: set[str]
    ) -> tuple[list[TriggerKey], list[TriggerKey]]:
        """Keys that the other side has and that were not compared: unknown here, and not in shadow."""
        left = sorted(key for key in told if str(key) not in compared)
        trigger = t.trigger.c
        columns = (trigger.project, trigger.domain, trigger.deployment, trigger.name)
        known: set[TriggerKey] = set()
        for number in range(0, len(left), BATCH):
            some = [
                (key.project, key.domain, key.deployment, key.name) for key in left[number : number + BATCH]
            ]
            rows = await self._store.fetch(select(*columns).where(tuple_(*columns).in_(some), LIVE))
            known |= {key_of(row) for row in rows}
        return [key for key in left if key not in known], [key for key in left if key in known]

    async def _trigger_view(
        self, item: _Shadowed, found: Comparison, sums: _Sums, *, everything: bool
    ) -> View:
        sums.both += len(found.both)
        sums.only_ours += len(found.only_ours)
        sums.only_theirs += len(found.only_theirs)
        sums.pending += len(found.pending)
        differences = [
            difference.total_seconds() for pair in found.both if (difference := pair.difference) is not None
        ]
        sums.differences += differences
        slots = [_ours_view(slot) for slot in found.only_ours[:SHOWN]]
        for run in found.only_theirs[:SHOWN]:
            slots.append(_theirs_view(run, await self._reason(item.key, run, sums)))
        if everything:
            slots += [_pair_view(pair) for pair in found.both[:SHOWN]]
            slots += [_ours_view(slot) for slot in found.pending[:SHOWN]]
        number = len(found.only_ours) + len(found.only_theirs)
        number += len(found.both) + len(found.pending) if everything else 0
        slots.sort(key=lambda slot: str(slot["time"]))
        return {
            "trigger": str(item.key),
            "in_shadow": item.shadow,
            "shadow": [{"after": rfc3339(low), "to": rfc3339(high)} for low, high in item.parts],
            "both": len(found.both),
            "only_ours": len(found.only_ours),
            "only_theirs": len(found.only_theirs),
            "pending": len(found.pending),
            "lateness": _lateness(differences),
            "slots": slots,
            "more_slots": number - len(slots),
        }

    async def _reason(self, key: TriggerKey, run: TheirRun, sums: _Sums) -> str | None:
        """Why we have no run for it."""
        if sums.explained >= EXPLAINED:
            return None
        sums.explained += 1
        return str((await self._why(key, run.at))["reason"])


def _trigger_select() -> Any:
    trigger, revision = t.trigger, t.trigger_revision
    return select(
        trigger.c.id,
        trigger.c.project,
        trigger.c.domain,
        trigger.c.deployment,
        trigger.c.name,
        trigger.c.shadow,
        revision.c.spec["target"].as_string().label("target"),
    ).join(revision, (revision.c.trigger_id == trigger.c.id) & (revision.c.number == trigger.c.revision))


def _pair_view(pair: Pair) -> View:
    difference = pair.difference
    return {
        "time": rfc3339(pair.ours.scheduled_time),
        "in": "both",
        "name": pair.ours.name,
        "their_name": pair.theirs.name,
        "decided_at": moment(pair.ours.decided_at),
        "created_at": moment(pair.theirs.created_at),
        "later_seconds": None if difference is None else round(difference.total_seconds(), 6),
        "reason": None,
    }


def _ours_view(slot: OurSlot) -> View:
    return {
        "time": rfc3339(slot.scheduled_time),
        "in": "ours" if slot.decided_at is not None else "pending",
        "name": slot.name,
        "their_name": None,
        "decided_at": moment(slot.decided_at),
        "created_at": None,
        "later_seconds": None,
        "reason": None,
    }


def _theirs_view(run: TheirRun, reason: str | None) -> View:
    return {
        "time": rfc3339(run.at),
        "in": "theirs",
        "name": None,
        "their_name": run.name,
        "decided_at": None,
        "created_at": moment(run.created_at),
        "later_seconds": None,
        "reason": reason,
    }


def _lateness(seconds: Sequence[float]) -> View | None:
    """By how much ours were decided later than theirs were made; None where nobody knows."""
    if not seconds:
        return None
    return {
        "slots": len(seconds),
        "median_seconds": round(median(seconds), 6),
        "least_seconds": round(min(seconds), 6),
        "most_seconds": round(max(seconds), 6),
    }
