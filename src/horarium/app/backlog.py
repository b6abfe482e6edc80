"""What waits for each target: how much is due, late and held, and how long the oldest of it has waited.

Counts are bounded by `reads.COUNT_BOUND` and ride on the indexes of what is pending, so that they cost the
same whether a million runs lie behind them or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select

from horarium.app.reads import COUNT_BOUND, bounded
from horarium.app.selects import SCHEDULED, UNUSUAL
from horarium.store import tables as t
from horarium.store.base import Store, TargetRow

_RETRIES = timedelta(hours=1)
"""How far ahead runs that wait for a retry are looked at, to count them as late."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Of one target. `due` runs could be claimed now, `late` ones are past their time (those that wait for a
    retry among them), `held` ones wait for a person. `oldest` is how long the first in line has been due."""

    target: str
    due: int
    late: int
    held: int
    oldest: timedelta | None


async def backlogs(
    store: Store, targets: list[TargetRow], now: datetime, late_after: timedelta
) -> dict[str, Backlog]:
    """By the name of the target. Raises `StoreUnavailable`."""
    held = await _held(store)
    found = {}
    for row in targets:
        name, run = row.spec.name, t.run.c
        due = select(run.due_at).where(run.target_id == row.id, SCHEDULED, run.due_at <= now)
        first = await store.fetch(due.order_by(run.due_at).limit(1))
        found[name] = Backlog(
            name,
            due=await bounded(store, due) if first else 0,
            late=await _late(store, row.id, now, late_after),
            held=held.get(row.id, 0),
            oldest=now - first[0].due_at if first else None,
        )
    return found


async def _late(store: Store, target_id: int, now: datetime, late_after: timedelta) -> int:
    run = t.run.c
    walked = (
        select(run.first_due_at, run.origin)
        .where(run.target_id == target_id, SCHEDULED, run.due_at <= now + _RETRIES)
        .order_by(run.due_at)
        .limit(COUNT_BOUND)
        .subquery()
    )
    rows = await store.fetch(
        select(func.count())
        .select_from(walked)
        .where(walked.c.first_due_at < now - late_after, walked.c.origin != "backfill")
    )
    return int(rows[0][0])


async def _held(store: Store) -> dict[int, int]:
    run = t.run.c
    some = select(run.target_id).where(UNUSUAL, run.state == "held").limit(COUNT_BOUND).subquery()
    rows = await store.fetch(select(some.c.target_id, func.count()).group_by(some.c.target_id))
    return dict(map(tuple, rows))
