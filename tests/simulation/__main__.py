"""The simulation by hand: `python -m tests.simulation --seed 7` replays a history; one that fails is shrunk.

`--seeds 300` runs that many, `--seconds 600` as many as fit; both stop at the first that fails. The last line
says how many seeds, slots and calls there were, and what was lost or doubled.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count

from tests.simulation.history import STORES, History, history, with_ahead
from tests.simulation.shrink import only, shrink
from tests.simulation.world import Result, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--only", help="with --seed: leave out all steps but these numbers, as 0,3,4")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every commit")
    parser.add_argument("--seeds", type=int, help="run so many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seconds", type=float, help="run for so long")
    parser.add_argument("--no-shrink", action="store_true", help="stop at a failing seed and only name it")
    parser.add_argument("--store", choices=STORES, help="on this one; else on each in turn")
    parser.add_argument("--ahead", action="store_true", help="at targets that have runs ahead")
    given = parser.parse_args()
    if given.seed is not None:
        made = drawn(given.seed, given.store or STORES[0], given.ahead)
        return replay(made, given.only, given.trace, not given.no_shrink)
    stores = STORES if given.store is None else (given.store,)
    return run(given.first, given.seeds, given.seconds, stores, given.ahead, not given.no_shrink)


def drawn(seed: int, store: str, ahead: bool) -> History:
    """The history of a seed."""
    made = history(seed, store)
    return with_ahead(made) if ahead else made


def replay(made: History, kept: str | None, trace: bool, shrinks: bool) -> int:
    """One history, told in full."""
    whole = made
    if kept is not None:
        made = only(made, [int(number) for number in kept.split(",") if number])
    print(made.describe())
    result = simulate(made, print if trace else None)
    if result.wrong and shrinks and kept is None:
        explain(whole)
    else:
        print("\n".join([f"  WRONG: {text}" for text in result.wrong]))
    print(f"trace {result.trace}")
    print(last_line(1, Counter(result.figures)))
    return 1 if result.wrong else 0


def run(
    first: int, seeds: int | None, seconds: float | None, stores: Sequence[str], ahead: bool, shrinks: bool
) -> int:
    """Many, until one fails or the number or the time is used up; one seed on one store, in turns."""
    until = None if seconds is None else time.monotonic() + seconds
    if seeds is None and until is None:
        seeds = 300
    figures: Counter[str] = Counter()
    done = 0
    failed: Result | None = None
    for seed in numbers(first, seeds):
        if until is not None and time.monotonic() >= until:
            break
        result = simulate(drawn(seed, stores[seed % len(stores)], ahead))
        figures.update(result.figures)
        done += 1
        if result.wrong:
            failed = result
            break
    if failed is not None:
        print(f"seed {failed.history.seed} fails: {failed.wrong[0]} (on {failed.history.store})")
        if shrinks:
            explain(failed.history)
    print(last_line(done, figures))
    return 1 if failed else 0


def explain(made: History) -> None:
    """The smallest history that still fails, and the command that replays it."""
    kept, result = shrink(made)
    print(f"shrunk to {len(kept)} of {len(made.steps)} steps:")
    print(result.history.describe())
    print("\n".join(f"  WRONG: {text}" for text in result.wrong))
    print(
        f"replay: python -m tests.simulation --seed {made.seed} --store {made.store}"
        f"{' --ahead' if made.ahead else ''}"
        f" --only {','.join(map(str, kept)) or ','} --trace"
    )


def numbers(first: int, seeds: int | None) -> Iterator[int]:
    return count(first) if seeds is None else iter(range(first, first + seeds))


def last_line(seeds: int, figures: Counter[str]) -> str:
    return f"seeds {seeds}, " + ", ".join(
        f"{name} {figures[name]}" for name in ("slots", "calls", "steps", "lost", "doubled")
    )


if __name__ == "__main__":
    sys.exit(main())
