"""What the clock does to calendar intervals and recurrence rules is said in words."""

from __future__ import annotations

import pytest

from horarium.core.explain import Outcome
from horarium.core.explain_rules import jump_of_rule
from horarium.core.interval import CalendarInterval, parse_every
from horarium.core.rrule import parse_rrule
from horarium.core.zone import Transition, load_zone

BERLIN = load_zone("Europe/Berlin")
SPRING, AUTUMN = BERLIN.transitions(1_767_225_600, 1_798_761_600)  # 2026


def interval(zone: str = "Europe/Berlin") -> CalendarInterval:
    every = parse_every({"days": 1, "at": ["02:30", "09:00"]}, timezone=load_zone(zone))
    assert isinstance(every, CalendarInterval)
    return every


@pytest.mark.parametrize("jump", [SPRING, AUTUMN], ids=["spring", "autumn"])
def test_runs_are_what_the_rule_names(jump: Transition) -> None:
    for rule in (interval(), parse_rrule("FREQ=MINUTELY;INTERVAL=10", BERLIN, 0)):
        anomaly = jump_of_rule(rule, jump)
        assert anomaly is not None
        first_pass = range(jump.at + min(0, jump.jump), jump.at + 1)
        for run in anomaly.runs:
            assert rule.before(run) == run
            assert run in first_pass


def test_a_gap_moves_a_calendar_interval() -> None:
    anomaly = jump_of_rule(interval(), SPRING)
    assert anomaly is not None
    assert (anomaly.outcome, anomaly.runs) == (Outcome.MOVED, (SPRING.at,))
    assert anomaly.text == (
        "02:30 does not exist on 2026-03-29, the clock goes from 02:00 to 03:00: "
        "runs at 03:00, the first instant after it"
    )


def test_a_gap_takes_an_instance_of_a_recurrence_rule() -> None:
    anomaly = jump_of_rule(parse_rrule("FREQ=DAILY;BYHOUR=2;BYMINUTE=0,20,30,40", BERLIN, 0), SPRING)
    assert anomaly is not None
    assert (anomaly.outcome, anomaly.runs) == (Outcome.DROPPED, ())
    assert anomaly.text == (
        "02:00 … 02:40 (4 times) does not exist on 2026-03-29, the clock goes from 02:00 to 03:00: "
        "no instance, and not counted (RFC 5545 §3.3.10)"
    )


def test_an_overlap_is_the_first_pass() -> None:
    anomaly = jump_of_rule(interval(), AUTUMN)
    assert anomaly is not None
    assert (anomaly.outcome, anomaly.runs) == (Outcome.ONCE, (AUTUMN.at - 1_800,))
    assert anomaly.text == "02:30 comes twice on 2026-10-25: runs on the first pass only"


def test_a_lost_day_is_no_gap() -> None:
    (change,) = load_zone("Pacific/Apia").transitions(1_325_000_000, 1_325_400_000)
    anomaly = jump_of_rule(interval("Pacific/Apia"), change)
    assert anomaly is not None
    assert anomaly.outcome is Outcome.DROPPED
    assert "correction" in anomaly.text


def test_a_rule_that_names_nothing_there_has_no_anomaly() -> None:
    assert jump_of_rule(parse_rrule("FREQ=DAILY;BYHOUR=9", BERLIN, 0), SPRING) is None
