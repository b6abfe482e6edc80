"""`horarium serve` with a worker of Docket or Celery: from a triggers file to the end of the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from horarium.wiring import import_celery
from tests.brokers.redis_server import RedisServer
from tests.brokers.workers import NOTES, Notes, Worker
from tests.chaos.process import News, Server

TARGETS = {
    "docket": 'docket: {url: "env:ENGINE_REDIS"}',
    "celery": 'celery: {broker: "env:ENGINE_BROKER", backend: "env:ENGINE_BACKEND"}',
}

Run = dict[str, Any]


async def runs(api: str, until: Callable[[list[Run]], bool]) -> list[Run]:
    """The runs as the API has them, in the order of their slots, once they are as wanted. Each turn takes an
    answer of the server, which tells of nothing by itself."""
    async with asyncio.timeout(40), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{api}/api/v1/runs?limit=100") as response:
                found = sorted((await response.json())["items"], key=lambda run: str(run["scheduled_time"]))
            if until(found):
                return found


def fired(found: list[Run]) -> list[Run]:
    return [run for run in found if run["state"] == "fired"]


@pytest.mark.parametrize("kind", ["docket", "celery"])
async def test_one_at_a_time_from_slot_to_end(
    kind: str,
    redis_server: RedisServer,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert isinstance(request.getfixturevalue(kind), Worker), "a worker is there"
    notes = Notes(redis_server)
    for name, url in {
        "ENGINE_REDIS": redis_server.url,
        "ENGINE_BROKER": redis_server.database(1),
        "ENGINE_BACKEND": redis_server.database(2),
    }.items():
        monkeypatch.setenv(name, url)
    triggers = tmp_path / "triggers.yaml"
    triggers.write_text(
        f"source: end-to-end\ntargets:\n  engine: {{{TARGETS[kind]}}}\n"
        "deployments:\n"
        "  job:\n"
        "    target: engine\n"
        "    task_name: hold\n"
        "    parameters: {mode: full}\n"
        "    kickoff_time_arg: as_of\n"
        "    triggers: {tick: {every: 1s, overlap: queue}}\n"
    )
    server = await Server.start(tmp_path / "horarium.db", triggers, News())
    try:
        api = await server.serves()
        first = fired(await runs(api, lambda found: bool(fired(found))))[0]
        (given,) = await asyncio.to_thread(notes.seen, first["name"])
        assert given["mode"] == "full"
        as_of = datetime.fromisoformat(str(given["as_of"]))
        assert as_of == datetime.fromisoformat(first["scheduled_time"])
        # The next slot is tried, and waits for this run.
        found = await runs(api, lambda found: any(run["waits_for"] == first["name"] for run in found))
        assert [run["name"] for run in fired(found)] == [first["name"]]
        assert first["result"] == "running"
        notes.let_go(first["name"])
        found = await runs(api, lambda found: len(fired(found)) >= 2)
        ended, second, *_ = fired(found)
        assert (ended["name"], ended["result"]) == (first["name"], "succeeded")
        assert len(await asyncio.to_thread(notes.seen, second["name"])) == 1
        with redis_server.client(NOTES) as client:
            began = {key.decode().removeprefix("seen:") for key in client.keys("seen:*")}
        assert began & {run["name"] for run in found} == {first["name"], second["name"]}
    finally:
        await server.kill()
        notes.let_go_all()


async def test_what_was_imported_from_beat_runs_on_the_workers_that_beat_sent_to(
    redis_server: RedisServer, celery: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert isinstance(celery, Worker), "a worker is there"
    monkeypatch.setenv("BROKER_URL", redis_server.database(1))
    monkeypatch.setenv("RESULT_BACKEND", redis_server.database(2))
    imported = import_celery(
        "beat_schedule = {'tick': {'task': 'quick', 'schedule': 1, 'args': (16, 'x'), "
        "'kwargs': {'mode': 'full'}, 'options': {'expires': 600}}}",
        "celeryconfig.py",
        broker="env:BROKER_URL",
        backend="env:RESULT_BACKEND",
    )
    triggers = tmp_path / "triggers.yaml"
    triggers.write_text(imported.text)
    server = await Server.start(tmp_path / "horarium.db", triggers, News())
    try:
        api = await server.serves()
        found = await runs(api, lambda found: any(run["result"] == "succeeded" for run in found))
        done = next(run for run in found if run["result"] == "succeeded")
        (given,) = await asyncio.to_thread(Notes(redis_server).seen, done["name"])
        assert given == {"mode": "full", "args": [16, "x"]}
    finally:
        await server.kill()
