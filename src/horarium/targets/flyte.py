"""The `flyte` target: `CreateRun` of Flyte's run service, under the run's own name.

The name makes it safe to call again: the open-source server answers a repeated name with OK, others with
`already_exists`, and both are done. What the other codes of Connect mean:

    unavailable, resource_exhausted, aborted        Unavailable; Retry-After is honoured, up to a day
    deadline_exceeded, internal, unknown,
    canceled, data_loss; a lost answer              Unavailable, unknown: it may have happened
    unauthenticated, permission_denied,
    unimplemented; an answer that is not Flyte's    Unavailable: it is about us or the endpoint, not about
                                                    this run, and it can be mended while the run waits
    invalid_argument, not_found,
    failed_precondition, out_of_range               Refused: this run will never work as asked
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyteidl2.common.identifier_pb2 import ProjectIdentifier
from flyteidl2.common.list_pb2 import Filter, ListRequest, Sort
from flyteidl2.task.task_service_pb2 import ListTasksRequest, ListTasksResponse
from flyteidl2.workflow.run_service_pb2 import CreateRunRequest

from horarium.clock import Clock
from horarium.core.spec import Json, TargetSpec
from horarium.errors import InvalidInput, Problem
from horarium.flyte import ACTION_KEYS, CONNECTION_KEYS, messages
from horarium.flyte.client import Client, check_connection
from horarium.targets.base import (
    AlreadyExists,
    Answer,
    Created,
    FireRequest,
    Refused,
    TargetTraits,
)
from horarium.targets.calling import EngineTarget
from horarium.targets.checks import Fields
from horarium.targets.connection import CallFailed

CONFIG_KEYS = CONNECTION_KEYS

DEFAULT_MAX_IN_FLIGHT = 64

_CREATE_RUN = "flyteidl2.workflow.RunService/CreateRun"
_LIST_TASKS = "flyteidl2.task.TaskService/ListTasks"

_REFUSED = frozenset(("invalid_argument", "not_found", "failed_precondition", "out_of_range"))


class FlyteTarget(EngineTarget[Client]):
    """See the module. `spec.config` was checked by `check_config`."""

    traits = TargetTraits(
        dedupes=True, reports_completion=False, note="the run's name is its name in Flyte: a repeat is no run"
    )

    def __init__(self, spec: TargetSpec, clock: Clock) -> None:
        self._org: str = spec.config.get("org", "")
        limit = spec.max_in_flight or DEFAULT_MAX_IN_FLIGHT
        client = Client(spec.config, clock, limit=limit)
        super().__init__(client, clock, client.timeout, limit)

    async def _create(self, request: FireRequest) -> Answer:
        try:
            message = messages.create_run_request(request, self._org)
            if message.HasField("task_id") and not message.task_id.version:
                message.task_id.version = await self._latest(message, request)
            left = request.deadline - self._clock.now()
            await self._connection.send(_CREATE_RUN, message, timeout=left)
        except InvalidInput as error:
            return Refused(str(error))
        except CallFailed as failed:
            if failed.code == "already_exists":
                return AlreadyExists(request.run_name)
            if failed.code in _REFUSED:
                return Refused(failed.reason)
            raise
        return Created(request.run_name)

    async def _latest(self, message: CreateRunRequest, request: FireRequest) -> str:
        """The newest version of the task, at the time of the run. Raises `CallFailed`."""
        task = message.task_id
        asked = ListTasksRequest(
            request=ListRequest(
                limit=1,
                filters=[Filter(function=Filter.EQUAL, field="name", values=[task.name])],
                sort_by=Sort(key="created_at", direction=Sort.DESCENDING),
            ),
            project_id=ProjectIdentifier(organization=task.org, domain=task.domain, name=task.project),
        )
        left = request.deadline - self._clock.now()
        found = await self._connection.call(_LIST_TASKS, asked, ListTasksResponse, timeout=left)
        versions = [item.task_id.version for item in found.tasks if item.task_id.name == task.name]
        if not versions:
            where = f"{task.project}/{task.domain}"
            raise CallFailed(f"no version of the task {task.name!r} is deployed in {where}", code="not_found")
        return str(versions[0])


def check_config(config: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """The normalised config; the fields are those of `check_connection`. Raises `InvalidInput`."""
    fields = Fields(config, pointer, "a flyte target", CONFIG_KEYS)
    checked = check_connection(fields)
    fields.raise_problems()
    return checked


def check_action(action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str) -> dict[str, Any]:
    """The normalised action. Raises `InvalidInput`.

    One of `trigger` (a trigger over there; what it leaves out is the key's here), `task` (`name`, and
    `version`, else the newest) and `task_spec`; `inputs`, under the parameters, or `offloaded_inputs`; and
    `run_spec`.
    """
    fields = Fields(action, pointer, "a deployment of a flyte target", ACTION_KEYS)
    what = [word for word in ("task", "trigger", "task_spec") if fields.has(word)]
    if len(what) != 1:
        got = " and ".join(what) or "none"
        rule = "a run is one of task, trigger, task_spec"
        fields.problems.append(Problem(pointer, got, rule, "task: {name: my_env.my_task}"))
    checked: dict[str, Any] = {}
    for word, allowed in (("task", messages.TASK_KEYS), ("trigger", messages.TRIGGER_KEYS)):
        if fields.has(word):
            inner = Fields(fields.raw(word), fields.at(word), f"a {word}", allowed)
            found = {key: text for key in allowed if (text := inner.text(key)) is not None}
            if word == "task" and "name" not in found and not inner.problems:
                inner.problems.append(Problem(inner.at("name"), "nothing", "a task has a name"))
            fields.problems += inner.problems
            checked[word] = found
    if isinstance(action, Mapping):
        given = {word: value for word, value in action.items() if word not in ("task", "trigger")}
        nothing: dict[str, Any] = {}
        checked |= fields.attempt(lambda: messages.check_action(given, parameters, pointer), nothing)
    fields.check_parameters(parameters, pointer)
    fields.raise_problems()
    return checked
