"""The `prefect` target keeps the contract: the public suite, against a real Prefect server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from horarium.core.spec import Json
from horarium.targets import registry
from horarium.targets.prefect import PrefectTarget
from horarium.testing.target_suite import Harness, TargetSuite
from tests.prefect.server import PrefectServer

CANNOT = {
    "hold": "Prefect is not asked how a run goes",
    "fail": "Prefect is not asked how a run goes",
    "be down": "test_target has it: this server is for all tests, and takes seconds to start",
}


class PrefectHarness(Harness):
    kind = registry.kind("prefect")
    secrets = ("correct-horse-battery",)

    def __init__(self, server: PrefectServer) -> None:
        self.server = server
        self.deployment = server.deployment("conformance", "suite")

    def config(self) -> Mapping[str, Any]:
        return {"url": self.server.url, "api_key": "env:CONFORMANCE_KEY"}

    def action(self) -> Mapping[str, Any]:
        return {"deployment": "conformance/suite"}

    def refused_action(self) -> Mapping[str, Any]:
        return {"deployment": "conformance/nobody-made-it"}

    async def seen(self, run_name: str) -> Sequence[Mapping[str, Json]]:
        found = await asyncio.to_thread(self.server.flow_runs, self.deployment)
        return [run["parameters"] for run in found if run["idempotency_key"] == run_name]

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[None]:
        self.server.signal(signal.SIGSTOP)
        yield
        self.server.signal(signal.SIGCONT)


class TestPrefect(TargetSuite, target=PrefectTarget, cannot=CANNOT):
    @pytest.fixture
    def harness(self, prefect: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> PrefectHarness:
        monkeypatch.setenv("CONFORMANCE_KEY", PrefectHarness.secrets[0])
        return PrefectHarness(prefect)
