"""What the simulation found, each as a story by itself, with the seeds that told it first."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import select

from horarium.core.plan import Window
from horarium.core.spec import DeploymentSpec, Listing, TargetSpec, TriggerEntry
from horarium.engine.syncer import Syncer
from horarium.engine.wake import Wake
from horarium.errors import HorariumError
from horarium.store import tables
from horarium.testing import ReportingFakeTarget
from tests.fundamentals.house import House, at, every, key_of, spec_of, times

HOUR = 3_600
SHORT = Window(min_runs=2, min_scheduled_time=timedelta(minutes=2))


class OtherClock:
    """A store whose database's clock is not the host's."""

    def __init__(self, store: Any, house: House, ahead: float) -> None:
        self._store, self._house, self._ahead = store, house, timedelta(seconds=ahead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def clock(self) -> Any:
        return self._house.clock.now() + self._ahead


async def test_a_host_whose_clock_is_ahead_still_calls_its_targets(tmp_path: Path) -> None:
    """Seed 10. By its own clock every lease was as good as over, and it put each run off."""
    async with House(tmp_path) as house:
        house.start_engine(OtherClock(house.store, house, -55))
        await house.apply(tick={"cron": "* * * * *"})
        house.clock.advance(60 + 55)
        await house.turn()
        assert house.fired("tick") == times("10:01")


async def test_a_host_whose_clock_is_ahead_sleeps_until_the_database_says_it_is_time(tmp_path: Path) -> None:
    """Seed 10. It asked for its next pass at once, again and again, until the database caught up."""
    async with House(tmp_path) as house:
        house.start_engine(OtherClock(house.store, house, -30))
        await house.apply(tick={"cron": "* * * * *"})
        house.clock.advance(80)
        await house.turn()  # by the database it is 10:00:50
        asleep_from = house.clock.monotonic()
        waits: list[float] = []
        wait = house.clock.wait

        async def noted(event: Any, seconds: float) -> bool:
            waits.append(seconds)
            return False

        house.clock.wait = noted  # type: ignore[method-assign]  # only to see how long it would sleep
        await house.executor.wait()
        house.clock.wait = wait  # type: ignore[method-assign]
        assert house.clock.monotonic() == asleep_from
        assert waits == [1.0], "the poll interval: the slot is ten seconds away"


async def test_a_pause_by_a_clock_behind_skips_no_slot_that_has_run(tmp_path: Path) -> None:
    """Seeds 10 and 70. The cursor went back over slots that had run, and the pause's skip covered them."""
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *"})
        await house.run_for(minutes=3)
        house.clock.skew(-90)
        await house.pause("tick")  # at 10:01:30, by that clock
        house.clock.skew(+90)
        await house.run_for(minutes=2)
        await house.resume("tick")
        await house.run_for(minutes=1)
        assert house.fired("tick") == times("10:01", "10:02", "10:03", "10:06")
        assert await house.skips("tick") == [(at("10:04"), at("10:05"), 2, "paused")]


async def test_a_skip_of_the_old_rule_hides_no_slot_of_the_new_one(tmp_path: Path) -> None:
    """Seed 31. A planner two hours ahead had skipped two hours of even minutes; every odd one that the next
    rule named among them was lost. A slot of both stays skipped: it is decided."""
    async with House(tmp_path, window=SHORT) as house:
        await house.apply(tick={"cron": "*/2 * * * *", "catch_up": "latest"})
        await house.run_for(minutes=1)
        house.clock.skew(+2 * HOUR)
        await house.planner.run_once()
        house.clock.skew(-2 * HOUR)
        await house.apply(tick={"cron": "7,13,19,20,25 * * * *"})
        await house.run_until(at("10:30"))
        assert house.fired("tick") == times("10:07", "10:13", "10:19", "10:25")


