"""The target `flyte` against a run service on real sockets."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flyteidl2.task import common_pb2
from flyteidl2.task.common_pb2 import Cron, Inputs, NamedLiteral, Schedule, TriggerAutomationSpec
from flyteidl2.task.run_pb2 import RunSpec
from flyteidl2.trigger.trigger_definition_pb2 import TriggerDetails, TriggerSpec
from flyteidl2.workflow.run_service_pb2 import CreateRunRequest
from google.protobuf import json_format

from horarium.clock import SystemClock
from horarium.core.spec import TargetSpec
from horarium.errors import InvalidInput
from horarium.flyte.messages import create_run_request, literal, trigger_action, trigger_name
from horarium.targets.base import AlreadyExists, Answer, Created, FireRequest, Refused, Unavailable
from horarium.targets.flyte import FlyteTarget, check_action, check_config
from tests.flyte.backend import Backend, Fault, Hang, Lose, Refuse, Reset, serving
from tests.flyte.test_messages import KEY, fire

CERTIFICATE = Path(__file__).parents[1] / "targets" / "localhost.pem"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both event loops: the server runs on uvloop, a program that embeds Horarium on either."""
    return "asyncio", {"use_uvloop": request.param}


DETAILS = TriggerDetails(
    spec=TriggerSpec(
        inputs=Inputs(literals=[NamedLiteral(name="region", value=literal("eu"))]),
        run_spec=RunSpec(queue="fast"),
        active=True,
        task_version="v7",
    ),
    automation_spec=TriggerAutomationSpec(
        type=common_pb2.TYPE_SCHEDULE,
        schedule=Schedule(cron=Cron(expression="0 10 * * *"), kickoff_time_input_arg="as_of"),
    ),
)
DETAILS.id.name.CopyFrom(trigger_name(KEY))
ACTION = trigger_action(trigger_name(KEY), DETAILS.spec)


@pytest.fixture
async def backend() -> Backend:
    found = Backend()
    found.deploy(DETAILS)
    return found


@pytest.fixture
async def url(backend: Backend) -> AsyncIterator[str]:
    async with serving(backend) as url:
        yield url


@asynccontextmanager
async def started(endpoint: str, **config: Any) -> AsyncIterator[FlyteTarget]:
    checked = check_config({"endpoint": endpoint, **config}, "")
    target = FlyteTarget(TargetSpec("flyte", "flyte", checked), SystemClock())
    await target.start()
    try:
        yield target
    finally:
        await target.close()


def request(action: dict[str, Any] | None = None, **changes: Any) -> FireRequest:
    base = fire(
        ACTION if action is None else action,
        {"as_of": "2026-01-05T10:00:00Z"},
        kickoff_time_arg="as_of",
        deadline=SystemClock().now() + timedelta(seconds=30),
    )
    return replace(base, **changes)


async def call(endpoint: str, asked: FireRequest | None = None, **config: Any) -> Answer:
    async with started(endpoint, **config) as target:
        return await target.create_run(asked or request())


# --- what is on the wire --------------------------------------------------------------------------------


async def test_a_run_is_asked_for_in_protobuf_with_gzip(backend: Backend, url: str) -> None:
    asked = request()
    assert await call(url, asked) == Created(asked.run_name)
    (got,) = backend.calls
    assert got.path == "/flyteidl2.workflow.RunService/CreateRun"
    assert got.headers["content-type"] == "application/proto"
    assert got.headers["content-encoding"] == "gzip"
    assert got.headers["accept-encoding"] == "gzip"
    assert got.headers["connect-protocol-version"] == "1"
    assert 9_000 < int(got.headers["connect-timeout-ms"]) <= 10_000
    assert got.headers["user-agent"].startswith("Horarium/")
    assert got.body[:2] == b"\x1f\x8b"
    message = CreateRunRequest.FromString(gzip.decompress(got.body))
    assert json_format.MessageToDict(message) == {
        "runId": {"project": "flytesnacks", "domain": "development", "name": asked.run_name},
        "triggerName": {
            "project": "flytesnacks",
            "domain": "development",
            "name": "daily",
            "taskName": "env.my_task",
        },
        "inputs": {
            "literals": [
                {"name": "region", "value": {"scalar": {"primitive": {"stringValue": "eu"}}}},
                {"name": "as_of", "value": {"scalar": {"primitive": {"datetime": "2026-01-05T10:00:00Z"}}}},
            ]
        },
        "runSpec": {"queue": "fast"},
        "source": "RUN_SOURCE_SCHEDULE_TRIGGER",
        "runStartTime": "2026-01-05T10:00:00Z",
    }


