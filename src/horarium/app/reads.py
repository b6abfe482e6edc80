"""Reads that several answers share: a walk over runs, the revisions of a trigger, a bounded count."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, literal, select, tuple_, union_all

from horarium.app import views
from horarium.app.paging import Filters
from horarium.app.selects import MANUAL, NOT_MANUAL, UNUSUAL, run_filters, run_row, run_select
from horarium.app.views import RunRow
from horarium.core.revision import Revision, decided_slots
from horarium.core.spec import TriggerSpec
from horarium.store import tables as t
from horarium.store.base import Store
from horarium.store.rows import revision_of

COUNT_BOUND = 10_000
"""Counts of runs stop here, and then mean "at least": an exact one would read the whole index."""

WALK = 20_000
"""Runs that one page of a filtered list looks at: some 50 ms."""

REVISIONS = 1_000
"""Revisions of one trigger that an answer looks at: years of daily edits."""


async def bounded(store: Store, statement: Select[Any]) -> int:
    """How many rows there are, at most `COUNT_BOUND`."""
    some = statement.limit(COUNT_BOUND).subquery()
    rows = await store.fetch(select(func.count()).select_from(some))
    return int(rows[0][0])


async def all_revisions(store: Store, trigger_id: int) -> tuple[Revision, ...]:
    """The revisions of a trigger, ascending; the newest `REVISIONS` of them."""
    table = t.trigger_revision
    rows = await store.fetch(
        select(table).where(table.c.trigger_id == trigger_id).order_by(table.c.number.desc()).limit(REVISIONS)
    )
    return tuple(revision_of(row) for row in reversed(rows))


async def decided_slots_ahead(
    store: Store, trigger_ids: Sequence[int], until: datetime
) -> dict[int, set[datetime]]:
    """The slots past each trigger's cursor, up to `until`, that have a run or lie in a skip: somebody planned
    or cancelled them before the planner came to them, and it passes by. None for one without any."""
    run, skip, trigger, revision = t.run.c, t.skip.c, t.trigger.c, t.trigger_revision.c
    found: dict[int, set[datetime]] = {}
    for row in await store.fetch(
        select(run.trigger_id, run.scheduled_time)
        .join(t.trigger, trigger.id == run.trigger_id)
        .where(
            run.trigger_id.in_(trigger_ids),
            NOT_MANUAL,
            run.scheduled_time > trigger.cursor,
            run.scheduled_time <= until,
        )
    ):
        found.setdefault(row.trigger_id, set()).add(row.scheduled_time)
    for row in await store.fetch(
        select(skip.trigger_id, skip.first_time, skip.last_time)
        .add_columns(trigger.hash_seed, trigger.cursor, revision.spec)
        .join(t.trigger, trigger.id == skip.trigger_id)
        .join(
            t.trigger_revision,
            and_(revision.trigger_id == skip.trigger_id, revision.number == skip.revision),
        )
        .where(skip.trigger_id.in_(trigger_ids), skip.last_time > trigger.cursor, skip.first_time <= until)
    ):
        spec = TriggerSpec.from_json(row.spec)
        slots = decided_slots(spec, row.hash_seed, row.first_time, row.last_time, row.cursor)
        found.setdefault(row.trigger_id, set()).update(at for at, _ in slots)
    return found


async def shadow_times(
    store: Store, trigger_ids: Sequence[int], low: datetime, high: datetime
) -> dict[int, list[tuple[datetime, datetime]]]:
    """The parts of `(low, high]` in which triggers were in shadow, ascending, adjacent ones as one.

    A trigger that is not among them never was.
    """
    revision = t.trigger_revision.c
    rows = await store.fetch(
        select(revision.trigger_id, revision.effective_from, revision.shadow, revision.state)
        .where(revision.trigger_id.in_(trigger_ids), revision.effective_from < high)
        .order_by(revision.trigger_id, revision.number)
    )
    found: dict[int, list[tuple[datetime, datetime]]] = {}
    for trigger_id, group in groupby(rows, key=lambda row: row.trigger_id):
        for row, following in pairwise([*group, None]):
            assert row is not None
            begins = max(low, row.effective_from)
            ends = high if following is None else min(high, following.effective_from)
            if not row.shadow or row.state == "deleted" or begins >= ends:
                continue
            parts = found.setdefault(trigger_id, [])
            if parts and parts[-1][1] == begins:
                parts[-1] = parts[-1][0], ends
            else:
                parts.append((begins, ends))
    return found


async def walk_runs(
    store: Store,
    filters: Filters,
    trigger_id: int | None,
    after: tuple[datetime, int] | None,
    limit: int,
    now: datetime,
    late_after: timedelta,
    *,
    newest_first: bool,
) -> tuple[list[RunRow], tuple[datetime, int] | None]:
    """At most `limit` runs past the key `after`, and the key to go on from, if there may be more."""
    run = t.run.c
    key = tuple_(run.scheduled_time, run.id)
    order = (run.scheduled_time.desc(), run.id.desc()) if newest_first else (run.scheduled_time, run.id)
    bounds: list[ColumnElement[bool]] = []
    if filters.from_time is not None:
        bounds.append(run.scheduled_time >= filters.from_time)
    if filters.to_time is not None:
        bounds.append(run.scheduled_time < filters.to_time)
    wanted = run_filters(filters, now)
    statement = run_select().where(*wanted).order_by(*order)
    found: list[RunRow] = []
    walked = 0
    while True:
        past = [*bounds]
        if after is not None:
            at = tuple_(literal(after[0], run.scheduled_time.type), literal(after[1], run.id.type))
            past.append(key < at if newest_first else key > at)
        step = _keys(past, order, trigger_id, newest_first)
        end: tuple[datetime, int] | None = None
        here = statement.where(*past)
        if filters.state in ("held", "failed", "cancelled") and trigger_id is None:
            here = here.where(UNUSUAL)
        elif wanted:
            rows = await store.fetch(step.limit(1).offset(WALK - 1))
            if rows:
                end = (rows[0].scheduled_time, rows[0].id)
                last = tuple_(literal(end[0], run.scheduled_time.type), literal(end[1], run.id.type))
                here = here.where(key >= last if newest_first else key <= last)
        if trigger_id is not None:
            some = step.limit(WALK if wanted else limit - len(found) + 1).subquery()
            here = here.where(run.id.in_(select(some.c.id)))
        need = limit - len(found)
        batch = await store.fetch(here.limit(need + 1))
        for raw in batch[:need]:
            after = (raw.scheduled_time, raw.id)
            row = run_row(raw)
            if filters.late is None or views.is_late(row, now, late_after) == filters.late:
                found.append(row)
        if len(batch) <= need:
            # This stretch is at its end; what lies behind it, if anything, is the next page's.
            return found, end
        walked += len(batch)
        if len(found) == limit or walked >= WALK:
            return found, after


def _keys(
    past: Sequence[ColumnElement[bool]], order: Sequence[Any], trigger_id: int | None, newest_first: bool
) -> Select[Any]:
    """The keys of runs in order, from one index; of one trigger from two: its slots, and the rest."""
    run = t.run.c
    if trigger_id is None:
        return select(run.scheduled_time, run.id).where(*past).order_by(*order)
    arms = [
        select(
            select(run.scheduled_time, run.id)
            .where(run.trigger_id == trigger_id, term, *past)
            .order_by(*order)
            .limit(WALK)
            .subquery()
        )
        for term in (NOT_MANUAL, MANUAL)
    ]
    both = union_all(*arms).subquery()
    found = select(both.c.scheduled_time, both.c.id)
    if newest_first:
        return found.order_by(both.c.scheduled_time.desc(), both.c.id.desc())
    return found.order_by(both.c.scheduled_time, both.c.id)
