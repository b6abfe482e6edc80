"""The `prefect` target keeps the contract: the public suite, against a real Prefect server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from horarium.clock import SystemClock
from horarium.core.spec import Json
from horarium.targets import registry
from horarium.targets.prefect import PrefectTarget
from horarium.testing.target_suite import Harness, TargetSuite
from tests.prefect.server import PrefectServer

CLOCK = SystemClock()

CANNOT = {
    "hold": "no worker is here, so no flow goes on; test_status has the states, on this server too",
    "fail": "no worker is here, so no flow fails; test_status has the states, on this server too",
    "be down": "test_target has it: this server is for all tests, and takes seconds to start",
}


class PrefectHarness(Harness):
    kind = registry.kind("prefect")
    secrets = ("correct-horse-battery",)

    def __init__(self, server: PrefectServer, *, works: bool) -> None:
        self.server = server
        self.deployment = server.deployment("conformance", "suite")
        self.works = works
        """Whether runs end, as with a worker; its SQLite is too busy for one beside every test."""

    async def __aenter__(self) -> Self:
        self._stopped = asyncio.Event()
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stopped.set()
        await self._worker

    async def _work(self) -> None:
        """What a worker does, without the work: runs end once they are there."""
        while self.works and not await CLOCK.wait(self._stopped, 0.5):
            for run in await asyncio.to_thread(self.server.flow_runs, self.deployment, "SCHEDULED"):
                body = {"state": {"type": "COMPLETED"}, "force": True}
                await asyncio.to_thread(self.server.good, "POST", f"/flow_runs/{run['id']}/set_state", body)

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
    def harness(
        self, prefect: PrefectServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
    ) -> PrefectHarness:
        monkeypatch.setenv("CONFORMANCE_KEY", PrefectHarness.secrets[0])
        return PrefectHarness(prefect, works=request.node.name in ENDS)


ENDS = ("test_many_are_asked_about_at_once", "test_a_run_that_has_ended_is_not_cancelled")
"""Tests of the suite for which a run has to end."""
