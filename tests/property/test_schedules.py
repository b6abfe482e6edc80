"""Properties of every schedule, and a fuzz of the parsers.

`HORARIUM_FUZZ_SECONDS` sets how long the fuzz runs: 4 s for each parser by default, 120 s nightly.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horarium.core.cron import Cron, Dst
from horarium.core.explain import with_policy
from horarium.core.instant import MAX_SECONDS, MIN_SECONDS
from horarium.core.schedule import Schedule, canonical, parse
from horarium.core.zone import load_zone
from horarium.errors import InvalidInput
from tests.unit.cron_random import ZONES, expression

FUZZ_SECONDS = float(os.environ.get("HORARIUM_FUZZ_SECONDS", "4"))
SLOWEST = 0.05  # seconds that any answer or refusal may take on an idle machine
BUSY = 20  # times longer that it may take here, where others run: the shape is what is asked for

quick = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def rules(draw: st.DrawFn) -> Schedule:
    """A schedule of any kind, mostly cron, in any zone and under any policy."""
    rng = Random(draw(st.integers(0, 1 << 40)))
    zone = draw(st.sampled_from(ZONES))
    kind = draw(st.sampled_from(("cron", "cron", "cron", "robfig", "every", "bounded")))
    if kind == "every":
        return parse({"every": draw(st.integers(1, 10**7)), "start": draw(st.sampled_from(STARTS))})
    while True:
        text = expression(rng, forms=kind != "robfig", seconds=kind == "cron" and rng.random() < 0.2).text
        spec: dict[str, object] = {"cron": text, "timezone": zone}
        if kind == "robfig":
            spec["dialect"] = "robfig"
        else:
            spec["dst"] = draw(st.sampled_from(list(Dst))).value
        if kind == "bounded":
            spec |= {"start": "2011-12-29", "end": "2026-10-25T02:30"}
        try:
            return parse(spec)
        except InvalidInput:
            continue  # a date that never comes, or a form that the Go library doesn't know: the next one


JUMPS = [change.at for zone in ZONES for change in load_zone(zone).transitions(0, 2_145_916_800)]
STARTS = ("2000-01-01", "2026-03-29T02:30:00Z", "1969-12-31T23:59:59Z")


@st.composite
def instants(draw: st.DrawFn) -> int:
    """Mostly near a jump of some zone's clock, else anywhere in time and a little beyond."""
    if draw(st.integers(0, 3)):
        return draw(st.sampled_from(JUMPS)) + draw(st.integers(-90_000, 90_000))
    return draw(st.integers(MIN_SECONDS - 10**6, MAX_SECONDS + 10**6))


@quick
@given(rules(), instants())
def test_after_is_after_and_before_finds_it_again(rule: Schedule, t: int) -> None:
    found = rule.after(t)
    if found is None:
        return
    assert t < found <= MAX_SECONDS
    assert rule.before(found) == found
    if not _is_robfig(rule):
        assert rule.after(found - 1) == found
        back = rule.before(t)
        assert back is None or (MIN_SECONDS <= back <= t and rule.after(back) == found)


@quick
@given(rules(), instants(), st.integers(1, 60))
def test_between_is_after_again_and_again(rule: Schedule, t: int, count: int) -> None:
    walked: list[int] = []
    at: int | None = t
    while at is not None and len(walked) < count:
        at = rule.after(at)
        if at is not None:
            walked.append(at)
    assert walked == sorted(set(walked))
    if walked:
        assert rule.between(t, walked[-1]) == walked
        assert rule.between(t, MAX_SECONDS, count) == walked
        assert rule.between(t, walked[-1] - 1) == walked[:-1]
        assert rule.between(walked[0], walked[-1]) == walked[1:]


@quick
@given(rules(), instants(), st.integers(0, 200_000))
def test_the_series_does_not_depend_on_the_start(rule: Schedule, t: int, later: int) -> None:
    if _is_robfig(rule):
        return  # near a jump the Go library's answer depends on where it is asked from, and so does ours
    whole = rule.between(t, t + 400_000, 500)
    from_later = rule.between(t + later, t + 400_000, 500)
    shared = [instant for instant in whole if instant > t + later]
    assert from_later[: len(shared)] == shared


