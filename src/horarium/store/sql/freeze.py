"""Freezing what may not fire, and what becomes of it at the release."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Executable, and_, case, delete, insert, literal, or_, select, true, update
from sqlalchemy.sql.elements import ColumnElement

from horarium.core.freeze import GuardState, Owed, Scope, ScopeKind, given_up
from horarium.core.keys import DeploymentKey
from horarium.core.revision import SkipReason, Status
from horarium.core.run import Origin, Run, RunState
from horarium.core.spec import TriggerSpec
from horarium.errors import Conflict, NotFound
from horarium.store import tables as t
from horarium.store.base import Audit, Frozen, Released
from horarium.store.rows import run_of
from horarium.store.sql.changes import write_audit
from horarium.store.sql.fire import skip_runs
from horarium.store.sql.script import Script, chunked
from horarium.store.sql.terms import HELD, PENDING, SCHEDULED, UNUSUAL, in_scope, is_deployment, stops_stand


def freeze(scope: Scope, note: str | None, who: str, now: datetime) -> Script[Frozen]:
    """See `Store.freeze`."""
    yield stops_stand(exclusive=True)
    yield from _must_be(scope, in_use=True)
    values = {"note": note, "who": who, "at": now}
    written = yield update(t.freeze).where(is_freeze(scope)).values(**values)
    if not written:
        yield insert(t.freeze).values(kind=scope.kind.value, key=scope.key, **values)
    if scope.of_targets:
        ids = yield from _lock_allowances(scope)
        yield from _set_frozen_targets(ids, frozen=True)
        found = Frozen(targets=len(ids))
    else:
        ids = yield from _lock_triggers(in_scope(scope))
        yield from _mark(ids, frozen=True, now=now)
        found = Frozen(triggers=len(ids), held=(yield from _hold_runs(ids, now)))
    detail = {"note": note, "held": found.held}
    yield write_audit(Audit(who, "freeze", scope.kind.value, scope.key or "*", detail), now)
    return found


def release(scope: Scope, owed: Owed, who: str, now: datetime) -> Script[Released]:
    """See `Store.release`."""
    yield stops_stand(exclusive=True)
    yield from _must_be(scope, in_use=False)
    if scope.of_targets:
        found = yield from _release_targets(scope, owed, who, now)
    else:
        found = yield from _release_triggers(scope, owed, who, now)
    detail = {"owed": owed.value, "released": found.released, "skipped": found.skipped}
    yield write_audit(Audit(who, "release", scope.kind.value, scope.key or "*", detail), now)
    return found


def _release_triggers(scope: Scope, owed: Owed, who: str, now: datetime) -> Script[Released]:
    written = yield delete(t.freeze).where(is_freeze(scope))
    if not written:
        raise Conflict(f"{scope} is not frozen", "`horarium status` says what is")
    ids = yield from _lock_triggers(and_(in_scope(scope), t.trigger.c.frozen, ~_is_still_frozen()))
    yield from _mark(ids, frozen=False, now=now)
    found = yield from _release_held(ids, owed, f"by {who}, when {scope} was released", now)
    return found


def _release_held(ids: Sequence[int], owed: Owed, detail: str, now: datetime) -> Script[Released]:
    """What a freeze of these triggers held goes on, or becomes skips. What a pause holds stays.

    A backfill of a paused trigger goes on: a pause does not stop those.
    """
    released = skipped = 0
    goes_on = or_(t.trigger.c.status != Status.PAUSED.value, t.run.c.origin == Origin.BACKFILL.value)
    for chunk in chunked(ids):
        rows = yield (
            select(t.run)
            .join(t.trigger, t.trigger.c.id == t.run.c.trigger_id)
            .where(t.run.c.trigger_id.in_(chunk), PENDING, t.run.c.state == RunState.HELD.value, goes_on)
            .order_by(t.run.c.id)
            .with_for_update(of=t.run)
        )
        held = [run_of(row) for row in rows]
        due = [run for run in held if run.automatic and run.attempt == 0 and run.due_at <= now]
        gone = given_up(owed, due)
        skipped += yield from skip_runs(gone, _released, detail, now)
        released += yield from _let_go(held, gone, now)
    return Released(released, skipped)


def _release_targets(scope: Scope, owed: Owed, who: str, now: datetime) -> Script[Released]:
    """Triggers are locked before allowances and runs, as everywhere, so what is owed is looked for twice."""
    allowance = t.target_allowance.c
    rows = yield select(allowance.target_id).where(_target_ids(scope)).order_by(allowance.target_id)
    found = yield from _owed([row.target_id for row in rows], now)
    locked: set[int] = set()
    for chunk in chunked(sorted(set(found.values()))):
        locked.update((yield from _lock_triggers(t.trigger.c.id.in_(chunk))))
    ids = yield from _lock_allowances(scope)
    yield from _must_be_stopped(scope, ids, owed, now)
    found = yield from _owed(ids, now)
    due: list[Run] = []
    # What was planned since the triggers were locked flows.
    for chunk in chunked(sorted(run_id for run_id, trigger_id in found.items() if trigger_id in locked)):
        rows = yield select(t.run).where(t.run.c.id.in_(chunk)).order_by(t.run.c.id).with_for_update()
        due += [run_of(row) for row in rows if row.attempt == 0 and row.state in ("scheduled", "held")]
    gone = given_up(owed, due)
    skipped = yield from skip_runs(gone, _released, f"by {who}, when {scope} was released", now)
    released = yield from _let_go(due, gone, now)
    yield from _set_frozen_targets(ids, frozen=False)
    return Released(released, skipped)


def _must_be_stopped(scope: Scope, ids: Sequence[int], owed: Owed, now: datetime) -> Script[None]:
    """Ends the freeze, and raises `Conflict` if there is none, or if its question can't be answered yet."""
    both = t.freeze.c.kind.in_((ScopeKind.ALL.value, ScopeKind.TARGET.value))
    written = yield delete(t.freeze).where(is_freeze(scope) if scope.key else both)
    rows = yield select(t.target_allowance).where(t.target_allowance.c.target_id.in_(ids))
    guarded = [row.guard_until for row in rows if row.guard_state == GuardState.HELD]
    if not written and not guarded and not any(row.frozen for row in rows):
        raise Conflict(f"{scope} is not frozen, and no catch-up guard holds runs there")
    if not guarded or owed is Owed.ALL:
        return
    behind = yield _behind(max(guarded), now)
    if behind:
        raise Conflict(
            f"catch-up still plans runs of the time that nobody looked, and {owed} is about all of them",
            "again in a moment; a server must be there to plan",
        )


