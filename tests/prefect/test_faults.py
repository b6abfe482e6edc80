"""The faults of Prefect's scheduler, one test each: Horarium does not have them.

Beside it stands each fault as it is in Prefect 3.9, by its REST API or its server's code: a release that
mends one turns its test red, and docs/prefect.md with it. `planned` is the call that runs the code of
Prefect's scheduler for one deployment.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from horarium.core.instant import to_seconds
from horarium.core.plan import plan
from horarium.core.schedule import parse
from horarium.core.trigger import delete
from horarium.errors import InvalidInput
from horarium.prefect.schedules import of_schedule
from horarium.store import tables
from horarium.targets.base import Refused
from tests.fundamentals.house import House, at, every, key_of, times
from tests.prefect.server import PrefectServer, Sdk
from tests.prefect.test_source import source, specs
from tests.prefect.test_target import Patient, request, started

START = datetime(2030, 1, 7, 10, 0, tzinfo=UTC)
FIVE = timedelta(minutes=5)


def planned(prefect: PrefectServer, deployment: str, **words: Any) -> list[datetime]:
    """The slots that there are once Prefect's scheduler has worked on a deployment from `start_time` on."""
    prefect.good("POST", f"/deployments/{deployment}/schedule", words)
    return prefect.slots(deployment, "SCHEDULED")


def scheduled(cron: str, slug: str, **words: Any) -> dict[str, Any]:
    return {"schedule": {"cron": cron}, "slug": slug, **words}


async def test_01_an_edit_of_one_schedule_leaves_its_siblings_runs(
    prefect: PrefectServer, tmp_path: Path
) -> None:
    deployment = prefect.deployment(
        "fault-1", "d", schedules=[scheduled("0 * * * *", "a"), scheduled("30 * * * *", "b")]
    )
    assert len(planned(prefect, deployment)) > 4
    edited, _ = prefect.schedules(deployment)
    path = f"/deployments/{deployment}/schedules/{edited['id']}"
    prefect.good("PATCH", path, {"schedule": {"cron": "15 * * * *"}})
    assert prefect.slots(deployment, "SCHEDULED") == [], "Prefect: all of them are gone"
    async with House(tmp_path) as house:
        await house.apply(**{"d/a": {"cron": "0 * * * *"}, "d/b": {"cron": "30 * * * *"}})
        await house.turn()
        before = await house.runs("d")
        await house.apply(**{"d/a": {"cron": "15 * * * *"}, "d/b": {"cron": "30 * * * *"}})
        assert [slot for slot in before if slot.minute == 30] == await house.runs("d")


async def test_02_a_new_schedule_is_planned_at_once(prefect: PrefectServer, tmp_path: Path) -> None:
    deployment = prefect.deployment("fault-2", "d", schedules=[scheduled("0 * * * *", "a")])
    before = prefect.good("GET", f"/deployments/{deployment}")["updated"]
    prefect.good("POST", f"/deployments/{deployment}/schedules", [scheduled("* * * * *", "b")])
    after = prefect.good("GET", f"/deployments/{deployment}")["updated"]
    assert before == after, "Prefect: its quick loop looks for what was updated, and this was not"
    async with House(tmp_path) as house:
        await house.apply(**{"d/a": {"cron": "0 * * * *"}})
        await house.run_for(minutes=7)
        await house.apply(**{"d/a": {"cron": "0 * * * *"}, "d/b": {"cron": "* * * * *"}})
        await house.turn()  # the clock stands still
        assert at("10:08") in await house.runs("d")


async def test_03_a_redeploy_while_the_planner_works_doubles_nothing(
    prefect: PrefectServer, sdk: Sdk, tmp_path: Path
) -> None:
    item = {"kind": "cron", "rule": "0 6 * * *"}  # under a slug it would keep its id
    deployment = sdk.ask("redeploy_while_planning", flow="etl", name="fault-3", schedules=[item])
    slots = prefect.slots(deployment, "SCHEDULED")
    assert (len(slots), len({*slots})) == (6, 3), (
        "Prefect: each is there twice, by the old id and the new one"
    )
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/5 * * * *"})
        now = house.clock.now()
        leased = await house.store.lease_due(now, now + timedelta(seconds=30), 10)
        computed = [plan(item, now, house.window) for item in leased]
        await house.apply(tick={"cron": "*/5 * * * *", "parameters": {"version": 2}})
        applied = await house.store.apply_plans(computed, now)
        assert applied.won == frozenset(), "a plan of the rule before must lose"
        await house.run_for(hours=1)
        assert house.fired("tick") == every("10:05", "11:00", FIVE)
        assert len(house.calls) == 12


