"""The planner's decision: which slots of a trigger become runs, which become skips, when to look again.

`plan` is pure. It starts from the stored cursor, never from "now": first it decides every past slot under
the revision in force at that slot and the catch-up policy (bounded, repeated until done), then it fills the
window ahead. Catch-up is nothing but planning with an old cursor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from horarium.core.instant import from_seconds, rfc3339, to_seconds
from horarium.core.keys import RunNamer
from horarium.core.revision import (
    GRACE,
    Revision,
    Skip,
    SkipReason,
    Span,
    Status,
    expiry,
    first_due,
    owed,
    schedule_of,
    spans,
    tzdata_version,
    verdict,
)
from horarium.core.run import Origin, PlannedRun, RunState
from horarium.core.schedule import Schedule
from horarium.core.spec import CatchUp
from horarium.core.trigger import Backfill, Change, Trigger, TriggerState


@dataclass(frozen=True, slots=True)
class Window:
    """What is planned ahead of every active trigger, and how much one step may do.

    At every moment at least `min_runs` upcoming runs exist and `min_scheduled_time` is covered; at most
    `max_runs`, none past `max_scheduled_time`. One step inserts at most `max_catchup_runs` past slots and
    walks at most `max_walk` instants: a bound on a transaction, never on what is owed. `lag` is how much
    earlier than strictly needed a top-up is due, `grace` how late is still on time for `catch_up: none`.
    """

    min_runs: int = 3
    max_runs: int = 100
    min_scheduled_time: timedelta = timedelta(hours=1)
    max_scheduled_time: timedelta = timedelta(days=100)
    max_catchup_runs: int = 100
    max_walk: int = 10_000
    lag: timedelta = timedelta(seconds=1)
    grace: timedelta = GRACE


@dataclass(frozen=True, slots=True)
class PlanInput:
    """A trigger that needs the planner, as the store leased it.

    `revisions` are those that decide anything after the cursor (and, with an open backfill, all of them),
    ascending. `decided` are the slots past the cursor that have a run or lie in a skip, each as a range: a
    person cancelled one ahead, or an edit moved the cursor back over a run that is claimed already.
    `token` is `plan_due_at` as the lease left it, for the compare-and-set.
    """

    trigger: Trigger
    revisions: tuple[Revision, ...]
    token: datetime
    backfills: tuple[Backfill, ...] = ()
    decided: tuple[tuple[datetime, datetime], ...] = ()


@dataclass(frozen=True, slots=True)
class BackfillStep:
    """How far a backfill has come: everything of it at or before `cursor` is done."""

    id: int
    cursor: datetime
    done: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What the store writes if the trigger is still as it was read (`revision`, `cursor`, `token`)."""

    input: PlanInput
    cursor: datetime
    plan_due_at: datetime | None
    status: Status
    runs: tuple[PlannedRun, ...] = ()
    skips: tuple[Skip, ...] = ()
    backfills: tuple[BackfillStep, ...] = ()
    error: str | None = None
    zone_digest: str | None = None
    tzdata_version: str | None = None


def plan(given: PlanInput, now: datetime, window: Window) -> Plan:
    """Decide the next step for one trigger. Raises what its schedule raises; see `failed_plan`."""
    trigger, current = given.trigger, given.revisions[-1]
    hold = trigger.status is Status.PAUSED
    past = _Past(given, now, window, hold)
    backfills = _backfills(given, past.cursor, window, now)
    if not past.complete:
        return past.to_plan(now, trigger.status, backfills)
    more = any(not step.done for step in backfills.steps)
    if current.state is not Status.ACTIVE:
        due = now if more else trigger.resume_at
        return past.to_plan(due, trigger.status, backfills)
    ahead = _Ahead(given, past, now, window)
    due = now if more else ahead.due
    status = Status.FINISHED if ahead.finished else Status.ACTIVE
    return past.to_plan(due, status, backfills, ahead)


def failed_plan(given: PlanInput, error: Exception, now: datetime) -> Plan:
    """A trigger that can't be planned: nothing of it is decided, people see why, and it is tried again later.

    The delay doubles from a minute to an hour.
    """
    delay = min(timedelta(hours=1), timedelta(minutes=1) * 2 ** min(given.trigger.error_count, 10))
    return Plan(
        given,
        given.trigger.cursor,
        now + delay,
        given.trigger.status,
        error=f"{type(error).__name__}: {error}"[:2_000],
    )


