"""A backup is restored over a database that went on after it: frozen, looked at, released target by target.

Real servers and a real receiver; `horarium db backup` on SQLite, `pg_dump` and `pg_restore` on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.chaos.database import Cluster
from tests.chaos.process import SOURCES, News, Receiver, Server, environment

SETTINGS = {"lease": "2s", "execution_qps": "0", "min_scheduled_time": "4s", "max_runs": "20"}


@dataclass
class Place:
    """A database that can be backed up and put back."""

    url: str
    back_up: Callable[[], Awaitable[None]]
    restore: Callable[[], Awaitable[None]]


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[Place]:
    file = folder / "horarium.db"
    url = f"sqlite:///{file}"

    async def back_up() -> None:
        await horarium("db", "backup", str(folder / "copy.db"), "--db", url)

    async def restore() -> None:
        for ending in ("-wal", "-shm"):
            file.with_name(file.name + ending).unlink(missing_ok=True)
        shutil.copyfile(folder / "copy.db", file)

    yield Place(url, back_up, restore)


@asynccontextmanager
async def postgres(folder: Path) -> AsyncIterator[Place]:
    async with Cluster() as cluster:
        connection = await asyncpg.connect(cluster.url())
        await connection.execute("create database horarium")
        await connection.close()
        url = cluster.url("horarium")
        await horarium("db", "upgrade", "--db", url)
        yield Place(
            url,
            lambda: cluster.dump("horarium", "horarium.dump"),
            lambda: cluster.restore("horarium", "horarium.dump"),
        )


@pytest.mark.parametrize("database", [sqlite, postgres])
async def test_after_a_restore_nothing_is_fired_unasked_and_nothing_is_lost(
    tmp_path: Path, database: Callable[[Path], Any]
) -> None:
    done = tmp_path / "done"
    done.touch()
    news = News()
    async with database(tmp_path) as place, Receiver(news) as receiver:
        triggers = tmp_path / "triggers.yaml"
        triggers.write_text(
            f"""
targets: {{sink: {{http: {{url: "{receiver.url}"}}}}}}
deployments:
  tick: {{target: sink, every: 1s}}
  note: {{run: [sh, -c, 'echo "$HORARIUM_RUN_NAME" >> {done}'], every: 1s}}
"""
        )
        server = await Server.start(place.url, triggers, news, **SETTINGS)
        try:
            await server.serves()
            await receiver.until(lambda: len(receiver.arrivals) >= 3)
            await place.back_up()
            at_backup = len(receiver.arrivals)
            await receiver.until(lambda: len(receiver.arrivals) >= at_backup + 4)
            server.terminate()
            assert await server.exit() == 0, server.log
            fired, noted = list(receiver.arrivals), done.read_text().split()
            assert len(noted) == len(set(noted)) >= 4

            await place.restore()
            server = await Server.start(place.url, triggers, news, SOURCES, ["--frozen"], **SETTINGS)
            address = await server.serves()
            assert server.out[0].startswith("everything is frozen")
            assert "holding" in await server.says("tick owes")

            # It has planned past all of the backup's future, and fires none of it.
            since = len(fired) - at_backup
            owed = await owed_until(address, "tick", since + 3)
            assert owed["targets"][0]["frozen"], owed
            assert {item["name"]: item["repeated_names"] for item in owed["targets"]} == {
                "local": "forgotten",
                "sink": "unknown",
            }
            assert all(item["firing"] == 0 for item in owed["triggers"])
            assert receiver.arrivals == fired
            assert done.read_text().split() == noted

            # The local target has forgotten its names, so what it owes is given up: nothing is done twice.
            await horarium("release", "--target", "local", "--owed", "drop", "--server", address)
            await horarium("release", "--target", "sink", "--owed", "all", "--server", address)
            asked_at = len(receiver.arrivals)
            await receiver.until(lambda: len(receiver.arrivals) >= asked_at + since + 6)
            names = {item.slot: item.key for item in receiver.arrivals}
            assert {(item.slot, item.key) for item in receiver.arrivals} == set(names.items())
            assert len(receiver.arrivals) > len(names)  # the receiver was asked again for what it had had
            slots = sorted(names)
            assert names.keys() >= {item.slot for item in fired}
            assert len(slots) == seconds_between(slots[0], slots[-1]) + 1, slots
        finally:
            await server.kill()
        again = done.read_text().split()
        assert len(again) == len(set(again))


def seconds_between(first: str, last: str) -> int:
    return int((datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds())


async def owed_until(address: str, deployment: str, slots: int) -> dict[str, Any]:
    """What `horarium owed` says once a trigger owes so many slots; bounded by what is asked."""
    for _ in range(200):
        found: dict[str, Any] = json.loads(await horarium("owed", "-o", "json", "--server", address))
        if any(f"/{deployment}/" in item["trigger"] and item["slots"] >= slots for item in found["triggers"]):
            return found
    raise AssertionError(found)


async def horarium(*words: str) -> str:
    """A command in a process of its own, which must work; what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "horarium", *words),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, (words, out, err)
    return out.decode()
