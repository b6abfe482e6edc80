"""A target may have runs before they are due. They follow the plan, and the plan never follows them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from horarium.core.freeze import Owed, Scope
from horarium.core.spec import Overlap
from horarium.engine.mirror import Fate, Mirror, fate
from horarium.engine.wake import Wake
from horarium.targets.base import (
    AheadFailed,
    AlreadyExists,
    Answer,
    Created,
    FireRequest,
    Mirrored,
    Refused,
    Unavailable,
)
from horarium.testing import FakeTarget
from tests.fundamentals.house import House, at, every, key_of, times


class Workers(FakeTarget):
    """A system whose workers begin what is there at its time, whoever made it and whenever."""

    def __init__(self, house: House, ahead: timedelta) -> None:
        super().__init__(max_in_flight=1_000)
        self.house = house
        self.ahead = ahead
        self.there: dict[str, tuple[Mirrored, datetime, FireRequest]] = {}
        self.begun: dict[str, FireRequest] = {}
        self.away: str | None = None
        self.refuses: set[str] = set()
        self.numbers = count()
        self.was = False
        self.loses = 0
        """How many answers to creations are lost."""

    async def create_run(self, request: FireRequest) -> Answer:
        if self.away is not None:
            return Unavailable(self.away)
        answer = await self.create_ahead(request, request.scheduled_time)
        return answer if isinstance(answer, Refused) else AlreadyExists() if self.was else Created()

    async def create_ahead(self, request: FireRequest, start_at: datetime) -> Mirrored | Refused:
        self._reach()
        if request.trigger.deployment in self.refuses:
            return Refused("parameters that nobody knows")
        self.was = request.run_key in self.there or request.run_key in self.begun
        known = self.there.get(request.run_key)
        if (known is not None and known[0].revision < request.revision) or not self.was:
            number = next(self.numbers)
            made = Mirrored(f"id-{number}", request.run_key, request.scheduled_time, request.revision)
            known = self.there[request.run_key] = (made, start_at, request)
        self.work()
        if self.loses:
            self.loses -= 1
            raise AheadFailed("no answer")
        if known is not None:
            return known[0]
        return Mirrored("begun", request.run_key, request.scheduled_time, request.revision)

    async def list_ahead(self) -> Sequence[Mirrored]:
        self._reach()
        self.work()
        return [made for made, _, _ in self.there.values()]

    async def withdraw(self, ids: Sequence[str]) -> None:
        self._reach()
        self.work()
        self.there = {key: item for key, item in self.there.items() if item[0].id not in ids}

    def work(self) -> None:
        """What workers do meanwhile."""
        for key, (_, start_at, request) in [*self.there.items()]:
            if start_at <= self.house.clock.now():
                del self.there[key]
                assert key not in self.begun, "a run began twice"
                self.begun[key] = request

    def _reach(self) -> None:
        if self.away is not None:
            raise AheadFailed(self.away)

    def upcoming(self, name: str) -> list[datetime]:
        """The slots that are there and have not begun."""
        self.work()
        slots = [
            item.scheduled_time for item, _, request in self.there.values() if request.trigger == key_of(name)
        ]
        return sorted(slots)

    def ran(self, name: str) -> list[datetime]:
        """The slots that workers have begun."""
        self.work()
        return sorted(item.scheduled_time for item in self.begun.values() if item.trigger == key_of(name))


class MirroredHouse(House):
    """A house whose target has runs ahead; the mirror passes once a turn."""

    def __init__(self, folder: Path, ahead: timedelta = timedelta(minutes=10), **words: Any) -> None:
        super().__init__(folder, **words)
        self.workers = Workers(self, ahead)
        self.target = self.workers

    def start_engine(self, store: Any = None) -> None:
        super().start_engine(store)
        assert self._pool is not None
        self.mirror = Mirror(self.store, self.clock, self._pool, Wake())

    async def __aenter__(self) -> MirroredHouse:
        await super().__aenter__()
        return self

    async def turn(self) -> None:
        await super().turn()
        await self.mirror.run_once()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[MirroredHouse]:
    async with MirroredHouse(tmp_path) as house:
        yield house


async def test_runs_are_there_before_they_are_due_and_run_once(house: MirroredHouse) -> None:
    await house.apply(tick={"cron": "* * * * *"})
    await house.turn()
    assert house.workers.upcoming("tick") == every("10:01", "10:10")
    await house.run_until(at("10:05:30"))
    assert house.workers.ran("tick") == every("10:01", "10:05")
    assert house.workers.upcoming("tick") == every("10:06", "10:15")
    assert await house.runs("tick", "fired") == every("10:01", "10:05")


async def test_an_edit_replaces_what_is_there(house: MirroredHouse) -> None:
    await house.apply(tick={"cron": "*/2 * * * *"})
    await house.run_until(at("10:03"))
    await house.apply(tick={"cron": "*/3 * * * *"})
    await house.turn()
    assert house.workers.upcoming("tick") == times("10:06", "10:09", "10:12")


async def test_new_parameters_reach_what_is_there_already(house: MirroredHouse) -> None:
    await house.apply(tick={"cron": "* * * * *", "parameters": {"table": "old"}})
    await house.run_until(at("10:02"))
    await house.apply(tick={"cron": "* * * * *", "parameters": {"table": "new"}})
    await house.run_until(at("10:04"))
    began = {item.scheduled_time: item.parameters["table"] for item in house.workers.begun.values()}
    assert [began[slot] for slot in every("10:01", "10:04")] == ["old", "old", "new", "new"]


async def test_a_pause_withdraws_and_a_resume_brings_back(house: MirroredHouse) -> None:
    await house.apply(tick={"cron": "* * * * *"}, tock={"cron": "* * * * *"})
    await house.run_until(at("10:02:30"))
    await house.pause("tick")
    await house.turn()
    assert house.workers.upcoming("tick") == []
    assert house.workers.upcoming("tock") == every("10:03", "10:12"), "a sibling keeps what it has"
    await house.run_until(at("10:05:30"))
    assert house.workers.ran("tick") == times("10:01", "10:02")
    await house.resume("tick")
    await house.turn()
    assert house.workers.upcoming("tick") == every("10:06", "10:15")


async def test_what_is_in_shadow_is_not_there_either(house: MirroredHouse) -> None:
    await house.apply(tick={"cron": "* * * * *"})
    await house.run_until(at("10:02:30"))
    await house.shadow("tick", True)
    await house.turn()
    assert house.workers.upcoming("tick") == []
    await house.run_until(at("10:04:30"))
    assert house.workers.upcoming("tick") == []
    await house.shadow("tick", False)
    await house.run_until(at("10:06:30"))
    assert house.workers.ran("tick") == times("10:01", "10:02", "10:05", "10:06")
    assert await house.runs("tick", "shadowed") == times("10:03", "10:04")


async def test_a_deleted_trigger_leaves_nothing_there(house: MirroredHouse) -> None:
    await house.apply(tick={"cron": "* * * * *"}, tock={"cron": "* * * * *"})
    await house.turn()
    await house.apply(tock={"cron": "* * * * *"})
    await house.turn()
    assert house.workers.upcoming("tick") == []
    assert house.workers.upcoming("tock") == every("10:01", "10:10")


@pytest.mark.parametrize(
    "scope", [Scope.target("fake"), Scope.deployment(key_of("tick").deployment_key)], ids=str
)
async def test_a_freeze_withdraws_and_its_release_brings_back(house: MirroredHouse, scope: Scope) -> None:
    await house.apply(tick={"cron": "* * * * *"})
    await house.run_until(at("10:01:30"))
    await house.store.freeze(scope, None, "test", house.clock.now())
    await house.turn()
    assert house.workers.upcoming("tick") == []
    await house.run_until(at("10:04:30"))
    assert house.workers.ran("tick") == times("10:01")
    await house.store.release(scope, Owed.ALL, "test", house.clock.now())
    await house.run_until(at("10:05:30"))
    assert house.workers.ran("tick") == every("10:01", "10:05")


async def test_jitter_moves_the_start_there_too(house: MirroredHouse) -> None:
    await house.apply(tick={"cron": "*/5 * * * *", "jitter": 120})
    await house.turn()
    for made, start_at, _ in house.workers.there.values():
        assert made.scheduled_time <= start_at < made.scheduled_time + timedelta(minutes=2)
    assert any(start_at != made.scheduled_time for made, start_at, _ in house.workers.there.values())


@pytest.mark.parametrize(
    "words",
    [{"catch_up": "none"}, {"catch_up": "latest"}, {"max_age": 600}, {"overlap": Overlap.SKIP}],
)
async def test_what_may_expire_is_not_there_ahead(house: MirroredHouse, words: dict[str, Any]) -> None:
    """A slot that a policy gives up after a downtime must not run meanwhile."""
    await house.apply(tick={"cron": "* * * * *", **words})
    await house.turn()
    assert house.workers.upcoming("tick") == []
    await house.run_until(at("10:02"))
    assert house.workers.ran("tick") == times("10:01", "10:02"), "at its time it is made as ever"


async def test_a_most_of_one_trigger_leaves_its_siblings_alone(house: MirroredHouse) -> None:
    await house.apply(
        tick={"cron": "* * * * *", "action": {"ahead_runs": 2}}, tock={"cron": "* * * * *", "action": {}}
    )
    await house.run_until(at("10:01"))
    assert house.workers.upcoming("tick") == times("10:02", "10:03")
    assert len(house.workers.upcoming("tock")) == 10
    await house.run_until(at("10:04"))
    assert house.workers.ran("tick") == every("10:01", "10:04")


async def test_downtime_of_ours_is_bridged_by_what_is_there(house: MirroredHouse) -> None:
    await house.apply(tick={"cron": "* * * * *"})
    await house.run_until(at("10:01:30"))
    await house.down_for(minutes=6)
    assert house.workers.ran("tick") == every("10:01", "10:07"), "workers went on"
    await house.run_until(at("10:09:30"))
    assert house.workers.ran("tick") == every("10:01", "10:09")
    assert await house.runs("tick", "fired") == every("10:01", "10:09"), "and each slot is one run"


async def test_downtime_of_theirs_loses_nothing_and_is_said(house: MirroredHouse) -> None:
    await house.apply(tick={"cron": "* * * * *"})
    await house.run_until(at("10:01:30"))
    house.workers.away = "connection refused"
    await house.pause("tick")
    await house.run_until(at("10:03:30"))
    (told,) = house.mirror.told([Told("fake")])
    assert told.ahead == "connection refused"
    house.workers.away = None
    await house.resume("tick")
    await house.run_until(at("10:04:30"))
    (told,) = house.mirror.told([Told("fake")])
    assert told.ahead is None
    assert await house.runs("tick", "fired") == times("10:01", "10:04")


async def test_what_is_refused_ahead_is_said_and_fails_at_its_time(house: MirroredHouse) -> None:
    house.workers.refuses = {"tick"}
    await house.apply(tick={"cron": "*/5 * * * *"}, tock={"cron": "*/5 * * * *"})
    await house.turn()
    (told,) = house.mirror.told([Told("fake")])
    assert told.ahead == "2 upcoming runs are refused over there, one because: parameters that nobody knows"
    assert len(house.workers.upcoming("tock")) == 2
    await house.run_until(at("10:05:30"))
    assert await house.runs("tick", "failed") == times("10:05")


async def test_a_new_process_takes_over_what_is_there(house: MirroredHouse) -> None:
    await house.apply(tick={"cron": "* * * * *"})
    await house.turn()
    house.start_engine()
    await house.apply(tick={"cron": "*/5 * * * *"})
    await house.turn()
    assert house.workers.upcoming("tick") == times("10:05", "10:10")


async def test_two_replicas_and_one_of_them_lagging(house: MirroredHouse) -> None:
    await house.apply(tick={"cron": "* * * * *", "parameters": {"n": 1}})
    await house.turn()
    assert house._pool is not None
    lagging = Mirror(house.store, house.clock, house._pool, Wake())
    await lagging.run_once()
    for n in range(2, 5):
        await house.apply(tick={"cron": f"*/{n} * * * *", "parameters": {"n": n}})
        await house.turn()
        if n % 2:
            await lagging.run_once()
    await lagging.run_once()
    assert house.workers.upcoming("tick") == times("10:04", "10:08")
    assert {request.parameters["n"] for _, _, request in house.workers.there.values()} == {4}


async def test_what_is_to_wait_for_another_run_from_now_on_is_withdrawn(house: MirroredHouse) -> None:
    """Seed 29 of the simulation. Its slots began there beside the run that they had to wait for."""
    await house.apply(tick={"cron": "*/5 * * * *"})
    await house.turn()
    await house.apply(tick={"cron": "*/5 * * * *", "overlap": Overlap.SKIP})
    await house.turn()
    assert house.workers.upcoming("tick") == []


async def test_what_may_be_there_after_a_lost_answer_is_withdrawn_with_its_slot(
    house: MirroredHouse,
) -> None:
    """Up to four calls of a pass may fail. What they had made was nobody's until all was listed anew."""
    house.workers.loses = 2
    await house.apply(tick={"cron": "*/5 * * * *"})
    await house.turn()
    assert house.workers.upcoming("tick") == times("10:05", "10:10")
    await house.pause("tick")
    await house.turn()
    assert house.workers.upcoming("tick") == []


