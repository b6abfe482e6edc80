"""Flow runs ahead of their time on a real Prefect server: they follow Horarium's plan."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from horarium.clock import SystemClock
from horarium.core.spec import TargetSpec
from horarium.engine.executor import Executor
from horarium.engine.health import TargetHealth
from horarium.engine.mirror import Mirror
from horarium.engine.pool import TargetPool
from horarium.engine.wake import Wake
from horarium.store import tables
from horarium.targets.prefect import PrefectTarget, check_config
from horarium.testing import SequenceIds
from tests.fundamentals.house import House, key_of
from tests.prefect.server import PrefectServer

START = datetime(2030, 1, 7, 10, 0, tzinfo=UTC)
"""A Monday ahead of the server's own clock: what is there stays `Scheduled` until a test says otherwise."""


class RealHouse(House):
    """A house whose target is a real Prefect, with flow runs twenty minutes ahead."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder, START)
        self.words = check_config({"url": url, "ahead": "20m", "marker": folder.name}, "")
        self.pools: list[TargetPool] = []

    def start_engine(self, store: Any = None) -> None:
        super().start_engine(store)
        pool = TargetPool(self.store, self.clock, self._target, None)
        self.executor = Executor(self.store, self.clock, SequenceIds(), pool, Wake(), "house", self.settings)
        self.mirror = Mirror(self.store, self.clock, pool, Wake())
        self.pools.append(pool)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    def _target(self, spec: TargetSpec) -> PrefectTarget:
        return PrefectTarget(replace(spec, config=self.words), _Now(self))

    async def __aexit__(self, *error: object) -> None:
        for pool in self.pools:
            await pool.drain(timedelta())
        await super().__aexit__(*error)

    async def rows_of(self, state: str) -> list[Any]:
        """Runs in that state whose time has come."""
        now = self.clock.now()
        return [
            row for row in await self.rows(tables.run) if row.state == state and row.scheduled_time <= now
        ]

    async def turn(self) -> None:
        """Like a house's, but the answers come over a socket."""
        while await self.planner.run_once():
            pass
        while await self.executor.run_once() or self.executor.in_flight:
            if self.executor.in_flight:
                await self.executor.settle_once()
        await self.mirror.run_once()
        while (said := self.mirror.told([TargetHealth("fake", 0, 0, None)])[0].ahead) is not None:
            assert "503" in said, said  # a Prefect on SQLite that is busy: the next pass mends it
            await self.mirror.run_once()


