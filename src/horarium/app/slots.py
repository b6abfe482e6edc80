"""One list of what was, what is and what will be: runs, skips and projected slots, by time.

Three lists, each in order and each bounded, are merged up to the first one's end. A slot that is not planned
yet is projected from its trigger's rule.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Set
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from sqlalchemy import Row, and_, literal, select, tuple_

from horarium.app import views
from horarium.app.paging import Filters
from horarium.app.reads import decided_slots_ahead, walk_runs
from horarium.app.selects import found_in, in_spec, joined_spec, key_of, needs_spec, skip_of, trigger_filters
from horarium.app.views import View
from horarium.core.instant import MAX_SECONDS, from_seconds, rfc3339, to_micros, to_seconds
from horarium.core.revision import schedule_of
from horarium.core.spec import TriggerSpec
from horarium.store import tables as t
from horarium.store.base import Store
from horarium.store.rows import trigger_of

PROJECTED = 500
"""Triggers whose slots past the planned ones are shown in one list."""

Key: TypeAlias = tuple[int, int, int]
"""Where an item stands: its time in microseconds, its list's rank, its id."""

Item: TypeAlias = tuple[Key, View]


class Slots:
    """Three lists, each by time, merged: runs (rank 0), skips (1), projected slots (2)."""

    def __init__(
        self,
        store: Store,
        filters: Filters,
        trigger_id: int | None,
        start: datetime,
        end: datetime,
        now: datetime,
        late_after: timedelta,
        limit: int,
    ) -> None:
        self.store = store
        self.trigger_id = trigger_id
        self.late_after = late_after
        self.filters = filters
        self.start = start
        self.end = end
        self.now = now
        self.limit = limit
        self.after: tuple[datetime, int, int] | None = None

    def resume(self, at: datetime, rank: int, tie: int) -> None:
        self.after = (at, rank, tie)

    async def page(self) -> tuple[list[View], Key | None, View]:
        """Items, the key to go on from, and of how many triggers slots were projected."""
        runs, runs_end = await self._runs()
        skips, skips_end = await self._skips()
        projected, projected_end, seen = await self._projected()
        cut = min((end for end in (runs_end, skips_end, projected_end) if end is not None), default=None)
        merged = sorted([*runs, *skips, *projected], key=lambda item: item[0])
        ready = [item for item in merged if cut is None or item[0] <= cut]
        taken = ready[: self.limit]
        more: Key | None = None
        if len(ready) > self.limit:
            more = taken[-1][0]
        elif cut is not None:
            more = cut
        return [view for _, view in taken], more, seen

    async def _runs(self) -> tuple[list[Item], Key | None]:
        after: tuple[datetime, int] | None = None
        if self.after is not None:
            at, rank, tie = self.after
            after = (at, tie if rank == 0 else 2**62)
        rows, more = await walk_runs(
            self.store,
            self.filters,
            self.trigger_id,
            after,
            self.limit,
            self.now,
            self.late_after,
            newest_first=False,
        )
        items = [
            (
                (to_micros(row.run.scheduled_time), 0, row.run.id),
                {
                    "kind": "run",
                    "time": rfc3339(row.run.scheduled_time),
                    "trigger": str(row.key),
                    "run": views.run_view(row, self.now, self.late_after),
                },
            )
            for row in rows
        ]
        return items, None if more is None else (to_micros(more[0]), 0, more[1])

    async def _skips(self) -> tuple[list[Item], Key | None]:
        skip, trigger = t.skip.c, t.trigger
        statement = (
            select(t.skip, trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name)
            .join(trigger, trigger.c.id == skip.trigger_id)
            .where(*trigger_filters(self.filters))
        )
        if needs_spec(self.filters):
            statement = joined_spec(statement, skip.trigger_id, skip.revision, self.filters)
        began = (
            statement.where(skip.last_time >= self.start, skip.first_time < self.start)
            # Not the id itself, whose order would have all skips walked instead of those that end later.
            .order_by(skip.id + 0)
            .limit(self.limit + 1)
        )
        inside = statement.where(skip.first_time >= self.start, skip.first_time < self.end)
        rows: list[Row[Any]] = []
        at, rank, tie = self.after or (self.start, -1, 0)
        if at == self.start and rank <= 1:
            if rank == 1:
                began = began.where(skip.id > tie)
            rows += await self.store.fetch(began)
        if rank < 1:
            inside = inside.where(skip.first_time >= at)
        elif rank == 1:
            key = tuple_(literal(at, skip.first_time.type), literal(tie))
            inside = inside.where(tuple_(skip.first_time, skip.id) > key)
        else:
            inside = inside.where(skip.first_time > at)
        inside = inside.order_by(skip.first_time, skip.id).limit(self.limit + 1)
        rows += await self.store.fetch(inside)
        items = [
            (
                (to_micros(max(row.first_time, self.start)), 1, row.id),
                {
                    "kind": "skip",
                    "time": rfc3339(max(row.first_time, self.start)),
                    "trigger": str(key_of(row)),
                    "skip": views.skip_view(key_of(row), skip_of(row), row.at),
                },
            )
            for row in rows
        ]
        items.sort(key=lambda item: item[0])
        if len(items) > self.limit:
            return items[: self.limit], items[self.limit - 1][0]
        return items, None

    async def _projected(
        self,
    ) -> tuple[list[Item], Key | None, View]:
        trigger, revision = t.trigger, t.trigger_revision
        if self.end <= self.now:
            return [], None, {"shown": 0, "more": False}
        statement = (
            select(trigger, revision.c.spec)
            .join(
                revision,
                and_(revision.c.trigger_id == trigger.c.id, revision.c.number == trigger.c.revision),
            )
            .where(
                trigger.c.status == "active",
                *trigger_filters(self.filters),
                *in_spec(revision.c.spec, self.filters),
            )
            .order_by(trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name)
            .limit(PROJECTED + 1)
        )
        if self.filters.q is not None:
            key = (trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name)
            statement = statement.where(found_in(self.filters.q, key))
        rows = await self.store.fetch(statement)
        shown = rows[:PROJECTED]
        decided = await decided_slots_ahead(self.store, [row.id for row in shown], self.end)
        series = [self._series(row, decided.get(row.id, frozenset())) for row in shown]
        items: list[Item] = []
        end: Key | None = None
        for key_, view in heapq.merge(*series, key=lambda item: item[0]):
            if len(items) == self.limit:
                end = items[-1][0]
                break
            items.append((key_, view))
        return items, end, {"shown": min(len(rows), PROJECTED), "more": len(rows) > PROJECTED}

    def _series(self, row: Row[Any], decided: Set[datetime]) -> Iterator[Item]:
        """The slots of one trigger past its cursor, in the range, ascending; not those that are `decided`."""
        trigger = trigger_of(row)
        spec = TriggerSpec.from_json(row.spec)
        rule = schedule_of(spec, trigger.hash_seed)
        begin = to_seconds(max(trigger.cursor, self.now))
        # `start` itself is in the range.
        begin = max(begin, to_seconds(self.start) - (0 if self.start.microsecond else 1))
        if self.after is not None:
            begin = max(begin, to_seconds(self.after[0]) - 1)
        slot = rule.after(begin)
        while slot is not None and from_seconds(min(slot, MAX_SECONDS)) < self.end and slot <= MAX_SECONDS:
            key = (slot * 1_000_000, 2, trigger.id)
            at = from_seconds(slot)
            page = self.after is None or key > (to_micros(self.after[0]), self.after[1], self.after[2])
            if page and at not in decided:
                offset = 0 if rule.zone is None else rule.zone.offset_at(slot)
                yield (
                    key,
                    {
                        "kind": "projected",
                        "time": rfc3339(at),
                        "trigger": str(trigger.key),
                        "projected": {
                            "scheduled_time": rfc3339(at),
                            "local_time": views.local_time(at, timedelta(seconds=offset)),
                            "revision": trigger.revision,
                            "target": spec.target,
                        },
                    },
                )
            slot = rule.after(slot)
