"""What a running process knows of itself: whether its loops turn, and what its targets are doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from horarium.clock import Clock


@dataclass(slots=True)
class LoopHealth:
    """`turned_at` is when the loop last ended a turn well; `error` is why the last turn failed, if it did.
    `rest` is the longest sleep between turns, in seconds."""

    name: str
    turned_at: datetime | None = None
    turned_monotonic: float = 0.0
    error: str | None = None
    errors: int = 0
    rest: float = 0.0


@dataclass(slots=True)
class TargetHealth:
    """`free` places, calls `in_flight`, why due runs are `waiting`: rate, full, frozen, guard,
    unavailable. `ahead`: what is wrong with runs that are to be there before they are due; `error`: why the
    target could not be started, or not be asked how its runs go."""

    name: str
    free: int
    in_flight: int
    waiting: str | None
    ahead: str | None = None
    error: str | None = None


class Health:
    """The loops of one process. A loop that has not turned for its rest and `limit` seconds is stuck."""

    def __init__(self, clock: Clock, limit: float = 60.0) -> None:
        self._clock = clock
        self.limit = limit
        self._loops: dict[str, LoopHealth] = {}
        self.of_targets: Callable[[], list[TargetHealth]] = list
        """Asked for the targets' health; the process that has an executor sets it."""

    def started(self, name: str, rest: float = 0.0) -> None:
        """A loop begins now, which sleeps at most `rest` seconds between its turns."""
        self._loops[name] = LoopHealth(name, turned_monotonic=self._clock.monotonic(), rest=rest)

    def turned(self, name: str) -> None:
        """A loop ended a turn well."""
        loop = self._loops[name]
        loop.turned_at = self._clock.now()
        loop.turned_monotonic = self._clock.monotonic()
        loop.error = None

    def failed(self, name: str, error: str) -> None:
        """A loop's turn failed; it goes on after a pause."""
        loop = self._loops[name]
        loop.error = error
        loop.errors += 1
        # A loop that fails and retries is alive; what it needs is not.
        loop.turned_monotonic = self._clock.monotonic()

    def loops(self) -> list[LoopHealth]:
        """All loops, for `status`."""
        return list(self._loops.values())

    def targets(self) -> list[TargetHealth]:
        """The targets of this process; none where nothing is fired."""
        return self.of_targets()

    def stuck(self) -> list[str]:
        """Names of loops that have not come round for `limit` seconds more than they may sleep."""
        now = self._clock.monotonic()
        return [
            loop.name for loop in self._loops.values() if now - loop.turned_monotonic > self.limit + loop.rest
        ]

    def failing(self) -> list[str]:
        """What the loops complain of now, as `name: error`."""
        return [f"{loop.name}: {loop.error}" for loop in self._loops.values() if loop.error is not None]