class _Now:
    """A house's clock for deadlines, and real waiting: the sockets are real."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._real = SystemClock()

    def now(self) -> datetime:
        return self._house.clock.now()

    def monotonic(self) -> float:
        return self._real.monotonic()

    async def wait(self, event: Any, seconds: float) -> bool:
        return await self._real.wait(event, seconds)


@pytest.fixture
async def house(tmp_path: Path, prefect: PrefectServer) -> AsyncIterator[RealHouse]:
    async with RealHouse(tmp_path, prefect.url) as house:
        yield house


def minutes(*numbers: int) -> list[datetime]:
    return [START + timedelta(minutes=number) for number in numbers]


def words(deployment: str, cron: str, **more: Any) -> dict[str, Any]:
    return {"cron": cron, "action": {"deployment": deployment}, **more}


async def test_flow_runs_follow_the_plan(house: RealHouse, prefect: PrefectServer) -> None:
    deployment = prefect.deployment("ahead-plan", "d")
    await house.apply(tick=words(deployment, "*/5 * * * *"), tock=words(deployment, "7 * * * *"))
    await house.turn()
    assert prefect.slots(deployment, "SCHEDULED") == minutes(5, 7, 10, 15, 20)
    await house.apply(tick=words(deployment, "*/10 * * * *"), tock=words(deployment, "7 * * * *"))
    await house.turn()
    assert prefect.slots(deployment, "SCHEDULED") == minutes(7, 10, 20), "its sibling keeps its own"
    await house.pause("tock")
    await house.turn()
    assert prefect.slots(deployment, "SCHEDULED") == minutes(10, 20)
    await house.run_until(START + timedelta(minutes=11))
    assert await house.runs("tick", "fired") == minutes(10)
    assert prefect.slots(deployment) == minutes(10, 20, 30), "what was there is what was fired"


async def test_parameters_of_the_rule_in_force_even_at_the_last_moment(
    house: RealHouse, prefect: PrefectServer
) -> None:
    deployment = prefect.deployment("ahead-parameters", "d")
    await house.apply(tick=words(deployment, "*/5 * * * *", parameters={"limit": 1}))
    await house.run_until(START + timedelta(minutes=4))
    await house.apply(tick=words(deployment, "*/5 * * * *", parameters={"limit": 2}))
    house.mirror.run_once = _nothing  # type: ignore[method-assign]  # it is slow today
    await house.run_until(START + timedelta(minutes=5))
    (first, *_) = prefect.flow_runs(deployment)
    assert first["parameters"] == {"limit": 2}
    assert len(prefect.flow_runs(deployment)) == 4


async def test_what_a_worker_has_taken_is_not_withdrawn(house: RealHouse, prefect: PrefectServer) -> None:
    deployment = prefect.deployment("ahead-taken", "d")
    await house.apply(tick=words(deployment, "*/5 * * * *"))
    await house.turn()
    (first, *_) = prefect.flow_runs(deployment)
    prefect.good("POST", f"/flow_runs/{first['id']}/set_state", {"state": {"type": "PENDING"}, "force": True})
    await house.pause("tick")
    await house.turn()
    assert prefect.slots(deployment, "SCHEDULED") == []
    assert prefect.slots(deployment, "PENDING") == minutes(5)


async def test_a_flow_run_cancelled_in_prefect_is_not_made_again(
    house: RealHouse, prefect: PrefectServer
) -> None:
    deployment = prefect.deployment("ahead-cancelled", "d")
    await house.apply(tick=words(deployment, "*/5 * * * *"))
    await house.turn()
    (first, *_) = prefect.flow_runs(deployment)
    prefect.good(
        "POST", f"/flow_runs/{first['id']}/set_state", {"state": {"type": "CANCELLED"}, "force": True}
    )
    house.start_engine()  # which lists what is there
    await house.run_until(START + timedelta(minutes=6))
    assert prefect.slots(deployment, "CANCELLED") == minutes(5)
    assert prefect.slots(deployment) == minutes(5, 10, 15, 20, 25)


async def test_somebody_elses_flow_runs_are_left_alone(house: RealHouse, prefect: PrefectServer) -> None:
    deployment = prefect.deployment("ahead-others", "d")
    prefect.good("POST", f"/deployments/{deployment}/create_flow_run", {"tags": [house.path.parent.name]})
    prefect.good("POST", f"/deployments/{deployment}/create_flow_run", {"idempotency_key": "theirs"})
    await house.apply(tick=words(deployment, "*/5 * * * *"))
    await house.turn()
    await house.apply()
    await house.turn()
    assert len(prefect.flow_runs(deployment)) == 2
    assert key_of("tick") not in house.specs


async def _nothing() -> int:
    return 0


async def test_two_targets_on_one_server_have_their_own(tmp_path: Path, prefect: PrefectServer) -> None:
    """Under one marker. What one of them has ahead is not the other's to withdraw."""
    deployment = prefect.deployment("ahead-two", "d")
    async with RealHouse(tmp_path, prefect.url) as house:
        await house.apply(tick=words(deployment, "*/5 * * * *"))
        await house.turn()
        pool = TargetPool(house.store, house.clock, house._target, None)
        house.pools.append(pool)
        await pool.refresh()
        there = {running.spec.name: await running.target.list_ahead() for running in pool}  # type: ignore[attr-defined]
    assert [item.scheduled_time for item in there.pop("fake")].count(START + timedelta(minutes=5)) == 1
    assert there
    assert not any(there.values())