def _owed(targets: Sequence[int], now: datetime) -> Script[dict[int, int]]:
    """Automatic runs never claimed that are due, or that the guard of their target holds; their triggers."""
    run, allowance = t.run.c, t.target_allowance.c
    never_claimed = and_(run.target_id.in_(targets), run.origin == Origin.SCHEDULE.value, run.attempt == 0)
    due = yield select(run.id, run.trigger_id).where(SCHEDULED, never_claimed, run.due_at <= now)
    guarded = yield (
        select(run.id, run.trigger_id)
        .join(t.trigger, t.trigger.c.id == run.trigger_id)
        .join(t.target_allowance, allowance.target_id == run.target_id)
        .where(
            UNUSUAL,
            HELD,
            never_claimed,
            allowance.guard_state == GuardState.HELD.value,
            run.due_at > allowance.guard_from,
            run.due_at <= allowance.guard_until,
            t.trigger.c.status != Status.PAUSED.value,
            ~t.trigger.c.frozen,
        )
    )
    return {row.id: row.trigger_id for row in [*due, *guarded]}


def _let_go(runs: Sequence[Run], gone: Sequence[Run], now: datetime) -> Script[int]:
    """The rest of `runs` may be claimed. What is due was released by a person's word: it expires no more."""
    skipped = {run.id for run in gone}
    kept = [run for run in runs if run.id not in skipped]
    for chunk in chunked([run.id for run in kept]):
        yield (
            update(t.run)
            .where(t.run.c.id.in_(chunk))
            .values(
                state=RunState.SCHEDULED.value,
                expires_at=case((t.run.c.due_at <= now, None), else_=t.run.c.expires_at),
            )
        )
    return len(kept)


