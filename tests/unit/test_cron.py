"""Cron expressions: what each form means, what is refused and how, the DST table, English.

Every instant here was worked out by hand from a calendar.
"""

from __future__ import annotations

import subprocess
import sys
from calendar import isleap
from datetime import datetime

import pytest

from horarium.core.cron import Cron
from horarium.core.cron_text import LONGEST
from horarium.core.instant import MAX_SECONDS, MIN_SECONDS, from_seconds, rfc3339, to_seconds
from horarium.core.interval import Interval
from horarium.core.schedule import canonical, parse
from horarium.errors import InvalidInput, Problem

NOON = "2026-01-01T12:00:00Z"  # a Thursday


def seconds(text: str) -> int:
    return to_seconds(datetime.fromisoformat(text))


def after(text: str, start: str = NOON, count: int = 3, **spec: object) -> list[str]:
    schedule = parse({"cron": text, **spec})
    found: list[str] = []
    t = seconds(start)
    for _ in range(count):
        following = schedule.after(t)
        if following is None:
            break
        t = following
        found.append(rfc3339(from_seconds(t)))
    return found


def problems(text: object, **spec: object) -> tuple[Problem, ...]:
    with pytest.raises(InvalidInput) as refused:
        parse({"cron": text, **spec})
    return refused.value.problems


# --- forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 * * *", ["2026-01-02T00:00", "2026-01-03T00:00", "2026-01-04T00:00"]),
        ("*/20 13 * * *", ["2026-01-01T13:00", "2026-01-01T13:20", "2026-01-01T13:40"]),
        ("50/5 12 * * *", ["2026-01-01T12:50", "2026-01-01T12:55", "2026-01-02T12:50"]),
        ("5,1,3 12 * * *", ["2026-01-01T12:01", "2026-01-01T12:03", "2026-01-01T12:05"]),
        ("0 9 * * mon-fri", ["2026-01-02T09:00", "2026-01-05T09:00", "2026-01-06T09:00"]),
        ("0 9 * * 0", ["2026-01-04T09:00", "2026-01-11T09:00", "2026-01-18T09:00"]),
        ("0 9 * * 7", ["2026-01-04T09:00", "2026-01-11T09:00", "2026-01-18T09:00"]),
        ("0 9 * * fri-sun", ["2026-01-02T09:00", "2026-01-03T09:00", "2026-01-04T09:00"]),
        ("0 9 * * 5-7", ["2026-01-02T09:00", "2026-01-03T09:00", "2026-01-04T09:00"]),
        ("0 0 1 JAN,Jul ?", ["2026-07-01T00:00", "2027-01-01T00:00", "2027-07-01T00:00"]),
        ("0 0 L * *", ["2026-01-31T00:00", "2026-02-28T00:00", "2026-03-31T00:00"]),
        ("0 0 L-3 * *", ["2026-01-28T00:00", "2026-02-25T00:00", "2026-03-28T00:00"]),
        (
            "0 0 L-28 * *",
            ["2026-01-03T00:00", "2026-03-03T00:00", "2026-04-02T00:00"],
        ),  # no day 0 of February
        ("0 0 LW * *", ["2026-01-30T00:00", "2026-02-27T00:00", "2026-03-31T00:00"]),
        ("0 0 15w * *", ["2026-01-15T00:00", "2026-02-16T00:00", "2026-03-16T00:00"]),
        ("0 0 1W 8 *", ["2026-08-03T00:00", "2027-08-02T00:00", "2028-08-01T00:00"]),  # not back into July
        ("0 0 31W * *", ["2026-01-30T00:00", "2026-03-31T00:00", "2026-05-29T00:00"]),  # months with a 31st
        ("0 0 * * fri#2", ["2026-01-09T00:00", "2026-02-13T00:00", "2026-03-13T00:00"]),
        ("0 0 * * 5#5", ["2026-01-30T00:00", "2026-05-29T00:00", "2026-07-31T00:00"]),
        ("0 0 * * 5L", ["2026-01-30T00:00", "2026-02-27T00:00", "2026-03-27T00:00"]),
        ("0 0 * * sunL", ["2026-01-25T00:00", "2026-02-22T00:00", "2026-03-29T00:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00", "2036-02-29T00:00"]),
        ("0 0 13 * 5", ["2026-01-02T00:00", "2026-01-09T00:00", "2026-01-13T00:00"]),  # either
        ("0 0 */10 * 1", ["2026-05-11T00:00", "2026-06-01T00:00", "2026-08-31T00:00"]),  # both: a star
        ("0 0 13 * *", ["2026-01-13T00:00", "2026-02-13T00:00", "2026-03-13T00:00"]),
        ("@yearly", ["2027-01-01T00:00", "2028-01-01T00:00", "2029-01-01T00:00"]),
        ("@Monthly", ["2026-02-01T00:00", "2026-03-01T00:00", "2026-04-01T00:00"]),
        ("@weekly", ["2026-01-04T00:00", "2026-01-11T00:00", "2026-01-18T00:00"]),
        ("@midnight", ["2026-01-02T00:00", "2026-01-03T00:00", "2026-01-04T00:00"]),
        ("@hourly", ["2026-01-01T13:00", "2026-01-01T14:00", "2026-01-01T15:00"]),
        ("  0\t0  *  * * ", ["2026-01-02T00:00", "2026-01-03T00:00", "2026-01-04T00:00"]),
    ],
)
def test_a_form(text: str, expected: list[str]) -> None:
    assert after(text) == [f"{time}:00Z" for time in expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*/30 * * * * *", ["2026-01-01T12:00:30Z", "2026-01-01T12:01:00Z", "2026-01-01T12:01:30Z"]),
        ("15 0 12 * * *", ["2026-01-01T12:00:15Z", "2026-01-02T12:00:15Z", "2026-01-03T12:00:15Z"]),
        ("59,0 59 23 * * *", ["2026-01-01T23:59:00Z", "2026-01-01T23:59:59Z", "2026-01-02T23:59:00Z"]),
        ("0 0 0 * * ?", ["2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z", "2026-01-04T00:00:00Z"]),
    ],
)
def test_six_fields_have_seconds_first(text: str, expected: list[str]) -> None:
    assert after(text) == expected


