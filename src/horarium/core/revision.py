"""Revisions, and the slots that a chain of them owes.

A revision is a trigger's whole spec over `(effective_from, next.effective_from]`. A slot belongs to the
revision in force at that slot. Instants of slots are `int` seconds here; everything else is aware UTC.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any

from horarium.core import schedule as schedules
from horarium.core.instant import MAX_SECONDS, from_seconds, to_seconds
from horarium.core.keys import jitter
from horarium.core.run import Run
from horarium.core.schedule import Schedule
from horarium.core.spec import CatchUp, TriggerSpec, canonical_json
from horarium.core.zone import DEFAULT_ZONES, Zones

GRACE = timedelta(seconds=60)
"""How late a slot may be looked at before catch-up has a say, unless configured otherwise."""

COUNT_BOUND = 1_000_000
"""The most instants that one count walks (about a second); more is recorded as "at least"."""


DECIDED_BOUND = 100_000
"""The most slots of one skip past a cursor; only a clock that was far ahead leaves more than a few."""


class Status(StrEnum):
    """The state of a trigger; a revision is active, paused or deleted."""

    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Revision:
    """A trigger's spec from `effective_from` (exclusive) on, why it came and by whom.

    `shadow`: its slots are another scheduler's to fire; ours are decided, and end `shadowed`.
    `deployment_paused`: an operator's pause of its deployment is in force, so it is not active.
    """

    number: int
    effective_from: datetime
    state: Status
    spec: TriggerSpec
    what: str = "create"
    who: str = ""
    shadow: bool = False
    deployment_paused: bool = False

    @property
    def stopped_because(self) -> str:
        """What a skip says beyond `paused`, while it is: why the source has it so, or whose pause it is."""
        return self.spec.inactive_because or (DEPLOYMENT_PAUSED if self.deployment_paused else "")


DEPLOYMENT_PAUSED = "its deployment was paused"


@dataclass(frozen=True, slots=True)
class Skip:
    """A recorded range of slots that policy or a person decided not to run.

    `first` and `last` are slots of the rule of `revision`; all its slots between them, `count` with both
    ends, are skipped. `reason` is one word of `SkipReason`, `detail` a sentence for people.
    """

    revision: int
    first: datetime
    last: datetime
    count: int
    reason: str
    detail: str = ""


class SkipReason(StrEnum):
    """Why slots did not run."""

    PAUSED = "paused"
    DELETED = "deleted"
    CANCELLED = "cancelled"
    LATEST = "catch_up_latest"
    NONE = "catch_up_none"
    MAX_AGE = "max_age"
    RELEASED = "released"
    OVERLAP = "overlap"


def schedule_of(spec: TriggerSpec, seed: str) -> Schedule:
    """The schedule of a spec; `seed` is the trigger's hash seed. Cached, as plans ask again and again.

    Only `H` draws from the seed, so triggers whose rule has no such letter share one schedule.
    """
    text = canonical_json(spec.schedule)
    return _parsed(text, seed if "H" in text.upper() else "")


@lru_cache(maxsize=65_536)
def _parsed(text: str, seed: str) -> Schedule:
    mapping: dict[str, Any] = json.loads(text)
    return schedules.parse(mapping, seed=seed, zones=_zones[0])


_zones: list[Zones] = [DEFAULT_ZONES]


def use_zones(zones: Zones) -> None:
    """Evaluate everything by these tz data from now on; for tests of what another release changes."""
    _zones[0] = zones
    _parsed.cache_clear()


def tzdata_version() -> str:
    """The release of the tz data that decides in this process."""
    return _zones[0].version


@dataclass(frozen=True, slots=True)
class Span:
    """The part `(start, end]` of a revision's interval, in seconds."""

    revision: Revision
    start: int
    end: int


def spans(revisions: Sequence[Revision], start: datetime, end: datetime) -> list[Span]:
    """The parts of `(start, end]` that each revision decides, in order; empty ones are left out.

    The first revision also decides what lies before it: only a backfill ever looks there.
    """
    found: list[Span] = []
    last = to_seconds(end)
    for index, (revision, following) in enumerate(pairwise([*revisions, None])):
        assert revision is not None
        low = start if index == 0 else max(start, revision.effective_from)
        high = last if following is None else min(last, to_seconds(following.effective_from))
        if to_seconds(low) < high:
            found.append(Span(revision, to_seconds(low), high))
    return found


def owed(
    revisions: Sequence[Revision], seed: str, start: datetime, end: datetime
) -> Iterator[tuple[int, Revision]]:
    """The slots that active revisions owe in `(start, end]`, ascending."""
    for span in spans(revisions, start, end):
        if span.revision.state is not Status.ACTIVE:
            continue
        rule = schedule_of(span.revision.spec, seed)
        slot = rule.after(span.start)
        while slot is not None and slot <= span.end:
            yield slot, span.revision
            slot = rule.after(slot)


def next_slot(spec: TriggerSpec, seed: str, after: datetime) -> datetime | None:
    """The first slot of `spec` after an instant."""
    slot = schedule_of(spec, seed).after(to_seconds(after))
    return None if slot is None or slot > MAX_SECONDS else from_seconds(slot)