async def test_without_gzip_the_same_message_is_sent_as_it_is(backend: Backend, url: str) -> None:
    asked = request()
    await call(url, asked)
    assert await call(url, asked, gzip=False) == Created(asked.run_name)
    packed, plain = backend.calls
    assert "content-encoding" not in plain.headers
    assert plain.body == packed.plain == create_run_request(asked).SerializeToString()


async def test_json_of_the_same_request_creates_the_same_run(backend: Backend, url: str) -> None:
    """The stand-in takes JSON too, as `curl` sends it; both encodings mean one run."""
    import aiohttp

    asked = request()
    await call(url, asked)
    body = json_format.MessageToDict(create_run_request(asked))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/flyteidl2.workflow.RunService/CreateRun", json=body) as response,
    ):
        assert response.status == 200
        answer = await response.json()
    assert answer["run"]["action"]["id"]["run"]["name"] == asked.run_name
    assert backend.attempts == [asked.run_name] * 2
    assert len(backend.runs) == 1


async def test_an_org_is_said_where_flyte_has_one(backend: Backend, url: str) -> None:
    await call(url, request({"trigger": {}}), org="acme")
    (run,) = backend.runs.values()
    assert (run.run_id.org, run.trigger_name.org) == ("acme", "acme")


async def test_a_task_without_a_version_runs_its_newest(backend: Backend, url: str) -> None:
    backend.versions["env.my_task"] = ["v1", "v2"]
    assert isinstance(await call(url, request({"task": {"name": "env.my_task"}})), Created)
    (run,) = backend.runs.values()
    assert (run.task_id.name, run.task_id.version) == ("env.my_task", "v2")
    missing = await call(url, request({"task": {"name": "env.other"}}))
    assert isinstance(missing, Refused)
    assert "env.other" in missing.reason


# --- what answers mean ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("duplicates", "answer"),
    [("ok", Created), ("already_exists", AlreadyExists)],
    ids=["ok", "already_exists"],
)
async def test_a_repeated_name_is_done_either_way(
    backend: Backend, url: str, duplicates: str, answer: type[Answer]
) -> None:
    backend.duplicates = duplicates
    asked = request()
    assert await call(url, asked) == Created(asked.run_name)
    assert await call(url, asked) == answer(asked.run_name)
    assert len(backend.runs) == 1


@pytest.mark.parametrize(
    ("status", "code", "answer", "unknown"),
    [
        (503, "unavailable", Unavailable, False),
        (504, "deadline_exceeded", Unavailable, True),
        (429, "resource_exhausted", Unavailable, False),
        (409, "aborted", Unavailable, False),
        (500, "internal", Unavailable, True),
        (500, "unknown", Unavailable, True),
        (500, "data_loss", Unavailable, True),
        (499, "canceled", Unavailable, True),
        (401, "unauthenticated", Unavailable, False),
        (403, "permission_denied", Unavailable, False),
        (501, "unimplemented", Unavailable, False),
        (400, "invalid_argument", Refused, False),
        (400, "failed_precondition", Refused, False),
        (400, "out_of_range", Refused, False),
        (404, "not_found", Refused, False),
    ],
)
async def test_each_code_of_connect_has_its_meaning(
    backend: Backend, url: str, status: int, code: str, answer: type[Answer], unknown: bool
) -> None:
    backend.faults.append(Refuse(status, code, "what the server says"))
    found = await call(url)
    assert isinstance(found, answer)
    assert getattr(found, "reason", "") == f"answered {status} {code}: what the server says"
    assert getattr(found, "unknown", False) is unknown
    assert backend.runs == {}


