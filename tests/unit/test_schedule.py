"""The mapping that people write: kinds, bounds, zones, refusals, and the one way to write it."""

from __future__ import annotations

from datetime import date, datetime

import pytest

from horarium.core.cron import Cron
from horarium.core.instant import from_seconds, rfc3339, to_seconds
from horarium.core.schedule import Bounded, canonical, parse
from horarium.errors import InvalidInput
from tests.unit.zones_of import ZONES_2025B


def seconds(text: str) -> int:
    return to_seconds(datetime.fromisoformat(text))


def pointers(spec: object, **words: str) -> dict[str, str]:
    with pytest.raises(InvalidInput) as refused:
        parse(spec, **words)  # type: ignore[arg-type]  # what people type is not always a mapping
    return {problem.pointer: problem.hint for problem in refused.value.problems}


def test_each_kind() -> None:
    start = seconds("2026-01-01T00:00:00Z")
    assert parse({"cron": "0 9 * * *", "timezone": "Europe/Berlin"}).after(start) == start + 8 * 3600
    assert parse({"every": "15m"}).after(start) == start + 900
    assert parse({"at": "2026-01-02T00:00:00Z"}).after(start) == start + 86_400
    assert parse({"rrule": "FREQ=DAILY;BYHOUR=6;BYMINUTE=0;BYSECOND=0"}).after(start) == start + 6 * 3600


def test_start_and_end_are_both_included() -> None:
    rule = parse({"cron": "0 9 * * *", "start": "2026-01-05T09:00:00Z", "end": "2026-01-07T09:00:00Z"})
    assert isinstance(rule, Bounded)
    days = [f"2026-01-0{n}T09:00:00Z" for n in (5, 6, 7)]
    assert [rfc3339(from_seconds(t)) for t in rule.between(0, 2**40)] == days
    first, last = seconds(days[0]), seconds(days[-1])
    assert rule.after(first - 1) == first
    assert rule.after(last) is None
    assert rule.before(last) == last
    assert rule.before(2**40) == last
    assert rule.before(first) == first
    assert rule.before(first - 1) is None
    assert rule.between(last, 2**40) == []


def test_bounds_without_an_offset_are_local_and_an_end_date_is_a_whole_day() -> None:
    rule = parse(
        {
            "cron": "30 23 * * *",
            "timezone": "America/New_York",
            "start": "2026-07-01",
            "end": date(2026, 7, 2),
        }
    )
    assert [rfc3339(from_seconds(t)) for t in rule.between(0, 2**40)] == [
        "2026-07-02T03:30:00Z",
        "2026-07-03T03:30:00Z",
    ]


def test_an_interval_is_anchored_at_its_start() -> None:
    rule = parse({"every": 3600, "start": "2022-09-15T10:20:00Z"})
    assert rule.after(seconds("2022-09-15T13:47:30Z")) == seconds("2022-09-15T14:20:00Z")
    assert rule.after(0) == seconds("2022-09-15T10:20:00Z")


def test_the_zone_is_utc_unless_given() -> None:
    rule = parse({"cron": "0 0 * * *"})
    assert rule.zone is not None
    assert rule.zone.name == "UTC"


def test_parsed_schedules_are_shared_and_zones_can_be_passed_in() -> None:
    spec = {"cron": "0 9 * * *", "timezone": "America/Havana"}
    assert parse(spec) is parse(dict(spec))
    assert parse(spec, seed="a") is not parse(spec, seed="b")
    winter = seconds("2027-01-10T00:00:00Z")
    assert parse(spec).after(winter) != parse(spec, zones=ZONES_2025B).after(winter)


def test_a_true_and_a_one_are_not_taken_for_each_other() -> None:
    assert parse({"every": 1}).after(0) == 1
    assert "/every" in pointers({"every": True})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {"": "one of them"}),
        ({"cron": "0 9 * * *", "every": "5m"}, {"": "one of them"}),
        ({"crn": "0 9 * * *"}, {"/crn": "cron", "": "one of them"}),
        ([], {"": 'such as {"cron": "0 9 * * *"}'}),
        ("0 9 * * *", {"": 'such as {"cron": "0 9 * * *"}'}),
        ({"cron": "0 9 * * *", "timezone": "Berlin"}, {"/timezone": "Europe/Berlin"}),
        ({"every": "5m", "dst": "literal"}, {"/dst": "leave it out"}),
        ({"cron": "0 9 * * *", "dst": "never"}, {"/dst": "vixie"}),
        ({"cron": "0 9 * * *", "dialect": "quartz"}, {"/dialect": "horarium"}),
        ({"cron": "0 9 * * *", "day_or": "no"}, {"/day_or": "false"}),
        (
            {"cron": "0 9 * * *", "dialect": "robfig", "dst": "vixie"},
            {"/dst": "dialect: horarium for another policy"},
        ),
        ({"cron": "0 9 * * *", "start": "2026-02-01", "end": "2026-01-01"}, {"/end": "a later end"}),
    ],
)
def test_a_refusal_names_the_field_and_the_fix(spec: object, expected: dict[str, str]) -> None:
    assert pointers(spec) == expected


