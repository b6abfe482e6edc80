"""What is probably not meant: rules that are right to the letter and surprise their owners.

`lint` looks at resolved triggers and returns findings, each with a code, a reason and a fix. Findings are
advice: nothing is refused here. A code is silenced for one trigger or for all.

| code | what |
|---|---|
| `never` | no instant from now on |
| `rare` | less than once a year |
| `day_or` | both day fields are restricted, so either is enough |
| `dst_gap` | a fixed time that a jump of the clock skips in the next two years |
| `dst_overlap` | a fixed time that the clock shows twice in the next two years |
| `uneven_step` | `*/n` that does not divide its field, so that the last step is shorter |
| `crowded` | too many triggers in one second |
| `sub_minute` | more often than once a minute |
| `zone_abbreviation` | a zone named by letters that mean different places to different people |
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from horarium.core.calendars import Filtered
from horarium.core.cron import Cron, Dst
from horarium.core.cron_text import NICKNAMES
from horarium.core.explain import Outcome, anomalies, local_text
from horarium.core.interval import CalendarInterval
from horarium.core.recurrence import Freq
from horarium.core.rrule import RRuleSet
from horarium.core.schedule import Bounded, Schedule, parse
from horarium.core.zone import AMBIGUOUS_ABBREVIATIONS, DAY
from horarium.errors import InvalidInput

CODES = (
    "never",
    "rare",
    "day_or",
    "dst_gap",
    "dst_overlap",
    "uneven_step",
    "crowded",
    "sub_minute",
    "zone_abbreviation",
)
YEAR = 365 * DAY + DAY // 4
_MOST_NAMED = 5  # triggers that one finding about a crowd names
_MOST_CROWDS = 10
_MOST_A_DAY = 2_000  # instants of one trigger that are counted: more than every minute

_FIELDS = (("minute", 60), ("hour", 24), ("day of month", 31), ("month", 12), ("day of week", 7))
_STEP = re.compile(r"\*/(\d+)")
_LEGACY = {
    # Zones of the tz database that are an offset with a rule of their own, or a country's old name.
    "EST": "America/New_York, or America/Panama for five hours behind all year",
    "MST": "America/Denver, or America/Phoenix for seven hours behind all year",
    "HST": "Pacific/Honolulu",
    "EST5EDT": "America/New_York",
    "CST6CDT": "America/Chicago",
    "MST7MDT": "America/Denver",
    "PST8PDT": "America/Los_Angeles",
    "CET": "Europe/Berlin, or another place of that zone",
    "MET": "Europe/Berlin, or another place of that zone",
    "EET": "Europe/Athens, or another place of that zone",
    "WET": "Europe/Lisbon, or another place of that zone",
    "PRC": "Asia/Shanghai",
    "ROC": "Asia/Taipei",
    "ROK": "Asia/Seoul",
    "GB": "Europe/London",
    "NZ": "Pacific/Auckland",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One piece of advice about the trigger `trigger`."""

    code: str
    trigger: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.trigger}: {self.code}: {self.reason}; try: {self.fix}"

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "trigger": self.trigger, "reason": self.reason, "fix": self.fix}


@dataclass(frozen=True, slots=True)
class Subject:
    """A trigger to look at: its key as people write it, its schedule mapping, its hash seed.

    `silenced` are codes that its owner has answered.
    """

    trigger: str
    spec: Mapping[str, Any]
    seed: str = ""
    silenced: frozenset[str] = field(default_factory=frozenset)


