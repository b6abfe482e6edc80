"""A trigger with an `overlap` policy has one run under way at a time, and none stands in the way for ever."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from horarium.core.run import FiredRun, Report, Result
from horarium.store import tables
from horarium.testing import ReportingFakeTarget
from tests.fundamentals.house import House, at, every, times

EVERY_MINUTE = {"cron": "* * * * *"}


def reporting(house: House) -> ReportingFakeTarget:
    house.target = target = ReportingFakeTarget(house.clock, max_in_flight=100)
    house.start_engine()
    return target


def name_of(target: ReportingFakeTarget, slot: str) -> str:
    (found,) = [name for name, made in target.created.items() if made.scheduled_time == at(slot)]
    return found


async def test_skip_lets_slots_go_by_and_says_so(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        target = reporting(house)
        await house.apply(tick={**EVERY_MINUTE, "overlap": "skip"})
        await house.run_until(at("10:03:30"))
        target.end(name_of(target, "10:01"))
        await house.run_until(at("10:04:30"))
        assert house.fired("tick") == times("10:01", "10:04")
        assert [(first, reason) for first, _, _, reason in await house.skips("tick")] == [
            (at("10:02"), "overlap"),
            (at("10:03"), "overlap"),
        ]


async def test_queue_keeps_one_waiting_and_fires_it_when_its_turn_has_come(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        target = reporting(house)
        await house.apply(tick={**EVERY_MINUTE, "overlap": "queue"})
        await house.run_until(at("10:03:30"))
        target.end(name_of(target, "10:01"))
        await house.run_until(at("10:03:59"))
        assert house.fired("tick") == times("10:01", "10:02")
        assert house.fired_at("tick")[-1] < at("10:03:59"), "it does not wait for its own next look"
        assert [first for first, *_ in await house.skips("tick")] == times("10:03")


async def test_replace_cancels_the_one_before(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        target = reporting(house)
        await house.apply(tick={**EVERY_MINUTE, "overlap": "replace"})
        await house.run_until(at("10:03:30"))
        assert house.fired("tick") == times("10:01", "10:02", "10:03")
        assert target.cancelled == [name_of(target, "10:01"), name_of(target, "10:02")]
        assert await house.skips("tick") == []


async def test_replace_waits_for_a_run_that_takes_its_time_to_end(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        target = reporting(house)
        await house.apply(tick={"cron": "*/10 * * * *", "overlap": "replace"})
        await house.run_until(at("10:10"))
        first = name_of(target, "10:10")
        target.stubborn.add(first)
        await house.run_until(at("10:21"))
        assert house.fired("tick") == times("10:10")
        target.stubborn.clear()
        await house.run_until(at("10:29"))
        assert house.fired("tick") == times("10:10", "10:20")
        assert target.ended[first].result is Result.CANCELLED


async def test_a_run_whose_end_is_never_reported_stands_in_the_way_no_longer_than_its_timeout(
    tmp_path: Path,
) -> None:
    async with House(tmp_path) as house:
        target = reporting(house)
        target.deaf = "nobody answers"
        await house.apply(tick={"cron": "*/10 * * * *", "overlap": "skip", "completion_timeout": 1801})
        await house.run_until(at("10:51"))
        assert house.fired("tick") == times("10:10", "10:50")
        assert [first for first, *_ in await house.skips("tick")] == times("10:20", "10:30", "10:40")


async def test_a_cancel_that_never_ends_is_given_up_with_its_lease(tmp_path: Path) -> None:
    async with House(tmp_path, lease=0.05) as house:
        target = reporting(house)
        target.timeout = timedelta(milliseconds=1)
        given_up = asyncio.Event()

        async def cancel(run: FiredRun) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()

        target.cancel = cancel  # type: ignore[method-assign]
        await house.apply(tick={"cron": "*/10 * * * *", "overlap": "replace"})
        await house.run_until(at("10:20"))
        await given_up.wait()
        await house.turn()
        (row,) = await house.store.fetch(select(tables.run).where(tables.run.c.scheduled_time == at("10:20")))
        assert (row.state, row.lease_owner) == ("scheduled", None)
        assert "was not cancelled: its target did not answer in time" in row.reason


@pytest.mark.parametrize("answer", ["never", "nonsense", "a time without a zone"])
async def test_a_target_that_answers_badly_blocks_nobody_for_ever(tmp_path: Path, answer: str) -> None:
    async with House(tmp_path) as house:
        house.patience = timedelta(milliseconds=1)
        target = reporting(house)

        async def status(runs: Sequence[FiredRun]) -> Any:
            if answer == "never":
                await asyncio.Event().wait()
            if answer == "nonsense":
                return [None]
            naive = house.clock.now().replace(tzinfo=None)
            return [Report(run.run_key, Result.SUCCEEDED, naive) for run in runs]

        target.status = status  # type: ignore[method-assign]
        await house.apply(tick={"cron": "*/10 * * * *", "overlap": "skip", "completion_timeout": 601})
        await house.run_until(at("10:31"))
        assert house.fired("tick") == times("10:10", "10:30")


async def test_a_target_that_can_not_be_asked_is_asked_again(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        target = reporting(house)
        await house.apply(tick={"cron": "0 * * * *", "overlap": "queue"})
        await house.run_until(at("11:00:30"))
        target.end(name_of(target, "11:00"), Result.ERRORED)
        target.deaf = "nobody answers"
        await house.run_until(at("12:30"))
        assert house.fired("tick") == times("11:00")
        told = {item.name: item.error for item in house.executor.targets()}
        assert re.fullmatch(
            r"not asked how its runs go, at 2026-01-05T12:\d\d:\d\dZ: .*nobody answers", told["fake"] or ""
        )
        target.deaf = None
        await house.run_until(at("12:32"))
        assert house.fired("tick") == times("11:00", "12:00")
        assert not any(item.error for item in house.executor.targets())


@pytest.mark.parametrize(
    ("overlap", "fired", "skipped"),
    [
        ("skip", times("10:01"), every("10:02", "10:30")),
        ("queue", times("10:01", "10:02"), every("10:03", "10:30")),
        ("replace", times("10:30"), every("10:01", "10:29")),
        ("allow", every("10:01", "10:30"), []),
    ],
)
async def test_what_downtime_left_is_judged_like_the_rest(
    tmp_path: Path, overlap: str, fired: list[object], skipped: list[object]
) -> None:
    async with House(tmp_path) as house:
        target = reporting(house)
        await house.apply(tick={**EVERY_MINUTE, "end": "2026-01-05T10:30:00Z", "overlap": overlap})
        await house.down_for(minutes=45)
        await house.run_for(seconds=20)
        for name in list(target.created):
            target.end(name)
        await house.run_for(minutes=5)
        assert house.fired("tick") == fired
        slots = [
            first + timedelta(minutes=number)
            for first, _, count, _ in await house.skips("tick")
            for number in range(count)
        ]
        assert slots == skipped
