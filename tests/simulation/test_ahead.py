"""The mirror: histories at targets that have runs before they are due, see `ahead.py`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.simulation.ahead import US, Flow
from tests.simulation.directed import calm
from tests.simulation.history import Step, history, with_ahead
from tests.simulation.rules import Rule, Spec
from tests.simulation.world import Result, simulate

SEEDS = {"sqlite": 8, "memory": 2}
AHEAD = 120


@pytest.mark.parametrize("store", SEEDS)
def test_what_is_there_follows_the_plan_and_begins_once(store: str) -> None:
    figures: Counter[str] = Counter()
    for seed in range(SEEDS[store]):
        result = simulate(with_ahead(history(seed, store)))
        assert not result.wrong, f"seed {seed}\n" + "\n".join(result.wrong)
        figures.update(result.figures)
    print(dict(figures))
    assert figures["ahead"] > SEEDS[store] * 10, "histories in which little is there ahead show little"
    assert figures["withdrawn"] > SEEDS[store]


@pytest.mark.parametrize("fault", ["away", "hang"])
def test_an_outage_of_one_target_costs_the_other_nothing(fault: str) -> None:
    """One target is away, or all calls to it take long, for longer than what it has lasts."""
    length = 200.0
    first = {"t0": Spec(Rule("every", (60,))), "t2": Spec(Rule("every", (60,)), target="second")}
    step = Step(150.0, fault, "first", length=length)
    made = calm(0, "sqlite", first, step)
    result = simulate(replace(made, ahead=(("first", AHEAD), ("second", AHEAD))))
    assert not result.wrong
    begins = made.start + 150
    for target, spared in (("second", True), ("first", False)):
        flows = begun(result, target, begins + AHEAD, made.start + made.busy)
        leads = [flow.start_at - flow.made_at for flow in flows]
        assert (min(leads) > (AHEAD - 30) * US) is spared, (target, leads)
        late = [flow.begun_at - flow.slot * US for flow in flows]
        assert max(late) < 15 * US or not spared, (target, late)
    again = begun(result, "first", begins + int(length) + AHEAD + 60, made.start + made.busy)
    assert again
    assert all(flow.ahead for flow in again), "it has its runs ahead again"


def begun(result: Result, target: str, since: int, until: int) -> list[Flow]:
    """What has begun there, of the slots in `(since, until]`."""
    return [
        flow
        for flow in result.flows
        if flow.target == target and flow.state == "begun" and since < flow.slot <= until
    ]