def lint(
    subjects: Iterable[Subject],
    now: int,
    *,
    silenced: Collection[str] = (),
    crowd: int = 20,
    of: Collection[str] | None = None,
) -> list[Finding]:
    """Everything to say about `subjects`, in their order, crowds last.

    `now` is in seconds since the epoch. `crowd` is how many triggers may share a second. `of` are the keys of
    those that are of interest: of the others only their part in a crowd with one of them. A mapping that
    can't be parsed is left to validation, except that a rule without any date is a `never`.
    """
    found: list[Finding] = []
    parsed: list[tuple[Subject, Schedule]] = []
    own: dict[str, frozenset[str]] = {}
    for subject in subjects:
        wanted = of is None or subject.trigger in of
        own[subject.trigger] = subject.silenced
        try:
            schedule = parse(subject.spec, seed=subject.seed)
        except InvalidInput as error:
            found += [
                Finding("never", subject.trigger, problem.rule, problem.hint or "another date")
                for problem in error.problems
                if problem.code == "never" and wanted
            ]
            continue
        parsed.append((subject, schedule))
        found += _one(subject, schedule, now) if wanted else ()
    if "crowded" not in silenced:
        found += _crowds(parsed, now, crowd, of)
    return [
        finding
        for finding in found
        if finding.code not in silenced and finding.code not in own.get(finding.trigger, frozenset())
    ]


def _one(subject: Subject, schedule: Schedule, now: int) -> list[Finding]:
    found = [*_zone(subject, schedule)]
    first = schedule.after(now)
    if first is None:
        if subject.spec.get("at") is None:
            ended = schedule.before(now) is not None
            reason = "no instant is left" if ended else "it names no instant, ever"
            fix = "a later end, or delete the trigger" if ended else "another date, or another dst"
            found.append(Finding("never", subject.trigger, reason, fix))
        return found
    second = schedule.after(first)
    ends = second is None and subject.spec.get("end") is not None  # a rule that nears its end is not rare
    if subject.spec.get("at") is None and not ends and (second is None or second - first > YEAR + DAY):
        when = local_text(schedule.zone, first)
        then = "never again" if second is None else f"then at {local_text(schedule.zone, second)}"
        reason = f"it runs less than once a year: at {when}, {then}"
        found.append(Finding("rare", subject.trigger, reason, "'at' for a date, if it is meant once"))
    if second is not None and second - first < 60:
        reason = f"it runs every {second - first} s, more often than once a minute"
        found.append(Finding("sub_minute", subject.trigger, reason, "5 fields, or every: 1m"))
    cron = _cron(schedule)
    if cron is not None:
        found += _fields(subject, cron)
    return found + _clock_jumps(subject, schedule, now)


def _zone(subject: Subject, schedule: Schedule) -> list[Finding]:
    # A rule can name its own zone: CRON_TZ= or TZID=.
    name = subject.spec.get("timezone") if schedule.zone is None else schedule.zone.name
    meant = _LEGACY.get(str(name)) or AMBIGUOUS_ABBREVIATIONS.get(str(name))
    if meant is None:
        return []
    reason = f"{name} means different places to different people"
    return [Finding("zone_abbreviation", subject.trigger, reason, meant)]


def _fields(subject: Subject, cron: Cron) -> list[Finding]:
    found = []
    if cron.fields.either:
        reason = f"both day fields of {cron.text!r} are restricted, so a date that matches either runs"
        fix = "day_or: false for dates that match both, or * in one of them"
        found.append(Finding("day_or", subject.trigger, reason, fix))
    parts = NICKNAMES.get(cron.text, cron.text).split()[-5:]
    for (name, size), part in zip(_FIELDS, parts, strict=True):
        match = _STEP.fullmatch(part)
        if match is None or name in ("day of month", "day of week"):
            continue  # months and weeks differ in length anyway
        step = int(match[1])
        if step >= size:
            reason = f"{part} is only the first {name}: the step is as long as the field"
            found.append(Finding("uneven_step", subject.trigger, reason, "1" if name == "month" else "0"))
        elif size % step:
            low = 1 if name == "month" else 0
            last = low + (size - 1) // step * step
            reason = (
                f"{part} does not divide {size}: after {name} {last} comes {low}, {size - last + low} later"
            )
            even = [n for n in range(1, size) if size % n == 0]
            near = sorted(even, key=lambda n: abs(n - step))[:2]
            fix = " or ".join(f"*/{n}" for n in sorted(near)) + f", or every: for an even {name} count"
            found.append(Finding("uneven_step", subject.trigger, reason, fix))
    return found


