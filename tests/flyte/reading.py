"""A Flyte backend's triggers for tests, and the source that reads them into a house."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from flyteidl2.task import common_pb2
from flyteidl2.task.common_pb2 import Cron, Schedule, TriggerAutomationSpec
from flyteidl2.trigger.trigger_definition_pb2 import TriggerDetails, TriggerSpec

from horarium.clock import SystemClock
from horarium.core.keys import TriggerKey
from horarium.engine.syncer import Syncer
from horarium.engine.wake import Wake
from horarium.flyte import CONNECTION_KEYS
from horarium.flyte.messages import trigger_name
from horarium.sources.flyte import CONFIG_KEYS, FlyteSource, check_source
from horarium.store import tables
from tests.flyte.backend import Key
from tests.fundamentals.house import House, key_of

KEY = TriggerKey("flytesnacks", "development", "env.my_task", "daily")


TICK = key_of("tick")


def details(key: TriggerKey = KEY, *, active: bool = True, **schedule: Any) -> TriggerDetails:
    found = TriggerDetails(
        spec=TriggerSpec(active=active, task_version="v1"),
        automation_spec=TriggerAutomationSpec(
            type=common_pb2.TYPE_SCHEDULE,
            schedule=Schedule(**(schedule or {"cron": Cron(expression="0 10 * * *")})),
        ),
    )
    found.id.name.CopyFrom(trigger_name(key))
    return found


def named(name: str, task: str = "env.my_task") -> TriggerKey:
    return TriggerKey("flytesnacks", "development", task, name)


def parts(key: TriggerKey) -> Key:
    return key.project, key.domain, key.deployment, key.name


def every_minute(key: TriggerKey = TICK, expression: str = "* * * * *") -> TriggerDetails:
    return details(key, cron=Cron(expression=expression))


async def never() -> datetime | None:
    return None


def source_at(
    url: str, listed_at: Callable[[], Awaitable[datetime | None]] = never, **config: Any
) -> FlyteSource:
    allowed = (*CONNECTION_KEYS, *CONFIG_KEYS)
    return FlyteSource(check_source({"endpoint": url, **config}, "", allowed), SystemClock(), listed_at)


class Reader:
    """A syncer of the backend beside a house's engine: what `serve` runs."""

    def __init__(self, house: House, url: str) -> None:
        self.house = house
        self.source = source_at(url, lambda: house.store.source_listed_at("flyte"))

        async def discover() -> Sequence[FlyteSource]:
            return [self.source]

        self.syncer = Syncer(house.store, house.clock, discover, Wake())

    async def sync(self) -> None:
        await self.syncer.run_once()

    async def error(self) -> str:
        return next((row.error or "" for row in await self.house.rows(tables.source)), "")
