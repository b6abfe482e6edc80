"""Our own targets keep the contract: the public suite, on real processes, calls and requests."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp import web

from horarium.core.spec import Json
from horarium.targets import registry
from horarium.targets.http import HttpTarget
from horarium.targets.inline import InlineTarget, current_run
from horarium.targets.local import LocalTarget
from horarium.targets.registry import TargetContext
from horarium.testing.target_suite import CLOCK, Harness, TargetSuite
from tests.targets.recorder import PROGRAM, Recorder, SocketServer
from tests.targets.rows import Rows

HERE = "it runs on this machine: there is no engine that could"
CANNOT = {"be down": HERE, "be slow": HERE}
PUSHES = "its receiver tells how a run goes, unasked: test_callbacks"


class EmbeddedHarness(Harness):
    """Of the targets that execute here."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.recorder = Recorder()

    async def seen(self, run_name: str) -> Sequence[Mapping[str, Json]]:
        return await asyncio.to_thread(self.recorder.seen, run_name)

    async def let_go(self, run_name: str) -> None:
        self.recorder.let_go(run_name)

    def functions(self) -> Mapping[str, Callable[..., Any]]:
        return {}

    def context(self) -> TargetContext:
        return TargetContext(CLOCK, self.rows, "conformance", lambda: None, self.functions())


class LocalHarness(EmbeddedHarness):
    kind = registry.kind("local")
    secrets = ("correct-horse-battery",)

    def __init__(self, rows: Rows, socket: str) -> None:
        super().__init__(rows)
        self.socket = socket

    def action(self) -> Mapping[str, Any]:
        return self._program("quick")

    def failing_action(self) -> Mapping[str, Any]:
        return self._program("fail")

    def holding_action(self) -> Mapping[str, Any]:
        return self._program("hold")

    def refused_action(self) -> Mapping[str, Any]:
        return {"run": ["/nowhere/at-all"]}

    def _program(self, how: str) -> Mapping[str, Any]:
        command = [sys.executable, "-c", PROGRAM, self.socket, how]
        return {"run": command, "env": {"PASSWORD": "env:CONFORMANCE_PASSWORD"}}


class TestLocal(TargetSuite, target=LocalTarget, cannot=CANNOT):
    @pytest.fixture
    def harness(self, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHarness]:
        monkeypatch.setenv("CONFORMANCE_PASSWORD", LocalHarness.secrets[0])
        harness = LocalHarness(rows, str(tmp_path / "s"))
        server = SocketServer(tmp_path / "s", harness.recorder)
        yield harness
        server.stop()


class InlineHarness(EmbeddedHarness):
    kind = registry.kind("inline")

    def functions(self) -> Mapping[str, Callable[..., Any]]:
        def quick(**parameters: Any) -> None:
            self.recorder.began(current_run().run_name, parameters)

        def failing(**parameters: Any) -> None:
            raise ValueError("the ledger is closed")

        def hold(**parameters: Any) -> None:
            self.recorder.began(current_run().run_name, parameters)
            self.recorder.wait_to_go(current_run().run_name)

        return {"quick": quick, "failing": failing, "hold": hold}

    def action(self) -> Mapping[str, Any]:
        return {"call": "quick"}

    def failing_action(self) -> Mapping[str, Any]:
        return {"call": "failing"}

    def holding_action(self) -> Mapping[str, Any]:
        return {"call": "hold"}

    def refused_action(self) -> Mapping[str, Any]:
        return {"call": "nobody_registered_it"}


class TestInline(TargetSuite, target=InlineTarget, cannot=CANNOT):
    @pytest.fixture
    def harness(self, rows: Rows) -> InlineHarness:
        return InlineHarness(rows)


class HttpHarness(Harness):
    """A receiver on a real socket, which answers as it is told."""

    kind = registry.kind("http")
    secrets = ("correct-horse-battery",)
    retry_after = timedelta(minutes=7)

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.is_down = False
        self.answering = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.answering = asyncio.Event()
        self.answering.set()
        app = web.Application()
        app.router.add_post("/{tail:.*}", self._receive)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.runner.cleanup()

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        await self.answering.wait()
        if self.is_down:
            return web.Response(status=503, headers={"Retry-After": "420"}, text=self.secrets[0])
        if request.path.endswith("/gone"):
            return web.Response(status=410, text=f"gone, {request.headers['Authorization']}")
        self.recorder.began(request.headers["Idempotency-Key"], json.loads(await request.text()))
        return web.Response(status=201)

    def config(self) -> Mapping[str, Any]:
        port = self.runner.addresses[0][1] if hasattr(self, "runner") else 80
        headers = {"Authorization": "Bearer env:CONFORMANCE_TOKEN"}
        return {"url": f"http://127.0.0.1:{port}/hook", "headers": headers, "secret": "env:CONFORMANCE_TOKEN"}

    def refused_action(self) -> Mapping[str, Any]:
        return {"path": "/gone"}

    async def seen(self, run_name: str) -> Sequence[Mapping[str, Json]]:
        return await asyncio.to_thread(self.recorder.seen, run_name)

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        self.is_down = True
        yield
        self.is_down = False

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[None]:
        self.answering.clear()
        yield
        self.answering.set()


class TestHttp(TargetSuite, target=HttpTarget, cannot={"hold": PUSHES, "fail": PUSHES}):
    @pytest.fixture
    def harness(self, monkeypatch: pytest.MonkeyPatch) -> HttpHarness:
        monkeypatch.setenv("CONFORMANCE_TOKEN", HttpHarness.secrets[0])
        return HttpHarness()
