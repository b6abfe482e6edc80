"""`RunService.CreateRun`: Horarium as the run service of Flyte's scheduler, or of anything that calls it.

A call asks for a run under a name; asked for twice, there is one run, and the second answer is
`already_exists`. What the run is, is decided by the trigger, the time and the name together:

| the call names | it is |
|---|---|
| a trigger of ours, a `run_start_time` that its rule names, and that slot's name | that slot's run |
| a trigger of ours, and another name or time | a run by hand of that trigger, under that name |
| a task of ours | a run by hand of that task, under that name |

A slot's run is there already, or is made now, whatever policy decided; by the planner alone, so that a slot
has one run whoever asks for it. A run by hand can't take a name that may be a slot's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from flyteidl2.common.identifier_pb2 import ActionIdentifier, RunIdentifier
from flyteidl2.task.common_pb2 import Inputs
from flyteidl2.workflow import run_definition_pb2 as flyte
from flyteidl2.workflow.run_service_connect import RunService
from flyteidl2.workflow.run_service_pb2 import CreateRunRequest, CreateRunResponse

from horarium.api.flyte_inputs import restored
from horarium.api.flyte_specs import version_of
from horarium.api.flyte_words import Part, bad, names, task_key, trigger_key, who_of
from horarium.core.instant import EPOCH, rfc3339
from horarium.core.keys import DeploymentKey, TriggerKey, long_run_name, run_name
from horarium.core.revision import Status
from horarium.core.spec import Json, TriggerEntry, TriggerSpec
from horarium.errors import Conflict, NotFound
from horarium.flyte.messages import parameters_of

Context: TypeAlias = RequestContext[Any, Any]

RUN_NAME = re.compile(r"[a-z]([-a-z0-9]{0,28}[a-z0-9])?")
"""What Flyte takes for a run's name: DNS-1035, at most 30 characters."""

OF_SLOTS = re.compile(r"r[0-9a-f]{1,16}|r[a-z2-7]{26}|m[a-z2-7]{26}")
"""What names that we make look like."""

ON_DEMAND = "on-demand"
"""The trigger that runs of a task itself belong to; nothing is ever planned for it."""

AHEAD = timedelta(seconds=60)
"""How far a caller's clock may be ahead of ours: so much later its slot has come, and a retry works."""


class Runs(RunService):  # type: ignore[misc] # generated, without types
    """See the module."""

    def __init__(self, part: Part) -> None:
        self._part = part

    async def create_run(self, request: CreateRunRequest, ctx: Context) -> CreateRunResponse:
        """A run of a trigger, or of a task, under the name that is asked for."""
        project, domain, name = self._named(request)
        at = _start(request)
        match request.WhichOneof("task"):
            case "trigger_name":
                key = trigger_key(request.trigger_name, "/trigger_name")
                place, pointer = (key.project, key.domain), "/trigger_name"
                run = self._of_trigger(request, key, name, at, who_of(ctx))
            case "task_id":
                task = task_key(request.task_id)
                place, pointer = (task.project, task.domain), "/task_id"
                run = self._of_task(request, task, name, at, who_of(ctx))
            case "task_spec":
                raise bad(
                    "/task_spec",
                    request.task_spec.task_template.id.name,
                    "Horarium runs tasks that are deployed here",
                    "DeployTask, then task_id",
                )
            case _:
                raise bad(
                    "/trigger_name",
                    "nothing",
                    "a run is of a trigger or of a task",
                    "trigger_name or task_id",
                )
        if place != (project, domain):
            run.close()
            raise bad(
                f"{pointer}/project",
                "/".join(place),
                f"a run is in its trigger's project and domain, and run_id says {project}/{domain}",
            )
        made = await run
        action = ActionIdentifier(run=RunIdentifier(project=project, domain=domain, name=made), name="a0")
        return CreateRunResponse(run=flyte.Run(action=flyte.Action(id=action)))

    def _named(self, request: CreateRunRequest) -> tuple[str, str, str]:
        if request.WhichOneof("id") == "run_id":
            run = request.run_id
            project, domain = names("/run_id", project=run.project, domain=run.domain)
            if not RUN_NAME.fullmatch(run.name) or len(run.name) > 30:
                raise bad(
                    "/run_id/name",
                    run.name,
                    "a run's name has 1 to 30 lowercase letters, digits or '-', and begins with a letter",
                )
            return project, domain, run.name
        if request.WhichOneof("id") == "project_id":
            place = request.project_id
            project, domain = names("/project_id", name=place.name, domain=place.domain)
            return project, domain, "u" + self._part.commands.ids.new_id().replace("-", "")[:20].lower()
        raise bad("/run_id", "nothing", "a run has a name, or a project", "run_id or project_id")

    # a trigger's

    async def _of_trigger(
        self, request: CreateRunRequest, key: TriggerKey, name: str, at: datetime | None, who: str
    ) -> str:
        record = await self._part.records.trigger(key)
        if record is None or record.trigger.status is Status.DELETED:
            raise NotFound("trigger", str(key), "" if record is None else "it was deleted")
        spec = record.revision.spec
        if at is not None and name in (run_name(key, at), long_run_name(key, at)):
            if await self._part.queries.is_slot(key, at):
                _must_be_the_slots_own(request, spec, at)
                return await self._slot(key, at, name, who)
        elif OF_SLOTS.fullmatch(name):
            raise bad(
                "/run_id/name",
                name,
                "this may be the name of a slot, and it is not that of run_start_time",
                "the slot's run_start_time, or a name of another form",
            )
        return await self._by_hand(request, key, spec.kickoff_time_arg, name, at, who)

    async def _slot(self, key: TriggerKey, at: datetime, name: str, who: str) -> str:
        """The run of a slot of ours."""
        there = await self._part.records.slot_run(key, at)
        if there is not None:
            raise _exists(key.project, key.domain, there)
        now = await self._part.commands.now()
        if at > now:
            if at - now > AHEAD:
                raise bad("/run_start_time", rfc3339(at), "a slot's run is asked for when it has come")
            raise ConnectError(
                Code.UNAVAILABLE,
                f"/run_start_time: {rfc3339(at)} has not come yet: it is {rfc3339(now)} here",
            )
        if not await self._part.commands.fill_slot(key, at, who=who):
            raise _exists(key.project, key.domain, name)
        return name

    # by hand

    async def _of_task(
        self, request: CreateRunRequest, task: DeploymentKey, name: str, at: datetime | None, who: str
    ) -> str:
        found = await self._part.records.task(task)
        if found is None:
            raise NotFound("task", str(task), "deploy it first")
        version = version_of(found.spec.action)
        if request.task_id.version not in ("", version):
            raise NotFound(
                "task", f"{task}@{request.task_id.version}", f"the version deployed last is {version!r}"
            )
        if OF_SLOTS.fullmatch(name):
            raise bad("/run_id/name", name, "this may be the name of a slot", "a name of another form")
        key = TriggerKey(task.project, task.domain, task.name, ON_DEMAND)
        record = await self._part.records.trigger(key)
        live = record is not None and record.trigger.status is not Status.DELETED
        if record is None or not live or record.revision.spec.action != found.spec.action:
            now = await self._part.commands.now()
            began = now if record is None else record.trigger.created_at or now
            spec = TriggerSpec(
                schedule={"at": rfc3339(began.replace(microsecond=0))},
                target=found.spec.target,
                action=found.spec.action,
                parameters=dict(found.spec.parameters),
                kickoff_time_arg=found.spec.kickoff_time_arg,
                active=False,
                owner=found.spec.owner,
                runbook=found.spec.runbook,
                late_after=found.spec.late_after,
                retry_for=found.spec.retry_for,
            )
            await self._part.commands.declare((), [TriggerEntry(key, spec)], now=now, who=who)
        return await self._by_hand(request, key, found.spec.kickoff_time_arg, name, at, who)

    async def _by_hand(
        self,
        request: CreateRunRequest,
        key: TriggerKey,
        kickoff: str | None,
        name: str,
        at: datetime | None,
        who: str,
    ) -> str:
        parameters = _parameters(request, kickoff, at)
        try:
            made, new = await self._part.commands.run_now(
                key,
                parameters=parameters or None,
                request_key=f"flyte:{name}",
                name=name,
                scheduled_time=at,
                who=who,
            )
        except Conflict as conflict:
            if await self._part.records.run_exists(key.project, key.domain, name):
                raise _exists(key.project, key.domain, name) from conflict
            raise
        if not new:
            raise _exists(key.project, key.domain, made.name)
        return made.name


