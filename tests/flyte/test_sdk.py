"""Flyte's own SDK and command, unmodified, manage triggers in Horarium: real processes over real sockets.

Each test follows one user: what they type, what they see, what Horarium has planned, and what arrives at a
Flyte backend (a stand-in) when it fires.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from flyteidl2.task.common_pb2 import Inputs, TriggerAutomationSpec
from flyteidl2.task.run_pb2 import RunSpec
from flyteidl2.task.task_definition_pb2 import TaskSpec
from flyteidl2.workflow.run_definition_pb2 import RUN_SOURCE_SCHEDULE_TRIGGER
from flyteidl2.workflow.run_service_pb2 import CreateRunRequest
from google.protobuf import json_format

from horarium.core.keys import TriggerKey, run_name
from tests.flyte.backend import Backend, serving
from tests.flyte.sdk import Ran, Sdk

ROOT = Path(__file__).parents[2]
BASE = "/api/v1"
KEY = "proj/development/env.main"

PROGRAM = """
from datetime import datetime, timedelta, timezone

import flyte

env = flyte.TaskEnvironment(name="env", image="img:v1")


@env.task(
    triggers=(
        flyte.Trigger.daily(trigger_time_input_key="at", inputs={"x": 3, "at": flyte.TriggerTime}),
        flyte.Trigger(
            "zoned",
            flyte.Cron("0 9 * * 1-5", timezone="Europe/Berlin"),
            description="mornings",
            inputs={"at": flyte.TriggerTime, "name": "berlin"},
            env_vars={"STAGE": "prod"},
            labels={"team": "ml"},
            queue="fast",
            overwrite_cache=True,
        ),
        flyte.Trigger(
            "rate",
            flyte.FixedRate(1, start_time=datetime(2026, 1, 1, tzinfo=timezone.utc)),
            inputs={"at": flyte.TriggerTime, "tags": ["a", "b"], "length": timedelta(hours=2)},
        ),
        flyte.Trigger("idle", flyte.FixedRate(90), inputs={"at": flyte.TriggerTime}, auto_activate=False),
    )
)
def main(
    at: datetime,
    x: int = 1,
    name: str = "",
    tags: list[str] = [],
    length: timedelta = timedelta(0),
) -> str:
    "What it does."
    return str(x)
"""

SERIALISED = """
import asyncio, json, sys
sys.path.insert(0, ".")
from google.protobuf import json_format
from flyte._internal.runtime.convert import convert_upload_default_inputs
from flyte._internal.runtime.task_serde import translate_task_to_wire
from flyte._internal.runtime.trigger_serde import to_task_trigger
from flyte.models import SerializationContext
import pathlib
import program

async def main():
    task = program.env.tasks["env.main"]
    defaults = await convert_upload_default_inputs(task.interface)
    here = pathlib.Path(".")
    context = SerializationContext(version="v1", project="proj", domain="development", root_dir=here)
    spec = translate_task_to_wire(task, context, default_inputs=defaults)
    for trigger in task.triggers:
        found = await to_task_trigger(
            trigger, task.name, spec.task_template.interface.inputs, list(spec.default_inputs)
        )
        print("TRIGGER", json.dumps(json_format.MessageToDict(found)))

