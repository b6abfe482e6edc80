"""cronsim as an oracle: random expressions, zones and starts, each difference explained by a rule.

The explanations are the rows of the table in `docs/schedules.md` ("Differences from cronsim"). An
explanation is a rule that says what cronsim does instead, checked here; it never names a case. A
difference that no row explains fails the test.

The short form takes a seeded sample; `HORARIUM_FULL=1` runs 20,000 expressions in 20 zones.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from datetime import UTC, datetime
from random import Random

import pytest
from cronsim import CronSim, CronSimError

from horarium.core.cron import Cron
from horarium.core.zone import DAY, load_zone
from tests.unit.cron_random import ZONES, expression, parsed
from tests.unit.zones_of import library_zone

FULL = os.environ.get("HORARIUM_FULL") == "1"
EXPRESSIONS = 20_000 if FULL else 600
ZONES_EACH = len(ZONES) if FULL else 3
STEPS = 3
PARTS = 20
FAR = 8 * 366 * DAY  # cronsim looks at every day: an answer further off costs it seconds

FIRST, LAST = 631_152_000, 2_145_916_800  # 1990 to 2038


def start_near_a_jump(rng: Random, zone: str) -> int:
    jumps = load_zone(zone).transitions(FIRST, LAST)
    if jumps and rng.random() < 0.7:
        return rng.choice(jumps).at + rng.randint(-90_000, 90_000)
    return rng.randint(FIRST, LAST)


class NoEnd(Exception):
    """cronsim goes round in circles."""


class Bounded(CronSim):
    """cronsim, which near some jumps of the clock never answers, with an end to its patience."""

    ticks = 0

    def tick(self, seconds: int = 1) -> None:
        self.ticks += 1
        if self.ticks > 100_000:
            raise NoEnd
        super().tick(seconds)


def oracle(text: str, begin: datetime) -> Bounded | None:
    try:
        return Bounded(text, begin)
    except CronSimError:
        return None


def explain(cron: Cron, t: int, ours: int | None, theirs: int | None) -> str | None:
    """Which rule makes the next instant after `t` differ, or None."""
    fields = cron.text.split()
    if re.search(r"(?:^|,)(\d+)-\1/\d", ",".join(fields)):
        return "a-a/n"  # a range of one value: cronsim reads it as a/n
    if re.search(r"(?:^|,)\d/\d", fields[-1]):
        return "weekday to 7"  # d/n: cronsim runs to 7, so that Sunday comes in at the end
    if theirs is not None and theirs <= t:
        return (
            "not after"  # cronsim begins on a naive first pass, and tells passes of a date apart by no more
        )
    nearest = [instant for instant in (ours, theirs) if instant is not None]
    jumps = cron.zone.transitions(t - 2 * DAY, max(nearest, default=t) + DAY)
    if not jumps:
        return None
    if len(fields) == 6 and cron.fields.fixed_time:
        return "six fields"  # cronsim has Debian's rules for five fields only
    if any(abs(jump.jump) >= 10_800 for jump in jumps):
        return "correction"  # three hours and more are no gap to make up for
    if any(jump.jump % 3_600 or (jump.at + jump.before) % 3_600 for jump in jumps):
        return "part of an hour"  # cronsim steps by whole hours from a rounded minute
    skipped_midnight = any(jump.jump > 0 and (jump.at + jump.before) % DAY == 0 for jump in jumps)
    if skipped_midnight and not cron.fields.fixed_time:
        return (
            "no midnight"  # cronsim begins a date at a midnight that the clock skips, and counts from there
        )
    return None


@pytest.mark.parametrize("part", range(PARTS))
def test_every_difference_is_explained(part: int) -> None:
    rng = Random(part)
    why: Counter[str] = Counter()
    compared = 0
    for number in range(EXPRESSIONS // PARTS):
        rule = expression(rng, forms=False, seconds=number % 10 == 0)
        for zone in rng.sample(ZONES, ZONES_EACH):
            t = start_near_a_jump(rng, zone)
            begin = datetime.fromtimestamp(t, UTC).astimezone(library_zone(zone))
            theirs, ours = oracle(rule.text, begin), parsed(rule.text, zone)
            if theirs is None or ours is None:
                # No date in 400 years: we refuse, cronsim looks for 50 years and stops.
                assert ours is None, (rule.text, "only cronsim refuses it")
                why["never"] += theirs is not None
                continue
            for _ in range(STEPS):
                found = ours.after(t)
                if found is None or found - t > FAR:
                    break
                compared += 1
                try:
                    expected = int(next(theirs).timestamp())
                except NoEnd:
                    assert ours.zone.transitions(t - 2 * DAY, found + DAY), (rule.text, zone, t)
                    why["no end"] += 1
                    break
                if found != expected:
                    reason = explain(ours, t, found, expected)
                    assert reason is not None, (
                        rule.text,
                        zone,
                        begin.isoformat(),
                        f"ours {datetime.fromtimestamp(found, UTC)}",
                        f"cronsim {datetime.fromtimestamp(expected, UTC)}",
                    )
                    why[reason] += 1
                    break
                t = found
    print(f"part {part}: {compared} compared, explained: {dict(sorted(why.items()))}")
    assert compared > EXPRESSIONS // PARTS