def test_all_problems_come_at_once_and_under_the_pointer() -> None:
    spec = {"cron": "61 * * * *", "timezone": "Nowhere", "start": "x", "end": 5, "colour": "red"}
    found = pointers(spec, pointer="/deployments/a")
    keys = ("colour", "timezone", "start", "end", "cron")
    assert set(found) == {f"/deployments/a/{key}" for key in keys}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"cron": "0 9 * * *", "timezone": "UTC", "dst": "vixie", "dialect": "horarium"},
            {"cron": "0 9 * * *"},
        ),
        ({"cron": "0 9 1 * 1", "day_or": True}, {"cron": "0 9 1 * 1"}),
        ({"cron": "0 9 1 * 1", "day_or": False}, {"cron": "0 9 1 * 1", "day_or": False}),
        ({"cron": "0 9 1 * *", "day_or": False}, {"cron": "0 9 1 * *"}),
        (
            {"cron": "CRON_TZ=Europe/Berlin 0 9 * * *", "dst": "literal"},
            {"cron": "0 9 * * *", "timezone": "Europe/Berlin", "dst": "literal"},
        ),
        ({"cron": "@every 90s", "timezone": "Europe/Berlin"}, {"every": "1m30s"}),
        ({"every": 90, "timezone": "Europe/Berlin"}, {"every": "1m30s"}),
        ({"cron": "0  9 * * SUN", "dialect": "robfig"}, {"cron": "0 9 * * sun", "dialect": "robfig"}),
        ({"at": "2026-12-26T06:00", "timezone": "Europe/Berlin"}, {"at": "2026-12-26T05:00:00Z"}),
        (
            {"cron": "0 9 * * *", "timezone": "Europe/Berlin", "start": "2026-01-01", "end": "2026-01-31"},
            {
                "cron": "0 9 * * *",
                "timezone": "Europe/Berlin",
                "start": "2025-12-31T23:00:00Z",
                "end": "2026-01-31T22:59:59Z",
            },
        ),
    ],
)
def test_the_one_way_to_write_it(spec: dict[str, object], expected: dict[str, object]) -> None:
    written = canonical(spec)
    assert written == expected
    assert canonical(written) == written
    a, b = parse(spec), parse(written)
    assert a.between(1_700_000_000, 1_800_000_000, 50) == b.between(1_700_000_000, 1_800_000_000, 50)


def test_a_rules_bounds_are_told() -> None:
    text = parse({"cron": "0 9 * * *", "start": "2026-01-01", "end": "2026-01-31"}).describe()
    assert text == "at 09:00 every day, in UTC, from 2026-01-01T00:00:00Z, until 2026-01-31T23:59:59Z"


def test_equal_rules_are_equal_schedules() -> None:
    a, b = parse({"cron": "0 9 * * mon-fri"}), parse({"cron": "0 9 * * 1-5"})
    assert isinstance(a, Cron)
    assert a == b
    assert hash(a) == hash(b)
    assert a != parse({"cron": "0 9 * * 1-5", "dst": "literal"})
    assert a != parse({"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"})


@pytest.mark.parametrize("seconds", ["0", "00", "0-4/8", "0,0", "0/70"])
def test_a_zero_of_seconds_is_left_out_however_it_is_written(seconds: str) -> None:
    assert canonical({"cron": f"{seconds} 30 2 * * *"}) == {"cron": "30 2 * * *"}


def test_what_h_draws_is_no_matter_of_the_text() -> None:
    """Without its seed `H` may draw a day that meets no other; the trigger's own seed decides."""
    spec = {"cron": "0 0 H * 6L,0L", "day_or": False}
    seeds = [f"shop/etl/{n}" for n in range(60)]
    drawn = []
    for seed in seeds:
        try:
            drawn.append(parse(spec, seed=seed).describe())
        except InvalidInput:
            drawn.append("never")
    assert len(set(drawn)) > 1
    assert canonical(spec)["cron"] == "0 0 H * sunL,satL"
    with pytest.raises(InvalidInput):
        canonical({"cron": "0 0 30 2 thu", "day_or": False})