class Unplanned(StrEnum):
    """Why no run of a trigger is planned, whatever range a person asks for."""

    DELETED = "deleted"
    PAUSED = "paused"
    FINISHED = "finished"
    TZDATA = "tzdata"


@dataclass(frozen=True, slots=True)
class RangePlan:
    """What a person's wish for the runs of a range comes to, of one trigger.

    `change` is what to write; None where there is nothing to make, and where `refused` says why nothing is.
    `last` is the last slot that there is room for, where the range has more than the room given: nothing is
    made then. Of the slots in the range `planned` become runs, `existing` are runs that are still to be
    fired, and the rest are `decided` otherwise: cancelled, or fired by a clock that is ahead.
    """

    change: Change | None = None
    planned: int = 0
    existing: int = 0
    decided: int = 0
    refused: Unplanned | None = None
    last: datetime | None = None

    @property
    def slots(self) -> int:
        """How many there are in the range."""
        return self.planned + self.existing + self.decided


def plan_range(
    state: TriggerState,
    from_time: datetime,
    to_time: datetime,
    now: datetime,
    room: int,
    *,
    grace: timedelta = GRACE,
) -> RangePlan:
    """The slots in `[from_time, to_time]` and after `now` become runs now, before the window reaches them.

    They are the runs that the planner would make, under the present revision. The cursor stays: what lies
    before them is undecided, and a slot past the cursor that has a run is nothing new to the planner. A plan
    in the making knows nothing of them, so it has to lose. At most `room` slots may lie in the range. Raises
    what the schedule raises. See docs/design/plan-range.md.
    """
    trigger, current = state.trigger, state.current
    if current.state is not Status.ACTIVE:
        return RangePlan(refused=Unplanned(current.state.value))
    if trigger.status is Status.FINISHED:
        return RangePlan(refused=Unplanned.FINISHED)
    given = PlanInput(trigger, state.revisions, now, decided=state.decided)
    past = _Past(given, now, Window(grace=grace), False, walk=False)
    rule, zone = past.rule, past.rule.zone
    if zone is not None and trigger.zone_digest not in (None, zone.digest):
        return RangePlan(refused=Unplanned.TZDATA)
    # Up to the beginning of its revision the slots are an older one's, and the planner's.
    start = max(now, current.effective_from, from_time - timedelta(microseconds=1))
    slots = rule.between(to_seconds(start), to_seconds(to_time), room + 1)
    if len(slots) > room:
        return RangePlan(last=from_seconds(slots[room - 1]) if room else now)
    cursor = to_seconds(trigger.cursor)
    fresh = [slot for slot in slots if slot > cursor and not past.is_decided(slot)]
    pending = {to_seconds(run.scheduled_time) for run in state.pending if run.origin is not Origin.MANUAL}
    existing = sum(slot in pending for slot in slots)
    if not fresh:
        return RangePlan(existing=existing, decided=len(slots) - existing)
    runs = tuple(
        past.run(
            slot,
            first_due(current.spec, trigger.hash_seed, slot),
            rule.after(slot),
            current,
            rule,
            Origin.SCHEDULE,
        )
        for slot in fresh
    )
    changed = replace(trigger, plan_due_at=now, updated_at=now)
    if zone is not None and trigger.zone_digest is None:
        changed = replace(changed, zone_digest=zone.digest, tzdata_version=tzdata_version())
    detail = {"from": rfc3339(from_time), "to": rfc3339(to_time), "runs": len(runs)}
    return RangePlan(
        Change("plan", changed, planned=runs, detail=detail),
        len(runs),
        existing,
        len(slots) - len(runs) - existing,
    )


