"""`/metrics`: what an operator watches, read at the moment of the scrape."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from horarium.api.server import create_app
from horarium.app.figures import Figures
from horarium.clock import OffsetClock
from horarium.engine.health import Health
from horarium.telemetry import ClockWatch, Metrics
from tests.surfaces.api_world import LATE_AFTER, TICK, World


def serving(world: World) -> World:
    """The same instance with `/metrics`."""
    figures = Figures(world.store, world.clock, LATE_AFTER, Metrics())
    return replace(world, app=create_app(world.commands, world.queries, figures=figures))


async def scrape(world: World) -> Mapping[tuple[str, ...], float]:
    """Samples by name and label values."""
    reply = await world.call("GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(reply.body.decode())
    return {
        (sample.name.removeprefix("horarium_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


async def test_a_backlog_shows_how_long_its_first_run_has_waited(world: World) -> None:
    world = serving(world)
    await world.put(TICK, {"run": "date", "every": "20s"})
    await world.plan()
    before = await scrape(world)
    assert before["due_runs", "local"] == before["oldest_due_age_seconds", "local"] == 0
    first = datetime.fromisoformat((await world.get(TICK))["next"][0])
    world.clock.advance(first - world.now() + timedelta(seconds=65))
    found = await scrape(world)
    runs = (await world.get("/runs", trigger="tick", state="scheduled"))["items"]
    due = [run for run in runs if datetime.fromisoformat(run["due_at"]) <= world.now()]
    assert found["due_runs", "local"] == len(due) > 1
    assert found["late_runs", "local"] == 1
    assert found["oldest_due_age_seconds", "local"] == 65
    await world.post(f"{TICK}/pause")
    held = await scrape(world)
    assert held["held_runs", "local"] == len(due)
    assert held["due_runs", "local"] == held["oldest_due_age_seconds", "local"] == 0


@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
async def test_a_scrape_without_a_database_says_so_and_shows_nothing_old(world: World) -> None:
    world = serving(world)
    await world.put(TICK, {"run": "date", "every": "20s"})
    assert (await scrape(world))["database_up",] == 1
    with sqlite3.connect(world.path) as raw:
        raw.execute("alter table source rename to gone")
    found = await scrape(world)
    assert found["database_up",] == 0
    assert math.isnan(found["triggers_with_errors",])
    assert not [name for name, *_ in found if name in ("due_runs", "late_runs", "held_runs")]
    with sqlite3.connect(world.path) as raw:
        raw.execute("alter table gone rename to source")
    assert (await scrape(world))["due_runs", "local"] == 0


async def test_the_published_contract_has_it(world: World) -> None:
    assert (
        "text/plain"
        in serving(world).app.openapi()["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    )


async def test_clocks_that_disagree_are_warned_of_once(world: World) -> None:
    metrics = Metrics()
    clock = OffsetClock(world.clock, ClockWatch(metrics))
    ahead = timedelta()

    async def database() -> datetime:
        return world.clock.now() + ahead

    with structlog.testing.capture_logs() as logs:
        for milliseconds in (0, 99, 101, 300, -400, 5):
            ahead = timedelta(milliseconds=milliseconds)
            await clock.compare(database)
    assert [(line["log_level"], line["ahead"] / timedelta(milliseconds=1)) for line in logs] == [
        ("warning", 101),
        ("info", 5),
    ]
    assert metrics.clock_offset.collect()
    assert "horarium_clock_offset_seconds 0.005" in metrics.render()[0].decode()


async def test_loops_are_seen_turning(world: World) -> None:
    health = Health(world.clock)
    health.started("plan")
    health.turned("plan")
    figures = Figures(world.store, world.clock, LATE_AFTER, Metrics(), health)
    served = replace(world, app=create_app(world.commands, world.queries, health=health, figures=figures))
    assert (await scrape(served))["loop_turned_timestamp_seconds", "plan"] == world.now().timestamp()
