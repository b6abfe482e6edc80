"""What becomes of a run that is due while an earlier one of its trigger has not ended.

| `overlap` | a slot that comes due while another run of the trigger is under way |
|---|---|
| `allow` | runs beside it |
| `skip` | becomes a skip |
| `queue` | waits until it has ended; while one slot waits, later ones become skips |
| `replace` | has the other cancelled at the target, then runs |

A run is under way from its first call until the target has reported its end, or can't be expected to any
more (`completion_timeout`). What a person asked for, a manual run or a backfill, is never skipped and
replaces nothing: it waits, however many wait already.

`judge` is pure; the store evaluates it inside a claim, where nobody else can begin a run of the trigger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from horarium.core.spec import Overlap

AGAIN = timedelta(seconds=60)
"""When a run that waits for another one is looked at again, though nobody has told of an end."""

COMPLETION_TIMEOUT = timedelta(days=1)
"""How long after it was fired a run counts as under way, if its target never reports an end."""


class Stage(StrEnum):
    """How far a run that is under way has come."""

    CALLING = "calling"  # some executor may be calling the target for it now
    RETRYING = "retrying"  # it was called, and is to be called again
    RUNNING = "running"  # the target has it


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A run of the trigger that has been called and has not ended.

    `there`: one that is to be called again, though its target has told that it runs; the answer was lost.
    """

    id: int
    name: str
    stage: Stage
    there: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run that has just been claimed. `asked_for`: a person asked for it. `attempt` counts this claim."""

    id: int
    scheduled_time: datetime
    policy: Overlap
    asked_for: bool
    attempt: int


@dataclass(frozen=True, slots=True)
class Go:
    """It is called now, once `cancels` have been cancelled at the target. `supersedes` are tried no more."""

    cancels: tuple[UnderWay, ...] = ()
    supersedes: tuple[UnderWay, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """It waits for the run `behind`."""

    behind: UnderWay


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The slot is skipped, and why."""

    detail: str


Verdict = Go | Wait | GiveUp


def judge(candidate: Candidate, under_way: Sequence[UnderWay], due: Sequence[datetime]) -> Verdict:
    """What becomes of one run. `under_way` are runs of its trigger in the order of their slots; `due` the
    slots of its other automatic runs that are due and have not begun.

    A run that was called before is under way itself: it is never skipped, and goes on before what waits. But
    where another has begun meanwhile (it had failed, or was held, and is tried again), it waits for that. For
    `replace` its claim says again what it replaces, as the one before may have ended before it had cancelled
    that.
    """
    if candidate.policy is Overlap.ALLOW:
        return Go()
    others = [run for run in under_way if run.id != candidate.id]
    replaces = candidate.policy is Overlap.REPLACE and not candidate.asked_for
    if replaces and candidate.attempt == 1 and any(slot > candidate.scheduled_time for slot in due):
        return GiveUp("a later slot was due before it began")
    if not others:
        return Go()
    last = others[-1]
    if replaces:
        calling = [run for run in others if run.stage is Stage.CALLING]
        if calling:
            return Wait(calling[-1])
        return Go(
            tuple(run for run in others if run.stage is Stage.RUNNING or run.there),
            tuple(run for run in others if run.stage is Stage.RETRYING),
        )
    if candidate.attempt > 1:
        begun = [run for run in others if run.stage is not Stage.RETRYING]
        return Wait(begun[-1]) if begun else Go()
    if candidate.asked_for:
        return Wait(last)
    if candidate.policy is Overlap.SKIP:
        return GiveUp(f"run {last.name} had not ended")
    if any(slot < candidate.scheduled_time for slot in due):
        return GiveUp(f"run {last.name} had not ended, and a slot was waiting for that already")
    return Wait(last)


def ask_again(fired_at: datetime, now: datetime) -> datetime:
    """When a target is next asked how a run is going: after a tenth of its age, between 2 and 60 s."""
    age = max(timedelta(), now - fired_at)
    return now + min(timedelta(seconds=60), max(timedelta(seconds=2), age / 10))