def first_due(spec: TriggerSpec, seed: str, slot: int) -> datetime:
    """When a slot is first tried: its time and the trigger's jitter."""
    at = from_seconds(slot)
    return at + jitter(seed, slot, spec.jitter) if spec.jitter else at


def expiry(
    spec: TriggerSpec, due: datetime, successor: datetime | None, grace: timedelta = GRACE
) -> datetime | None:
    """When catch-up gives up a slot that downtime kept from being looked at; None: never.

    `due` is its first `due_at`, `successor` the next owed slot. Ages count from `due`, so that jitter
    never makes a slot too old before it could be tried.
    """
    if spec.catch_up is CatchUp.ALL and spec.max_age is None:
        return None
    ends: list[datetime] = []
    if spec.max_age is not None:
        ends.append(due + spec.max_age)
    if spec.catch_up is CatchUp.LATEST and successor is not None:
        ends.append(successor)
    if spec.catch_up is CatchUp.NONE:
        ends.append(due + grace)
    return min(ends, default=None)


def verdict(
    spec: TriggerSpec, due: datetime, superseded: bool, now: datetime, grace: timedelta = GRACE
) -> SkipReason | None:
    """Whether catch-up gives up a slot that is past when it is looked at, and why. None: it runs."""
    age = now - due
    if spec.catch_up is CatchUp.LATEST and superseded:
        return SkipReason.LATEST
    if spec.catch_up is CatchUp.NONE and age > grace:
        return SkipReason.NONE
    if spec.max_age is not None and age > spec.max_age:
        return SkipReason.MAX_AGE
    return None


def expired_reason(spec: TriggerSpec, due: datetime, now: datetime) -> SkipReason:
    """Which rule's end an expired run (`expires_at <= now`) has reached."""
    if spec.max_age is not None and due + spec.max_age <= now:
        return SkipReason.MAX_AGE
    return SkipReason.NONE if spec.catch_up is CatchUp.NONE else SkipReason.LATEST


def verdicts_on_release(
    held: Sequence[Run], spec_of: Callable[[int], TriggerSpec], now: datetime, grace: timedelta = GRACE
) -> list[SkipReason | None]:
    """Catch-up's word on each held run, in order of its slot, at the moment of its release.

    Runs that were tried, backfills and manual runs are always released. Only a slot that has come supersedes
    an earlier one: a pause by a clock that was ahead holds slots that are still to come.
    """
    judged = [run.automatic and run.attempt == 0 for run in held]
    come = (index for index, yes in enumerate(judged) if yes and held[index].scheduled_time <= now)
    last = max(come, default=-1)
    return [
        verdict(spec_of(run.revision), run.first_due_at, index < last, now, grace) if yes else None
        for index, (run, yes) in enumerate(zip(held, judged, strict=True))
    ]


def decided_slots(
    spec: TriggerSpec, seed: str, first: datetime, last: datetime, cursor: datetime
) -> list[tuple[datetime, datetime]]:
    """The part of a skip that reaches past the cursor, as `decided` has it: slot by slot.

    A skip is the slots of its own rule between its ends; the rule in force may name others there, and they
    are still to be decided. Past `DECIDED_BOUND` slots the rest is left out: those are decided again.
    """
    if first == last:
        return [(first, last)]
    rule = schedule_of(spec, seed)
    low = max(to_seconds(first) - 1, to_seconds(cursor))
    slots = rule.between(low, to_seconds(last), DECIDED_BOUND)
    return [(at, at) for at in map(from_seconds, slots)]


def count_skips(
    revisions: Sequence[Revision],
    seed: str,
    start: datetime,
    end: datetime,
    reason: SkipReason,
    detail: str = "",
) -> list[Skip]:
    """Skips over all slots of `(start, end]`: of active revisions for `reason`, of paused ones as paused."""
    found: list[Skip] = []
    for span in spans(revisions, start, end):
        state = span.revision.state
        if state not in (Status.ACTIVE, Status.PAUSED):
            continue
        paused = state is Status.PAUSED
        rule = schedule_of(span.revision.spec, seed)
        skip = count_range(rule, span.start, span.end)
        if skip is not None:
            first, last, count = skip
            why = SkipReason.PAUSED if paused else reason
            found.append(
                Skip(
                    span.revision.number,
                    from_seconds(first),
                    from_seconds(last),
                    count,
                    why,
                    span.revision.stopped_because if paused else detail,
                )
            )
    return found


def count_range(rule: Schedule, start: int, end: int) -> tuple[int, int, int] | None:
    """First slot, last slot and number of the slots in `(start, end]`; None when there are none.

    Past `COUNT_BOUND` the count stops, and is a lower bound; first and last stay exact.
    """
    first = rule.after(start)
    if first is None or first > end:
        return None
    count, at = 1, first
    while count < COUNT_BOUND:
        chunk = rule.between(at, end, 10_000)
        if not chunk:
            break
        count += len(chunk)
        at = chunk[-1]
    else:
        at = rule.before(end) or at
    return first, at, count
