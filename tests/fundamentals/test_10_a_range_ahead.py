"""A person may have the runs of a range ahead made now: runs like all others, and each slot has one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.fundamentals.house import House, at, every

pytestmark = pytest.mark.usefixtures("each_database")

FIVE = timedelta(minutes=5)
TEN, NOON, ONE = "2026-01-05T10:05:00Z", "2026-01-05T12:00:00Z", "2026-01-05T13:00:00Z"


async def test_each_slot_fires_once_whether_a_person_or_the_window_had_it_planned(tmp_path: Path) -> None:
    async with House(tmp_path, at("2026-01-05T10:00:00Z")) as house:
        await house.apply(tick={"cron": "*/5 * * * *"})
        made = await house.plan_range("tick", at(NOON), at(ONE))
        assert made.planned == 13
        await house.run_until(at(ONE))
        assert house.fired("tick") == every(TEN, ONE, FIVE)
        assert await house.skips("tick") == []


async def test_a_new_rule_takes_them_away_and_does_not_remember_the_range(tmp_path: Path) -> None:
    async with House(tmp_path, at("2026-01-05T10:00:00Z")) as house:
        await house.apply(tick={"cron": "0 6 * * *"})
        await house.plan_range("tick", at("2026-06-01T00:00:00Z"), at("2026-06-30T12:00:00Z"))
        await house.run_for(minutes=1)
        await house.apply(tick={"cron": "0 7 * * *"})
        await house.run_for(minutes=1)
        assert await house.runs("tick") == every("2026-01-06T07:00:00Z", "2026-01-11T07:00:00Z", 288 * FIVE)
        again = await house.plan_range("tick", at("2026-06-01T00:00:00Z"), at("2026-06-30T12:00:00Z"))
        assert again.planned == 30
