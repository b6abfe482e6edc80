"""Speed by counting: how many statements the database is asked for, which no slow machine changes.

Figures in seconds are `bench/`'s; a pass that begins to ask once a trigger, where it asked once a batch, is
seen here. The bounds are what is needed today and a little more.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

from horarium.store.sqlite import SqliteStore
from horarium.wiring import spare_collector
from tests.fundamentals.house import House, key_of, spec_of

MANY = 100


async def test_an_idle_pass_asks_next_to_nothing(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await _apply(house, MANY)
        await house.turn()
        assert await _statements(house, house.planner.run_once) <= 3
        assert await _statements(house, house.executor.run_once) <= 8


async def test_a_plan_costs_few_statements_however_many_triggers_and_runs_it_has(tmp_path: Path) -> None:
    """Rows go in by the thousand in one execution; a statement a row would wait for the interpreter's lock
    at each."""
    found = []
    for count in (1, MANY):
        folder = tmp_path / str(count)
        folder.mkdir()
        async with House(folder) as house:
            await _apply(house, count)
            found.append(await _statements(house, house.planner.run_once))
            assert len(await house.runs(_name(count - 1))) == 100
    assert found[0] <= 15
    assert found[1] <= found[0] + 30


async def test_claim_and_settle_of_a_hundred_cost_as_many_statements_as_of_one(tmp_path: Path) -> None:
    found = []
    for count in (1, MANY):
        folder = tmp_path / str(count)
        folder.mkdir()
        async with House(folder) as house:
            await _apply(house, count)
            await house.turn()
            house.clock.advance(timedelta(minutes=1))
            found.append(await _statements(house, house.turn))
            assert len(house.calls) == count
    assert found[1] <= found[0] + 2
    assert found[0] <= 25


async def test_a_sync_that_changes_nothing_reads_by_the_batch(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await _apply(house, MANY)
        assert await _statements(house, lambda: _apply(house, MANY)) <= 8


def test_the_collector_of_a_server_comes_rarely_and_leaves_what_was_there() -> None:
    """With the usual thresholds it comes some seventy times, and walks every module in some of them."""
    usual = gc.get_threshold()
    came: list[int] = []

    def hear(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            came.append(info["generation"])

    try:
        spare_collector()
        assert gc.get_freeze_count() > 10_000
        gc.callbacks.append(hear)
        kept = [[number] for number in range(50_000)]
        gc.callbacks.remove(hear)
        assert len(kept) == 50_000
        assert len(came) <= 6
        assert 2 not in came
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


# how


def _name(number: int) -> str:
    return f"job{number:03}"


async def _apply(house: House, count: int) -> None:
    """`count` deployments with one trigger each, every minute."""
    house.specs = {key_of(_name(number)): spec_of({"cron": "* * * * *"}) for number in range(count)}
    await house.sync()


async def _statements(house: House, step: Callable[[], Awaitable[object]]) -> int:
    return len(await _asked(house, step))


async def _asked(house: House, step: Callable[[], Awaitable[object]]) -> list[str]:
    """The statements that `step` made the database run, in order, without those that begin and end."""
    asked: list[str] = []
    assert isinstance(house.store, SqliteStore)
    raw = house.store._connection  # the one connection of an inline store
    raw.set_trace_callback(lambda text: asked.append(" ".join(text.split()).lower()))
    try:
        await step()
    finally:
        raw.set_trace_callback(None)
    return [text for text in asked if not re.match(r"begin|commit|rollback", text)]