asyncio.run(main())
"""
"""What the SDK itself makes of the triggers, before it sends anything."""


@dataclass
class Horarium:
    """A served instance, and a stand-in for the Flyte backend that it fires into."""

    url: str
    backend: Backend

    async def get(self, path: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(self.url + BASE + path) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def triggers(self) -> dict[str, Any]:
        return {item["name"]: item for item in (await self.get("/triggers"))["items"]}

    async def fired(self, wanted: Callable[[CreateRunRequest], bool]) -> CreateRunRequest:
        """The first such run that arrives at the backend, however long that takes."""
        async with asyncio.timeout(150):
            while True:
                for request in self.backend.runs.values():
                    if wanted(request):
                        return request
                self.backend.called.clear()
                await self.backend.called.wait()


@asynccontextmanager
async def horarium(folder: Path) -> AsyncIterator[Horarium]:
    """`horarium serve`, as a process, with a backend to fire into."""
    backend = Backend()
    async with serving(backend) as endpoint:
        configured(folder, endpoint)
        async with served(folder) as url:
            yield Horarium(url, backend)


def configured(folder: Path, endpoint: str) -> None:
    """Flyte's API switched on in the settings file, and the target `flyte` in a triggers file."""
    target = f"flyte: {{endpoint: {endpoint}}}"
    (folder / "targets.yaml").write_text(f"targets:\n  flyte:\n    {target}\ndeployments: {{}}\n")
    (folder / "horarium.toml").write_text("[api.flyte]\nenabled = true\n")


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[str]:
    """The server's process; its address."""
    with (folder / "server.log").open("a") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "horarium", "serve", "--port", "0", "--apply", "targets.yaml"),
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "HORARIUM_DRAIN_TIMEOUT": "5s"},
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    try:
        while line := (await process.stdout.readline()).decode():
            if found := re.search(r"http://[^/\s]+", line):
                yield found[0]
                break
        else:
            pytest.fail((folder / "server.log").read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        await process.stdout.read()
        assert await process.wait() == 0


async def typed(sdk: Sdk, *arguments: str) -> Ran:
    """A command that works."""
    ran = await asyncio.to_thread(sdk.flyte, *arguments)
    assert ran.code == 0, ran.out
    return ran


async def deployed(sdk: Sdk, version: str = "v1") -> None:
    (sdk.folder / "program.py").write_text(PROGRAM)
    await typed(sdk, "deploy", "--copy-style", "none", "--version", version, "program.py", "env")


@pytest.fixture(scope="module")
async def running(
    sdk_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Sdk, Horarium]]:
    """The SDK in a folder, and an instance that it is set up for, with the task deployed."""
    folder = tmp_path_factory.mktemp("sdk")
    sdk = Sdk(sdk_python, folder)
    async with horarium(folder) as instance:
        sdk.configure(instance.url)
        await deployed(sdk)
        yield sdk, instance


@pytest.fixture(scope="module")
async def serialised(running: tuple[Sdk, Horarium]) -> dict[str, Any]:
    """The triggers by name, as the SDK serialises them."""
    ran = await asyncio.to_thread(running[0].python, SERIALISED)
    assert ran.code == 0, ran.out
    lines = [line.removeprefix("TRIGGER ") for line in ran.out.splitlines() if line.startswith("TRIGGER ")]
    return {item["name"]: item for item in map(json.loads, lines)}


# --- deploy ---------------------------------------------------------------------------------------------


async def test_a_deployed_task_has_its_triggers_here_planned(running: tuple[Sdk, Horarium]) -> None:
    _, instance = running
    found = await instance.triggers()
    assert {name: found[name]["schedule"] for name in ("daily", "zoned", "rate")} == {
        "daily": {"cron": "0 0 * * *", "dialect": "robfig"},
        "zoned": {"cron": "0 9 * * 1-5", "dialect": "robfig", "timezone": "Europe/Berlin"},
        "rate": {"every": "1m", "start": "2026-01-01T00:00:00Z"},
    }
    assert (found["idle"]["status"], found["idle"]["schedule"]["every"]) == ("paused", "1h30m")
    assert {found[name]["kickoff_time_arg"] for name in ("daily", "zoned", "rate", "idle")} == {"at"}
    # In local time, the zoned one is at nine.
    runs = (await instance.get(f"/runs?trigger={KEY}/zoned&state=scheduled"))["items"]
    assert runs
    assert {item["local_time"][11:19] for item in runs} == {"09:00:00"}


async def test_what_is_read_back_is_field_by_field_what_the_sdk_serialises(
    running: tuple[Sdk, Horarium], serialised: dict[str, Any]
) -> None:
    _, instance = running
    assert serialised.keys() == {"daily", "zoned", "rate", "idle"}
    for name, own in serialised.items():
        place = {"project": "proj", "domain": "development", "taskName": "env.main", "name": name}
        answer = await post(instance, "trigger.TriggerService/GetTriggerDetails", {"name": place})
        trigger, spec = answer["trigger"], answer["trigger"]["spec"]
        for found, given, kind in (
            (trigger["automationSpec"], own["automationSpec"], TriggerAutomationSpec),
            (spec["inputs"], own["spec"]["inputs"], Inputs),
            (spec.get("runSpec", {}), own["spec"].get("runSpec", {}), RunSpec),
        ):
            assert json_format.ParseDict(found, kind()) == json_format.ParseDict(given, kind())
        for field in ("active", "description"):
            assert spec.get(field) == own["spec"].get(field)
        assert spec["taskVersion"] == "v1"


