"""What Flyte's own scheduler ran: the runs of a trigger, as Flyte's run service lists them.

Both schedulers give the run of a slot the same name, so the names alone tell whether they agree. A list comes
in pages by offset, oldest first: what is made meanwhile comes after them, and moves none out of sight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from flyteidl2.common.list_pb2 import Filter, ListRequest, Sort
from flyteidl2.workflow.run_definition_pb2 import RUN_SOURCE_SCHEDULE_TRIGGER, RUN_SOURCE_UNSPECIFIED, Run
from flyteidl2.workflow.run_service_pb2 import ListRunsRequest, ListRunsResponse

from horarium.clock import Clock
from horarium.core.instant import rfc3339
from horarium.core.keys import TriggerKey
from horarium.core.shadow import TheirRun
from horarium.core.spec import TargetSpec
from horarium.flyte.client import Client
from horarium.flyte.messages import trigger_name
from horarium.sources.base import SourceUnavailable
from horarium.targets.connection import CallFailed
from horarium.targets.secrets import SecretMissing

PAGE = 200
"""Runs asked for at once: the open-source server refuses more."""

AT_ONCE = 16
"""Calls in flight: a backend that serves people has better to do than to be listed fast."""

BEHIND = timedelta(days=1)
"""How much later than its slot a run may have been made to be looked for."""

_LIST_RUNS = "flyteidl2.workflow.RunService/ListRuns"
_BY_TIME = (RUN_SOURCE_UNSPECIFIED, RUN_SOURCE_SCHEDULE_TRIGGER)


class FlyteIncumbent:
    """The scheduler of the backend that a target of kind `flyte` fires into; `spec.config` was checked."""

    def __init__(self, spec: TargetSpec, clock: Clock) -> None:
        self._name = spec.name
        self._config = spec.config
        self._org: str = spec.config.get("org", "")
        self._clock = clock

    async def runs(
        self, triggers: Sequence[TriggerKey], low: datetime, high: datetime
    ) -> Mapping[TriggerKey, Sequence[TheirRun]]:
        """Those of slots in `(low, high]`; see `sources.base.Incumbent`."""
        places = asyncio.Semaphore(AT_ONCE)

        async def of(client: Client, key: TriggerKey) -> list[TheirRun]:
            async with places:
                return await self._runs(client, key, low, high)

        try:
            async with (
                Client(self._config, self._clock, limit=AT_ONCE) as client,
                asyncio.TaskGroup() as group,
            ):
                tasks = {key: group.create_task(of(client, key)) for key in triggers}
        except SecretMissing as error:
            raise SourceUnavailable(self._name, str(error)) from error
        except ExceptionGroup as failed:
            first = failed.exceptions[0]
            if not isinstance(first, CallFailed):
                raise
            raise SourceUnavailable(self._name, f"its runs can't be listed: {first.reason}") from first
        return {key: task.result() for key, task in tasks.items()}

    async def _runs(self, client: Client, key: TriggerKey, low: datetime, high: datetime) -> list[TheirRun]:
        found: list[TheirRun] = []
        request = ListRequest(
            limit=PAGE,
            sort_by_fields=[Sort(key="created_at", direction=Sort.ASCENDING)],
            filters=[
                Filter(function=Filter.GREATER_THAN_OR_EQUAL, field="created_at", values=[rfc3339(low)]),
                Filter(
                    function=Filter.LESS_THAN_OR_EQUAL, field="created_at", values=[rfc3339(high + BEHIND)]
                ),
            ],
        )
        tokens = {""}
        while True:
            asked = ListRunsRequest(request=request, trigger_name=trigger_name(key, self._org))
            answer = await client.call(_LIST_RUNS, asked, ListRunsResponse)
            found += [_theirs(run, high) for run in answer.runs if run.action.metadata.source in _BY_TIME]
            if not answer.token or not answer.runs:
                return found
            if answer.token in tokens:
                raise CallFailed(f"ListRuns gives the page {answer.token!r} again and again")
            tokens.add(answer.token)
            request.token = answer.token


def _theirs(run: Run, otherwise: datetime) -> TheirRun:
    status = run.action.status
    made = status.start_time.ToDatetime(otherwise.tzinfo) if status.HasField("start_time") else otherwise
    return TheirRun(None, made, run.action.id.run.name)
