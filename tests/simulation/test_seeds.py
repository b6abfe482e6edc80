"""Seeds of the simulation, within a budget; and the same seed gives the same trace, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.__main__ import last_line
from tests.simulation.history import history
from tests.simulation.rules import Rule
from tests.simulation.shrink import only, shrink
from tests.simulation.world import simulate

ROOT = Path(__file__).parents[2]
SEEDS = 300
PART = 50
BUDGET = 120.0
"""Seconds of one core for all of them; printed, and a test of its own that the machine's load can't break."""


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_nothing_is_lost_doubled_or_stuck(first: int) -> None:
    began = time.process_time()
    figures: Counter[str] = Counter()
    for seed in range(first, first + PART):
        result = simulate(history(seed))
        assert not result.wrong, f"python -m tests.simulation --seed {seed}\n" + "\n".join(result.wrong)
        figures.update(result.figures)
    spent = time.process_time() - began
    print(f"{last_line(PART, figures)}; {spent:.1f} s of {BUDGET * PART / SEEDS:.0f} s")
    assert figures["slots"] > PART * 10, "histories in which nothing happens show nothing"


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    """Whatever the hashes of strings are there, and whatever was run before."""
    seeds = (3, 9, 13)  # an even one, and two that lean
    here = [simulate(history(seed)).trace for seed in seeds]
    assert here == [simulate(history(seed)).trace for seed in seeds]
    assert len(set(here)) == len(seeds)
    for number, seed in enumerate(seeds):
        ended = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", str(seed)],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"src{os.pathsep}{ROOT}",
                "PYTHONHASHSEED": str(number + 1),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert f"trace {here[number]}" in ended.stdout


def test_a_step_left_out_is_another_history() -> None:
    made = history(7)
    fewer = only(made, range(len(made.steps) - 1))
    assert len(fewer.steps) == len(made.steps) - 1
    kept, result = shrink(made, most=0)
    assert (kept, result.wrong) == (list(range(len(made.steps))), ())


def test_the_oracles_rules_count_their_slots() -> None:
    """A few by hand: the oracle is judged by people, not by the engine."""
    hour = 3_600
    assert Rule("minutes", (20,)).within(0, hour) == [1_200, 2_400, 3_600]
    assert Rule("hourly", (5, 50)).within(300, hour) == [3_000]
    assert Rule("every", (90,)).within(90, 300) == [180, 270]
    assert Rule("daily", (1, 30)).within(0, 2 * 86_400) == [5_400, 91_800]
    assert Rule("daily", (1, 30)).after(5_400) == 91_800
    assert Rule("once", (77,)).within(0, 77) == [77]
    assert Rule("once", (77,)).after(77) is None
    assert not Rule("every", (90,)).has(91)
