"""The ray target against a stand-in of the jobs API, which answers as the head of Ray 2.60 does.

Here is what a head answers when it is in trouble; tests/ray has the contract of targets on a real Ray.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from horarium.clock import SystemClock
from horarium.core.run import FiredRun, Result
from horarium.core.spec import TargetSpec
from horarium.errors import InvalidInput
from horarium.targets.base import AlreadyExists, Created, FireRequest, Refused, Unavailable
from horarium.targets.connection import CallFailed
from horarium.targets.ray import RayTarget, check_action, check_config
from tests.serving import serving
from tests.targets.rows import KEY

MakeRequest = Callable[..., FireRequest]
NOW = datetime(2026, 1, 5, 11, tzinfo=UTC)
FIELDS: dict[str, Any] = {
    "entrypoint": str,
    "submission_id": str,
    "runtime_env": dict,
    "metadata": dict,
    "entrypoint_num_cpus": (int, float),
    "entrypoint_num_gpus": (int, float),
    "entrypoint_memory": int,
    "entrypoint_resources": dict,
}
"""Of `JobSubmitRequest`: an unknown one, or one of another type, is a 400."""


def passed_on(said: str) -> web.Response:
    """The head's answer where the agent, which takes submissions, answered 400."""
    said = f"RuntimeError: Request failed with status code 400: {said}."
    trace = f"Traceback (most recent call last):\n  ...\n{said}"
    return web.Response(status=500, text=trace)


