"""Horarium's side of Flyte's API for tests: the whole application on a socket, over a real database, under a
clock that stands still; and Flyte's generated clients to call it."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from flyteidl2.cluster.service_connect import ClusterServiceClient
from flyteidl2.common.identifier_pb2 import ProjectIdentifier, TriggerName
from flyteidl2.core.interface_pb2 import Parameter, Variable
from flyteidl2.core.types_pb2 import DATETIME, INTEGER, LiteralType
from flyteidl2.dataproxy.dataproxy_service_connect import DataProxyServiceClient
from flyteidl2.task.common_pb2 import (
    TYPE_SCHEDULE,
    Cron,
    FixedRate,
    Inputs,
    NamedLiteral,
    NamedParameter,
    Schedule,
    TriggerAutomationSpec,
)
from flyteidl2.task.task_definition_pb2 import TaskIdentifier, TaskSpec, TaskTrigger, TaskTriggerSpec
from flyteidl2.task.task_service_connect import TaskServiceClient
from flyteidl2.task.task_service_pb2 import DeployTaskRequest
from flyteidl2.trigger.trigger_definition_pb2 import TriggerSpec
from flyteidl2.trigger.trigger_service_connect import TriggerServiceClient
from flyteidl2.trigger.trigger_service_pb2 import DeployTriggerRequest
from flyteidl2.workflow.run_service_connect import RunServiceClient

from horarium.api.flyte import PATH, FlyteApi
from horarium.api.flyte_words import FlyteSettings
from horarium.api.server import create_app
from horarium.app.commands import FileText
from horarium.flyte.messages import literal
from tests.flyte.backend import serving
from tests.surfaces.api_world import Reply, World

PROJECT, DOMAIN, TASK = "proj", "development", "env.main"
TARGETS = (
    'targets: {flyte: {flyte: {endpoint: "http://127.0.0.1:9"}}, hook: {http: {url: "http://127.0.0.1:9"}}}'
)


@dataclass
class Api:
    """An instance that serves Flyte's API, and clients of it."""

    world: World
    url: str

    def __post_init__(self) -> None:
        self.triggers = TriggerServiceClient(self.url)
        self.tasks = TaskServiceClient(self.url)
        self.clusters = ClusterServiceClient(self.url)
        self.data = DataProxyServiceClient(self.url)
        self.runs = RunServiceClient(self.url)

    async def post(
        self, call: str, body: Any, *, packed: bool = False, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """What curl sends: JSON, or bytes as they are."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", "accept-encoding": "identity", **(headers or {})}
        if packed:
            raw, sent["content-encoding"] = gzip.compress(raw), "gzip"
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.post(f"{self.url}/flyteidl2.{call}", data=io.BytesIO(raw), headers=sent) as answer,
        ):
            found = {name.lower(): value for name, value in answer.headers.items()}
            return Reply(answer.status, found, await answer.read())

    async def deploy(self, *triggers: TaskTrigger, version: str = "v1", name: str = TASK) -> None:
        """The task, and its triggers."""
        task, spec = task_id(version, name), task_spec(version, name)
        await self.tasks.deploy_task(DeployTaskRequest(task_id=task, spec=spec, triggers=triggers))

    async def put(self, name: str, automation: TriggerAutomationSpec | None = None, **parts: Any) -> Any:
        """One trigger of the task, by itself."""
        return (await self.triggers.deploy_trigger(deploy_request(name, automation, **parts))).trigger


@asynccontextmanager
async def open_api(
    world: World, settings: FlyteSettings | None = None, targets: str = TARGETS
) -> AsyncIterator[Api]:
    """The API on `world`, with the targets of a file."""
    flyte = FlyteApi(world.commands, world.queries, settings or FlyteSettings())
    world.app = create_app(world.commands, world.queries, mounts={PATH: flyte})
    if targets:
        await world.commands.apply([FileText("targets.yaml", f"{targets}\ndeployments: {{}}\n")])
    async with serving(world.app) as url:
        yield Api(world, url)


# what is deployed


def task_id(version: str = "v1", name: str = TASK) -> TaskIdentifier:
    return TaskIdentifier(project=PROJECT, domain=DOMAIN, name=name, version=version)


def task_spec(version: str = "v1", name: str = TASK) -> TaskSpec:
    spec = TaskSpec(short_name=name.rpartition(".")[2])
    spec.environment.name = name.partition(".")[0]
    template = spec.task_template
    template.type = "python"
    template.id.project, template.id.domain, template.id.name, template.id.version = (
        PROJECT,
        DOMAIN,
        name,
        version,
    )
    template.container.image = "img:v1"
    for key, kind in (("at", DATETIME), ("x", INTEGER)):
        template.interface.inputs.variables.add(key=key, value=Variable(type=LiteralType(simple=kind)))
    spec.default_inputs.append(
        NamedParameter(
            name="x",
            parameter=Parameter(var=Variable(type=LiteralType(simple=INTEGER)), default=literal(1)),
        )
    )
    return spec


def trigger_name(name: str, task: str = TASK) -> TriggerName:
    return TriggerName(project=PROJECT, domain=DOMAIN, task_name=task, name=name)


def place() -> ProjectIdentifier:
    return ProjectIdentifier(name=PROJECT, domain=DOMAIN)


def cron(expression: str, timezone: str = "UTC", kickoff: str = "") -> TriggerAutomationSpec:
    schedule = Schedule(cron=Cron(expression=expression, timezone=timezone), kickoff_time_input_arg=kickoff)
    return TriggerAutomationSpec(type=TYPE_SCHEDULE, schedule=schedule)


def rate(minutes: int) -> TriggerAutomationSpec:
    schedule = Schedule(rate=FixedRate(value=minutes, unit="FIXED_RATE_UNIT_MINUTE"))
    return TriggerAutomationSpec(type=TYPE_SCHEDULE, schedule=schedule)


def inputs(**values: Any) -> Inputs:
    return Inputs(literals=[NamedLiteral(name=name, value=literal(value)) for name, value in values.items()])


def task_trigger(
    name: str, automation: TriggerAutomationSpec | None = None, *, active: bool = True, **parts: Any
) -> TaskTrigger:
    return TaskTrigger(
        name=name,
        spec=TaskTriggerSpec(active=active, **parts),
        automation_spec=automation or cron("0 9 * * *"),
    )


def deploy_request(
    name: str,
    automation: TriggerAutomationSpec | None = None,
    *,
    active: bool = True,
    revision: int = 0,
    **parts: Any,
) -> DeployTriggerRequest:
    return DeployTriggerRequest(
        name=trigger_name(name),
        revision=revision,
        spec=TriggerSpec(active=active, **parts),
        automation_spec=automation or cron("0 9 * * *"),
    )
