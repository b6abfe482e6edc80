"""The oracle: what each history owes, worked out apart from the engine, and what every commit must keep.

It imports nothing of Horarium. It is told what people asked for, in the order in which it took effect, and
every row that each store call changed (see `journal.py`). From the first it knows which slots are owed, from
the second what became of them; each commit is checked as it comes, and the whole once all is quiet.

Instants are microseconds since the epoch (`now`, `true`, due times), slots whole seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.rules import Spec, deployment_of, name_of

US = 1_000_000
CHANGES = ("change", "change_deployment", "sync_source", "create_trigger")
"""What may bring a new revision, and with it an earlier cursor."""


@dataclass
class Version:
    """A spec over `(since, next.since]`; `state`: active, paused, deleted. `seq`: the commit it came with.
    `shadow`: its slots are another scheduler's. `stopped`: its deployment was paused."""

    number: int
    since: int
    state: str
    spec: Spec
    seq: int
    shadow: bool = False
    stopped: bool = False


@dataclass
class Life:
    """One trigger as people know it, under all the names that it ever had."""

    name: str
    versions: list[Version]
    managed: bool
    trigger_id: int = 0
    paused: bool = False
    resume_at: int | None = None
    paused_at: int | None = None
    backfills: list[tuple[int, int]] = field(default_factory=list)

    @property
    def now(self) -> Version:
        return self.versions[-1]

    @property
    def deleted(self) -> bool:
        return self.now.state == "deleted"

    def version(self, number: int) -> Version | None:
        return self.versions[number - 1] if 0 < number <= len(self.versions) else None

    def until(self, number: int) -> int | None:
        """When the version after this one began; None for the last."""
        return self.versions[number].since if number < len(self.versions) else None

    def stopped_since(self) -> int | None:
        """Since when the pause of its deployment has kept it from firing its slots; None: it does not."""
        found: int | None = None
        for version in reversed(self.versions):
            if not version.stopped or version.shadow:
                break
            found = version.since
        return found

    def owed(self, low: int, high: int, states: tuple[str, ...] = ("active",)) -> list[tuple[int, Version]]:
        """The slots in `(low, high]` (seconds) that versions in these states name."""
        found: list[tuple[int, Version]] = []
        for index, version in enumerate(self.versions):
            if version.state not in states:
                continue
            start = max(low, version.since // US)
            end = high if index + 1 == len(self.versions) else min(high, self.versions[index + 1].since // US)
            found += [(slot, version) for slot in version.spec.rule.within(start, end)]
        return found

    def named(self, low: int, high: int) -> list[tuple[int, Version]]:
        """The slots in `[low, high]` (microseconds) of all versions, in any state; the first reaches back."""
        found: list[tuple[int, Version]] = []
        first, last = -(-low // US) - 1, high // US
        for index, version in enumerate(self.versions):
            start = first if index == 0 else max(first, version.since // US)
            end = last if index + 1 == len(self.versions) else min(last, self.versions[index + 1].since // US)
            found += [(slot, version) for slot in version.spec.rule.within(start, end)]
        return found

    def successor(self, slot: int) -> int | None:
        """The next owed slot."""
        for index, version in enumerate(self.versions):
            last = index + 1 == len(self.versions)
            if version.state != "active" or (not last and self.versions[index + 1].since // US <= slot):
                continue
            found = version.spec.rule.after(max(slot, version.since // US))
            if found is not None and (last or found <= self.versions[index + 1].since // US):
                return found
        return None


@dataclass
class Entry:
    """One row that a store call wrote: `op` is insert, update or delete."""

    table: str
    op: str
    row: dict[str, Any]


@dataclass
class Commit:
    """A store call that took effect.

    `true` is the real instant, `now` what the caller's clock said, `ahead` by how much that clock has ever
    been ahead. `intent` is what a person asked for, as `(word, name, …)`. `details` are the call's arguments
    that a check needs.
    """

    seq: int
    true: int
    method: str
    owner: str
    now: int | None
    entries: list[Entry]
    intent: tuple[Any, ...] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """What the configured service promises; microseconds."""

    grace: int
    late_after: int
    retry_total: int
    stuck_after: int
    again: int


@dataclass
class Effect:
    """What the target made under a name, first time and last."""

    name: str
    trigger: str
    slot: int
    origin: str
    at: int
    owner: str


@dataclass
class Bucket:
    """The oracle's own account of a target's tokens."""

    tokens: float
    at: int


class Oracle:
    """See the module. `wrong` collects what was broken, each a sentence."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.wrong: list[str] = []
        self.lives: dict[str, Life] = {}
        self.stopped: set[str] = set()
        self.deployments: set[str] = set()
        """Deployments that people have paused"""
        self.by_id: dict[int, Life] = {}
        self.runs: dict[int, dict[str, Any]] = {}
        self.skips: dict[int, dict[str, Any]] = {}
        self.backfills: dict[int, dict[str, Any]] = {}
        self.triggers: dict[int, dict[str, Any]] = {}
        self.allowances: dict[int, dict[str, Any]] = {}
        self.slots: dict[tuple[int, int], int] = {}
        """(trigger id, slot) → id of the run that has it"""
        self.claimed_first: dict[int, int] = {}
        """run id → with which commit it was claimed first"""
        self.looked: dict[int, int] = {}
        """target id → the latest `now` at which an executor looked at it"""
        self.buckets: dict[int, Bucket] = {}
        self.filled: dict[int, int] = {}
        """target id → the latest `now` of a claim that has written its allowance, taking any or none"""
        self.refusals: set[tuple[str, int]] = set()
        self.effects: dict[str, Effect] = {}
        self.manual: dict[str, str] = {}
        """request key → trigger's name"""
        self.calls = 0
        self.listed = 0
        self.under_way: dict[int, tuple[int, str]] = {}
        """run id → with which commit, by which method, it came under way; see `Overlap` below"""
        self.must_end: dict[int, tuple[int, ...]] = {}
        """run id → the runs that its claim has to cancel before it is called"""
        self.ahead: dict[str, int] = {}
        """owner → by how much its clock has ever been ahead, in microseconds"""
        self.pending: dict[str, int] = {}
        """run name → how many runs of that name wait for their time at targets; see `ahead.py`"""
        self.touched: dict[str, int] = {}
        """run name → when its row was last written"""
        self.strays: set[str] = set()
        """Names of runs that began at a target too late to be withdrawn there"""

    def fail(self, text: str) -> None:
        if len(self.wrong) < 50:
            self.wrong.append(text)

    # what the target saw

    def called(self, name: str) -> None:
        """A target is about to be called for a run: what this one replaces has ended, as far as is known."""
        self.calls += 1
        for run_id in [run_id for run_id in self.must_end if self.runs[run_id]["name"] == name]:
            for other in self.must_end.pop(run_id):
                if self._goes_on(self.runs[other]):
                    self.fail(
                        f"overlap: {name} is called before {self.runs[other]['name']}, which it replaces"
                    )

    def cancelling(self, cancels: Mapping[int, tuple[int, ...]]) -> None:
        """What a claim has to cancel, by the run that is to begin then."""
        self.must_end |= cancels

    def effect(self, name: str, trigger: str, slot: int, origin: str, true: int, owner: str) -> bool:
        """The target makes the work of a name, once; False: it was there."""
        there = self.effects.get(name)
        if there is not None:
            if there.slot != slot or self.lives.get(there.trigger) is not self.lives.get(trigger):
                self.fail(f"lost: {trigger} {slot} was called under {name}, the name of {there.slot}")
            return False
        self.effects[name] = Effect(name, trigger, slot, origin, true, owner)
        if origin != "manual" and true < slot * US - self.ahead.get(owner, 0):
            self.fail(f"early: {trigger} {slot} was made {slot - true / US:.1f} s before its time")
        return True

    def refused(self, name: str, attempt: int) -> None:
        self.refusals.add((name, attempt))

    # what people did

    def listing(self, version: int, specs: Mapping[str, Spec], renamed: Mapping[str, str], c: Commit) -> None:
        """A source's listing was written: its own three-way comparison."""
        if version < self.listed:
            self.fail(f"reverted: listing {version} was written after listing {self.listed}")
        self.listed = version
        self._rename_deployments(specs, renamed)
        kept = set(specs) | {old for new, old in renamed.items() if new in specs and new not in self.lives}
        for name, life in list(self.lives.items()):
            if life.managed and life.name == name and not life.deleted and name not in kept:
                self._delete(life, c)
        for name, spec in specs.items():
            old = self.lives.get(renamed.get(name, ""))
            there = self.lives.get(name)
            if there is None and old is not None and not old.deleted:
                there = self.lives[name] = old
                there.name = name
            if there is None:
                self._create(name, spec, c, managed=True)
            elif there.deleted or there.now.spec != spec or there.now.stopped is not self._stops(name):
                self._edit(there, spec, c)

    def did(self, c: Commit) -> None:
        """Something that a person asked for took effect."""
        assert c.intent is not None
        word, name, *rest = c.intent
        if word in ("pause-deployment", "resume-deployment"):
            self._deployment(word, name, rest[0], c)
            return
        life = self.lives.get(name)
        if word == "put":
            if life is None:
                self._create(name, rest[0], c, managed=False)
            elif life.deleted or life.now.spec != rest[0]:
                self._edit(life, rest[0], c)
            return
        if life is None:
            self.fail(f"{word} of {name}, which was never there, took effect")
            return
        assert c.now is not None
        match word:
            case "pause":
                life.resume_at = rest[0]
                if not life.paused:
                    life.paused, life.paused_at = True, c.now
                    self._version(life, "paused", life.now.spec, c)
            case "resume":
                self._resume(life, c, backfill=rest[0])
            case "delete":
                self._delete(life, c)
            case "shadow":
                self._version(life, life.now.state, life.now.spec, c, shadow=rest[0])
            case "backfill":
                life.backfills.append((rest[0], rest[1]))
            case "manual":
                self.manual[rest[0]] = name

    def known(self, intent: tuple[Any, ...]) -> object:
        """What a request is about, as it stands now: only to be compared."""
        if intent[0] in ("pause-deployment", "resume-deployment"):
            return intent[1] in self.stopped, [(life.name, life.now.number) for life in self._of(intent[1])]
        life = self.lives.get(intent[1])
        return None if life is None else (life.name, life.now.number, life.paused)

    def declined(self, intent: tuple[Any, ...], before: object) -> None:
        """A request was answered with "nothing to do". `before`: what was `known` when it began; if somebody
        has changed that meanwhile, the answer may be about either."""
        if before != self.known(intent):
            return
        word, name, *rest = intent
        life = self.lives.get(name)
        there = life is not None and not life.deleted
        active = life is not None and life.now.state == "active"
        wrong = (
            (word == "put" and (not there or (life is not None and life.now.spec != rest[0])))
            or (word == "delete" and there)
            or (word == "pause" and there and life is not None and not life.paused)
            or (word == "resume" and there and life is not None and life.paused)
            or (word == "shadow" and there and life is not None and life.now.shadow is not rest[0])
            or (word == "pause-deployment" and name not in self.stopped)
            or (word == "resume-deployment" and name in self.stopped)
            or (word == "range" and active and life is not None and self._open(life, *rest) != [])
        )
        if wrong:
            self.fail(f"lost: {word} of {name} was answered with nothing to do")

    def resumed(self, name: str, c: Commit) -> None:
        """The planner ended a pause because its time to resume had come."""
        life = self.lives[name]
        assert c.now is not None
        if life.resume_at is None or life.resume_at > c.now:
            self.fail(f"{name} was resumed at {c.now}, before {life.resume_at}")
        self._resume(life, c, backfill=False)

    def _deployment(self, word: str, deployment: str, backfill: bool | None, c: Commit) -> None:
        """Every trigger of a deployment is stopped by its pause, and goes on if nothing else keeps it."""
        assert c.now is not None
        if word == "pause-deployment":
            self.stopped.add(deployment)
        else:
            self.stopped.discard(deployment)
        for life in self._of(deployment):
            since, before = life.stopped_since(), life.now
            if life.deleted or before.stopped is (deployment in self.stopped):
                continue
            self._version(life, self._state(life, before.spec), before.spec, c)
            first = None if since is None else (since // US + 1) * US
            if backfill and first is not None and first <= c.now and life.now.state == "active":
                life.backfills.append((first, c.now))

    def _rename_deployments(self, specs: Mapping[str, Spec], renamed: Mapping[str, str]) -> None:
        """A deployment that goes, and whose triggers come to one that was not there, is paused there too."""
        before, self.deployments = self.deployments, {deployment_of(name) for name in specs}
        stopped = set(self.stopped)
        for new, name in renamed.items():
            old = self.lives.get(name)
            if new not in specs or new in self.lives or old is None or old.deleted:
                continue
            former = deployment_of(old.name)
            gone = former in before - self.deployments
            if gone and former in stopped and deployment_of(new) not in before:
                self.stopped.add(deployment_of(new))

    def _of(self, deployment: str) -> list[Life]:
        """The triggers of a deployment, each under its present name."""
        return [
            life
            for name, life in self.lives.items()
            if name == life.name and deployment_of(name) == deployment
        ]

    def _stops(self, name: str) -> bool:
        return deployment_of(name) in self.stopped

    def _state(self, life: Life, spec: Spec) -> str:
        """Of a trigger that is there: three things can keep it."""
        return "paused" if life.paused or self._stops(life.name) or not spec.active else "active"

    def _create(self, name: str, spec: Spec, c: Commit, *, managed: bool) -> None:
        assert c.now is not None
        stopped = self._stops(name)
        state = "active" if spec.active and not stopped else "paused"
        self.lives[name] = Life(name, [Version(1, c.now, state, spec, c.seq, stopped=stopped)], managed)

    def _edit(self, life: Life, spec: Spec, c: Commit) -> None:
        if life.deleted:
            life.paused = False
        self._version(life, self._state(life, spec), spec, c)

    def _resume(self, life: Life, c: Commit, *, backfill: bool) -> None:
        assert c.now is not None
        if backfill and life.paused_at is not None:
            first = (life.paused_at // US + 1) * US
            if first <= c.now:
                life.backfills.append((first, c.now))
        life.paused, life.resume_at, life.paused_at = False, None, None
        self._version(life, self._state(life, life.now.spec), life.now.spec, c)

    def _delete(self, life: Life, c: Commit) -> None:
        life.paused, life.resume_at = False, None
        life.backfills = []
        self._version(life, "deleted", life.now.spec, c)

    def _version(self, life: Life, state: str, spec: Spec, c: Commit, *, shadow: bool | None = None) -> None:
        """A new version; it is in shadow if the last one was, unless a person says so."""
        shadowed = life.now.shadow if shadow is None else shadow
        assert c.now is not None
        # A slot that was claimed by then belongs to the rule before.
        since = max([c.now, life.now.since, *self._claimed_later(life, c.now)])
        stopped = state != "deleted" and self._stops(life.name)
        life.versions.append(Version(life.now.number + 1, since, state, spec, c.seq, shadowed, stopped))

    def _open(self, life: Life, low: int, high: int, now: int) -> list[int]:
        """The slots of the rule in force in `[low, high]` and after `now` that nobody has decided."""
        start = max(-(-low // US) - 1, now // US, life.now.since // US)
        return [
            slot
            for slot in life.now.spec.rule.within(start, high // US)
            if (life.trigger_id, slot) not in self.slots
            and not any(self._covers(life, skip, slot) for skip in self._skips_of(life.trigger_id))
        ]

    def _claimed_later(self, life: Life, now: int) -> list[int]:
        """The slots after `now` that were claimed already."""
        return [
            row["scheduled_time"]
            for row in self.runs.values()
            if row["trigger_id"] == life.trigger_id
            and row["origin"] != "manual"
            and row["attempt"] > 0
            and row["scheduled_time"] > now
        ]

    # every commit

    def commit(self, c: Commit) -> None:
        """Take a commit in and check it. What people did with it has been told already."""
        self._taken: list[dict[str, Any]] = []
        self._had: dict[int, dict[str, Any]] = {}
        """Run id → the row before this commit, of what it claims"""
        self._touched: list[int] = []
        new_skips = [e.row for e in c.entries if e.table == "skip" and e.op == "insert"]
        if c.method == "claim":
            self._before_claim(c)
        before_look = self._expected_to_expire(c) if c.method == "look" else {}
        for entry in c.entries:
            handler: Callable[[Commit, Entry, Sequence[Mapping[str, Any]]], None]
            handler = getattr(self, f"_{entry.table}")
            handler(c, entry, new_skips)
        ended = self._progress(c)
        if c.method == "claim":
            self._after_claim(c)
            self._after_judging(c)
        if c.method in ("report", "settle"):
            self._after_ends(c, ended)
        for skip in new_skips:
            if self.skips.get(skip["id"]) is skip:
                self._explain(c, skip, self._taken)
        self._after_look(c, before_look)
        if c.details.get("what") == "plan" and c.intent is not None:
            life = self.lives[c.intent[1]]
            for slot in self._open(life, *c.intent[2:]):
                self.fail(f"lost: {life.name} {slot} was asked for in a range and has no run and no skip")

    def _trigger(self, c: Commit, e: Entry, _: object) -> None:
        row = e.row
        if e.op == "insert":
            life = self.lives.get(name_of(row["deployment"], row["name"]))
            if life is None:
                self.fail(f"invented: a trigger {row['deployment']} that nobody asked for")
                return
            life.trigger_id = row["id"]
            self.by_id[row["id"]] = life
        else:
            old = self.triggers[row["id"]]
            if row["cursor"] < old["cursor"] and c.method not in CHANGES:
                self.fail(f"the cursor of {row['deployment']} went back in {c.method}")
        if row["status"] == "active" and row["plan_due_at"] is None:
            self.fail(f"stuck: {row['deployment']} is active and has no plan_due_at")
        self.triggers[row["id"]] = row

    def _trigger_revision(self, c: Commit, e: Entry, _: object) -> None:
        row = e.row
        life = self.by_id.get(row["trigger_id"])
        version = life.version(row["number"]) if life else None
        if life is None or version is None:
            self.fail(
                f"invented: revision {row['number']} of trigger {row['trigger_id']}, which nobody asked for"
            )
        elif (version.since, version.state) != (row["effective_from"], row["state"]):
            self.fail(
                f"{life.name} revision {version.number} is {row['state']} since {row['effective_from']},"
                f" and should be {version.state} since {version.since}"
            )
        elif version.shadow is not bool(row["shadow"]):
            self.fail(f"{life.name} revision {version.number} should be in shadow: {version.shadow}")
        elif version.stopped is not bool(row["deployment_paused"]):
            self.fail(
                f"{life.name} revision {version.number} should be paused with its deployment:"
                f" {version.stopped}"
            )

    def _backfill(self, c: Commit, e: Entry, _: object) -> None:
        row = e.row
        old = self.backfills.get(row["id"])
        self.backfills[row["id"]] = row
        life = self.by_id[row["trigger_id"]]
        if old is None:
            if (row["from_time"], row["to_time"]) not in life.backfills:
                self.fail(f"invented: a backfill of {life.name} that nobody asked for")
            return
        if c.method == "apply_plans" and row["cursor"] > old["cursor"]:
            for slot, _version in life.named(row["from_time"], min(row["cursor"], row["to_time"])):
                if slot * US > old["cursor"] and (row["trigger_id"], slot) not in self.slots:
                    self.fail(f"lost: a backfill of {life.name} went past {slot} and it has no run")

    def _run(self, c: Commit, e: Entry, new_skips: Sequence[Mapping[str, Any]]) -> None:
        self._run_changed(c, e, new_skips)
        self._touched.append(e.row["id"])
        self.touched[e.row["name"]] = c.true

    def _run_changed(self, c: Commit, e: Entry, new_skips: Sequence[Mapping[str, Any]]) -> None:
        row = e.row
        if e.op == "insert":
            self._run_inserted(c, row)
        elif e.op == "delete":
            self._run_deleted(c, self.runs[row["id"]], new_skips)
        else:
            self._run_updated(c, self.runs[row["id"]], row)

    def _run_inserted(self, c: Commit, row: dict[str, Any]) -> None:
        self.runs[row["id"]] = row
        life = self.by_id[row["trigger_id"]]
        if row["origin"] == "manual":
            if row["request_key"] not in self.manual:
                self.fail(f"invented: a manual run of {life.name} that nobody asked for")
            return
        slot = row["scheduled_time"] // US
        if (row["trigger_id"], slot) in self.slots:
            self.fail(f"doubled: {life.name} {slot} has two runs")
        self.slots[row["trigger_id"], slot] = row["id"]
        version = life.version(row["revision"])
        what = f"{life.name} {slot} of revision {row['revision']}"
        if version is None or not version.spec.rule.has(slot):
            self.fail(f"invented: {what} is no slot")
            return
        if row["origin"] == "backfill":
            if not any(low <= slot * US <= high for low, high in life.backfills):
                self.fail(f"invented: {what} is in no backfill")
        else:
            until = life.until(version.number)
            if (
                version.state != "active"
                or slot * US <= version.since
                or (until is not None and slot * US > until)
            ):
                self.fail(f"invented: {what} is not owed (state {version.state})")
            if c.method != "apply_plans" and not _asked_for(c, slot):
                self.fail(f"invented: {what} is made in {c.method}, and nobody asked for it")
        for skip in self._skips_of(row["trigger_id"]):
            if self._covers(life, skip, slot) and row["origin"] == "schedule":
                self.fail(f"doubled: {what} becomes a run and is inside a skip ({skip['reason']})")
        late = row["first_due_at"] - slot * US
        if not 0 <= late <= version.spec.jitter * US:
            self.fail(f"{what} is first due {late} µs after its slot; its jitter is {version.spec.jitter} s")

    def _run_deleted(self, c: Commit, row: dict[str, Any], new_skips: Sequence[Mapping[str, Any]]) -> None:
        del self.runs[row["id"]]
        life, slot = self.by_id[row["trigger_id"]], row["scheduled_time"] // US
        self.slots.pop((row["trigger_id"], slot), None)
        what = f"{life.name} {slot}"
        was = self._had.pop(row["id"], row)
        if was["attempt"] > 0 or row["state"] not in ("scheduled", "held") or row["origin"] == "manual":
            self.fail(f"lost: {what} was taken away in {c.method}: {row['state']}, attempt {row['attempt']}")
            return
        skipped = any(
            skip["trigger_id"] == row["trigger_id"] and self._covers(life, skip, slot) for skip in new_skips
        )
        fresh = life.now.seq == c.seq
        later = fresh and slot * US > life.now.since
        retimed = (
            c.intent is None and c.details.get("what") == "tz" and c.now is not None and slot * US > c.now
        )
        if not (skipped or later or retimed):
            self.fail(f"lost: {what} was taken away in {c.method} and no skip says why")
        if skipped and later and life.now.state != "deleted":
            self.fail(f"{what} is withdrawn and skipped at once")

    def _run_updated(self, c: Commit, old: dict[str, Any], row: dict[str, Any]) -> None:
        self.runs[row["id"]] = row
        life = self.by_id[row["trigger_id"]]
        what = f"{life.name} {row['scheduled_time'] // US} ({row['name']})"
        if row["id"] in self._had and row["attempt"] < old["attempt"]:
            self._put_back(c, self._had.pop(row["id"]), row, what)
            return
        if (
            row["attempt"] < old["attempt"]
            or row["name"] != old["name"]
            or row["revision"] != old["revision"]
        ):
            self.fail(f"{what}: attempt, name or revision changed in {c.method}")
        shown = c.method == "report" and row["state"] == "fired" and old["outcome_unknown"]
        if old["state"] in ("fired", "cancelled", "shadowed") and row["state"] != old["state"] and not shown:
            self.fail(f"{what}: {old['state']} became {row['state']} in {c.method}")
        if (
            old["state"] == "failed"
            and row["state"] in ("scheduled", "held")
            and c.details.get("what") != "retry"
        ):
            self.fail(f"{what}: failed became {row['state']} in {c.method}")
        if row["result"] != old["result"]:
            self._result(c, old, row, what)
        if row["attempt"] > old["attempt"]:
            self._had[row["id"]] = old
            self._claimed(c, old, row, what)
        elif c.method == "settle" and old["waits_for"] is not None and row == {**old, "due_at": c.now}:
            pass  # what it waits for has ended
        elif c.method == "settle":
            self._settled(c, old, row, what)
        elif row["state"] == "failed" and old["state"] != "failed":
            deleted = life.deleted
            cancelled = c.intent is not None and c.intent[0] == "cancel"
            if c.method == "claim" and not deleted:
                self._superseded(c, old, row, what)
            elif not (deleted or cancelled):
                self.fail(f"{what}: failed in {c.method}, and nobody deleted or cancelled it")
        if row["state"] == "held" and old["state"] != "held" and life.now.state != "paused":
            self.fail(f"{what}: held in {c.method} while the trigger is {life.now.state}")

    def _claimed(self, c: Commit, old: dict[str, Any], row: dict[str, Any], what: str) -> None:
        assert c.now is not None
        self.claimed_first.setdefault(row["id"], c.seq)
        if c.method != "claim" or row["attempt"] != old["attempt"] + 1 or row["lease_owner"] != c.owner:
            self.fail(f"{what}: claimed in a way that is no claim")
        if old["state"] != "scheduled" or old["due_at"] > c.now:
            self.fail(
                f"{what}: claimed in state {old['state']}, {old['due_at'] - c.now} µs before it was due"
            )

    def _settled(self, c: Commit, old: dict[str, Any], row: dict[str, Any], what: str) -> None:
        assert c.now is not None
        mine = c.details["outcomes"].get(row["id"], ())
        if row["state"] == "fired":
            if not self._is_made(row):
                self.fail(f"lost: {what} is fired, and the target never made it")
            if self._calls_nobody(row):
                self.fail(f"doubled: {what} was called, and its slot is another scheduler's")
            return
        if old["lease_owner"] != c.owner or old["attempt"] not in mine:
            self.fail(
                f"{what}: settled as {row['state']} by {c.owner} for attempts {sorted(mine)}, while attempt"
                f" {old['attempt']} of {old['lease_owner']} holds it"
            )
        if row["state"] == "shadowed" and not self._in_shadow(row):
            self.fail(f"lost: {what} was not fired, and no other scheduler has it")
        if row["state"] == "failed":
            elapsed = c.now - (row["first_claimed_at"] or c.now)
            refused = (row["name"], row["attempt"]) in self.refusals
            gave_up = elapsed >= self.limits.retry_total - 5 * US
            if not (refused or gave_up or self.by_id[row["trigger_id"]].deleted):
                self.fail(f"lost: {what} failed without a refusal: {row['reason']}")

    def _is_made(self, row: Mapping[str, Any]) -> bool:
        """Whether the target has made it: it has begun, or is there and begins at its time."""
        return row["name"] in self.effects or self.pending.get(row["name"], 0) > 0

    def _in_shadow(self, row: Mapping[str, Any]) -> bool:
        """Whether a run is of a version in shadow."""
        version = self.by_id[row["trigger_id"]].version(row["revision"])
        return version is not None and version.shadow

    def _skip(self, c: Commit, e: Entry, _: object) -> None:
        if e.op == "insert":
            self.skips[e.row["id"]] = e.row
        elif e.op == "delete":
            self._taken.append(self.skips.pop(e.row["id"]))

    def _target_allowance(self, c: Commit, e: Entry, _: object) -> None:
        row = e.row
        old = self.allowances.get(row["target_id"])
        self.allowances[row["target_id"]] = row
        if old is None:
            self.looked[row["target_id"]] = row["looked_at"]
            return
        for name in ("looked_at", "refilled_at"):
            if row[name] < old[name]:
                self.fail(
                    f"{name} of target {row['target_id']} went back {old[name] - row[name]} µs in {c.method}"
                )

    # claims

    def due(self, target: int, now: int) -> tuple[list[int], list[int]]:
        """Ids of what could be claimed: on time, and backlog."""
        late = now - self.limits.late_after
        on_time: list[int] = []
        backlog: list[int] = []
        for row in self.runs.values():
            if row["target_id"] == target and row["state"] == "scheduled" and row["due_at"] <= now:
                (on_time if row["attempt"] == 0 and row["due_at"] > late else backlog).append(row["id"])
        return on_time, backlog

    def _before_claim(self, c: Commit) -> None:
        assert c.now is not None
        self._could = {target: self.due(target, c.now) for target, _, _ in c.details["demands"]}

    def _after_claim(self, c: Commit) -> None:
        assert c.now is not None
        taken: dict[int, list[int]] = {}
        for entry in c.entries:
            if (
                entry.table == "run"
                and entry.row["lease_owner"] == c.owner
                and entry.row["due_at"] == c.details["until"]
            ):
                ids = taken.setdefault(entry.row["target_id"], [])
                if entry.row["id"] not in ids:
                    ids.append(entry.row["id"])
        for target, wanted, rate in c.details["demands"]:
            ids = taken.get(target, [])
            looked = self.looked.get(target, 0)
            unlooked = c.now - looked > self.limits.grace
            if len(ids) > wanted:
                self.fail(f"{len(ids)} runs were claimed of target {target}, and {wanted} were wanted")
            if not unlooked:
                self.looked[target] = max(looked, c.now)
            elif ids and c.now - self.allowances[target]["looked_at"] > self.limits.grace:
                self.fail(f"target {target} was claimed from before a look, {(c.now - looked) / US:.0f} s on")
            on_time, backlog = (set(part) for part in self._could[target])
            first, second = (backlog, on_time) if c.details["backlog_first"] else (on_time, backlog)
            # What came while the claim was under way it need not have seen, and it passes by what is locked.
            there = {run_id for part in c.details["could"][target] for run_id in part}
            left = (first & there) - set(ids) - c.details["passed"]
            left = {
                run_id for run_id in left if run_id in self.runs and self.runs[run_id]["state"] == "scheduled"
            }
            if left and second & set(ids):
                self.fail(
                    f"target {target}: backlog before what is on time"
                    if first is on_time
                    else f"target {target}: a claim that is backlog first took what is on time before it"
                )
            if rate is not None:
                fires = [
                    run_id
                    for run_id in ids
                    if run_id in self._had and not self._calls_nobody(self.runs[run_id])
                ]
                self._debit(target, rate, len(fires), c.now, c.details["apart"])
                if any(e.table == "target_allowance" and e.row["target_id"] == target for e in c.entries):
                    self.filled[target] = max(self.filled.get(target, c.now), c.now)

    def _calls_nobody(self, row: Mapping[str, Any]) -> bool:
        return row["origin"] == "schedule" and self._in_shadow(row)

    def _debit(self, target: int, rate: tuple[float, int], taken: int, now: int, apart: float) -> None:
        """Clocks that are `apart` seconds from each other let through what comes in that time. A claim of
        nothing is no debit, and cuts nothing: a replica may still have the burst of before a change."""
        if taken == 0:
            return
        per_second, burst = rate
        bucket = self.buckets.setdefault(target, Bucket(float(burst), now))
        # What a claim whose clock was ahead has filled up is there for one whose clock is behind.
        now = max(now, self.filled.get(target, now))
        elapsed = max(0, now - bucket.at)
        bucket.tokens = min(float(burst), bucket.tokens + elapsed / US * per_second)
        bucket.at = max(bucket.at, now)
        if taken > math.floor(bucket.tokens + apart * per_second + 1e-3):
            self.fail(
                f"allowance of target {target} exceeded: {taken} claimed, {bucket.tokens:.3f} tokens there"
            )
        bucket.tokens -= taken

    # one run at a time
    #
    # A run is under way from its first claim until it is fired and its end is known (reported, or given up
    # after its `completion_timeout`), or it has failed or was cancelled. One that waits for another try is
    # under way, and so is one whose caller is gone. What is under way is what a judge could know: a run comes
    # under way without a judge where its policy is `allow`, where an answer or a report shows that it exists
    # after all, and where a person has a failed one tried again or releases a held one; if that is committed
    # while a claim is open, the claim may not have seen it.

    def _goes_on(self, row: Mapping[str, Any]) -> bool:
        return bool((row["state"] == "scheduled" and row["attempt"] > 0) or row["result"] == "running")

    def _progress(self, c: Commit) -> list[int]:
        """Note what is under way since this commit; the runs that no longer are."""
        ended: list[int] = []
        for run_id in dict.fromkeys(self._touched):
            there = self.runs.get(run_id)
            if there is not None and self._goes_on(there):
                self.under_way.setdefault(run_id, (c.seq, c.method))
            elif self.under_way.pop(run_id, None) is not None and there is not None:
                ended.append(run_id)
        return ended

    def _policy(self, row: Mapping[str, Any]) -> str:
        version = self.by_id[row["trigger_id"]].version(row["revision"])
        return "allow" if version is None else version.spec.overlap

    def _others(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What else of its trigger is under way."""
        return [
            self.runs[run_id]
            for run_id in self.under_way
            if run_id != row["id"] and self.runs[run_id]["trigger_id"] == row["trigger_id"]
        ]

    def _waiting(self, trigger_id: int) -> list[dict[str, Any]]:
        """Its runs that wait for the end of another, in the order of their slots."""
        found = [
            row
            for row in self.runs.values()
            if row["trigger_id"] == trigger_id
            and row["state"] == "scheduled"
            and row["waits_for"] is not None
        ]
        return sorted(found, key=lambda row: (row["scheduled_time"], row["id"]))

    def _seen(self, c: Commit, row: Mapping[str, Any]) -> bool:
        """Whether a claim must have seen that this run is under way."""
        seq, method = self.under_way[row["id"]]
        return seq <= c.details["began"] or (method == "claim" and self._policy(row) != "allow")

    def _put_back(self, c: Commit, before: dict[str, Any], row: dict[str, Any], what: str) -> None:
        """A claim that was taken back: all is as it was, but for when it is due and what it waits for."""
        assert c.now is not None
        same = ("attempt", "first_claimed_at", "state", "result", "outcome_unknown")
        changed = [name for name in same if row[name] != before[name]]
        if changed or row["lease_owner"] is not None:
            self.fail(f"overlap: {what} was put back and is changed: {changed}, lease {row['lease_owner']}")
        if self._policy(row) == "allow":
            self.fail(f"overlap: {what} was put back, and its policy is allow")
        if not c.now <= row["due_at"] <= c.now + self.limits.again:
            self.fail(
                f"overlap: {what} was put back and is due {(row['due_at'] - c.now) / US:+.1f} s from then"
            )

    def _result(self, c: Commit, old: dict[str, Any], row: dict[str, Any], what: str) -> None:
        if c.method == "settle" and (old["result"], row["result"], row["state"]) == (
            None,
            "running",
            "fired",
        ):
            return
        said = c.details.get("reports", {}).get(row["name"]) if c.method == "report" else None
        if said != row["result"]:
            self.fail(
                f"overlap: the result of {what} became {row['result']} in {c.method}; reported was {said}"
            )
        if old["result"] not in (None, "running", "unknown"):
            self.fail(f"overlap: {what} had ended ({old['result']}) and became {row['result']}")
        if not self._is_made(row):
            self.fail(f"overlap: a report of {what}, which the target never made")
        elif row["result"] == "unknown":
            version = self.by_id[row["trigger_id"]].version(row["revision"])
            assert version is not None
            assert version.spec.completion_timeout is not None
            assert c.now is not None
            if c.now < row["fired_at"] + version.spec.completion_timeout * US - 5 * US - self._ahead():
                self.fail(f"overlap: {what} was given up before its completion_timeout")

    def _ahead(self) -> int:
        return max(self.ahead.values(), default=0)

    def _superseded(self, c: Commit, old: dict[str, Any], row: dict[str, Any], what: str) -> None:
        """A claim of a later slot may end one that waits to be tried again, and nothing else."""
        assert c.now is not None
        replaced = any(
            other["trigger_id"] == row["trigger_id"]
            and run_id in self._had
            and self._policy(other) == "replace"
            and other["origin"] == "schedule"
            for run_id, other in self.runs.items()
        )
        leased = old["lease_owner"] is not None and old["due_at"] > c.now
        if old["state"] != "scheduled" or old["attempt"] == 0 or leased or not replaced:
            self.fail(f"overlap: {what} failed in a claim that does not replace it")

    def _after_judging(self, c: Commit) -> None:
        """Of each claim with a policy: what begins overlaps nothing, what waits has something to wait for."""
        assert c.now is not None
        for run_id in self._had:
            row = self.runs[run_id]
            policy = self._policy(row)
            if policy == "allow":
                continue
            replaces = policy == "replace" and row["origin"] == "schedule"
            for other in self._others(row):
                if not self._seen(c, other):
                    continue
                called = other["state"] == "scheduled"
                calling = called and other["lease_owner"] is not None and other["due_at"] > c.now
                fresh = row["attempt"] == 1
                # One that was called before goes on while another waits to be called again.
                if calling or (called and fresh) or (not called and not replaces):
                    self.fail(
                        f"overlap: {row['name']} ({policy}, attempt {row['attempt']}) begins while"
                        f" {other['name']} ({other['state']}, {other['result']}) is under way"
                    )
                elif not called and other["id"] not in self.must_end.get(run_id, ()):
                    self.fail(f"overlap: {row['name']} begins and does not cancel {other['name']}")
        back = {
            entry.row["id"]: entry.row
            for entry in c.entries
            if entry.table == "run" and entry.op == "update" and entry.row["waits_for"] is not None
        }
        for run_id, row in back.items():
            behind = self.runs.get(row["waits_for"])
            if self.runs.get(run_id) is not row or row["state"] != "scheduled":
                continue
            # What it waits for may just have been replaced, by one of the same claim that goes on.
            replaced = behind is not None and behind["state"] == "failed" and behind["id"] in self._touched
            if behind is None or not (self._goes_on(behind) or (replaced and self._others(row))):
                self.fail(f"overlap: {row['name']} waits for {row['waits_for']}, which is not under way")
            if row["origin"] != "schedule" or row["attempt"] > 0:
                continue
            first = [
                other
                for other in self._waiting(row["trigger_id"])
                if other["origin"] == "schedule"
                and other["attempt"] == 0
                and other["scheduled_time"] < row["scheduled_time"]
            ]
            if self._policy(row) != "queue" and self._policy(row) != "replace":
                self.fail(f"overlap: {row['name']} waits, and its policy is {self._policy(row)}")
            if first and self._policy(row) == "queue":
                self.fail(f"overlap: {row['name']} waits, and so does {first[0]['name']} before it")

    def _after_ends(self, c: Commit, ended: Sequence[int]) -> None:
        """Where nothing is under way any more, the first that waits is due now, unless a judge has it."""
        assert c.now is not None
        for run_id in ended:
            row = self.runs[run_id]
            if c.method == "settle" and self._policy(row) == "allow":
                continue  # its executor has not asked for that: what waits looks again by itself
            waiting = [
                other for other in self._waiting(row["trigger_id"]) if other["id"] not in c.details["passed"]
            ]
            if waiting and not self._others(row) and all(other["due_at"] > c.now for other in waiting):
                name = waiting[0]["name"]
                self.fail(f"overlap: the end of {row['name']} in {c.method} wakes nobody: {name} waits")

    def _not_overlapping(self, c: Commit, life: Life, policy: str, at: int) -> str | None:
        """Why a slot may not be skipped for `overlap`; None where it may."""
        assert c.now is not None
        if c.method != "claim":
            return "nobody claimed it"
        mine = [row for row in self.runs.values() if row["trigger_id"] == life.trigger_id]
        automatic = [row for row in mine if row["origin"] == "schedule" and row["first_due_at"] <= c.now]
        going = [row for row in mine if row["id"] in self.under_way]
        match policy:
            case "skip":
                return None if going else "nothing was under way"
            case "queue":
                waits = any(
                    row["scheduled_time"] < at and row["attempt"] == 0 and row["state"] == "scheduled"
                    for row in automatic
                )
                return None if going and waits else f"{len(going)} under way, one waiting: {waits}"
            case "replace":
                later = any(row["scheduled_time"] > at for row in automatic)
                return None if later else "no later slot was due"
        return f"its policy is {policy}"

    # first looks

    def _expected_to_expire(self, c: Commit) -> dict[int, str]:
        """Run ids that a look must skip (`must`), or may (`may`: `latest`, after later edits, and what was
        planned while the look was under way)."""
        assert c.now is not None
        target, before = c.details["target"], c.details["before"]
        stored = self.allowances[target]["looked_at"]
        if c.now - stored <= self.limits.grace:
            return {}
        found: dict[int, str] = {}
        for row in self.runs.values():
            if (
                row["target_id"] != target
                or row["state"] != "scheduled"
                or row["origin"] != "schedule"
                or row["attempt"] > 0
                or not stored < row["due_at"] <= c.now
            ):
                continue
            life = self.by_id[row["trigger_id"]]
            version = life.version(row["revision"])
            if version is None:
                continue
            spec, due = version.spec, row["first_due_at"]
            over = spec.max_age is not None and due + spec.max_age * US <= c.now
            over = over or (spec.catch_up == "none" and due + self.limits.grace <= c.now)
            if over:
                found[row["id"]] = "must" if row["id"] in before else "may"
            elif spec.catch_up == "latest":
                successor = life.successor(row["scheduled_time"] // US)
                if successor is not None and successor * US <= c.now:
                    surely = version is life.now and row["id"] in before
                    found[row["id"]] = "must" if surely else "may"
        return found

    def _after_look(self, c: Commit, expected: Mapping[int, str]) -> None:
        if c.method != "look":
            return
        assert c.now is not None
        target = c.details["target"]
        gone = {entry.row["id"] for entry in c.entries if entry.table == "run" and entry.op == "delete"}
        for run_id, word in expected.items():
            if word == "must" and run_id not in gone:
                row = self.runs[run_id]
                life = self.by_id[row["trigger_id"]]
                self.fail(f"{life.name} {row['scheduled_time'] // US} expired in a gap and was not skipped")
        if gone - expected.keys():
            self.fail(
                f"a look at target {target} skipped {len(gone - expected.keys())} runs that it may not skip"
            )
        self.looked[target] = max(self.looked.get(target, 0), c.now)

    # skips

    def _skips_of(self, trigger_id: int) -> Iterable[dict[str, Any]]:
        return (skip for skip in self.skips.values() if skip["trigger_id"] == trigger_id)

    def _covers(self, life: Life, skip: Mapping[str, Any], slot: int) -> bool:
        if not skip["first_time"] <= slot * US <= skip["last_time"]:
            return False
        version = life.version(skip["revision"])
        return version is not None and version.spec.rule.has(slot)

    def _explain(self, c: Commit, skip: Mapping[str, Any], taken: Sequence[Mapping[str, Any]]) -> None:
        """A new skip names real slots, has its reason, and covers nothing that is decided otherwise."""
        life = self.by_id[skip["trigger_id"]]
        version = life.version(skip["revision"])
        ends = f"{skip['first_time'] // US}..{skip['last_time'] // US}"
        what = f"the skip of {life.name} {ends} ({skip['reason']})"
        if version is None:
            self.fail(f"{what} is of no revision")
            return
        first, last = skip["first_time"] // US, skip["last_time"] // US
        slots = version.spec.rule.within(first - 1, last)
        if not slots or slots[0] != first or slots[-1] != last or len(slots) != skip["count"]:
            self.fail(f"{what} says {skip['count']} slots, and there are {len(slots)}")
        for slot in slots:
            if (skip["trigger_id"], slot) in self.slots:
                self.fail(f"doubled: {what} covers {slot}, which has a run")
            for other in self._skips_of(skip["trigger_id"]):
                if other["id"] != skip["id"] and self._covers(life, other, slot):
                    self.fail(f"doubled: {what} covers {slot}, and so does one of {other['reason']}")
        # A piece of one that a backfill has just split has its reason from there.
        if any(
            other["reason"] == skip["reason"]
            and other["revision"] == skip["revision"]
            and other["first_time"] <= skip["first_time"]
            and other["last_time"] >= skip["last_time"]
            for other in taken
        ):
            return
        for slot in slots:
            why = self._unexplained(c, life, version, skip["reason"], slot)
            if why is not None:
                self.fail(f"{what}: {slot} is skipped without a reason: {why}")

    def _unexplained(self, c: Commit, life: Life, version: Version, reason: str, slot: int) -> str | None:
        now, at = c.now or 0, slot * US
        until = life.until(version.number)
        inside = at > version.since and (until is None or at <= until)
        if reason == "cancelled":
            return None if c.intent is not None and c.intent[0] == "cancel" else "nobody cancelled it"
        if reason == "deleted":
            if not life.deleted or life.now.seq != c.seq:
                return "nobody deleted it"
            return None if at <= life.now.since else "it is later than the delete"
        if not inside:
            return f"revision {version.number} was not in force then"
        if reason == "paused":
            if version.state != "paused":
                return "it was not paused then"
            return None if at <= max(now, life.now.since) else "it is still to come"
        if reason == "overlap":
            return self._not_overlapping(c, life, version.spec.overlap, at)
        if version.state != "active":
            return f"it was {version.state} then"
        if reason == "catch_up_none":
            right = version.spec.catch_up == "none" and now >= at + self.limits.grace
        elif reason == "max_age":
            right = version.spec.max_age is not None and now >= at + version.spec.max_age * US
        else:
            successor = life.successor(slot)
            right = version.spec.catch_up == "latest" and successor is not None and successor * US <= now
        return (
            None if right else f"catch-up {version.spec.catch_up}, max_age {version.spec.max_age}, at {now}"
        )

    # all is quiet

    def quiet(self, true: int, specs: Mapping[str, Spec]) -> None:
        """Nothing has gone wrong for a while: nothing may be missing. `specs` is what the source says."""
        horizon = (true - self.limits.stuck_after) // US
        for name, spec in specs.items():
            life = self.lives.get(name)
            if life is None or life.deleted or life.now.spec != spec:
                self.fail(f"{name} is not as its source says")
        for name, life in self.lives.items():
            if life.name == name:
                self._quiet_life(life, true, horizon, specs)
        for row in self.runs.values():
            self._quiet_run(row, true)
        for name, effect in self.effects.items():
            self._quiet_effect(name, effect)

    def _quiet_life(self, life: Life, true: int, horizon: int, specs: Mapping[str, Spec]) -> None:
        if life.managed and not life.deleted and life.name not in specs:
            self.fail(f"{life.name} is not withdrawn, though its source no longer names it")
        row = self.triggers[life.trigger_id]
        if row["plan_due_at"] is not None and row["plan_due_at"] < true - self.limits.stuck_after:
            self.fail(f"stuck: {life.name} was due for the planner at {row['plan_due_at']}: {row['error']}")
        if life.paused and life.resume_at is not None and life.resume_at < true - self.limits.stuck_after:
            self.fail(f"stuck: {life.name} should have been resumed at {life.resume_at}")
        for slot, version in life.owed(0, horizon):
            runs = (life.trigger_id, slot) in self.slots
            skips = [skip for skip in self._skips_of(life.trigger_id) if self._covers(life, skip, slot)]
            if not runs and not skips:
                self.fail(f"lost: {life.name} {slot} of revision {version.number} has no run and no skip")
        for backfill in self.backfills.values():
            if backfill["trigger_id"] == life.trigger_id and backfill["state"] == "open":
                self.fail(f"stuck: a backfill of {life.name} is still open")

    def _quiet_run(self, row: Mapping[str, Any], true: int) -> None:
        life = self.by_id[row["trigger_id"]]
        slot = row["scheduled_time"] // US
        what = f"{life.name} {slot} ({row['name']})"
        made = row["name"] in self.effects
        match row["state"]:
            case "scheduled":
                if row["due_at"] < true - self.limits.stuck_after:
                    self.fail(
                        f"stuck: {what} is due since {(true - row['due_at']) / US:.0f} s,"
                        f" attempt {row['attempt']}"
                    )
            case "held":
                if life.now.state != "paused":
                    self.fail(f"stuck: {what} is held, and the trigger is {life.now.state}")
            case "fired":
                if not self._is_made(row):
                    self.fail(f"lost: {what} is fired, and the target never made it")
                self._quiet_end(row, true, what)
            case "shadowed":
                if made and row["name"] not in self.strays:
                    self.fail(f"doubled: {what} is another scheduler's, and the target made it here")
            case "failed":
                said = row["outcome_unknown"] or "lost" in (row["reason"] or "")
                if made and not said and row["name"] not in self.strays:
                    self.fail(
                        f"{what} is failed, the target made it, and nothing says that it may exist there"
                    )
        if row["origin"] == "schedule" and row["attempt"] == 0:
            version = life.version(row["revision"])
            until = life.until(row["revision"])
            if version is not None and until is not None and slot * US > until:
                self.fail(
                    f"invented: {what} of revision {version.number} is later than its end, and unclaimed"
                )

    def _quiet_end(self, row: Mapping[str, Any], true: int, what: str) -> None:
        version = self.by_id[row["trigger_id"]].version(row["revision"])
        if row["result"] == "running" and version is not None and version.spec.completion_timeout is not None:
            until = row["fired_at"] + version.spec.completion_timeout * US + self.limits.stuck_after
            if until < true:
                self.fail(f"stuck: {what} is under way since {(true - row['fired_at']) / US:.0f} s")

    def _quiet_effect(self, name: str, effect: Effect) -> None:
        rows = [row for row in self.runs.values() if row["name"] == name]
        if len(rows) != 1 and name not in self.strays:
            self.fail(
                f"{effect.trigger} {effect.slot} was made as {name}, and {len(rows)} runs have that name"
            )
        if effect.origin == "manual":
            return
        life = self.lives[effect.trigger]
        twice = [
            other.name
            for other in self.effects.values()
            if other.origin != "manual"
            and other.slot == effect.slot
            and self.lives[other.trigger] is life
            and other.name not in self.strays
        ]
        if len(twice) > 1 and twice[0] == name:
            self.fail(f"doubled: {effect.trigger} {effect.slot} was made as {', '.join(twice)}")

    def figures(self) -> dict[str, int]:
        """Slots decided, calls made, slots that nobody was called for, slots lost, slots doubled."""
        skipped = sum(skip["count"] for skip in self.skips.values())
        return {
            "slots": len(self.slots) + skipped,
            "calls": self.calls,
            "shadowed": sum(row["state"] == "shadowed" for row in self.runs.values()),
            "lost": sum("lost" in text for text in self.wrong),
            "doubled": sum("doubled" in text for text in self.wrong),
        }


def _asked_for(c: Commit, slot: int) -> bool:
    """Whether a person wants the run of a slot that is still to come."""
    if c.intent is None or c.intent[0] != "range":
        return False
    _, _, low, high, now = c.intent
    return bool(low <= slot * US <= high and slot * US > now)