def test_day_or_false_asks_for_both_days() -> None:
    assert after("0 0 13 * 5", count=2, day_or=False) == ["2026-02-13T00:00:00Z", "2026-03-13T00:00:00Z"]


def test_every_is_elapsed_time() -> None:
    assert parse({"cron": "@every 90s"}) == Interval(90)
    assert parse({"cron": "CRON_TZ=Asia/Tokyo @every 1h30m", "start": "2026-01-01T00:00:00Z"}).after(
        seconds("2026-01-01T00:00:00Z")
    ) == seconds("2026-01-01T01:30:00Z")


def test_a_zone_stands_before_the_expression() -> None:
    assert after("CRON_TZ=Asia/Tokyo 0 9 * * *", count=1) == ["2026-01-02T00:00:00Z"]
    assert after("CRON_TZ=Asia/Tokyo  @daily", count=1, timezone="Asia/Tokyo") == ["2026-01-01T15:00:00Z"]
    (problem,) = problems("CRON_TZ=Asia/Tokyo 0 9 * * *", timezone="Europe/Berlin")
    assert "contradicts" in problem.rule
    (problem,) = problems("CRON_TZ=Tokyo 0 9 * * *")
    assert (problem.code, problem.hint) == ("timezone", "Asia/Tokyo")


# --- H --------------------------------------------------------------------------------------------------


def test_h_is_drawn_from_the_seed_and_stays() -> None:
    def fields(text: str, seed: str) -> Cron:
        found = parse({"cron": text}, seed=seed)
        assert isinstance(found, Cron)
        return found

    # These values are promises: other releases and other processes must draw the same.
    rule = fields("H H * * *", "default/default/backup/default")
    drawn = fields("H H H H H", "default/default/backup/default").fields
    masks = (drawn.minutes, drawn.hours, drawn.days, drawn.months, drawn.weekdays)
    assert masks == (1 << 58, 1 << 19, 1 << 15, 1 << 12, 1 << 0)
    assert rule == fields("h h * * *", "default/default/backup/default")
    values = {
        seed: fields("H * * * *", seed).fields.minutes.bit_length() - 1 for seed in map(str, range(600))
    }
    assert set(values.values()) == set(range(60))
    spread = fields("H(0-29)/10 * * * *", "x").fields.minutes
    first = (spread & -spread).bit_length() - 1
    assert 0 <= first < 10
    assert spread == 1 << first | 1 << first + 10 | 1 << first + 20
    assert all(1 <= fields("0 0 H * *", str(n)).fields.days.bit_length() - 1 <= 28 for n in range(100))
    assert 3 <= fields("0 H(3-5) * * *", "x").fields.hours.bit_length() - 1 <= 5


