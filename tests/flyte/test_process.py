"""Two processes: `horarium serve` with source and target `flyte`, and a backend whose triggers change.

Both are killed and started again on the way. Every slot is a run over there once, under the name that Flyte's
own scheduler gives it, and a trigger that is deactivated stops within an interval.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flyteidl2.task.common_pb2 import Cron
from flyteidl2.trigger.trigger_service_connect import TriggerServiceClient
from flyteidl2.trigger.trigger_service_pb2 import DeployTriggerRequest, UpdateTriggersRequest

from horarium.core.keys import TriggerKey
from horarium.flyte.messages import trigger_name
from tests.chaos.process import News, Server, environment
from tests.flyte.backend import listener, read_runs
from tests.flyte.reading import details, named
from tests.flyte.test_messages import fnv1

ROOT = Path(__file__).parents[2]
RESYNC = 1


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Two:
    """The two processes, and what the backend's said of each call."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "backend"
        self.database = folder / "horarium.db"
        self.config = folder / "horarium.toml"
        self.news = News()
        with listener() as sock:
            self.port = int(sock.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.config.write_text(
            f'db = "sqlite:///{self.database}"\nport = 0\nresync_interval = "{RESYNC}s"\nlease = "5s"\n'
            f'[sources.flyte]\nendpoint = "{self.url}"\n'
        )
        self.backends: list[Server] = []
        self.horariums: list[Server] = []

    async def start_backend(self) -> None:
        arguments = ("-m", "tests.flyte.backend", "--port", str(self.port), "--state", str(self.state))
        self.backends.append(await self._start(*arguments, path=f"{ROOT / 'src'}:{ROOT}"))
        await self.backends[-1].says("serves")

    async def start_horarium(self) -> None:
        arguments = ("-m", "horarium", "serve", "--config", str(self.config))
        self.horariums.append(await self._start(*arguments, path=str(ROOT / "src")))
        await self.horariums[-1].serves()

    async def end(self) -> None:
        for process in [*self.horariums, *self.backends]:
            await process.kill()

    async def _start(self, *arguments: str, path: str) -> Server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=self.config.parent,
            env={**environment(), "PYTHONPATH": path},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return Server(process, self.news)

    def calls(self, trigger: str) -> list[dict[str, Any]]:
        """What the backend said of the calls for a trigger, in order."""
        lines = [json.loads(line) for backend in self.backends for line in backend.out]
        return [line for line in lines if line.get("trigger") == trigger]

    def slots(self, trigger: str) -> list[int]:
        """The slots that became runs, in the order in which they did."""
        return [line["slot"] for line in self.calls(trigger) if line["new"]]

    async def until(self, found: Callable[[], bool]) -> None:
        """Wait until what the backend said satisfies `found`."""
        said = [line for server in self.horariums for line in server.log[-5:]]
        assert await self.news.until(found), f"{self.slots('often')} {self.slots('other')} {said}"

    async def more(self, trigger: str, count: int) -> None:
        """Wait for so many more runs of a trigger."""
        seen = len(self.slots(trigger))
        await self.until(lambda: len(self.slots(trigger)) >= seen + count)


def name_of(key: TriggerKey, slot: int) -> str:
    """Flyte's name of a run, by an FNV-1 of the tests' own."""
    parts = (key.project, key.domain, key.deployment, key.name, *time.gmtime(slot)[:6])
    return f"r{fnv1(':'.join(map(str, parts))):x}"


async def test_every_slot_once_through_kills_and_changes(tmp_path: Path) -> None:
    two = Two(tmp_path)
    often, other = named("often"), named("other")
    try:
        await two.start_backend()
        service = TriggerServiceClient(two.url)
        deployed: dict[str, int] = {}
        for key, expression in ((often, "@every 1s"), (other, "@every 2s")):
            given = details(key, cron=Cron(expression=expression, timezone="UTC"))
            answer = await service.deploy_trigger(
                DeployTriggerRequest(
                    name=trigger_name(key), spec=given.spec, automation_spec=given.automation_spec
                )
            )
            deployed[key.name] = answer.trigger.status.deployed_at.seconds
        await two.start_horarium()
        await two.more("other", 3)

        await two.backends[-1].kill()
        await two.start_backend()
        await two.more("other", 3)

        await two.horariums[-1].kill()
        await two.start_horarium()
        await two.more("other", 3)

        # From here on `often` is not active. What was fired before the change was seen stays.
        await TriggerServiceClient(two.url).update_triggers(
            UpdateTriggersRequest(names=[trigger_name(often)], active=False)
        )
        stopped = int(time.time())
        await two.until(lambda: max(two.slots("other")) > stopped + 12)
        last = max(two.slots("other"))

        two.horariums[-1].terminate()
        assert await two.horariums[-1].exit() == 0
    finally:
        await two.end()

    # One pass every interval, and each takes its time on a machine that is busy.
    assert stopped - 1 <= max(two.slots("often")) <= stopped + 8 * RESYNC
    ends = {"often": max(two.slots("often")), "other": last}
    for key, step in ((often, 1), (other, 2)):
        start = deployed[key.name]
        expected = list(range(start + step, ends[key.name] + 1, step))
        assert sorted(two.slots(key.name))[: len(expected)] == expected
    runs = read_runs(two.state)
    assert len({run.run_id.name for run in runs}) == len(runs)
    for run in runs:
        key = often if run.trigger_name.name == "often" else other
        assert run.run_id.name == name_of(key, run.run_start_time.seconds)
