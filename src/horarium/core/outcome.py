"""From a target's answer to what becomes of the run.

`settle` is pure. Success is evidence: the store accepts it from anybody. A failure counts only from the
attempt that holds the run; the store checks that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from horarium.core.run import RunState

UNKNOWN = "; the answer to an earlier call was lost, so the run may exist at the target"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How `Unavailable` is tried again: `first` delay, doubled each time up to `cap`, for `total` in all
    from the first claim."""

    first: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(minutes=5)
    total: timedelta = timedelta(hours=72)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What settle writes: the run `run_id`, as its claim `attempt` ended it.

    `state` is `fired`, `failed`, `shadowed`, or `scheduled` for a retry at `due_at`. `answer` is the word for
    the attempt's record: created, exists, refused, unavailable; shadowed where nobody was called. `reports`:
    its target will say when it has ended. `exclusive`: other runs of its trigger may wait for its end.
    """

    run_id: int
    attempt: int
    state: RunState
    answer: str
    started_at: datetime
    answered_at: datetime
    due_at: datetime | None = None
    reason: str | None = None
    target_run_id: str | None = None
    unknown: bool = False
    reports: bool = False
    exclusive: bool = False


def backoff(attempt: int, policy: RetryPolicy, fraction: float) -> timedelta:
    """The delay after `attempt` (from 1): exponential, capped, and spread over its upper half.

    `fraction` in [0, 1) is drawn by the caller. The spread keeps a thousand runs that failed together
    from coming back together.
    """
    doubled = policy.first * 2.0 ** min(attempt - 1, 40)
    return min(policy.cap, doubled) * (0.5 + fraction / 2)


def retry_at(
    *,
    attempt: int,
    first_claimed_at: datetime,
    answered_at: datetime,
    asked_for: datetime | None,
    policy: RetryPolicy,
    fraction: float,
) -> datetime | None:
    """When an unavailable target is tried again, or None when `policy.total` is used up.

    A time that the target asked for (`Retry-After`) is honoured where it is later than our own, but
    within a day and within the total: a target can't park a run for ever.
    """
    due = answered_at + backoff(attempt, policy, fraction)
    if asked_for is not None:
        due = max(due, min(asked_for, answered_at + timedelta(days=1)))
    end = first_claimed_at + policy.total
    if answered_at >= end:
        return None
    return min(due, end)
