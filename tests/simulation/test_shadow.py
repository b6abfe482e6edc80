"""Triggers go into the shadow of another scheduler and out of it, while the rest of a history goes on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from horarium.engine.executor import Executor
from tests.simulation.history import History, Step, history
from tests.simulation.world import simulate

SEEDS = 40


def shadowing(seed: int) -> History:
    """The history of a seed, whose triggers also go into shadow and out of it."""
    made, rng = history(seed), Random(f"shadow {seed}")
    steps = [
        Step(at, "shadow", name, rng.randrange(made.replicas), value=rng.random() < 0.6)
        for name, _ in made.first
        for at in (rng.uniform(10, made.busy - 60) for _ in range(rng.randrange(5)))
    ]
    return replace(made, steps=tuple(sorted([*made.steps, *steps], key=lambda step: step.at)))


def test_no_slot_is_both_sides_and_none_is_neither() -> None:
    figures: Counter[str] = Counter()
    for seed in range(SEEDS):
        result = simulate(shadowing(seed))
        assert not result.wrong, f"seed {seed}\n" + "\n".join(result.wrong)
        figures.update(result.figures)
    print(dict(figures))
    assert figures["shadowed"] > SEEDS * 5


def test_a_call_in_shadow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Executor._start
    monkeypatch.setattr(Executor, "_start", lambda self, claimed: start(self, replace(claimed, shadow=False)))
    assert any(simulate(shadowing(seed)).wrong for seed in range(10))