@quick
@given(rules(), instants())
def test_skip_once_names_what_literal_names_but_for_second_passes(rule: Schedule, t: int) -> None:
    if not isinstance(rule, Cron) or _is_robfig(rule) or not MIN_SECONDS < t < MAX_SECONDS - 200_000:
        return
    once = with_policy(rule, Dst.SKIP_ONCE).between(t, t + 100_000, 1 << 20)
    literal = with_policy(rule, Dst.LITERAL).between(t, t + 100_000, 1 << 20)
    zone = rule.zone
    first_passes = [at for at in literal if zone.resolve(zone.to_local(at))[0] == at]
    assert once == first_passes
    vixie = with_policy(rule, Dst.VIXIE).between(t, t + 100_000, 1 << 20)
    made_up = set(vixie) - set(once if rule.fields.fixed_time else literal)
    ends_of_gaps = {change.at for change in zone.transitions(t, t + 100_000) if 0 < change.jump < 10_800}
    assert made_up <= ends_of_gaps
    if not rule.fields.fixed_time:
        assert vixie == literal


@quick
@given(st.integers(0, 1 << 40), st.sampled_from(ZONES))
def test_the_canonical_form_is_the_same_rule(seed: int, zone: str) -> None:
    spec = {"cron": expression(Random(seed), forms=True, seconds=seed % 5 == 0).text, "timezone": zone}
    try:
        rule = parse(spec)
    except InvalidInput:
        return  # a date that never comes
    written = canonical(spec)
    assert canonical(written) == written
    assert parse(written) == rule


@pytest.mark.parametrize("dialect", ["horarium", "robfig"])
def test_fuzz_the_cron_parsers(dialect: str) -> None:
    rng = Random(dialect)
    words = [*"*/-,?LWH#()07+. \t\n\x00é٣", "31", "59", "60", "mon", "jan", "  ", "1h", "ns"]
    words += ["@every ", "@daily", "CRON_TZ=", "UTC"]
    end = time.perf_counter() + FUZZ_SECONDS
    tried = 0
    while time.perf_counter() < end:
        tried += 1
        if rng.random() < 0.3:
            text = "".join(rng.choice(words) for _ in range(rng.randint(0, 25)))
        else:
            text = expression(rng, forms=True, seconds=rng.random() < 0.2).text
            for _ in range(rng.randint(0, 3)):
                at = rng.randint(0, len(text))
                text = text[:at] + rng.choice(words) + text[at + rng.randint(0, 2) :]
        begin = time.process_time()
        with suppress(InvalidInput):
            rule = parse({"cron": text, "dialect": dialect, "timezone": rng.choice(ZONES)}, seed="fuzz")
            rule.after(1_774_746_000)
            rule.before(1_774_746_000)
            rule.describe()
        assert time.process_time() - begin < SLOWEST * BUSY, text
    assert tried > 100


def test_fuzz_the_mapping() -> None:
    rng = Random("mapping")
    keys = ("cron", "every", "at", "rrule", "timezone", "dst", "dialect", "day_or", "start", "end", "x", "")
    values: list[object] = [
        "0 9 * * *",
        "5m",
        "2026-01-01",
        "FREQ=DAILY",
        "UTC",
        "vixie",
        "robfig",
        "x" * 500,
    ]
    values += [True, False, None, 0, -1, 1.5, 10**30, float("nan"), [], {}, "", ["UTC"], {"months": 1}]
    values += [b"\x00", "99999-01-01"]
    end = time.perf_counter() + FUZZ_SECONDS
    tried = 0
    while time.perf_counter() < end:
        tried += 1
        spec = {rng.choice(keys): rng.choice(values) for _ in range(rng.randint(0, 5))}
        for read in (parse, canonical):
            with suppress(InvalidInput):
                read(spec)
    assert tried > 100


def _is_robfig(rule: Schedule) -> bool:
    return type(rule).__name__ == "RobfigCron"