@pytest.mark.parametrize(
    ("fault", "said", "unknown"),
    [
        (
            Refuse(200, body=b"<html>log in</html>"),
            "200 with text/html: this is not Flyte's API",
            False,
        ),
        (Refuse(302, body=b"", headers={"location": "https://elsewhere"}), "final address", False),
        (Refuse(404, body=b"no such page"), "answered 404 unimplemented", False),
        (Refuse(400, body=b"bad"), "answered 400 internal", True),
        (Refuse(502, body=b"bad gateway"), "answered 502 unavailable", True),
        (Refuse(503, body=b"\xff", content_type="application/json"), "answered 503 unavailable", False),
        (Refuse(500, "nonsense", "x"), "answered 500 unknown: x", True),
        (Refuse(200, body=b"no gzip", headers={"content-encoding": "gzip"}), "can't be unpacked", True),
    ],
)
async def test_an_answer_that_is_not_flytes_loses_no_run(
    backend: Backend, url: str, fault: Fault, said: str, unknown: bool
) -> None:
    backend.faults.append(fault)
    found = await call(url)
    assert isinstance(found, Unavailable)
    assert said in found.reason
    assert found.unknown is unknown


async def test_retry_after_is_honoured(backend: Backend, url: str) -> None:
    backend.faults.append(Refuse(429, "resource_exhausted", headers={"retry-after": "120"}))
    before = SystemClock().now()
    found = await call(url)
    assert isinstance(found, Unavailable)
    assert found.retry_at is not None
    assert timedelta(seconds=119) < found.retry_at - before < timedelta(seconds=150)


async def test_a_trigger_that_is_not_there_is_refused(backend: Backend, url: str) -> None:
    found = await call(url, request({"trigger": {"name": "gone"}}))
    assert found == Refused('answered 404 not_found: trigger "gone" not found')


async def test_parameters_that_flyte_would_drop_are_refused(backend: Backend, url: str) -> None:
    found = await call(
        url, request({"trigger": {}, "offloaded_inputs": {"uri": "s3://b"}}, parameters={"n": 1})
    )
    assert isinstance(found, Refused)
    assert "would be dropped" in found.reason
    assert backend.calls == []


# --- when the network fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Lose(), Reset()], ids=["after", "before"])
async def test_a_reset_connection_may_have_had_its_effect(backend: Backend, url: str, fault: Fault) -> None:
    backend.faults.append(fault)
    async with started(url) as target:
        first = await target.create_run(request())
        assert isinstance(first, Unavailable)
        assert first.unknown
        assert isinstance(await target.create_run(request()), Created)
    assert len(backend.runs) == 1


async def test_a_slow_answer_is_not_waited_for_past_the_deadline(backend: Backend, url: str) -> None:
    until = asyncio.Event()
    backend.faults.append(Hang(until))
    clock = SystemClock()
    found = await call(url, request(deadline=clock.now() + timedelta(seconds=0.4)))
    until.set()
    assert found == Unavailable("no answer in time", unknown=True)
    assert int(backend.calls[0].headers["connect-timeout-ms"]) <= 400
    late = await call(url, request(deadline=clock.now()))
    assert late == Unavailable("no time was left for the call")


async def test_a_backend_that_is_restarted_is_used_again(backend: Backend) -> None:
    async with serving(backend) as url:
        port = int(url.rpartition(":")[2])
        target = FlyteTarget(TargetSpec("flyte", "flyte", check_config({"endpoint": url}, "")), SystemClock())
        await target.start()
        assert isinstance(await target.create_run(request()), Created)
    down = await target.create_run(request(run_name="r2"))
    assert isinstance(down, Unavailable)
    async with serving(backend, port):
        assert isinstance(await target.create_run(request(run_name="r2")), Created)
        await target.close()
    assert [place[2] for place in backend.runs] == [request().run_name, "r2"]


async def test_a_host_that_is_not_there_was_told_nothing() -> None:
    found = await call("http://127.0.0.1:1")
    assert isinstance(found, Unavailable)
    assert not found.unknown


# --- TLS, headers, secrets ------------------------------------------------------------------------------


async def test_certificates_are_checked_unless_told_otherwise(backend: Backend) -> None:
    async with serving(backend, ssl_certfile=str(CERTIFICATE), ssl_keyfile=str(CERTIFICATE)) as url:
        refused = await call(url)
        assert isinstance(refused, Unavailable)
        assert "no secure connection" in refused.reason
        assert isinstance(await call(url, verify=str(CERTIFICATE)), Created)
        assert isinstance(await call(url, request(run_name="r2"), verify=False), Created)