async def test_a_slot_arrives_at_the_backend_with_all_that_the_sdk_declared(
    running: tuple[Sdk, Horarium], serialised: dict[str, Any]
) -> None:
    _, instance = running
    run = await instance.fired(lambda request: any(item.name == "tags" for item in request.inputs.literals))
    slot = run.run_start_time.ToDatetime(UTC)
    assert run.run_id.name == run_name(TriggerKey.parse(f"{KEY}/rate"), slot)
    assert (run.run_id.project, run.run_id.domain) == ("proj", "development")
    assert (slot.second, run.source) == (0, RUN_SOURCE_SCHEDULE_TRIGGER)
    own = serialised["rate"]["spec"]
    declared = json_format.ParseDict(own["inputs"], Inputs())
    sent = {item.name: item.value for item in run.inputs.literals}
    assert sent.pop("at").scalar.primitive.datetime == run.run_start_time
    assert sent == {item.name: item.value for item in declared.literals}
    assert list(run.inputs.context) == list(declared.context)
    assert run.run_spec == json_format.ParseDict(own.get("runSpec", {}), RunSpec())
    # The run carries its task, as the SDK deployed it.
    place = {"project": "proj", "domain": "development", "name": "env.main", "version": "v1"}
    task = await post(instance, "task.TaskService/GetTaskDetails", {"taskId": place})
    assert run.WhichOneof("task") == "task_spec"
    assert run.task_spec == json_format.ParseDict(task["details"]["spec"], TaskSpec())
    assert run.task_spec.task_template.container.image == "img:v1"


# --- the command ----------------------------------------------------------------------------------------

NIGHTLY = ("create", "trigger", "env.main", "nightly", "--trigger-time-var", "at", "--schedule")


async def test_the_command_lists_triggers(running: tuple[Sdk, Horarium]) -> None:
    sdk, _ = running
    listed = (await typed(sdk, "get", "trigger")).out
    for text in ("0 0 * * * (UTC)", "0 9 * * 1-5 (Europe/Berlin)", "every 1 minute", "every 90 minutes"):
        assert text in listed


async def test_the_command_creates_switches_deletes_and_revives_a_trigger(
    running: tuple[Sdk, Horarium],
) -> None:
    sdk, instance = running
    await typed(sdk, *NIGHTLY, "30 2 * * *")
    made = (await instance.triggers())["nightly"]
    assert made["schedule"] == {"cron": "30 2 * * *", "dialect": "robfig"}
    assert (made["kickoff_time_arg"], made["status"]) == ("at", "active")
    assert "task_version" in (await typed(sdk, "get", "trigger", "env.main", "nightly")).out
    # The task's own default came along, as an uploaded input.
    (own,) = [item for item in made["action"]["inputs"]["literals"] if item["name"] == "x"]
    assert own["value"]["scalar"]["primitive"] == {"integer": "1"}

    await typed(sdk, "update", "trigger", "nightly", "env.main", "--deactivate")
    off = (await instance.triggers())["nightly"]
    assert (off["status"], off["next"]) == ("paused", [])
    await typed(sdk, "update", "trigger", "nightly", "env.main", "--activate")
    assert (await instance.triggers())["nightly"]["status"] == "active"

    await typed(sdk, "delete", "trigger", "nightly", "env.main")
    assert "nightly" not in await instance.triggers()
    gone = await asyncio.to_thread(sdk.flyte, "get", "trigger", "env.main", "nightly")
    assert gone.code != 0
    assert "NOT FOUND" in gone.out
    await typed(sdk, *NIGHTLY, "45 2 * * *")
    back = (await instance.triggers())["nightly"]
    assert (back["schedule"]["cron"], back["revision"]) == ("45 2 * * *", 5)


async def test_the_command_creates_a_trigger_that_is_fired_by_hand_alone(
    running: tuple[Sdk, Horarium],
) -> None:
    sdk, instance = running
    await typed(sdk, "create", "trigger", "env.main", "button")
    made = (await instance.triggers())["button"]
    assert (made["status"], made["next"]) == ("paused", [])
    (line,) = [text for text in (await typed(sdk, "get", "trigger")).out.splitlines() if "button" in text]
    assert "none" in line


