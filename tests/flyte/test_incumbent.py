"""The shadow report against Flyte's own scheduler: its runs, by name, from a run service on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flyteidl2.workflow.run_definition_pb2 import RUN_SOURCE_SCHEDULE_TRIGGER, RUN_SOURCE_WEB, Run
from flyteidl2.workflow.run_service_pb2 import CreateRunRequest

from horarium.clock import SystemClock
from horarium.core.keys import TriggerKey, run_name
from horarium.core.shadow import TheirRun
from horarium.core.spec import TargetSpec
from horarium.flyte import incumbent
from horarium.flyte.incumbent import FlyteIncumbent
from horarium.flyte.messages import trigger_name
from horarium.sources.base import SourceUnavailable
from tests.flyte.backend import MOST_LISTED, Backend, Refuse, serving
from tests.surfaces.api_world import World, open_world, triggers_file

START = datetime(2026, 1, 5, 10, 0, tzinfo=UTC)
KEY = TriggerKey("default", "default", "nightly", "default")
MINUTE = timedelta(minutes=1)


def ran(
    backend: Backend, slot: datetime, key: TriggerKey = KEY, source: int = RUN_SOURCE_SCHEDULE_TRIGGER
) -> None:
    """Flyte's scheduler has created the run of a slot, a second after its time."""
    request = CreateRunRequest(trigger_name=trigger_name(key), source=source)
    request.run_id.project, request.run_id.domain = key.project, key.domain
    request.run_id.name = run_name(key, slot)
    place = (key.project, key.domain, request.run_id.name)
    backend.runs[place] = request
    backend.made[place] = slot + timedelta(seconds=1)


@asynccontextmanager
async def asked(backend: Backend, **config: Any) -> AsyncIterator[FlyteIncumbent]:
    async with serving(backend) as url:
        yield FlyteIncumbent(TargetSpec("flyte", "flyte", {"endpoint": url, **config}), SystemClock())


async def test_runs_that_time_started_are_listed_page_by_page() -> None:
    backend = Backend()
    slots = [START + MINUTE * number for number in range(1, MOST_LISTED * 2 + 2)]
    for slot in slots:
        ran(backend, slot)
    ran(backend, START - MINUTE * 5)
    ran(backend, START + MINUTE, TriggerKey("default", "default", "other", "default"))
    ran(backend, slots[3] + timedelta(seconds=30), source=RUN_SOURCE_WEB)
    async with asked(backend) as flyte:
        found = await flyte.runs([KEY], START, slots[-1])
    assert found == {
        KEY: [TheirRun(None, slot + timedelta(seconds=1), run_name(KEY, slot)) for slot in slots]
    }
    assert len(backend.calls) == 3


async def test_as_many_triggers_as_there_are_are_asked_for_a_few_at_a_time() -> None:
    backend = Backend()
    keys = [TriggerKey("default", "default", f"task{number}", "default") for number in range(100)]
    for key in keys:
        ran(backend, START + MINUTE, key)
    async with asked(backend) as flyte:
        found = await flyte.runs(keys, START, START + MINUTE)
    assert {key: len(runs) for key, runs in found.items()} == dict.fromkeys(keys, 1)
    assert backend.most_in_flight <= incumbent.AT_ONCE


@pytest.mark.parametrize("fault", ["refused", "secret"])
async def test_a_backend_that_can_not_be_asked_is_said_to_be(fault: str) -> None:
    backend = Backend()
    backend.down = Refuse(503, "unavailable", "in maintenance")
    more = {"token": "env:NOT_SET_ANYWHERE"} if fault == "secret" else {}
    async with asked(backend, **more) as flyte:
        with pytest.raises(
            SourceUnavailable, match="maintenance" if fault == "refused" else "NOT_SET_ANYWHERE"
        ):
            await flyte.runs([KEY], START, START + MINUTE)


async def test_pages_that_come_again_end_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend()
    monkeypatch.setattr(backend, "list_runs", lambda request: ([Run()], "200"))
    async with asked(backend) as flyte:
        with pytest.raises(SourceUnavailable, match="the page '200' again and again"):
            await flyte.runs([KEY], START, START + MINUTE)


@asynccontextmanager
async def shadowing(tmp_path: Path, backend: Backend) -> AsyncIterator[World]:
    """A trigger of a flyte target that spent five minutes in shadow."""
    async with serving(backend) as url, open_world(tmp_path) as world:
        text = triggers_file(
            nightly={"target": "flyte", "task": {"name": "nightly"}, "cron": "* * * * *", "shadow": True}
        )
        text = text.replace(
            '{"deployments"', f'{{"targets": {{"flyte": {{"flyte": {{"endpoint": "{url}"}}}}}}, "deployments"'
        )
        applied = await world.post("/apply", {"files": [{"path": "a.json", "text": text}]})
        assert applied.status == 200, applied.body
        await world.plan()
        for _ in range(5):
            world.clock.advance(60)
            await world.fire()
            await world.plan()
        yield world


PERIOD = {"from": "2026-01-05T10:00:00Z", "to": "2026-01-05T10:05:00Z"}


async def test_the_report_compares_with_flytes_runs_by_name(tmp_path: Path) -> None:
    backend = Backend()
    for number in range(1, 6):
        ran(backend, START + MINUTE * number)
    async with shadowing(tmp_path, backend) as world:
        found = (await world.post("/shadow/report", PERIOD)).json
        assert (found["equal"], found["counts"]["both"]) == (True, 5)
        assert found["lateness"]["median_seconds"] == -1

        del backend.runs["default", "default", run_name(KEY, START + MINUTE * 2)]
        ran(backend, START + MINUTE * 3 + timedelta(seconds=30))
        found = (await world.post("/shadow/report", {**PERIOD, "tolerance": "5s"})).json
        (item,) = found["triggers"]
        assert [(slot["time"], slot["in"]) for slot in item["slots"]] == [
            ("2026-01-05T10:02:00Z", "ours"),
            ("2026-01-05T10:03:31Z", "theirs"),
        ]


async def test_a_report_of_a_backend_that_is_away_is_no_report(tmp_path: Path) -> None:
    backend = Backend()
    async with shadowing(tmp_path, backend) as world:
        backend.down = Refuse(503, "unavailable", "in maintenance")
        reply = await world.post("/shadow/report", PERIOD)
        assert (reply.status, "in maintenance" in reply.json["detail"]) == (502, True)
