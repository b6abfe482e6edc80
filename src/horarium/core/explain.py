"""Why a schedule names the instants that it names: jumps of the clock, calendars, policies side by side.

Pure functions that return dataclasses; the CLI and the API show them. A local time is written without
an offset where it may not exist, and with one where it may come twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from horarium.core.calendars import Filtered
from horarium.core.cron import CORRECTION, Cron, Dst
from horarium.core.cron_robfig import RobfigCron
from horarium.core.instant import MAX_SECONDS, MIN_SECONDS, from_seconds, rfc3339
from horarium.core.schedule import Bounded, Schedule
from horarium.core.zone import DAY, Transition, Zone

_MOST_LOCAL = (
    10_000  # local times listed for one jump of the clock; a day of seconds is more than anybody reads
)


class Outcome(StrEnum):
    """What became of the local times that a jump of the clock took away or showed twice."""

    MOVED = "moved"  # in a gap: one run at the first instant after it
    DROPPED = "dropped"  # in a gap: no run
    ONCE = "once"  # in an overlap: on the first pass only
    TWICE = "twice"  # in an overlap: on both passes


@dataclass(frozen=True, slots=True)
class Anomaly:
    """What one jump of the clock did to a rule.

    `at` is the jump, `jump` its seconds (positive is a gap). `local_times` are the rule's local times in it,
    as local seconds; `runs` the instants that the rule names for them.
    """

    at: int
    jump: int
    outcome: Outcome
    local_times: tuple[int, ...]
    runs: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Explained:
    """One instant of a preview. `local` has the offset; `notes` are empty for an everyday instant."""

    at: int
    local: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """One instant that at least one of the compared policies names."""

    at: int
    local: str
    named_by: tuple[Dst, ...]


def explained(schedule: Schedule, after: int, count: int) -> list[Explained]:
    """The next `count` instants, each with what the clock or a calendar did to it or just before it."""
    found: list[Explained] = []
    t = after
    while len(found) < count:
        at = schedule.after(t)
        if at is None:
            break
        notes = [anomaly.text for anomaly in _between(schedule, t, at)]
        if isinstance(schedule, Filtered):
            notes += _calendars(schedule, t, at)
        found.append(Explained(at, local_text(schedule.zone, at), tuple(notes)))
        t = at
    return found


def anomalies(schedule: Schedule, a: int, b: int) -> list[Anomaly]:
    """What the jumps of the clock in `(a, b]` do to a rule of the wall clock; nothing for other kinds."""
    rule, start, end = _inner(schedule)
    zone = rule.zone
    if zone is None or zone.is_fixed:
        return []
    changes = [change for change in zone.transitions(a, b) if start <= change.at <= end]
    return [anomaly for change in changes if (anomaly := _anomaly(rule, change)) is not None]


def year_of_anomalies(schedule: Schedule, year: int) -> list[Anomaly]:
    """The anomalies of one calendar year of UTC."""
    first = (year - 1) * 365 + (year - 1) // 4 - (year - 1) // 100 + (year - 1) // 400 - 719_162
    length = 365 + (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0))
    return anomalies(schedule, first * DAY - 1, (first + length) * DAY - 1)


def compare(
    schedule: Schedule, after: int, count: int, policies: Sequence[Dst] = tuple(Dst)
) -> list[Compared]:
    """The next `count` instants that any of `policies` names, and which of them do.

    A rule that is not cron has no policy: every instant is named by all.
    """
    rules = {policy: with_policy(schedule, policy) for policy in policies}
    found: list[Compared] = []
    t = after
    while len(found) < count:
        ahead = {policy: rule.after(t) for policy, rule in rules.items()}
        at = min((instant for instant in ahead.values() if instant is not None), default=None)
        if at is None:
            break
        named = tuple(policy for policy, instant in ahead.items() if instant == at)
        found.append(Compared(at, local_text(schedule.zone, at), named))
        t = at
    return found


def with_policy(schedule: Schedule, policy: Dst) -> Schedule:
    """The same rule under another DST policy, inside the same bounds and calendars."""
    if isinstance(schedule, Bounded | Filtered):
        return replace(schedule, rule=with_policy(schedule.rule, policy))
    if isinstance(schedule, Cron):
        return Cron(schedule.text, schedule.fields, schedule.zone, policy)
    return schedule


def local_text(zone: Zone | None, at: int) -> str:
    """`2026-10-25T02:30:00+02:00`; UTC for a rule without a zone."""
    if zone is None:
        return rfc3339(from_seconds(at))
    offset = zone.offset_at(at)
    if not MIN_SECONDS <= at + offset <= MAX_SECONDS:
        return rfc3339(from_seconds(at))
    hours, rest = divmod(abs(offset), 3_600)
    text = f"{'-' if offset < 0 else '+'}{hours:02}:{rest // 60:02}"
    text += f":{rest % 60:02}" if rest % 60 else ""  # before standard time
    return rfc3339(from_seconds(at + offset)).removesuffix("Z") + text


def _between(schedule: Schedule, a: int, b: int) -> list[Anomaly]:
    """What happened in `(a, b]`, and the overlap that `b` itself lies in."""
    zone = schedule.zone
    if zone is None or zone.is_fixed:
        return []
    found = []
    # A pass of an overlap begins up to a day before the jump and ends up to a day after it.
    for anomaly in anomalies(schedule, a - DAY, b + DAY):
        inside = b in anomaly.runs if anomaly.outcome is not Outcome.DROPPED else a < anomaly.at <= b
        if inside:
            found.append(anomaly)
    return found


def _calendars(schedule: Filtered, a: int, b: int) -> list[str]:
    """What calendars left out in `(a, b)`, a line a reason, and where `b` itself was moved from."""
    out: dict[str, list[int]] = {}
    for change in schedule.changes(a, b):
        if change.at is None:
            out.setdefault(change.reason, []).append(schedule.place.to_local(change.slot))
    notes = [f"{_days(slots)} left out: {reason}" for reason, slots in out.items()]
    moved = schedule.note(b)
    return notes if moved is None else [*notes, moved]


def _inner(schedule: Schedule) -> tuple[Schedule, int, int]:
    """The rule inside, and the bounds around it."""
    start, end = MIN_SECONDS, MAX_SECONDS
    while isinstance(schedule, Bounded | Filtered):
        if isinstance(schedule, Bounded):
            start = start if schedule.start is None else max(start, schedule.start)
            end = end if schedule.end is None else min(end, schedule.end)
        schedule = schedule.rule
    return schedule, start, end


def _anomaly(rule: Schedule, change: Transition) -> Anomaly | None:
    if isinstance(rule, Cron):
        return _gap(rule, change) if change.jump > 0 else _overlap(rule, change)
    # Late: `explain_rules` imports this module, and a preview of cron does not wait for recurrence rules.
    from horarium.core.explain_rules import jump_of_rule
    from horarium.core.interval import CalendarInterval
    from horarium.core.rrule import RRuleSet

    return jump_of_rule(rule, change) if isinstance(rule, CalendarInterval | RRuleSet) else None


def _gap(cron: Cron, change: Transition) -> Anomaly | None:
    lost = _locals(cron, change.at + change.before, change.at + change.after)
    if not lost:
        return None
    moved = cron.makes_up and change.jump < CORRECTION
    runs = (change.at,) if moved else ()
    when = f"the clock goes from {_clock(change.at + change.before)} to {_clock(change.at + change.after)}"
    text = f"{_times(lost)} does not exist on {_date(lost[0])}, {when}: "
    if moved:
        text += f"runs at {_clock(change.at + change.after)}, the first instant after it (dst: vixie)"
    elif isinstance(cron, RobfigCron):
        text += "skipped (dialect: robfig)"
    elif cron.dst is Dst.VIXIE and cron.fields.fixed_time:
        text += "skipped, a jump of three hours or more is a correction of the clock"
    else:
        why = "not a fixed-time job" if cron.dst is Dst.VIXIE else "nothing is made up for"
        text += f"skipped (dst: {cron.dst.value}, {why})"
    return Anomaly(change.at, change.jump, Outcome.MOVED if moved else Outcome.DROPPED, lost, runs, text)


def _overlap(cron: Cron, change: Transition) -> Anomaly | None:
    twice = _locals(cron, change.at + change.after, change.at + change.before)
    if not twice:
        return None
    runs = [local - change.before for local in twice]
    text = f"{_times(twice)} comes twice on {_date(twice[0])}: "
    if cron.once:
        text += f"runs on the first pass only (dst: {cron.dst.value})"
    else:
        runs += [local - change.after for local in twice]
        why = ", not a fixed-time job" if cron.dst is Dst.VIXIE else ""
        text += f"runs on both passes (dst: {cron.dst.value}{why})"
    outcome = Outcome.ONCE if cron.once else Outcome.TWICE
    return Anomaly(change.at, change.jump, outcome, twice, tuple(sorted(runs)), text)


def _locals(cron: Cron, low: int, high: int) -> tuple[int, ...]:
    """The rule's local times in `low..high - 1`."""
    found: list[int] = []
    local = cron.next_local(low)
    while local is not None and local < high and len(found) < _MOST_LOCAL:
        found.append(local)
        local = cron.next_local(local + 1)
    return tuple(found)


def _times(local_times: Sequence[int]) -> str:
    if len(local_times) <= 3:
        return ", ".join(_clock(local) for local in local_times)
    return f"{_clock(local_times[0])} … {_clock(local_times[-1])} ({len(local_times):,} times)"


def _days(local_times: Sequence[int]) -> str:
    first, last = (f"{_date(local)} {_clock(local)}" for local in (local_times[0], local_times[-1]))
    return first if len(local_times) == 1 else f"{first} … {last} ({len(local_times):,} times)"


def _clock(local: int) -> str:
    second = local % DAY
    text = f"{second // 3_600:02}:{second // 60 % 60:02}"
    return text if second % 60 == 0 else f"{text}:{second % 60:02}"


def _date(local: int) -> str:
    return from_seconds(local).date().isoformat()
