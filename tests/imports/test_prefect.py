"""The deployments of a prefect.yaml become triggers; croniter, which Prefect asks, is the oracle of cron.

How Prefect's schedules map to our words is `horarium.prefect.schedules`, which has tests of its own.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from croniter import croniter
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from horarium.errors import InvalidInput
from horarium.sources.imported import Imported
from horarium.sources.prefect_yaml import import_prefect
from tests.imports.written import instants, only, specs

EXAMPLE = Path(__file__).parents[2] / "examples" / "prefect.manifest"


def imported(*deployments: dict[str, Any], **options: Any) -> Imported:
    items = "".join(f"- {json.dumps(item)}\n" for item in deployments)
    return import_prefect(f"deployments:\n{items}", "prefect.yaml", **options)


def deployment(*schedules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "nightly", "flow_name": "etl", "schedules": list(schedules), **more}


def test_a_deployment_makes_its_flow_run() -> None:
    one = {"cron": "0 6 * * *", "timezone": "Europe/Berlin", "parameters": {"limit": 1}, "slug": "day"}
    two = {"interval": 3600, "anchor_date": "2026-01-01T00:00:07Z", "active": False}
    found = specs(imported(deployment(one, two, parameters={"table": "orders"})))

    assert set(found) == {"nightly/day", "nightly/every"}
    day, every = found["nightly/day"], found["nightly/every"]
    assert (day.target, day.action) == ("prefect", {"deployment": "etl/nightly"})
    assert day.schedule == {"cron": "0 6 * * *", "timezone": "Europe/Berlin"}
    assert day.parameters == {"table": "orders", "limit": 1}
    assert (day.active, every.active) == (True, False)
    assert instants(every, datetime(2026, 1, 1, tzinfo=UTC), 1) == [datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)]


def test_the_target_is_written_without_a_secret() -> None:
    text = imported(
        deployment({"cron": "@daily"}), url="https://api.prefect.cloud/api/accounts/a/workspaces/w"
    ).text
    assert 'api_key: "env:PREFECT_API_KEY"' in text
    assert "api_key" not in imported(deployment({"cron": "@daily"})).text


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (None, "load-orders"),
        ("@flow\ndef load_orders(): ...", "load-orders"),
        ("@flow(name='Load it')\ndef load_orders(): ...", "Load it"),
        ("NAME = 'x'\n@flow(name=NAME)\nasync def load_orders(): ...", "x"),
    ],
)
def test_the_flows_name_is_that_of_its_source(source: str | None, name: str) -> None:
    asked: list[str] = []

    def read(path: str) -> str | None:
        asked.append(path)
        return source

    item = {"name": "a", "entrypoint": "flows/load.py:load_orders", "schedule": {"cron": "@daily"}}
    result = imported(item, read=read)
    assert only(result).action["deployment"] == f"{name}/a"
    assert asked == ["flows/load.py"]
    assert bool(result.notes) is (source is None)


@pytest.mark.parametrize("active", [True, False])
def test_the_old_word_and_a_pause(active: bool) -> None:
    item = {"name": "a", "flow_name": "f", "schedule": {"cron": "@daily"}, "paused": not active}
    assert only(imported(item)).active is active
    older = {"name": "a", "flow_name": "f", "schedule": {"cron": "@daily"}, "is_schedule_active": active}
    assert only(imported(older)).active is active


def test_what_prefect_deploy_fills_in_stays_as_it_was_deployed() -> None:
    item = deployment({"cron": "@daily"}, parameters={"a": 1, "b": ["{{ prefect.variables.b }}"]})
    result = imported(item)
    assert only(result).parameters == {"a": 1}
    (note,) = result.notes
    assert (note.line, "parameter b has a template" in note.text) == (2, True)


def test_a_limit_of_a_schedule_is_named_and_costs_nothing_else() -> None:
    result = imported(deployment({"cron": "@daily", "max_active_runs": 1, "catchup": True}))
    assert [(item.text, item.whole) for item in result.dropped] == [
        ("max_active_runs: 1", False),
        ("catchup: True", False),
    ]
    assert list(specs(result)) == ["nightly"]


def test_a_word_that_is_none_is_noted() -> None:
    (note,) = imported(deployment({"cron": "@daily"}, schedlues=[])).notes
    assert "schedlues is no word of a deployment that is known here: is it meant as schedules?" in note.text


def test_a_deployment_that_is_deployed_twice_is_the_later_one() -> None:
    result = imported(deployment({"cron": "@daily"}), deployment({"cron": "@hourly"}))
    assert only(result).schedule["cron"] == "0 * * * *"
    assert [note.text for note in result.notes] == ["etl/nightly is set in line 2 too; the last one counts"]
    result = imported(
        deployment({"cron": "@daily"}), {**deployment({"cron": "@hourly"}), "flow_name": "other"}
    )
    assert {spec.action["deployment"] for spec in specs(result).values()} == {"etl/nightly", "other/nightly"}


def test_a_flow_that_its_source_does_not_have_is_noted() -> None:
    item = {"name": "a", "entrypoint": "flows.py:load_it", "schedule": {"cron": "@daily"}}
    result = imported(item, read=lambda name: "from elsewhere import load_it")
    assert only(result).action["deployment"] == "load-it/a"
    assert "has no function load_it" in result.notes[0].text


def test_anchors_merge_keys_and_clock_times() -> None:
    text = """
definitions:
  zone: &zone {timezone: Asia/Tokyo}
