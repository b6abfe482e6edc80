"""Lint: each code on a rule that has it and on one that has not, silencing, and the form that spreads."""

from __future__ import annotations

from datetime import datetime

import pytest

from horarium.core.instant import to_seconds
from horarium.core.lint import CODES, Finding, Subject, lint
from horarium.core.schedule import parse

NOW = to_seconds(datetime.fromisoformat("2026-01-01T00:00:00Z"))


def look(**spec: object) -> list[Finding]:
    return lint([Subject("etl/nightly", spec)], NOW)


@pytest.mark.parametrize(
    ("code", "bad", "good"),
    [
        ("never", {"cron": "0 0 30 2 *"}, {"cron": "0 0 28 2 *"}),
        ("never", {"cron": "0 9 * * *", "end": "2025-01-01"}, {"cron": "0 9 * * *", "end": "2027-01-01"}),
        (
            "never",
            {
                "cron": "30 2 8-14 3 0",
                "day_or": False,
                "dst": "literal",
                "timezone": "America/New_York",
            },
            {"cron": "30 2 8-14 3 0", "day_or": False, "timezone": "America/New_York"},
        ),
        ("rare", {"cron": "0 0 29 2 *"}, {"cron": "0 0 28 2 *"}),
        ("day_or", {"cron": "0 0 13 * 5"}, {"cron": "0 0 */13 * 5"}),
        ("day_or", {"cron": "0 0 13 * 5"}, {"cron": "0 0 13 * 5", "day_or": False}),
        (
            "dst_gap",
            {"cron": "30 2 * * *", "timezone": "Europe/Berlin"},
            {"cron": "30 3 * * *", "timezone": "Europe/Berlin"},
        ),
        (
            "dst_overlap",
            {"cron": "30 1 * * *", "timezone": "America/New_York"},
            {"cron": "*/30 * * * *", "timezone": "America/New_York"},
        ),
        (
            "dst_gap",
            {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "dialect": "robfig"},
            {"cron": "*/30 * * * *", "timezone": "Europe/Berlin", "dialect": "robfig"},
        ),
        (
            "dst_gap",
            {"every": {"days": 1, "at": "02:30"}, "timezone": "Europe/Berlin", "start": "2026-01-01"},
            {"every": {"days": 1, "at": "03:30"}, "timezone": "Europe/Berlin", "start": "2026-01-01"},
        ),
        (
            "dst_gap",
            {"rrule": "DTSTART;TZID=Europe/Berlin:20260101T023000\nRRULE:FREQ=DAILY"},
            {"rrule": "DTSTART;TZID=Europe/Berlin:20260101T003000\nRRULE:FREQ=HOURLY"},
        ),
        (
            "dst_overlap",
            {"rrule": "FREQ=DAILY;BYHOUR=1", "timezone": "America/New_York"},
            {"rrule": "FREQ=DAILY;BYHOUR=3", "timezone": "America/New_York"},
        ),
        ("uneven_step", {"cron": "*/7 * * * *"}, {"cron": "*/6 * * * *"}),
        ("uneven_step", {"cron": "0 */5 * * *"}, {"cron": "0 */6 * * *"}),
        ("uneven_step", {"cron": "*/90 * * * *"}, {"cron": "0-59/7 * * * *"}),
        ("sub_minute", {"every": "30s"}, {"every": "60s"}),
        ("sub_minute", {"cron": "*/10 * * * * *"}, {"cron": "10 * * * * *"}),
        (
            "zone_abbreviation",
            {"cron": "0 9 * * *", "timezone": "EST"},
            {"cron": "0 9 * * *", "timezone": "America/New_York"},
        ),
        ("zone_abbreviation", {"cron": "CRON_TZ=EST 0 9 * * *"}, {"every": "1h"}),
    ],
)
def test_a_code(code: str, bad: dict[str, object], good: dict[str, object]) -> None:
    (finding,) = [finding for finding in look(**bad) if finding.code == code]
    assert finding.trigger == "etl/nightly"
    assert finding.reason
    assert finding.fix
    assert code in CODES
    assert code not in {finding.code for finding in look(**good)}


def test_a_gap_is_told_with_what_will_happen() -> None:
    gap, overlap = look(cron="30 2 * * *", timezone="Europe/Berlin")
    assert gap.reason == (
        "02:30 does not exist on 2026-03-29, the clock goes from 02:00 to 03:00: "
        "runs at 03:00, the first instant after it (dst: vixie)"
    )
    assert overlap.reason == "02:30 comes twice on 2026-10-25: runs on the first pass only (dst: vixie)"


def test_an_everyday_rule_has_no_findings() -> None:
    assert look(cron="0 9 * * mon-fri", timezone="Europe/Berlin") == []
    assert look(at="2026-05-01T00:00:00Z") == []
    assert look(cron="not cron") == []  # validation's to say


def test_a_crowd_and_the_form_that_spreads_it() -> None:
    subjects = [Subject(f"etl/job-{n}", {"cron": "0 3 * * *"}) for n in range(25)]
    (finding,) = lint(subjects, NOW)
    assert finding.code == "crowded"
    assert "25 triggers share 2026-01-01T03:00:00+00:00" in finding.reason
    assert "'H 3 * * *'" in finding.fix
    spread = [Subject(s.trigger, {"cron": "H 3 * * *"}, seed=s.trigger) for s in subjects]
    assert lint(spread, NOW) == []
    assert lint(subjects, NOW, crowd=25) == []
    assert len({parse(s.spec, seed=s.seed).after(NOW) for s in spread}) > 10


def test_a_finding_is_silenced_by_its_code() -> None:
    spec = {"cron": "*/7 * * * *"}
    assert lint([Subject("a", spec)], NOW, silenced=["uneven_step"]) == []
    assert lint([Subject("a", spec, silenced=frozenset({"uneven_step"}))], NOW) == []
    assert [f.trigger for f in lint([Subject("a", spec), Subject("b", spec)], NOW)] == ["a", "b"]


def test_findings_are_values() -> None:
    finding = Finding("rare", "a", "r", "f")
    assert str(finding) == "a: rare: r; try: f"
    assert finding.to_json() == {"code": "rare", "trigger": "a", "reason": "r", "fix": "f"}


def test_of_others_only_their_part_in_a_crowd_is_told() -> None:
    crowd = [Subject(f"n{n}", {"cron": "0 12 * * *"}) for n in range(30)]
    often = [Subject(f"t{n}", {"every": "30s", "start": "2026-01-02"}) for n in range(2)]
    alone = Subject("alone", {"cron": "0 3 * * *"})
    everything = [*crowd, *often, alone]
    assert [(found.code, found.trigger) for found in lint(everything, NOW, of={"t1"})] == [
        ("sub_minute", "t1")
    ]
    assert [(found.code, found.trigger) for found in lint(everything, NOW, of={"n7"})] == [("crowded", "n0")]
    assert lint(everything, NOW, of={"n7"}, silenced={"crowded"}) == []
    assert lint(everything, NOW, of={"alone"}) == []
