"""`kubernetes` keeps the contract of targets: the public suite, on the stand-in of the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Self

import pytest
from aiohttp import web

from horarium.clock import SystemClock
from horarium.core.instant import rfc3339
from horarium.core.spec import Json
from horarium.targets import registry
from horarium.targets.kubernetes import KubernetesTarget
from horarium.testing.target_suite import Harness, TargetSuite
from tests.targets.test_kubernetes_target import ApiServer, status

SECRET = "a token of the service account"


def job(image: str) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": image}]}
    return {"job": {"template": {"spec": pod}}}


class Kubelet(ApiServer):
    """Runs a Job as its image says: `quick` ends well, `failing` fails, `hold` goes on."""

    frozen: asyncio.Event | None = None

    def end(self, path: str, kind: str = "Complete", reason: str = "", message: str = "") -> None:
        super().end(path, kind, reason, message)
        self.jobs[path]["status"]["conditions"][-1]["lastTransitionTime"] = rfc3339(SystemClock().now())

    async def _handle(self, request: web.Request) -> web.Response:
        if self.frozen is not None:
            await self.frozen.wait()
        return await super()._handle(request)

    def _create(self, path: str, body: dict[str, Any]) -> web.Response:
        if "/missing/" in path:
            return status(404, "NotFound", 'namespaces "missing" not found')
        answer = super()._create(path, body)
        if answer.status == 201:
            image = body["spec"]["template"]["spec"]["containers"][0]["image"]
            place = f"{path}/{body['metadata']['name']}"
            if image == "quick":
                self.end(place)
            if image == "failing":
                self.end(place, "Failed", "BackoffLimitExceeded", "it failed")
        return answer


class KubernetesHarness(Harness):
    kind = registry.kind("kubernetes")
    secrets = (SECRET,)
    retry_after = timedelta(seconds=9)

    def __init__(self) -> None:
        self.api = Kubelet(tokens={f"Bearer {SECRET}"}, url="https://k8s.example")

    async def __aenter__(self) -> Self:
        self.stack = AsyncExitStack()
        await self.stack.enter_async_context(self.api.listening())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stack.aclose()

    def config(self) -> Mapping[str, Any]:
        return {"server": self.api.url, "token": "env:CONFORMANCE_TOKEN", "namespace": "batch"}

    def action(self) -> Mapping[str, Any]:
        return job("quick")

    def failing_action(self) -> Mapping[str, Any]:
        return job("failing")

    def holding_action(self) -> Mapping[str, Any]:
        return job("hold")

    def refused_action(self) -> Mapping[str, Any]:
        return {**job("quick"), "namespace": "missing"}

    async def let_go(self, run_name: str) -> None:
        self.api.end(self._place(run_name))

    async def seen(self, run_name: str) -> Sequence[Mapping[str, Json]]:
        made = self.api.jobs.get(self._place(run_name))
        if made is None:
            raise TimeoutError(run_name)
        (container,) = made["spec"]["template"]["spec"]["containers"]
        values = {item["name"]: item["value"] for item in container["env"]}
        return [json.loads(values["HORARIUM_PARAMETERS"].replace("$$(", "$("))]

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        self.api.answer = lambda: status(429, "TooManyRequests", "slow down", **{"Retry-After": "9"})
        yield
        self.api.answer = None

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[None]:
        self.api.frozen = asyncio.Event()
        yield
        self.api.frozen.set()
        self.api.frozen = None

    def _place(self, run_name: str) -> str:
        return f"/apis/batch/v1/namespaces/batch/jobs/{run_name}"


class TestKubernetes(TargetSuite, target=KubernetesTarget):
    @pytest.fixture
    def harness(self, monkeypatch: pytest.MonkeyPatch) -> KubernetesHarness:
        monkeypatch.setenv("CONFORMANCE_TOKEN", SECRET)
        return KubernetesHarness()