async def test_04_an_outage_of_three_hours_loses_no_slot(prefect: PrefectServer, tmp_path: Path) -> None:
    deployment = prefect.deployment("fault-4", "d", schedules=[scheduled("*/5 * * * *", "a")])
    planned(prefect, deployment, start_time=START.isoformat())
    back = START + timedelta(hours=3)
    slots = planned(prefect, deployment, start_time=back.isoformat())
    wanted = [START + FIVE * n for n in range(37)]
    assert len([slot for slot in wanted if slot not in slots]) == 23, "Prefect: those were never made"
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/5 * * * *"})
        await house.run_for(minutes=1)
        await house.down_for(hours=3)
        await house.run_for(minutes=1)
        assert house.fired("tick") == every("10:05", "13:00", FIVE)


UNTIL = "FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0;UNTIL=20300110T080000Z"


async def test_05_a_schedule_that_cannot_be_evaluated_costs_itself_alone(
    prefect: PrefectServer, tmp_path: Path
) -> None:
    bad = {"schedule": {"rrule": UNTIL}, "slug": "bad"}
    deployment = prefect.deployment("fault-5", "d", schedules=[scheduled("0 * * * *", "good"), bad])
    status, _ = prefect.call("POST", f"/deployments/{deployment}/schedule", {})
    assert (status, prefect.slots(deployment)) == (500, []), "Prefect: the good one has no run either"
    random = {"schedule": {"cron": "R(0-59) * * * *"}, "slug": "random"}
    prefect.good("POST", f"/deployments/{deployment}/schedules", [random])
    found = await specs(prefect.url, "fault-5")
    assert {*found} == {"d/good", "d/bad"}
    listing = await source(prefect.url).read()
    assert [problem.pointer for problem in listing.left_out if "fault-5" in problem.pointer] == [
        "/prefect/fault-5/d/random/cron"
    ]
    async with House(tmp_path) as house:
        wrong: dict[str, Any] = {"cron": "* * * * *", "parameters": {"is": "wrong"}}
        await house.apply(**{"d/good": {"cron": "* * * * *"}, "d/bad": wrong})
        revisions = tables.trigger_revision
        spec = house.specs[key_of("d/bad")]
        spoiled = {**spec.to_json(), "schedule": {"cron": "no rule"}}
        await house.write(revisions.update().where(revisions.c.digest == spec.digest()).values(spec=spoiled))
        await house.run_for(minutes=3)
        assert house.fired("d/good") == times("10:01", "10:02", "10:03")
        errors = {row.name: row.error for row in await house.rows(tables.trigger)}
        assert errors["good"] is None
        assert "no rule" in errors["bad"]


def test_06_an_until_in_utc_is_the_instant_that_it_says(sdk: Sdk) -> None:
    schedule = {"rrule": UNTIL, "timezone": "Europe/Berlin"}
    (theirs,) = sdk.ask("dates", schedules=[schedule], start=START.isoformat(), n=5)
    # test_05 shows that it is taken.
    assert theirs.startswith("ValueError: RRULE UNTIL"), "Prefect: it raises when it is evaluated"
    first = to_seconds(START)
    ours = parse(of_schedule(schedule, "")).between(first, first + 30 * 86_400)
    assert [datetime.fromtimestamp(slot, UTC) for slot in ours] == [
        datetime(2030, 1, day, 8, tzinfo=UTC) for day in (8, 9, 10)
    ]


def test_07_a_random_cron_is_refused(prefect: PrefectServer) -> None:
    deployment = prefect.deployment("fault-7", "d", schedules=[scheduled("R(0-59) * * * *", "a")])
    for _ in range(5):
        slots = planned(prefect, deployment, start_time=START.isoformat(), min_runs=3, min_time=0)
    assert len(slots) > 5, "Prefect: each pass draws other minutes of the same three hours"
    with pytest.raises(InvalidInput, match="names other times at every look"):
        of_schedule({"cron": "R(0-59) * * * *"}, "")


def test_08_days_and_hours_are_one_series_wherever_one_looks(sdk: Sdk) -> None:
    schedule = {"interval": 90_000, "anchor_date": "2026-03-01T06:00:00+00:00", "timezone": "Europe/Berlin"}
    low, high = datetime(2026, 3, 27, tzinfo=UTC), datetime(2026, 4, 6, tzinfo=UTC)
    looks = [low + timedelta(hours=6 * n) for n in range(20)]
    theirs = [{*sdk.ask("dates", schedules=[schedule], start=look.isoformat(), n=12)[0]} for look in looks]
    last, end = to_seconds(looks[-1]), to_seconds(high)
    assert len({frozenset(slot for slot in found if last <= slot <= end) for found in theirs}) > 1, "Prefect"
    rule = parse(of_schedule(schedule, ""))
    ours = [rule.between(to_seconds(look), end) for look in looks]
    assert len({tuple(slot for slot in found if slot > last) for found in ours}) == 1