@dataclass
class Head:
    """A head: jobs by submission id, each until `end`."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    got: list[tuple[str, str, Any]] = field(default_factory=list)
    submit: Callable[[], web.Response] | None = None
    read: Callable[[], web.Response] | None = None
    stubborn: bool = False
    url: str = ""

    def end(self, name: str, state: str, message: str = "") -> None:
        self.jobs[name] |= {"status": state, "message": message, "end_time": 1_767_609_000_000}

    async def handle(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body: Any = json.loads(raw) if raw else None
        self.got.append((request.method, request.path, body))
        if request.method == "POST" and request.path == "/api/jobs/":
            return self.submit() if self.submit else self._submit(body)
        name = request.path.split("/")[3]
        if name not in self.jobs:
            return web.Response(status=404, text=f"Job {name} does not exist")
        if request.method == "POST":
            if not self.stubborn:
                self.end(name, "STOPPED", "Job was intentionally stopped.")
            return web.json_response({"stopped": True})
        return self.read() if self.read else web.json_response(self.jobs[name])

    def _submit(self, body: dict[str, Any]) -> web.Response:
        wrong = [key for key, value in body.items() if not isinstance(value, FIELDS.get(key, ()))]
        texts = (*body["metadata"].values(), *body["runtime_env"].get("env_vars", {}).values())
        if wrong or not all(isinstance(text, str) for text in texts):
            return web.Response(status=400, text=f"Traceback ...\nTypeError: {wrong}")
        name = body["submission_id"]
        if name in self.jobs:
            return passed_on(
                f"Traceback ...\nValueError: Job with submission_id {name} already exists. "
                "Please use a different submission_id."
            )
        self.jobs[name] = {"type": "SUBMISSION", "submission_id": name, "status": "PENDING", **body}
        return web.json_response({"job_id": name, "submission_id": name})


@pytest.fixture
async def head() -> AsyncIterator[Head]:
    head = Head()
    async with serving(head.handle) as head.url:
        yield head


@asynccontextmanager
async def target(head: Head, **config: Any) -> AsyncIterator[RayTarget]:
    made = RayTarget(TargetSpec("ray", "ray", check_config({"url": head.url, **config}, "")), SystemClock())
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def fired(name: str = "r1") -> FiredRun:
    return FiredRun(1, name, KEY, 1, NOW, name)


TRAIN = {
    "entrypoint": "python train.py",
    "runtime_env": {"pip": ["torch"], "env_vars": {"A": "b"}},
    "resources": {"cpus": 0.5, "memory": 1_000_000, "accelerator": 1},
    "metadata": {"team": "ml"},
}


async def test_a_run_is_a_job_of_its_name(head: Head, request_for: MakeRequest) -> None:
    request = request_for(check_action(TRAIN, {}, ""), parameters={"epochs": 3, "mode": "full"})
    async with target(head) as ray:
        assert await ray.create_run(request) == Created("r1")
    ((method, path, body),) = head.got
    assert (method, path) == ("POST", "/api/jobs/")
    assert body == {
        "entrypoint": "python train.py",
        "submission_id": "r1",
        "runtime_env": {
            "pip": ["torch"],
            "env_vars": {
                "HORARIUM_RUN_NAME": "r1",
                "HORARIUM_SCHEDULED_TIME": "2026-01-05T10:00:00Z",
                "HORARIUM_TRIGGER": "etl/production/crm-sync/day",
                "HORARIUM_PARAMETERS": '{"epochs": 3, "mode": "full"}',
                "HORARIUM_PARAMETER_epochs": "3",
                "HORARIUM_PARAMETER_mode": "full",
                "A": "b",
            },
        },
        "metadata": {
            "team": "ml",
            "horarium.run": "etl/production/r1",
            "horarium.trigger": "etl/production/crm-sync/day",
            "horarium.slot": "2026-01-05T10:00:00Z",
        },
        "entrypoint_num_cpus": 0.5,
        "entrypoint_memory": 1_000_000,
        "entrypoint_resources": {"accelerator": 1},
    }


async def test_a_repeated_name_is_told_from_other_faults_by_the_job_itself(
    head: Head, request_for: MakeRequest
) -> None:
    request = request_for({"entrypoint": "true"})
    async with target(head) as ray:
        assert await ray.create_run(request) == Created("r1")
        assert await ray.create_run(request) == AlreadyExists("r1")
        head.jobs["r1"]["metadata"] = {}
        answer = await ray.create_run(request)
    assert isinstance(answer, Refused)
    assert "not of this run" in answer.reason


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (400, "TypeError: entrypoint must be a string", (Refused, None)),
        (500, "RuntimeError: Request failed with status code 400: bad runtime_env.", (Refused, None)),
        (500, "No available agent to submit job, please try again later.", (Unavailable, True)),
        (503, "", (Unavailable, False)),
        (429, "", (Unavailable, False)),
        (401, "Unauthorized", (Unavailable, False)),
        (403, "Forbidden", (Unavailable, False)),
        (404, "nothing here", (Refused, None)),
        (302, "", (Refused, None)),
    ],
)
async def test_what_an_answer_means(
    head: Head,
    request_for: MakeRequest,
    status: int,
    text: str,
    expected: tuple[type[Any], bool | None],
) -> None:
    head.submit = lambda: web.Response(status=status, text=text)
    async with target(head) as ray:
        answer = await ray.create_run(request_for({"entrypoint": "true"}))
    assert (type(answer), getattr(answer, "unknown", None)) == expected
    assert isinstance(answer, Refused | Unavailable)
    assert str(status) in answer.reason
    assert text in answer.reason


async def test_how_jobs_go(head: Head, request_for: MakeRequest) -> None:
    async with target(head) as ray:
        for number in range(1, 6):
            await ray.create_run(request_for({"entrypoint": "true"}, run_name=f"r{number}"))
        head.end("r1", "SUCCEEDED")
        head.end("r2", "FAILED", "Job entrypoint command failed\nwith exit code 1")
        head.end("r3", "STOPPED")
        head.jobs["r5"]["metadata"]["horarium.run"] = "etl/staging/r5"
        reports = await ray.status([fired(f"r{number}") for number in range(1, 7)])
        head.read = lambda: web.Response(status=500, text="GCS is down")
        with pytest.raises(CallFailed, match="GCS is down"):
            await ray.status([fired()])
    assert [report.result for report in reports] == [
        Result.SUCCEEDED,
        Result.ERRORED,
        Result.CANCELLED,
        Result.RUNNING,
        Result.UNKNOWN,
        Result.UNKNOWN,
    ]
    assert reports[0].at == datetime(2026, 1, 5, 10, 30, tzinfo=UTC)
    assert reports[1].detail == "Job entrypoint command failed with exit code 1"


async def test_a_job_is_stopped_and_has_ended_when_ray_says_so(head: Head, request_for: MakeRequest) -> None:
    head.stubborn = True
    async with target(head) as ray:
        await ray.create_run(request_for({"entrypoint": "sleep 60"}))
        assert await ray.cancel(fired()) is None
        head.stubborn = False
        report = await ray.cancel(fired())
        assert report is not None
        assert report.result is Result.CANCELLED
        calls = len(head.got)
        again = await ray.cancel(fired())
        assert again is not None
        assert again.result is Result.CANCELLED
        assert [method for method, *_ in head.got[calls:]] == ["GET"], "one that has ended is not stopped"
        gone = await ray.cancel(fired("r9"))
        assert gone is not None
        assert gone.result is Result.UNKNOWN


@pytest.mark.parametrize(
    ("action", "pointer"),
    [
        ({}, "/entrypoint"),
        ({"entrypoint": ["python"]}, "/entrypoint"),
        ({"entrypoint": "true", "runtime_env": {"env_vars": {"A": 1}}}, "/runtime_env/env_vars/A"),
        ({"entrypoint": "true", "metadata": {"a": 1}}, "/metadata/a"),
        ({"entrypoint": "true", "resources": {"cpus": "1"}}, "/resources/cpus"),
        ({"entrypoint": "true", "resources": {"memory": 0.5}}, "/resources/memory"),
        ({"entrypoint": "true", "num_cpus": 1}, "/num_cpus"),
    ],
)
def test_a_wrong_deployment_is_answered_by_its_field(action: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        check_action(action, {}, "")
    assert [problem.pointer for problem in wrong.value.problems] == [pointer]


@pytest.mark.parametrize(
    ("config", "pointer"),
    [({}, "/url"), ({"url": "http://a", "token": "s3cret-text"}, "/token"), ({"url": "ray://a"}, "/url")],
)
def test_a_wrong_target_is_answered_by_its_field(config: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        check_config(config, "")
    assert [problem.pointer for problem in wrong.value.problems] == [pointer]
    assert "s3cret-text" not in str(wrong.value)
