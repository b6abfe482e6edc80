"""The `docket` target: a task of Docket's workers, by the name that they registered it under.

The run name is the task's key. Docket refuses a key that waits or runs, in one step with adding it; one whose
work has ended it would take again, so the names that were sent are kept beside it (`brokers.py`). Its record
of a run says how that goes, until `execution_ttl` (Docket's: 15 minutes) after its end.

    scheduled, queued, running      running
    completed                       succeeded
    failed                          errored, with Docket's text
    cancelled                       cancelled, once no worker has it any more
    no record                       unknown

A worker that is given a task that it has not completes it, having done nothing. So while workers are there
and none of them has the task, the run waits.

The record is read as the hash that it is: Docket's own reader unpickles arguments, and whoever can write into
a Redis must not be able to run code in here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from horarium.clock import Clock
from horarium.core.run import FiredRun, Report, Result
from horarium.core.spec import Json, TargetSpec
from horarium.targets.base import AlreadyExists, Answer, Created, FireRequest, TargetTraits, Unavailable
from horarium.targets.brokers import (
    REDIS,
    BrokerTarget,
    check_address,
    check_shared,
    check_task,
    instant,
    require,
)
from horarium.targets.checks import Fields

if TYPE_CHECKING:
    from docket import Docket

CONFIG_KEYS = ("url", "name", "timeout", "remember")
ACTION_KEYS = ("task_name",)

DEFAULT_NAME = "docket"
"""Docket's own."""

_MOST_HELD = 1_000
"""Messages that workers hold, of which one may be of a run that was cancelled."""

_RESULTS = {
    "completed": Result.SUCCEEDED,
    "failed": Result.ERRORED,
    "cancelled": Result.CANCELLED,
}


class DocketTarget(BrokerTarget):
    """See the module. `spec.config` was checked by `check_config`."""

    traits = TargetTraits(
        dedupes=True,
        reports_completion=True,
        cancels=True,
        note="the run's name is the task's key, and what was sent is kept in Docket's Redis",
    )

    def __init__(self, spec: TargetSpec, clock: Clock) -> None:
        super().__init__(spec, clock, "url")
        self._docket: Docket
        self._open = AsyncExitStack()

    async def _connect(self, redis_url: str) -> str:
        from docket import Docket

        docket = Docket(name=self._config.get("name", DEFAULT_NAME), url=redis_url)
        self._docket = await self._open.enter_async_context(docket)
        return docket.key("horarium:")

    async def _hang_up(self) -> None:
        await self._open.aclose()

    async def _send(self, request: FireRequest) -> Answer:
        from docket.execution import Disposition

        task = str(request.action["task_name"])
        if not await self._known(task):
            said = f"no worker of the docket {self._docket.name} has the task {task}, and there are workers"
            return Unavailable(f"{said}: register it with one, or mend task_name")
        if task not in self._docket.tasks:
            self._docket.register(_elsewhere, names=[task])
        execution = await self._docket.add(task, key=request.run_name)(**request.parameters)
        match execution.disposition:
            case Disposition.SCHEDULED:
                return Created(request.run_name)
            case Disposition.ALREADY_SCHEDULED:
                return AlreadyExists(request.run_name)
            case _:
                return Unavailable(f"Docket has a strike against {task}, which somebody may restore")

    async def _known(self, task: str) -> bool:
        """Whether a worker has it, as far as workers say; where none is there, the run may wait for one."""
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.zcard(self._docket.workers_set)
            pipeline.zcard(self._docket.task_workers_set(task))
            workers, with_task = await pipeline.execute()
        return bool(with_task or not workers)

    async def _has(self, run_name: str) -> bool:
        return bool(await self._redis.exists(self._docket.runs_key(run_name)))

    async def _look(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        fields = ["state", "completed_at", "error"]
        async with self._redis.pipeline(transaction=False) as pipeline:
            for run in runs:
                pipeline.hmget(self._docket.runs_key(run.name), fields)
            found = await pipeline.execute()
        return [await self._report(run, *map(_text, values)) for run, values in zip(runs, found, strict=True)]

    async def _stop(self, run: FiredRun) -> None:
        await self._docket.cancel(run.name)

    async def _report(self, run: FiredRun, state: str, ended: str, error: str) -> Report:
        if not state:
            detail = "Docket has no record of it (any more)"
            return Report(run.run_key, Result.UNKNOWN, self._clock.now(), detail)
        result = _RESULTS.get(state, Result.RUNNING)
        # Docket calls a task cancelled as soon as it is asked to; its worker may still be at it.
        if result is Result.CANCELLED and await self._held(run.name):
            result = Result.RUNNING
        if result is Result.RUNNING:
            return Report(run.run_key, result, self._clock.now())
        return Report(
            run.run_key, result, instant(ended, self._clock.now), self._redactor.clean(error, 1_000)
        )

    async def _held(self, run_name: str) -> bool:
        """Whether a worker has it: its message is neither acknowledged nor given to another one."""
        docket = self._docket
        pending = await self._redis.xpending_range(
            docket.stream_key, docket.worker_group_name, "-", "+", _MOST_HELD
        )
        for entry in pending:
            message = entry["message_id"]
            for _, fields in await self._redis.xrange(docket.stream_key, message, message):
                if fields.get(b"key") == run_name.encode():
                    return True
        return False


def check_config(config: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """The normalised config: `url` (of Docket's Redis, or a reference to it), `name` (the docket's; docket),
    `timeout` (10 s), `remember` (how long a name that was sent is kept; 7 days).

    Raises `InvalidInput`; also where the extra `docket` is missing.
    """
    require("docket", ("docket", "redis"), pointer)
    fields = Fields(config, pointer, "a docket target", CONFIG_KEYS)
    checked: dict[str, Any] = {}
    check_address(fields, "url", REDIS, checked, "redis://redis.example:6379/0")
    name = fields.text("name")
    if name is not None:
        checked["name"] = name
    check_shared(fields, checked)
    fields.raise_problems()
    return checked


def check_action(action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str) -> dict[str, Any]:
    """The normalised action: `task_name`, the name that the workers registered. Raises `InvalidInput`."""
    fields = Fields(action, pointer, "a deployment of a docket target", ACTION_KEYS)
    checked: dict[str, Any] = {}
    check_task(fields, checked, "sync_orders")
    fields.check_parameters(parameters, pointer)
    fields.raise_problems()
    return checked


async def _elsewhere(**parameters: Any) -> None:
    """Stands for a task of the workers: Docket's client sends names of what it has registered."""


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