TWENTY_MINUTES = (
    {"cron": "*/20 * * * *", "timezone": "Australia/Lord_Howe"},
    {"rrule": "DTSTART:20261001T000000\nRRULE:FREQ=MINUTELY;INTERVAL=20", "timezone": "Australia/Lord_Howe"},
)


@pytest.mark.parametrize("day", ["2026-04-04", "2026-10-03"])
def test_09_order_holds_at_lord_howe(day: str) -> None:
    """Its clock goes by half an hour."""
    first = to_seconds(datetime.fromisoformat(f"{day}T00:00:00+00:00"))
    for schedule in (
        *TWENTY_MINUTES,
        {"cron": "*/15 * * * *", "timezone": "Australia/Lord_Howe"},
        {"cron": "45 1 * * *", "timezone": "Australia/Lord_Howe"},
        {"interval": 86_400, "anchor_date": "2026-01-01T14:45:00+00:00", "timezone": "Australia/Lord_Howe"},
        {"rrule": "FREQ=MINUTELY;INTERVAL=15", "timezone": "Australia/Lord_Howe"},
    ):
        rule = parse(of_schedule(schedule, ""))
        slots = rule.between(first, first + 3 * 86_400)
        assert slots == sorted({*slots})
        assert slots == [slot for start in slots for slot in [rule.after(start - 1)]], schedule


def test_09_the_order_of_prefect(sdk: Sdk) -> None:
    """What was skipped is put off by half an hour, and comes out before what is earlier then."""
    asked: dict[str, Any] = {"schedules": TWENTY_MINUTES, "start": "2026-10-03T14:50:00+00:00"}
    by_n = [sdk.ask("dates", n=n, **asked) for n in range(1, 7)]
    for few_to_many in zip(*by_n, strict=True):
        first = [few_to_many[-1][:n] for n in range(1, 7)]
        assert [*few_to_many] != first, "Prefect: the n first of six are not what it names when asked for n"


async def test_10_the_maximum_of_a_schedule_holds(prefect: PrefectServer) -> None:
    deployment = prefect.deployment("fault-10", "d")
    two = scheduled("*/5 * * * *", "a", max_scheduled_runs=2)
    prefect.good("POST", f"/deployments/{deployment}/schedules", [two])
    assert len(planned(prefect, deployment)) > 2, "Prefect: it makes as many as ever"
    found = await specs(prefect.url, "fault-10")
    # What the mirror makes of it: tests/fundamentals/test_09_ahead.py.
    assert found["d/a"].action["ahead_runs"] == 2


async def test_11_a_pause_keeps_parameters(prefect: PrefectServer, tmp_path: Path) -> None:
    item = scheduled("0 * * * *", "a", parameters={"table": "orders"})
    deployment = prefect.deployment("fault-11", "d", schedules=[item])
    (schedule,) = prefect.schedules(deployment)
    prefect.good("PATCH", f"/deployments/{deployment}/schedules/{schedule['id']}", {"active": False})
    (schedule,) = prefect.schedules(deployment)
    assert schedule["parameters"] == {}, "Prefect: they are gone"
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *", "parameters": {"table": "orders"}})
        await house.pause("tick")
        await house.run_for(minutes=2)
        await house.resume("tick")
        await house.run_for(minutes=1)
        (made,) = house.target.created.values()
        assert made.parameters == {"table": "orders"}


async def test_12_parameters_are_checked_before_a_worker_starts(prefect: PrefectServer, sdk: Sdk) -> None:
    wrong = {"kind": "cron", "rule": "0 * * * *", "slug": "a", "parameters": {"limit": "many"}}
    deployment = sdk.ask("deploy", flow="etl", name="fault-12", schedules=[wrong])
    assert len(planned(prefect, deployment)) > 0, "Prefect: runs that will crash"
    async with started(prefect.url, Patient) as target:
        answer = await target.create_run(request("etl/fault-12", parameters={"limit": "many"}))
    assert isinstance(answer, Refused)
    assert "limit" in answer.reason


async def test_13_a_backfill_is_whole(prefect: PrefectServer, tmp_path: Path) -> None:
    deployment = prefect.deployment("fault-13", "d", schedules=[scheduled("*/5 * * * *", "a")])
    day = {"start_time": "2026-01-04T10:00:00+00:00", "end_time": "2026-01-05T10:00:00+00:00"}
    slots = planned(prefect, deployment, **day, min_runs=1_000)
    assert len(slots) == 100, "Prefect: of 289 slots, and it says nothing"
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/5 * * * *"})
        low, high = at("2026-01-04T10:00:00Z"), at("2026-01-05T10:00:00Z")
        await house.backfill("tick", low, high)
        await house.run_for(minutes=1)
        assert house.fired("tick") == every("2026-01-04T10:00:00Z", "2026-01-05T10:00:00Z", FIVE)


