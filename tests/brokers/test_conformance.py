"""`docket` and `celery` keep the contract of targets: the public suite, on a real Redis with real workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from horarium.core.spec import Json
from horarium.targets import registry
from horarium.targets.celery import CeleryTarget
from horarium.targets.docket import DocketTarget
from horarium.testing.target_suite import Harness, TargetSuite
from tests.brokers.redis_server import RedisServer
from tests.brokers.workers import Notes, Worker

CANNOT = {"refuse": "what a worker can't run, the worker finds out"}


class BrokerHarness(Harness):
    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.secrets = (server.password,)
        self.notes = Notes(server)

    def action(self) -> Mapping[str, Any]:
        return {"task_name": "quick"}

    def failing_action(self) -> Mapping[str, Any]:
        return {"task_name": "failing"}

    def holding_action(self) -> Mapping[str, Any]:
        return {"task_name": "hold"}

    async def let_go(self, run_name: str) -> None:
        self.notes.let_go(run_name)

    async def seen(self, run_name: str) -> Sequence[Mapping[str, Json]]:
        return await asyncio.to_thread(self.notes.seen, run_name)  # type: ignore[arg-type]

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        self.server.kill()
        try:
            yield
        finally:
            await asyncio.to_thread(self.server.start)

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[None]:
        self.server.freeze()
        try:
            yield
        finally:
            self.server.thaw()


class DocketHarness(BrokerHarness):
    kind = registry.kind("docket")

    def config(self) -> Mapping[str, Any]:
        return {"url": "env:DOCKET_URL", "timeout": "3s"}


class CeleryHarness(BrokerHarness):
    kind = registry.kind("celery")

    def config(self) -> Mapping[str, Any]:
        return {"broker": "env:BROKER_URL", "backend": "env:BACKEND_URL", "timeout": "3s"}


def point_to(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that the references of these harnesses lead to."""
    monkeypatch.setenv("DOCKET_URL", server.url)
    monkeypatch.setenv("BROKER_URL", server.database(1))
    monkeypatch.setenv("BACKEND_URL", server.database(2))


class TestDocket(TargetSuite, target=DocketTarget, cannot=CANNOT):
    @pytest.fixture
    def harness(
        self, redis_server: RedisServer, docket: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> DocketHarness:
        point_to(redis_server, monkeypatch)
        return DocketHarness(redis_server)


class TestCelery(TargetSuite, target=CeleryTarget, cannot=CANNOT):
    @pytest.fixture
    def harness(
        self, redis_server: RedisServer, celery: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> CeleryHarness:
        point_to(redis_server, monkeypatch)
        return CeleryHarness(redis_server)
