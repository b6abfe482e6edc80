"""Triggers, their revisions, and every change that a person or a source makes to one.

A revision is the whole spec over an interval of time, `(effective_from, next.effective_from]`. A slot is
decided by the revision in force at that slot, so a change takes effect at its own instant `T` and never
reaches back: it withdraws the later runs that nobody has claimed, moves the cursor back to `T` at most,
and leaves what is owed alone.

    active <---- resume ----- paused        active: owes its slots
      |  \\---- pause ------->  |           paused: owes nothing while it lasts; its slots become a skip
      |                         |           deleted: owes nothing, keeps its id; adding it again revives it
      +------> deleted <--------+           finished: active, but its schedule has no slot left

Three things keep a trigger paused, each by itself: its operator's pause (`paused`), that of its deployment
(`core/deployment.py`; its present revision has the mark), and its spec's `active: false`. It is active when
none of them stands in the way.

The functions here are pure: `(state, ...) -> Change`, evaluated under the trigger's lock by a store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from horarium.core.instant import from_seconds, rfc3339, to_seconds
from horarium.core.keys import TriggerKey
from horarium.core.outcome import UNKNOWN
from horarium.core.revision import (
    GRACE,
    Revision,
    Skip,
    SkipReason,
    Status,
    count_range,
    count_skips,
    expiry,
    next_slot,
    schedule_of,
    verdicts_on_release,
)
from horarium.core.run import Origin, PlannedRun, Run, RunState
from horarium.core.spec import Step, TriggerSpec


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger's row. `managed_by` is its source's name, or None for people through the API.

    `paused` is the operator's instruction, apart from the spec's `active`, and so is `shadow`: plan and
    decide, fire nothing. `frozen`: a freeze of its
    deployment or project is in force, so none of its runs is claimed, whatever else holds.

    `cursor`: every slot at or before it is decided. `plan_due_at` is when the planner next needs to look,
    and the token of its compare-and-set.
    """

    id: int
    key: TriggerKey
    hash_seed: str
    managed_by: str | None
    revision: int
    status: Status
    cursor: datetime
    plan_due_at: datetime | None
    paused: bool = False
    pause_note: str | None = None
    paused_by: str | None = None
    paused_at: datetime | None = None
    resume_at: datetime | None = None
    shadow: bool = False
    frozen: bool = False
    error: str | None = None
    error_count: int = 0
    zone_digest: str | None = None
    tzdata_version: str | None = None
    pruned_before: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Backfill:
    """A closed range `[from_time, to_time]` of slots to fill. Everything at or before `cursor` is done."""

    id: int
    trigger_id: int
    from_time: datetime
    to_time: datetime
    cursor: datetime
    state: str = "open"
    runs: int = 0
    created_by: str = ""
    created_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TriggerState:
    """What a decision may look at, read under the trigger's lock.

    `revisions` are those in force after the cursor and those that pending runs belong to, ascending; the
    last is the present one. `pending` are its runs still to be fired, by scheduled time. `backfills` are
    the open ones. `decided` are the slots past the cursor that have a run or lie in a skip, each as a range.
    `claimed` is the latest slot after the reader's `now` that an executor has claimed already, if there is
    one: its clock was ahead of the editor's, or the editor waited for the lock.
    """

    trigger: Trigger
    revisions: tuple[Revision, ...]
    pending: tuple[Run, ...] = ()
    backfills: tuple[Backfill, ...] = ()
    decided: tuple[tuple[datetime, datetime], ...] = ()
    claimed: datetime | None = None

    @property
    def current(self) -> Revision:
        return self.revisions[-1]

    def spec_of(self, number: int) -> TriggerSpec:
        """The spec of a revision, or of the present one where that is gone."""
        return next((item.spec for item in self.revisions if item.number == number), self.current.spec)


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """New values of a pending run's columns."""

    id: int
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Change:
    """What a store writes, in one transaction under the trigger's lock. `what` is one word for the audit.

    `trigger` is the row as it shall be; `revision` a new one, if any, and `between` those that came and went
    before it, unseen; `withdrawn` are ids of runs to delete, `planned` runs to make, of slots that have none;
    `ended_backfills` ids of backfills that end now; `backfill` a new one's range.
    """

    what: str
    trigger: Trigger
    revision: Revision | None = None
    withdrawn: tuple[int, ...] = ()
    planned: tuple[PlannedRun, ...] = field(default=(), kw_only=True)
    updated: tuple[RunUpdate, ...] = ()
    skips: tuple[Skip, ...] = ()
    ended_backfills: tuple[int, ...] = ()
    backfill: tuple[datetime, datetime] | None = None
    detail: Mapping[str, object] = field(default_factory=dict)
    between: tuple[Revision, ...] = ()

    @property
    def revisions(self) -> tuple[Revision, ...]:
        """The new ones, ascending."""
        return self.between if self.revision is None else (*self.between, self.revision)


