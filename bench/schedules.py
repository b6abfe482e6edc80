"""Cron schedules beside the libraries that people use, in one run on one machine.

    python bench/schedules.py [--rounds 5]

Prints occurrences a second of a walk over 1,000 occurrences, cold answers from a parsed expression, parsing,
and what a zone costs, each with the ratio to ours. The libraries are development dependencies: cronsim,
croniter, APScheduler's CronTrigger and dateutil's rrule. A figure is the best of the rounds, which a busy
machine disturbs least; libraries take turns, so that none has the quiet minute to itself.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger
from croniter import croniter
from cronsim import CronSim
from dateutil.rrule import DAILY, FR, MINUTELY, MO, TH, TU, WE, YEARLY, rrule

from horarium.core.cron import Cron, CronFields, Dst
from horarium.core.cron_text import read_cron
from horarium.core.schedule import parse
from horarium.core.zone import DEFAULT_ZONES, Zone

ZONE = "America/New_York"
PLACE = ZoneInfo(ZONE)
START = datetime(2026, 3, 1, tzinfo=PLACE)
T = int(START.timestamp())
WALK = 1_000

EXPRESSIONS = ("*/5 * * * *", "0 9 * * 1-5", "30 2 * * *", "0 0 29 2 *")
RRULES: dict[str, dict[str, Any]] = {
    "*/5 * * * *": {"freq": MINUTELY, "interval": 5},
    "0 9 * * 1-5": {"freq": DAILY, "byhour": 9, "byminute": 0, "byweekday": (MO, TU, WE, TH, FR)},
    "30 2 * * *": {"freq": DAILY, "byhour": 2, "byminute": 30},
    "0 0 29 2 *": {"freq": YEARLY, "bymonth": 2, "bymonthday": 29, "byhour": 0, "byminute": 0},
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=5)
    rounds = arguments.parse_args().rounds
    walks(rounds)
    cold(rounds)
    parsing(rounds)
    zones()


def walks(rounds: int) -> None:
    """Occurrences a second from one start, as the libraries are used: one occurrence after another."""
    print(f"walk, {ZONE}, occurrences/s (in brackets: walk() is so many times faster)")
    print(
        f"{'':14}{'walk()':>12}{'after()':>12}{'between()':>13}"
        f"{'cronsim':>19}{'croniter':>19}{'APScheduler':>19}{'dateutil':>19}"
    )
    for text in EXPRESSIONS:
        count = WALK if text != "0 0 29 2 *" else 20  # cronsim and croniter look at every day of those years
        few = min(count, 200)
        rates = best(
            rounds,
            {
                "after": (partial(walk_after, text, count), count),
                "walk": (partial(walk_ours, text, count), count),
                "between": (partial(parsed(text).between, T, 1 << 50, count), count),
                "cronsim": (partial(walk_cronsim, text, count), count),
                "croniter": (partial(walk_croniter, text, count), count),
                "apscheduler": (partial(walk_apscheduler, text, few), few),
                "dateutil": (partial(walk_dateutil, text, count), count),
            },
        )
        ours = rates["walk"]
        others = "".join(
            f"{rates[name]:>11,.0f} ({ours / rates[name]:>4,.0f}×)"
            for name in ("cronsim", "croniter", "apscheduler", "dateutil")
        )
        print(f"{text:14}{ours:>12,.0f}{rates['after']:>12,.0f}{rates['between']:>13,.0f}{others}")


def cold(rounds: int) -> None:
    """The next instant after scattered starts, from a parsed expression that was asked elsewhere before."""
    starts = [T + 98_765 * n for n in range(2_000)]
    dates = [datetime.fromtimestamp(t, UTC).astimezone(PLACE) for t in starts[:200]]
    print("\ncold next from a parsed expression, answers/s")
    for text in EXPRESSIONS[:3]:
        rates = best(
            rounds,
            {
                "ours": (partial(each, parsed(text).after, starts), len(starts)),
                "cronsim": (partial(each, partial(first_of_cronsim, text), dates), len(dates)),
                "croniter": (partial(each, partial(first_of_croniter, text), dates), len(dates)),
            },
        )
        print(
            f"{text:14}{rates['ours']:>12,.0f}   cronsim {rates['cronsim']:,.0f}"
            f"   croniter {rates['croniter']:,.0f}   (both with their parse: they can't be asked twice)"
        )


def parsing(rounds: int) -> None:
    """Different expressions, each for the first time."""
    texts = [
        f"{m} {h} * * {d}" for m in range(60) for h in range(24) for d in ("1-5", "mon,wed", "*/2", "sun")
    ]
    rates = best(
        rounds,
        {
            "ours": (partial(each, read_and_build, texts), len(texts)),
            "cronsim": (lambda: [CronSim(t, START) for t in texts[:1_000]], 1_000),
            "croniter": (lambda: [croniter(t, START) for t in texts[:1_000]], 1_000),
            "apscheduler": (lambda: [CronTrigger.from_crontab(t, PLACE) for t in texts[:300]], 300),
        },
    )
    begin = time.perf_counter()
    for text in texts:
        parse({"cron": text, "timezone": ZONE})
    mapping = len(texts) / (time.perf_counter() - begin)
    begin = time.perf_counter()
    for text in texts[-1_000:]:
        parse({"cron": text, "timezone": ZONE})
    cached = 1_000 / (time.perf_counter() - begin)
    print(
        f"\nparse, expressions/s: {rates['ours']:,.0f}; a whole mapping {mapping:,.0f},"
        f" seen before {cached:,.0f}   cronsim {rates['cronsim']:,.0f}   croniter {rates['croniter']:,.0f}"
        f"   APScheduler {rates['apscheduler']:,.0f}"
    )


def zones() -> None:
    """A zone's table, read once a process; and its years to 9999, made when first asked for."""
    data = {name: DEFAULT_ZONES.loader.load(name) or b"" for name in DEFAULT_ZONES.loader.names()}
    times = {}
    for name, content in data.items():
        begin = time.perf_counter()
        Zone(name, content)
        times[name] = time.perf_counter() - begin
    begin = time.perf_counter()
    Zone(ZONE, data[ZONE]).table(253_402_300_799)
    far = time.perf_counter() - begin
    slowest = max(times, key=lambda name: times[name])
    print(
        f"\nzones: {len(times)} tables, {sum(times.values()) / len(times) * 1000:.2f} ms each, slowest "
        f"{slowest} {times[slowest] * 1000:.2f} ms; to the year 9999 {far * 1000:.1f} ms"
    )