def _exists(project: str, domain: str, name: str) -> ConnectError:
    return ConnectError(Code.ALREADY_EXISTS, f"/run_id/name: {project}/{domain}/{name} is there already")


def _start(request: CreateRunRequest) -> datetime | None:
    """For when the run is, in whole seconds."""
    stamp = request.run_start_time if request.HasField("run_start_time") else None
    if stamp is None and request.run_spec.HasField("run_start_time"):
        stamp = request.run_spec.run_start_time
    if stamp is None:
        return None
    try:
        return EPOCH + timedelta(seconds=stamp.seconds)
    except OverflowError:
        raise bad("/run_start_time", stamp.seconds, "a time lies in the years 1 to 9999") from None


def _inputs(request: CreateRunRequest) -> Inputs:
    if request.HasField("offloaded_input_data"):
        found = restored(request.offloaded_input_data, "/offloaded_input_data")
        if found is None:
            raise bad(
                "/offloaded_input_data/uri",
                request.offloaded_input_data.uri,
                "these are another system's, and Horarium can't read them",
                "inputs, or what UploadInputs answers here",
            )
        return found
    return request.inputs


def _parameters(request: CreateRunRequest, kickoff: str | None, at: datetime | None) -> Mapping[str, Json]:
    """The inputs of a run by hand, which lie over those of its trigger; the kickoff time is the target's."""
    inputs = _inputs(request)
    plain = parameters_of(inputs)
    for index, item in enumerate(inputs.literals):
        if item.name == kickoff:
            plain.pop(item.name, None)
        elif item.name not in plain:
            raise bad(
                f"/inputs/literals/{index}",
                item.name,
                "an input of a run by hand is text, a number, a truth value, or lists and maps of them",
                "a trigger that has this input",
            )
    return plain


def _must_be_the_slots_own(request: CreateRunRequest, spec: TriggerSpec, at: datetime) -> None:
    """A slot's run has its trigger's inputs, and the slot as its kickoff time."""
    for index, item in enumerate(_inputs(request).literals):
        if item.name != spec.kickoff_time_arg:
            raise bad(
                f"/inputs/literals/{index}",
                item.name,
                "a slot's run has the inputs of its trigger",
                "leave it out, or ask for a run under another name",
            )
        stamp = item.value.scalar.primitive.datetime
        if EPOCH + timedelta(seconds=stamp.seconds) != at:
            raise bad(f"/inputs/literals/{index}", item.name, f"the slot is {rfc3339(at)}")