def edit(
    state: TriggerState,
    spec: TriggerSpec,
    who: str,
    now: datetime,
    *,
    what: str = "edit",
    since: datetime | None = None,
    earlier: Sequence[Step] = (),
    grace: timedelta = GRACE,
    deployment_paused: bool | None = None,
) -> Change | None:
    """The trigger under a new spec from `now` on. None when the rule is the same and it is not deleted.

    `deployment_paused`: whether the deployment is that it is in from now on; None: as it is known.

    `since` is when the rule came into force where it is kept, if that was before `now`: slots from then on
    are the new rule's, except up to the last one that was claimed under the present rule. `earlier` is what
    was in force between the present rule and this one, ascending: slots of that time are decided by it, and
    those of a time in which the trigger was deleted become a skip.
    """
    deleted = state.trigger.status is Status.DELETED
    moved = deployment_paused is not None and deployment_paused is not state.current.deployment_paused
    if not deleted and not earlier and not moved and spec.digest() == state.current.spec.digest():
        return None
    paused, what = state.trigger.paused and not deleted, "revive" if deleted else what
    return _revise(
        state, spec, paused, what, who, now, grace, since, earlier, deployment_paused=deployment_paused
    )


def pause(
    state: TriggerState,
    who: str,
    now: datetime,
    *,
    note: str | None = None,
    resume_at: datetime | None = None,
) -> Change | None:
    """An operator's pause. None when it is paused so already.

    One with another note is theirs who wrote that, and began when it began.
    """
    trigger = state.trigger
    if trigger.paused and trigger.pause_note == note and trigger.resume_at == resume_at:
        return None
    if trigger.paused:
        by = trigger.paused_by if trigger.pause_note == note else who
        moved = replace(trigger, pause_note=note, paused_by=by, resume_at=resume_at)
        return Change("pause", replace(moved, plan_due_at=now, updated_at=now))
    change = _revise(state, state.current.spec, True, "pause", who, now, GRACE)
    paused = replace(change.trigger, pause_note=note, paused_by=who, paused_at=now, resume_at=resume_at)
    return replace(change, trigger=paused)


def resume(
    state: TriggerState, who: str, now: datetime, *, backfill: bool = False, grace: timedelta = GRACE
) -> Change | None:
    """The end of an operator's pause. `backfill` also fills the slots of the paused interval.

    That is `(paused_at, now]`: a slot at the very instant of the pause was owed before it, and is released
    under the trigger's catch-up policy like the rest of what was held.
    """
    if not state.trigger.paused:
        return None
    change = _revise(state, state.current.spec, False, "resume", who, now, grace)
    since = state.trigger.paused_at
    if backfill and since is not None:
        change = replace(change, backfill=_paused_range(since, now))
    cleared = replace(change.trigger, pause_note=None, paused_by=None, paused_at=None, resume_at=None)
    return replace(change, trigger=cleared)


