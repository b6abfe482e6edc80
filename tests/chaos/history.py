"""What should have happened, worked out from what was recorded, without any of Horarium's code.

The database's revisions say which rule was in force when; what people were answered says whether those are
the true ones; the receiver says what came of it. Every slot in a span of an active rule has a run or a skip,
and a run that fired had its effect at the receiver once, under its name, not before its time.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import asyncpg

SECOND = 1_000_000
"""All instants here are microseconds since the epoch: whole numbers, so that a slot is exact."""

SLACK = SECOND
"""How far a replica's idea of the database's time may be off, where a network delays its question."""


@dataclass(frozen=True)
class Rule:
    """A revision: from `since` on (not included) a slot every `step` microseconds, in `state`."""

    number: int
    since: int
    state: str
    step: int
    catch_up: str = "all"
    what: str = ""


@dataclass(frozen=True)
class Row:
    """A run as the database has it."""

    trigger: str
    slot: int
    name: str
    state: str
    origin: str
    reason: str


@dataclass(frozen=True)
class Gap:
    """A skip as the database has it: `count` slots of revision `rule` in `[first, last]`."""

    trigger: str
    rule: int
    first: int
    last: int
    count: int
    reason: str


@dataclass(frozen=True)
class Effect:
    """What a receiver did for the first request with a key, and when it was first asked."""

    key: str
    trigger: str
    slot: int
    asked: int
    calls: int
    done: bool = True


@dataclass(frozen=True)
class Word:
    """What somebody asked of a trigger: put with a `step`, pause, resume or delete. `answered` is None where
    no answer came, so that it may have been done, or be done later."""

    trigger: str
    verb: str
    sent: int
    answered: int | None
    step: int = 0


@dataclass(frozen=True)
class Fault:
    """What was done to the system, from when to when it was well again."""

    name: str
    began: int
    ended: int


@dataclass
class Records:
    """What the database holds in the end."""

    rules: dict[str, list[Rule]] = field(default_factory=dict)
    runs: list[Row] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


@dataclass
class Verdict:
    """`wrong` has a line for every slot that is not as it must be."""

    slots: int = 0
    fired: int = 0
    skipped: int = 0
    ended: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)


def judge(records: Records, effects: Mapping[str, Effect], end: int) -> Verdict:
    """Hold the records and the effects against the rules, for all slots up to `end`."""
    verdict = Verdict()
    runs: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for run in records.runs:
        runs[run.trigger, run.slot].append(run)
    covered = _covered(records, verdict)
    expected: set[tuple[str, int]] = set()
    for trigger, rules in records.rules.items():
        ends = [rule.since for rule in rules if rule.state == "deleted"]
        for rule, slot in _owed(rules, end):
            at = (trigger, slot)
            expected.add(at)
            verdict.slots += 1
            deleted = bool(ends) and ends[-1] >= slot
            _judge_slot(at, rule, runs.get(at, ()), covered.get(at, ()), deleted, effects, verdict)
    for at, found in runs.items():
        if at[1] <= end and at not in expected:
            verdict.wrong.append(f"invented: {_words(at)}: {found}")
    _judge_effects(effects, records, verdict)
    return verdict


def check_words(
    rules: Mapping[str, Sequence[Rule]], words: Iterable[Word], made_by_file: frozenset[str] = frozenset()
) -> list[str]:
    """What people were answered against the revisions: what was acknowledged is in force, and nothing that
    nobody asked for. Triggers `made_by_file` are created and edited by their file."""
    wrong: list[str] = []
    of: dict[str, list[Word]] = defaultdict(list)
    for word in words:
        of[word.trigger].append(word)
        if word.answered is not None and not _in_force(rules.get(word.trigger, ()), word):
            wrong.append(f"acknowledged and not done: {word}: {rules.get(word.trigger, ())}")
    verbs = {"create": "put", "edit": "put", "revive": "put", "pause": "pause", "resume": "resume"}
    for trigger, kept in rules.items():
        for rule in kept:
            verb = verbs.get(rule.what, rule.what)
            if verb == "put" and trigger in made_by_file:
                continue
            asked = any(
                word.verb == verb
                and word.sent - SLACK <= rule.since
                and (word.answered is None or rule.since <= word.answered + SLACK)
                for word in of[trigger]
            )
            if not asked:
                wrong.append(f"nobody asked for it: {trigger}: {rule}: {of[trigger]}")
    return wrong


def unexplained(
    records: Records, effects: Mapping[str, Effect], faults: Sequence[Fault], most: int, recovery: int
) -> list[tuple[int, str]]:
    """Runs that were first called later than faults explain: how late, and which.

    `most` is for when nothing is wrong. A fault that lasts, or ended less than `recovery` ago, adds the time
    that it took from between the slot and the call, and `recovery`. So does the time for which a trigger was
    paused or deleted.
    """
    found: list[tuple[int, str]] = []
    for run in records.runs:
        effect = effects.get(run.name)
        if effect is None or run.origin != "schedule":
            continue
        late = effect.asked - run.slot
        allowed = most
        if late > most:
            away = [(item.began, item.ended) for item in faults]
            away += [
                (rule.since, following)
                for rule, following in _spans(records.rules[run.trigger])
                if rule.state != "active"
            ]
            for began, ended in away:
                if began <= effect.asked and run.slot <= ended + recovery:
                    allowed += max(0, min(ended, effect.asked) - max(began, run.slot)) + recovery
        if late > allowed:
            found.append((late, f"{run.name} of {_words((run.trigger, run.slot))}"))
    return sorted(found, reverse=True)


def lateness(records: Records, effects: Mapping[str, Effect]) -> list[float]:
    """Seconds from each slot to the first call for it, ascending."""
    return sorted(
        (effects[run.name].asked - run.slot) / SECOND
        for run in records.runs
        if run.origin == "schedule" and run.name in effects
    )


async def read_records(url: str) -> Records:
    """Straight from the tables."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            key = "concat_ws('/', t.project, t.domain, t.deployment, t.name) as key"
            rules = await connection.fetch(
                f"select {key}, r.* from trigger_revision r join trigger t on t.id = r.trigger_id"
                " order by r.trigger_id, r.number"
            )
            runs = await connection.fetch(
                f"select {key}, r.scheduled_time, r.name, r.state, r.origin, r.reason from run r"
                " join trigger t on t.id = r.trigger_id"
            )
            gaps = await connection.fetch(
                f"select {key}, s.* from skip s join trigger t on t.id = s.trigger_id order by s.id"
            )
    finally:
        await connection.close()
    records = Records()
    for row in rules:
        records.rules.setdefault(row["key"], []).append(_rule(row))
    records.runs = [
        Row(
            row["key"],
            micros(row["scheduled_time"]),
            row["name"],
            row["state"],
            row["origin"],
            row["reason"] or "",
        )
        for row in runs
    ]
    records.gaps = [
        Gap(
            row["key"],
            row["revision"],
            micros(row["first_time"]),
            micros(row["last_time"]),
            row["count"],
            row["reason"],
        )
        for row in gaps
    ]
    return records


