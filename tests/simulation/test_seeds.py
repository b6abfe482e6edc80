"""Seeds of the simulation, within a budget; and the same seed gives the same trace, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.simulation.history import STORES, history
from tests.simulation.rules import Rule
from tests.simulation.shrink import only, shrink
from tests.simulation.world import simulate

ROOT = Path(__file__).parents[2]
SEEDS = {"sqlite": 240, "memory": 60}
"""How many on each store: one seed on the PostgreSQL in memory costs as much as two on SQLite."""
PART = {"sqlite": 60, "memory": 20}
"""How many a process runs: it takes as long to begin as three seeds."""
BUDGET = 120.0
"""Seconds for all of them on a machine with two cores that does nothing else; they are printed."""
STEPS = {"sqlite": 9_000, "memory": 24_000}
"""The most steps of the event loop that a seed may take, on the average. They are what costs the seconds, and
are the same on every machine."""


@dataclass(frozen=True)
class Part:
    """Seeds from `first` on, in a process of their own."""

    store: str
    first: int

    def run(self) -> subprocess.CompletedProcess[str]:
        return simulation(
            "--store", self.store, "--first", str(self.first), "--seeds", str(PART[self.store]), "--no-shrink"
        )


PARTS = [Part(store, first) for store, most in SEEDS.items() for first in range(0, most, PART[store])]


@pytest.fixture(scope="module")
def ended() -> Iterator[dict[Part, Future[subprocess.CompletedProcess[str]]]]:
    """All parts; as many run at once as there are cores."""
    began = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {part: pool.submit(part.run) for part in PARTS}
    print(f"{sum(SEEDS.values())} seeds; {time.monotonic() - began:.1f} s of {BUDGET:.0f} s")


@pytest.mark.parametrize("store", SEEDS)
def test_nothing_is_lost_doubled_or_stuck(
    ended: dict[Part, Future[subprocess.CompletedProcess[str]]], store: str
) -> None:
    figures: Counter[str] = Counter()
    for part in PARTS:
        if part.store == store:
            found = ended[part].result()
            assert found.returncode == 0, found.stdout + found.stderr[-3000:]
            words = found.stdout.splitlines()[-1].split(", ")
            figures.update({name: int(number) for name, number in (word.rsplit(" ", 1) for word in words)})
    print(f"{store}: {dict(figures)}")
    assert figures["seeds"] == SEEDS[store]
    assert figures["slots"] > SEEDS[store] * 10, "histories in which nothing happens show nothing"
    assert figures["steps"] <= SEEDS[store] * STEPS[store], "the budget in seconds would not be kept"


def simulation(*arguments: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"src{os.pathsep}{ROOT}", "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_there_are_three_hundred_of_them() -> None:
    assert sum(SEEDS.values()) >= 300
    assert set(SEEDS) == set(STORES)


@pytest.mark.parametrize("store", STORES)
def test_the_same_seed_gives_the_same_trace_in_another_process(store: str) -> None:
    """Whatever the hashes of strings are there, and whatever was run before."""
    seeds = (3, 9, 13) if store == "sqlite" else (3, 9)  # an even one, and some that lean
    here = [simulate(history(seed, store)).trace for seed in seeds]
    assert here == [simulate(history(seed, store)).trace for seed in seeds]
    assert len(set(here)) == len(seeds)
    for number, seed in enumerate(seeds):
        ended = simulation("--seed", str(seed), "--store", store, hash_seed=str(number + 1))
        assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
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
