"""Liveness: a loop that does not turn is seen from outside, and `status` says which."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Never

import pytest

from horarium.api.server import create_app
from horarium.app.queries import Queries
from horarium.app.status import Database
from horarium.core.spec import TargetSpec
from horarium.engine.executor import Executor, ExecutorSettings
from horarium.engine.health import Health
from horarium.engine.janitor import Janitor, Keep
from horarium.engine.pool import TargetPool
from horarium.engine.service import Parts, Service
from horarium.engine.wake import Wake
from horarium.targets.base import Target
from horarium.targets.secrets import SecretMissing
from horarium.telemetry import Metrics
from horarium.testing import FakeTarget, SequenceIds
from tests.surfaces.api_world import LATE_AFTER, World, open_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


def no_target(spec: TargetSpec) -> Never:
    """There is none in these tests."""
    raise AssertionError(spec)


def with_health(world: World) -> tuple[World, Health]:
    """The same instance, as a process with loops shows it."""
    health = Health(world.clock)
    queries = Queries(
        world.store,
        world.clock,
        window=world.window,
        late_after=LATE_AFTER,
        health=health,
        database=Database("sqlite", "horarium.db", "0001"),
    )
    app = create_app(world.commands, queries, health=health)
    return replace(world, queries=queries, app=app), health


async def test_a_loop_that_does_not_turn_is_a_503(world: World) -> None:
    served, health = with_health(world)
    health.started("plan")
    health.started("fire")
    health.turned("plan")
    alive = await served.call("GET", "/livez")
    assert (alive.status, [loop["alive"] for loop in alive.json["loops"]]) == (200, [True, True])
    served.clock.advance(timedelta(seconds=health.limit + 1))
    health.turned("fire")
    stuck = await served.call("GET", "/livez")
    assert (stuck.status, stuck.json["ok"]) == (503, False)
    assert {loop["name"]: loop["alive"] for loop in stuck.json["loops"]} == {"plan": False, "fire": True}


async def test_a_loop_that_sleeps_is_alive(world: World, tmp_path: Path) -> None:
    """The janitor sleeps ten minutes between its turns; a probe must not end the server for that."""
    served, health = with_health(world)
    janitor = Janitor(world.store, world.clock, Wake(), Keep())
    parts = Parts(Wake(), health, Metrics(), TargetPool(world.store, world.clock, no_target, None))
    parts.janitor = janitor
    service = Service(parts, world.clock)
    await service.start()
    try:
        await served.clock.run_for(janitor.rest - timedelta(seconds=1))
        assert (await served.call("GET", "/livez")).status == 200
    finally:
        await service.stop(timedelta(seconds=1))
    served.clock.advance(janitor.rest + timedelta(seconds=health.limit + 1))
    assert (await served.call("GET", "/livez")).status == 503


async def test_a_loop_that_fails_is_alive_and_says_why(world: World) -> None:
    served, health = with_health(world)
    health.started("sync")
    health.failed("sync", "StoreUnavailable: disk I/O error")
    assert (await served.call("GET", "/livez")).status == 200
    found = await served.get("/status")
    assert [(loop["name"], loop["error"]) for loop in found["loops"]] == [
        ("sync", "StoreUnavailable: disk I/O error")
    ]
    assert found["database"] == {"kind": "sqlite", "location": "horarium.db", "schema": "0001"}


async def test_without_a_server_status_says_since_when_nobody_looked(world: World) -> None:
    await world.put("/triggers/default/default/tick/default", {"run": "date", "every": "20s"})
    assert (await world.get("/status"))["down_since"] is None
    started = world.time(0)
    world.clock.advance(120)
    assert (await world.get("/status"))["down_since"] == started


async def test_why_says_that_a_target_was_not_started(world: World) -> None:
    """Else a run that waits for a secret only waits to be fired."""
    served, health = with_health(world)
    deployments = {"tick": {"target": "gone", "cron": "* * * * *"}}
    http = {"http": {"url": "http://127.0.0.1:9/hook", "secret": "env:GONE"}}
    document = json.dumps({"source": "git/etl", "targets": {"gone": http}, "deployments": deployments})
    applied = await world.post("/apply", {"files": [{"path": "triggers.json", "text": document}]})
    assert applied.status == 200, applied.body
    pool = TargetPool(world.store, world.clock, gone, None)
    executor = Executor(world.store, world.clock, SequenceIds(), pool, Wake(), "here", ExecutorSettings())
    health.of_targets = executor.targets
    await pool.refresh()
    await world.plan()
    due = world.time(60)
    world.clock.advance(65)
    told = await served.get("/triggers/default/default/tick/default/why", time=due)
    because = (
        "because target gone is unavailable: not started: SecretMissing: env:GONE: the variable is not set;"
    )
    assert because in told["reason"]


def gone(spec: TargetSpec) -> Target:
    raise SecretMissing("env:GONE: the variable is not set")


async def test_status_says_why_a_target_was_not_started_and_how_many_places_are_free(world: World) -> None:
    """A quick target has more claimed for it than its places; those are no places."""
    served, health = with_health(world)
    there = FakeTarget(max_in_flight=8)

    def build(spec: TargetSpec) -> Target:
        if spec.name == "gone":
            raise SecretMissing("env:GONE: the variable is not set")
        return there

    http = {"http": {"url": "http://127.0.0.1:9/hook", "secret": "env:GONE"}}
    document = json.dumps({"source": "git/etl", "targets": {"gone": http, "there": http}, "deployments": {}})
    applied = await world.post("/apply", {"files": [{"path": "triggers.json", "text": document}]})
    assert applied.status == 200, applied.body
    pool = TargetPool(world.store, world.clock, build, None)
    executor = Executor(world.store, world.clock, SequenceIds(), pool, Wake(), "here", ExecutorSettings())
    health.of_targets = executor.targets
    await pool.refresh()
    for running in pool:
        running.took(0.001)
    told = {item["name"]: item for item in (await served.get("/status"))["targets"]}
    assert told["gone"]["error"] == "not started: SecretMissing: env:GONE: the variable is not set"
    assert (told["gone"]["waiting"], told["there"]["error"]) == ("unavailable", None)
    assert told["there"]["free"] == 8
