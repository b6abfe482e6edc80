"""The everyday statements of both databases, as scripts.

A script is a generator: it yields a statement and is sent the rows (or the number of rows written). The
SQLite store runs it inline on its writer thread, the PostgreSQL store awaits each step, and so every
method is written once. A script is one transaction; it decides nothing that `core/` can decide.

The hot statements (lease, apply, claim, settle, next due) are not here: each database has its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, lru_cache, partial
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import (
    Executable,
    Row,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy import text as term
from sqlalchemy.sql.elements import ColumnElement, TextClause

from horarium.core import trigger as decisions
from horarium.core.deployment import DeploymentChange, DeploymentState
from horarium.core.freeze import EVERYTHING, GuardState, Owed, Scope, ScopeKind, given_up
from horarium.core.instant import from_seconds, to_seconds
from horarium.core.keys import DeploymentKey, TriggerKey, long_run_name, manual_run_name
from horarium.core.outcome import Outcome
from horarium.core.plan import BackfillStep, Plan
from horarium.core.reconcile import API, Edited, Existing, Known, Reconciled
from horarium.core.revision import (
    Revision,
    Skip,
    SkipReason,
    Status,
    count_range,
    decided_slots,
    expired_reason,
    schedule_of,
)
from horarium.core.run import Origin, PlannedRun, Run, RunState
from horarium.core.schedule import Schedule
from horarium.core.spec import Listing, TargetSpec, TriggerEntry, TriggerSpec, digest
from horarium.core.trigger import Backfill, Change, Trigger, TriggerState
from horarium.errors import Conflict, NotFound, StaleVersion
from horarium.store import tables as t
from horarium.store.base import (
    Audit,
    Changed,
    Decide,
    DecideDeployment,
    DecideRun,
    Frozen,
    LookResult,
    ManualRequest,
    Pruned,
    Released,
    Remembered,
    SyncResult,
    TargetRow,
)
from horarium.store.rows import backfill_of, deployment_of, revision_of, run_of, trigger_of

CHUNK = 2_000
"""How many keys or ids go into one statement: below SQLite's limit on variables with four a key."""


@dataclass(frozen=True, slots=True)
class Many:
    """One statement for many rows. Rows come back where it returns any, in whatever order."""

    statement: Executable
    rows: Sequence[Mapping[str, Any]]


Step: TypeAlias = Executable | Many
T = TypeVar("T")
Script: TypeAlias = Generator[Step, Any, T]


@lru_cache(maxsize=16_384)
def spec_of(text: str) -> TriggerSpec:
    """A spec from its stored JSON; many triggers are planned and fired again and again."""
    data: Mapping[str, Any] = json.loads(text)
    return TriggerSpec.from_json(data)


# change


