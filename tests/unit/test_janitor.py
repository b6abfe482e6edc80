"""The janitor's pace: by age at once, by count a few triggers at a time, and then a long sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from horarium.engine.janitor import AGAIN, BATCH, PAUSE, ROUND, STEP, TRIGGERS, Janitor, Keep
from horarium.engine.wake import Wake
from horarium.store.base import Pruned, PrunedBeyond, Store
from horarium.testing import VirtualClock

NOW = datetime(2026, 1, 5, 10, tzinfo=UTC)


@dataclass
class Shelf:
    """A store of which only retention is asked: it answers what it was told, and then that all is well."""

    clock_of: VirtualClock
    old: list[Pruned] = field(default_factory=list)
    beyond: list[PrunedBeyond] = field(default_factory=list)
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    async def clock(self) -> datetime:
        return self.clock_of.now()

    async def prune(self, *given: Any) -> Pruned:
        self.asked.append(("age", *given))
        return self.old.pop(0) if self.old else Pruned()

    async def prune_beyond(self, *given: Any) -> PrunedBeyond:
        self.asked.append(("count", *given))
        return self.beyond.pop(0) if self.beyond else PrunedBeyond(0, 0, None)


class Pace(VirtualClock):
    """Notes how long somebody sleeps, and lets it be over."""

    def __init__(self) -> None:
        super().__init__(NOW)
        self.slept: list[timedelta] = []

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        self.slept.append(timedelta(seconds=seconds))
        self.advance(seconds)
        return event.is_set()


async def turns(shelf: Shelf, pace: Pace, keep: Keep, count: int) -> Sequence[timedelta]:
    janitor = Janitor(cast(Store, shelf), pace, Wake(), keep)
    for _ in range(count):
        await janitor.run_once()
        await janitor.wait()
    return pace.slept


async def test_what_is_too_old_goes_batch_after_batch() -> None:
    pace = Pace()
    shelf = Shelf(pace, old=[Pruned(runs=BATCH), Pruned(audit=BATCH), Pruned(runs=3)])
    keep = Keep(timedelta(days=1), timedelta(days=2), timedelta(days=3))
    assert await turns(shelf, pace, keep, 3) == [AGAIN, AGAIN, PAUSE]
    day = timedelta(days=1)
    assert shelf.asked[0] == ("age", NOW - day, NOW - 2 * day, BATCH, NOW - 3 * day)
    assert [asked[0] for asked in shelf.asked] == ["age", "age", "age"]


async def test_counts_are_looked_at_step_by_step_and_again_after_hours() -> None:
    pace = Pace()
    shelf = Shelf(
        pace,
        beyond=[PrunedBeyond(0, 0, 100), PrunedBeyond(BATCH, 0, 149), PrunedBeyond(7, 0, 249)],
    )
    keep = Keep(runs_per_trigger=50, skips_per_trigger=5)
    assert await turns(shelf, pace, keep, 5) == [STEP, AGAIN, AGAIN, PAUSE, PAUSE]
    counted = [asked for asked in shelf.asked if asked[0] == "count"]
    assert counted == [("count", 50, 5, after, TRIGGERS, BATCH) for after in (0, 100, 149, 249)]
    shelf.asked.clear()
    pace.advance(ROUND)
    await turns(shelf, pace, keep, 1)
    assert ("count", 50, 5, 0, TRIGGERS, BATCH) in shelf.asked


async def test_without_a_limit_nothing_is_counted() -> None:
    pace = Pace()
    shelf = Shelf(pace)
    assert await turns(shelf, pace, Keep(), 3) == [PAUSE] * 3
    assert {asked[0] for asked in shelf.asked} == {"age"}