def best(rounds: int, runs: dict[str, tuple[Callable[[], object], int]]) -> dict[str, float]:
    """Things a second of each run, the best of `rounds`; the runs take turns."""
    rates = dict.fromkeys(runs, 0.0)
    for _ in range(rounds):
        for name, (run, count) in runs.items():
            begin = time.perf_counter()
            run()
            rates[name] = max(rates[name], count / (time.perf_counter() - begin))
    return rates


def parsed(text: str) -> Cron:
    found = parse({"cron": text, "timezone": ZONE})
    assert isinstance(found, Cron)
    return found


def read_and_build(text: str) -> Cron:
    rule = read_cron(text).rule
    assert isinstance(rule, CronFields)
    return Cron(text, rule, DEFAULT_ZONES.get(ZONE), Dst.VIXIE)


def walk_ours(text: str, count: int) -> None:
    for _ in itertools.islice(parsed(text).walk(T), count):
        pass


def walk_after(text: str, count: int) -> None:
    after, t = parsed(text).after, T
    for _ in range(count):
        t = after(t)  # type: ignore[assignment]  # these rules never end


def walk_cronsim(text: str, count: int) -> None:
    for _ in itertools.islice(CronSim(text, START), count):
        pass


def first_of_cronsim(text: str, at: datetime) -> datetime:
    return next(CronSim(text, at))


def first_of_croniter(text: str, at: datetime) -> object:
    return croniter(text, at).get_next()


def each(ask: Callable[[Any], object], things: Iterable[Any]) -> None:
    for thing in things:
        ask(thing)


def walk_croniter(text: str, count: int) -> None:
    series = croniter(text, START)
    for _ in range(count):
        series.get_next()


def walk_apscheduler(text: str, count: int) -> None:
    trigger, at = CronTrigger.from_crontab(text, PLACE), START
    for _ in range(count):
        at = trigger.get_next_fire_time(at, at)


def walk_dateutil(text: str, count: int) -> None:
    """dateutil on naive local time: it knows no zone's jumps, and pays nothing for them."""
    series = rrule(dtstart=START.replace(tzinfo=None), bysecond=0, **RRULES[text])
    for _ in itertools.islice(series, count):
        pass


if __name__ == "__main__":
    main()
