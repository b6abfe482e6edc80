"""Changes of triggers, deployments and runs, decided and written under their locks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import Executable, and_, bindparam, delete, func, insert, or_, select, update

from horarium.core.deployment import DeploymentChange, DeploymentState
from horarium.core.freeze import Scope
from horarium.core.instant import from_seconds
from horarium.core.keys import DeploymentKey, TriggerKey, long_run_name
from horarium.core.revision import Revision, Skip, Status, decided_slots
from horarium.core.run import Run
from horarium.core.spec import TriggerSpec, digest
from horarium.core.trigger import Backfill, Change, Trigger, TriggerState
from horarium.errors import NotFound
from horarium.store import tables as t
from horarium.store.base import Audit, Changed, Decide, DecideDeployment, DecideRun
from horarium.store.rows import backfill_of, deployment_of, revision_of, run_of, trigger_of
from horarium.store.sql.script import Many, Script, chunked
from horarium.store.sql.terms import ids_of, in_scope, is_deployment, stops_stand


def change(keys: Iterable[TriggerKey], decide: Decide, now: datetime, who: str) -> Script[list[Changed]]:
    """See `Store.change`."""
    wanted = list(dict.fromkeys(keys))
    ids = yield from ids_of(wanted)
    missing = [key for key in wanted if key not in ids]
    if missing:
        raise NotFound("trigger", str(missing[0]))
    states = yield from load_states(sorted(ids.values()), now)
    done: list[Changed] = []
    for state in states:
        decided = decide(state)
        if decided is not None:
            done.append((yield from write_change(state, decided, now, who)))
    return done


def change_run(run_id: int, decide: DecideRun, now: datetime, who: str) -> Script[Changed | None]:
    """See `Store.change_run`."""
    rows = yield select(t.run.c.trigger_id).where(t.run.c.id == run_id)
    if not rows:
        raise NotFound("run", str(run_id))
    (state,) = yield from load_states([rows[0].trigger_id], now, also_run=run_id)
    rows = yield select(t.run).where(t.run.c.id == run_id).with_for_update()
    if not rows:
        raise NotFound("run", str(run_id))
    run = run_of(rows[0])
    decided = decide(state, run)
    if decided is None:
        return None
    changed = yield from write_change(state, decided, now, who, audited=("run", run.name))
    return changed


def change_deployment(
    key: DeploymentKey, decide: DecideDeployment, now: datetime, who: str
) -> Script[DeploymentChange | None]:
    """See `Store.change_deployment`."""
    yield stops_stand(exclusive=True)
    rows = yield select(t.deployment).where(is_deployment(key.project, key.domain, key.name))
    if not rows:
        raise NotFound("deployment", str(key))
    deployment = deployment_of(rows[0])
    rows = yield select(t.trigger.c.id).where(
        in_scope(Scope.deployment(key)), t.trigger.c.status != Status.DELETED.value
    )
    ids = sorted(row.id for row in rows)
    states = yield from load_states(ids, now)
    since = yield from _paused_since(ids)
    found = decide(DeploymentState(deployment, tuple(states), since))
    if found is None:
        return None
    pause = found.deployment.pause
    yield (
        update(t.deployment)
        .where(t.deployment.c.id == deployment.id)
        .values(
            paused=pause is not None,
            pause_note=pause and pause.note,
            paused_by=pause and pause.by,
            paused_at=pause and pause.at,
        )
    )
    yield from write_changes(found.triggers, now, who)
    yield from _start_backfills([change for _, change in found.triggers], now, who)
    detail = {"note": pause and pause.note, "triggers": len(found.triggers)}
    yield write_audit(Audit(who, found.what, "deployment", str(key), detail), now)
    return found


def _paused_since(ids: Sequence[int]) -> Script[dict[int, datetime]]:
    """Since when those triggers have been paused with their deployment, live and not in shadow, that are so
    now."""
    rev, other = t.trigger_revision, t.trigger_revision.alias("other")
    before = (
        select(func.max(other.c.number))
        .where(
            other.c.trigger_id == rev.c.trigger_id,
            or_(~other.c.deployment_paused, other.c.shadow, other.c.state == Status.DELETED.value),
        )
        .scalar_subquery()
    )
    since: dict[int, datetime] = {}
    for chunk in chunked(ids):
        rows = yield (
            select(rev.c.trigger_id, func.min(rev.c.effective_from).label("at"))
            .where(rev.c.trigger_id.in_(chunk), rev.c.number > func.coalesce(before, 0))
            .group_by(rev.c.trigger_id)
        )
        since |= {row.trigger_id: row.at for row in rows}
    return since


def load_states(ids: Sequence[int], now: datetime, also_run: int | None = None) -> Script[list[TriggerState]]:
    """The states of triggers under their locks, by ascending id; `also_run`'s revision is among them.

    Triggers are locked in a statement of their own: one that locked and read runs at once would read them
    from a snapshot taken before the wait.
    """
    states: list[TriggerState] = []
    for chunk in chunked(ids):
        rows = yield (
            select(t.trigger)
            .where(t.trigger.c.id.in_(chunk))
            .order_by(t.trigger.c.id)
            .with_for_update(key_share=True)
        )
        triggers = [trigger_of(row) for row in rows]
        rows = yield (
            select(t.run)
            .where(t.run.c.trigger_id.in_(chunk), t.run.c.state.in_(("scheduled", "held")))
            .order_by(t.run.c.id)
            .with_for_update()
        )
        pending: dict[int, list[Run]] = {}
        for row in rows:
            pending.setdefault(row.trigger_id, []).append(run_of(row))
        rows = yield _revisions_needed(chunk, also_run)
        revisions: dict[int, list[Revision]] = {}
        for row in rows:
            revisions.setdefault(row.trigger_id, []).append(revision_of(row))
        rows = yield select(t.backfill).where(
            t.backfill.c.trigger_id.in_(chunk), t.backfill.c.state == "open"
        )
        backfills: dict[int, list[Backfill]] = {}
        for row in rows:
            backfills.setdefault(row.trigger_id, []).append(backfill_of(row))
        rows = yield (
            select(
                t.skip.c.trigger_id,
                t.skip.c.first_time,
                t.skip.c.last_time,
                t.trigger.c.hash_seed,
                t.trigger.c.cursor,
                t.trigger_revision.c.spec,
            )
            .join(t.trigger, t.trigger.c.id == t.skip.c.trigger_id)
            .join(
                t.trigger_revision,
                and_(
                    t.trigger_revision.c.trigger_id == t.skip.c.trigger_id,
                    t.trigger_revision.c.number == t.skip.c.revision,
                ),
            )
            .where(t.skip.c.trigger_id.in_(chunk), t.skip.c.last_time > t.trigger.c.cursor)
        )
        decided: dict[int, list[tuple[datetime, datetime]]] = {}
        for row in rows:
            decided.setdefault(row.trigger_id, []).extend(
                decided_slots(
                    TriggerSpec.from_json(row.spec), row.hash_seed, row.first_time, row.last_time, row.cursor
                )
            )
        rows = yield (
            select(t.run.c.trigger_id, t.run.c.scheduled_time)
            .join(t.trigger, t.trigger.c.id == t.run.c.trigger_id)
            .where(
                t.run.c.trigger_id.in_(chunk),
                t.run.c.origin != "manual",
                t.run.c.scheduled_time > t.trigger.c.cursor,
            )
        )
        for row in rows:
            decided.setdefault(row.trigger_id, []).append((row.scheduled_time, row.scheduled_time))
        # After the lock on pending runs: a claim that was under way has been written, and no other can begin.
        rows = yield (
            select(t.run.c.trigger_id, func.max(t.run.c.scheduled_time).label("slot"))
            .where(
                t.run.c.trigger_id.in_(chunk),
                t.run.c.origin != "manual",
                t.run.c.scheduled_time > now,
                t.run.c.attempt > 0,
            )
            .group_by(t.run.c.trigger_id)
        )
        claimed = {row.trigger_id: row.slot for row in rows}
        states += [
            TriggerState(
                item,
                tuple(revisions[item.id]),
                tuple(sorted(pending.get(item.id, ()), key=lambda run: (run.scheduled_time, run.id))),
                tuple(backfills.get(item.id, ())),
                tuple(decided.get(item.id, ())),
                claimed.get(item.id),
            )
            for item in triggers
        ]
    return states


def _revisions_needed(ids: Sequence[int], also_run: int | None) -> Executable:
    """Revisions in force after the cursor, and those of pending runs, ascending."""
    rev, older = t.trigger_revision, t.trigger_revision.alias("older")
    in_force = (
        select(func.max(older.c.number))
        .where(older.c.trigger_id == rev.c.trigger_id, older.c.effective_from <= t.trigger.c.cursor)
        .scalar_subquery()
    )
    of_pending = (
        select(func.min(t.run.c.revision))
        .where(
            t.run.c.trigger_id == rev.c.trigger_id,
            or_(t.run.c.state.in_(("scheduled", "held")), t.run.c.id == (also_run or 0)),
        )
        .scalar_subquery()
    )
    return (
        select(rev)
        .join(t.trigger, t.trigger.c.id == rev.c.trigger_id)
        .where(
            rev.c.trigger_id.in_(ids),
            or_(rev.c.number >= func.coalesce(in_force, 1), rev.c.number >= of_pending),
        )
        .order_by(rev.c.trigger_id, rev.c.number)
    )


def write_change(
    state: TriggerState,
    change: Change,
    now: datetime,
    who: str,
    audited: tuple[str, str] | None = None,
) -> Script[Changed]:
    """Carry out a decision on one trigger."""
    yield from write_changes([(state, change)], now, who, audited)
    started = yield from _start_backfills([change], now, who)
    return Changed(state, change, change.trigger.key, started[0] if started else None)


def _start_backfills(changes: Sequence[Change], now: datetime, who: str) -> Script[list[int]]:
    """The backfills that changes ask for; their ids, in no order."""
    rows = yield Many(
        insert(t.backfill).returning(t.backfill.c.id),
        [
            {
                "trigger_id": change.trigger.id,
                "from_time": low,
                "to_time": high,
                "cursor": low - timedelta(microseconds=1),
                "state": "open",
                "created_by": who,
                "created_at": now,
            }
            for change in changes
            if change.backfill is not None
            for low, high in [change.backfill]
        ],
    )
    return [row.id for row in rows]


def write_changes(
    decided: Sequence[tuple[TriggerState, Change]],
    now: datetime,
    who: str,
    audited: tuple[str, str] | None = None,
) -> Script[None]:
    """Carry out decisions on many triggers, all but new backfills: a statement a kind, not a trigger."""
    changes = [change for _, change in decided]
    yield Many(
        update(t.trigger).where(t.trigger.c.id == bindparam("row_id")),
        [{"row_id": item.trigger.id, **_trigger_values(item.trigger, now)} for item in changes],
    )
    yield Many(
        insert(t.trigger_revision),
        [revision_values(item.trigger.id, revision) for item in changes for revision in item.revisions],
    )
    for chunk in chunked(sorted(run_id for item in changes for run_id in item.withdrawn)):
        yield delete(t.run).where(t.run.c.id.in_(chunk))
    yield from _insert_planned(changes)
    # In the order given: a run may be held first and have its expiry set after.
    updates = [one for item in changes for one in item.updated]
    for _, group in groupby(updates, key=lambda item: tuple(item.values)):
        yield Many(
            update(t.run).where(t.run.c.id == bindparam("row_id")),
            [{"row_id": item.id, **item.values} for item in group],
        )
    yield Many(
        insert(t.skip),
        [skip_values(item.trigger.id, skip, now) for item in changes for skip in item.skips],
    )
    for chunk in chunked([ended for item in changes for ended in item.ended_backfills]):
        yield (update(t.backfill).where(t.backfill.c.id.in_(chunk)).values(state="ended", ended_at=now))
    yield Many(
        insert(t.audit),
        [
            _audit_values(Audit(who, item.what, kind, key, dict(item.detail)), now)
            for item in changes
            for kind, key in [audited or ("trigger", str(item.trigger.key))]
        ],
    )


def _insert_planned(changes: Sequence[Change]) -> Script[None]:
    """Runs that a person asked for. Under the triggers' locks nobody else decides their slots; a name that
    another slot has gives way to the long name, as a plan's."""
    planned = [(item.trigger.key, item.trigger.id, run) for item in changes for run in item.planned]
    if not planned:
        return
    run = t.run.c
    taken: set[tuple[str, str, str]] = set()
    for (project, domain), group in groupby(planned, key=lambda item: (item[0].project, item[0].domain)):
        for chunk in chunked([item.name for _, _, item in group]):
            rows = yield select(run.name).where(
                run.project == project, run.domain == domain, run.name.in_(chunk)
            )
            taken.update((project, domain, row.name) for row in rows)
    names = {item.target for _, _, item in planned}
    rows = yield select(t.target.c.id, t.target.c.name).where(t.target.c.name.in_(names))
    targets = {row.name: row.id for row in rows}
    values: list[dict[str, Any]] = []
    for key, trigger_id, item in planned:
        name = item.name
        if (key.project, key.domain, name) in taken:
            name = long_run_name(key, from_seconds(item.scheduled_time))
        taken.add((key.project, key.domain, name))
        values.append(
            {
                "trigger_id": trigger_id,
                "scheduled_time": from_seconds(item.scheduled_time),
                "origin": item.origin.value,
                "project": key.project,
                "domain": key.domain,
                "name": name,
                "revision": item.revision,
                "target_id": targets[item.target],
                "state": item.state.value,
                "due_at": item.due_at,
                "first_due_at": item.due_at,
                "expires_at": item.expires_at,
                "utc_offset": item.utc_offset,
            }
        )
    yield Many(insert(t.run), values)


