"""What is pruned: by its age, and beyond the newest so many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, Table, and_, delete, null, or_, select, update
from sqlalchemy.sql.elements import ColumnElement, TextClause

from horarium.store import tables as t
from horarium.store.base import Pruned
from horarium.store.sql.script import Script, chunked
from horarium.store.sql.terms import MANUAL, NOT_MANUAL, SETTLED, has_open_backfill


def prune(
    before: datetime, skips_before: datetime, limit: int, audit_before: datetime | None
) -> Script[Pruned]:
    """See `Store.prune`."""
    runs = yield (
        select(t.run.c.id, t.run.c.trigger_id, t.run.c.scheduled_time.label("last_time"))
        .where(_settled_before(before), ~has_open_backfill(t.run.c.trigger_id))
        .order_by(t.run.c.scheduled_time, t.run.c.id)
        .limit(limit)
    )
    skips = yield (
        select(t.skip.c.id, t.skip.c.trigger_id, t.skip.c.last_time)
        .where(t.skip.c.last_time < skips_before, ~has_open_backfill(t.skip.c.trigger_id))
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
            ~has_open_backfill(table.c.trigger_id), or_(at < last, and_(at == last, table.c.id <= last_id))
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
            t.trigger.c.id.in_(chunk), ~has_open_backfill(t.trigger.c.id)
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