def test_h_is_the_same_in_another_process() -> None:
    code = (
        "from horarium.core.schedule import parse\n"
        "print(parse({'cron': 'H H H H H'}, seed='default/default/backup/default').between(0, 10**10, 5))\n"
    )
    environment = {"PYTHONHASHSEED": "17", "PYTHONPATH": ":".join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    here = parse({"cron": "H H H H H"}, seed="default/default/backup/default").between(0, 10**10, 5)
    assert ran.stdout.strip() == str(here)


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position", "rule", "hint"),
    [
        ("60 * * * *", 0, "minute is 0 to 59", ""),
        ("* 24 * * *", 2, "hour is 0 to 23", ""),
        ("* * 0 * *", 4, "day of month is 1 to 31", ""),
        ("* * * 13 *", 6, "month is 1 to 12", ""),
        ("* * * * 8", 8, "day of week is 0 to 7", ""),
        ("  0  0 * * monday", 11, "day of week is 0 to 7", "mon"),
        ("0 0 * january *", 6, "jan to dec", "jan"),
        ("0 0 * * fri-mon", 8, "ranges go up", "fri-sat,sun-mon"),
        ("0 22-6 * * *", 2, "ranges go up", "22-23,0-6"),
        ("0 22-6/2 * * *", 2, "ranges go up", "22-23/2,0-6/2"),
        ("0 0 * nov-feb *", 6, "ranges go up", "nov-dec,jan-feb"),
        ("0 0 * * 6-0", 8, "ranges go up", "6-7"),
        ("*/0 * * * *", 2, "step of minute is a whole number from 1", "*/5"),
        ("1,,2 * * * *", 2, "empty item", ""),
        ("* * ?/2 * *", 4, "? stands alone", "*/2"),
        ("* * L-31 * *", 4, "1 to 30 days back", "L-3"),
        ("* * 32W * *", 4, "day of month is 1 to 31", ""),
        ("* * L/2 * *", 4, "a step does not go with L", ""),
        ("* * * * L", 8, "L in day of week follows a day", "friL"),
        ("* * * * mon#6", 8, "1st to 5th", "mon#1"),
        ("L * * * *", 0, "minute is 0 to 59", "day fields"),
        ("H(5-1) * * * *", 0, "range of H goes up", "H(1-5)"),
        ("H(5 * * * *", 0, "range in brackets", "H(0-59)"),
        ("٣ * * * *", 0, "minute is 0 to 59", ""),
        ("+5 * * * *", 0, "minute is 0 to 59", ""),
        ("1.5 * * * *", 0, "minute is 0 to 59", ""),
        ("99999999999999999999 * * * *", 0, "minute is 0 to 59", ""),
        ("@reboot", 0, "nicknames are", "at"),
        ("@every", None, "takes a duration", "@every 15m"),
        ("@daily 5", 0, "nicknames are", "@daily"),
        ("* * * *", None, "5 fields, or 6", ""),
        ("* * * * * * *", None, "5 fields, or 6", "leave the year out"),
        ("", None, "not empty", ""),
        ("CRON_TZ=UTC", 0, "an expression follows", "CRON_TZ="),
        (5, None, "is text", ""),
    ],
)
def test_a_refusal_says_where_and_what(text: object, position: int | None, rule: str, hint: str) -> None:
    (problem,) = problems(text)
    assert problem.pointer == "/cron"
    assert problem.position == position
    assert rule in problem.rule
    assert hint in problem.hint


def test_all_fields_are_judged_at_once() -> None:
    assert [problem.position for problem in problems("60 25 32 13 8")] == [0, 3, 6, 9, 12]


@pytest.mark.parametrize(
    "text", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31 2 ?", "0 0 L-30 2 *", "0 0 LW * sun", "0 0 1-7 * 1#2"]
)
def test_a_date_that_never_comes_is_refused(text: str) -> None:
    spec: dict[str, object] = {"day_or": False} if "1-7" in text or "LW" in text else {}
    (problem,) = problems(text, **spec)
    assert problem.code == "never"


@pytest.mark.parametrize("text", ["0 0 29 2 1", "0 0 31 4,5 *", "0 0 * 2 mon#5", "0 0 L 2 *", "0 0 30 2 1"])
def test_a_date_that_comes_seldom_is_taken(text: str) -> None:
    assert len(after(text, count=2)) == 2


# --- the DST table --------------------------------------------------------------------------------------

GAP, OVERLAP = "2026-03-28T12:00:00Z", "2026-10-24T12:00:00Z"  # Berlin: 02:00 to 03:00, 03:00 to 02:00