def change(keys: Iterable[TriggerKey], decide: Decide, now: datetime, who: str) -> Script[list[Changed]]:
    """See `Store.change`."""
    wanted = list(dict.fromkeys(keys))
    ids = yield from _ids_of(wanted)
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
    yield _stops_stand(exclusive=True)
    rows = yield select(t.deployment).where(_is_deployment(key.project, key.domain, key.name))
    if not rows:
        raise NotFound("deployment", str(key))
    deployment = deployment_of(rows[0])
    rows = yield select(t.trigger.c.id).where(
        _in_scope(Scope.deployment(key)), t.trigger.c.status != Status.DELETED.value
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
        [_revision_values(item.trigger.id, revision) for item in changes for revision in item.revisions],
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
        [_skip_values(item.trigger.id, skip, now) for item in changes for skip in item.skips],
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


def _revision_values(trigger_id: int, revision: Revision) -> dict[str, Any]:
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


def _skip_values(trigger_id: int, skip: Skip, now: datetime) -> dict[str, Any]:
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


# tz data


def replan_older_tzdata(version: str, now: datetime) -> Script[int]:
    """See `Store.replan_older_tzdata`."""
    written: int = yield (
        update(t.trigger)
        .where(t.trigger.c.tzdata_version < version, t.trigger.c.status == "active")
        .values(plan_due_at=now)
    )
    return written


# sync


def source_version(source: str) -> Script[int]:
    """See `Store.source_version`."""
    rows = yield select(t.source.c.version).where(t.source.c.name == source)
    return rows[0].version if rows else 0


def source_listed_at(source: str) -> Script[datetime | None]:
    """See `Store.source_listed_at`."""
    rows = yield select(t.source.c.listed_at).where(t.source.c.name == source)
    return rows[0].listed_at if rows else None


def source_failed(source: str, error: str, now: datetime) -> Script[None]:
    """See `Store.source_failed`."""
    written = (
        yield update(t.source).where(t.source.c.name == source).values(error=error[:4_000], error_at=now)
    )
    if not written:
        yield insert(t.source).values(name=source, version=0, error=error[:4_000], error_at=now)


def sync_source(
    listing: Listing,
    version: int,
    decide: Callable[[Known], Reconciled],
    now: datetime,
    who: str,
    *,
    dry_run: bool = False,
    path: str | None = None,
) -> Script[SyncResult]:
    """See `Store.sync_source`."""
    if listing.source == API:
        raise ValueError("people's triggers go through create_trigger")
    rows = yield select(t.source).where(t.source.c.name == listing.source).with_for_update()
    current = rows[0].version if rows else 0
    if current != version:
        return SyncResult(Reconciled(), stale=True, version=current)
    yield _stops_stand(exclusive=False)
    result = yield from _reconcile(listing, listing.source, decide, now, who, dry_run=dry_run, partial=False)
    if not result.written and not (result.decided.empty and not dry_run and not result.decided.problems):
        return result
    values = {
        "version": version + 1,
        "digest": listing.digest(),
        "listed_at": now,
        "error": None,
        "error_at": None,
        "path": path,
    }
    if rows:
        yield update(t.source).where(t.source.c.name == listing.source).values(**values)
    else:
        yield insert(t.source).values(name=listing.source, **values)
    if path is not None and path != listing.source:
        # Until it could be read once, its errors stood under its path.
        yield delete(t.source).where(t.source.c.name == path, t.source.c.version == 0)
    return replace(result, version=version + 1)


def create_trigger(
    listing: Listing,
    decide: Callable[[Known], Reconciled],
    now: datetime,
    who: str,
    *,
    expected_revision: int | None = None,
) -> Script[SyncResult]:
    """See `Store.create_trigger`."""
    yield _stops_stand(exclusive=False)
    if expected_revision is not None:
        (entry,) = listing.triggers
        rows = yield (
            select(t.trigger.c.revision, t.trigger.c.status).where(_is_key(entry.key)).with_for_update()
        )
        there = rows[0].revision if rows and rows[0].status != "deleted" else 0
        if there != expected_revision:
            raise StaleVersion(str(expected_revision), str(there))
    result = yield from _reconcile(listing, None, decide, now, who, dry_run=False, partial=True)
    return result


def _reconcile(
    listing: Listing,
    source: str | None,
    decide: Callable[[Known], Reconciled],
    now: datetime,
    who: str,
    *,
    dry_run: bool,
    partial: bool,
) -> Script[SyncResult]:
    known = yield from _known(listing, source, partial)
    decided = decide(known)
    if decided.problems or decided.refused:
        return SyncResult(decided)
    by_id = {item.existing.id: item for item in decided.edited}
    gone = {item.id for item in decided.withdrawn}
    # A change that began earlier must know of all that was claimed since.
    began = [
        step.since
        for item in decided.edited
        for step in item.existing.steps_to(item.entry)[:1]
        if step.since is not None
    ]
    states = yield from load_states(sorted([*by_id, *gone]), min(now, *began) if began else now)
    entries = [*decided.added, *(item.entry for item in decided.edited)]
    paused = yield from _paused_deployments({entry.key.deployment_key for entry in entries})
    planned: list[tuple[TriggerState, Change]] = []
    for state in states:
        found = (
            decisions.delete(state, who, now)
            if state.trigger.id in gone
            else _edited(state, by_id[state.trigger.id], source, paused, who, now)
        )
        if found is not None:
            planned.append((state, found))
    changes = [Changed(state, item, item.trigger.key) for state, item in planned]
    if dry_run or decided.empty:
        return SyncResult(decided, tuple(changes))
    yield from _write_targets(decided, source, now)
    yield from _write_deployments(decided, source, now)
    yield from write_changes(planned, now, who)
    yield from _add(decided.added, source, now, who, bool(listing.shadow), paused)
    yield from _move_freezes([item.existing.id for item in decided.edited if item.renamed], now)
    return SyncResult(decided, tuple(changes), written=True)


def _paused_deployments(keys: Iterable[DeploymentKey]) -> Script[set[DeploymentKey]]:
    """Which of these deployments are paused. It stays so where `_stops_stand` has been asked."""
    found: set[DeploymentKey] = set()
    table = t.deployment.c
    for chunk in chunked(sorted(keys)):
        rows = yield select(table.project, table.domain, table.name).where(
            tuple_(table.project, table.domain, table.name).in_(
                [(key.project, key.domain, key.name) for key in chunk]
            ),
            table.paused,
        )
        found |= {DeploymentKey(row.project, row.domain, row.name) for row in rows}
    return found


def _edited(
    state: TriggerState,
    item: Edited,
    source: str | None,
    paused: set[DeploymentKey],
    who: str,
    now: datetime,
) -> Change | None:
    """An edit, a revival or a rename; a rename alone keeps the rule and its planned runs."""
    moved = replace(state, trigger=replace(state.trigger, key=item.entry.key, managed_by=source))
    what = "rename" if item.renamed else "edit"
    present = state.current
    deleted = state.trigger.status is Status.DELETED
    steps = item.entry.steps(None if deleted else present.spec.digest(), present.effective_from)
    since = steps[-1].since if steps else None
    found = decisions.edit(
        moved,
        item.entry.spec,
        who,
        now,
        what=what,
        since=since,
        earlier=steps[:-1],
        deployment_paused=item.entry.key.deployment_key in paused,
    )
    if found is None and item.renamed:
        # A plan in the making has names of the old key: it must lose, and plan again.
        row = replace(moved.trigger, plan_due_at=now)
        return Change("rename", row, detail={"from": str(item.existing.key)})
    return found


def _known(listing: Listing, source: str | None, partial: bool) -> Script[Known]:
    found: dict[TriggerKey, Existing] = {}
    columns = (
        t.trigger.c.id,
        t.trigger.c.project,
        t.trigger.c.domain,
        t.trigger.c.deployment,
        t.trigger.c.name,
        t.trigger.c.status,
        t.trigger.c.source,
        t.trigger_revision.c.digest,
        t.trigger_revision.c.effective_from,
    )
    query = select(*columns).join(
        t.trigger_revision,
        and_(
            t.trigger_revision.c.trigger_id == t.trigger.c.id,
            t.trigger_revision.c.number == t.trigger.c.revision,
        ),
    )

    def keep(rows: Iterable[Row[Any]]) -> None:
        for row in rows:
            key = TriggerKey(row.project, row.domain, row.deployment, row.name)
            status, owner = Status(row.status), row.source or API
            found[key] = Existing(row.id, key, row.digest, status, owner, row.effective_from)

    if not partial:
        keep((yield query.where(t.trigger.c.source == source)))
    asked = {entry.key for entry in listing.triggers}
    asked |= {key for entry in listing.triggers if (key := entry.old_key) is not None}
    for chunk in chunked(sorted(asked - found.keys())):
        keep((yield query.where(_key_in(chunk))))
    rows = yield select(t.target.c.name, t.target.c.source, t.target.c.digest).where(~t.target.c.withdrawn)
    targets = {
        row.name: (row.source or API, row.digest)
        for row in rows
        if row.source is not None or row.name != LOCAL.name or row.digest != LOCAL.digest()
    }
    deployments: dict[str, tuple[str | None, str]] = {}
    dep = t.deployment
    if partial:
        conditions: list[ColumnElement[bool]] = [
            tuple_(dep.c.project, dep.c.domain, dep.c.name).in_(
                [(item.key.project, item.key.domain, item.key.name) for item in listing.deployments]
            )
        ]
    else:
        conditions = []
    rows = yield select(dep.c.project, dep.c.domain, dep.c.name, dep.c.source, dep.c.digest).where(
        ~dep.c.withdrawn, *conditions
    )
    for row in rows:
        deployments[f"{row.project}/{row.domain}/{row.name}"] = (row.source or API, row.digest)
    return Known(found, targets, deployments)


def _add(
    entries: Sequence[TriggerEntry],
    source: str | None,
    now: datetime,
    who: str,
    shadow: bool,
    paused: set[DeploymentKey],
) -> Script[None]:
    """New triggers. `shadow`: where an entry does not say whether it starts in shadow. `paused` are those of
    their deployments that are."""
    if not entries:
        return
    frozen = yield from _frozen_places()
    for chunk in chunked(entries):
        stopped = [entry.key.deployment_key in paused for entry in chunk]
        states = [
            Status.ACTIVE if entry.spec.active and not with_deployment else Status.PAUSED
            for entry, with_deployment in zip(chunk, stopped, strict=True)
        ]
        shadows = [shadow if entry.shadow is None else entry.shadow for entry in chunk]
        rows = yield Many(
            insert(t.trigger).returning(
                t.trigger.c.id,
                t.trigger.c.project,
                t.trigger.c.domain,
                t.trigger.c.deployment,
                t.trigger.c.name,
            ),
            [
                {
                    "project": entry.key.project,
                    "domain": entry.key.domain,
                    "deployment": entry.key.deployment,
                    "name": entry.key.name,
                    "hash_seed": str(entry.key),
                    "source": source,
                    "revision": 1,
                    "status": state.value,
                    "shadow": shadowed,
                    "frozen": entry.key.project in frozen or str(entry.key.deployment_key) in frozen,
                    "cursor": _begins(entry, now),
                    "plan_due_at": now,
                    "created_at": now,
                    "updated_at": now,
                }
                for entry, shadowed, state in zip(chunk, shadows, states, strict=True)
            ],
        )
        # By their keys: to have rows in the order given, SQLite would be asked for one after the other.
        ids = {TriggerKey(row.project, row.domain, row.deployment, row.name): row.id for row in rows}
        yield Many(
            insert(t.trigger_revision),
            [
                _revision_values(
                    ids[entry.key],
                    Revision(
                        1,
                        _begins(entry, now),
                        state,
                        entry.spec,
                        "create",
                        who,
                        shadowed,
                        with_deployment,
                    ),
                )
                for entry, state, shadowed, with_deployment in zip(
                    chunk, states, shadows, stopped, strict=True
                )
            ],
        )
        yield Many(
            insert(t.audit),
            [
                {
                    "at": now,
                    "who": who,
                    "what": "create",
                    "kind": "trigger",
                    "key": str(entry.key),
                    "detail": {},
                }
                for entry in chunk
            ],
        )


def _begins(entry: TriggerEntry, now: datetime) -> datetime:
    """From when a trigger that is new here owes its slots."""
    if entry.since is None:
        return now
    return min(now, entry.since if entry.last_slot is None else max(entry.since, entry.last_slot))


LOCAL = TargetSpec("local", "local")
"""The target that every instance has. Nobody owns it until a source defines it its own way."""


def _write_targets(decided: Reconciled, source: str | None, now: datetime) -> Script[None]:
    rows = yield select(t.target.c.id).where(t.target.c.name == LOCAL.name)
    if not rows:
        yield from _write_target(LOCAL, None, now)
    for item in decided.targets:
        yield from _write_target(item, source, now)
    for name in decided.withdrawn_targets:
        if name == LOCAL.name:
            yield from _write_target(LOCAL, None, now)
        else:
            yield update(t.target).where(t.target.c.name == name).values(withdrawn=True, updated_at=now)


def _write_target(item: TargetSpec, source: str | None, now: datetime) -> Script[None]:
    values = {
        "source": source,
        "spec": item.to_json(),
        "digest": item.digest(),
        "withdrawn": False,
        "updated_at": now,
    }
    written = yield update(t.target).where(t.target.c.name == item.name).values(**values)
    if not written:
        rows = yield insert(t.target).values(name=item.name, **values).returning(t.target.c.id)
        burst = item.rate.burst if item.rate is not None else FULL
        all_frozen = yield select(t.freeze.c.kind).where(_is_freeze(EVERYTHING))
        yield insert(t.target_allowance).values(
            target_id=rows[0].id, tokens=burst, refilled_at=now, looked_at=now, frozen=bool(all_frozen)
        )


FULL = 1e9
"""A new target's tokens; the first claim cuts them down to its burst."""


def _write_deployments(decided: Reconciled, source: str | None, now: datetime) -> Script[None]:
    table = t.deployment
    for chunk in chunked(decided.deployments):
        keys = [(item.key.project, item.key.domain, item.key.name) for item in chunk]
        rows = yield select(table.c.id, table.c.project, table.c.domain, table.c.name).where(
            tuple_(table.c.project, table.c.domain, table.c.name).in_(keys)
        )
        there = {(row.project, row.domain, row.name): row.id for row in rows}
        new: list[dict[str, Any]] = []
        known: list[dict[str, Any]] = []
        for key, item in zip(keys, chunk, strict=True):
            values = {
                "source": source,
                "spec": item.to_json(),
                "digest": item.digest(),
                "withdrawn": False,
                "updated_at": now,
            }
            if key in there:
                known.append({"row_id": there[key], **values})
            else:
                new.append(dict(zip(("project", "domain", "name"), key, strict=True)) | values)
        yield Many(insert(table), new)
        yield Many(update(table).where(table.c.id == bindparam("row_id")), known)
    for text in decided.withdrawn_deployments:
        yield (update(table).where(_is_deployment(*text.split("/"))).values(withdrawn=True, updated_at=now))


# fire


@cache
def _targets() -> Executable:
    """Built once: every pass of every executor asks for it."""
    pending = (
        select(t.run.c.id)
        .where(t.run.c.target_id == t.target.c.id, t.run.c.state == "scheduled")
        .limit(1)
        .exists()
    )
    return (
        select(t.target.c.id, t.target.c.name, t.target.c.spec, t.target_allowance)
        .join(t.target_allowance, t.target_allowance.c.target_id == t.target.c.id)
        .where(or_(~t.target.c.withdrawn, pending))
        .order_by(t.target.c.id)
    )


def targets() -> Script[list[TargetRow]]:
    """See `Store.targets`."""
    rows = yield _targets()
    return [
        TargetRow(
            row.id,
            TargetSpec.from_json(row.name, row.spec),
            row.frozen,
            row.looked_at,
            row.guard_state == GuardState.HELD,
        )
        for row in rows
    ]


def look(target_id: int, now: datetime, grace: timedelta, guard: int = 0) -> Script[LookResult]:
    """See `Store.look`.

    Triggers are locked before the allowance and the runs, as everywhere: a backfill that is being written
    would else take over a run that is going, and call its slot filled.
    """
    allowance = t.target_allowance
    rows = yield select(allowance.c.looked_at).where(allowance.c.target_id == target_id)
    if not rows:
        return LookResult(timedelta(), 0)
    if now - rows[0].looked_at > grace:
        rows = yield (
            select(t.run.c.trigger_id).where(_expired(target_id, rows[0].looked_at, now)).distinct()
        )
        for chunk in chunked(sorted(row.trigger_id for row in rows)):
            yield (
                select(t.trigger.c.id)
                .where(t.trigger.c.id.in_(chunk))
                .order_by(t.trigger.c.id)
                .with_for_update(key_share=True)
            )
    rows = yield (
        select(allowance.c.looked_at, allowance.c.guard_state, allowance.c.guard_from)
        .where(allowance.c.target_id == target_id)
        .with_for_update(key_share=True)
    )
    before = rows[0].looked_at
    gap = now - before
    skipped = 0
    if gap > grace:
        expired = yield (
            select(t.run).where(_expired(target_id, before, now)).order_by(t.run.c.id).with_for_update()
        )
        skipped = yield from skip_runs(
            [run_of(row) for row in expired],
            lambda spec, run: expired_reason(spec, run.first_due_at, now),
            "nobody looked in time",
            now,
        )
        if guard:
            fresh = rows[0].guard_state == GuardState.NONE
            yield (
                update(allowance)
                .where(allowance.c.target_id == target_id)
                .values(
                    guard_state=GuardState.OPEN.value if fresh else rows[0].guard_state,
                    guard_from=before if fresh else rows[0].guard_from,
                    guard_until=now,
                )
            )
    if now > before:
        yield update(allowance).where(allowance.c.target_id == target_id).values(looked_at=now)
    return LookResult(gap if gap > grace else timedelta(), skipped)


def _expired(target_id: int, before: datetime, now: datetime) -> ColumnElement[bool]:
    """Automatic runs never claimed that came due in `(before, now]` and whose time is over."""
    return and_(
        t.run.c.target_id == target_id,
        t.run.c.state == "scheduled",
        t.run.c.origin == "schedule",
        t.run.c.attempt == 0,
        t.run.c.due_at > before,
        t.run.c.due_at <= now,
        t.run.c.expires_at <= now,
    )


def skip_runs(
    runs: Sequence[Run], reason_of: Callable[[TriggerSpec, Run], str], detail: str, now: datetime
) -> Script[int]:
    """Runs become skips, adjacent slots of one rule and reason one skip. Their triggers must be locked."""
    if not runs:
        return 0
    runs = sorted(runs, key=lambda run: (run.trigger_id, run.revision, run.scheduled_time))
    rules: dict[tuple[int, int], tuple[TriggerSpec, str]] = {}
    for chunk in chunked(sorted({run.trigger_id for run in runs})):
        rows = yield (
            select(t.trigger_revision, t.trigger.c.hash_seed)
            .join(t.trigger, t.trigger.c.id == t.trigger_revision.c.trigger_id)
            .where(t.trigger_revision.c.trigger_id.in_(chunk))
        )
        for row in rows:
            rules[row.trigger_id, row.number] = TriggerSpec.from_json(row.spec), row.hash_seed
    skips: list[dict[str, Any]] = []
    for (trigger_id, number), group in groupby(runs, key=lambda run: (run.trigger_id, run.revision)):
        spec, seed = rules[trigger_id, number]
        skips += [
            _skip_values(trigger_id, skip, now)
            for skip in _adjacent(group, schedule_of(spec, seed), partial(reason_of, spec), detail)
        ]
    for chunk in chunked([run.id for run in runs]):
        yield delete(t.run).where(t.run.c.id.in_(chunk))
    yield Many(insert(t.skip), skips)
    for chunk in chunked(sorted({run.trigger_id for run in runs})):
        # A backfill's plan may have been computed from what these runs were; its compare-and-set must fail.
        yield (
            update(t.trigger)
            .where(
                t.trigger.c.id.in_(chunk),
                _has_open_backfill(t.trigger.c.id),
            )
            .values(plan_due_at=now)
        )
    return len(runs)


def _adjacent(
    runs: Iterable[Run], rule: Schedule, reason_of: Callable[[Run], str], detail: str
) -> Iterator[Skip]:
    current: Skip | None = None
    for run in runs:
        reason = reason_of(run)
        if (
            current is not None
            and current.reason == reason
            and rule.after(to_seconds(current.last)) == to_seconds(run.scheduled_time)
        ):
            current = replace(current, last=run.scheduled_time, count=current.count + 1)
            continue
        if current is not None:
            yield current
        current = Skip(run.revision, run.scheduled_time, run.scheduled_time, 1, reason, detail)
    if current is not None:
        yield current


def one_a_run(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """One outcome for each run, by ascending id, where a batch has several: success before all else, then the
    latest attempt, because no earlier one can hold the run."""
    best: dict[int, Outcome] = {}
    for item in outcomes:
        known = best.get(item.run_id)
        if known is None or _weight(item) > _weight(known):
            best[item.run_id] = item
    return sorted(best.values(), key=lambda item: item.run_id)


def _weight(item: Outcome) -> tuple[bool, int]:
    return item.state is RunState.FIRED, item.attempt


def create_manual(request: ManualRequest, now: datetime) -> Script[tuple[Run, bool]]:
    """See `Store.create_manual`."""
    rows = yield select(t.trigger).where(_is_key(request.key)).with_for_update(key_share=True)
    if not rows:
        raise NotFound("trigger", str(request.key))
    row = trigger_of(rows[0])
    name = request.name or manual_run_name(row.key, request.request_key)
    parameters = None if request.parameters is None else dict(request.parameters)
    rows = yield select(t.run).where(
        t.run.c.project == row.key.project, t.run.c.domain == row.key.domain, t.run.c.name == name
    )
    if rows:
        run = run_of(rows[0])
        if (run.trigger_id, run.request_key) != (row.id, request.request_key):
            raise Conflict(f"there is a run {name} already, and it is another one", "another name")
        if (run.parameters or None) != (parameters or None):
            raise Conflict(
                f"request key {request.request_key!r} was used for a run with other parameters",
                "another request key",
            )
        return run, False
    if row.status is Status.DELETED:
        raise Conflict(f"trigger {row.key} is deleted", "add it again first")
    rows = yield select(t.trigger_revision.c.spec).where(
        t.trigger_revision.c.trigger_id == row.id, t.trigger_revision.c.number == row.revision
    )
    spec = TriggerSpec.from_json(rows[0].spec)
    rows = yield select(t.target.c.id).where(t.target.c.name == spec.target)
    inserted = yield (
        insert(t.run)
        .values(
            trigger_id=row.id,
            scheduled_time=request.scheduled_time or now,
            origin="manual",
            project=row.key.project,
            domain=row.key.domain,
            name=name,
            revision=row.revision,
            target_id=rows[0].id,
            state="held" if row.frozen else "scheduled",
            due_at=now,
            first_due_at=now,
            parameters=parameters,
            request_key=request.request_key,
        )
        .returning(t.run)
    )
    yield write_audit(Audit(request.who, "run", "trigger", str(row.key), {"run": name}), now)
    return run_of(inserted[0]), True


# freeze


def freeze(scope: Scope, note: str | None, who: str, now: datetime) -> Script[Frozen]:
    """See `Store.freeze`."""
    yield _stops_stand(exclusive=True)
    yield from _must_be(scope, in_use=True)
    values = {"note": note, "who": who, "at": now}
    written = yield update(t.freeze).where(_is_freeze(scope)).values(**values)
    if not written:
        yield insert(t.freeze).values(kind=scope.kind.value, key=scope.key, **values)
    if scope.of_targets:
        ids = yield from _lock_allowances(scope)
        yield from _set_frozen_targets(ids, frozen=True)
        found = Frozen(targets=len(ids))
    else:
        ids = yield from _lock_triggers(_in_scope(scope))
        yield from _mark(ids, frozen=True, now=now)
        found = Frozen(triggers=len(ids), held=(yield from _hold_runs(ids, now)))
    detail = {"note": note, "held": found.held}
    yield write_audit(Audit(who, "freeze", scope.kind.value, scope.key or "*", detail), now)
    return found


def release(scope: Scope, owed: Owed, who: str, now: datetime) -> Script[Released]:
    """See `Store.release`."""
    yield _stops_stand(exclusive=True)
    yield from _must_be(scope, in_use=False)
    if scope.of_targets:
        found = yield from _release_targets(scope, owed, who, now)
    else:
        found = yield from _release_triggers(scope, owed, who, now)
    detail = {"owed": owed.value, "released": found.released, "skipped": found.skipped}
    yield write_audit(Audit(who, "release", scope.kind.value, scope.key or "*", detail), now)
    return found


def _release_triggers(scope: Scope, owed: Owed, who: str, now: datetime) -> Script[Released]:
    written = yield delete(t.freeze).where(_is_freeze(scope))
    if not written:
        raise Conflict(f"{scope} is not frozen", "`horarium status` says what is")
    ids = yield from _lock_triggers(and_(_in_scope(scope), t.trigger.c.frozen, ~_is_still_frozen()))
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
    written = yield delete(t.freeze).where(_is_freeze(scope) if scope.key else both)
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
            found = select(deployment.withdrawn).where(_is_deployment(*scope.key.split("/")))
            used = ~deployment.withdrawn
    rows = yield (found.where(used) if in_use else found).limit(1)
    if not rows:
        raise NotFound(scope.kind.value, scope.key)


def _stops_stand(*, exclusive: bool) -> Executable:
    """Keeps freezes and pauses of deployments as they are while triggers or targets are added, and the other
    way round.

    By a lock on the one target that is always there, taken before any trigger's. Else a freeze or a pause
    would miss a trigger added beside it.
    """
    row = select(t.target.c.id).where(t.target.c.name == LOCAL.name)
    return row.with_for_update(key_share=True) if exclusive else row.with_for_update(read=True)


def _is_freeze(scope: Scope) -> ColumnElement[bool]:
    return and_(t.freeze.c.kind == scope.kind.value, t.freeze.c.key == scope.key)


def _frozen_places() -> Script[set[str]]:
    """Projects and keys of deployments that are frozen."""
    rows = yield select(t.freeze.c.key).where(t.freeze.c.kind.in_(("project", "deployment")))
    return {row.key for row in rows}


def _in_scope(scope: Scope) -> ColumnElement[bool]:
    table = t.trigger.c
    if scope.kind is ScopeKind.PROJECT:
        return table.project == scope.key
    project, domain, name = scope.key.split("/")
    return and_(table.project == project, table.domain == domain, table.deployment == name)


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


def _move_freezes(renamed: Sequence[int], now: datetime) -> Script[None]:
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


# The terms of partial indexes, which serve only a query that repeats them literally.
PENDING = term("run.state in ('scheduled', 'held')")
SCHEDULED = term("run.state = 'scheduled'")
HELD = term("run.state = 'held'")
UNUSUAL = term("run.state in ('held', 'failed', 'cancelled')")
MANUAL = term("run.origin = 'manual'")
NOT_MANUAL = term("run.origin <> 'manual'")
SETTLED = ("fired", "failed", "shadowed", "cancelled")


# backfills


def carve(
    trigger_id: int, slots: Sequence[datetime], revisions: Sequence[Revision], seed: str
) -> Script[None]:
    """Split the skips that cover freshly filled `slots` (ascending, all that lie between them are filled)."""
    first, last = slots[0], slots[-1]
    rows = yield (
        select(t.skip)
        .where(t.skip.c.trigger_id == trigger_id, t.skip.c.last_time >= first, t.skip.c.first_time <= last)
        .order_by(t.skip.c.id)
        .with_for_update()
    )
    for row in rows:
        spec = next((item.spec for item in revisions if item.number == row.revision), revisions[-1].spec)
        rule = schedule_of(spec, seed)
        # Another rule may have filled slots between its ends; those were never among its own.
        filled = [
            slot
            for slot in slots
            if row.first_time <= slot <= row.last_time
            and rule.after(to_seconds(slot) - 1) == to_seconds(slot)
        ]
        if not filled:
            continue
        rest: list[dict[str, Any]] = []
        left = row.count - len(filled)
        before = count_range(rule, to_seconds(row.first_time) - 1, to_seconds(filled[0]) - 1)
        if before is not None:
            rest.append({"first": before[0], "last": before[1], "count": before[2]})
            left -= before[2]
        if left > 0:
            following = rule.after(to_seconds(filled[-1]))
            if following is not None:
                rest.append({"first": following, "last": to_seconds(row.last_time), "count": left})
        yield delete(t.skip).where(t.skip.c.id == row.id)
        if rest:
            yield Many(
                insert(t.skip),
                [
                    _skip_values(
                        trigger_id,
                        Skip(
                            row.revision,
                            from_seconds(item["first"]),
                            from_seconds(item["last"]),
                            item["count"],
                            row.reason,
                            row.detail,
                        ),
                        row.at,
                    )
                    for item in rest
                ],
            )


def runs_of_steps(item: Plan) -> list[tuple[BackfillStep, list[PlannedRun]]]:
    """Each backfill's step with the runs in its part of the range."""
    ranges = {given.id: given for given in item.input.backfills}
    filled = [run for run in item.runs if run.origin is Origin.BACKFILL]
    return [
        (
            step,
            [
                run
                for run in filled
                if ranges[step.id].cursor < from_seconds(run.scheduled_time) <= step.cursor
            ],
        )
        for step in item.backfills
    ]


# housekeeping


def prune(
    before: datetime, skips_before: datetime, limit: int, audit_before: datetime | None
) -> Script[Pruned]:
    """See `Store.prune`."""
    runs = yield (
        select(t.run.c.id, t.run.c.trigger_id, t.run.c.scheduled_time.label("last_time"))
        .where(_settled_before(before), ~_has_open_backfill(t.run.c.trigger_id))
        .order_by(t.run.c.scheduled_time, t.run.c.id)
        .limit(limit)
    )
    skips = yield (
        select(t.skip.c.id, t.skip.c.trigger_id, t.skip.c.last_time)
        .where(t.skip.c.last_time < skips_before, ~_has_open_backfill(t.skip.c.trigger_id))
        .order_by(t.skip.c.last_time, t.skip.c.id)
        .limit(limit)
    )
    gone = yield from prune_found(Found(runs, skips), _settled_before(before))
    audit = 0
    if audit_before is not None:
        line = t.audit.c
        old = select(line.id).where(line.at < audit_before).order_by(line.at).limit(limit)
        audit = yield delete(t.audit).where(line.id.in_(old.scalar_subquery()))
    key = t.idempotency.c
    old = select(key.key).where(key.at < before).order_by(key.at).limit(limit)
    keys = yield delete(t.idempotency).where(key.key.in_(old.scalar_subquery()))
    return Pruned(gone.runs, gone.skips, audit, keys)


@dataclass(frozen=True, slots=True)
class Found:
    """Rows that retention may take, each with `id`, `trigger_id` and `last_time`. `after`: where a walk over
    triggers goes on; None: it has come to the end."""

    runs: Sequence[Row[Any]]
    skips: Sequence[Row[Any]]
    after: int | None = None


def beyond(keep_runs: int, keep_skips: int, after: int, triggers: int, limit: int) -> Script[Found]:
    """What of the `triggers` triggers after that id is beyond the newest so many; `limit` of each at most.

    One look in the indexes for all of them (nearly all have less, and cost what they have), and then a closer
    one for those that have more. It only reads: `prune_found` asks again under the locks.
    """
    run, skip, trigger = t.run.c, t.skip.c, t.trigger.c
    some = select(trigger.id).where(trigger.id > after).order_by(trigger.id).limit(triggers).subquery()
    mine = run.trigger_id == some.c.id
    # They ask for nothing that is not in an index: no row is touched.
    edges = [
        null()
        if keep == 0
        else select(at)
        .where(*where)
        .order_by(at.desc())
        .offset(keep)
        .limit(1)
        .correlate(some)
        .scalar_subquery()
        for at, where, keep in (
            (run.scheduled_time, (mine, NOT_MANUAL), keep_runs),
            (run.scheduled_time, (mine, MANUAL), keep_runs),
            (skip.last_time, (skip.trigger_id == some.c.id,), keep_skips),
        )
    ]
    rows = yield select(some.c.id, *(edge.label(f"edge{n}") for n, edge in enumerate(edges))).order_by(
        some.c.id
    )
    runs: list[Row[Any]] = []
    skips: list[Row[Any]] = []
    for row in rows:
        for which, there in ((NOT_MANUAL, row.edge0), (MANUAL, row.edge1)):
            if there is not None:
                where = run.trigger_id == row.id, which, run.state.in_(SETTLED)
                rest = limit - len(runs)
                runs += yield from _oldest_beyond(t.run, run.scheduled_time, keep_runs, rest, *where)
        if row.edge2 is not None:
            own, rest = skip.trigger_id == row.id, limit - len(skips)
            skips += yield from _oldest_beyond(t.skip, skip.last_time, keep_skips, rest, own)
        if len(runs) >= limit or len(skips) >= limit:
            return Found(runs, skips, row.id - 1)  # there may be more of this one
    return Found(runs, skips, rows[-1].id if len(rows) == triggers else None)


def _oldest_beyond(
    table: Table, at: ColumnElement[datetime], keep: int, limit: int, *which: ColumnElement[bool] | TextClause
) -> Script[Sequence[Row[Any]]]:
    """The oldest rows of a trigger by the time `at` beyond its newest `keep`, as `last_time`."""
    mine = select(table.c.id, table.c.trigger_id, at.label("last_time")).where(*which)
    edge = yield mine.order_by(at.desc(), table.c.id.desc()).offset(keep).limit(1)
    if not edge:
        return []
    last, last_id = edge[0].last_time, edge[0].id
    found: Sequence[Row[Any]] = yield (
        mine.where(
            ~_has_open_backfill(table.c.trigger_id), or_(at < last, and_(at == last, table.c.id <= last_id))
        )
        .order_by(at, table.c.id)
        .limit(limit)
    )
    return found


def prune_found(found: Found, settled: ColumnElement[bool] | None = None) -> Script[Pruned]:
    """Delete these runs, with their attempts and local executions, and these skips; see `pruned_before`.

    A trigger with an open backfill keeps its rows until that is done: the backfill would take a pruned slot
    for a hole and run it again. `pruned_before` tells later backfills.
    """
    if settled is None:
        settled = t.run.c.state.in_(SETTLED)
    wanted = sorted({row.trigger_id for row in (*found.runs, *found.skips)})
    free: set[int] = set()
    for chunk in chunked(wanted):
        yield (
            select(t.trigger.c.id)
            .where(t.trigger.c.id.in_(chunk))
            .order_by(t.trigger.c.id)
            .with_for_update(key_share=True)
        )
        # Asked again under the locks: a backfill may have begun before we had them.
        unlocked = yield select(t.trigger.c.id).where(
            t.trigger.c.id.in_(chunk), ~_has_open_backfill(t.trigger.c.id)
        )
        free |= {row.id for row in unlocked}
    latest: dict[int, datetime] = {}
    for row in (*found.runs, *found.skips):
        if row.trigger_id in free:
            latest[row.trigger_id] = max(row.last_time, latest.get(row.trigger_id, row.last_time))
    marks: dict[datetime, list[int]] = {}  # those of one rule share their slots: few statements for many
    for trigger_id, at in latest.items():
        marks.setdefault(at + timedelta(microseconds=1), []).append(trigger_id)
    for mark, ids in sorted(marks.items()):
        for chunk in chunked(sorted(ids)):
            yield (
                update(t.trigger)
                .where(
                    t.trigger.c.id.in_(chunk),
                    or_(t.trigger.c.pruned_before.is_(None), t.trigger.c.pruned_before < mark),
                )
                .values(pruned_before=mark)
            )
    runs = skips = 0
    for chunk in chunked(sorted(row.id for row in found.runs if row.trigger_id in free)):
        # What was retried by hand since it was read is no longer settled, and stays; so does what still runs.
        yield select(t.run.c.id).where(t.run.c.id.in_(chunk)).order_by(t.run.c.id).with_for_update()
        rows = yield select(t.run.c.id, _local_key().label("key")).where(
            t.run.c.id.in_(chunk), settled, ~_runs_still()
        )
        ids = [row.id for row in rows]
        yield delete(t.attempt).where(t.attempt.c.run_id.in_(ids))
        yield delete(t.local_run).where(t.local_run.c.run_name.in_([row.key for row in rows]))
        runs += yield delete(t.run).where(t.run.c.id.in_(ids))
    for chunk in chunked(sorted(row.id for row in found.skips if row.trigger_id in free)):
        skips += yield delete(t.skip).where(t.skip.c.id.in_(chunk))
    return Pruned(runs, skips)


def _local_key() -> ColumnElement[str]:
    """The key under which the `local` target keeps its execution of a run."""
    return t.run.c.project + "/" + t.run.c.domain + "/" + t.run.c.name


def _runs_still() -> ColumnElement[bool]:
    """Whether the `local` target still executes the run: it is fired, and its output is still written."""
    return (
        select(t.local_run.c.run_name)
        .where(t.local_run.c.run_name == _local_key(), t.local_run.c.state.in_(("starting", "running")))
        .exists()
    )


def _settled_before(before: datetime) -> ColumnElement[bool]:
    return and_(
        t.run.c.scheduled_time < before,
        t.run.c.state.in_(SETTLED),
        t.run.c.settled_at < before,
    )


def _has_open_backfill(trigger_id: ColumnElement[int]) -> ColumnElement[bool]:
    return (
        select(t.backfill.c.id)
        .where(t.backfill.c.trigger_id == trigger_id, t.backfill.c.state == "open")
        .exists()
    )


def remember(key: str, request_digest: str, now: datetime) -> Script[Remembered | None]:
    """See `Store.remember`."""
    rows = yield select(t.idempotency).where(t.idempotency.c.key == key).with_for_update()
    if rows:
        return Remembered(rows[0].request_digest, rows[0].status, rows[0].response)
    yield insert(t.idempotency).values(key=key, request_digest=request_digest, at=now)
    return None


def answer(key: str, status: int | None, response: str | None) -> Script[None]:
    """See `Store.answer`."""
    if status is None:
        yield delete(t.idempotency).where(t.idempotency.c.key == key)
    else:
        yield update(t.idempotency).where(t.idempotency.c.key == key).values(status=status, response=response)


# helpers


def chunked(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """`items` in pieces that one statement can take."""
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]


def _ids_of(keys: Sequence[TriggerKey]) -> Script[dict[TriggerKey, int]]:
    found: dict[TriggerKey, int] = {}
    table = t.trigger
    for chunk in chunked(keys):
        rows = yield select(
            table.c.id, table.c.project, table.c.domain, table.c.deployment, table.c.name
        ).where(_key_in(chunk))
        for row in rows:
            found[TriggerKey(row.project, row.domain, row.deployment, row.name)] = row.id
    return found


def _key_in(keys: Sequence[TriggerKey]) -> ColumnElement[bool]:
    table = t.trigger
    return tuple_(table.c.project, table.c.domain, table.c.deployment, table.c.name).in_(
        [(key.project, key.domain, key.deployment, key.name) for key in keys]
    )


def _is_key(key: TriggerKey) -> ColumnElement[bool]:
    table = t.trigger
    return and_(
        table.c.project == key.project,
        table.c.domain == key.domain,
        table.c.deployment == key.deployment,
        table.c.name == key.name,
    )


def _is_deployment(project: str, domain: str, name: str) -> ColumnElement[bool]:
    table = t.deployment
    return and_(table.c.project == project, table.c.domain == domain, table.c.name == name)
