"""Recurrence rules against python-dateutil where dateutil is right, and the list of where it is not.

dateutil evaluates wall-clock times without their zone, so the comparison is in UTC. `DIFFERENCES` holds an
example of every kind of difference with the text that decides; `docs/schedules-rules.md` shows the same list.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from dateutil.rrule import rrulestr

from horarium.core.instant import from_seconds, to_seconds
from horarium.core.rrule import parse_rrule
from horarium.core.zone import load_zone
from horarium.errors import InvalidInput

ZULU = load_zone("UTC")
DAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
SPANS = {
    "YEARLY": 365 * 12,
    "MONTHLY": 365 * 4,
    "WEEKLY": 365 * 2,
    "DAILY": 400,
    "HOURLY": 50,
    "MINUTELY": 2,
    "SECONDLY": 0.1,
}

# DTSTART and rule; dateutil's first local times; ours; why.
DIFFERENCES = [
    (
        "DTSTART;TZID=Europe/Berlin:20260328T023000",
        "FREQ=DAILY;COUNT=3",
        ["2026-03-28 02:30", "2026-03-29 02:30", "2026-03-30 02:30"],
        ["2026-03-28 02:30", "2026-03-30 02:30", "2026-03-31 02:30"],
        "§3.3.10: nonexistent local times are ignored and not counted",
    ),
    (
        "DTSTART:20160916T045100Z",
        "FREQ=WEEKLY;BYDAY=TU,WE,SA,FR;BYSETPOS=2",
        ["2016-09-17 04:51", "2016-09-21 04:51"],
        ["2016-09-21 04:51", "2016-09-28 04:51"],
        "§3.3.10: BYSETPOS chooses from one interval of FREQ, a week that begins at WKST, also in the first",
    ),
    (
        "DTSTART:20180501T090000Z",
        "FREQ=MONTHLY;BYDAY=-1MO,TU",
        [],
        ["2018-05-01 09:00", "2018-05-08 09:00"],
        "§3.3.10: BYDAY is a list; a numbered and a plain weekday in it are two members",
    ),
    (
        "DTSTART:20210101T090000Z",
        "FREQ=YEARLY;BYWEEKNO=53;BYDAY=SA",
        ["2021-01-02 09:00", "2022-01-01 09:00"],
        ["2021-01-02 09:00", "2027-01-02 09:00"],
        "§3.3.10 by ISO 8601: 1 January 2022 lies in week 52 of 2021, a year that has no week 53",
    ),
    (
        "DTSTART:20160717T064600Z",
        "FREQ=YEARLY;BYWEEKNO=-52;BYDAY=MO",
        ["2017-01-02 06:46", "2018-01-01 06:46", "2020-01-06 06:46"],
        ["2017-01-02 06:46", "2018-01-01 06:46", "2018-12-31 06:46"],
        "§3.3.10: 31 December 2018 begins week 1 of 2019, whose 52nd week from the end that is",
    ),
    (
        "DTSTART:20260101T090000Z",
        "FREQ=YEARLY;BYWEEKNO=20",
        ["2026-05-11 09:00", "2026-05-12 09:00", "2026-05-13 09:00"],
        ["2026-05-14 09:00", "2027-05-20 09:00", "2028-05-18 09:00"],
        "§3.3.10: what a rule leaves out, here the weekday, is taken from DTSTART",
    ),
    (
        "DTSTART:20260101T090000Z",
        "FREQ=DAILY;UNTIL=20260102",
        ["2026-01-01 09:00"],
        ["2026-01-01 09:00", "2026-01-02 09:00"],
        "§3.3.10: UNTIL is inclusive; where it is a DATE beside a DATE-TIME, its whole day is meant here",
    ),
]


@pytest.mark.parametrize(("start", "rule", "theirs", "ours", "why"), DIFFERENCES)
def test_where_dateutil_differs(start: str, rule: str, theirs: list[str], ours: list[str], why: str) -> None:
    assert why
    most = max(len(theirs), len(ours))
    limit = datetime(2040, 1, 1)
    bare = f"DTSTART:{start.split(':')[1].rstrip('Z')}\nRRULE:{rule}"
    instances = rrulestr(bare).between(datetime(1, 1, 1), limit)
    assert [f"{found:%Y-%m-%d %H:%M}" for found in instances[:most]] == theirs
    schedule = parse_rrule(f"{start}\nRRULE:{rule}", ZULU)
    found = schedule.between(-(10**20), to_seconds(limit.replace(tzinfo=UTC)), most)
    shown = [from_seconds(t + schedule.place.offset_at(t)) for t in found]
    assert [f"{at:%Y-%m-%d %H:%M}" for at in shown] == ours


def random_rule(rng: random.Random) -> tuple[str, str]:
    """A rule without the kinds of parts on which dateutil differs."""
    freq = rng.choice(list(SPANS))
    parts = [f"FREQ={freq}"]
    if rng.random() < 0.5:
        most = {"YEARLY": 3, "MONTHLY": 7, "WEEKLY": 10, "DAILY": 30}.get(freq, 90)
        parts.append(f"INTERVAL={rng.randint(1, most)}")

    def some(low: int, high: int, count: int, signed: bool = False) -> str:
        numbers = rng.sample(range(low, high + 1), count)
        return ",".join(str(n * rng.choice([1, -1]) if signed else n) for n in numbers)

    by = []
    if rng.random() < 0.3:
        by.append("BYMONTH=" + some(1, 12, rng.randint(1, 4)))
    weeks = freq == "YEARLY" and rng.random() < 0.2
    if weeks:
        by.append("BYWEEKNO=" + some(2, 51, rng.randint(1, 3)))
    if freq in ("YEARLY", "HOURLY", "MINUTELY", "SECONDLY") and rng.random() < 0.1:
        by.append("BYYEARDAY=" + some(1, 365, 30, signed=True))
    if freq != "WEEKLY" and rng.random() < 0.25:
        by.append("BYMONTHDAY=" + some(1, 31, rng.randint(1, 8), signed=True))
    if weeks or rng.random() < 0.4:
        days = rng.sample(DAYS, rng.randint(1, 4))
        if freq in ("YEARLY", "MONTHLY") and not weeks and rng.random() < 0.6:
            days = [rng.choice(["1", "2", "-1", "3", "-2"]) + day for day in days]
        by.append("BYDAY=" + ",".join(days))
    if rng.random() < 0.3:
        by.append("BYHOUR=" + some(0, 23, rng.randint(1, 4)))
    if rng.random() < 0.3:
        by.append("BYMINUTE=" + some(0, 59, rng.randint(1, 4)))
    if rng.random() < 0.2:
        by.append("BYSECOND=" + some(0, 59, rng.randint(1, 3)))
    if by and freq != "WEEKLY" and rng.random() < 0.3:
        by.append("BYSETPOS=" + some(1, rng.choice([2, 5, 20]), rng.randint(1, 2), signed=True))
    parts += by
    if rng.random() < 0.3:
        parts.append("WKST=" + rng.choice(DAYS))
    if rng.random() < 0.3:
        parts.append(f"COUNT={rng.choice([1, 2, 5, 17, 40])}")
    rng.shuffle(parts)
    return freq, ";".join(parts)


@pytest.mark.parametrize("seed", range(8))
def test_dateutil_agrees(seed: int) -> None:
    rng = random.Random(f"dateutil-{seed}")
    compared = 0
    for _ in range(60):
        freq, rule = random_rule(rng)
        start = datetime(2016, 1, 1) + timedelta(seconds=rng.randrange(4 * 365 * 86_400))
        end = start + timedelta(days=SPANS[freq])
        text = f"DTSTART:{start:%Y%m%dT%H%M%S}\nRRULE:{rule}"
        try:
            schedule = parse_rrule(text, ZULU)
        except InvalidInput:
            continue  # it never fires; dateutil would look for it up to the year 9999, second by second
        found = schedule.between(-(10**20), to_seconds(end.replace(tzinfo=UTC)), 100_000)
        theirs = list(islice(rrulestr(text), len(found)))
        assert found == [to_seconds(at.replace(tzinfo=UTC)) for at in theirs], text
        compared += bool(found)
    assert compared > 30