def pause_with_deployment(state: TriggerState, who: str, now: datetime) -> Change | None:
    """Its deployment is paused; its own pause is another thing, and stays.

    None for what is so already, and for a tombstone: added again it takes the mark of where it is.
    """
    if state.trigger.status is Status.DELETED or state.current.deployment_paused:
        return None
    paused = state.trigger.paused
    return _revise(
        state, state.current.spec, paused, "pause-deployment", who, now, GRACE, deployment_paused=True
    )


def resume_with_deployment(
    state: TriggerState,
    who: str,
    now: datetime,
    *,
    fill_from: datetime | None = None,
    grace: timedelta = GRACE,
) -> Change | None:
    """Its deployment goes on, and so does the trigger unless its own pause or its spec stands in the way.

    `fill_from`: since when the pause of its deployment has kept it. If it goes on, a backfill fills its slots
    from then on. None for what was not paused with its deployment.
    """
    if state.trigger.status is Status.DELETED or not state.current.deployment_paused:
        return None
    paused = state.trigger.paused
    change = _revise(
        state, state.current.spec, paused, "resume-deployment", who, now, grace, deployment_paused=False
    )
    if fill_from is None or change.trigger.status is not Status.ACTIVE:
        return change
    return replace(change, backfill=_paused_range(fill_from, now))


def shadow(state: TriggerState, on: bool, who: str, now: datetime) -> Change | None:
    """Into the shadow of another scheduler, or out of it. None when it is there already.

    A new revision of the same rule, in force after `T`: a slot at or before it stays its old one's, so every
    slot has one scheduler and none has two.
    """
    if state.trigger.shadow is on:
        return None
    what = "shadow-on" if on else "shadow-off"
    return _revise(state, state.current.spec, state.trigger.paused, what, who, now, GRACE, shadow=on)


def delete(state: TriggerState, who: str, now: datetime) -> Change | None:
    """A tombstone: nothing is owed any more, and what was becomes a skip. None when it is one already.

    A run whose call may be under way keeps its lease and may still become `fired`. One that was tried and
    waits ends `failed`: it may exist over there, so it can't be a skip.
    """
    trigger = state.trigger
    if trigger.status is Status.DELETED:
        return None
    at = _instant(state, now)
    withdrawn: list[int] = []
    updated: list[RunUpdate] = []
    skips = [
        skip
        for low, high in _undecided(state, at)
        for skip in count_skips(
            state.revisions, trigger.hash_seed, low, high, SkipReason.DELETED, f"deleted by {who}"
        )
    ]
    for run in state.pending:
        if run.leased(now):
            continue
        if run.attempt > 0:
            updated.append(_ended(run, RunState.FAILED, f"trigger deleted by {who} while it waited", now))
        elif run.origin is Origin.MANUAL:
            updated.append(_ended(run, RunState.CANCELLED, f"trigger deleted by {who}", now))
        else:
            withdrawn.append(run.id)
            if run.scheduled_time <= at:
                skips.append(_slot_skip(run, SkipReason.DELETED, f"deleted by {who}"))
    # Added again it is where it was: in shadow, or cut over.
    revision = Revision(
        state.current.number + 1, at, Status.DELETED, state.current.spec, "delete", who, trigger.shadow
    )
    gone = replace(
        trigger,
        revision=revision.number,
        status=Status.DELETED,
        cursor=at,
        plan_due_at=None,
        paused=False,
        pause_note=None,
        paused_by=None,
        paused_at=None,
        resume_at=None,
        error=None,
        error_count=0,
        updated_at=now,
    )
    return Change(
        "delete",
        gone,
        revision,
        tuple(withdrawn),
        tuple(updated),
        _merged(skips),
        tuple(item.id for item in state.backfills),
    )


def start_backfill(state: TriggerState, from_time: datetime, to_time: datetime, now: datetime) -> Change:
    """A backfill of `[from_time, to_time]`; the planner fills it in bounded steps."""
    return Change(
        "backfill",
        replace(state.trigger, plan_due_at=now, updated_at=now),
        backfill=(from_time, to_time),
    )


