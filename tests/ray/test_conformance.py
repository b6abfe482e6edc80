"""The `ray` target keeps the contract: the public suite, against a real Ray cluster of one node.

What a head answers when it is in trouble is in tests/targets/test_ray_target.py, on a stand-in.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from horarium.core.run import Result
from horarium.core.spec import Json
from horarium.targets import registry
from horarium.targets.base import Refused, Unavailable
from horarium.targets.ray import RayTarget
from horarium.testing.target_suite import Harness, TargetSuite, fired, fresh, running, until_ended
from tests.ray.cluster import RayCluster
from tests.targets.recorder import PROGRAM, Recorder, SocketServer

CANNOT = {
    "refuse": "whatever passes our check it takes: what it can't run is a job that fails, see below",
    "be down": "a head that is started anew, on a port that it chooses, is another one",
}
TOKEN = "c0ffee" * 8


class RayHarness(Harness):
    kind = registry.kind("ray")
    patience = 60.0
    secrets = (TOKEN,)

    def __init__(self, cluster: RayCluster, recorder: Recorder, socket: str) -> None:
        self.cluster = cluster
        self.recorder = recorder
        self.socket = socket

    def config(self) -> Mapping[str, Any]:
        return {"url": self.cluster.url, "token": "env:CONFORMANCE_TOKEN"}

    def action(self) -> Mapping[str, Any]:
        return self._program("quick")

    def failing_action(self) -> Mapping[str, Any]:
        return self._program("fail")

    def holding_action(self) -> Mapping[str, Any]:
        return self._program("hold")

    def _program(self, how: str) -> Mapping[str, Any]:
        return {"entrypoint": shlex.join([sys.executable, "-c", PROGRAM, self.socket, how])}

    async def seen(self, run_name: str) -> Sequence[Mapping[str, Json]]:
        return await asyncio.to_thread(self.recorder.seen, run_name)

    async def let_go(self, run_name: str) -> None:
        self.recorder.let_go(run_name)

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[None]:
        with self.cluster.frozen():
            yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster(TOKEN)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class TestRay(TargetSuite, target=RayTarget, cannot=CANNOT):
    @pytest.fixture
    def harness(
        self, cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[RayHarness]:
        monkeypatch.setenv("CONFORMANCE_TOKEN", TOKEN)
        recorder = Recorder()
        server = SocketServer(tmp_path / "s", recorder)
        yield RayHarness(cluster, recorder, str(tmp_path / "s"))
        server.stop()

    async def test_a_name_is_of_one_run(self, harness: RayHarness) -> None:
        async with running(harness) as target:
            request = fresh(harness, target)
            run = await fired(target, request)
            stranger = replace(request, trigger=replace(request.trigger, project="other"))
            answer = await target.create_run(stranger)
            assert isinstance(answer, Refused), answer
            assert f"a job {run.name} is there that is not of this run" in answer.reason
            await until_ended(harness, target, run)

    async def test_a_job_that_it_cannot_start_has_errored(self, harness: RayHarness) -> None:
        async with running(harness) as target:
            action = {**harness.action(), "runtime_env": {"working_dir": "no-address-of-a-package"}}
            run = await fired(target, fresh(harness, target, action))
            ended = await until_ended(harness, target, run)
        assert ended.result is Result.ERRORED, ended
        assert "no-address-of-a-package" in ended.detail

    async def test_another_token_is_told_and_can_be_mended(
        self, harness: RayHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CONFORMANCE_TOKEN", "0" * 48)
        async with running(harness) as target:
            answer = await target.create_run(fresh(harness, target))
        assert isinstance(answer, Unavailable), answer
        assert "403" in answer.reason
