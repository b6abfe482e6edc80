"""The source `prefect`: a real server's deployments, made by Prefect's own SDK and REST API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web

from horarium import wiring
from horarium.clock import SystemClock
from horarium.config import load_settings
from horarium.core.keys import TriggerKey
from horarium.core.spec import Listing, TriggerSpec
from horarium.errors import InvalidInput
from horarium.sources.base import SourceUnavailable
from horarium.sources.prefect import PrefectSource, check_source
from tests.prefect.server import PrefectServer, Sdk
from tests.serving import serving
from tests.surfaces.cli import horarium

DAILY = {"schedule": {"cron": "0 6 * * *", "timezone": "Europe/Berlin"}, "slug": "daily"}


def source(url: str, **words: Any) -> PrefectSource:
    return PrefectSource(check_source({"url": url, **words}, ""), SystemClock())


async def specs(url: str, flow: str) -> dict[str, TriggerSpec]:
    """The triggers of a flow, by `deployment/name`."""
    listing = await source(url).read()
    return {
        f"{entry.key.deployment}/{entry.key.name}": entry.spec
        for entry in listing.triggers
        if entry.key.domain == flow
    }


async def test_what_the_sdk_deploys_is_here(prefect: PrefectServer, sdk: Sdk) -> None:
    sdk.ask(
        "deploy",
        flow="report",
        name="by the SDK",
        parameters={"region": "us"},
        tags=["team:data"],
        schedules=[
            {"kind": "cron", "rule": "0 6 * * 1-5", "timezone": "Europe/Berlin", "slug": "weekday",
             "parameters": {"region": "eu"}},
            {"kind": "cron", "rule": "0 0 13 * 5", "slug": "unlucky", "day_or": False},
            {"kind": "interval", "rule": 600, "slug": "often", "anchor_date": "2026-01-01T00:03:00+00:00"},
            {"kind": "interval", "rule": 86_400, "slug": "each-day", "timezone": "America/New_York",
             "anchor_date": "2026-01-01T14:00:00+00:00"},
            {"kind": "rrule", "rule": "FREQ=WEEKLY;BYDAY=MO", "slug": "mondays", "active": False},
        ],
    )  # fmt: skip
    found = await specs(prefect.url, "Nightly report (EU)")
    assert {name.partition("/")[2]: (spec.schedule, spec.active) for name, spec in found.items()} == {
        "weekday": ({"cron": "0 6 * * 1-5", "timezone": "Europe/Berlin"}, True),
        "unlucky": ({"cron": "0 0 13 * 5", "day_or": False}, True),
        "often": ({"every": "10m", "start": "2026-01-01T00:03:00Z"}, True),
        "each-day": (
            {"every": {"days": 1, "at": "09:00"}, "timezone": "America/New_York",
             "start": "2026-01-01T05:00:00Z"},
            True,
        ),
        "mondays": ({"rrule": "DTSTART:20200101T000000\nRRULE:FREQ=WEEKLY;BYDAY=MO"}, False),
    }  # fmt: skip
    weekday, unlucky = found["by the SDK/weekday"], found["by the SDK/unlucky"]
    assert (weekday.parameters, unlucky.parameters) == ({"region": "eu"}, {"region": "us"})
    assert weekday.action == {"deployment": "Nightly report (EU)/by the SDK"}
    assert found["by the SDK/mondays"].inactive_because == "the schedule is not active in Prefect"


async def test_a_pause_of_the_deployment_is_told_from_an_inactive_schedule(prefect: PrefectServer) -> None:
    off = {**DAILY, "slug": "off", "active": False}
    deployment = prefect.deployment("pauses", "d", paused=True, schedules=[DAILY, off])
    assert {name: spec.inactive_because for name, spec in (await specs(prefect.url, "pauses")).items()} == {
        "d/daily": "deployment pauses/d is paused in Prefect",
        "d/off": "deployment pauses/d is paused in Prefect, and the schedule is not active in Prefect",
    }
    prefect.good("POST", f"/deployments/{deployment}/resume_deployment")
    assert {name: spec.active for name, spec in (await specs(prefect.url, "pauses")).items()} == {
        "d/daily": True,
        "d/off": False,
    }


async def test_a_schedule_without_a_slug_keeps_its_name_over_edits(prefect: PrefectServer) -> None:
    deployment = prefect.deployment("nameless", "d", schedules=[{"schedule": {"interval": 60}}, DAILY])
    before = {*(await specs(prefect.url, "nameless"))}
    (schedule,) = [item for item in prefect.schedules(deployment) if item["slug"] is None]
    path = f"/deployments/{deployment}/schedules/{schedule['id']}"
    prefect.good("PATCH", path, {"schedule": {"cron": "5 * * * *"}})
    after = await specs(prefect.url, "nameless")
    assert {*after} == before
    (name,) = before - {"d/daily"}
    assert name == f"d/schedule-{schedule['id'][-12:]}"
    assert after[name].schedule == {"cron": "5 * * * *"}


async def test_a_schedule_that_cannot_be_taken_costs_itself_alone(prefect: PrefectServer) -> None:
    bad = {"schedule": {"cron": "R(0-59) * * * *"}, "slug": "random"}
    prefect.deployment("one-bad", "d", schedules=[DAILY, bad])
    listing = await source(prefect.url).read()
    key = TriggerKey("prefect", "one-bad", "d", "random")
    assert key in listing.kept
    (problem,) = [problem for problem in listing.left_out if "one-bad" in problem.pointer]
    assert str(problem).startswith("/prefect/one-bad/d/random/cron: got 'R(0-59)'")
    assert TriggerKey("prefect", "one-bad", "d", "daily") in {entry.key for entry in listing.triggers}


async def test_all_pages_are_read_and_the_version_follows_what_matters(prefect: PrefectServer) -> None:
    made = [prefect.deployment("pages", f"d{n:03}", schedules=[DAILY]) for n in range(205)]
    read = source(prefect.url)
    first = await read.version()
    listing = await read.read()
    assert len([entry for entry in listing.triggers if entry.key.domain == "pages"]) == 205
    assert await read.version() == first, "what was read is what the version said"
    assert await read.version() == first
    prefect.good("PATCH", f"/deployments/{made[3]}", {"description": "no matter of ours"})
    assert await read.version() == first
    (schedule,) = prefect.schedules(made[3])
    prefect.good("PATCH", f"/deployments/{made[3]}/schedules/{schedule['id']}", {"active": False})
    assert await read.version() != first


# a stand-in, for what a real server does only now and then


class Standing:
    """Deployments in pages of two, which may change between two pages."""

    def __init__(self, names: str) -> None:
        self.items = {name: self._item(name) for name in names}
        self.between: Callable[[], None] = lambda: None
        self.fails = False

    def _item(self, name: str) -> dict[str, Any]:
        schedule = {"id": str(uuid4()), **DAILY}
        return {
            "id": f"id-{name}",
            "name": name,
            "flow_id": "flow",
            "parameters": {},
            "schedules": [schedule],
        }

    async def answer(self, call: web.Request) -> web.Response:
        body = json.loads(await call.read())
        if not call.path.startswith("/api/"):
            return web.json_response({"detail": "Not Found"}, status=404)
        if self.fails:
            return web.json_response({"detail": "database is locked"}, status=503)
        if call.path.endswith("/flows/filter"):
            return web.json_response([{"id": "flow", "name": "f"}] if body["offset"] == 0 else [])
        found = [*self.items.values()]
        wanted = body.get("deployments", {}).get("id", {}).get("any_")
        if wanted is not None:
            found = [item for item in found if item["id"] in wanted]
        page = found[body["offset"] : body["offset"] + 2]
        if body["offset"] == 0 and wanted is None:
            self.between()
            self.between = lambda: None
        return web.json_response(page)


@pytest.fixture
async def standing() -> AsyncIterator[tuple[Standing, str]]:
    there = Standing("abcdef")
    async with serving(there.answer) as url:
        yield there, f"{url}/api"


def names(listing: Listing) -> str:
    return "".join(sorted(entry.key.deployment for entry in listing.triggers))


async def test_a_deployment_that_is_deleted_between_pages_hides_no_other(
    standing: tuple[Standing, str],
) -> None:
    there, url = standing
    read = source(url)
    assert names(await read.read()) == "abcdef"
    await read.version()
    there.between = lambda: there.items.__delitem__("a")
    assert names(await read.read()) == "bcdef" or names(await read.read()) == "bcdef"


async def test_nothing_is_gone_because_a_call_failed(standing: tuple[Standing, str]) -> None:
    there, url = standing
    read = source(url)
    await read.version()
    await read.read()
    there.fails = True
    await read.version()  # what was read last
    with pytest.raises(SourceUnavailable, match="answered 503: database is locked"):
        await read.version()
    there.fails = False
    assert names(await read.read()) == "abcdef"


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({}, "/url"),
        ({"url": "http://x/api", "project": "a/b"}, "/project"),
        ({"url": "http://x/api", "target": "mine", "ahead": "1h"}, "/ahead"),
        ({"url": "http://x/api", "ahead": "30d"}, "/ahead"),
        ({"url": "http://x/api", "api_key": "plain"}, "/api_key"),
    ],
)
def test_a_wrong_source_is_named(config: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidInput) as error:
        check_source(config, "")
    assert [problem.pointer for problem in error.value.problems] == [pointer]


# the command line and the settings


async def test_sync_from_the_command_line(tmp_path: Path, standing: tuple[Standing, str]) -> None:
    there, url = standing
    db = f"sqlite:///{tmp_path}/horarium.db"

    there.items["d"]["name"] = "d e"

    async def sync(*arguments: str) -> Any:
        return await asyncio.to_thread(horarium, "sync", "prefect", "--db", db, *arguments)

    shown = await sync("--url", url, "--dry-run")
    assert shown.code == 0, shown.err
    assert "+ prefect/f/a/daily  0 6 * * *  (Europe/Berlin)" in shown.out
    assert "6 added" in shown.out
    done = await sync("--url", url, "--ahead", "1h")
    assert done.code == 0, done.err
    there.items["a"]["schedules"].append({"id": str(uuid4()), "schedule": {"interval": 0.5}, "slug": "fast"})
    there.items["b"]["paused"] = True
    del there.items["c"]
    changed = await sync("--url", url, "--ahead", "1h")
    assert "1 edited, 1 withdrawn" in changed.out, changed.out
    assert "/prefect/f/a/fast/interval: got 0.5" in changed.out
    listed = await asyncio.to_thread(horarium, "triggers", "show", "prefect/f/b/daily", "--db", db)
    assert "deployment f/b is paused in Prefect" in listed.out
    beside = await sync("--url", url.removesuffix("/api"))
    assert (beside.code, "ends in /api" in beside.err) == (5, True), beside.err
    for command in ("deployments pause", "triggers resume"):
        what = f"prefect/f/d e{'/daily' if command.startswith('triggers') else ''}"
        said = await asyncio.to_thread(horarium, *command.split(), what, "--db", db)
    assert "horarium deployments resume 'prefect/f/d e'" in said.err, "as a shell takes it"
    lost = await sync("--api-key", "env:KEY")
    assert (lost.code, "--url is not given" in lost.err) == (2, True), lost.err


def test_settings_have_it(tmp_path: Path) -> None:
    file = tmp_path / "horarium.toml"
    file.write_text('[sources.prefect]\nurl = "http://127.0.0.1:4200/api"\nahead = "30m"\nverify = false\n')
    instance = wiring.build(load_settings(config=file, flags={"db": f"sqlite:///{tmp_path}/h.db"}))
    assert instance.service.parts.syncer is not None
    file.write_text('[sources.prefect]\nurl = "http://127.0.0.1:4200/api"\napi_key = "pnu_secret"\n')
    with pytest.raises(InvalidInput) as error:
        wiring.build(load_settings(config=file))
    assert [problem.pointer for problem in error.value.problems] == ["/sources_prefect_api_key"]
    assert "pnu_secret" not in str(error.value)