deployments:
- name: a
  flow_name: f
  schedules:
  - {cron: "0 9 * * *", <<: *zone}
  - {interval: 01:30:00, anchor_date: 2026-01-01T00:00:00Z}
  - {interval: "01:30:00", anchor_date: 2026-01-01T00:00:00Z, slug: text}
"""
    found = specs(import_prefect(text, "x"))
    assert found["a/cron"].schedule["timezone"] == "Asia/Tokyo"
    assert found["a/every"].schedule == found["a/text"].schedule


def test_an_rrule_may_be_json() -> None:
    rule = json.dumps({"rrule": "FREQ=DAILY;BYHOUR=4", "timezone": "Asia/Tokyo"})
    spec = only(imported(deployment({"rrule": rule})))
    assert instants(spec, datetime(2026, 1, 1, tzinfo=UTC), 1) == [datetime(2026, 1, 1, 19, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ({}, "exactly one of cron"),
        ({"cron": "@daily", "interval": 60}, "exactly one of cron"),
        ({"cron": "{{ $CRON }}"}, "template"),
        ({"cron": "@daily", "active": "{{ $ACTIVE }}"}, "template"),
        ({"cron": "@daily", "parameters": {"a": "{{ prefect.variables.x }}"}}, "template"),
        ({"cron": "@daily", "timezone": "Nowhere/Land"}, "tz database"),
        ({"cron": "R * * * *"}, "random"),
        ({"interval": 0.5}, "whole seconds"),
        ({"rrule": "FREQ=SOMETIMES"}, ""),
        ({"rrule": "{"}, "no JSON"),
        ({"cron": "@daily", "max_runs": 3}, "max_runs"),
        ({"cron": "@daily", "day_or": "maybe"}, "neither true nor false"),
    ],
)
def test_a_schedule_that_cannot_be_carried_over_costs_itself_alone(
    schedule: dict[str, Any], reason: str
) -> None:
    text = "deployments:\n- name: a\n  flow_name: f\n  schedules:\n"
    text += f"  - {json.dumps({'cron': '@hourly'})}\n  - {json.dumps(schedule)}\n"
    result = import_prefect(text, "x")
    (dropped,) = result.dropped
    assert (dropped.line, dropped.text, dropped.whole) == (6, "a: schedule 2", False)
    assert reason in dropped.reason
    assert list(specs(result)) == ["a/cron"]
    assert "# Not carried over, line 6: a: schedule 2" in result.text


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"name": None}, "no name"),
        ({"name": "a"}, "which flow"),
        ({"name": "a", "flow_name": "f", "paused": "{{ x }}"}, "neither true nor false"),
        ({"name": "a", "flow_name": "f", "schedules": "x"}, "no list"),
        (
            {"name": "a", "flow_name": "f", "schedules": [{"cron": "R * * * *"}]},
            "none of its schedules: cron 'R': a random",
        ),
        ({"name": "a", "flow_name": "f", "parameters": [1]}, "no mapping"),
        ({"name": "a/b", "flow_name": "f"}, "none with / %"),
        ({"name": "a", "flow_name": "f%"}, "none with / %"),
        ({"name": "a", "flow_name": "f", "is_schedule_active": 0}, "neither true nor false"),
    ],
)
def test_a_deployment_that_cannot_be_carried_over_is_named(item: dict[str, Any], reason: str) -> None:
    result = imported({"schedule": {"cron": "@daily"}, **item}, deployment({"cron": "@daily"}))
    (dropped,) = result.dropped
    assert (dropped.line, dropped.whole) == (2, True)
    assert reason in dropped.reason
    assert list(specs(result)) == ["nightly"]


@pytest.mark.parametrize("text", ["", "a: 1", "deployments: 5", "deployments: [", "- a"])
def test_what_is_no_prefect_yaml_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        import_prefect(text, "x")


def test_the_example_is_imported() -> None:
    result = import_prefect(EXAMPLE.read_text(), "examples/prefect.manifest")
    assert list(specs(result)) == ["nightly/weekdays", "nightly/weekend", "poll"]
    assert [item.text for item in result.dropped] == ["nightly: schedule 3"]
    assert any("by-hand has no schedule" in note.text for note in result.notes)


FIELD = st.sampled_from(["*", "*/7", "1", "1-5", "2,4", "1-5/2", "3"])


@settings(max_examples=100, deadline=None)
@given(
    st.lists(FIELD, min_size=5, max_size=5),
    st.booleans(),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
)
def test_the_instants_of_cron_are_croniters(fields: list[str], day_or: bool, naive: datetime) -> None:
    text, after = " ".join(fields), naive.replace(microsecond=0)
    result = imported(deployment({"cron": text, "day_or": day_or}))
    assume(not result.dropped)  # a date that never is
    series = croniter(text, after, day_or=day_or)
    expected = [series.get_next(datetime).replace(tzinfo=UTC) for _ in range(6)]
    assert instants(only(result), after.replace(tzinfo=UTC), 6) == expected


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 10**6), st.datetimes(datetime(2020, 1, 1), datetime(2026, 1, 1)))
def test_the_instants_of_an_interval_count_from_its_anchor(seconds: int, anchor: datetime) -> None:
    start = anchor.replace(microsecond=0, tzinfo=UTC)
    spec = only(imported(deployment({"interval": seconds, "anchor_date": start.isoformat()})))
    expected = [start + timedelta(seconds=seconds) * n for n in range(1, 4)]
    assert instants(spec, start, 3) == expected
