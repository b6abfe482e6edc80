"""The kubernetes target against a stand-in of the API server.

There is no cluster here. What is sent is held to the published schemas of batch/v1, in their strict form
(unknown fields are wrong), from 1.25 on; what is answered has the form of the API's own Status objects.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from aiohttp import web

from horarium.clock import SystemClock
from horarium.core.run import FiredRun, Result
from horarium.core.spec import TargetSpec
from horarium.errors import InvalidInput
from horarium.targets.base import AlreadyExists, Created, FireRequest, Refused, Unavailable
from horarium.targets.connection import CallFailed
from horarium.targets.kubernetes import KubernetesTarget, check_action, check_config, job_result
from horarium.targets.secrets import SecretMissing
from tests.chaos.process import News, Server, rows
from tests.serving import serving
from tests.targets.rows import KEY

MakeRequest = Callable[..., FireRequest]

VERSIONS = ("1.25", "1.30", "1.34", "1.37")
NOW = datetime(2026, 1, 5, 11, tzinfo=UTC)
JOB = {
    "backoffLimit": 0,
    "template": {
        "spec": {
            "restartPolicy": "Never",
            "initContainers": [{"name": "wait", "image": "busybox"}],
            "containers": [
                {
                    "name": "main",
                    "image": "etl:3",
                    "args": ["--table=$(HORARIUM_PARAMETER_table)"],
                    "env": [{"name": "HORARIUM_TRIGGER", "value": "mine"}, {"name": "A", "value": "b"}],
                }
            ],
        }
    },
}


@dataclass
class ApiServer:
    """The part of an API server that the target speaks to. A Job is kept until it is deleted; one that is
    deleted in the foreground stays until `collect`."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    cronjobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    got: list[tuple[str, str, Any]] = field(default_factory=list)
    answer: Callable[[], web.Response] | None = None
    tokens: set[str] = field(default_factory=lambda: {"Bearer first"})
    lingers: bool = False
    news: News | None = None
    url: str = ""

    @asynccontextmanager
    async def listening(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[ApiServer]:
        async with serving(self._handle, tls) as self.url:
            yield self

    def names(self) -> list[str]:
        """Of the Jobs that were asked for."""
        return [body["metadata"]["name"] for method, _, body in self.got if method == "POST"]

    def collect(self) -> None:
        """The garbage collector's turn: what is being deleted is gone."""
        for path in [path for path, job in self.jobs.items() if "deletionTimestamp" in job["metadata"]]:
            del self.jobs[path]

    def end(self, path: str, kind: str = "Complete", reason: str = "", message: str = "") -> None:
        """A Job comes to its end."""
        condition = {"type": kind, "status": "True", "lastTransitionTime": "2026-01-05T10:30:00Z"}
        condition |= {"reason": reason, "message": message}
        self.jobs[path]["status"]["conditions"].append(condition)

    async def _handle(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body: Any = json.loads(raw) if raw else None
        self.got.append((request.method, request.path_qs, body))
        if self.news is not None:
            self.news.tell()
        if request.headers.get("Authorization") not in self.tokens:
            return status(401, "Unauthorized", "Unauthorized")
        if self.answer is not None:
            return self.answer()
        match request.method, request.path.rstrip("/"):
            case "POST", path if path.endswith("/jobs"):
                return self._create(path, body)
            case "GET", path if path in self.cronjobs:
                return web.json_response(self.cronjobs[path])
            case "GET", path if path in self.jobs:
                return web.json_response(self.jobs[path])
            case "DELETE", path if path in self.jobs:
                return self._delete(path, body)
        return status(404, "NotFound", f'"{request.path.rpartition("/")[2]}" not found')

    def _create(self, path: str, body: dict[str, Any]) -> web.Response:
        place = f"{path}/{body['metadata']['name']}"
        for version in VERSIONS:
            kubernetes_validate.validate(body, version, strict=True)
        if place in self.jobs:
            return status(409, "AlreadyExists", f'jobs.batch "{body["metadata"]["name"]}" already exists')
        metadata = {**body["metadata"], "uid": f"uid-{len(self.jobs)}"}
        self.jobs[place] = {**body, "metadata": metadata, "status": {"conditions": []}}
        return web.json_response(self.jobs[place], status=201)

    def _delete(self, path: str, body: dict[str, Any]) -> web.Response:
        assert body == {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        self.jobs[path]["metadata"]["deletionTimestamp"] = "2026-01-05T10:20:00Z"
        answer = web.json_response(self.jobs[path])
        if not self.lingers:
            self.collect()
        return answer


def status(code: int, reason: str, message: str, **headers: str) -> web.Response:
    """What the API answers in place of an object."""
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return web.json_response(
        {**body, "message": message, "reason": reason, "code": code}, status=code, headers=headers
    )


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer().listening() as server:
        yield server


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_TOKEN", "first")


@asynccontextmanager
async def target(api: ApiServer, **config: Any) -> AsyncIterator[KubernetesTarget]:
    given = {"server": api.url, "token": "env:KUBERNETES_TOKEN", "namespace": "batch", **config}
    made = KubernetesTarget(TargetSpec("k8s", "kubernetes", check_config(given, "")), SystemClock())
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def fired(there: str | None = "batch/r1", name: str = "r1") -> FiredRun:
    return FiredRun(1, name, KEY, 1, NOW, there)


PATH = "/apis/batch/v1/namespaces/batch/jobs/r1"


async def test_a_run_is_a_job_of_its_name_that_the_published_schema_takes(
    api: ApiServer, request_for: MakeRequest
) -> None:
    request = request_for({"job": JOB}, parameters={"table": "or$(A)ders", "n": 3, "not a name": 1})
    async with target(api) as k8s:
        assert await k8s.create_run(request) == Created("batch/r1")
    ((method, path, body),) = api.got
    assert (method, path.partition("?")[0]) == ("POST", "/apis/batch/v1/namespaces/batch/jobs")
    assert body["metadata"] == {
        "name": "r1",
        "namespace": "batch",
        "labels": {
            "app.kubernetes.io/managed-by": "horarium",
            "horarium/project": "etl",
            "horarium/domain": "production",
            "horarium/deployment": "crm-sync",
            "horarium/trigger": "day",
        },
        "annotations": {
            "horarium/run": "etl/production/r1",
            "horarium/trigger": "etl/production/crm-sync/day",
            "horarium/slot": "2026-01-05T10:00:00Z",
            "horarium/revision": "1",
        },
    }
    assert (body["spec"]["backoffLimit"], body["spec"]["ttlSecondsAfterFinished"]) == (0, 604_800)
    pod = body["spec"]["template"]["spec"]
    for container in (*pod["initContainers"], *pod["containers"]):
        values = {item["name"]: item["value"] for item in container["env"]}
        assert values["HORARIUM_RUN_NAME"] == "r1"
        assert values["HORARIUM_SCHEDULED_TIME"] == "2026-01-05T10:00:00Z"
        assert values["HORARIUM_PARAMETER_table"] == "or$$(A)ders", "Kubernetes makes that $(A) again"
        assert values["HORARIUM_PARAMETER_n"] == "3"
        assert json.loads(values["HORARIUM_PARAMETERS"].replace("$$(", "$(")) == request.parameters
    assert [item["value"] for item in pod["containers"][0]["env"] if item["name"] == "HORARIUM_TRIGGER"] == [
        "mine"
    ]
    assert JOB["template"]["spec"]["containers"][0]["env"] == [  # type: ignore[index]
        {"name": "HORARIUM_TRIGGER", "value": "mine"},
        {"name": "A", "value": "b"},
    ], "the deployment's own spec is left as it is"


async def test_a_name_that_is_there_is_this_runs_or_anothers(
    api: ApiServer, request_for: MakeRequest
) -> None:
    async with target(api) as k8s:
        request = request_for({"job": JOB})
        assert await k8s.create_run(request) == Created("batch/r1")
        assert await k8s.create_run(request) == AlreadyExists("batch/r1")
        assert len(api.jobs) == 1
        api.jobs[PATH]["metadata"]["annotations"] = {}
        answer = await k8s.create_run(request)
        assert isinstance(answer, Refused)
        assert "not of this run" in answer.reason
        elsewhere = request_for({"job": JOB, "namespace": "other"})
        assert await k8s.create_run(elsewhere) == Created("other/r1")


QUOTA = 'jobs.batch "r1" is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1'


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (status(429, "TooManyRequests", "slow down", **{"Retry-After": "7"}), (Unavailable, False)),
        (status(500, "InternalError", "etcd"), (Unavailable, True)),
        (status(503, "ServiceUnavailable", "later"), (Unavailable, False)),
        (status(504, "Timeout", "no answer from etcd"), (Unavailable, True)),
        (status(401, "Unauthorized", "Unauthorized"), (Unavailable, False)),
        (status(403, "Forbidden", QUOTA), (Unavailable, False)),
        (status(403, "Forbidden", 'User "u" cannot create resource "jobs"'), (Refused, None)),
        (status(404, "NotFound", 'namespaces "batch" not found'), (Refused, None)),
        (status(422, "Invalid", "spec.template.spec.restartPolicy: Required value"), (Refused, None)),
        (status(400, "BadRequest", 'strict decoding error: unknown field "spec.tmplate"'), (Refused, None)),
        (web.Response(status=302, headers={"Location": "https://login.example"}), (Refused, None)),
        (web.Response(status=502, text="<html>bad gateway</html>"), (Unavailable, True)),
    ],
    ids=lambda item: str(getattr(item, "status", "")),
)
async def test_what_an_answer_means(
    api: ApiServer,
    request_for: MakeRequest,
    answer: web.Response,
    expected: tuple[type[Any], bool | None],
) -> None:
    api.answer = lambda: web.Response(status=answer.status, headers=answer.headers, body=answer.body)
    before = SystemClock().now()
    async with target(api) as k8s:
        got = await k8s.create_run(request_for({"job": JOB}))
    kind, unknown = expected
    assert isinstance(got, kind)
    assert getattr(got, "unknown", None) == unknown
    assert str(answer.status) in got.reason
    if answer.content_type == "application/json":
        assert json.loads(answer.text or "")["message"] in got.reason
    if answer.status == 429:
        assert got.retry_at is not None
        assert timedelta(seconds=6) < got.retry_at - before < timedelta(seconds=60)


async def test_a_server_that_is_not_there_is_unavailable_and_nothing_was_sent(
    request_for: MakeRequest,
) -> None:
    async with ApiServer().listening() as api:
        pass
    async with target(api) as k8s:
        answer = await k8s.create_run(request_for({"job": JOB}))
        assert isinstance(answer, Unavailable)
        assert not answer.unknown
        with pytest.raises(CallFailed):
            await k8s.status([fired()])


async def test_a_cronjob_lends_its_template_as_it_is_when_the_run_is_due(
    api: ApiServer, request_for: MakeRequest
) -> None:
    place = "/apis/batch/v1/namespaces/batch/cronjobs/nightly"
    spec = {**JOB, "ttlSecondsAfterFinished": 60}
    template = {"metadata": {"labels": {"app": "etl"}, "annotations": {"a": "b"}}, "spec": spec}
    api.cronjobs[place] = {
        "metadata": {"name": "nightly", "uid": "u-1"},
        "spec": {"schedule": "0 1 * * *", "jobTemplate": template},
    }
    async with target(api) as k8s:
        assert await k8s.create_run(request_for({"cronjob": "nightly"})) == Created("batch/r1")
        missing = await k8s.create_run(request_for({"cronjob": "weekly"}))
    assert isinstance(missing, Refused)
    assert 'the CronJob batch/weekly can\'t be read: answered 404: "weekly" not found' in missing.reason
    body = api.got[1][2]
    assert body["metadata"]["labels"]["app"] == "etl"
    assert body["metadata"]["annotations"]["a"] == "b"
    assert body["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "u-1", "controller": True}
    ]
    assert body["spec"]["ttlSecondsAfterFinished"] == 60


async def test_how_a_job_goes_is_read_from_its_conditions(api: ApiServer, request_for: MakeRequest) -> None:
    async with target(api) as k8s:
        for number in range(1, 5):
            await k8s.create_run(request_for({"job": JOB}, run_name=f"r{number}"))
        api.end(PATH)
        api.end(PATH[:-1] + "2", "Failed", "BackoffLimitExceeded", "Job has reached the specified limit")
        api.end(PATH[:-1] + "3", "FailureTarget")
        runs = [fired(f"batch/r{number}", f"r{number}") for number in range(1, 6)]
        reports = await k8s.status(runs)
        unplaced = await k8s.status([fired(None)])
    assert [(item.run_key, item.result) for item in reports] == [
        ("etl/production/r1", Result.SUCCEEDED),
        ("etl/production/r2", Result.ERRORED),
        ("etl/production/r3", Result.RUNNING),
        ("etl/production/r4", Result.RUNNING),
        ("etl/production/r5", Result.UNKNOWN),
    ]
    assert reports[1].detail == "BackoffLimitExceeded: Job has reached the specified limit"
    assert reports[0].at == datetime(2026, 1, 5, 10, 30, tzinfo=UTC)
    assert unplaced[0].result is Result.SUCCEEDED, "an id over there that was never learned is made up for"


def test_a_suspended_job_goes_on_and_one_that_was_resumed_too() -> None:
    def job(**condition: str) -> dict[str, Any]:
        return {"status": {"conditions": [condition]}}

    assert job_result(job(type="Suspended", status="True"), NOW) == (Result.RUNNING, NOW, "suspended")
    assert job_result(job(type="Suspended", status="False"), NOW) == (Result.RUNNING, NOW, "")
    assert job_result(job(type="Complete", status="False"), NOW)[0] is Result.RUNNING
    assert job_result({}, NOW) == (Result.RUNNING, NOW, "")


async def test_a_job_of_this_name_that_is_another_runs_tells_nothing(
    api: ApiServer, request_for: MakeRequest
) -> None:
    async with target(api) as k8s:
        await k8s.create_run(request_for({"job": JOB}))
        api.jobs[PATH]["metadata"]["annotations"]["horarium/run"] = "etl/staging/r1"
        api.end(PATH)
        (report,) = await k8s.status([fired()])
    assert report.result is Result.UNKNOWN


async def test_a_404_of_somebody_else_is_no_word_about_the_job(api: ApiServer) -> None:
    api.answer = lambda: web.Response(status=404, text="no route")
    async with target(api) as k8s:
        with pytest.raises(CallFailed, match="can't be read"):
            await k8s.status([fired()])


async def test_a_cancelled_job_has_ended_when_it_is_gone_with_its_pods(
    api: ApiServer, request_for: MakeRequest
) -> None:
    api.lingers = True
    async with target(api) as k8s:
        await k8s.create_run(request_for({"job": JOB}))
        assert await k8s.cancel(fired()) is None
        assert await k8s.cancel(fired()) is None
        api.collect()
        report = await k8s.cancel(fired())
        assert report is not None
        assert (report.result, report.detail) == (Result.CANCELLED, "its Job was deleted")
        await k8s.create_run(request_for({"job": JOB}))
        api.end(PATH)
        ended = await k8s.cancel(fired())
        assert ended is not None
        assert ended.result is Result.SUCCEEDED
        assert PATH in api.jobs, "a Job that has ended is left for people to look at"


async def test_a_renewed_token_is_read_at_once_and_none_is_shown(
    api: ApiServer, request_for: MakeRequest, tmp_path: Path
) -> None:
    kept = tmp_path / "token"
    kept.write_text("first\n")
    async with target(api, token=f"file:{kept}") as k8s:
        kept.write_text("second\n")
        api.tokens = {"Bearer second"}
        assert await k8s.create_run(request_for({"job": JOB})) == Created("batch/r1")
        assert [method for method, *_ in api.got] == ["POST", "POST"]
        api.answer = lambda: status(403, "Forbidden", 'token "second" may not')
        answer = await k8s.create_run(request_for({"job": JOB}))
    assert answer == Refused('answered 403: token "(hidden)" may not')


async def test_inside_a_cluster_the_pods_service_account_is_used(
    request_for: MakeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = Path(__file__).with_name("localhost.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    spec = TargetSpec("k8s", "kubernetes", check_config({}, ""))
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SecretMissing, match="give server and token"):
        await KubernetesTarget(spec, SystemClock(), tmp_path).start()
    async with ApiServer().listening(tls) as api:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "localhost")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", api.url.rpartition(":")[2])
        with pytest.raises(SecretMissing, match="service account"):
            await KubernetesTarget(spec, SystemClock(), tmp_path).start()
        (tmp_path / "token").write_text("first")
        (tmp_path / "namespace").write_text("team")
        (tmp_path / "ca.crt").write_text(certificate.read_text())
        inside = KubernetesTarget(spec, SystemClock(), tmp_path)
        await inside.start()
        try:
            assert await inside.create_run(request_for({"job": JOB})) == Created("team/r1")
        finally:
            await inside.close()


POD = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "etl"}]}


