"""Governments change their clocks, and tz data follow with the next release. What was planned by the old
rules is planned anew, so that no local day is lost and none comes twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from horarium.core import revision
from horarium.core.zone import DEFAULT_ZONES, Zones
from horarium.store import tables
from tests.fundamentals.house import House, at

CASES = Path(__file__).parent.parent / "cases"
ZONE = "Africa/Casablanca"


@dataclass(frozen=True)
class Release:
    """One zone of a release of the package tzdata: 2026.2 holds 2026b, 2026.3 holds 2026c."""

    version: str
    package: str

    def load(self, name: str) -> bytes | None:
        return (
            (CASES / f"tzdata-{self.package}" / "Africa-Casablanca.tzif").read_bytes()
            if name == ZONE
            else None
        )

    def names(self) -> Sequence[str]:
        return [ZONE]

    def tzdata_version(self) -> str:
        return self.version


OLD, NEW = Zones(Release("2026b", "2026.2")), Zones(Release("2026c", "2026.3"))


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    revision.use_zones(DEFAULT_ZONES)


@pytest.mark.usefixtures("each_database")
async def test_sc_14_later_runs_are_planned_anew(tmp_path: Path) -> None:
    case = next(case for case in json.loads((CASES / "scenarios.json").read_text()) if case["id"] == "sc-14")
    planned, expected = case["input"]["materialised"], case["expected"]
    (fires, _), (restarts, _) = case["input"]["events"]
    revision.use_zones(OLD)
    async with House(tmp_path, at("2026-09-19T00:00:00Z")) as house:
        await house.apply(A={"cron": case["input"]["schedule"]["cron"], "timezone": ZONE})
        await house.turn()
        assert (await house.runs("A"))[:4] == [at(text) for text in planned]
        await house.run_until(at(fires))
        house.clock.advance(at(restarts) - house.clock.now())
        revision.use_zones(NEW)
        house.start_engine()
        await house.turn()
        assert (await house.runs("A"))[:4] == [at(text) for text in expected["runs"]]
        await house.run_until(at("2026-09-23T00:00:00Z"))
        assert house.fired("A") == [at(text) for text in expected["runs"]]
        (row,) = await house.rows(tables.trigger)
        assert row.tzdata_version == "2026c"


async def test_a_day_that_has_run_does_not_come_again(tmp_path: Path) -> None:
    """It ran at 09:00 by the old clock; by the new one 09:00 of that day is still to come."""
    revision.use_zones(OLD)
    async with House(tmp_path, at("2026-09-20T00:00:00Z")) as house:
        await house.apply(A={"cron": "0 9 * * *", "timezone": ZONE})
        await house.run_until(at("2026-09-20T08:30:00Z"))
        assert house.fired("A") == [at("2026-09-20T08:00:00Z")]
        revision.use_zones(NEW)
        house.start_engine()
        await house.run_until(at("2026-09-21T12:00:00Z"))
        assert house.fired("A") == [at("2026-09-20T08:00:00Z"), at("2026-09-21T09:00:00Z")]


async def test_a_day_that_is_suddenly_past_is_made_up_for(tmp_path: Path) -> None:
    """The other way round: by the new rules 09:00 was half an hour ago, by the old ones it is ahead."""
    revision.use_zones(NEW)
    async with House(tmp_path, at("2026-09-20T00:00:00Z")) as house:
        await house.apply(A={"cron": "0 9 * * *", "timezone": ZONE})
        await house.run_until(at("2026-09-21T08:30:00Z"))
        assert house.fired("A") == [at("2026-09-20T09:00:00Z")]
        revision.use_zones(Zones(Release("2026d", "2026.2")))
        house.start_engine()
        await house.run_until(at("2026-09-22T12:00:00Z"))
        assert house.fired("A") == [
            at("2026-09-20T09:00:00Z"),
            at("2026-09-21T08:00:00Z"),
            at("2026-09-22T08:00:00Z"),
        ]


async def test_a_rule_of_every_ten_minutes_goes_on_without_a_hole(tmp_path: Path) -> None:
    revision.use_zones(OLD)
    async with House(tmp_path, at("2026-09-20T10:00:00Z")) as house:
        await house.apply(A={"cron": "*/10 * * * *", "timezone": ZONE})
        await house.run_until(at("2026-09-20T10:25:00Z"))
        revision.use_zones(NEW)
        house.start_engine()
        await house.run_until(at("2026-09-20T11:30:00Z"))
        first = at("2026-09-20T10:10:00Z")
        assert house.fired("A") == [first + timedelta(minutes=10 * n) for n in range(9)]


async def test_older_tz_data_leave_the_trigger_to_newer_ones(tmp_path: Path) -> None:
    revision.use_zones(NEW)
    async with House(tmp_path, at("2026-09-20T00:00:00Z")) as house:
        await house.apply(A={"cron": "0 9 * * *", "timezone": ZONE})
        await house.turn()
        planned = await house.runs("A")
        revision.use_zones(OLD)
        house.start_engine()
        await house.replan("A")
        await house.turn()
        assert await house.runs("A") == planned
        (row,) = await house.rows(tables.trigger)
        assert "2026c" in row.error
        assert "update the package tzdata" in row.error