def _trigger_values(row: Trigger, now: datetime) -> dict[str, Any]:
    return {
        "project": row.key.project,
        "domain": row.key.domain,
        "deployment": row.key.deployment,
        "name": row.key.name,
        "source": row.managed_by,
        "revision": row.revision,
        "status": row.status.value,
        "cursor": row.cursor,
        "plan_due_at": row.plan_due_at,
        "paused": row.paused,
        "pause_note": row.pause_note,
        "paused_by": row.paused_by,
        "paused_at": row.paused_at,
        "resume_at": row.resume_at,
        "shadow": row.shadow,
        "error": row.error,
        "error_count": row.error_count,
        "zone_digest": row.zone_digest,
        "tzdata_version": row.tzdata_version,
        "updated_at": now,
    }


def revision_values(trigger_id: int, revision: Revision) -> dict[str, Any]:
    spec = revision.spec.to_json()
    return {
        "trigger_id": trigger_id,
        "number": revision.number,
        "effective_from": revision.effective_from,
        "state": revision.state.value,
        "spec": spec,
        "digest": digest(spec),
        "what": revision.what,
        "who": revision.who,
        "shadow": revision.shadow,
        "deployment_paused": revision.deployment_paused,
    }


def skip_values(trigger_id: int, skip: Skip, now: datetime) -> dict[str, Any]:
    return {
        "trigger_id": trigger_id,
        "revision": skip.revision,
        "first_time": skip.first,
        "last_time": skip.last,
        "count": skip.count,
        "reason": str(skip.reason),
        "detail": skip.detail,
        "at": now,
    }


def write_audit(line: Audit, now: datetime) -> Executable:
    """One line of the audit."""
    return insert(t.audit).values(**_audit_values(line, now))


def _audit_values(line: Audit, now: datetime) -> dict[str, Any]:
    return {
        "at": now,
        "who": line.who,
        "what": line.what,
        "kind": line.kind,
        "key": line.key,
        "detail": dict(line.detail),
    }


def replan_older_tzdata(version: str, now: datetime) -> Script[int]:
    """See `Store.replan_older_tzdata`."""
    written: int = yield (
        update(t.trigger)
        .where(t.trigger.c.tzdata_version < version, t.trigger.c.status == "active")
        .values(plan_due_at=now)
    )
    return written
