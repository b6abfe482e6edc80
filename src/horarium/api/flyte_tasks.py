"""`TaskService`, `ClusterService` and `DataProxyService`, as far as deploying tasks and triggers needs them.

A task is a deployment whose action holds the whole task, so that it runs on a Flyte backend which has never
heard of it. The version that was deployed last is the one that there is.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from flyteidl2.cluster.payload_pb2 import SelectClusterRequest, SelectClusterResponse
from flyteidl2.cluster.service_connect import ClusterService
from flyteidl2.dataproxy.dataproxy_service_connect import DataProxyService
from flyteidl2.dataproxy.dataproxy_service_pb2 import UploadInputsRequest, UploadInputsResponse
from flyteidl2.task import task_definition_pb2 as flyte
from flyteidl2.task import task_service_pb2 as calls
from flyteidl2.task.common_pb2 import TriggerAutomationSpec
from flyteidl2.task.task_service_connect import TaskService
from flyteidl2.trigger.trigger_definition_pb2 import TriggerSpec

from horarium.api.flyte_inputs import offload
from horarium.api.flyte_specs import entry, identity, timestamp, version_of
from horarium.api.flyte_triggers import MOST_NAMES
from horarium.api.flyte_words import Field, Part, asked, bad, kept, names, page, task_key, trigger_key, who_of
from horarium.app.paging import Filters
from horarium.app.records import Order, TaskRecord, Term
from horarium.core.keys import NAME, TriggerKey, check_name
from horarium.core.spec import DeploymentSpec, TriggerEntry
from horarium.errors import InvalidInput, NotFound, Problem
from horarium.flyte.messages import from_json

Context: TypeAlias = RequestContext[Any, Any]

FIELDS = {
    "project": Field("project"),
    "domain": Field("domain"),
    "name": Field("name"),
    "version": Field("version"),
    "environment": Field("environment"),
    "function_name": Field("short_name"),
    "created_at": Field("updated_at", datetime),
    "updated_at": Field("updated_at", datetime),
    "deployed_at": Field("updated_at", datetime),
}
"""What tasks are sorted and filtered by, in Flyte's words."""

_OURS = (
    SelectClusterRequest.OPERATION_UNSPECIFIED,
    SelectClusterRequest.OPERATION_UPLOAD_TRIGGER,
    SelectClusterRequest.OPERATION_UPLOAD_INPUTS,
)


class Tasks(TaskService):  # type: ignore[misc] # generated, without types
    """See the module."""

    def __init__(self, part: Part) -> None:
        self._part = part

    async def deploy_task(self, request: calls.DeployTaskRequest, ctx: Context) -> calls.DeployTaskResponse:
        """Declare a task and its triggers, all or nothing. Triggers that it does not name stay."""
        key = task_key(request.task_id)
        if not request.HasField("spec"):
            raise bad("/spec", "nothing", "a task has a spec")
        if len(request.triggers) > MOST_NAMES:
            raise bad("/triggers", len(request.triggers), f"a task has at most {MOST_NAMES} triggers")
        target = await self._part.target()
        spec = flyte.TaskSpec()
        spec.CopyFrom(request.spec)
        here = spec.task_template.id
        for field in ("org", "project", "domain", "name", "version"):
            if not getattr(here, field):
                setattr(here, field, getattr(request.task_id, field))
            elif getattr(here, field) != getattr(request.task_id, field):
                raise bad(
                    f"/spec/task_template/id/{field}",
                    getattr(here, field),
                    f"the task's spec is of the task that is deployed ({getattr(request.task_id, field)!r})",
                )
        before = await self._part.records.task(key)
        action = {"task_spec": kept(spec, "/spec")}
        deployment = DeploymentSpec(key, target, action)
        if before is not None:  # what Flyte has no words for stays as it is
            deployment = replace(before.spec, target=target, action=action)
        now = await self._part.commands.now()
        proper = [item.name for item in request.triggers if NAME.fullmatch(item.name)]
        began = await self._part.records.began(key, proper)
        declared: list[TriggerEntry] = []
        problems: list[Problem] = []
        for index, item in enumerate(request.triggers):
            try:
                anchor = began.get(item.name, now)
                declared.append(_entry(item, deployment, anchor, f"/triggers/{index}"))
            except InvalidInput as error:
                problems += error.problems
        if len({item.key for item in declared}) < len(declared):
            problems.append(
                Problem("/triggers", "two of one name", "the triggers of a task have different names")
            )
        if problems:
            raise InvalidInput(problems)
        await self._part.commands.declare([deployment], declared, now=now, who=who_of(ctx))
        return calls.DeployTaskResponse()

    async def get_task_details(
        self, request: calls.GetTaskDetailsRequest, ctx: Context
    ) -> calls.GetTaskDetailsResponse:
        """A task, whole, in the version that was deployed last."""
        key = task_key(request.task_id)
        found = await self._part.records.task(key)
        version = "" if found is None else version_of(found.spec.action)
        if found is None or "task_spec" not in found.spec.action:
            raise NotFound(
                "task", str(key), "" if found is None else "its deployment was not deployed by Flyte"
            )
        if request.task_id.version not in ("", version):
            raise NotFound(
                "task",
                f"{key}@{request.task_id.version}",
                f"the version deployed last is {version!r}, and Horarium keeps no other",
            )
        spec = _spec(found)
        return calls.GetTaskDetailsResponse(
            details=flyte.TaskDetails(task_id=_identifier(found), metadata=_metadata(found, spec), spec=spec)
        )

    async def list_tasks(self, request: calls.ListTasksRequest, ctx: Context) -> calls.ListTasksResponse:
        """Tasks that were deployed here."""
        if request.known_filters:
            raise bad(
                "/known_filters", request.known_filters[0].WhichOneof("filter_by"), "filters are known here"
            )
        want = asked(request.request, FIELDS, (Order("project"), Order("domain"), Order("name")))
        scope = Filters()
        if request.WhichOneof("scope_by") == "project_id":
            place = request.project_id
            project, domain = names("/project_id", name=place.name, domain=place.domain)
            scope = Filters(project=project, domain=domain)
        found, token = await page(self._part.records.tasks(scope, want))
        return calls.ListTasksResponse(
            tasks=[
                flyte.Task(task_id=_identifier(item), metadata=_metadata(item, _spec(item))) for item in found
            ],
            token=token or "",
        )

    async def list_versions(
        self, request: calls.ListVersionsRequest, ctx: Context
    ) -> calls.ListVersionsResponse:
        """The one version of a task that there is."""
        key = task_key(request.task_name, "/task_name")
        want = asked(request.request, FIELDS, (Order("updated_at", descending=True),))
        own = Term("name", "equal", (key.name,))
        found, token = await page(
            self._part.records.tasks(
                Filters(project=key.project, domain=key.domain), replace(want, terms=(*want.terms, own))
            )
        )
        return calls.ListVersionsResponse(
            versions=[
                calls.ListVersionsResponse.VersionResponse(
                    version=version_of(item.spec.action), deployed_at=timestamp(item.updated_at)
                )
                for item in found
            ],
            token=token or "",
        )