def end_backfill(state: TriggerState, backfill_id: int, now: datetime) -> Change | None:
    """Stops a backfill where it is; what it has made stays. None when it is not open."""
    if all(item.id != backfill_id for item in state.backfills):
        return None
    return Change("end-backfill", replace(state.trigger, plan_due_at=now), ended_backfills=(backfill_id,))


def retime(
    state: TriggerState,
    last: tuple[datetime, timedelta] | None,
    version: str,
    now: datetime,
) -> Change | None:
    """The zone's table has changed: later unclaimed runs are planned anew. None when it has not.

    `last` is the last slot that is decided and not later than now, with the offset from UTC under which it
    was planned. A rule of the wall clock goes on after that slot's local time as the new table has it, so
    that no local day is lost and none comes twice; any other rule goes on from now.
    """
    trigger = state.trigger
    rule = schedule_of(state.current.spec, trigger.hash_seed)
    zone = rule.zone
    if zone is None or zone.digest == trigger.zone_digest:
        return None
    at = _instant(state, now)
    cursor = min(trigger.cursor, at)
    if last is not None and rule.wall_clock:
        slot, offset = last
        local = to_seconds(slot) + int(offset.total_seconds())
        passes = zone.resolve(local) or (local - zone.offset_at(to_seconds(slot)),)
        cursor = from_seconds(passes[-1])
    return Change(
        "tz",
        replace(
            trigger,
            cursor=cursor,
            plan_due_at=now,
            zone_digest=zone.digest,
            tzdata_version=version,
            updated_at=now,
        ),
        withdrawn=tuple(run.id for run in state.pending if _withdrawable(state, run, at)),
        detail={"zone": zone.name, "tzdata": version, "before": trigger.tzdata_version},
    )


def cancel_run(state: TriggerState, run: Run, who: str, now: datetime) -> Change | None:
    """A pending run that shall not fire: a slot becomes a skip, a manual run ends `cancelled`.

    None when it is leased (its call may be under way) or no longer pending: the caller says so. A slot that
    was tried already ends `failed`, because it may exist over there.
    """
    if run.state not in (RunState.SCHEDULED, RunState.HELD) or run.leased(now):
        return None
    same = replace(state.trigger, updated_at=now)
    if run.origin is Origin.MANUAL:
        return Change("cancel", same, updated=(_ended(run, RunState.CANCELLED, f"cancelled by {who}", now),))
    if run.attempt > 0:
        return Change("cancel", same, updated=(_ended(run, RunState.FAILED, f"cancelled by {who}", now),))
    return Change(
        "cancel",
        same,
        withdrawn=(run.id,),
        skips=(_slot_skip(run, SkipReason.CANCELLED, f"cancelled by {who}"),),
    )


def retry_run(state: TriggerState, run: Run, now: datetime) -> Change | None:
    """A failed run is tried again from now on, with its whole retry time before it. None unless failed."""
    if run.state is not RunState.FAILED:
        return None
    paused = state.trigger.status is Status.PAUSED and run.origin is not Origin.BACKFILL
    held = paused or state.trigger.frozen
    again: dict[str, object] = {
        "state": RunState.HELD if held else RunState.SCHEDULED,
        "due_at": now,
        "lease_owner": None,
        "first_claimed_at": None,
        "settled_at": None,
        "reason": None,
    }
    return Change("retry", replace(state.trigger, updated_at=now), updated=(RunUpdate(run.id, again),))


