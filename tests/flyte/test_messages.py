"""What Flyte declares, in our words and back: schedules, literals, and the request that creates a run."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flyteidl2.common.identifier_pb2 import TriggerName
from flyteidl2.common.run_pb2 import OffloadedInputData
from flyteidl2.core.literals_pb2 import KeyValuePair, Literal, Primitive, Scalar
from flyteidl2.task import common_pb2
from flyteidl2.task.common_pb2 import Cron, FixedRate, Inputs, NamedLiteral, Schedule, TriggerAutomationSpec
from flyteidl2.task.run_pb2 import RunSpec
from flyteidl2.trigger.trigger_definition_pb2 import TriggerSpec
from flyteidl2.workflow import run_definition_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from horarium.core import schedule as schedules
from horarium.core.instant import from_seconds, to_seconds
from horarium.core.keys import TriggerKey, run_name
from horarium.core.spec import Json
from horarium.errors import InvalidInput
from horarium.flyte.messages import (
    automation_of,
    check_action,
    create_run_request,
    literal,
    parameters_of,
    schedule_words,
    to_json,
    trigger_action,
    trigger_key,
    trigger_name,
)
from horarium.targets.base import FireRequest
from tests.unit.zones_of import CASES, ZONES_2025B

KEY = TriggerKey("flytesnacks", "development", "env.my_task", "daily")
SLOT = datetime(2026, 1, 5, 10, tzinfo=UTC)
DEPLOYED = datetime(2026, 1, 1, 3, 4, 5, 678_900, tzinfo=UTC)


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((CASES / name).read_text())
    return found


def scheduled(**fields: Any) -> TriggerAutomationSpec:
    return TriggerAutomationSpec(type=common_pb2.TYPE_SCHEDULE, schedule=Schedule(**fields))


def cron(expression: str, timezone: str = "") -> TriggerAutomationSpec:
    return scheduled(cron=Cron(expression=expression, timezone=timezone))


def stamp(at: datetime) -> Timestamp:
    found = Timestamp()
    found.FromDatetime(at)
    return found


def problem(automation: TriggerAutomationSpec) -> tuple[str, str]:
    with pytest.raises(InvalidInput) as wrong:
        schedule_words(automation, pointer="/schedule")
    return wrong.value.problems[0].pointer, wrong.value.problems[0].rule


# --- schedules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("robfig_next.json")[::7] + cases("robfig_next_standard.json"))
def test_a_cron_of_flytes_fires_when_robfig_says(case: dict[str, Any]) -> None:
    words = schedule_words(cron(case["expr"], case.get("tz", "UTC")))
    assert words is not None
    rule = schedules.parse(words, zones=ZONES_2025B)
    at = to_seconds(datetime.fromisoformat(case["from"]))
    expected = case["next"] if isinstance(case["next"], list) else [case["next"]]
    for text in expected:
        found = rule.after(at)
        if case.get("tz") != "Pacific/Chatham":
            assert found == to_seconds(datetime.fromisoformat(text))
        assert found is not None
        at = found


@pytest.mark.parametrize("case", cases("robfig_parse.json"))
def test_what_robfig_refuses_is_refused(case: dict[str, Any]) -> None:
    expression = case["expr"]
    if not case["ok"]:
        with pytest.raises(InvalidInput):
            schedule_words(cron(expression))
    elif case.get("next_from_2026_01_01") == "never":
        assert problem(cron(expression)) == ("/schedule/cron/expression", "this never names a time")
    else:
        assert schedule_words(cron(expression)) is not None


def test_without_a_zone_a_cron_is_in_utc() -> None:
    assert schedule_words(cron("0 6 * * *")) == schedule_words(cron("0 6 * * *", "UTC"))
    assert schedule_words(scheduled(cron_expression="0 6 * * *")) == schedule_words(cron("0 6 * * *"))
    assert schedule_words(cron("0 6 * * *", "Europe/Berlin")) == {
        "cron": "0 6 * * *",
        "dialect": "robfig",
        "timezone": "Europe/Berlin",
    }


@pytest.mark.parametrize(
    ("automation", "pointer"),
    [
        (cron("0 0 30 2 *"), "/schedule/cron/expression"),
        (cron("0 6 * * *", "Mars/Base"), "/schedule/cron/timezone"),
        (cron("CRON_TZ=Asia/Tokyo 0 6 * * *", "UTC"), "/schedule/cron/expression"),
        (scheduled(cron_expression="never"), "/schedule/cron_expression"),
        (scheduled(rate=FixedRate(value=0, unit=common_pb2.FIXED_RATE_UNIT_MINUTE)), "/schedule/rate/value"),
        (scheduled(rate=FixedRate(value=5)), "/schedule/rate/unit"),
        (scheduled(rate=FixedRate(value=5, unit=17)), "/schedule/rate/unit"),
        (scheduled(rate=FixedRate(value=2**32 - 1, unit=common_pb2.FIXED_RATE_UNIT_DAY)), "/schedule/rate"),
        (scheduled(rate=FixedRate(value=2**32 - 1, unit=1)), "/schedule/rate"),
        (
            scheduled(rate=FixedRate(value=1, unit=1, start_time=Timestamp(seconds=10**15))),
            "/schedule/rate/start_time",
        ),
        (scheduled(), "/schedule"),
    ],
)
def test_what_can_not_run_is_refused_with_its_field(automation: TriggerAutomationSpec, pointer: str) -> None:
    assert problem(automation)[0] == pointer


def test_a_trigger_that_time_does_not_start_has_no_schedule() -> None:
    assert schedule_words(TriggerAutomationSpec(type=common_pb2.TYPE_NONE)) is None
    assert schedule_words(TriggerAutomationSpec(type=common_pb2.TYPE_ARTIFACT)) is None


def test_a_rate_counts_from_its_start_else_from_the_anchor() -> None:
    start = datetime(2026, 3, 1, 12, tzinfo=UTC)
    hourly = FixedRate(value=2, unit=common_pb2.FIXED_RATE_UNIT_HOUR)
    assert schedule_words(scheduled(rate=hourly), anchor=DEPLOYED) == {
        "every": "2h",
        "start": "2026-01-01T03:04:05Z",
    }
    hourly.start_time.CopyFrom(stamp(start))
    assert schedule_words(scheduled(rate=hourly), anchor=DEPLOYED) == {
        "every": "2h",
        "start": "2026-03-01T12:00:00Z",
    }
    assert schedule_words(cron("@every 90s"), anchor=DEPLOYED) == {
        "every": "1m30s",
        "start": "2026-01-01T03:04:05Z",
    }


@pytest.mark.parametrize(
    "words",
    [
        {"cron": "0 6 * * 1-5", "dialect": "robfig"},
        {"cron": "0 6 * * *", "dialect": "robfig", "timezone": "Asia/Tokyo"},
        {"every": "1h30m", "start": "2026-01-01T03:04:05Z"},
        {"every": "1d"},
    ],
)
def test_the_way_back_is_read_as_the_same_rule(words: dict[str, Any]) -> None:
    automation = automation_of(words, "as_of")
    assert schedule_words(automation) == words
    assert automation.schedule.kickoff_time_input_arg == "as_of"


@pytest.mark.parametrize(
    "words",
    [
        {"cron": "0 6 * * *"},
        {"cron": "0 6 * * *", "dialect": "robfig", "end": "2030-01-01T00:00:00Z"},
        {"every": "90s"},
        {"every": {"months": 1}},
        {"rrule": "FREQ=DAILY"},
        {"at": "2030-01-01T00:00:00Z"},
    ],
)
def test_a_rule_that_flyte_has_no_words_for_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        automation_of(words)


# --- literals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [True, 0, -(2**63), 2**63 - 1, 1.5, "", "text", None, [], [1, "a", [None]], {}, {"a": {"b": [1.5]}}],
)
def test_a_plain_value_is_a_literal_and_comes_back(value: Json) -> None:
    inputs = Inputs(literals=[NamedLiteral(name="x", value=literal(value))])
    found = parameters_of(inputs)
    assert (found, type(found["x"])) == ({"x": value}, type(value))


def test_a_value_takes_the_type_of_the_literal_that_it_replaces() -> None:
    def like(**kind: Any) -> Literal:
        return Literal(scalar=Scalar(primitive=Primitive(**kind)))

    assert literal(3, like(float_value=1.5)) == like(float_value=3.0)
    assert literal("2026-01-05T11:00:00+01:00", like(datetime=stamp(DEPLOYED))) == like(datetime=stamp(SLOT))
    assert literal("1h", like(duration=timedelta(seconds=1))) == like(duration=timedelta(hours=1))
    assert literal("soon", like(datetime=stamp(DEPLOYED))) == like(string_value="soon")
    with pytest.raises(InvalidInput, match="64 bits"):
        literal(2**63)


def test_a_time_is_no_plain_value() -> None:
    at = Literal(scalar=Scalar(primitive=Primitive(datetime=stamp(SLOT))))
    assert parameters_of(Inputs(literals=[NamedLiteral(name="at", value=at)])) == {}


# --- the request ----------------------------------------------------------------------------------------


def fire(action: dict[str, Any], parameters: dict[str, Json] | None = None, **changes: Any) -> FireRequest:
    request = FireRequest(
        run_name=run_name(KEY, SLOT),
        trigger=KEY,
        origin="schedule",
        scheduled_time=SLOT,
        attempt=1,
        action=action,
        parameters=parameters or {},
        deadline=SLOT + timedelta(minutes=1),
    )
    return replace(request, **changes)


SPEC = TriggerSpec(
    inputs=Inputs(
        literals=[
            NamedLiteral(name="region", value=literal("eu")),
            NamedLiteral(name="rate", value=literal(0.5)),
        ],
        context=[KeyValuePair(key="team", value="data")],
    ),
    run_spec=RunSpec(queue="fast", overwrite_cache=True),
    active=True,
    task_version="v7",
)


def test_a_trigger_is_fired_with_all_that_its_spec_says_of_a_run() -> None:
    action = trigger_action(trigger_name(KEY, "acme"), SPEC)
    message = create_run_request(
        fire(
            action,
            {"rate": 2, "as_of": "2026-01-05T10:00:00Z", "extra": [1]},
            kickoff_time_arg="as_of",
        )
    )
    assert to_json(message) == {
        "run_id": {
            "org": "acme",
            "project": "flytesnacks",
            "domain": "development",
            "name": run_name(KEY, SLOT),
        },
        "trigger_name": {
            "org": "acme",
            "project": "flytesnacks",
            "domain": "development",
            "name": "daily",
            "task_name": "env.my_task",
        },
        "inputs": {
            "literals": [
                {"name": "region", "value": {"scalar": {"primitive": {"string_value": "eu"}}}},
                {"name": "rate", "value": {"scalar": {"primitive": {"float_value": 2.0}}}},
                {
                    "name": "extra",
                    "value": {
                        "collection": {"literals": [{"scalar": {"primitive": {"integer": "1"}}}]},
                    },
                },
                {
                    "name": "as_of",
                    "value": {"scalar": {"primitive": {"datetime": "2026-01-05T10:00:00Z"}}},
                },
            ],
            "context": [{"key": "team", "value": "data"}],
        },
        "run_spec": {"queue": "fast", "overwrite_cache": True},
        "source": "RUN_SOURCE_SCHEDULE_TRIGGER",
        "run_start_time": "2026-01-05T10:00:00Z",
    }


def test_offloaded_inputs_and_a_kickoff_time_both_reach_the_run() -> None:
    spec = TriggerSpec(offloaded_input_data=OffloadedInputData(uri="s3://b/in", inputs_hash="abc"))
    action = trigger_action(trigger_name(KEY), spec)
    message = create_run_request(
        fire(action, {"as_of": "2026-01-05T10:00:00Z"}, kickoff_time_arg="as_of"),
    )
    assert message.offloaded_input_data == spec.offloaded_input_data
    assert not message.HasField("inputs")
    assert message.run_start_time == stamp(SLOT)
    with pytest.raises(InvalidInput, match="region"):
        create_run_request(fire(action, {"region": "eu"}))


def test_nothing_is_said_of_inputs_where_there_are_none() -> None:
    message = create_run_request(fire({"trigger": {}}))
    assert message.WhichOneof("input_wrapper") is None
    assert trigger_key(message.trigger_name) == KEY


def test_a_task_is_run_by_its_version_or_by_its_spec() -> None:
    by_id = create_run_request(
        fire({"task": {"name": "other.task", "version": "v1", "project": "elsewhere"}})
    )
    assert to_json(by_id)["task_id"] == {
        "project": "elsewhere",
        "domain": "development",
        "name": "other.task",
        "version": "v1",
    }
    assert (by_id.run_id.project, by_id.run_id.domain) == ("elsewhere", "development")
    by_spec = create_run_request(fire({"task_spec": {"short_name": "t"}}), "acme")
    assert by_spec.task_spec.short_name == "t"
    assert (by_spec.run_id.org, by_spec.run_id.project) == ("acme", "flytesnacks")


def test_a_manual_run_does_not_claim_to_come_from_a_schedule() -> None:
    message = create_run_request(fire({"trigger": {}}, origin="manual"))
    assert message.source == run_definition_pb2.RUN_SOURCE_UNSPECIFIED
    assert message.run_start_time == stamp(SLOT)


def test_the_messages_of_an_action_are_checked_and_written_in_one_way() -> None:
    given = {"inputs": {"literals": [{"name": "a", "value": {"scalar": {"primitive": {"floatValue": 1}}}}]}}
    assert check_action(given, {}, "") == {
        "inputs": {"literals": [{"name": "a", "value": {"scalar": {"primitive": {"float_value": 1.0}}}}]}
    }
    with pytest.raises(InvalidInput) as wrong:
        check_action(
            {"inputs": {"literal": []}, "run_spec": "fast", "offloaded_inputs": {"hash": ""}}, {}, "/d"
        )
    assert [item.pointer for item in wrong.value.problems] == [
        "/d/inputs",
        "/d/offloaded_inputs",
        "/d/run_spec",
    ]
    with pytest.raises(InvalidInput, match="from one place"):
        check_action({"inputs": {}, "offloaded_inputs": {"uri": "s3://b/in"}}, {}, "")


# --- names ----------------------------------------------------------------------------------------------


def fnv1(text: str) -> int:
    """FNV-1, 64 bits, from its definition: multiply by the prime, then xor the octet."""
    found = 14_695_981_039_346_656_037
    for octet in text.encode():
        found = (found * 1_099_511_628_211) % 2**64 ^ octet
    return found


@pytest.mark.parametrize("case", cases("run_names.json"))
def test_a_runs_name_is_flytes(case: dict[str, str]) -> None:
    at = datetime.fromisoformat(case["scheduled_at"])
    name = TriggerName(
        project=case["project"], domain=case["domain"], task_name=case["task"], name=case["trigger"]
    )
    text = ":".join(
        [
            *(case[part] for part in ("project", "domain", "task", "trigger")),
            *(str(part) for part in at.timetuple()[:6]),
        ]
    )
    message = create_run_request(
        fire({"trigger": {}}, trigger=trigger_key(name), run_name=run_name(trigger_key(name), at))
    )
    assert message.run_id.name == case["run_name"] == f"r{fnv1(text):x}"
    assert from_seconds(to_seconds(at)) == at
