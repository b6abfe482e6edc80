"""The whole at a glance: counts, targets, sources, loops, and what is wrong.

Counts of runs are bounded. `late` and `backlog` look at the due end of the index of what is pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy import ColumnElement, func, select

import horarium
from horarium.app import views
from horarium.app.backlog import Backlog, backlogs
from horarium.app.reads import COUNT_BOUND, bounded
from horarium.app.selects import IN_SHADOW, LIVE, NOT_ACTIVE, PAUSED_DEPLOYMENT, SCHEDULED, UNUSUAL
from horarium.app.views import View
from horarium.clock import Clock
from horarium.core.instant import rfc3339
from horarium.core.revision import Status
from horarium.store import tables as t
from horarium.store.base import Store, TargetRow
from horarium.store.rows import trigger_of


class LoopHealth(Protocol):
    """One loop of a running server; `turned_at` is when it last came round, `error` why it last failed."""

    name: str
    turned_at: datetime | None
    error: str | None


class TargetHealth(Protocol):
    """One target of a running server: places free now, calls under way, and what stands in the way of runs
    that are due: `rate`, `full`, `unavailable`, or nothing. `ahead`: what is wrong with runs that are to be
    there before they are due; `error`: why the target could not be started, or not be asked how
    its runs go."""

    name: str
    free: int
    in_flight: int
    waiting: str | None
    ahead: str | None
    error: str | None


class Health(Protocol):
    """What a running server knows of itself."""

    def loops(self) -> Sequence[LoopHealth]:
        """Its loops."""
        ...

    def stuck(self) -> Sequence[str]:
        """Names of loops that have not turned for longer than they ever should."""
        ...

    def targets(self) -> Sequence[TargetHealth]:
        """Its targets."""
        ...


@dataclass(frozen=True, slots=True)
class Database:
    """Where the rows are, for people: `location` holds no secret."""

    kind: str
    location: str
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """Reads the status of an instance; see the module."""

    store: Store
    clock: Clock
    grace: timedelta
    late_after: timedelta
    health: Health | None
    database: Database

    async def view(self) -> View:
        """All of it."""
        now = self.clock.now()
        targets = await self.store.targets()
        looked = [row.looked_at for row in targets]
        running = {item.name: item for item in self.targets()}
        waiting = await backlogs(self.store, targets, now, self.late_after)
        shown_targets = []
        for row in targets:
            live = running.get(row.spec.name)
            shown_targets.append(
                {
                    "name": row.spec.name,
                    "kind": row.spec.kind,
                    "free": None if live is None else live.free,
                    "in_flight": None if live is None else live.in_flight,
                    "due": waiting[row.spec.name].due,
                    "frozen": row.frozen,
                    "rate": views.rate_view(row.spec),
                    "ahead": live and live.ahead,
                    "error": live and live.error,
                    "waiting": "guard" if row.guarded and not row.frozen else live and live.waiting,
                    "looked_at": rfc3339(row.looked_at),
                }
            )
        next_plan = await self.store.next_plan_due()
        down_since = max(looked) if looked and now - max(looked) > self.grace else None
        return {
            "version": horarium.__version__,
            "now": rfc3339(now),
            "database": {
                "kind": self.database.kind,
                "location": self.database.location,
                "schema": self.database.schema,
            },
            "down_since": views.moment(down_since),
            "counts": {
                "triggers": await self._trigger_counts(),
                "runs": await self._run_counts(targets, waiting, now),
            },
            "next_due_at": views.moment(await self.store.next_due(now)),
            "next_plan_due_at": views.moment(next_plan),
            "targets": shown_targets,
            "freezes": await self.freezes(),
            "paused_deployments": await self._paused_deployments(),
            "sources": await self.sources(),
            "triggers_with_errors": await self._triggers_with_errors(),
            "loops": self.loops(),
        }

    def targets(self) -> Sequence[TargetHealth]:
        """The targets of this process; none where no server runs in it."""
        return self.health.targets() if self.health else ()

    def loops(self) -> list[View]:
        """The loops of this process; none where no server runs in it."""
        if self.health is None:
            return []
        stuck = set(self.health.stuck())
        return [
            {
                "name": loop.name,
                "turned_at": views.moment(loop.turned_at),
                "error": loop.error,
                "alive": loop.name not in stuck,
            }
            for loop in self.health.loops()
        ]

    async def freezes(self) -> list[View]:
        """What people have frozen, and why."""
        table = t.freeze.c
        rows = await self.store.fetch(select(t.freeze).order_by(table.kind, table.key).limit(1_000))
        return [
            {"kind": row.kind, "key": row.key, "note": row.note, "who": row.who, "at": rfc3339(row.at)}
            for row in rows
        ]

    async def _paused_deployments(self) -> list[View]:
        """What people have paused whole, and why; single triggers are among the counts."""
        table = t.deployment
        rows = await self.store.fetch(
            select(table)
            .where(PAUSED_DEPLOYMENT, ~table.c.withdrawn)
            .order_by(table.c.project, table.c.domain, table.c.name)
            .limit(1_000)
        )
        return [
            {
                "deployment": f"{row.project}/{row.domain}/{row.name}",
                "note": row.pause_note,
                "who": row.paused_by,
                "at": rfc3339(row.paused_at),
            }
            for row in rows
        ]

    async def sources(self) -> list[View]:
        """Every source: its last listing, and why it could not be read if so."""
        rows = await self.store.fetch(select(t.source).order_by(t.source.c.name).limit(1_000))
        return [
            {
                "name": row.name,
                "version": row.version,
                "path": row.path,
                "listed_at": views.moment(row.listed_at),
                "error": row.error,
                "error_at": views.moment(row.error_at),
            }
            for row in rows
        ]

    async def _trigger_counts(self) -> View:
        trigger = t.trigger.c
        rows = await self.store.fetch(
            select(trigger.status, func.count()).where(NOT_ACTIVE).group_by(trigger.status)
        )
        found: View = {status.value: 0 for status in Status}
        found.update(dict(map(tuple, rows)))
        total = await self.store.fetch(select(func.count()).select_from(t.trigger))
        found["active"] = total[0][0] - sum(found.values())
        found["error"] = await bounded(self.store, select(trigger.id).where(trigger.error.is_not(None)))
        found["shadow"] = await bounded(self.store, select(trigger.id).where(IN_SHADOW, LIVE))
        return found

    async def _run_counts(
        self, targets: Sequence[TargetRow], waiting: Mapping[str, Backlog], now: datetime
    ) -> View:
        """Bounded: `late` and `backlog` look at the due end of the index. The last day is what was settled in
        it: a backfill of last month counts today."""
        run = t.run.c
        day = select(run.state).where(run.settled_at > now - timedelta(days=1), run.settled_at <= now)
        newest = day.order_by(run.settled_at.desc()).limit(COUNT_BOUND).subquery()
        rows = await self.store.fetch(select(newest.c.state, func.count()).group_by(newest.c.state))
        settled: dict[str, int] = dict(map(tuple, rows))
        late_before = run.due_at <= now - self.late_after
        return {
            "scheduled": await self._over(targets, run.due_at.is_not(None)),
            "held": await bounded(self.store, select(run.id).where(UNUSUAL, run.state == "held")),
            "late": min(sum(found.late for found in waiting.values()), COUNT_BOUND),
            "backlog": await self._over(targets, late_before),
            "fired_24h": settled.get("fired", 0),
            "failed_24h": settled.get("failed", 0),
            "shadowed_24h": settled.get("shadowed", 0),
            "bound": COUNT_BOUND,
        }

    async def _over(self, targets: Sequence[TargetRow], condition: ColumnElement[bool]) -> int:
        total = 0
        for row in targets:
            total += await bounded(
                self.store, select(t.run.c.id).where(t.run.c.target_id == row.id, SCHEDULED, condition)
            )
        return min(total, COUNT_BOUND)

    async def _triggers_with_errors(self) -> list[View]:
        trigger = t.trigger
        rows = await self.store.fetch(
            select(trigger).where(trigger.c.error.is_not(None)).order_by(trigger.c.id).limit(20)
        )
        return [
            {
                "trigger": str(found.key),
                "error": found.error,
                "error_count": found.error_count,
                "plan_due_at": views.moment(found.plan_due_at),
            }
            for found in map(trigger_of, rows)
        ]
