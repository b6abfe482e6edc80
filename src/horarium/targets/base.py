"""The contract of a target: "create a run under this name, once".

A target is the only part that talks to the outside about a run. It never decides policy: it answers with
one of four values, and `core/outcome.py` decides what becomes of the run.

- `Created`: the work exists over there because of this call.
- `AlreadyExists`: a run of that name was there already. As good as `Created`.
- `Refused`: it will never work as asked (a 4xx, a command that is not there). The run ends `failed`.
- `Unavailable`: not now. `unknown` says that the call may have had its effect (a lost answer, a time-out).

An exception out of `create_run` counts as `Unavailable(unknown=True)`; nothing escapes as silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias, runtime_checkable

from horarium.core.keys import TriggerKey
from horarium.core.overlap import COMPLETION_TIMEOUT
from horarium.core.run import FiredRun, Report, Result
from horarium.core.spec import Json
from horarium.errors import HorariumError


@dataclass(frozen=True, slots=True)
class FireRequest:
    """All that a target may know of a run.

    `parameters` already hold the kickoff time as text under `kickoff_time_arg`, if there is one; a target
    that has times of its own knows by that name which of them it is. `scheduled_time` is the slot's
    instant (aware UTC; for a manual run the instant it was asked for), `attempt` counts from 1,
    `deadline` is when the caller stops waiting: a target ends its call before it. `completion_timeout`: how
    long after that an end is waited for, where the target reports any.
    """

    run_name: str
    trigger: TriggerKey
    origin: str
    scheduled_time: datetime
    attempt: int
    action: Mapping[str, Any]
    parameters: Mapping[str, Json]
    deadline: datetime
    revision: int = 1
    utc_offset: timedelta = timedelta()
    kickoff_time_arg: str | None = None
    completion_timeout: timedelta = COMPLETION_TIMEOUT

    @property
    def run_key(self) -> str:
        """`project/domain/name`: a name is unique in its project and domain, this everywhere."""
        return f"{self.trigger.project}/{self.trigger.domain}/{self.run_name}"


@dataclass(frozen=True, slots=True)
class Created:
    """The run exists because of this call. `target_run_id` is its id over there, if it has one."""

    target_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class AlreadyExists:
    """A run of this name was there before."""

    target_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """It will never work as asked. `reason` is shown to people and holds no secret."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Not now. `retry_at` is when the target asked to be tried again; `unknown`: it may have happened."""

    reason: str
    retry_at: datetime | None = None
    unknown: bool = False


Answer: TypeAlias = Created | AlreadyExists | Refused | Unavailable


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """What a target can promise, for docs, `status` and refusals at apply.

    `dedupes`: a repeated name never makes a second run there. `names_kept_here`: it knows repeated names by
    Horarium's own database, so that a restore of that to an earlier moment makes it forget them.
    `reports_completion`: it says when the work of a run ends, by `ReportsRuns.status` if nobody tells before;
    where only deployments with a certain word do, `completes_with` is that word and its value.
    `cancels`: it can end one, by `CancelsRuns.cancel`. `holds_place`: the work goes on in here and keeps its
    place until it ends.
    """

    dedupes: bool
    reports_completion: bool
    note: str = ""
    names_kept_here: bool = False
    cancels: bool = False
    holds_place: bool = False
    completes_with: str = ""

    def completes(self, action: Mapping[str, Any]) -> bool:
        """Whether the end of a run of this checked action is reported."""
        return completes(self.reports_completion, self.completes_with, action)


def completes(reports_completion: bool, completes_with: str, action: Mapping[str, Any]) -> bool:
    """Whether the end of a run is reported: where it is a choice, by the action's word (`callback: true`)."""
    if completes_with:
        return bool(action.get(completes_with.partition(":")[0]))
    return reports_completion


class Target(Protocol):
    """See the module. One object a configured target; it is started, used concurrently, and closed."""

    traits: TargetTraits

    @property
    def timeout(self) -> timedelta:
        """The longest that one `create_run` takes."""
        ...

    @property
    def max_in_flight(self) -> int:
        """How many places there are in all."""
        ...

    def free(self) -> int:
        """How many runs may be handed over now. A target with none free is not claimed from."""
        ...

    async def start(self) -> None:
        """Take resources. Called once, before anything else."""
        ...

    async def create_run(self, request: FireRequest) -> Answer:
        """Create the run named `request.run_name` with its parameters, once."""
        ...

    async def drain(self, timeout: timedelta) -> None:
        """Take no more; let what runs here end, at most `timeout`, then stop it."""
        ...

    async def close(self) -> None:
        """Give resources back. Called once, after `drain`."""
        ...


