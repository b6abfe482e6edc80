"""The answer of `/metrics`: what this process counted, and what the database says at the moment of asking.

A scrape never fails: where the database does not answer, `horarium_database_up` is 0 and the figures that
would come from it are left out, because old ones would say that all is well.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select

from horarium.app.backlog import backlogs
from horarium.app.reads import bounded
from horarium.app.status import Health
from horarium.clock import Clock
from horarium.errors import StoreUnavailable
from horarium.store import tables as t
from horarium.store.base import Store
from horarium.telemetry import Metrics, get_logger

LOG = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Figures:
    """Reads the figures of one instance; see the module."""

    store: Store
    clock: Clock
    late_after: timedelta
    metrics: Metrics
    health: Health | None = None

    async def text(self) -> tuple[bytes, str]:
        """Prometheus' text form, and its content type."""
        try:
            now = self.clock.now()
            targets = list(await self.store.targets())
            waiting = await backlogs(self.store, targets, now, self.late_after)
            errors = await bounded(self.store, select(t.trigger.c.id).where(t.trigger.c.error.is_not(None)))
            sources = await self.store.fetch(select(t.source.c.name, t.source.c.error).limit(1_000))
        except StoreUnavailable as error:
            LOG.warning("the database did not answer a scrape of metrics", error=str(error))
            self.metrics.database_is_down()
        else:
            # At once, with no await between: two scrapes never see each other's halves.
            self.metrics.database_is_up(errors)
            for name, found in waiting.items():
                oldest = found.oldest or timedelta()
                self.metrics.due_runs.labels(name).set(found.due)
                self.metrics.late_runs.labels(name).set(found.late)
                self.metrics.held_runs.labels(name).set(found.held)
                self.metrics.oldest_due_age.labels(name).set(oldest.total_seconds())
            for row in targets:
                self.metrics.target_frozen.labels(row.spec.name).set(row.frozen)
            for source in sources:
                self.metrics.source_failing.labels(source.name).set(source.error is not None)
        for loop in self.health.loops() if self.health else ():
            if loop.turned_at is not None:
                self.metrics.loop_turned.labels(loop.name).set(loop.turned_at.timestamp())
        for target in self.health.targets() if self.health else ():
            self.metrics.in_flight.labels(target.name).set(target.in_flight)
        return self.metrics.render()
