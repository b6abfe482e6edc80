"""What PostgreSQL is asked for, by counting: statements, plans and pages, which no slow machine changes.

Figures in seconds are `bench/postgres.py`'s. The bounds are what is needed today and a little more.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from horarium.clock import SystemClock
from horarium.core.plan import Window
from horarium.engine.executor import Executor, ExecutorSettings
from horarium.engine.planner import Planner, PlannerSettings
from horarium.engine.pool import TargetPool
from horarium.engine.wake import Wake
from horarium.store import postgres
from horarium.store.postgres import PostgresStore
from horarium.testing import FakeTarget, SequenceIds, VirtualClock
from tests.store.conftest import PostgresServer, postgres_back_door
from tests.store.world import NOW, World, at, entry, fired, listing

MANY = 100


@pytest.fixture
async def url(postgres: PostgresServer) -> str:
    return await postgres.emptied()


@asynccontextmanager
async def counted(url: str, clock: VirtualClock | None) -> AsyncIterator[tuple[World, list[str]]]:
    """A store, and the names of the statements and commits that it asks for."""
    asked: list[str] = []

    async def hear(name: str) -> None:
        asked.append(name)

    store = PostgresStore(url, clock, between=hear)
    await store.open()
    try:
        yield World(store, postgres_back_door(url)), asked
    finally:
        await store.close()


async def test_an_idle_replica_asks_four_things_a_poll(url: str) -> None:
    clock, wake = SystemClock(), Wake()
    async with counted(url, None) as (world, asked):
        store = world.store
        await world.sync(listing(entry("a", "0 3 1 1 *")), await store.clock())
        at_once = timedelta()  # a poll that is over as it begins
        planner = Planner(store, clock, Window(), wake, PlannerSettings(poll=at_once))
        pool = TargetPool(store, clock, lambda spec: FakeTarget(), None)
        executor = Executor(store, clock, SequenceIds(), pool, wake, "me", ExecutorSettings(poll=at_once))
        for loop in (planner, executor, executor):  # once more after the hint of the planner
            while await loop.run_once():
                pass
            await loop.wait()
        asked.clear()
        assert await planner.run_once() == 0
        await planner.wait()
        assert asked == ["plan due"]
        assert await executor.run_once() == 0
        await executor.wait()
        assert asked == ["plan due", "clock", "quiet", "step 1"]


async def test_planning_a_hundred_triggers_asks_as_often_as_planning_one(url: str) -> None:
    found = []
    async with counted(url, VirtualClock(NOW)) as (world, asked):
        for first, count in ((0, 1), (1, MANY)):
            await world.sync(
                listing(*(entry(f"t{n}") for n in range(first, first + count)), source=f"{first}")
            )
            asked.clear()
            applied = await world.plan(NOW)
            assert len(applied.won) == count
            found.append([name for name in asked if name != "targets"])  # read once by a process
    assert found[1] == found[0]
    assert found[0] == ["lease", "load", "commit", "compare and set", "insert runs", "commit"]


async def test_claiming_and_settling_a_hundred_asks_as_often_as_one(url: str) -> None:
    found = []
    async with counted(url, VirtualClock(NOW)) as (world, asked):
        for first, count in ((0, 1), (1, MANY)):
            await world.sync(
                listing(*(entry(f"t{n}") for n in range(first, first + count)), source=f"{first}")
            )
            await world.plan(NOW)
        for now, wanted in ((at("10:05"), 1), (at("10:05:01"), MANY)):
            await world.look(now)
            asked.clear()
            claims = await world.claim(now, wanted, look=False)
            assert len(claims.runs) == wanted
            await world.settle(*(fired(run.run, now) for run in claims.runs), now=now)
            found.append([name for name in asked if name not in ("step 1", "quiet", "still due")])
    assert found[1] == found[0]
    assert found[0] == [
        *("allowances", "pick", "take", "debit", "commit"),
        *("lock runs", "settle", "attempts", "commit"),
    ]


# what was fired long ago

HISTORY = 50_000


async def test_history_is_no_part_of_a_claim(url: str) -> None:
    """What is due is found by the index of what is due: as many pages with a history as without one."""
    async with counted(url, VirtualClock(NOW)) as (world, _):
        await world.add("a")
        await world.plan(NOW)
        target = await world.target_id()
        connection = await asyncpg.connect(url)
        try:
            now, late = at("10:30"), at("10:29")
            asks: dict[str, tuple[Any, ...]] = {
                "pick": (postgres._PICK, [target], [100], now, late, False),
                "quiet": (postgres._QUIET, [target], now, NOW),
                "still due": (postgres._STILL_DUE, [target], now),
                "next due": (postgres._NEXT_DUE, now),
            }
            await connection.execute("vacuum analyze run")
            await connection.execute(
                "set enable_seqscan = off"
            )  # of a table of one page the server reads all
            without = {name: await _looked(connection, *ask) for name, ask in asks.items()}
            await connection.execute("reset enable_seqscan")
            await connection.execute(_PAST, HISTORY, NOW)
            await connection.execute("vacuum analyze run")
            for name, ask in asks.items():
                indexes, pages = await _looked(connection, *ask)
                assert indexes == {"run_due"} or indexes == {"run_due", "target_allowance_pkey"}, name
                assert pages <= without[name][1] + 8, name
        finally:
            await connection.close()


_PAST = """
insert into run (trigger_id, scheduled_time, origin, project, domain, name, revision, target_id, state,
                 due_at, first_due_at, attempt, fired_at, settled_at)
select r.trigger_id, at, r.origin, r.project, r.domain, 'past' || n, r.revision, r.target_id, 'fired', at, at,
       1, at, at
from (select * from run order by id limit 1) r, generate_series(1, $1::int) n,
  lateral (select $2::timestamptz - n * interval '1 minute' as at) a
"""


async def _looked(connection: asyncpg.Connection, statement: str, *given: Any) -> tuple[set[str], int]:
    """The indexes that a statement reads and the pages that it touches; what it locks is let go."""
    transaction = connection.transaction()
    await transaction.start()
    text = await connection.fetchval(f"explain (analyze, buffers, format json) {statement}", *given)
    await transaction.rollback()
    plan = json.loads(text)[0]["Plan"]
    nodes = list(_nodes(plan))
    read = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}
    assert "run" not in read, text
    return (
        {node["Index Name"] for node in nodes if "Index Name" in node},
        plan["Shared Hit Blocks"] + plan["Shared Read Blocks"],
    )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)