async def test_a_mistake_is_answered_with_its_field(running: tuple[Sdk, Horarium]) -> None:
    sdk, instance = running
    ran = await asyncio.to_thread(sdk.flyte, *(*NIGHTLY[:3], "never", *NIGHTLY[4:]), "0 0 30 2 *")
    assert ran.code != 0
    assert "/automation_spec/schedule/cron/expression" in ran.out
    assert "never" not in await instance.triggers()


async def test_code_that_horarium_does_not_keep_is_refused_with_what_to_do(
    running: tuple[Sdk, Horarium],
) -> None:
    sdk, _ = running
    ran = await asyncio.to_thread(sdk.flyte, "deploy", "--version", "v9", "program.py", "env")
    assert ran.code != 0
    words = " ".join(ran.out.replace("│", " ").split())
    assert "api_flyte_uploads" in words
    assert "--copy-style none" in words


# --- the SDK in a program -------------------------------------------------------------------------------

REMOTE = """
from datetime import datetime, timezone
import flyte
from flyte.remote import Task, Trigger

flyte.init_from_config("config.yaml")
trigger = flyte.Trigger(
    "hourly",
    flyte.FixedRate(60, start_time=datetime(2026, 1, 1, tzinfo=timezone.utc)),
    inputs={"at": flyte.TriggerTime, "x": 12, "name": "from a program"},
)
made = Trigger.create(trigger, task_name="env.main")
print("MADE", made.name, made.is_active, made.id.revision)
print("GOT", Trigger.get(name="hourly", task_name="env.main").automation_spec.schedule.rate.value)
Trigger.update("hourly", "env.main", active=False)
print("OFF", Trigger.get(name="hourly", task_name="env.main").is_active)
print("LISTED", sorted(item.name for item in Trigger.listall(task_name="env.main", limit=1)))
print("TASKS", sorted({item.name for item in Task.listall()}))
Trigger.delete("hourly", "env.main")
try:
    Trigger.get(name="hourly", task_name="env.main")
except Exception as error:
    print("GONE", type(error).__name__, error.code.value)
"""


async def test_a_program_manages_triggers_with_the_sdk(running: tuple[Sdk, Horarium]) -> None:
    sdk, _ = running
    ran = await asyncio.to_thread(sdk.python, REMOTE)
    assert ran.code == 0, ran.out
    said = dict(line.split(" ", 1) for line in ran.out.splitlines() if line.split(" ", 1)[0].isupper())
    assert said["MADE"] == "hourly True 1"
    assert said["GOT"] == "60"
    assert said["OFF"] == "False"
    listed = ast.literal_eval(said["LISTED"])  # one a page
    assert {"daily", "zoned", "rate", "idle", "hourly"} <= set(listed)
    assert len(listed) == len(set(listed))
    assert said["TASKS"] == "['env.main']"
    assert said["GONE"] == "ConnectError not_found"


# --- restarts -------------------------------------------------------------------------------------------


async def test_uploaded_inputs_outlive_a_restart_before_the_deploy(sdk: Sdk, tmp_path: Path) -> None:
    """One process answers the upload, and another the deploy that names it."""
    name = {"project": "proj", "domain": "development", "taskName": "env.main", "name": "late"}
    inputs = {"literals": [{"name": "x", "value": {"scalar": {"primitive": {"integer": "7"}}}}]}
    configured(tmp_path, "http://127.0.0.1:9")
    async with served(tmp_path) as url:
        sdk.configure(url)
        await deployed(sdk)
        body = {"projectId": {"name": "proj", "domain": "development"}, "inputs": inputs}
        answer = await post(Horarium(url, Backend()), "dataproxy.DataProxyService/UploadInputs", body)
    async with served(tmp_path) as url:
        second = Horarium(url, Backend())
        deploy = {
            "name": name,
            "spec": {"active": True, "offloadedInputData": answer["offloadedInputData"]},
            "automationSpec": {
                "type": "TYPE_SCHEDULE",
                "schedule": {"cron": {"expression": "0 9 * * *", "timezone": "UTC"}},
            },
        }
        await post(second, "trigger.TriggerService/DeployTrigger", deploy)
        assert (await second.triggers())["late"]["action"]["inputs"] == inputs


async def post(instance: Horarium, call: str, body: Any) -> Any:
    """What curl does."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{instance.url}/flyteidl2.{call}", json=body) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return await answer.json()
