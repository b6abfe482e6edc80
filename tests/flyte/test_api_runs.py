"""`CreateRun`: Horarium as the run service of Flyte's own scheduler, or of whoever calls it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from flyteidl2.common.identifier_pb2 import RunIdentifier
from flyteidl2.common.run_pb2 import OffloadedInputData
from flyteidl2.dataproxy.dataproxy_service_pb2 import UploadInputsRequest
from flyteidl2.task.common_pb2 import Inputs, NamedLiteral
from flyteidl2.trigger import trigger_service_pb2 as calls
from flyteidl2.workflow.run_definition_pb2 import RUN_SOURCE_SCHEDULE_TRIGGER
from flyteidl2.workflow.run_service_pb2 import CreateRunRequest
from google.protobuf.timestamp_pb2 import Timestamp

from horarium.core.keys import TriggerKey, long_run_name, run_name
from horarium.flyte.messages import time_literal
from tests.flyte.api import (
    DOMAIN,
    PROJECT,
    TASK,
    Api,
    cron,
    inputs,
    place,
    rate,
    task_id,
    task_spec,
    task_trigger,
    trigger_name,
)
from tests.flyte.test_api_triggers import refused

KEY = TriggerKey(PROJECT, DOMAIN, TASK, "tick")
SLOT = datetime(2026, 1, 5, 10, 1, tzinfo=UTC)
"""The first minute after the tests' clock begins."""


def asked(name: str, at: datetime | None = None, **parts: Any) -> CreateRunRequest:
    """What Flyte's scheduler sends."""
    request = CreateRunRequest(
        run_id=RunIdentifier(project=PROJECT, domain=DOMAIN, name=name),
        source=RUN_SOURCE_SCHEDULE_TRIGGER,
        **parts,
    )
    if request.WhichOneof("task") is None:
        request.trigger_name.CopyFrom(trigger_name("tick"))
    if at is not None:
        stamp = Timestamp()
        stamp.FromDatetime(at)
        request.run_start_time.CopyFrom(stamp)
    return request


def of_slot(at: datetime, **parts: Any) -> CreateRunRequest:
    return asked(run_name(KEY, at), at, **parts)


async def runs(api: Api) -> list[tuple[str, str, str]]:
    """Every run that is due or over: name, origin, slot."""
    now = api.world.now()
    return [
        (item["name"], item["origin"], item["scheduled_time"])
        for item in (await api.world.get("/runs"))["items"]
        if datetime.fromisoformat(item["scheduled_time"]) <= now
    ]


async def off(api: Api) -> None:
    names = [trigger_name("tick")]
    await api.triggers.update_triggers(calls.UpdateTriggersRequest(names=names, active=False))


# --- a slot's run ---------------------------------------------------------------------------------------


async def test_a_slot_that_we_have_planned_exists_already(api: Api) -> None:
    await api.deploy(task_trigger("tick", cron("* * * * *")))
    await api.world.plan()
    await refused(api.runs.create_run(of_slot(SLOT)), Code.ALREADY_EXISTS, run_name(KEY, SLOT))
    api.world.clock.advance(timedelta(minutes=1, seconds=1))
    await refused(api.runs.create_run(of_slot(SLOT)), Code.ALREADY_EXISTS)
    assert await api.world.fire() == 1
    await refused(api.runs.create_run(of_slot(SLOT)), Code.ALREADY_EXISTS)
    assert await runs(api) == [(run_name(KEY, SLOT), "schedule", "2026-01-05T10:01:00Z")]


async def test_a_slot_of_an_inactive_trigger_runs_once_however_often_it_is_asked_for(api: Api) -> None:
    await api.deploy(task_trigger("tick", cron("* * * * *", kickoff="at"), active=False))
    api.world.clock.advance(timedelta(minutes=1, seconds=1))
    kickoff = Inputs(literals=[NamedLiteral(name="at", value=time_literal(SLOT))])
    made = await api.runs.create_run(of_slot(SLOT, inputs=kickoff))
    assert made.run.action.id.run.name == run_name(KEY, SLOT)
    await refused(api.runs.create_run(of_slot(SLOT)), Code.ALREADY_EXISTS)
    await api.world.plan()
    await refused(api.runs.create_run(of_slot(SLOT)), Code.ALREADY_EXISTS)
    assert await runs(api) == [(run_name(KEY, SLOT), "backfill", "2026-01-05T10:01:00Z")]
    assert await api.world.fire() == 1


