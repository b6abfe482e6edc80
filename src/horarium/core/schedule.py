"""The `Schedule` contract, and how the mapping that people write becomes one.

A schedule is a pure rule of time on whole UTC seconds. It holds no state and reads no clock: the same
start always gives the same series. `parse` is the one way in: files, API, CLI and the engine's stored
revisions all pass the same mapping.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horarium.core.zone import Zone


class Schedule(ABC):
    """A rule that names instants. Instants are `int` seconds since the epoch, UTC."""

    @property
    @abstractmethod
    def zone(self) -> Zone | None:
        """The zone whose table decides, or None for a rule of elapsed time or an instant."""

    @abstractmethod
    def after(self, t: int) -> int | None:
        """The first instant strictly after `t`, or None when there is none."""

    @abstractmethod
    def before(self, t: int) -> int | None:
        """The last instant at or before `t`, or None when there is none."""

    @abstractmethod
    def describe(self) -> str:
        """The rule in plain English, one line."""

    def between(self, a: int, b: int, limit: int = 10_000) -> list[int]:
        """The instants in `(a, b]`, ascending, at most `limit` of them."""
        found: list[int] = []
        t = self.after(a)
        while t is not None and t <= b and len(found) < limit:
            found.append(t)
            t = self.after(t)
        return found