def run_name(trigger: str, slot: int) -> str:
    """Flyte's name of a slot: FNV-1, 64 bits, over the key and the UTC time, unpadded."""
    at = datetime.fromtimestamp(slot // SECOND, UTC)
    parts = (*trigger.split("/"), at.year, at.month, at.day, at.hour, at.minute, at.second)
    value = 0xCBF29CE484222325
    for byte in ":".join(map(str, parts)).encode():
        value = value * 0x100000001B3 % 2**64 ^ byte
    return f"r{value:x}"


def micros(at: datetime) -> int:
    """An aware instant as a whole number."""
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


def _rule(row: Mapping[str, Any]) -> Rule:
    spec = json.loads(row["spec"])
    text = spec["schedule"]["every"]
    step = int(text[:-1]) * {"s": 1, "m": 60}[text[-1]] * SECOND
    return Rule(
        row["number"], micros(row["effective_from"]), row["state"], step, spec["catch_up"], row["what"]
    )


def _spans(rules: Sequence[Rule]) -> Iterator[tuple[Rule, int]]:
    """Each rule and until when it was in force, included."""
    yield from zip(rules, [*(item.since for item in rules[1:]), 2**62], strict=True)


def _owed(rules: Sequence[Rule], end: int) -> Iterator[tuple[Rule, int]]:
    for rule, following in _spans(rules):
        if rule.state != "deleted":
            for slot in slots(rule.since, min(following, end), rule.step):
                yield rule, slot


def slots(after: int, until: int, step: int) -> range:
    """The multiples of `step` in `(after, until]`."""
    return range(after // step * step + step, until + 1, step)


def _covered(records: Records, verdict: Verdict) -> dict[tuple[str, int], list[Gap]]:
    covered: dict[tuple[str, int], list[Gap]] = defaultdict(list)
    for gap in records.gaps:
        (rule,) = [item for item in records.rules[gap.trigger] if item.number == gap.rule]
        inside = slots(gap.first - 1, gap.last, rule.step)
        if len(inside) != gap.count:
            verdict.wrong.append(f"a skip of {gap.count} slots that has {len(inside)}: {gap}")
        for slot in inside:
            covered[gap.trigger, slot].append(gap)
    return covered


def _judge_slot(
    at: tuple[str, int],
    rule: Rule,
    runs: Sequence[Row],
    gaps: Sequence[Gap],
    deleted: bool,
    effects: Mapping[str, Effect],
    verdict: Verdict,
) -> None:
    if not runs and not gaps:
        verdict.lost += 1
        verdict.wrong.append(f"lost: {_words(at)} of {rule} has neither a run nor a skip")
    if len(runs) + len(gaps) > 1:
        verdict.doubled += 1
        verdict.wrong.append(f"decided twice: {_words(at)}: {runs} {gaps}")
    for run in runs:
        effect = effects.get(run.name)
        had = effect is not None and effect.done
        if run.name != run_name(*at):
            verdict.wrong.append(f"misnamed: {run}")
        if run.state == "fired" and had:
            verdict.fired += 1
        elif run.state == "failed" and deleted and "deleted" in run.reason:
            verdict.ended += 1
        else:
            verdict.lost += 1
            verdict.wrong.append(f"lost: {run}, effect: {effect}")
        if rule.state == "paused" and run.origin != "backfill":
            verdict.wrong.append(f"fired though paused: {run} of {rule}")
    for gap in gaps:
        verdict.skipped += 1
        allowed = {"deleted"} if deleted else set()
        if rule.state == "paused":
            allowed.add("paused")
        elif rule.catch_up == "latest":
            allowed.add("catch_up_latest")
        if gap.reason not in allowed:
            verdict.lost += 1
            verdict.wrong.append(f"skipped without a reason: {_words(at)} of {rule}: {gap}")


def _judge_effects(effects: Mapping[str, Effect], records: Records, verdict: Verdict) -> None:
    known = {run.name: (run.trigger, run.slot) for run in records.runs}
    times = Counter((item.trigger, item.slot) for item in effects.values() if item.done)
    for at, count in times.items():
        if count > 1:
            verdict.doubled += 1
            verdict.wrong.append(f"done {count} times: {_words(at)}")
    for effect in effects.values():
        if known.get(effect.key) != (effect.trigger, effect.slot):
            verdict.wrong.append(f"a call that no run explains: {effect}")
        if effect.asked < effect.slot:
            verdict.wrong.append(f"early by {(effect.slot - effect.asked) / SECOND} s: {effect}")


def _in_force(rules: Sequence[Rule], word: Word) -> bool:
    """Whether what was asked for held at some moment between the question and the answer."""
    state = {"put": None, "pause": "paused", "resume": "active", "delete": "deleted"}[word.verb]
    assert word.answered is not None
    return any(
        rule.since <= word.answered + SLACK
        and following >= word.sent - SLACK
        and (rule.state == state or (state is None and rule.state != "deleted" and rule.step == word.step))
        for rule, following in _spans(rules)
    )


def _words(at: tuple[str, int]) -> str:
    return f"{at[0]} at {datetime.fromtimestamp(at[1] // SECOND, UTC):%H:%M:%S}"