@pytest.mark.parametrize(
    ("text", "dst", "gap", "overlap"),
    [
        ("30 2 * * *", "vixie", ["03-29T01:00", "03-30T00:30"], ["10-25T00:30", "10-26T01:30"]),
        ("30 2 * * *", "literal", ["03-30T00:30", "03-31T00:30"], ["10-25T00:30", "10-25T01:30"]),
        ("30 2 * * *", "skip_once", ["03-30T00:30", "03-31T00:30"], ["10-25T00:30", "10-26T01:30"]),
        # Several times in the gap are one run; so is one that the end of the gap has by itself.
        ("15,45 2 * * *", "vixie", ["03-29T01:00", "03-30T00:15"], ["10-25T00:15", "10-25T00:45"]),
        ("0 2,3 * * *", "vixie", ["03-29T01:00", "03-30T00:00"], ["10-25T00:00", "10-25T02:00"]),
        # The hour field begins with a star: nothing is made up for, every real instant counts.
        ("0 */2 * * *", "vixie", ["03-28T13:00", "03-28T15:00"], ["10-24T14:00", "10-24T16:00"]),
        ("*/30 2 * * *", "vixie", ["03-30T00:00", "03-30T00:30"], ["10-25T00:00", "10-25T00:30"]),
    ],
)
def test_the_dst_table(text: str, dst: str, gap: list[str], overlap: list[str]) -> None:
    spec = {"timezone": "Europe/Berlin", "dst": dst}
    assert after(text, GAP, 2, **spec) == [f"2026-{time}:00Z" for time in gap]
    assert after(text, OVERLAP, 2, **spec) == [f"2026-{time}:00Z" for time in overlap]


def test_a_step_runs_at_every_real_instant_of_an_overlap() -> None:
    night = {"timezone": "Europe/Berlin"}
    hours = after("0 * * * *", "2026-10-24T22:30:00Z", 5, **night)
    assert hours == [f"2026-10-{day}:00:00Z" for day in ("24T23", "25T00", "25T01", "25T02", "25T03")]
    hours = after("0 * * * *", "2026-10-24T22:30:00Z", 3, dst="skip_once", **night)
    assert hours == [f"2026-10-{day}:00:00Z" for day in ("24T23", "25T00", "25T02")]


def test_seconds_in_a_gap_are_one_run() -> None:
    found = after("*/10 30 2 * * *", GAP, 2, timezone="Europe/Berlin")
    assert found == ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
    assert len(after("*/10 30 2 * * *", "2026-10-25T00:00:00Z", 7, timezone="Europe/Berlin")) == 7
    assert after("*/10 30 2 * * *", "2026-10-25T00:30:50Z", 1, timezone="Europe/Berlin") == [
        "2026-10-26T01:30:00Z"
    ]


def test_a_jump_of_a_day_is_no_gap_to_make_up_for() -> None:
    # Samoa had no 30 December 2011: Thursday's midnight, ten hours behind, became Saturday's, fourteen ahead.
    found = after("0 9 * * *", "2011-12-29T12:00:00Z", 3, timezone="Pacific/Apia")
    assert found == ["2011-12-29T19:00:00Z", "2011-12-30T19:00:00Z", "2011-12-31T19:00:00Z"]


@pytest.mark.parametrize("start", [f"2026-11-01T0{5 + n // 60}:{n % 60:02}:00Z" for n in range(0, 120, 7)])
def test_any_start_inside_a_repeated_hour_gives_the_same_series(start: str) -> None:
    rule = {"cron": "*/20 1 * * *", "timezone": "America/New_York"}
    whole = parse(rule).between(seconds("2026-11-01T04:00:00Z"), seconds("2026-11-03T00:00:00Z"))
    assert len(whole) == 9
    here = seconds(start)
    assert parse(rule).between(here, whole[-1]) == [t for t in whole if t > here]


# --- far years, hostile text ----------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Manila", "Pacific/Apia"])
@pytest.mark.parametrize(
    "text", ["* * * * *", "0 0 29 2 *", "30 2 * * *", "0 0 L * 5#5", "*/7 59 23 31 12 *"]
)
def test_the_ends_of_time(zone: str, text: str) -> None:
    schedule = parse({"cron": text, "timezone": zone, "day_or": False})
    first = schedule.after(MIN_SECONDS - 10**12)
    last = schedule.before(MAX_SECONDS + 10**12)
    assert first is not None
    assert last is not None
    assert MIN_SECONDS <= first < last <= MAX_SECONDS
    assert schedule.after(MAX_SECONDS) is None
    assert schedule.after(last) is None
    assert schedule.before(MIN_SECONDS - 1) is None
    assert schedule.before(first) == first
    assert schedule.before(first - 1) is None
    assert schedule.between(last - 1, MAX_SECONDS + 10**9) == [last]


