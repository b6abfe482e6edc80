"""Histories that broke other schedulers, from their own bug reports (`tests/cases/scenarios.json`), by id.

Each on both databases.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from horarium.core.spec import Rate
from horarium.store import tables
from tests.fundamentals.house import Away, House, at

pytestmark = pytest.mark.usefixtures("each_database")

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in json.loads((Path(__file__).parent.parent / "cases" / "scenarios.json").read_text())
}


def expected_runs(case: dict[str, Any], *path: str) -> list[datetime]:
    """The instants that a case lists under `expected`."""
    found: Any = case["expected"]
    for step in path:
        found = found[step]
    return [at(text) for text in found]


async def test_sc_02_a_slot_inside_a_hand_over_is_still_due(tmp_path: Path) -> None:
    case = CASES["sc-02"]
    async with House(tmp_path, at("09:59:50")) as house:
        await house.apply(A={"cron": case["input"]["schedule"]["cron"]})
        await house.run_until(at("2026-01-05T09:59:57.400000Z"))
        house.clock.advance(at("2026-01-05T10:00:00.700000Z") - house.clock.now())
        house.start_engine()
        await house.run_for(seconds=1)
        assert house.fired("A") == expected_runs(case, "a", "runs")
        assert house.fired_at("A")[0] - at("10:00") <= timedelta(
            seconds=case["expected"]["a"]["max_lateness_s"]
        )


@pytest.mark.parametrize("variant", ["b", "c"])
async def test_sc_02_a_leader_that_dies_around_the_call(tmp_path: Path, variant: str) -> None:
    """b: it claimed and died before the call. c: the run was accepted, and it died before it wrote so."""
    case = CASES["sc-02"]
    async with House(tmp_path, at("09:59:50"), lease=30) as house:
        await house.apply(A={"cron": case["input"]["schedule"]["cron"]})
        await house.run_until(at("09:59:59"))
        house.clock.advance(at("2026-01-05T10:00:00.100000Z") - house.clock.now())
        claimed = await house.claim_for_another_process()
        if variant == "c":
            house.record_as_made(claimed)
        house.start_engine()
        await house.run_until(at("10:00:31"))
        assert house.fired("A") == expected_runs(case, variant, "runs")
        assert len(house.target.created) == 1
        (row,) = [row for row in await house.rows(tables.run) if row.scheduled_time == at("10:00")]
        assert row.state == "fired"
        (answer,) = await house.rows(tables.attempt)
        assert answer.answer == {"b": "created", "c": "exists"}[variant]


SC_03: dict[str, dict[str, Any]] = {
    "none": {"catch_up": "none"},
    "latest": {"catch_up": "latest"},
    "all": {"catch_up": "all"},
    "window_200s": {"catch_up": "all", "max_age": 200},
}


@pytest.mark.parametrize("policy", SC_03)
async def test_sc_03_a_long_outage_neither_floods_nor_sticks(tmp_path: Path, policy: str) -> None:
    case = CASES["sc-03"]
    given, expected = case["input"], case["expected"]["policy"][policy]
    rate = Rate(given["rate_limit_per_s"], given["burst"])
    async with House(tmp_path, at("08:00"), rate=rate, grace=given["grace_s"]) as house:
        await house.apply(A={"cron": given["schedule"]["cron"], **SC_03[policy]})
        await house.run_until(at(given["down_from"]))
        assert house.fired("A")[-1] == at(given["last_fired"])
        before = len(house.calls)
        house.clock.advance(at(given["up_at"]) - house.clock.now())
        house.start_engine()
        await house.run_until(at("10:22:30"))
        made = [(when, slot) for when, _, slot, _ in house.calls[before:]]
        caught_up = sorted(slot for _, slot in made if slot < at(given["up_at"]))
        if policy == "all":
            assert len(caught_up) == expected["count"] == case["expected"]["missed_ticks"]
            assert (caught_up[0], caught_up[-1]) == (at(expected["first"]), at(expected["last"]))
            last = max(when for when, slot in made if slot < at(given["up_at"]))
            assert last - at(given["up_at"]) >= timedelta(seconds=expected["min_time_to_drain_s"])
        else:
            assert caught_up == [at(text) for text in expected["runs"]]
        assert (at("10:22"), at("10:22")) in made, "10:22 fires on time in every policy"
        skipped = sum(count for _, _, count, _ in await house.skips("A"))
        assert skipped == case["expected"]["missed_ticks"] - len(caught_up)


@pytest.mark.parametrize("backfill", [False, True])
async def test_sc_04_a_pause_is_an_instruction(tmp_path: Path, backfill: bool) -> None:
    case = CASES["sc-04"]
    (paused, _), (resumed, _) = case["input"]["events"]
    async with House(tmp_path, at("11:29:30")) as house:
        await house.apply(A={"cron": case["input"]["schedule"]["cron"], "max_age": 3600})
        await house.run_until(at(paused))
        await house.pause("A", note="upstream down")
        await house.run_until(at(resumed))
        await house.resume("A", backfill=backfill)
        await house.turn()
        extra = expected_runs(case, "if_resume_option_backfill", "extra")
        assert [slot for slot in house.fired("A") if slot > at(paused)] == (extra if backfill else [])
        await house.run_until(at("11:37:30"))
        assert house.fired("A") == sorted(expected_runs(case, "runs") + (extra if backfill else []))
        if not backfill:
            assert await house.skips("A") == [(extra[0], extra[-1], 4, "paused")]


async def test_sc_05_an_edit_does_not_fire_for_the_time_before_it(tmp_path: Path) -> None:
    case = CASES["sc-05"]
    (fires, _), (edited, _), (restarts, _) = case["input"]["events"]
    async with House(tmp_path, at("2026-01-06T00:00:00Z")) as house:
        await house.apply(A={"cron": case["input"]["schedule"]["cron"]})
        await house.run_until(at(edited))
        assert house.fired("A") == [at(fires)]
        await house.apply(A={"cron": "15 2 * * 1-5"})
        house.clock.advance(at(restarts) - house.clock.now())
        house.start_engine()
        await house.run_until(at("2026-01-07T12:00:00Z"))
        assert house.fired("A") == expected_runs(case, "runs")


async def test_sc_06_a_plan_of_the_old_rule_is_not_written(tmp_path: Path) -> None:
    case = CASES["sc-06"]
    events = case["input"]["events"]
    async with House(tmp_path, at(events[0][0])) as house:
        await house.apply(A={"cron": "0 * * * *"})
        now = house.clock.now()
        given = await house.store.lease_due(now, now + timedelta(seconds=30), 10)
        from horarium.core.plan import plan

        stale = [plan(item, now, house.window) for item in given]
        house.clock.advance(at(events[1][0]) - now)
        await house.apply(A={"cron": "30 * * * *"})
        house.clock.advance(at(events[2][0]) - house.clock.now())
        applied = await house.store.apply_plans(stale, house.clock.now())
        assert (len(applied.won), applied.runs) == (0, 0)
        house.clock.advance(at(events[3][0]) - house.clock.now())
        await house.turn()
        planned = await house.runs("A")
        assert planned[:3] == expected_runs(case, "runs")
        assert [slot for slot in planned if slot.minute == 0] == []


async def test_sc_06_the_same_rule_again_doubles_nothing(tmp_path: Path) -> None:
    """The identical rule under the same name, from a listing that is new as a whole."""
    case = CASES["sc-06"]
    async with House(tmp_path, at("12:30")) as house:
        await house.apply(A={"cron": "0 * * * *"})
        await house.turn()
        house.clock.advance(0.1)
        await house.apply(A={"cron": "0 * * * *"}, B={"cron": "1 1 1 1 *"})
        await house.turn()
        assert (await house.runs("A"))[:3] == expected_runs(case, "variant_same_rule_runs")
        assert len(set(await house.runs("A"))) == len(await house.runs("A"))


async def test_sc_07_a_redeploy_keeps_the_runs_that_are_due(tmp_path: Path) -> None:
    case = CASES["sc-07"]
    words = {"every": case["input"]["schedule"]["interval_s"], "start": case["input"]["schedule"]["anchor"]}
    async with House(tmp_path, at("09:59:55")) as house:
        await house.apply(A=words)
        house.target.down = "no worker"
        await house.run_until(at("10:00:35"))
        await house.apply(A=words)
        waiting = await house.runs("A", "scheduled")
        assert waiting[:4] == expected_runs(case, "due_runs_kept")
        house.target.down = None
        await house.run_until(at("10:02"))
        assert set(expected_runs(case, "due_runs_kept")) <= set(house.fired("A"))
        assert at(case["expected"]["next"]) in house.fired("A")


async def test_sc_08_two_triggers_at_one_instant(tmp_path: Path) -> None:
    case = CASES["sc-08"]
    schedules = case["input"]["schedules"]
    async with House(tmp_path, at(case["input"]["window"][0])) as house:
        await house.apply(
            **{
                f"demo/{item['id']}": {
                    "cron": item["cron"],
                    "timezone": item["tz"],
                    "parameters": item["params"],
                }
                for item in schedules
            }
        )
        await house.run_until(at(case["input"]["window"][1]))
        made = sorted(
            (call.trigger.name, call.scheduled_time, call.parameters["day"]) for call in house.target.calls
        )
        assert made == [
            (run["schedule"], at(run["tick"]), run["params"]["day"]) for run in case["expected"]["runs"]
        ]
        assert len({call.run_name for call in house.target.calls}) == case["expected"]["distinct_names"]


async def test_sc_11_the_database_goes_away_and_comes_back(tmp_path: Path) -> None:
    case = CASES["sc-11"]
    (gone, _), (back, _) = case["input"]["events"]
    async with House(tmp_path, at("09:59:30")) as house:
        away = Away(house.store)
        house.start_engine(away)
        await house.apply(A={"cron": case["input"]["schedule"]["cron"], "max_age": 300})
        await house.run_until(at(gone))
        away.away = True
        failures = 0
        while house.clock.now() < at(back):
            try:
                await house.turn()
            except Exception:
                failures += 1
            house.clock.advance(5)
        assert failures > 20, "the loop goes on trying"
        away.away = False
        await house.run_until(at("10:04:30"))
        assert house.fired("A") == expected_runs(case, "runs")
        assert len(house.calls) == len(house.fired("A")), "each once"
        created = {slot: when for when, _, slot, _ in house.calls}
        assert created[at("10:03")] <= at(case["expected"]["late_runs_created_by"])
        assert created[at("10:04")] == at("10:04")


async def test_sc_13_a_thousand_at_once_are_let_through_in_order(tmp_path: Path) -> None:
    case = CASES["sc-13"]
    given, expected = case["input"], case["expected"]
    bucket = given["token_bucket"]
    rate = Rate(bucket["rate_per_s"], bucket["burst"])
    async with House(tmp_path, at("09:30"), rate=rate, grace=given["grace_s"]) as house:
        await house.apply(
            **{
                f"job{number:04}": {"cron": given["cron"], "catch_up": "none"}
                for number in range(given["schedules"])
            }
        )
        await house.run_until(at("10:00"))
        while house.clock.now() < at("10:00:12"):
            house.clock.advance(0.01)
            await house.turn()
        made = [(when, name) for when, name, slot, _ in house.calls if slot == at(given["tick"])]
        assert len(made) == len({name for _, name in made}) == expected["runs"]
        first_second = [when for when, _ in made if when <= at("10:00:01")]
        assert len(first_second) <= expected["max_created_in_first_second"]
        assert max(when for when, _ in made) - at("10:00") >= timedelta(
            seconds=expected["last_created_at_or_after_s"]
        ) - timedelta(milliseconds=10)
        assert await house.rows(tables.skip) == []


def test_every_case_of_the_first_step_has_a_test() -> None:
    here = Path(__file__).read_text()
    missing = [name for name in CASES if name.replace("-", "_") not in here and name != "sc-14"]
    assert missing == []