class _Past:
    """The slots in `(cursor, now]`, decided in bounded order.

    Where a clock that was ahead made the present revision, it is not in force yet: the slots until then are
    the older ones', and are decided here too. None of them is late, so catch-up has no say in them.
    """

    def __init__(
        self, given: PlanInput, now: datetime, window: Window, hold: bool, *, walk: bool = True
    ) -> None:
        self.given = given
        self.now = now
        self.window = window
        self.hold = hold
        self.runs: list[PlannedRun] = []
        self.skips: list[Skip] = []
        self.cursor = given.trigger.cursor
        self.complete = True
        self.rule = schedule_of(given.revisions[-1].spec, given.trigger.hash_seed)
        self._namer = RunNamer(given.trigger.key)
        self._frozen = given.trigger.frozen
        self._decided = [
            (to_seconds(first), to_seconds(last)) for first, last in given.decided if first < last
        ]
        self._taken = {to_seconds(first) for first, last in given.decided if first == last}
        self.until = max(now, given.revisions[-1].effective_from)
        if walk and self.cursor < self.until:
            self._walk()

    def _walk(self) -> None:
        seed = self.given.trigger.hash_seed
        walked = 0
        for span in spans(self.given.revisions, self.cursor, self.until):
            state = span.revision.state
            if state is Status.DELETED:
                continue
            rule = schedule_of(span.revision.spec, seed)
            slot = rule.after(span.start)
            while slot is not None and slot <= span.end:
                if walked >= self.window.max_walk or len(self.runs) >= self.window.max_catchup_runs:
                    self.complete = False
                    return
                following = rule.after(slot)
                if not self.is_decided(slot):
                    if state is Status.PAUSED:
                        self._skip(slot, span.revision, SkipReason.PAUSED)
                    else:
                        self._judge(slot, following, span, rule)
                self.cursor = from_seconds(slot)
                walked += 1
                slot = following
        self.cursor = max(self.cursor, self.until)

    def _judge(self, slot: int, following: int | None, span: Span, rule: Schedule) -> None:
        spec, seed = span.revision.spec, self.given.trigger.hash_seed
        due = first_due(spec, seed, slot)
        successor = self._successor(following, span)
        superseded = successor is not None and successor <= to_seconds(self.now)
        reason = verdict(spec, due, superseded, self.now, self.window.grace)
        if reason is not None:
            self._skip(slot, span.revision, reason)
        else:
            self.runs.append(self.run(slot, due, successor, span.revision, rule, Origin.SCHEDULE))

    def _successor(self, following: int | None, span: Span) -> int | None:
        """The next owed slot: of this revision while it lasts, else of a later active one."""
        last = span.revision is self.given.revisions[-1]
        if following is not None and (last or following <= span.end):
            return following
        if last:
            return None
        later = [item for item in self.given.revisions if item.number > span.revision.number]
        start = later[0].effective_from
        end = from_seconds(253_402_300_799)
        found = next(iter(owed(later, self.given.trigger.hash_seed, start, end)), None)
        return None if found is None else found[0]

    def run(
        self,
        slot: int,
        due: datetime,
        successor: int | None,
        revision: Revision,
        rule: Schedule,
        origin: Origin,
    ) -> PlannedRun:
        spec = revision.spec
        expires = None
        if origin is Origin.SCHEDULE:
            latest = spec.catch_up is CatchUp.LATEST  # nothing else asks for the next slot
            following = from_seconds(successor) if successor is not None and latest else None
            expires = expiry(spec, due, following, self.window.grace)
        zone = rule.zone
        # A pause is about the automatic runs; a freeze stops all that the planner makes.
        held = self._frozen or (self.hold and origin is Origin.SCHEDULE)
        return PlannedRun(
            slot,
            due,
            expires,
            self._namer(slot),
            revision.number,
            origin,
            RunState.HELD if held else RunState.SCHEDULED,
            0 if zone is None else zone.offset_at(slot),
            spec.target,
        )

    def _skip(self, slot: int, revision: Revision, reason: SkipReason) -> None:
        at = from_seconds(slot)
        if self.skips:
            last = self.skips[-1]
            if (
                last.revision == revision.number
                and last.reason == reason
                and last.last == self.cursor
                and last.count > 0
            ):
                self.skips[-1] = replace(last, last=at, count=last.count + 1)
                return
        because = revision.stopped_because if reason is SkipReason.PAUSED else ""
        self.skips.append(Skip(revision.number, at, at, 1, reason, because))

    def is_decided(self, slot: int) -> bool:
        """Whether it has a run or a skip, though it is past the cursor."""
        if slot in self._taken:
            return True
        return bool(self._decided) and any(first <= slot <= last for first, last in self._decided)

    def to_plan(
        self,
        due: datetime | None,
        status: Status,
        backfills: _Backfilled,
        ahead: _Ahead | None = None,
    ) -> Plan:
        runs = [*self.runs, *(ahead.runs if ahead else ()), *backfills.runs]
        zone = self.rule.zone
        return Plan(
            self.given,
            ahead.cursor if ahead else self.cursor,
            due,
            status,
            tuple(runs),
            tuple(self.skips),
            tuple(backfills.steps),
            zone_digest=None if zone is None else zone.digest,
            tzdata_version=None if zone is None else tzdata_version(),
        )