async def test_a_target_that_leaves_takes_its_runs_with_it(house: MirroredHouse) -> None:
    await house.apply(tick={"cron": "* * * * *"})
    await house.run_until(at("10:02:30"))
    house.workers.ahead = timedelta()
    await house.turn()
    assert house.workers.upcoming("tick") == []
    await house.run_until(at("10:04"))
    assert house.workers.ran("tick") == every("10:01", "10:04")


class Told:
    """A target's health, as the executor tells it."""

    def __new__(cls, name: str) -> Any:
        from horarium.engine.health import TargetHealth

        return TargetHealth(name, 0, 0, None)


class Row:
    """A run's row, as far as its fate depends on it."""

    def __init__(self, state: str, attempt: int = 0, expires_at: datetime | None = None) -> None:
        self.state, self.attempt, self.expires_at = state, attempt, expires_at


@pytest.mark.parametrize(
    ("row", "slot", "withheld", "becomes"),
    [
        (Row("fired"), "10:00", False, Fate.FORGET),
        (Row("fired"), "10:20", True, Fate.FORGET),
        (Row("failed"), "10:00", False, Fate.FORGET),
        (Row("held"), "10:00", False, Fate.WITHDRAW),
        (Row("cancelled"), "10:20", False, Fate.WITHDRAW),
        (Row("scheduled"), "10:20", False, Fate.KEEP),
        (Row("scheduled"), "10:20", True, Fate.WITHDRAW),
        (Row("scheduled", expires_at=at("10:30")), "10:20", False, Fate.WITHDRAW),
        (Row("scheduled", attempt=1), "10:00", True, Fate.KEEP),
        (None, "10:20", False, Fate.WITHDRAW),
        (None, "09:30", False, Fate.WITHDRAW),
        (None, "08:00", False, Fate.FORGET),
    ],
)
def test_the_fate_of_what_is_there_and_not_upcoming(
    row: Row | None, slot: str, withheld: bool, becomes: Fate
) -> None:
    assert fate(row, at(slot), at("10:10"), withheld=withheld) is becomes


@pytest.mark.parametrize("row", [Row("scheduled"), Row("scheduled", attempt=1), Row("fired")])
def test_a_slot_that_moves_to_another_target_is_withdrawn_from_the_one_before(row: Row) -> None:
    """Seeds 25 and 45 of the simulation. Its run stayed there, and the slot began at both."""
    assert fate(row, at("10:20"), at("10:10"), withheld=False, moved=True) is Fate.WITHDRAW
