"""Shadow: what we decided for a trigger's slots beside what the other scheduler made of them. Pure.

A run of theirs is matched with a slot of ours by the surest thing that is known of it: its name, where both
sides give a slot the same name; else the slot that it says it is of; else the time at which it was made.
Times are matched closest first, within a tolerance, and each run counts once, so that of what they ran twice
one run is too many.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class OurSlot:
    """A slot that has a run here. `decided_at`: when it was settled; None while it is still to be."""

    scheduled_time: datetime
    name: str
    decided_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TheirRun:
    """A run that the other scheduler made: its `name`, the slot that it is of, and when it was made.

    What is not known is None; one of the two times is known.
    """

    scheduled_time: datetime | None = None
    created_at: datetime | None = None
    name: str | None = None

    @property
    def at(self) -> datetime:
        """The time by which it is found: that of its slot, else when it was made."""
        found = self.scheduled_time or self.created_at
        assert found is not None, "a run of theirs has a time"
        return found


@dataclass(frozen=True, slots=True)
class Pair:
    """A slot that both have."""

    ours: OurSlot
    theirs: TheirRun

    @property
    def difference(self) -> timedelta | None:
        """By how much ours was decided later than theirs was made; negative: earlier. None: not known."""
        if self.ours.decided_at is None or self.theirs.created_at is None:
            return None
        return self.ours.decided_at - self.theirs.created_at


@dataclass(frozen=True, slots=True)
class Comparison:
    """One trigger's slots, each part by time. `pending` are ours that nobody has decided yet and that they
    have no run of: no difference so far."""

    both: tuple[Pair, ...] = ()
    only_ours: tuple[OurSlot, ...] = ()
    only_theirs: tuple[TheirRun, ...] = ()
    pending: tuple[OurSlot, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether neither side has a slot that the other has not."""
        return not self.only_ours and not self.only_theirs


def compare(
    ours: Iterable[OurSlot],
    theirs: Iterable[TheirRun],
    tolerance: timedelta,
    parts: Sequence[tuple[datetime, datetime]] | None = None,
) -> Comparison:
    """Match the slots of one trigger with the runs that the other scheduler made of it.

    `tolerance` is how far a run of which only `created_at` is known may lie from its slot. `parts` are the
    times `(low, high]` that are compared: a run of theirs beyond them can be matched, but is none too many.
    So is one made within the tolerance after a beginning: it may be of a slot before it.
    """
    slots = sorted(ours, key=lambda item: (item.scheduled_time, item.name))
    runs = sorted(theirs, key=lambda item: (item.at, item.name or ""))
    pairs: list[Pair] = []
    by_name = {slot.name: slot for slot in slots}
    runs = [run for run in runs if not _take(by_name, run.name, run, pairs)]
    left = {slot.scheduled_time: slot for slot in by_name.values()}
    runs = [run for run in runs if not _take(left, run.scheduled_time, run, pairs)]
    free = sorted(left.values(), key=lambda item: item.scheduled_time)
    timed = [run for run in runs if run.scheduled_time is None]
    for at, other in _closest([slot.scheduled_time for slot in free], [run.at for run in timed], tolerance):
        pairs.append(Pair(free[at], timed[other]))
    matched = {id(pair.theirs) for pair in pairs}
    taken = {pair.ours.scheduled_time for pair in pairs}
    alone = [slot for slot in free if slot.scheduled_time not in taken]
    return Comparison(
        tuple(sorted(pairs, key=lambda pair: pair.ours.scheduled_time)),
        tuple(slot for slot in alone if slot.decided_at is not None),
        tuple(run for run in runs if id(run) not in matched and _counts(run, parts, tolerance)),
        tuple(slot for slot in alone if slot.decided_at is None),
    )


def _counts(run: TheirRun, parts: Sequence[tuple[datetime, datetime]] | None, tolerance: timedelta) -> bool:
    """Whether a run that no slot of ours has is one too many."""
    if parts is None:
        return True
    unsure = timedelta() if run.scheduled_time is not None else tolerance
    return any(low + unsure < run.at <= high for low, high in parts)


def _take(slots: dict[_Key, OurSlot], key: _Key | None, run: TheirRun, pairs: list[Pair]) -> bool:
    """Match a run with the slot under `key`, if there is one that nobody has."""
    if key is None or (slot := slots.pop(key, None)) is None:
        return False
    pairs.append(Pair(slot, run))
    return True


def _closest(
    slots: Sequence[datetime], runs: Sequence[datetime], tolerance: timedelta
) -> list[tuple[int, int]]:
    """Indices of slots and runs (both ascending) that belong together, the closest pair of all first.

    The closest two of opposite sides are neighbours when all are laid out by time, so only neighbours are
    looked at, and new ones as pairs go.
    """
    line = sorted(
        [(at, 0, index) for index, at in enumerate(slots)] + [(at, 1, i) for i, at in enumerate(runs)]
    )
    before = list(range(-1, len(line) - 1))
    after = [*range(1, len(line)), -1]
    gone = [False] * len(line)
    heap: list[tuple[timedelta, int, int]] = []

    def offer(low: int, high: int) -> None:
        if low >= 0 and high >= 0 and line[low][1] != line[high][1]:
            distance = line[high][0] - line[low][0]
            if distance <= tolerance:
                heapq.heappush(heap, (distance, low, high))

    for place in range(len(line) - 1):
        offer(place, place + 1)
    found: list[tuple[int, int]] = []
    while heap:
        _, low, high = heapq.heappop(heap)
        if gone[low] or gone[high]:
            continue
        gone[low] = gone[high] = True
        sides = {line[low][1]: line[low][2], line[high][1]: line[high][2]}
        found.append((sides[0], sides[1]))
        left, right = before[low], after[high]
        if left >= 0:
            after[left] = right
        if right >= 0:
            before[right] = left
        offer(left, right)
    return found