async def test_two_callers_at_once_get_one_run(api: Api) -> None:
    await api.deploy(task_trigger("tick", cron("* * * * *"), active=False))
    api.world.clock.advance(timedelta(minutes=1, seconds=1))
    found = await asyncio.gather(
        *(api.runs.create_run(of_slot(SLOT)) for _ in range(8)), return_exceptions=True
    )
    errors = [item.code for item in found if isinstance(item, ConnectError)]
    assert errors == [Code.ALREADY_EXISTS] * 7
    await api.world.plan()
    assert len(await runs(api)) == 1


async def test_a_slot_that_flytes_scheduler_ran_is_not_run_again_after_a_cut_over(
    api: Api,
) -> None:
    """Their scheduler calls us while our trigger is off; then ours takes over, and fills the gap."""
    await api.deploy(task_trigger("tick", cron("* * * * *")))
    await off(api)
    api.world.clock.advance(timedelta(minutes=2, seconds=1))
    await api.runs.create_run(of_slot(SLOT))
    await api.world.plan()
    await api.triggers.update_triggers(calls.UpdateTriggersRequest(names=[trigger_name("tick")], active=True))
    await api.world.plan()
    await api.world.commands.start_backfill(KEY, SLOT, SLOT + timedelta(minutes=1))
    await api.world.plan()
    assert sorted(await runs(api), key=lambda run: run[2]) == [
        (run_name(KEY, SLOT), "backfill", "2026-01-05T10:01:00Z"),
        (run_name(KEY, SLOT + timedelta(minutes=1)), "backfill", "2026-01-05T10:02:00Z"),
    ]


async def test_a_slot_known_by_our_long_name_is_that_slot(api: Api) -> None:
    await api.deploy(task_trigger("tick", cron("* * * * *")))
    await api.world.plan()
    await refused(api.runs.create_run(asked(long_run_name(KEY, SLOT), SLOT)), Code.ALREADY_EXISTS)


async def test_a_slot_that_has_not_come_is_asked_for_too_early(api: Api) -> None:
    await api.deploy(task_trigger("tick", cron("* * * * *"), active=False))
    await refused(api.runs.create_run(of_slot(SLOT)), Code.UNAVAILABLE, "/run_start_time")
    later = SLOT + timedelta(hours=1)
    await refused(api.runs.create_run(of_slot(later)), Code.INVALID_ARGUMENT, "/run_start_time")
    assert (await api.world.get("/runs"))["items"] == []


async def test_a_slots_run_has_the_inputs_of_its_trigger(api: Api) -> None:
    await api.deploy(task_trigger("tick", cron("* * * * *", kickoff="at"), active=False))
    api.world.clock.advance(timedelta(minutes=1, seconds=1))
    other = Inputs(literals=[NamedLiteral(name="at", value=time_literal(SLOT + timedelta(hours=1)))])
    for given in (inputs(x=5), other):
        await refused(
            api.runs.create_run(of_slot(SLOT, inputs=given)), Code.INVALID_ARGUMENT, "/inputs/literals/0"
        )
    assert await runs(api) == []


# --- by hand --------------------------------------------------------------------------------------------


async def test_a_run_by_hand_has_the_name_that_is_asked_for_once(api: Api) -> None:
    await api.deploy(task_trigger("tick", rate(60), inputs=inputs(x=1)))
    made = await api.runs.create_run(asked("rerun-7", inputs=inputs(x=5)))
    assert made.run.action.id.run.name == "rerun-7"
    await refused(api.runs.create_run(asked("rerun-7", inputs=inputs(x=5))), Code.ALREADY_EXISTS, "rerun-7")
    await refused(api.runs.create_run(asked("rerun-7", inputs=inputs(x=6))), Code.ALREADY_EXISTS, "rerun-7")
    (run,) = [item for item in (await api.world.get("/runs"))["items"] if item["origin"] == "manual"]
    assert (run["name"], run["trigger"], run["parameters"]) == ("rerun-7", str(KEY), {"x": 5})


async def test_a_time_that_is_no_slot_of_ours_runs_under_flytes_name_for_it(api: Api) -> None:
    """Flyte's scheduler has another rule of this trigger than we: its run is not lost."""
    await api.deploy(task_trigger("tick", cron("0 9 * * *", kickoff="at")))
    at = SLOT - timedelta(minutes=30)
    await api.runs.create_run(of_slot(at))
    await refused(api.runs.create_run(of_slot(at)), Code.ALREADY_EXISTS)
    assert await runs(api) == [(run_name(KEY, at), "manual", "2026-01-05T09:31:00Z")]


