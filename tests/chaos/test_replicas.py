"""Replicas on one PostgreSQL under every fault that we can make: nothing is lost, nothing is doubled.

Real processes, a real server behind a network that fails, a receiver that fails, hangs and lies.
`HORARIUM_CHAOS_SECONDS` is for how long harm is done (10; `make chaos` asks for 300, with ten times the
triggers), `HORARIUM_CHAOS_SEED` repeats its choices as far as chance outside of this test lets it. What is
expected comes from `history.py`, which knows nothing of Horarium's code.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import asyncpg

from tests.chaos.database import Cluster, Proxy
from tests.chaos.fleet import Faults, Fleet, People, until_settled
from tests.chaos.history import SECOND, Fault, check_words, judge, lateness, read_records, unexplained
from tests.chaos.process import SOURCES, News, environment, now
from tests.chaos.receiver import Unreliable

SECONDS = float(os.environ.get("HORARIUM_CHAOS_SECONDS", "10"))
SEED = int(os.environ.get("HORARIUM_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
LONG = SECONDS > 60
TRIGGERS = int(os.environ.get("HORARIUM_CHAOS_TRIGGERS", "2000" if LONG else "200"))

STEPS = [20, 30, 40, 60] if LONG else [4, 5, 6, 10]
"""Seconds between slots: some 60 slots a second in the long form, 35 in the short one."""

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

LATE = 3 * SECOND
"""What is later than this must have a reason."""

RECOVERY = 8 * SECOND
"""For how long a fault may be felt: a lease (2 s) and the longest pause of a loop (5 s)."""

BEAT = 0.2
STALL = 1.0
"""A pause of so many seconds in this process says that the machine had no time for anybody."""


async def test_nothing_is_lost_and_nothing_is_doubled(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    async with _world(tmp_path, chance) as world:
        async with world.faults.fault("start"):
            await asyncio.gather(*(world.fleet.add() for _ in range(3)))
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await world.people.create(session)
            until = time.monotonic() + SECONDS
            world.faults.stop = world.people.stop = lambda: time.monotonic() > until
            async with asyncio.TaskGroup() as group:
                group.create_task(world.faults.of_the_database())
                group.create_task(world.faults.of_replicas())
                group.create_task(world.rewrite_file(chance, world.people.stop))
                for _ in range(3):
                    group.create_task(world.people.meddle(session))
            while len(world.fleet.serving()) < 2:
                await world.fleet.add()
            world.receiver.kind = True
            await world.people.resume_all(session)
        if LONG:  # and a while without harm, in which nothing may be late
            calm = now() + 30 * SECOND
            await world.receiver.news.until(lambda: now() > calm)
        end = now()
        await until_settled(world.receiver, lambda: _left(world.database, end))
        serving = world.fleet.serving()
        await asyncio.gather(*(world.fleet.remove(server, database_is_up=True) for server in serving))
        records = await read_records(world.database)
    effects = world.receiver.effects
    verdict = judge(records, effects, end)
    late = unexplained(records, effects, world.faults.done, LATE, RECOVERY)
    times = lateness(records, effects)
    print(
        f"\nseed {SEED}: {len(records.rules)} triggers, {len(world.people.words)} words, "
        f"{world.faults.counts()}; ends {dict(world.fleet.ends)}; first call after "
        f"{times[len(times) // 2]:.2f} s (median), {times[len(times) * 99 // 100]:.1f} s (99%), "
        f"{times[-1]:.1f} s (most)"
    )
    print(
        f"{verdict.slots} slots ({verdict.fired} fired, {verdict.skipped} skipped, {verdict.ended} deleted "
        f"while they waited), {world.receiver.calls} calls, {world.receiver.repeats} repeats, "
        f"{verdict.lost} lost, {verdict.doubled} doubled, {len(late)} late without a reason"
    )
    assert verdict.wrong == []
    assert (verdict.lost, verdict.doubled) == (0, 0)
    wrong = check_words(records.rules, world.people.words, frozenset(world.people.of_file))
    assert wrong == []
    assert world.fleet.lines == [], "\n".join(world.fleet.lines)
    assert late == []
    assert verdict.fired > TRIGGERS
    assert world.receiver.repeats > 0


# how


@dataclass
class _World:
    """All that a test of replicas has."""

    database: str
    proxy: Proxy
    cluster: Cluster
    receiver: Unreliable
    fleet: Fleet
    people: People
    faults: Faults
    file: Path

    async def rewrite_file(self, chance: random.Random, stop: Callable[[], bool]) -> None:
        """Edit some triggers of the file, again and again; all replicas read it."""
        steps = dict.fromkeys(self.people.of_file, STEPS[0])
        write_file(self.file, self.receiver.url, steps)
        while not stop():
            await self.receiver.more(chance.randint(20, 100), 3.0)
            for key in chance.sample(self.people.of_file, 3):
                steps[key] = chance.choice(STEPS)
            write_file(self.file, self.receiver.url, steps)


@asynccontextmanager
async def _world(folder: Path, chance: random.Random) -> AsyncIterator[_World]:
    news = News()
    async with (
        Cluster({"max_connections": "120"}) as cluster,
        Proxy(cluster.port) as proxy,
        Unreliable(news, SEED) as receiver,
    ):
        await _create(cluster)
        direct = cluster.url("horarium")
        of_file = [f"default/default/f{number}/default" for number in range(TRIGGERS * 7 // 10)]
        of_people = [f"default/default/p{number}/default" for number in range(TRIGGERS - len(of_file))]
        file = folder / "triggers.yaml"
        write_file(file, receiver.url, dict.fromkeys(of_file, STEPS[0]))
        url = cluster.url("horarium", port=proxy.address) + "?sslmode=disable"
        fleet = Fleet(url, file, news, SETTINGS)
        fleet.up.set()
        people = People(chance, fleet, receiver, STEPS, of_file, of_people)
        faults = Faults(chance, fleet, cluster, proxy, receiver)
        watch = asyncio.create_task(_watch_the_machine(faults.done))
        try:
            yield _World(direct, proxy, cluster, receiver, fleet, people, faults, file)
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


async def _create(cluster: Cluster) -> None:
    """The database, and its schema as people make it."""
    connection = await asyncpg.connect(cluster.url())
    await connection.execute("create database horarium")
    await connection.close()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "horarium", "db", "upgrade", "--db", cluster.url("horarium")),
        env=environment(SOURCES),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0


async def _left(database: str, end: int) -> int:
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
