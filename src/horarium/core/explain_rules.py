"""What a jump of the clock does to calendar intervals and recurrence rules, in words.

`explain.py` asks here for the rules that are not cron.
"""

from __future__ import annotations

from collections.abc import Sequence

from horarium.core.civil import DAY, MADE_UP_GAP, iso_date
from horarium.core.explain import Anomaly, Outcome
from horarium.core.interval import CalendarInterval
from horarium.core.rrule import RRuleSet
from horarium.core.zone import Transition


def jump_of_rule(rule: CalendarInterval | RRuleSet, change: Transition) -> Anomaly | None:
    """What `change` did to the local times that `rule` names; None if it names none in the jump."""
    low, high = sorted((change.at + change.before, change.at + change.after))
    named = tuple(rule.local_times(low, high))
    if not named:
        return None
    if change.jump < 0:
        text = f"{_times(named)} comes twice on {iso_date(named[0] // DAY)}: runs on the first pass only"
        runs = tuple(local - change.before for local in named)
        return Anomaly(change.at, change.jump, Outcome.ONCE, named, runs, text)
    text = (
        f"{_times(named)} does not exist on {iso_date(named[0] // DAY)}, "
        f"the clock goes from {_clock(low)} to {_clock(high)}: "
    )
    if isinstance(rule, CalendarInterval) and change.jump < MADE_UP_GAP:
        text += f"runs at {_clock(high)}, the first instant after it"
        return Anomaly(change.at, change.jump, Outcome.MOVED, named, (change.at,), text)
    if isinstance(rule, CalendarInterval):
        text += "skipped, a jump of three hours or more is a correction of the clock"
    else:
        text += "no instance, and not counted (RFC 5545 §3.3.10)"
    return Anomaly(change.at, change.jump, Outcome.DROPPED, named, (), text)


def _times(local_times: Sequence[int]) -> str:
    if len(local_times) <= 3:
        return ", ".join(_clock(local) for local in local_times)
    return f"{_clock(local_times[0])} … {_clock(local_times[-1])} ({len(local_times):,} times)"


def _clock(local: int) -> str:
    second = local % DAY
    text = f"{second // 3_600:02}:{second // 60 % 60:02}"
    return text if second % 60 == 0 else f"{text}:{second % 60:02}"