async def test_until_a_change_from_the_future_is_in_force_the_old_rule_owes_its_slots(tmp_path: Path) -> None:
    """Seed 262. An edit by a clock ten minutes ahead: the old rule's slots until then were lost."""
    async with House(tmp_path, window=SHORT) as house:
        await house.apply(tick={"cron": "* * * * *"})
        await house.run_for(minutes=2)
        house.clock.skew(+600)
        await house.apply(tick={"cron": "*/5 * * * *"})  # from 10:12 on
        house.clock.skew(-600)
        await house.run_until(at("10:20"))
        assert house.fired("tick") == [*every("10:01", "10:12"), *times("10:15", "10:20")]


async def test_only_a_slot_that_has_come_supersedes_the_one_before(tmp_path: Path) -> None:
    """Seed 262. A pause by a clock ahead held slots still to come; `latest` gave up all but the last."""
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *", "catch_up": "latest"})
        await house.run_for(minutes=2)
        house.clock.skew(+600)
        await house.pause("tick")  # from 10:12 on
        house.clock.skew(-600)
        await house.run_for(seconds=10)
        await house.resume("tick")
        await house.run_until(at("10:15"))
        assert house.fired("tick") == every("10:01", "10:15")


async def test_a_run_deleted_after_a_lost_answer_says_that_it_may_exist(tmp_path: Path) -> None:
    """Seed 193. The caller died, its lease ended, the trigger was deleted: it failed as if never called."""
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *"})
        await house.planner.run_once()
        house.clock.advance(60)
        claimed = await house.claim_for_another_process()
        house.record_as_made(claimed)
        house.clock.advance(61)
        await house.apply()
        rows = await house.rows(tables.run)
        assert [(row.state, row.outcome_unknown) for row in rows] == [("failed", True)]
        assert "may exist at the target" in rows[0].reason


class Repository:
    """A source in memory."""

    name = path = "repository"

    def __init__(self) -> None:
        self.reads = 0
        self.broken = False

    async def version(self) -> str:
        if self.broken:
            raise HorariumError("away")
        return "1"

    async def read(self) -> Listing:
        self.reads += 1
        key = key_of("tick")
        return Listing(
            self.name,
            (TargetSpec("fake", "fake", unlimited=True),),
            (DeploymentSpec(key.deployment_key, "fake"),),
            (TriggerEntry(key, spec_of({"cron": "* * * * *"})),),
        )


def syncer(house: House, source: Repository) -> Syncer:
    async def discover() -> list[Repository]:
        return [source]

    return Syncer(house.store, house.clock, discover, Wake())


async def test_two_replicas_do_not_read_an_unchanged_source_in_turns(tmp_path: Path) -> None:
    """Found by the time that a seed took. Each had raised the version that told the other to read again."""
    async with House(tmp_path) as house:
        source = Repository()
        replicas = [syncer(house, source), syncer(house, source)]
        for _ in range(10):
            for replica in replicas:
                await replica.run_once()
                house.clock.advance(30)
        assert source.reads <= 4
        assert await house.store.source_version(source.name) == 2


async def test_a_source_that_is_read_well_again_has_no_error_left(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        source = Repository()
        replica = syncer(house, source)
        await replica.run_once()
        source.broken = True
        await replica.run_once()
        source.broken = False
        await replica.run_once()
        rows = await house.store.fetch(select(tables.source.c.error))
        assert [row.error for row in rows] == [None]


async def test_a_host_whose_clock_is_ahead_gives_no_run_up_before_its_time(tmp_path: Path) -> None:
    """Seed 2, in memory. By its own clock the run was overdue, and the next one began beside it."""
    async with House(tmp_path) as house:
        house.target = ReportingFakeTarget(house.clock, max_in_flight=100)
        house.start_engine(OtherClock(house.store, house, -3_600))
        await house.apply(tick={"cron": "0 * * * *", "overlap": "queue", "completion_timeout": 1_800})
        house.clock.advance(2 * HOUR + 10)
        await house.turn()  # by the database it is 11:00:10
        house.clock.advance(120)
        await house.turn()
        results = [row.result for row in await house.store.fetch(select(tables.run.c.result))]
        assert results.count("running") == 1
        assert "unknown" not in results
