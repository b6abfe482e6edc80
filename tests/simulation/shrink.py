"""Makes a failing history small: steps and triggers are left out while it still fails in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.simulation.history import History
from tests.simulation.world import Result, simulate


def only(history: History, kept: Sequence[int]) -> History:
    """The history with these of its steps alone, by number from 0."""
    return replace(history, steps=tuple(history.steps[number] for number in kept))


def shrink(history: History, most: int = 80) -> tuple[list[int], Result]:
    """The numbers of the steps that still make it fail, and how that run ended; at most `most` runs.

    The chance in a history (who goes first, how long a call takes) is drawn anew when a step is gone, so a
    smaller one may pass by luck; then the step stays.
    """
    kept = list(range(len(history.steps)))
    result = simulate(history)
    if not result.wrong:
        return kept, result
    kind = _kind(result)
    size = max(1, len(kept) // 2)
    runs = 0
    while kept and runs < most:
        start = 0
        while start < len(kept) and runs < most:
            fewer = kept[:start] + kept[start + size :]
            found = simulate(only(history, fewer))
            runs += 1
            if found.wrong and _kind(found) == kind:
                kept, result = fewer, found
            else:
                start += size
        if size == 1:
            break
        size = max(1, size // 2)
    return kept, result


def _kind(result: Result) -> str:
    """The first word of what went wrong first: lost, doubled, stuck …; anything else is one kind."""
    first = result.wrong[0].split(":")[0]
    return first if " " not in first else "other"