def _clock_jumps(subject: Subject, schedule: Schedule, now: int) -> list[Finding]:
    """The first gap and the first overlap of the next two years that meet a fixed time."""
    if not _has_fixed_times(_innermost(schedule)):
        return []
    found: dict[str, Finding] = {}
    for anomaly in anomalies(schedule, now, now + 2 * YEAR):
        code = "dst_gap" if anomaly.outcome in (Outcome.MOVED, Outcome.DROPPED) else "dst_overlap"
        fix = "a time that the clock neither skips nor repeats, or timezone: UTC"
        found.setdefault(code, Finding(code, subject.trigger, anomaly.text, fix))
    return list(found.values())


def _has_fixed_times(rule: Schedule) -> bool:
    """The rule names times of the day, and does not run all day long."""
    match rule:
        case Cron():
            return rule.fields.fixed_time or rule.dst is Dst.SKIP_ONCE
        case RRuleSet():
            return all(one.parts.freq <= Freq.DAILY and len(one.parts.by_hour) < 24 for one in rule.rules)
    return isinstance(rule, CalendarInterval)


def _crowds(
    parsed: list[tuple[Subject, Schedule]], now: int, crowd: int, of: Collection[str] | None
) -> list[Finding]:
    """Seconds of the next day that more than `crowd` triggers share, the fullest first."""
    if len(parsed) <= crowd:
        return []
    at: defaultdict[int, list[int]] = defaultdict(list)
    for index, (subject, schedule) in enumerate(parsed):
        if "crowded" not in subject.silenced:
            for instant in schedule.between(now, now + DAY, _MOST_A_DAY):
                at[instant].append(index)
    groups: dict[tuple[int, ...], int] = {}
    for instant in sorted(at):
        if len(at[instant]) > crowd:
            groups.setdefault(tuple(at[instant]), instant)
    found: list[Finding] = []
    told: set[int] = set()
    for members, instant in sorted(groups.items(), key=lambda item: (-len(item[0]), item[1])):
        if len(found) == _MOST_CROWDS:
            break
        if told.issuperset(members):
            continue
        if of is not None and not any(parsed[index][0].trigger in of for index in members):
            continue
        told.update(members)
        subject, schedule = parsed[members[0]]
        names = ", ".join(parsed[index][0].trigger for index in members[:_MOST_NAMED])
        more = f" and {len(members) - _MOST_NAMED} more" if len(members) > _MOST_NAMED else ""
        when = local_text(schedule.zone, instant)
        reason = f"{len(members)} triggers share {when}: {names}{more}"
        found.append(Finding("crowded", subject.trigger, reason, spread_form(parsed, members)))
    return found


def spread_form(parsed: list[tuple[Subject, Schedule]], members: Iterable[int]) -> str:
    """An `H` form that spreads the commonest cron rule among `members`."""
    rules = Counter(cron.text for index in members if (cron := _cron(parsed[index][1])) is not None)
    for text, _ in rules.most_common(1):
        parts = NICKNAMES.get(text, text).split()[-5:]
        step = _STEP.fullmatch(parts[0])
        parts[0] = f"H/{step[1]}" if step else "H"
        return f"cron: {' '.join(parts)!r} for {text!r}, which keeps its rhythm and spreads its minute"
    return "jitter, or different starts"


def _cron(schedule: Schedule) -> Cron | None:
    rule = _innermost(schedule)
    return rule if isinstance(rule, Cron) else None


def _innermost(schedule: Schedule) -> Schedule:
    """The rule without its bounds and calendars."""
    while isinstance(schedule, Bounded | Filtered):
        schedule = schedule.rule
    return schedule