def _released(_spec: TriggerSpec, _run: Run) -> str:
    return SkipReason.RELEASED


def _must_be(scope: Scope, *, in_use: bool) -> Script[None]:
    """Raises `NotFound` for a name that means nothing, and with `in_use` for what was withdrawn.

    A withdrawn target is in use while runs of it are pending. What is no longer in use can be released.
    """
    target, deployment = t.target.c, t.deployment.c
    match scope.kind:
        case ScopeKind.ALL:
            return
        case ScopeKind.TARGET:
            pending = select(t.run.c.id).where(t.run.c.target_id == target.id, PENDING).limit(1).exists()
            found = select(target.withdrawn).where(target.name == scope.key)
            used = or_(~target.withdrawn, pending)
        case ScopeKind.PROJECT:
            found = select(deployment.withdrawn).where(deployment.project == scope.key)
            used = ~deployment.withdrawn
        case ScopeKind.DEPLOYMENT:
            found = select(deployment.withdrawn).where(is_deployment(*scope.key.split("/")))
            used = ~deployment.withdrawn
    rows = yield (found.where(used) if in_use else found).limit(1)
    if not rows:
        raise NotFound(scope.kind.value, scope.key)


def is_freeze(scope: Scope) -> ColumnElement[bool]:
    return and_(t.freeze.c.kind == scope.kind.value, t.freeze.c.key == scope.key)


def frozen_places() -> Script[set[str]]:
    """Projects and keys of deployments that are frozen."""
    rows = yield select(t.freeze.c.key).where(t.freeze.c.kind.in_(("project", "deployment")))
    return {row.key for row in rows}


def _is_still_frozen() -> ColumnElement[bool]:
    """Whether any freeze covers the trigger of the query around."""
    table = t.trigger.c
    deployment = table.project + literal("/") + table.domain + literal("/") + table.deployment
    return (
        select(t.freeze.c.key)
        .where(
            or_(
                and_(t.freeze.c.kind == "project", t.freeze.c.key == table.project),
                and_(t.freeze.c.kind == "deployment", t.freeze.c.key == deployment),
            )
        )
        .correlate(t.trigger)
        .exists()
    )


def carry_freezes(renamed: Sequence[tuple[DeploymentKey, DeploymentKey]]) -> Script[None]:
    """A new name is no end of a freeze: each deployment's goes along, after its triggers have moved.

    The former name keeps it while a trigger is there, a deleted one too, whose runs it may hold.
    """
    former: dict[str, Scope] = {}
    for old, new in renamed:
        scope, place = Scope.deployment(old), Scope.deployment(new)
        rows = yield select(t.freeze).where(is_freeze(scope))
        there = yield select(t.freeze.c.key).where(is_freeze(place))
        if not rows:
            continue
        former[scope.key] = scope
        if not there:
            values = {"note": rows[0].note, "who": rows[0].who, "at": rows[0].at}
            yield insert(t.freeze).values(kind=place.kind.value, key=place.key, **values)
    for scope in former.values():
        left = yield select(t.trigger.c.id).where(in_scope(scope)).limit(1)
        if not left:
            yield delete(t.freeze).where(is_freeze(scope))


