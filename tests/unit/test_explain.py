"""Explanations: what a jump of the clock did, policies side by side, a year's anomalies."""

from __future__ import annotations

from datetime import datetime

import pytest

from horarium.core.cron import Dst
from horarium.core.explain import Outcome, anomalies, compare, explained, local_text, year_of_anomalies
from horarium.core.instant import from_seconds, rfc3339, to_seconds
from horarium.core.schedule import parse
from horarium.core.zone import load_zone


def seconds(text: str) -> int:
    return to_seconds(datetime.fromisoformat(text))


def berlin(text: str, **spec: object) -> dict[str, object]:
    return {"cron": text, "timezone": "Europe/Berlin", **spec}


def test_a_moved_run_says_why() -> None:
    first, second = explained(parse(berlin("30 2 * * *")), seconds("2026-03-28T12:00:00Z"), 2)
    assert first.local == "2026-03-29T03:00:00+02:00"
    assert first.notes == (
        "02:30 does not exist on 2026-03-29, the clock goes from 02:00 to 03:00: "
        "runs at 03:00, the first instant after it (dst: vixie)",
    )
    assert second.notes == ()


def test_a_dropped_time_is_told_at_the_next_run() -> None:
    (first,) = explained(parse(berlin("30 2 * * *", dst="literal")), seconds("2026-03-28T12:00:00Z"), 1)
    assert first.local == "2026-03-30T02:30:00+02:00"
    assert "skipped (dst: literal" in first.notes[0]


def test_the_pass_of_an_overlap_is_told() -> None:
    (once,) = explained(parse(berlin("30 2 * * *")), seconds("2026-10-24T12:00:00Z"), 1)
    assert once.notes == ("02:30 comes twice on 2026-10-25: runs on the first pass only (dst: vixie)",)
    twice = explained(parse(berlin("30 2 * * *", dst="literal")), seconds("2026-10-24T12:00:00Z"), 2)
    assert [item.local for item in twice] == ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]
    assert all("both passes" in item.notes[0] for item in twice)


@pytest.mark.parametrize(
    ("text", "dst", "outcomes"),
    [
        ("30 2 * * *", "vixie", [Outcome.MOVED, Outcome.ONCE]),
        ("30 2 * * *", "literal", [Outcome.DROPPED, Outcome.TWICE]),
        ("30 2 * * *", "skip_once", [Outcome.DROPPED, Outcome.ONCE]),
        ("*/30 * * * *", "vixie", [Outcome.DROPPED, Outcome.TWICE]),
        ("30 4 * * *", "vixie", []),
    ],
)
def test_a_years_anomalies(text: str, dst: str, outcomes: list[Outcome]) -> None:
    rule = parse(berlin(text, dst=dst))
    found = year_of_anomalies(rule, 2026)
    assert [anomaly.outcome for anomaly in found] == outcomes
    for anomaly in found:
        for run in anomaly.runs:
            assert rule.after(run - 1) == run


def test_only_cron_rules_inside_their_bounds_have_anomalies() -> None:
    assert year_of_anomalies(parse({"every": "1h"}), 2026) == []
    assert year_of_anomalies(parse({"cron": "30 2 * * *"}), 2026) == []
    (only,) = year_of_anomalies(parse(berlin("30 2 * * *", start="2026-06-01")), 2026)
    assert only.outcome is Outcome.ONCE


def test_a_jump_of_a_day_is_told_as_a_correction() -> None:
    rule = parse({"cron": "0 9 * * *", "timezone": "Pacific/Apia"})
    (lost,) = anomalies(rule, seconds("2011-12-29T00:00:00Z"), seconds("2012-01-01T00:00:00Z"))
    assert lost.outcome is Outcome.DROPPED
    assert "correction" in lost.text


def test_policies_side_by_side() -> None:
    rows = compare(parse(berlin("30 2 * * *")), seconds("2026-10-24T12:00:00Z"), 3)
    assert [(rfc3339(from_seconds(row.at)), row.named_by) for row in rows] == [
        ("2026-10-25T00:30:00Z", (Dst.VIXIE, Dst.LITERAL, Dst.SKIP_ONCE)),
        ("2026-10-25T01:30:00Z", (Dst.LITERAL,)),
        ("2026-10-26T01:30:00Z", (Dst.VIXIE, Dst.LITERAL, Dst.SKIP_ONCE)),
    ]
    assert len(compare(parse({"every": "1h"}), 0, 2, (Dst.VIXIE, Dst.LITERAL))) == 2


def test_local_text_has_the_offset() -> None:
    assert local_text(load_zone("Asia/Kolkata"), 0) == "1970-01-01T05:30:00+05:30"
    assert local_text(load_zone("America/St_Johns"), 0) == "1969-12-31T20:30:00-03:30"
    assert local_text(None, 0) == "1970-01-01T00:00:00Z"
    assert local_text(load_zone("Europe/Berlin"), -3_000_000_000).endswith("+00:53:28")


def test_a_calendars_reason_is_told() -> None:
    rule = parse(
        {
            "cron": "0 9 * * *",
            "exclude": ["close"],
            "calendars": {"close": {"dates": ["2026-12-24"]}},
        }
    )
    (first,) = explained(rule, seconds("2026-12-23T12:00:00Z"), 1)
    assert first.local.startswith("2026-12-25T09:00:00")
    assert first.notes


def test_a_calendar_interval_and_a_recurrence_rule_have_anomalies_too() -> None:
    daily = {"every": {"days": 1, "at": "02:30"}, "timezone": "Europe/Berlin"}
    assert [found.outcome for found in year_of_anomalies(parse(daily), 2026)] == [Outcome.MOVED, Outcome.ONCE]
    rule = {"rrule": "DTSTART;TZID=Europe/Berlin:20260101T023000\nRRULE:FREQ=DAILY"}
    assert [found.outcome for found in year_of_anomalies(parse(rule), 2026)] == [
        Outcome.DROPPED,
        Outcome.ONCE,
    ]
    (first,) = explained(parse(rule), seconds("2026-03-28T12:00:00Z"), 1)
    assert "no instance, and not counted" in first.notes[0]


def test_a_moved_slot_says_where_it_comes_from() -> None:
    calendars = {"close": {"dates": ["2026-12-24"]}}
    rule = {"cron": "0 9 24 12 *", "exclude": ["close"], "calendars": calendars}
    for policy, local in (("next_business_day", "2026-12-25"), ("previous_business_day", "2026-12-23")):
        (first,) = explained(parse({**rule, "on_excluded": policy}), seconds("2026-12-01T00:00:00Z"), 1)
        assert first.local.startswith(local)
        assert first.notes == ("moved from 2026-12-24 (close)",)


def test_what_a_calendar_leaves_out_is_told_a_line_a_reason() -> None:
    calendars = {"close": {"ranges": ["2026-12-24..2026-12-26"]}}
    rule = parse({"cron": "0 9,17 * * *", "exclude": ["close"], "calendars": calendars})
    (first,) = explained(rule, seconds("2026-12-23T18:00:00Z"), 1)
    assert first.notes == ("2026-12-24 09:00 … 2026-12-26 17:00 (6 times) left out: close",)


def test_a_policy_is_changed_inside_calendars() -> None:
    rule = parse(berlin("30 2 * * *", exclude=["sun"], calendars={"sun": {"weekdays": ["sun"]}}))
    (row, *_) = compare(rule, seconds("2026-03-28T12:00:00Z"), 1)
    assert row.local == "2026-03-30T02:30:00+02:00"  # the gap is on a Sunday, which is left out