def _revise(
    state: TriggerState,
    spec: TriggerSpec,
    paused: bool,
    what: str,
    who: str,
    now: datetime,
    grace: timedelta,
    since: datetime | None = None,
    earlier: Sequence[Step] = (),
    *,
    shadow: bool | None = None,
    deployment_paused: bool | None = None,
) -> Change:
    """A new revision at `T`: later unclaimed runs go, owed ones are held or released as the state asks.

    It is in shadow, and paused with its deployment, if the last one was, unless told. With `earlier` there
    are several: the first one's instant is where the trigger is planned again from, the last one's state is
    the trigger's.
    """
    trigger = state.trigger
    shadowed = trigger.shadow if shadow is None else shadow
    with_deployment = state.current.deployment_paused if deployment_paused is None else deployment_paused
    target_state = Status.PAUSED if paused or with_deployment or not spec.active else Status.ACTIVE
    steps = [*earlier, Step(since, spec)]
    revisions = _chain(state, steps, paused, what, who, now, shadowed, with_deployment)
    at, revision = revisions[0].effective_from, revisions[-1]
    later = [run for run in state.pending if _withdrawable(state, run, at)]
    kept = [run for run in state.pending if not _withdrawable(state, run, at)]
    withdrawn = [run.id for run in later]
    updated: list[RunUpdate] = []
    skips = _while_deleted(state, revisions)
    if target_state is Status.PAUSED:
        updated += _hold(kept, now)
    elif state.current.state is Status.PAUSED and not trigger.frozen:
        # Under a freeze they stay held: its release asks what becomes of them.
        gone, released, given_up = _release(state, kept, now, grace)
        withdrawn += gone
        updated += released
        skips += given_up
    follows = spec if target_state is Status.ACTIVE else None
    updated += _new_expiry(state, kept, follows, revision.effective_from, withdrawn, grace)
    changed = replace(
        trigger,
        revision=revision.number,
        status=target_state,
        cursor=at if trigger.status is Status.DELETED else min(trigger.cursor, at),
        plan_due_at=now,
        paused=paused,
        shadow=shadowed,
        error=None,
        error_count=0,
        zone_digest=None,  # the new rule may be of another zone
        tzdata_version=None,
        updated_at=now,
    )
    return Change(
        what,
        changed,
        revision,
        tuple(withdrawn),
        tuple(updated),
        _merged(skips),
        between=tuple(revisions[:-1]),
    )


def _chain(
    state: TriggerState,
    steps: Sequence[Step],
    paused: bool,
    what: str,
    who: str,
    now: datetime,
    shadow: bool,
    deployment_paused: bool,
) -> list[Revision]:
    """A revision a step, each in force from its instant on; one that would last no time is left out."""
    found: list[Revision] = []
    spec = state.current.spec
    for step in steps:
        at = _instant(state, now if step.since is None else min(step.since, now))
        if step.spec is None:
            kind, why = Status.DELETED, "delete"
        else:
            spec = step.spec
            stopped = paused or deployment_paused or not spec.active
            kind, why = Status.PAUSED if stopped else Status.ACTIVE, what
        if found and found[-1].effective_from >= at:
            found.pop()
        found.append(
            Revision(
                state.current.number + len(found) + 1,
                at,
                kind,
                spec,
                why,
                who,
                shadow,
                deployment_paused,
            ),
        )
    return found


def _paused_range(since: datetime, now: datetime) -> tuple[datetime, datetime] | None:
    """The slots of a pause: a slot at its very instant was owed before it. None where it lasted no second."""
    first = since.replace(microsecond=0) + timedelta(seconds=1)
    return (first, now) if first <= now else None


def _while_deleted(state: TriggerState, revisions: Sequence[Revision]) -> list[Skip]:
    """The slots that fell into a time in which the trigger was deleted, and which nobody saw in between."""
    skips: list[Skip] = []
    for before, gone, after in zip([state.current, *revisions], revisions, revisions[1:], strict=False):
        if gone.state is not Status.DELETED:
            continue
        rule = schedule_of(before.spec, state.trigger.hash_seed)
        for low, high in _undecided(state, after.effective_from, gone.effective_from):
            found = count_range(rule, to_seconds(low), to_seconds(high))
            if found is not None:
                first, last, count = found
                until = f"{rfc3339(gone.effective_from)} to {rfc3339(after.effective_from)}"
                why = f"deleted at its source from {until}"
                skips.append(
                    Skip(
                        before.number, from_seconds(first), from_seconds(last), count, SkipReason.DELETED, why
                    )
                )
    return skips