class Clusters(ClusterService):  # type: ignore[misc] # generated, without types
    """Who serves what: trigger inputs we do, code and images a backend does."""

    def __init__(self, part: Part) -> None:
        self._part = part

    async def select_cluster(self, request: SelectClusterRequest, ctx: Context) -> SelectClusterResponse:
        """An empty answer is this endpoint."""
        if request.operation in _OURS:
            return SelectClusterResponse()
        if self._part.settings.uploads is not None:
            return SelectClusterResponse(cluster_endpoint=self._part.settings.uploads)
        known = request.operation in SelectClusterRequest.Operation.values()
        name = SelectClusterRequest.Operation.Name(request.operation) if known else request.operation
        raise ConnectError(
            Code.UNIMPLEMENTED,
            f"/operation: {name}: Horarium keeps no code and no images: name the Flyte backend that does "
            "(the setting api_flyte_uploads), or deploy with the code in the image (--copy-style none)",
        )


class DataProxy(DataProxyService):  # type: ignore[misc] # generated, without types
    """Takes the inputs of triggers."""

    def __init__(self, part: Part) -> None:
        self._part = part

    async def upload_inputs(self, request: UploadInputsRequest, ctx: Context) -> UploadInputsResponse:
        """A reference that holds the inputs; see `flyte_inputs.py`."""
        match request.WhichOneof("id"):
            case "project_id":
                names("/project_id", name=request.project_id.name, domain=request.project_id.domain)
            case "run_id":
                names("/run_id", project=request.run_id.project, domain=request.run_id.domain)
            case _:
                raise bad("/project_id", "nothing", "inputs are of a project and domain")
        if request.WhichOneof("task") == "trigger_name":
            trigger_key(request.trigger_name, "/trigger_name")
        return UploadInputsResponse(offloaded_input_data=offload(request.inputs))


def _entry(
    item: flyte.TaskTrigger, deployment: DeploymentSpec, anchor: datetime, pointer: str
) -> TriggerEntry:
    task = deployment.key
    key = TriggerKey(task.project, task.domain, task.name, check_name(item.name, f"{pointer}/name"))
    spec = TriggerSpec(
        active=item.spec.active,
        description=item.spec.description,
        run_spec=item.spec.run_spec,
        inputs=item.spec.inputs if item.spec.HasField("inputs") else None,
    )
    if item.spec.HasField("offloaded_input_data"):
        spec.offloaded_input_data.CopyFrom(item.spec.offloaded_input_data)
    automation: TriggerAutomationSpec = item.automation_spec
    return entry(key, deployment, spec, automation, anchor=anchor, pointer=pointer)


def _spec(record: TaskRecord) -> flyte.TaskSpec:
    return from_json(record.spec.action["task_spec"], flyte.TaskSpec, "/task_spec")


def _identifier(record: TaskRecord) -> flyte.TaskIdentifier:
    key = record.spec.key
    return flyte.TaskIdentifier(
        project=key.project, domain=key.domain, name=key.name, version=version_of(record.spec.action)
    )


def _metadata(record: TaskRecord, spec: flyte.TaskSpec) -> flyte.TaskMetadata:
    return flyte.TaskMetadata(
        deployed_by=identity(record.managed_by or "flyte"),
        short_name=spec.short_name,
        deployed_at=timestamp(record.updated_at),
        environment_name=spec.environment.name,
        short_description=spec.documentation.short_description,
    )
