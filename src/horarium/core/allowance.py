"""The rate allowance of a target: a token bucket whose row is shared by all replicas.

Tokens come at `per_second` and at most `burst` are saved. Neither time of the row goes back: a clock that
reads earlier than `refilled_at` adds nothing and takes nothing away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from horarium.core.spec import Rate


@dataclass(frozen=True, slots=True)
class Allowance:
    """`tokens` there were at `refilled_at` (aware UTC)."""

    tokens: float
    refilled_at: datetime

    def refilled(self, rate: Rate, now: datetime) -> Allowance:
        """The allowance at `now`."""
        elapsed = (now - self.refilled_at) / timedelta(seconds=1)
        if elapsed <= 0:
            return Allowance(min(self.tokens, float(rate.burst)), self.refilled_at)
        return Allowance(min(float(rate.burst), self.tokens + elapsed * rate.per_second), now)

    def granted(self, wanted: int) -> int:
        """How many of `wanted` runs it lets through: whole tokens only."""
        return max(0, min(wanted, math.floor(self.tokens + 1e-9)))

    def debited(self, taken: int) -> Allowance:
        """The allowance after `taken` runs went through."""
        return Allowance(max(0.0, self.tokens - taken), self.refilled_at)

    def next_at(self, rate: Rate) -> datetime:
        """When the next whole token is there."""
        missing = max(0.0, 1.0 - self.tokens)
        return self.refilled_at + timedelta(microseconds=math.ceil(missing / rate.per_second * 1_000_000))


def full(rate: Rate, now: datetime) -> Allowance:
    """A bucket that nobody has drawn from."""
    return Allowance(float(rate.burst), now)