def move_freezes(renamed: Sequence[int], now: datetime) -> Script[None]:
    """Renamed triggers are frozen where they are now; what they owed under a freeze that they left, flows."""
    for chunk in chunked(sorted(renamed)):
        rows = yield select(t.trigger.c.id).where(
            t.trigger.c.id.in_(chunk), ~t.trigger.c.frozen, _is_still_frozen()
        )
        into = sorted(row.id for row in rows)
        yield from _mark(into, frozen=True, now=now)
        yield from _hold_runs(into, now)
        rows = yield select(t.trigger.c.id).where(
            t.trigger.c.id.in_(chunk), t.trigger.c.frozen, ~_is_still_frozen()
        )
        out = sorted(row.id for row in rows)
        yield from _mark(out, frozen=False, now=now)
        yield from _release_held(out, Owed.ALL, "", now)


def _lock_triggers(which: ColumnElement[bool]) -> Script[list[int]]:
    rows = yield (
        select(t.trigger.c.id).where(which).order_by(t.trigger.c.id).with_for_update(key_share=True)
    )
    return [row.id for row in rows]


def _lock_allowances(scope: Scope) -> Script[list[int]]:
    allowance = t.target_allowance.c
    rows = yield (
        select(allowance.target_id)
        .where(_target_ids(scope))
        .order_by(allowance.target_id)
        .with_for_update(key_share=True)
    )
    return [row.target_id for row in rows]


def _target_ids(scope: Scope) -> ColumnElement[bool]:
    if scope.kind is ScopeKind.ALL:
        return true()
    wanted = select(t.target.c.id).where(t.target.c.name == scope.key)
    return t.target_allowance.c.target_id.in_(wanted)


def _set_frozen_targets(ids: Sequence[int], *, frozen: bool) -> Script[None]:
    """A release also ends the guard: it was asked the same question."""
    values: dict[str, Any] = {"frozen": frozen}
    if not frozen:
        values |= {"guard_state": GuardState.NONE.value, "guard_from": None, "guard_until": None}
    for chunk in chunked(ids):
        yield update(t.target_allowance).where(t.target_allowance.c.target_id.in_(chunk)).values(**values)


def _mark(ids: Sequence[int], *, frozen: bool, now: datetime) -> Script[None]:
    """Set the mark on locked triggers; a plan that was computed before must lose, so its token is moved.

    Where the token is this very instant, it moves just before it.
    """
    due = t.trigger.c.plan_due_at
    moved = case(
        (due == now, literal(now - timedelta(microseconds=1), due.type)), else_=literal(now, due.type)
    )
    for chunk in chunked(ids):
        yield (
            update(t.trigger)
            .where(t.trigger.c.id.in_(chunk), t.trigger.c.frozen.is_(not frozen))
            .values(frozen=frozen, plan_due_at=case((due.is_(None), None), else_=moved))
        )


def _hold_runs(ids: Sequence[int], now: datetime) -> Script[int]:
    """All runs of locked triggers that no call may be under way for; how many."""
    held = 0
    for chunk in chunked(ids):
        rows = yield (
            select(t.run.c.id)
            .where(
                t.run.c.trigger_id.in_(chunk),
                PENDING,
                SCHEDULED,
                or_(t.run.c.lease_owner.is_(None), t.run.c.due_at <= now),
            )
            .order_by(t.run.c.id)
            .with_for_update()
        )
        for part in chunked([row.id for row in rows]):
            held += yield (
                update(t.run)
                .where(t.run.c.id.in_(part))
                .values(
                    state=RunState.HELD.value,
                    outcome_unknown=or_(t.run.c.outcome_unknown, t.run.c.lease_owner.is_not(None)),
                    lease_owner=None,
                )
            )
    return held


PLANNING = timedelta(seconds=60)
"""A trigger that is being planned is due again within this: a lease of the planner is shorter."""


def _behind(until: datetime, now: datetime) -> Executable:
    """A trigger, if there is any, that catch-up has yet to bring to `until`.

    The planner's queue tells: a trigger is due before its planned slots are used up. One with an error waits
    for a person, and nobody else should.
    """
    table = t.trigger.c
    return (
        select(table.id)
        .where(
            table.plan_due_at <= now + PLANNING,
            table.cursor < until,
            table.status == Status.ACTIVE.value,
            table.error.is_(None),
        )
        .limit(1)
    )