async def test_a_run_by_hand_can_not_take_a_slots_name(api: Api) -> None:
    await api.deploy(task_trigger("tick", cron("* * * * *")))
    name = run_name(KEY, SLOT)
    await refused(api.runs.create_run(asked(name)), Code.INVALID_ARGUMENT, "/run_id/name")
    other = asked(name, SLOT + timedelta(seconds=30))
    await refused(api.runs.create_run(other), Code.INVALID_ARGUMENT, "/run_id/name")
    by_task = asked(name, task_id=task_id())
    await refused(api.runs.create_run(by_task), Code.INVALID_ARGUMENT, "/run_id/name")


async def test_a_task_runs_by_its_id_with_its_inputs(api: Api) -> None:
    await api.deploy()
    made = await api.runs.create_run(asked("adhoc-1", task_id=task_id(), inputs=inputs(x=4)))
    assert made.run.action.id.run.name == "adhoc-1"
    await refused(
        api.runs.create_run(asked("adhoc-1", task_id=task_id(), inputs=inputs(x=4))), Code.ALREADY_EXISTS
    )
    await api.runs.create_run(asked("adhoc-2", task_id=task_id("")))
    found = (await api.world.get("/runs"))["items"]
    assert {item["trigger"] for item in found} == {f"{PROJECT}/{DOMAIN}/{TASK}/on-demand"}
    assert {item["name"]: item["parameters"] for item in found} == {"adhoc-1": {"x": 4}, "adhoc-2": None}
    assert await api.world.fire() == 2
    # What is deployed later is what runs later.
    await api.deploy(version="v2")
    await refused(api.runs.create_run(asked("adhoc-3", task_id=task_id("v1"))), Code.NOT_FOUND, "'v2'")
    await api.runs.create_run(asked("adhoc-3", task_id=task_id("v2")))
    (claimed,) = await api.world.claim()
    assert claimed.spec.action["task_spec"]["task_template"]["id"]["version"] == "v2"


async def test_uploaded_inputs_are_a_runs_inputs(api: Api) -> None:
    await api.deploy()
    upload = UploadInputsRequest(project_id=place(), inputs=inputs(x=8))
    uploaded = (await api.data.upload_inputs(upload)).offloaded_input_data
    await api.runs.create_run(asked("adhoc-1", task_id=task_id(), offloaded_input_data=uploaded))
    (run,) = (await api.world.get("/runs"))["items"]
    assert run["parameters"] == {"x": 8}


async def test_a_project_alone_gets_a_name(api: Api) -> None:
    await api.deploy()
    request = CreateRunRequest(project_id=place(), task_id=task_id())
    made = await api.runs.create_run(request)
    assert [item[0] for item in await runs(api)] == [made.run.action.id.run.name]


# --- what is wrong --------------------------------------------------------------------------------------


async def test_what_is_not_there_is_not_found(api: Api) -> None:
    await refused(api.runs.create_run(of_slot(SLOT)), Code.NOT_FOUND, str(KEY))
    await refused(api.runs.create_run(asked("adhoc-1", task_id=task_id())), Code.NOT_FOUND, TASK)
    await api.deploy(task_trigger("tick"))
    names = [trigger_name("tick")]
    await api.triggers.delete_triggers(calls.DeleteTriggersRequest(names=names))
    await refused(api.runs.create_run(of_slot(SLOT)), Code.NOT_FOUND, "deleted")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (asked("Not-A-Name"), "/run_id/name"),
        (asked("a" * 31), "/run_id/name"),
        (asked(""), "/run_id/name"),
        (CreateRunRequest(trigger_name=trigger_name("tick")), "/run_id"),
        (CreateRunRequest(run_id=RunIdentifier(project=PROJECT, domain=DOMAIN, name="a")), "/trigger_name"),
        (asked("a", task_spec=task_spec()), "/task_spec"),
        (asked("a", run_start_time=Timestamp(seconds=2**62)), "/run_start_time"),
        (
            asked("a", offloaded_input_data=OffloadedInputData(uri="s3://bucket/key")),
            "/offloaded_input_data/uri",
        ),
        (
            asked("a", inputs=Inputs(literals=[NamedLiteral(name="when", value=time_literal(SLOT))])),
            "/inputs/literals/0",
        ),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
async def test_a_run_that_can_not_be_is_refused_by_its_field(
    api: Api, request_: CreateRunRequest, field: str
) -> None:
    await api.deploy(task_trigger("tick"))
    await refused(api.runs.create_run(request_), Code.INVALID_ARGUMENT, field)


async def test_a_run_is_in_the_project_of_its_trigger(api: Api) -> None:
    await api.deploy(task_trigger("tick"))
    request = asked("a")
    request.run_id.domain = "production"
    await refused(api.runs.create_run(request), Code.INVALID_ARGUMENT, "/trigger_name/project")