async def test_the_token_and_headers_are_references_and_stay_secret(
    backend: Backend, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("first-token-0123\n")
    monkeypatch.setenv("TEAM_KEY", "key-of-the-team")
    backend.faults.append(Refuse(401, "unauthenticated", "first-token-0123 has expired"))
    async with started(url, token=f"file:{token}", headers={"X-Api-Key": "env:TEAM_KEY"}) as target:
        first = await target.create_run(request())
        assert first == Unavailable("answered 401 unauthenticated: (hidden) has expired")
        token.write_text("second-token-4567\n")
        assert isinstance(await target.create_run(request()), Created)
    sent = [(got.headers["authorization"], got.headers["x-api-key"]) for got in backend.calls]
    assert sent == [
        ("Bearer first-token-0123", "key-of-the-team"),
        ("Bearer second-token-4567", "key-of-the-team"),
    ]


@pytest.mark.parametrize(
    ("config", "pointer", "said"),
    [
        ({}, "/endpoint", "reached at an endpoint"),
        ({"endpoint": "dns:///flyte.example.com"}, "/endpoint", "https://flyte.example.com"),
        ({"endpoint": "flyte.example.com"}, "/endpoint", "absolute address"),
        ({"endpoint": "http://x", "token": "abc"}, "/token", "env:FLYTE_TOKEN"),
        (
            {"endpoint": "http://x", "token": "env:T", "headers": {"authorization": "env:A"}},
            "/token",
            "already",
        ),
        ({"endpoint": "http://x", "timeout": "5m"}, "/timeout", "at most"),
        ({"endpoint": "http://x", "verify": 1}, "/verify", "PEM"),
        ({"endpoint": "http://x", "gzip": "no"}, "/gzip", "true or false"),
        ({"endpoint": "http://x", "endpont": "y"}, "/endpont", "endpoint"),
    ],
)
def test_a_wrong_config_is_answered_with_its_field(config: dict[str, Any], pointer: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as wrong:
        check_config(config, "")
    assert [item.pointer for item in wrong.value.problems] == [pointer]
    assert "abc" not in str(wrong.value)


@pytest.mark.parametrize(
    ("action", "pointer"),
    [
        ({}, ""),
        ({"task": {"name": "a"}, "trigger": {}}, ""),
        ({"task": {}}, "/task/name"),
        ({"task": {"name": "a", "versoin": "1"}}, "/task/versoin"),
        ({"trigger": {"project": 3}}, "/trigger/project"),
        ({"trigger": {}, "inputs": {"literals": 3}}, "/inputs"),
        ({"trigger": {}, "offloaded_inputs": {"uri": ""}}, "/offloaded_inputs/uri"),
    ],
)
def test_a_wrong_action_is_answered_with_its_field(action: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        check_action(action, {}, "")
    assert [item.pointer for item in wrong.value.problems] == [pointer]


def test_an_action_is_written_in_one_way() -> None:
    assert check_action(
        {"task": {"name": "a.b", "version": "v1"}, "run_spec": {"overwriteCache": True}}, {"n": 1}, ""
    ) == {"task": {"name": "a.b", "version": "v1"}, "run_spec": {"overwrite_cache": True}}
    assert check_action(ACTION, {}, "") == ACTION


async def test_many_calls_run_at_once_and_a_drain_waits_for_them(backend: Backend, url: str) -> None:
    until = asyncio.Event()
    backend.faults.extend(Hang(until) for _ in range(3))
    async with started(url) as target:
        calls = [asyncio.create_task(target.create_run(request(run_name=f"r{n}"))) for n in range(3)]
        while backend.in_flight < 3:
            backend.called.clear()
            await backend.called.wait()
        assert target.free() == target.max_in_flight - 3
        drain = asyncio.create_task(target.drain(timedelta(seconds=10)))
        await asyncio.sleep(0)
        assert target.free() == 0
        assert await target.create_run(request()) == Unavailable("the server is stopping")
        until.set()
        await drain
        assert {type(await item) for item in calls} == {Unavailable}
