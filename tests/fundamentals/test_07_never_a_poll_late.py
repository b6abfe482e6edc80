"""The executor sleeps until the next due run, and what comes due while it looks is not overslept."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from tests.fundamentals.house import House, every


async def test_what_comes_due_during_a_pass_is_fired_without_waiting_for_the_poll(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *"})
        await house.run_for(minutes=1)
        before = len(house.fired("tick"))
        async with asyncio.timeout(5):
            await house.executor.wait()  # uses up the hint of what was settled
        # A timer that wakes a millisecond early: this pass finds nothing ...
        house.clock.advance(timedelta(seconds=60, milliseconds=-1) - into_the_minute(house))
        assert await house.executor.run_once() == 0
        # ... and the run is due by the time it is over.
        house.clock.advance(timedelta(milliseconds=2))
        async with asyncio.timeout(5):
            await house.executor.wait()
        assert await house.executor.run_once() == 1
        await house.executor.settle_once()
        assert len(house.fired("tick")) == before + 1
        assert house.fired("tick") == every("10:01", "10:02")


def into_the_minute(house: House) -> timedelta:
    now = house.clock.now()
    return timedelta(seconds=now.second, microseconds=now.microsecond)
