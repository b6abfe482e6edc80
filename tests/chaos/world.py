"""A PostgreSQL, a network, a receiver and a file of triggers, and nobody yet who serves them."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from tests.chaos.database import Cluster, Proxy
from tests.chaos.fleet import Faults, Fleet, People
from tests.chaos.history import SECOND, Fault
from tests.chaos.process import SOURCES, News, environment, now
from tests.chaos.receiver import Unreliable

# The lease is short, so that what a killed replica held comes back soon, and no shorter than the target's
# timeout; the window ahead is short, so that planners write all the time.
SETTINGS = {
    "lease": "2s",
    "execution_qps": "0",
    "min_scheduled_time": "5s",
    "max_runs": "10",
    "resync_interval": "2s",
    "log_level": "warning",
    "log_format": "json",
}

BEAT = 0.2
STALL = 1.0
"""A pause of so many seconds in this process says that the machine had no time for anybody."""


@dataclass
class World:
    """All that a test of replicas has."""

    database: str
    proxy: Proxy
    cluster: Cluster
    receiver: Unreliable
    fleet: Fleet
    people: People
    faults: Faults
    file: Path
    steps: dict[str, int]
    """Seconds between the slots of each trigger in the file."""

    async def rewrite_file(self, chance: random.Random, stop: Callable[[], bool]) -> None:
        """Edit some triggers of the file, again and again; all replicas read it."""
        steps = self.steps
        while not stop():
            await self.receiver.more(chance.randint(20, 100), 3.0)
            for key in chance.sample(self.people.of_file, 3):
                steps[key] = chance.choice(self.people.steps)
            write_file(self.file, self.receiver.url, steps)


@asynccontextmanager
async def open_world(
    folder: Path, chance: random.Random, seed: int, triggers: int, steps: list[int], sources: Path = SOURCES
) -> AsyncIterator[World]:
    news = News()
    async with (
        Cluster({"max_connections": "120"}) as cluster,
        Proxy(cluster.port) as proxy,
        Unreliable(news, seed) as receiver,
    ):
        await _create(cluster, sources)
        direct = cluster.url("horarium")
        of_file = [f"default/default/f{number}/default" for number in range(triggers * 7 // 10)]
        of_people = [f"default/default/p{number}/default" for number in range(triggers - len(of_file))]
        file = folder / "triggers.yaml"
        # Of many kinds, so that not all of them are due at once: how long a burst takes is another question.
        begins = {key: chance.choice(steps) for key in of_file}
        write_file(file, receiver.url, begins)
        url = cluster.url("horarium", port=proxy.address) + "?sslmode=disable"
        fleet = Fleet(url, file, news, SETTINGS)
        fleet.up.set()
        people = People(chance, fleet, receiver, steps, of_file, of_people)
        faults = Faults(chance, fleet, cluster, proxy, receiver, recovered=lambda: _is_current(direct))
        watch = asyncio.create_task(_watch_the_machine(faults.done))
        try:
            yield World(direct, proxy, cluster, receiver, fleet, people, faults, file, begins)
        finally:
            watch.cancel()
            proxy.deliver()
            await fleet.close()


def write_file(path: Path, url: str, steps: dict[str, int]) -> None:
    """The file that all replicas read, in one move."""
    lines = ["source: chaos", "targets:", f'  sink: {{http: {{url: "{url}", timeout: 1s}}}}', "deployments:"]
    lines += [f"  {key.split('/')[2]}: {{target: sink, every: {step}s}}" for key, step in steps.items()]
    written = path.with_suffix(".new")
    written.write_text("\n".join(lines) + "\n")
    written.replace(path)


async def _create(cluster: Cluster, sources: Path) -> None:
    """The database, and its schema as people make it."""
    connection = await asyncpg.connect(cluster.url())
    await connection.execute("create database horarium")
    await connection.close()
    await upgrade(cluster.url("horarium"), sources)


async def upgrade(database: str, sources: Path = SOURCES) -> None:
    """`horarium db upgrade` with the code of `sources`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "horarium", "db", "upgrade", "--db", database),
        env=environment(sources),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0


async def left(database: str, end: int) -> int:
    """How much is still to be planned, made up for or fired of what is owed up to `end`."""
    connection = await asyncpg.connect(database)
    try:
        found: int = await connection.fetchval(
            "with upto as (select to_timestamp($1::bigint / 1000000) as t)"
            " select (select count(*) from run, upto"
            "         where scheduled_time <= t and state in ('scheduled', 'held'))"
            " + (select count(*) from trigger, upto where status = 'active' and cursor < t)"
            " + (select count(*) from backfill where state = 'open')",
            end,
        )
        return found
    finally:
        await connection.close()


async def _is_current(database: str) -> bool:
    """Nothing has been due for more than three seconds, be it planned or not."""
    connection = await asyncpg.connect(database)
    try:
        found: int = await connection.fetchval(
            "with since as (select clock_timestamp() - interval '3 seconds' as t)"
            " select (select count(*) from run, since where state = 'scheduled' and attempt = 0"
            "         and due_at < t) + (select count(*) from trigger, since"
            "         where status = 'active' and cursor < t and plan_due_at < t)"
        )
        return found == 0
    finally:
        await connection.close()


async def _watch_the_machine(done: list[Fault]) -> None:
    """A beat that comes much too late is a fault of the machine's, which explains lateness as well."""
    never = asyncio.Event()
    while True:
        began = now()
        try:
            await asyncio.wait_for(never.wait(), BEAT)
        except TimeoutError:
            if now() - began > (BEAT + STALL) * SECOND:
                done.append(Fault("machine stalled", began, now()))