@pytest.mark.parametrize(
    ("action", "pointer"),
    [
        ({}, "/job"),
        ({"job": JOB, "cronjob": "nightly"}, "/job"),
        ({"job": {"apiVersion": "batch/v1", "kind": "Job"}}, "/job/apiVersion"),
        ({"job": {"spec": JOB}}, "/job/spec"),
        ({"job": {"template": {}}}, "/job/template/spec/containers"),
        ({"job": {"template": {"spec": {**POD, "containers": []}}}}, "/job/template/spec/containers"),
        ({"job": {"template": {"spec": {**POD, "containers": ["x"]}}}}, "/job/template/spec/containers"),
        (
            {"job": {"template": {"spec": {**POD, "restartPolicy": "Always"}}}},
            "/job/template/spec/restartPolicy",
        ),
        ({"job": {"template": {"spec": POD}, "x": float("nan")}}, "/job"),
        ({"cronjob": "Nightly Job"}, "/cronjob"),
        ({"cronjob": "nightly", "namespace": "a.b"}, "/namespace"),
        ({"cronjob": "nightly", "image": "etl"}, "/image"),
    ],
)
def test_a_wrong_deployment_is_answered_by_its_field(action: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        check_action(action, {}, "")
    assert [problem.pointer for problem in wrong.value.problems] == [pointer]


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({"server": "k8s.example"}, "/server"),
        ({"server": "https://k8s.example", "token": "eyJhbGciOi"}, "/token"),
        ({"token": "env:TOKEN"}, "/token"),
        (
            {"server": "https://a", "token": "env:T", "headers": {"Authorization": "Bearer env:T"}},
            "/token",
        ),
        ({"namespace": "Batch"}, "/namespace"),
        ({"timeout": "2m"}, "/timeout"),
        ({"verify": 3}, "/verify"),
        ({"context": "prod"}, "/context"),
    ],
)
def test_a_wrong_target_is_answered_by_its_field(config: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        check_config(config, "")
    assert [problem.pointer for problem in wrong.value.problems] == [pointer]
    assert "eyJhbGciOi" not in str(wrong.value)


async def test_replace_deletes_the_job_before_and_begins_the_next_one(tmp_path: Path) -> None:
    """The whole way: a server that fires, cancels and asks, and a Job that goes last."""
    news, triggers, database = News(), tmp_path / "triggers.yaml", tmp_path / "horarium.db"
    async with ApiServer(news=news, lingers=True).listening() as api:
        triggers.write_text(
            json.dumps(
                {
                    "source": "git/etl",
                    "targets": {"k8s": {"kubernetes": {"server": api.url, "token": "env:KUBERNETES_TOKEN"}}},
                    "deployments": {
                        "job": {"target": "k8s", "job": JOB, "every": "2s", "overlap": "replace"}
                    },
                }
            )
        )
        server = await Server.start(database, triggers, news, execution_qps="0")
        await server.serves()
        assert await news.until(lambda: any(method == "DELETE" for method, *_ in api.got))
        made = api.names()
        assert len(made) == 1, "the next one waits until the Job is gone"
        api.collect()
        assert await news.until(lambda: len(api.names()) == 2)
        await server.logs(f'"fired".*{api.names()[1]}')
        server.terminate()
        assert await server.exit() == 0
    results = dict(rows(database, "select name, result from run where result is not null"))
    assert results[made[0]] == "cancelled"
    assert sorted(results.values()) == ["cancelled", "running"]