@runtime_checkable
class ReportsRuns(Protocol):
    """What a target with `reports_completion` has beside `Target`."""

    async def status(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        """How these runs are going. One that is not in the answer is asked about again later; one that is
        not there (any more) is `unknown`. Raises when the target can't be asked now; after 60 seconds it is
        given up, and asked again later."""
        ...


@runtime_checkable
class CancelsRuns(Protocol):
    """What a target with `cancels` has beside `Target`."""

    async def cancel(self, run: FiredRun) -> Report | None:
        """End a run. Its report once it has ended there, or None where that is not yet certain: the caller
        asks again. Raises when the target can't be asked now; once the lease of the run that replaces it is
        over, it is given up and asked again."""
        ...


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A run that exists over there before it is due: its id there, its `run_key`, its slot, and the revision
    of its trigger that it was made of."""

    id: str
    run_key: str
    scheduled_time: datetime
    revision: int


class AheadFailed(HorariumError):
    """What was asked of runs ahead could not be done, or nobody knows; it is tried again later."""


@runtime_checkable
class AheadTarget(Protocol):
    """What a target can do besides, where runs may exist over there before they are due.

    Nothing of it decides anything: at its time a run is handed over as always, and answers that it exists.
    """

    @property
    def ahead(self) -> timedelta:
        """How long before they are due runs are there; zero where this is not asked for."""
        ...

    async def create_ahead(self, request: FireRequest, start_at: datetime) -> Mirrored | Refused:
        """Create the run, which starts over there at `start_at` (its slot and its jitter), once.

        One that is there already stays, unless it was made of an older revision. Raises `AheadFailed`.
        """
        ...

    async def list_ahead(self) -> Sequence[Mirrored]:
        """All runs of this target over there that have not begun; those of another target of ours, which may
        have its own in the same system, are none of them. Raises `AheadFailed`, and lists nothing else."""
        ...

    async def withdraw(self, ids: Sequence[str]) -> None:
        """Remove those of them that have not begun over there. Raises `AheadFailed`."""
        ...


@dataclass(frozen=True, slots=True)
class LocalRun:
    """One execution by the `local` target, as it is kept.

    `run_name` is the run's key (`FireRequest.run_key`); `output` is bounded; `state` is one of `starting`,
    `running`, `succeeded`, `failed`, `interrupted`, `cancelled`.
    """

    run_name: str
    state: str
    started_at: datetime
    ended_at: datetime | None = None
    exit_code: int | None = None
    pid: int | None = None
    output: bytes = b""
    output_total: int = 0
    detail: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


RESULTS = {
    "succeeded": Result.SUCCEEDED,
    "failed": Result.ERRORED,
    "interrupted": Result.INTERRUPTED,
    "cancelled": Result.CANCELLED,
}
"""From a local execution's end to a run's `result`."""


class LocalRuns(Protocol):
    """Where the `local` target keeps its executions; a store implements it, each method one transaction."""

    async def local_begin(self, run_name: str, owner: str, now: datetime) -> bool:
        """Insert the row in state `starting`. False if a row of that name exists (nothing is changed)."""
        ...

    async def local_running(self, run_name: str, pid: int) -> None:
        """The child has started."""
        ...

    async def local_output(self, run_name: str, output: bytes, total: int) -> None:
        """Replace the kept output (bounded by the target) while it runs; `total` counts all bytes written."""
        ...

    async def local_end(self, run: LocalRun) -> None:
        """The child ended: state, times, code, output; sets the run's `result` in the same transaction."""
        ...

    async def local_interrupt(self, owner: str, now: datetime) -> int:
        """Mark rows `starting` or `running` of other owners `interrupted`; the count of them."""
        ...

    async def local_run(self, run_name: str) -> LocalRun | None:
        """The row, for logs."""
        ...
