"""How fast recurrence rules, intervals and calendars answer, side by side with python-dateutil.

    python bench/rrule.py [--walk 100000] [--theirs-seconds 10]

`walk` is instances a second when each is asked for with `after` the one before it; dateutil's column is its
iterator, the fastest way it has. `cold` is one `after` of a rule six years old, parsed just before; dateutil
replays the rule from DTSTART for that, and is stopped after `--theirs-seconds`. Ratios are ours to theirs.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType

from dateutil.rrule import rrulestr

from horarium.core.calendars import Filtered, OnExcluded, parse_calendar
from horarium.core.instant import to_seconds
from horarium.core.interval import parse_every
from horarium.core.rrule import parse_rrule
from horarium.core.schedule import Schedule
from horarium.core.zone import load_zone

PLACE = load_zone("America/New_York")
START = "DTSTART;TZID=America/New_York:20200101T090000\nRRULE:"
ASKED = datetime(2026, 6, 10, 17, 58, 30, tzinfo=UTC)
RULES = [
    "FREQ=MINUTELY;BYHOUR=6,7,8,9,10,11,12,13,14,15,16,17",
    "FREQ=SECONDLY;INTERVAL=10",
    "FREQ=HOURLY;INTERVAL=3",
    "FREQ=DAILY",
    "FREQ=DAILY;COUNT=100000",
    "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR",
    "FREQ=MONTHLY;BYDAY=-1FR",
    "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
    "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29",
]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--walk", type=int, default=100_000, help="instances of one walk")
    options.add_argument("--theirs-seconds", type=float, default=10.0, help="when dateutil is stopped")
    given = options.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    print(
        f"{'rule':58}{'walk/s':>12}{'dateutil':>10}{'ratio':>7}{'cold µs':>10}{'dateutil ms':>13}{'ratio':>9}"
    )
    for rule in RULES:
        _compare(rule, given.walk, given.theirs_seconds)
    print()
    for name, schedule in _others().items():
        print(f"{name:58}{_walk(schedule, given.walk):12,.0f}")
    parse = _per_second(lambda: parse_rrule(START + "FREQ=WEEKLY;BYDAY=MO,FR;BYHOUR=9", PLACE), 0.5)
    print(f"\n{'parse a weekly rule with DTSTART':58}{parse:12,.0f}")


def _compare(rule: str, walk: int, patience: float) -> None:
    text = START + rule
    ours_walk = _walk(parse_rrule(text, PLACE), walk)
    theirs_walk = _their_walk(text, min(walk, 5_000))
    asked = to_seconds(ASKED)
    fresh = [parse_rrule(text, PLACE) for _ in range(50)]
    began = time.perf_counter()
    for schedule in fresh:
        schedule.after(asked)
    cold = (time.perf_counter() - began) / len(fresh)
    theirs_cold, finished = _timed(lambda: rrulestr(text).after(ASKED), patience)
    more = "" if finished else ">"
    print(
        f"{rule[:57]:58}{ours_walk:12,.0f}{theirs_walk:10,.0f}{ours_walk / theirs_walk:6,.0f}×"
        f"{cold * 1e6:10,.0f}{more + format(theirs_cold * 1e3, ',.1f'):>13}{theirs_cold / cold:8,.0f}×"
    )


def _walk(schedule: Schedule, count: int) -> float:
    t, found = to_seconds(datetime(2026, 1, 1, tzinfo=UTC)), 0
    began = time.perf_counter()
    while found < count:
        following = schedule.after(t)
        if following is None:
            break
        t, found = following, found + 1
    return found / (time.perf_counter() - began)


def _their_walk(text: str, count: int) -> float:
    """dateutil's iterator from DTSTART on, so that no replay counts against it."""
    began = time.perf_counter()
    found = sum(1 for _ in itertools.islice(rrulestr(text), count))
    return found / (time.perf_counter() - began)


def _others() -> dict[str, Schedule]:
    holidays = parse_calendar("us", {"holidays": "US"}, "")
    daily = parse_every({"days": 1, "at": "09:00"}, timezone=PLACE)
    return {
        "every: 20s": parse_every("20s"),
        "every: {days: 1, at: 09:00}": daily,
        "every: {months: 1, on_day: 31}": parse_every({"months": 1, "on_day": 31}, timezone=PLACE),
        "every: {days: 1, at: 09:00}, exclude holidays": Filtered(daily, PLACE, (holidays,)),
        "  the same, moved to the next business day": Filtered(
            daily, PLACE, (holidays,), (), OnExcluded.NEXT
        ),
    }


def _per_second(work: Callable[[], object], seconds: float) -> float:
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        work()
        done += 1
    return done / (time.perf_counter() - began)


class _Stopped(Exception):
    pass


def _stop(signum: int, frame: FrameType | None) -> None:
    raise _Stopped


def _timed(work: Callable[[], object], patience: float) -> tuple[float, bool]:
    """Seconds that `work` took, and whether it came to its end within `patience` seconds."""
    began = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, patience)
    try:
        work()
    except _Stopped:
        return time.perf_counter() - began, False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return time.perf_counter() - began, True


if __name__ == "__main__":
    main()
