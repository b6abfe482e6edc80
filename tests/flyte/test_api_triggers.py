"""Flyte's `TriggerService`, served from here, by Flyte's generated client."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from flyteidl2.common.identifier_pb2 import TriggerIdentifier
from flyteidl2.common.run_pb2 import OffloadedInputData
from flyteidl2.task.common_pb2 import TYPE_ARTIFACT, TYPE_NONE, TriggerAutomationSpec
from flyteidl2.task.run_pb2 import RunSpec
from flyteidl2.trigger import trigger_definition_pb2 as flyte
from flyteidl2.trigger import trigger_service_pb2 as calls
from google.protobuf.message import Message

from horarium.core.instant import EPOCH
from tests.flyte.api import (
    PROJECT,
    TASK,
    Api,
    cron,
    deploy_request,
    inputs,
    rate,
    task_id,
    task_trigger,
    trigger_name,
)

TICK = f"/triggers/{PROJECT}/development/{TASK}/daily"


async def details(api: Api, name: str) -> Any:
    return (
        await api.triggers.get_trigger_details(calls.GetTriggerDetailsRequest(name=trigger_name(name)))
    ).trigger


async def history(api: Api, name: str) -> list[Any]:
    asked = calls.GetTriggerRevisionHistoryRequest(name=trigger_name(name))
    return list((await api.triggers.get_trigger_revision_history(asked)).triggers)


async def refused(call: Any, code: Code, *texts: str) -> None:
    """`call` is answered with `code`, and the message has `texts`."""
    with pytest.raises(ConnectError) as caught:
        await call
    assert caught.value.code is code, caught.value
    for text in texts:
        assert text in caught.value.message


def same(found: Message, given: Message) -> None:
    assert found.SerializeToString(deterministic=True) == given.SerializeToString(deterministic=True), (
        found,
        given,
    )


# --- deploy and read back -------------------------------------------------------------------------------


async def test_a_trigger_is_read_back_as_it_was_deployed(api: Api) -> None:
    await api.deploy()
    given = deploy_request(
        "daily",
        cron("0 9 * * 1-5", "Europe/Berlin", kickoff="at"),
        inputs=inputs(x=3),
        run_spec=RunSpec(queue="fast", overwrite_cache=True),
        description="mornings",
        task_version="v1",
    )
    made = (await api.triggers.deploy_trigger(given)).trigger
    same(made.spec, given.spec)
    same(made.automation_spec, given.automation_spec)
    same(made.id, TriggerIdentifier(name=given.name, revision=1))
    assert made.description == "mornings"
    same(made, await details(api, "daily"))


async def test_a_deployed_trigger_is_one_of_ours_and_is_planned(api: Api) -> None:
    await api.deploy(task_trigger("daily", cron("0 9 * * *", kickoff="at"), inputs=inputs(x=3)))
    await api.world.plan()
    found = await api.world.get(TICK)
    assert (found["status"], found["target"], found["managed_by"]) == ("active", "flyte", None)
    assert found["schedule"] == {"cron": "0 9 * * *", "dialect": "robfig"}
    assert found["kickoff_time_arg"] == "at"
    assert len(found["next"]) == 3
    assert found["action"]["task_spec"]["task_template"]["container"] == {"image": "img:v1"}


async def test_a_rate_without_a_start_counts_from_its_first_deploy_for_ever(
    api: Api,
) -> None:
    await api.deploy(task_trigger("tick", rate(7)))
    first = await api.world.get(TICK.replace("daily", "tick"))
    api.world.clock.advance(timedelta(minutes=3))
    await api.deploy(task_trigger("tick", rate(7)), version="v2")
    second = await api.world.get(TICK.replace("daily", "tick"))
    assert second["revision"] == 2
    assert second["schedule"] == first["schedule"]
    # And the declaration is read back as it was: without a start.
    same((await details(api, "tick")).automation_spec, rate(7))


async def test_a_deploy_that_changes_nothing_makes_no_revision(api: Api) -> None:
    await api.deploy(task_trigger("daily"))
    await api.deploy(task_trigger("daily"))
    assert [item.id.revision for item in await history(api, "daily")] == [1]


async def test_a_new_version_of_a_task_is_a_new_revision_of_the_triggers_that_it_names(api: Api) -> None:
    await api.deploy(task_trigger("daily"), task_trigger("kept"))
    await api.deploy(task_trigger("daily"), version="v2")
    assert (await details(api, "daily")).spec.task_version == "v2"
    assert (await details(api, "kept")).spec.task_version == "v1"


async def test_inputs_in_another_systems_storage_are_passed_on(api: Api) -> None:
    await api.deploy()
    elsewhere = OffloadedInputData(uri="s3://bucket/inputs.pb", inputs_hash="h")
    made = await api.put("daily", offloaded_input_data=elsewhere)
    same(made.spec.offloaded_input_data, elsewhere)


# --- revisions, times -----------------------------------------------------------------------------------


async def test_the_history_of_a_trigger_tells_what_was_done_to_it_and_when(api: Api) -> None:
    clock = api.world.clock
    await api.deploy(task_trigger("daily"))
    deployed = clock.now()
    clock.advance(timedelta(minutes=1))
    switched = clock.now()
    await api.triggers.update_triggers(
        calls.UpdateTriggersRequest(names=[trigger_name("daily")], active=False)
    )
    off = await details(api, "daily")
    assert (off.spec.active, off.id.revision) == (False, 2)
    assert off.status.deployed_at.ToDatetime(EPOCH.tzinfo) == deployed
    assert off.status.updated_at.ToDatetime(EPOCH.tzinfo) == switched
    clock.advance(timedelta(minutes=1))
    await api.triggers.delete_triggers(calls.DeleteTriggersRequest(names=[trigger_name("daily")]))
    deleted = clock.now()
    clock.advance(timedelta(minutes=1))
    await api.deploy(task_trigger("daily"))
    found = await history(api, "daily")
    assert [(item.id.revision, flyte.TriggerRevisionAction.Name(item.action)) for item in found] == [
        (4, "TRIGGER_REVISION_ACTION_DEPLOY"),
        (3, "TRIGGER_REVISION_ACTION_DELETE"),
        (2, "TRIGGER_REVISION_ACTION_DEACTIVATE"),
        (1, "TRIGGER_REVISION_ACTION_DEPLOY"),
    ]
    assert found[1].status.deleted_at.ToDatetime(EPOCH.tzinfo) == deleted
    assert not found[0].status.HasField("deleted_at")
    assert found[0].status.deployed_at.ToDatetime(EPOCH.tzinfo) == clock.now()
    asked = calls.GetTriggerRevisionDetailsRequest(
        id=TriggerIdentifier(name=trigger_name("daily"), revision=2)
    )
    same((await api.triggers.get_trigger_revision_details(asked)).trigger.id, off.id)


async def test_triggered_at_is_the_last_slot_that_was_handed_over(api: Api) -> None:
    await api.deploy(task_trigger("tick", rate(1)))
    assert not (await details(api, "tick")).status.HasField("triggered_at")
    await api.world.plan()
    api.world.clock.advance(timedelta(minutes=2, seconds=1))
    assert await api.world.fire() == 2
    last = (await api.world.get("/runs", state="fired"))["items"][0]["scheduled_time"]
    status = (await details(api, "tick")).status
    assert status.triggered_at.ToJsonString() == last


async def test_a_deploy_under_an_old_revision_is_refused_and_changes_nothing(api: Api) -> None:
    await api.deploy(task_trigger("daily"))
    await api.put("daily", cron("0 10 * * *"), revision=1)
    late = api.put("daily", cron("0 11 * * *"), revision=1)
    await refused(late, Code.ABORTED, "2", "1")
    assert (await details(api, "daily")).automation_spec.schedule.cron.expression == "0 10 * * *"


async def test_a_deleted_trigger_is_gone_until_it_is_deployed_again(api: Api) -> None:
    await api.deploy(task_trigger("daily"), task_trigger("other"))
    names = [trigger_name("daily")]
    await api.triggers.delete_triggers(calls.DeleteTriggersRequest(names=names))
    await api.triggers.delete_triggers(calls.DeleteTriggersRequest(names=names))  # deleted stays deleted
    await refused(details(api, "daily"), Code.NOT_FOUND, "deleted")
    listed = (await api.triggers.list_triggers(calls.ListTriggersRequest())).triggers
    assert [item.id.name.name for item in listed] == ["other"]
    update = calls.UpdateTriggersRequest(names=names, active=True)
    await refused(api.triggers.update_triggers(update), Code.NOT_FOUND, "daily")
    made = await api.put("daily")
    assert (made.id.revision, made.spec.active) == (3, True)


async def test_many_triggers_are_switched_and_deleted_all_or_none(api: Api) -> None:
    await api.deploy(task_trigger("one"), task_trigger("two"))
    names = [trigger_name("one"), trigger_name("nobody"), trigger_name("two")]
    await refused(
        api.triggers.update_triggers(calls.UpdateTriggersRequest(names=names, active=False)),
        Code.NOT_FOUND,
        "nobody",
    )
    await refused(
        api.triggers.delete_triggers(calls.DeleteTriggersRequest(names=names)), Code.NOT_FOUND, "nobody"
    )
    assert (await details(api, "one")).spec.active
    await api.triggers.update_triggers(
        calls.UpdateTriggersRequest(names=[names[0], names[2], names[0]], active=False)
    )
    assert [(await details(api, name)).spec.active for name in ("one", "two")] == [False, False]


async def test_activation_ends_an_operators_pause_and_a_deploy_does_not(api: Api) -> None:
    await api.deploy(task_trigger("daily"))
    assert (await api.world.post(f"{TICK}/pause", {"note": "holiday"})).status == 200
    assert not (await details(api, "daily")).spec.active
    await api.put("daily", cron("0 10 * * *"))
    assert not (await details(api, "daily")).spec.active
    await api.triggers.update_triggers(
        calls.UpdateTriggersRequest(names=[trigger_name("daily")], active=True)
    )
    assert (await details(api, "daily")).spec.active
    assert (await api.world.get(TICK))["paused"] is False


async def test_the_time_while_a_trigger_was_off_is_a_skip(api: Api) -> None:
    await api.deploy(task_trigger("tick", rate(1)))
    await api.world.plan()
    switch = [trigger_name("tick")]
    await api.triggers.update_triggers(calls.UpdateTriggersRequest(names=switch, active=False))
    api.world.clock.advance(timedelta(minutes=5))
    await api.triggers.update_triggers(calls.UpdateTriggersRequest(names=switch, active=True))
    await api.world.plan()
    (skip,) = (await api.world.get("/skips"))["items"]
    assert (skip["count"], skip["reason"]) == (5, "paused")


async def test_a_sources_trigger_is_paused_and_resumed_here_and_edited_there(api: Api) -> None:
    file = {
        "source": "git",
        "project": PROJECT,
        "domain": "development",
        "deployments": {TASK: {"run": "true", "triggers": {"daily": {"cron": "0 9 * * *"}}}},
    }
    body = {"files": [{"path": "a.json", "text": json.dumps(file)}]}
    assert (await api.world.post("/apply", body)).status == 200
    names = [trigger_name("daily")]
    await api.triggers.update_triggers(calls.UpdateTriggersRequest(names=names, active=False))
    assert (await api.world.get(TICK))["paused"] is True
    assert not (await details(api, "daily")).spec.active
    await api.triggers.update_triggers(calls.UpdateTriggersRequest(names=names, active=True))
    assert (await api.world.get(TICK))["status"] == "active"
    await refused(
        api.triggers.delete_triggers(calls.DeleteTriggersRequest(names=names)),
        Code.FAILED_PRECONDITION,
        "git",
    )
    await refused(api.put("daily"), Code.FAILED_PRECONDITION, "git")
    # Its rule has no words in Flyte: a schedule without an expression.
    assert (await details(api, "daily")).automation_spec.schedule.WhichOneof("expression") is None


# --- on demand, by artifact -----------------------------------------------------------------------------


async def test_a_trigger_without_an_automation_is_there_and_never_planned(api: Api) -> None:
    automation = TriggerAutomationSpec(type=TYPE_NONE)
    await api.deploy(task_trigger("button", automation, inputs=inputs(x=9)))
    same((await details(api, "button")).automation_spec, automation)
    await api.triggers.update_triggers(
        calls.UpdateTriggersRequest(names=[trigger_name("button")], active=True)
    )
    await api.world.plan()
    api.world.clock.advance(timedelta(days=400))
    await api.world.plan()
    assert (await api.world.get("/runs"))["items"] == []
    same((await details(api, "button")).automation_spec, automation)


async def test_an_artifact_starts_nothing_here(api: Api) -> None:
    await api.deploy()
    automation = TriggerAutomationSpec(type=TYPE_ARTIFACT)
    automation.artifact.artifact_name = "model"
    await refused(api.put("daily", automation), Code.INVALID_ARGUMENT, "/automation_spec/artifact", "'model'")


# --- what is wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("automation", "field"),
    [
        (cron("61 * * * *"), "/automation_spec/schedule/cron/expression"),
        (cron("0 0 30 2 *"), "/automation_spec/schedule/cron/expression"),
        (cron("0 9 * * *", "Mars/Olympus"), "/automation_spec/schedule/cron/timezone"),
        (rate(0), "/automation_spec/schedule/rate/value"),
        (TriggerAutomationSpec(type="TYPE_SCHEDULE"), "/automation_spec/schedule"),
    ],
    ids=["field", "never", "zone", "zero", "none"],
)
async def test_a_rule_that_can_not_run_is_refused_by_its_field(
    api: Api, automation: TriggerAutomationSpec, field: str
) -> None:
    await api.deploy(task_trigger("daily"))
    await refused(api.put("daily", automation), Code.INVALID_ARGUMENT, field)
    bad = api.deploy(task_trigger("good"), task_trigger("bad", automation), version="v2")
    await refused(bad, Code.INVALID_ARGUMENT, f"/triggers/1{field}")
    # All or nothing: neither the task nor the other trigger has changed.
    assert (await details(api, "daily")).spec.task_version == "v1"
    await refused(details(api, "good"), Code.NOT_FOUND)


async def test_a_name_that_is_none_is_refused_by_its_field(api: Api) -> None:
    await api.deploy()
    request = deploy_request("daily")
    request.name.name = "no/slash"
    request.name.project = ""
    call = api.triggers.deploy_trigger(request)
    await refused(call, Code.INVALID_ARGUMENT, "/name/name", "/name/project")


async def test_a_trigger_of_a_task_that_is_not_there_is_not_found(api: Api) -> None:
    await refused(api.put("daily"), Code.NOT_FOUND, TASK, "deploy it")
    await api.deploy(version="v2")
    await refused(api.put("daily", task_version="v1"), Code.NOT_FOUND, "'v2'")


async def test_what_no_database_holds_is_refused_by_its_field(api: Api) -> None:
    await api.deploy()
    await refused(api.put("daily", description="a\0b"), Code.INVALID_ARGUMENT, "/spec/description")
    await refused(api.put("daily", inputs=inputs(x="a\0b")), Code.INVALID_ARGUMENT, "/spec/inputs/literals/0")
    await refused(api.deploy(task_trigger("a\0b")), Code.INVALID_ARGUMENT, "/triggers/0/name")
    versions = calls.ListTriggersRequest(task_id=task_id("a\0b"))
    await refused(api.triggers.list_triggers(versions), Code.INVALID_ARGUMENT, "/task_id/version")
    await refused(api.deploy(version="a\0b"), Code.INVALID_ARGUMENT, "/spec/task_template/id/version")


async def test_tasks_are_deployed_at_once_as_an_environment_of_many_is(api: Api) -> None:
    tasks = [f"env.task{index}" for index in range(6)]
    triggers = [task_trigger("daily"), task_trigger("tick", rate(5))]
    await asyncio.gather(*(api.deploy(*triggers, name=name) for name in tasks))
    # And one task by two people: whoever comes second finds it as it is.
    await asyncio.gather(*(api.deploy(*triggers, name="env.shared") for _ in range(3)))
    listed = (await api.triggers.list_triggers(calls.ListTriggersRequest())).triggers
    assert {item.id.name.task_name for item in listed} == {*tasks, "env.shared"}
    assert {item.id.revision for item in listed} == {1}
    assert len(listed) == 14