class _Ahead:
    """The window ahead of `now`, filled to twice its minimum, and when it needs filling again.

    The next top-up is due exactly when the promise would otherwise fail: see docs/design/window.md.
    """

    def __init__(self, given: PlanInput, past: _Past, now: datetime, window: Window) -> None:
        current = given.revisions[-1]
        spec, seed = current.spec, given.trigger.hash_seed
        rule = past.rule
        self.runs: list[PlannedRun] = []
        self.cursor = past.cursor
        start, at = to_seconds(now), to_seconds(past.cursor)
        since = max(start, to_seconds(current.effective_from))
        upcoming = rule.between(since, at, window.max_runs) if at > since else []
        horizon = start + _whole(window.max_scheduled_time)
        twice = start + 2 * _whole(window.min_scheduled_time)
        slot = rule.after(max(start, at))
        last: int | None = None
        while (
            slot is not None
            and slot <= horizon
            and len(upcoming) < window.max_runs
            and (len(upcoming) < 2 * window.min_runs or slot <= twice)
        ):
            following = rule.after(slot)
            if not past.is_decided(slot):
                due = first_due(spec, seed, slot)
                self.runs.append(past.run(slot, due, following, current, rule, Origin.SCHEDULE))
            upcoming.append(slot)
            last = slot
            slot = following
        if last is not None:
            self.cursor = from_seconds(last)
        self.finished = slot is None and not upcoming
        self.due = _next_due(upcoming, slot, now, window)


def _next_due(
    upcoming: Sequence[int], following: int | None, now: datetime, window: Window
) -> datetime | None:
    """When the next top-up is due; `following` is the first slot that is not planned.

    None: there is nothing more to do, ever.
    """
    planned = len(upcoming)
    if following is None:
        return from_seconds(upcoming[-1]) if upcoming else None
    promised = following - _whole(window.min_scheduled_time)
    if planned >= window.min_runs:
        promised = min(promised, upcoming[planned - window.min_runs])
    else:
        promised = to_seconds(now)
    due = from_seconds(promised) - window.lag
    if due <= now and upcoming:
        # So frequent that max_runs can't cover min_scheduled_time: half of what is there is used up first,
        # or as many as leave min_runs.
        used = min(math.ceil(planned / 2) - 1, max(0, planned - window.min_runs))
        due = from_seconds(upcoming[used])
    if planned == window.max_runs:
        due = max(due, from_seconds(upcoming[0]))  # before that there is no room
    due = max(due, from_seconds(following - _whole(window.max_scheduled_time)))
    return max(due, now + timedelta(milliseconds=100))


@dataclass(slots=True)
class _Backfilled:
    runs: list[PlannedRun] = field(default_factory=list)
    steps: list[BackfillStep] = field(default_factory=list)


def _backfills(given: PlanInput, cursor: datetime, window: Window, now: datetime) -> _Backfilled:
    """One bounded step of each open backfill.

    It fills only what is decided already (at or before the cursor): a slot that the walk above has yet to
    judge would else be a run and inside a skip at once.
    """
    found = _Backfilled()
    if not given.backfills:
        return found
    room = window.max_catchup_runs
    bare = PlanInput(given.trigger, given.revisions, given.token)
    past = _Past(bare, given.trigger.cursor, window, False, walk=False)
    for item in given.backfills:
        end = min(item.to_time, cursor)
        at, done = item.cursor, True
        for taken, (slot, revision, rule) in enumerate(_all_slots(given, item.cursor, end)):
            if taken >= room:
                done = False
                break
            due = first_due(revision.spec, given.trigger.hash_seed, slot)
            found.runs.append(past.run(slot, due, None, revision, rule, Origin.BACKFILL))
            at = from_seconds(slot)
        if done:
            at = max(at, end)
        found.steps.append(BackfillStep(item.id, at, done and end >= item.to_time))
    return found


def _all_slots(given: PlanInput, start: datetime, end: datetime) -> Iterator[tuple[int, Revision, Schedule]]:
    """The slots in `(start, end]` of every revision, whatever its state: a backfill is explicit."""
    for span in spans(given.revisions, start, end):
        rule = schedule_of(span.revision.spec, given.trigger.hash_seed)
        slot = rule.after(span.start)
        while slot is not None and slot <= span.end:
            yield slot, span.revision, rule
            slot = rule.after(slot)


def _whole(delta: timedelta) -> int:
    return delta // _SECOND


_SECOND = timedelta(seconds=1)
