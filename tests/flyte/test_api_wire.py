"""Flyte's API on the wire: JSON as curl sends it, protobuf and gzip as the SDK does, and whatever is neither.

A request that can't be read is `invalid_argument`, and never a fault of ours.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from connectrpc.code import Code
from flyteidl2.cluster.payload_pb2 import SelectClusterRequest
from flyteidl2.common.run_pb2 import OffloadedInputData
from flyteidl2.dataproxy.dataproxy_service_pb2 import UploadInputsRequest
from flyteidl2.task.common_pb2 import Inputs
from flyteidl2.task.task_definition_pb2 import TaskSpec
from flyteidl2.task.task_service_pb2 import DeployTaskRequest, GetTaskDetailsRequest
from flyteidl2.trigger import trigger_service_pb2 as calls
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horarium.api.flyte import MAX_BODY
from horarium.api.flyte_inputs import MAX_INPUTS
from horarium.api.flyte_words import FlyteSettings
from tests.flyte.api import (
    DOMAIN,
    PROJECT,
    TASK,
    Api,
    cron,
    deploy_request,
    inputs,
    open_api,
    place,
    task_id,
    task_spec,
    task_trigger,
    trigger_name,
)
from tests.flyte.test_api_triggers import refused, same
from tests.surfaces.api_world import World, open_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """On SQLite alone: what is shown here comes before any database."""
    async with open_world(tmp_path) as opened:
        yield opened


DEPLOY = "trigger.TriggerService/DeployTrigger"
GET = "trigger.TriggerService/GetTriggerDetails"


def as_json(message: Any) -> Any:
    return json_format.MessageToDict(message)


# --- ways to say it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
async def test_json_and_protobuf_say_the_same(api: Api, packed: bool) -> None:
    await api.deploy()
    request = deploy_request("daily", cron("0 9 * * *", "Europe/Berlin", kickoff="at"), inputs=inputs(x=1))
    by_json = await api.post(DEPLOY, as_json(request), packed=packed)
    assert by_json.status == 200, by_json.body
    binary = {"content-type": "application/proto"}
    asked = calls.GetTriggerDetailsRequest(name=trigger_name("daily"))
    by_proto = await api.post(GET, asked.SerializeToString(), packed=packed, headers=binary)
    found = calls.GetTriggerDetailsResponse.FromString(by_proto.body)
    same(found.trigger, json_format.ParseDict(by_json.json["trigger"], calls.DeployTriggerResponse().trigger))
    assert found.trigger.spec.inputs == request.spec.inputs


async def test_an_answer_is_packed_for_those_who_ask(api: Api) -> None:
    await api.deploy(task_trigger("daily"))
    body = as_json(calls.GetTriggerDetailsRequest(name=trigger_name("daily")))
    reply = await api.post(GET, body, headers={"accept-encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(reply.body))["trigger"]["id"]["revision"] == "1"


async def test_fields_may_have_their_names_of_the_proto_files(api: Api) -> None:
    await api.deploy(task_trigger("daily"))
    name = {"project": PROJECT, "domain": DOMAIN, "task_name": TASK, "name": "daily"}
    assert (await api.post(GET, {"name": name})).status == 200


async def test_a_newer_clients_protobuf_fields_are_no_mistake(api: Api) -> None:
    await api.deploy(task_trigger("daily"))
    raw = calls.GetTriggerDetailsRequest(name=trigger_name("daily")).SerializeToString()
    field_200 = b"\xc2\x0c\x03new"
    reply = await api.post(GET, raw + field_200, headers={"content-type": "application/proto"})
    assert reply.status == 200


# --- what can't be read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "DeployTrigger"),
        (b"{", "DeployTrigger"),
        (b"null", "DeployTrigger"),
        (b"[]", "JSON object"),
        (b'""', "JSON object"),
        (b'"text"', "JSON object"),
        (b"{}{}", "DeployTrigger"),
        (b"\xff\xfe{}", "DeployTrigger"),
        (b"[" * 100_000, "DeployTrigger"),
        (b'{"name":' * 5_000 + b"1" + b"}" * 5_000, "DeployTrigger"),
        (b'{"nme": {}}', "nme"),
        (b'{"name": {"project": "p", "tusk": 1}}', "tusk"),
        (b'{"name": "daily"}', "name"),
        (b'{"name": {"project": 7}}', "project"),
        (b'{"name": []}', "/name: got []: a message is a JSON object"),
        (b'{"name": ""}', "/name: got ''"),
        (b'{"automation_spec": {"schedule": []}}', "/automation_spec/schedule: got []"),
        (b'{"automationSpec": {"schedule": []}}', "/automationSpec/schedule: got []"),
        (b'{"spec": {"inputs": {"literals": [{"name": "a"}, []]}}}', "/spec/inputs/literals/1: got []"),
        (b'{"revision": "many"}', "revision"),
        (b'{"revision": 1.5}', "revision"),
        (b'{"revision": -1}', "revision"),
        (b'{"revision": 18446744073709551616}', "revision"),
        (b'{"revision": ' + b"9" * 5_000 + b"}", ""),
        (b'{"spec": {"active": "yes"}}', "active"),
        (b'{"spec": {"active": NaN}}', "active"),
        (b'{"automationSpec": {"type": "TYPE_MAGIC"}}', "TYPE_MAGIC"),
        (b'{"automationSpec": {"schedule": {"rate": {"startTime": "soon"}}}}', "startTime"),
        (b'{"automationSpec": {"schedule": {"rate": {"startTime": "9999999-01-01T00:00:00Z"}}}}', ""),
        (b'{"name": {"project": "\\ud800"}}', ""),
        (b'{"spec": {"inputs": {"literals": [{"value": {"scalar": {"binary": {"value": "%%"}}}}]}}}', ""),
    ],
    ids=lambda item: repr(item[:30]) if isinstance(item, bytes) else "",
)
async def test_json_that_is_no_message_is_an_invalid_argument(api: Api, body: bytes, text: str) -> None:
    reply = await api.post(DEPLOY, body)
    assert (reply.status, reply.json["code"]) == (400, "invalid_argument"), reply.body
    assert text in reply.json["message"]


async def test_an_empty_list_asks_for_nothing_and_is_no_request_for_all(api: Api) -> None:
    call = "trigger.TriggerService/ListTriggers"
    wrong = await api.post(call, b'{"request": []}')
    assert (wrong.status, wrong.json["code"]) == (400, "invalid_argument"), wrong.body
    assert wrong.json["message"] == "/request: got []: a message is a JSON object"
    for right in (b'{"request": {}}', b'{"request": null}', b"{}"):
        assert (await api.post(call, right)).status == 200, right


async def test_protobuf_that_is_no_message_is_an_invalid_argument(api: Api) -> None:
    binary = {"content-type": "application/proto"}
    for raw in (b"\xff", b"\x0a\x7f", b"\x0a\x02\x0a\xff", b'{"name": {}}'):
        reply = await api.post(DEPLOY, raw, headers=binary)
        assert (reply.status, reply.json["code"]) == (400, "invalid_argument"), raw


async def test_gzip_that_is_none_or_too_much_is_refused_before_it_is_read(api: Api) -> None:
    headers = {"content-encoding": "gzip"}
    whole = gzip.compress(b"{}")
    for raw in (b"no gzip", whole[:-3], whole + b"more", zlib.compress(b"{}")):
        reply = await api.post(DEPLOY, raw, headers=headers)
        assert (reply.status, reply.json["code"]) == (400, "invalid_argument"), raw
    bomb = await api.post(DEPLOY, b" " * (MAX_BODY + 1), packed=True)
    assert (bomb.status, bomb.json["code"]) == (429, "resource_exhausted")
    large = await api.post(DEPLOY, b" " * (MAX_BODY + 1))
    assert (large.status, large.json["code"]) == (429, "resource_exhausted")
    unknown = await api.post(DEPLOY, b"{}", headers={"content-encoding": "br"})
    assert (unknown.status, unknown.json["code"]) == (501, "unimplemented")


async def test_what_is_not_connect_is_told_so(api: Api) -> None:
    grpc = await api.post(DEPLOY, b"", headers={"content-type": "application/grpc"})
    assert (grpc.status, grpc.headers["accept-post"]) == (415, "application/json, application/proto")
    for call in ("project.ProjectService/ListProjects", "workflow.RunService/ListRuns", "trigger.Nothing/Do"):
        reply = await api.post(call, {})
        assert (reply.status, reply.json["code"]) == (501, "unimplemented"), call
    none = await api.post("trigger.TriggerService/ListTrigger", {})
    assert (none.status, none.json["code"]) == (501, "unimplemented")
    assert "TriggerService has no call 'ListTrigger'" in none.json["message"]


async def test_another_sites_page_may_not_call_it(api: Api) -> None:
    for headers in ({"origin": "https://evil.example"}, {"host": "rebound.example"}):
        assert (await api.post(GET, {}, headers=headers)).status in (403, 421)


FIELDS = ["name", "spec", "project", "revision", "schedule", "cron", "rate", "literals", "request", "x"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
CALLS = [
    DEPLOY,
    GET,
    "trigger.TriggerService/GetTriggerRevisionDetails",
    "trigger.TriggerService/GetTriggerRevisionHistory",
    "trigger.TriggerService/ListTriggers",
    "trigger.TriggerService/UpdateTriggers",
    "trigger.TriggerService/DeleteTriggers",
    "task.TaskService/DeployTask",
    "task.TaskService/GetTaskDetails",
    "task.TaskService/ListTasks",
    "task.TaskService/ListVersions",
    "cluster.ClusterService/SelectCluster",
    "dataproxy.DataProxyService/UploadInputs",
    "workflow.RunService/CreateRun",
]


@given(call=st.sampled_from(CALLS), body=VALUES)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_json_is_a_fault_of_ours(api: Api, call: str, body: Any) -> None:
    reply = await api.post(call, json.dumps(body).encode())
    assert reply.status < 500 or reply.json["code"] == "unimplemented", (body, reply.body)


@given(call=st.sampled_from(CALLS), body=st.binary(max_size=60))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_bytes_are_a_fault_of_ours(api: Api, call: str, body: bytes) -> None:
    reply = await api.post(call, body, headers={"content-type": "application/proto"})
    assert reply.status < 500 or reply.json["code"] == "unimplemented", (body, reply.body)


# --- inputs, clusters, tasks ----------------------------------------------------------------------------


async def test_uploaded_inputs_come_back_in_the_trigger(api: Api) -> None:
    await api.deploy()
    sent = inputs(x=3, name="a", tags=["a", "b"])
    upload = UploadInputsRequest(project_id=place(), task_id=task_id(), inputs=sent)
    answer = (await api.data.upload_inputs(upload)).offloaded_input_data
    made = await api.put("daily", offloaded_input_data=answer)
    same(made.spec.inputs, sent)
    await api.deploy(task_trigger("other", offloaded_input_data=answer))
    found = await api.world.get(f"/triggers/{PROJECT}/{DOMAIN}/{TASK}/other")
    assert json_format.ParseDict(found["action"]["inputs"], Inputs()) == sent


async def test_inputs_have_a_limit_whichever_way_they_come(api: Api) -> None:
    await api.deploy()
    large = inputs(x="a" * MAX_INPUTS)
    upload = UploadInputsRequest(project_id=place(), task_id=task_id(), inputs=large)
    await refused(api.data.upload_inputs(upload), Code.RESOURCE_EXHAUSTED, f"{MAX_INPUTS:,}")
    await refused(api.put("daily", inputs=large), Code.RESOURCE_EXHAUSTED, f"{MAX_INPUTS:,}")


async def test_a_mangled_reference_is_refused_by_its_field(api: Api) -> None:
    await api.deploy()
    upload = UploadInputsRequest(project_id=place(), inputs=inputs(x=3))
    good = (await api.data.upload_inputs(upload)).offloaded_input_data
    mangled = (good.uri[:-4], good.inputs_hash), (good.uri + "%", good.inputs_hash), (good.uri, "h")
    for uri, digest in mangled:
        bad = OffloadedInputData(uri=uri, inputs_hash=digest)
        await refused(
            api.put("daily", offloaded_input_data=bad),
            Code.INVALID_ARGUMENT,
            "/spec/offloaded_input_data/uri",
        )


async def test_an_upload_is_of_a_project(api: Api) -> None:
    await refused(api.data.upload_inputs(UploadInputsRequest()), Code.INVALID_ARGUMENT, "/project_id")


async def test_inputs_are_ours_and_code_is_a_backends(world: World) -> None:
    ours = SelectClusterRequest(project_id=place(), operation="OPERATION_UPLOAD_TRIGGER")
    code = SelectClusterRequest(project_id=place(), operation="OPERATION_CREATE_UPLOAD_LOCATION")
    async with open_api(world) as api:
        assert (await api.clusters.select_cluster(ours)).cluster_endpoint == ""
        await refused(api.clusters.select_cluster(code), Code.UNIMPLEMENTED, "api_flyte_uploads")
    async with open_api(world, FlyteSettings(uploads="dns:///flyte.example.com")) as api:
        assert (await api.clusters.select_cluster(ours)).cluster_endpoint == ""
        assert (await api.clusters.select_cluster(code)).cluster_endpoint == "dns:///flyte.example.com"


@pytest.mark.parametrize(
    ("settings_", "targets", "text"),
    [
        (FlyteSettings(), "", "there is no target 'flyte'"),
        (FlyteSettings("hook"), "targets: {hook: {http: {url: 'http://127.0.0.1:9'}}}", "is of kind http"),
        (FlyteSettings("nowhere"), "", "there is no target 'nowhere'"),
    ],
    ids=["none", "another-kind", "misnamed"],
)
async def test_a_deploy_without_a_target_says_what_to_set(
    world: World, settings_: FlyteSettings, targets: str, text: str
) -> None:
    async with open_api(world, settings_, targets) as api:
        await refused(api.deploy(), Code.FAILED_PRECONDITION, text, "api_flyte_target")


async def test_a_deploy_goes_into_the_target_that_is_named(world: World) -> None:
    targets = "targets: {prod: {flyte: {endpoint: 'http://127.0.0.1:9'}}}"
    async with open_api(world, FlyteSettings("prod"), targets) as api:
        await api.deploy(task_trigger("daily"))
        assert (await world.get(f"/triggers/{PROJECT}/{DOMAIN}/{TASK}/daily"))["target"] == "prod"


async def test_a_task_is_read_back_as_it_was_deployed(api: Api) -> None:
    await api.deploy()
    found = (await api.tasks.get_task_details(GetTaskDetailsRequest(task_id=task_id()))).details
    same(found.spec, task_spec())
    same(found.task_id, task_id())
    assert (found.metadata.short_name, found.metadata.environment_name) == ("main", "env")
    await refused(
        api.tasks.get_task_details(GetTaskDetailsRequest(task_id=task_id("v0"))), Code.NOT_FOUND, "'v1'"
    )
    await refused(
        api.tasks.get_task_details(GetTaskDetailsRequest(task_id=task_id(name="nobody"))), Code.NOT_FOUND
    )


async def test_a_task_that_is_another_than_its_spec_is_refused(api: Api) -> None:
    request = DeployTaskRequest(task_id=task_id("v2"), spec=task_spec("v1"))
    await refused(api.tasks.deploy_task(request), Code.INVALID_ARGUMENT, "/spec/task_template/id/version")
    await refused(api.tasks.deploy_task(DeployTaskRequest(task_id=task_id())), Code.INVALID_ARGUMENT, "/spec")
    bare = DeployTaskRequest(task_id=task_id(), spec=TaskSpec())
    await api.tasks.deploy_task(bare)  # what it leaves out is that of the task
    found = (await api.tasks.get_task_details(GetTaskDetailsRequest(task_id=task_id()))).details
    assert found.spec.task_template.id.version == "v1"
    twice = DeployTaskRequest(
        task_id=task_id(), spec=task_spec(), triggers=[task_trigger("a"), task_trigger("a")]
    )
    await refused(api.tasks.deploy_task(twice), Code.INVALID_ARGUMENT, "/triggers")
