"""Runs: the record of a slot, or of a manual request, from planned to settled.

    planned                 claim (attempt + 1, lease)          answer
       |                          |                               |
       v                          v                               v
    scheduled --------------> scheduled (leased) -------------> fired
       ^  |                       |        | refused, or
       |  | pause, freeze         |        | retries used up
       |  v                       |        v
      held                        |      failed --- retried by hand ---> scheduled
                                  +-- unavailable: scheduled again, later due_at
                                  +-- its revision is in shadow: shadowed, and nobody was called

A slot that policy or a person decides against leaves no row: it becomes part of a skip. A manual run has
no slot, so it ends `cancelled` and keeps its key. What the target reports of the work later is `result`:
`running` once it is fired, where the target reports at all, then how it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from horarium.core.keys import TriggerKey
from horarium.core.spec import Json


class RunState(StrEnum):
    SCHEDULED = "scheduled"
    HELD = "held"
    FIRED = "fired"
    FAILED = "failed"
    SHADOWED = "shadowed"
    CANCELLED = "cancelled"


class Origin(StrEnum):
    SCHEDULE = "schedule"
    BACKFILL = "backfill"
    MANUAL = "manual"


class Result(StrEnum):
    """What became of the work, as its target reports it."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    ERRORED = "errored"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FiredRun:
    """A run that its target has, and that has not ended as far as we know. `target_run_id`: its id there."""

    id: int
    name: str
    trigger: TriggerKey
    target_id: int
    fired_at: datetime
    target_run_id: str | None = None

    @property
    def run_key(self) -> str:
        """`project/domain/name`."""
        return f"{self.trigger.project}/{self.trigger.domain}/{self.name}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a target says of the run `run_key` (`project/domain/name`): `at` is when it came to that."""

    run_key: str
    result: Result
    at: datetime
    detail: str = ""


PENDING = (RunState.SCHEDULED, RunState.HELD)
"""States of a run that is still to be fired."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the store keeps it. Times are aware UTC.

    `due_at` is when we try: the slot plus jitter, a retry's time, or the end of a lease. `first_due_at`
    is the first of those and never moves: lateness is measured from it. `expires_at` is when catch-up
    would give the slot up if downtime kept it from being looked at; None: never. `attempt` counts
    claims. `outcome_unknown`: some call's answer was lost. `waits_for` is the id of the run that was under
    way when this one was put off.
    """

    id: int
    trigger_id: int
    scheduled_time: datetime
    origin: Origin
    name: str
    revision: int
    target_id: int
    state: RunState
    due_at: datetime
    first_due_at: datetime
    expires_at: datetime | None = None
    attempt: int = 0
    lease_owner: str | None = None
    first_claimed_at: datetime | None = None
    outcome_unknown: bool = False
    utc_offset: timedelta = timedelta()
    parameters: Mapping[str, Json] | None = None
    request_key: str | None = None
    fired_at: datetime | None = None
    settled_at: datetime | None = None
    reason: str | None = None
    target_run_id: str | None = None
    result: str | None = None
    result_at: datetime | None = None
    result_detail: str | None = None
    waits_for: int | None = None

    def leased(self, now: datetime) -> bool:
        """Whether some executor may be calling the target for it now."""
        return self.lease_owner is not None and self.due_at > now

    @property
    def automatic(self) -> bool:
        """Whether the planner made it for a slot, so that edits and catch-up may take it away."""
        return self.origin is Origin.SCHEDULE


class PlannedRun(NamedTuple):
    """A slot that shall have a run. `scheduled_time` and `utc_offset` are in seconds.

    A tuple, as plans make tens of thousands a second of them.
    """

    scheduled_time: int
    due_at: datetime
    expires_at: datetime | None
    name: str
    revision: int
    origin: Origin
    state: RunState
    utc_offset: int
    target: str