async def test_13_a_range_ahead_is_whole(prefect: PrefectServer, tmp_path: Path) -> None:
    deployment = prefect.deployment("fault-13-ahead", "d", schedules=[scheduled("*/5 * * * *", "a")])
    day = {"start_time": "2030-01-07T10:00:00+00:00", "end_time": "2030-01-08T10:00:00+00:00"}
    slots = planned(prefect, deployment, **day, min_runs=1_000)
    assert len(slots) == 100, "Prefect: of 289 slots, and it says nothing"
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "*/5 * * * *"})
        low, high = at("2030-01-07T10:00:00Z"), at("2030-01-08T10:00:00Z")
        assert (await house.plan_range("tick", low, high)).planned == 289
        assert (await house.plan_range("tick", low, high)).existing == 289


async def test_14_a_redeploy_does_not_undo_a_pause(prefect: PrefectServer, sdk: Sdk, tmp_path: Path) -> None:
    words: dict[str, Any] = {"flow": "etl", "name": "fault-14"}
    item = {"kind": "cron", "rule": "0 * * * *", "slug": "a"}
    deployment = sdk.ask("deploy", **words, schedules=[{**item}])
    (schedule,) = prefect.schedules(deployment)
    prefect.good("PATCH", f"/deployments/{deployment}/schedules/{schedule['id']}", {"active": False})
    sdk.ask("deploy", **words, schedules=[{**item}])
    (schedule,) = prefect.schedules(deployment)
    assert schedule["active"], "Prefect: it runs again"
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *"})
        await house.pause("tick")
        await house.apply(tick={"cron": "*/2 * * * *"})
        await house.run_for(minutes=5)
        assert house.fired("tick") == []


async def test_15_a_deployment_without_schedules_has_none(prefect: PrefectServer, tmp_path: Path) -> None:
    deployment = prefect.deployment("fault-15", "d", schedules=[scheduled("0 * * * *", "a")])
    prefect.good("PATCH", f"/deployments/{deployment}", {"schedules": []})
    assert len(prefect.schedules(deployment)) == 1, "Prefect: the empty list is passed over"
    async with House(tmp_path) as house:
        await house.apply(tick={"cron": "* * * * *"})
        await house.apply()
        await house.run_for(minutes=3)
        assert house.fired("tick") == []
        assert await house.runs("tick") == []


def test_16_a_minutely_rule_costs_nothing(sdk: Sdk) -> None:
    rrule, days = "FREQ=MINUTELY;INTERVAL=7", (10, 20)
    starts = [datetime(2020, 1, 1 + day, tzinfo=UTC).isoformat() for day in days]
    theirs = [sdk.ask("walked", rrule=rrule, start=start, n=1) for start in starts]
    for day, instances in zip(days, theirs, strict=True):
        assert instances > day * 1440 / 7, "Prefect: dateutil names all from 2020 on, half a million in 2027"
    rule = parse(of_schedule({"rrule": rrule}, ""))
    first = to_seconds(START)
    before = time.process_time()
    for n in range(100):
        rule.after(first + n)
    assert time.process_time() - before < 1


async def test_17_a_deleted_schedule_leaves_what_its_siblings_owe(
    prefect: PrefectServer, tmp_path: Path
) -> None:
    both = [scheduled("*/5 * * * *", "a"), scheduled("1-59/5 * * * *", "b")]
    deployment = prefect.deployment("fault-17", "d", schedules=both)
    past = {"start_time": "2026-01-05T10:00:00+00:00", "end_time": "2026-01-05T11:00:00+00:00"}
    assert len(planned(prefect, deployment, **past)) > 20, "nobody has run them: they are late"
    deleted, _ = prefect.schedules(deployment)
    prefect.good("DELETE", f"/deployments/{deployment}/schedules/{deleted['id']}")
    assert prefect.slots(deployment) == [], "Prefect: its sibling's late runs are gone, too"
    async with House(tmp_path) as house:
        await house.apply(**{"d/a": {"cron": "*/5 * * * *"}, "d/b": {"cron": "1-59/5 * * * *"}})
        await house.turn()
        await house.down_for(minutes=12)
        now = house.clock.now()
        await house.store.change([key_of("d/a")], lambda state: delete(state, "test", now), now, "test")
        await house.run_for(minutes=1)
        made = [item.scheduled_time for item in house.target.created.values()]
        assert sorted(made) == times("10:01", "10:06", "10:11")
