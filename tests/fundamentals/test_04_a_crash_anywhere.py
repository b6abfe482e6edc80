"""The process may die between any two steps: before or after every transaction, before or after every call of
the target. Nothing is lost, nothing is doubled; a new process goes on from what the database holds.

Every test here runs its history once for each boundary at which it can die, until one run dies nowhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from horarium.store import tables
from tests.fundamentals.house import Crash, Fragile, House, at, every, times

History = Callable[[House], Awaitable[None]]


async def ordinary(house: House) -> None:
    await house.run_until(at("10:02:30"))


async def long_downtime(house: House) -> None:
    house.clock.advance(timedelta(minutes=90))
    await house.run_until(at("11:31"))


async def flaky_target(house: House) -> None:
    house.target.down = "no"
    await house.run_until(at("10:01:10"))
    house.target.down = None
    await house.run_until(at("10:02:10"))


@pytest.mark.parametrize(
    ("history", "end"),
    [(ordinary, "10:02:30"), (long_downtime, "11:31"), (flaky_target, "10:02:10")],
    ids=["ordinary", "long downtime", "flaky target"],
)
async def test_a_crash_between_any_two_steps(tmp_path: Path, history: History, end: str) -> None:
    boundary, survived = 0, False
    while not survived:
        folder = tmp_path / str(boundary)
        folder.mkdir()
        async with House(folder) as house:
            await house.apply(tick={"cron": "* * * * *"})
            fragile = Fragile(house.store, boundary)
            house.start_engine(fragile)
            try:
                await history(house)
                survived = fragile.died_at is None
            except Crash:
                pass
            house.start_engine()
            house.target.down = None
            # A run that was claimed when the process died waits for the end of its lease.
            await house.run_until(max(house.clock.now(), at(end)) + timedelta(minutes=2))
            expected = [slot for slot in every("10:01", "12:00") if slot <= house.clock.now()]
            assert house.fired("tick") == expected, f"died {fragile.died_at}"
            await nothing_is_left(house, expected)
        boundary += 1
    assert boundary > 15, "the history went through fewer boundaries than it has"


@pytest.mark.parametrize("happened", [False, True], ids=["before its effect", "after its effect"])
async def test_a_crash_inside_a_call_of_the_target(tmp_path: Path, happened: bool) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *"})
        await house.run_until(at("10:00:59"))
        house.clock.advance(1)
        claimed = await house.claim_for_another_process()
        if happened:
            house.record_as_made(claimed)
        # The process is gone with its answer. Its lease ends after a minute.
        house.start_engine()
        await house.run_until(at("10:03"))
        assert house.fired("tick") == times("10:01", "10:02", "10:03")
        await nothing_is_left(house, times("10:01", "10:02", "10:03"))


async def nothing_is_left(house: House, fired: list[datetime]) -> None:
    """The record says what happened: every due run is `fired`, once."""
    rows = [row for row in await house.rows(tables.run) if row.scheduled_time <= house.clock.now()]
    assert sorted(row.scheduled_time for row in rows) == fired
    assert {row.state for row in rows} == {"fired"}
