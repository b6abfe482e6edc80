"""Sources: what one lists is reconciled with what is there. What comes by the API goes the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, bindparam, delete, insert, select, tuple_, update
from sqlalchemy.sql.elements import ColumnElement

from horarium.core import trigger as decisions
from horarium.core.freeze import EVERYTHING
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.reconcile import API, Edited, Existing, Known, Reconciled
from horarium.core.revision import Revision, Status
from horarium.core.spec import Listing, TargetSpec, TriggerEntry
from horarium.core.trigger import Change, TriggerState
from horarium.errors import StaleVersion
from horarium.store import tables as t
from horarium.store.base import Changed, SyncResult
from horarium.store.sql.changes import load_states, revision_values, write_changes
from horarium.store.sql.freeze import carry_freezes, frozen_places, is_freeze, move_freezes
from horarium.store.sql.script import Many, Script, chunked
from horarium.store.sql.terms import LOCAL, is_deployment, is_key, key_in, stops_stand


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
    yield stops_stand(exclusive=False)
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
    yield stops_stand(exclusive=False)
    if expected_revision is not None:
        (entry,) = listing.triggers
        rows = yield (
            select(t.trigger.c.revision, t.trigger.c.status).where(is_key(entry.key)).with_for_update()
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
    renamed = _renamed_deployments(decided, known)
    keys = {entry.key.deployment_key for entry in entries}
    paused = yield from _paused_deployments(keys | {old for old, _ in renamed})
    pauses = [(old, new) for old, new in renamed if old in paused and new not in paused]
    paused |= {new for _, new in pauses}
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
    yield from _copy_pauses(pauses)
    yield from write_changes(planned, now, who)
    yield from carry_freezes(renamed)
    yield from _add(decided.added, source, now, who, bool(listing.shadow), paused)
    yield from move_freezes([item.existing.id for item in decided.edited if item.renamed], now)
    return SyncResult(decided, tuple(changes), written=True)


def _paused_deployments(keys: Iterable[DeploymentKey]) -> Script[set[DeploymentKey]]:
    """Which of these deployments are paused. It stays so where `stops_stand` has been asked."""
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


def _renamed_deployments(decided: Reconciled, known: Known) -> list[tuple[DeploymentKey, DeploymentKey]]:
    """Former and new names: of a deployment that goes while triggers of it move to some that come."""
    gone = {*decided.withdrawn_deployments}
    found = {
        (item.existing.key.deployment_key, item.entry.key.deployment_key)
        for item in decided.edited
        if str(item.existing.key.deployment_key) in gone
    }
    return sorted((old, new) for old, new in found if str(new) not in known.deployments)


def _copy_pauses(renamed: Iterable[tuple[DeploymentKey, DeploymentKey]]) -> Script[None]:
    """A new name is no end of an operator's pause. The former keeps it: people's triggers may be there."""
    table = t.deployment
    for old, new in renamed:
        (row,) = yield select(table.c.pause_note, table.c.paused_by, table.c.paused_at).where(
            is_deployment(old.project, old.domain, old.name)
        )
        yield (
            update(table)
            .where(is_deployment(new.project, new.domain, new.name))
            .values(paused=True, pause_note=row.pause_note, paused_by=row.paused_by, paused_at=row.paused_at)
        )


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
        keep((yield query.where(key_in(chunk))))
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
    frozen = yield from frozen_places()
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
                revision_values(
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
        all_frozen = yield select(t.freeze.c.kind).where(is_freeze(EVERYTHING))
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
        yield (update(table).where(is_deployment(*text.split("/"))).values(withdrawn=True, updated_at=now))