def test_a_walk_goes_on_to_the_end_of_time() -> None:
    rule = parse({"cron": "0 0 29 2 *"})
    assert isinstance(rule, Cron)
    walked = list(rule.walk(seconds("2026-01-01T00:00:00Z")))
    assert walked == [seconds(f"{year}-02-29T00:00:00Z") for year in range(2026, 10_000) if isleap(year)]


def test_a_rule_whose_time_is_always_in_the_gap_ends() -> None:
    rule = {"cron": "30 2 8-14 3 0", "timezone": "America/New_York", "day_or": False}
    always = parse({**rule, "dst": "literal"})
    start = seconds("2026-01-01T00:00:00Z")
    assert always.after(start) is None
    assert always.between(start, MAX_SECONDS) == []
    assert always.before(seconds("9999-01-01T00:00:00Z")) == seconds("2006-03-12T07:30:00Z")
    assert len(parse(rule).between(start, seconds("2029-01-01T00:00:00Z"))) == 3


@pytest.mark.parametrize(
    "text",
    [
        "0-59/1," * 1_000 + " * * * *",
        "0-59/1," * 1_000 + "0 * * * *",
        "* " * 5_000,
        "9" * 10_000,
        "H" * 10_000 + " * * * *",
        "(" * 10_000,
        "1-" * 5_000 + "2 * * * *",
        "*/" + "9" * 10_000 + " * * * *",
        "0 0 L,LW,1W,L-1," + "15W," * 2_000 + "L * *",
        "0 0 * * " + "mon#1," * 1_600 + "0",
        "CRON_TZ=" + "A" * 10_000 + " * * * * *",
        "@every " + "9" * 10_000 + "h",
        "@every " + "1h" * 4_000,
        "x" * (LONGEST + 1),
    ],
)
@pytest.mark.parametrize("dialect", ["horarium", "robfig"])
def test_hostile_text_is_answered(text: str, dialect: str) -> None:
    problems: tuple[Problem, ...] = ()
    try:
        parse({"cron": text, "dialect": dialect}).after(0)
    except InvalidInput as refused:
        problems = refused.problems
    assert all(len(str(problem)) < 1_000 for problem in problems)


# --- words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("30 2 * * *", "at 02:30 every day"),
        ("0 9 * * 1-5", "at 09:00, Monday to Friday"),
        ("0 9,17 * * sat,sun", "at 09:00 and 17:00, on Saturday and Sunday"),
        ("*/5 7-19 * * mon-fri", "every 5 minutes from 07:00 to 19:59, Monday to Friday"),
        ("0 */2 * * *", "at minute 0 of every 2nd hour from 00"),
        ("0 0 29 2 *", "at 00:00, on day 29 of the month in February"),
        ("0 0 13 * 5", "at 00:00, on day 13 of the month or on Friday"),
        ("0 0 */10 * 1", "at 00:00, on days 1, 11, 21 and 31 of the month if it is a Monday"),
        ("0 0 L-3 * *", "at 00:00, on 3 days before the last day of the month"),
        ("0 0 * * 5#2", "at 00:00, on the 2nd Friday of the month"),
        ("0 0 1 jan,jul *", "at 00:00, on day 1 of the month in January and July"),
        ("* * * * * *", "every second"),
        ("@hourly", "at minute 0 of every hour"),
    ],
)
def test_a_rule_in_english(text: str, expected: str) -> None:
    assert parse({"cron": text}).describe() == f"{expected}, in UTC"


# --- one way to write it --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*/5  * * * MON-fri", "*/5 * * * 1-5"),
        ("@daily", "0 0 * * *"),
        ("00 09 * * 1,2,3,4,5", "0 9 * * 1-5"),
        ("0 0 * * sun", "0 0 * * 0"),
        ("0 0 ? * 7", "0 0 * * 0"),
        ("0 0 0 * * *", "0 0 * * *"),
        ("0-59/15 * * * *", "0-45/15 * * * *"),  # not a star: with a fixed hour it would be fixed-time
        ("*/1 * * * *", "* * * * *"),
        ("h(0-29)/10 0 * jan *", "H(0-29)/10 0 * 1 *"),
        ("0 0 LW,1W,5 * fri#2", "0 0 5,LW,1W * fri#2"),
        ("H,* * * * *", "0-59,H * * * *"),
    ],
)
def test_the_canonical_text(text: str, expected: str) -> None:
    written = canonical({"cron": text})
    assert written == {"cron": expected}
    assert canonical(written) == written
    assert parse(written, seed="s") == parse({"cron": text}, seed="s")
