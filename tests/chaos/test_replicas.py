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
import time
from pathlib import Path

import aiohttp

from tests.chaos.fleet import until_settled
from tests.chaos.history import SECOND, check_words, judge, lateness, read_records, unexplained
from tests.chaos.process import now
from tests.chaos.world import left, open_world

SECONDS = float(os.environ.get("HORARIUM_CHAOS_SECONDS", "10"))
SEED = int(os.environ.get("HORARIUM_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
LONG = SECONDS > 60
TRIGGERS = int(os.environ.get("HORARIUM_CHAOS_TRIGGERS", "2000" if LONG else "200"))

STEPS = list(range(20, 61)) if LONG else list(range(4, 11))
"""Seconds between slots: some 55 slots a second in the long form, 30 in the short one."""

LATE = 3 * SECOND
"""What is later than this must have a reason."""

RECOVERY = 8 * SECOND
"""For how long a fault may be felt: a lease (2 s) and the longest pause of a loop (5 s)."""


async def test_nothing_is_lost_and_nothing_is_doubled(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    async with open_world(tmp_path, chance, SEED, TRIGGERS, STEPS) as world:
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
        await until_settled(world.receiver, lambda: left(world.database, end))
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
        f"{times[-1]:.1f} s (most); caught up {max(world.faults.recoveries, default=0.0):.1f} s at most "
        "after the database was harmed"
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
    assert late == [], f"{late[:5]}, {world.faults.done}"
    assert verdict.fired > TRIGGERS
    assert world.receiver.repeats > 0