def _instant(state: TriggerState, now: datetime) -> datetime:
    """`T`: whatever the editor's clock says, it is not before the present rule's own, nor before a slot that
    was claimed under the present rule: what has been called can't belong to a rule that came later."""
    at = max(now, state.current.effective_from)
    return at if state.claimed is None else max(at, state.claimed)


def _undecided(
    state: TriggerState, end: datetime, start: datetime | None = None
) -> list[tuple[datetime, datetime]]:
    """The parts of `(start, end]`, from the cursor on unless told, without what is `decided` already."""
    parts: list[tuple[datetime, datetime]] = []
    low = state.trigger.cursor if start is None else start
    for first, last in sorted(state.decided):
        if first > low:
            parts.append((low, min(first - timedelta(seconds=1), end)))
        low = max(low, last)
    parts.append((low, end))
    return [(low, high) for low, high in parts if low < high]


def _withdrawable(state: TriggerState, run: Run, at: datetime) -> bool:
    return (
        run.scheduled_time > at
        and run.attempt == 0
        and run.origin is Origin.SCHEDULE
        # A freeze holds what is planned ahead too.
        and (run.state is RunState.SCHEDULED or (state.trigger.frozen and run.state is RunState.HELD))
    )


def _hold(kept: Iterable[Run], now: datetime) -> list[RunUpdate]:
    """A pause stops all that has no live lease, except backfills: they are a person's explicit wish."""
    return [
        RunUpdate(
            run.id,
            {
                "state": RunState.HELD,
                "lease_owner": None,
                "outcome_unknown": run.outcome_unknown or run.lease_owner is not None,
            },
        )
        for run in kept
        if run.state is RunState.SCHEDULED and not run.leased(now) and run.origin is not Origin.BACKFILL
    ]


def _release(
    state: TriggerState, kept: Iterable[Run], now: datetime, grace: timedelta
) -> tuple[list[int], list[RunUpdate], list[Skip]]:
    held = [run for run in kept if run.state is RunState.HELD]
    gone: list[int] = []
    released: list[RunUpdate] = []
    skips: list[Skip] = []
    verdicts = verdicts_on_release(held, state.spec_of, now, grace)
    for run, reason in zip(held, verdicts, strict=True):
        if reason is None:
            released.append(RunUpdate(run.id, {"state": RunState.SCHEDULED, "due_at": max(run.due_at, now)}))
        else:
            gone.append(run.id)
            skips.append(_slot_skip(run, reason, "released after a pause"))
    return gone, released, skips


def _new_expiry(
    state: TriggerState,
    kept: list[Run],
    spec: TriggerSpec | None,
    at: datetime,
    withdrawn: list[int],
    grace: timedelta,
) -> list[RunUpdate]:
    """`latest` gives a slot up once its successor has come; the change has just replaced the successor.

    Only the last remaining slot has its successor among what was withdrawn.
    """
    remaining = [run for run in kept if run.automatic and run.attempt == 0 and run.id not in withdrawn]
    if not remaining:
        return []
    last = remaining[-1]
    successor = None if spec is None else next_slot(spec, state.trigger.hash_seed, at)
    expires = expiry(state.spec_of(last.revision), last.first_due_at, successor, grace)
    if expires == last.expires_at:
        return []
    return [RunUpdate(last.id, {"expires_at": expires})]


def _ended(run: Run, state: RunState, reason: str, now: datetime) -> RunUpdate:
    # A lease that is over and was never settled: somebody called, and nobody heard the answer.
    lost = run.outcome_unknown or run.lease_owner is not None
    return RunUpdate(
        run.id,
        {
            "state": state,
            "reason": reason + UNKNOWN if lost else reason,
            "settled_at": now,
            "lease_owner": None,
            "outcome_unknown": lost,
        },
    )


def _slot_skip(run: Run, reason: str, detail: str) -> Skip:
    return Skip(run.revision, run.scheduled_time, run.scheduled_time, 1, reason, detail)


def _merged(skips: Iterable[Skip]) -> tuple[Skip, ...]:
    return tuple(sorted(skips, key=lambda skip: skip.first))
