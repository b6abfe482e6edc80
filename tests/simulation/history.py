"""A history: who exists, what people do and what goes wrong, and when. All of it comes from one seed.

A history is a list of steps, each by itself, so that a failing one can be shrunk by leaving steps out. What
is left to chance while it runs (who goes first, how long a call takes) has a generator of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from tests.simulation.rules import Rule, Spec, shown

MONDAY = int(datetime(2026, 1, 5, 9, 50, tzinfo=UTC).timestamp())
NIGHT = int(datetime(2026, 9, 20, 0, 30, tzinfo=UTC).timestamp())
"""Half an hour before the clocks of Casablanca change, which an older release of tz data does not know."""
CASABLANCA = "Africa/Casablanca"


@dataclass(frozen=True)
class Step:
    """`what` happens at `at` seconds: to trigger `name`, or to replica `who`, for `length` seconds."""

    at: float
    what: str
    name: str = ""
    who: int = 0
    length: float = 0.0
    value: Any = None

    def __str__(self) -> str:
        value = shown(self.value) if isinstance(self.value, Spec) else self.value
        parts = [f"{self.at:8.1f} s  {self.what}", self.name, f"replica {self.who}"]
        parts += [f"for {self.length:.0f} s"] if self.length else []
        parts += [str(value)] if value is not None else []
        return "  ".join(part for part in parts if part)


@dataclass(frozen=True)
class History:
    """See the module. `busy` is how long things happen, in seconds; then all is mended and quiet comes."""

    seed: int
    start: int
    busy: int
    replicas: int
    skews: tuple[float, ...]
    database_clock: bool
    stalls: float
    slow_target: float
    rate: tuple[float, int] | None
    places: int
    first: tuple[tuple[str, Spec], ...]
    steps: tuple[Step, ...] = field(default=())
    store: str = "sqlite"
    between: float = 0.0
    """How likely a stall is before a statement inside a transaction; only where statements yield."""
    ahead: tuple[tuple[str, int], ...] = ()
    """Targets that have runs ahead, and by how many seconds."""
    reports: bool = False
    """Whether targets tell when what they made has ended, so that triggers can have an overlap policy."""

    @property
    def furthest(self) -> float:
        """By how many seconds any clock is ever ahead."""
        jumps = [step.value for step in self.steps if step.what == "jump"]
        return float(max(0.0, *self.skews) + sum(jump for jump in jumps if jump > 0))

    @property
    def apart(self) -> float:
        """By how many seconds two clocks may ever differ; none where the database's is asked."""
        if self.database_clock:
            return 0.0
        jumps = [abs(step.value) for step in self.steps if step.what == "jump"]
        return float(max(self.skews) - min(self.skews) + sum(jumps))

    def describe(self) -> str:
        """All of it, for people."""
        skews = ", ".join(f"{skew:+.1f}" for skew in self.skews)
        begins = datetime.fromtimestamp(self.start, UTC)
        lines = [
            f"seed {self.seed}: {self.replicas} replicas, clocks {skews} s"
            f"{' (one clock, the database has it)' if self.database_clock else ''}, {self.busy} s from"
            f" {begins:%Y-%m-%d %H:%M}Z; rate {self.rate}, {self.places} places,"
            f" stalls {self.stalls:.2f}, slow calls {self.slow_target:.2f}; on {self.store}"
            + (f", stalls inside transactions {self.between:.2f}" if self.between else "")
            + (", targets tell of ends" if self.reports else "")
            + "".join(f", {name} has runs {ahead} s ahead" for name, ahead in self.ahead),
            *(f"             {name} {shown(spec)}" for name, spec in self.first),
            *(f"  {step}" for step in self.steps),
        ]
        return "\n".join(lines)


STORES = ("sqlite", "memory")
"""SQLite called inline, and the PostgreSQL store on a PostgreSQL in memory."""


def history(seed: int, store: str = "sqlite") -> History:
    """The history of a seed.

    Most are drawn evenly. Some lean towards what even chance rarely hits: answers that come after their
    lease, a backlog older than a gap in which nobody looks, pushes between a slow read and its write; and
    where transactions meet, that they do.
    """
    made = _leaning(_plain(seed), seed)
    made = _meetings(made) if store == "memory" else made
    rng = Random(f"overlap {seed}")
    # One seed in twenty stays without: where it hurts most, a trigger's plans meet undisturbed.
    made = _overlapping(made, rng) if rng.random() < 0.4 and seed % 20 else made
    if seed % 5 == 2:
        return _stopping(made)
    rng = Random(f"ranges {seed}")
    return _ranges(made, rng) if rng.random() < 0.3 else made


def _stopping(made: History) -> History:
    """Deployments are paused whole, while their triggers are changed, go and come back, and new ones come."""
    rng = Random(f"deployments {made.seed}")
    names = [name for name, _ in made.first]
    steps = list(made.steps)
    for _ in range(rng.choice((1, 2, 3))):
        at, name = rng.uniform(60, made.busy - 300), rng.choice(names)
        steps.append(Step(at, "pause-deployment", name, rng.randrange(made.replicas)))
        for what in rng.sample(("add", "edit", "delete", "pause", "resume", "rename", "manual"), 3):
            then = at + rng.choice((-0.02, 0.001, 0.4, rng.uniform(1, 200)))
            who, spec = rng.randrange(made.replicas), _spec(rng, made.start, made.busy, False, past=True)
            match what:
                case "add":
                    steps.append(Step(then, what, f"{name}s", who, value=spec))
                case "edit":
                    steps.append(Step(then, what, name, who, value=spec))
                case "delete":
                    steps.append(Step(then, what, name, who))
                    steps.append(Step(then + rng.uniform(1, 200), "edit", name, who, value=spec))
                case "resume":
                    steps.append(Step(then, what, name, who, value=rng.random() < 0.4))
                case _:
                    steps.append(Step(then, what, name, who))
        if rng.random() < 0.8:
            then, who = at + rng.uniform(20, 600), rng.randrange(made.replicas)
            steps.append(Step(then, "resume-deployment", name, who, value=rng.random() < 0.4))
    return replace(made, steps=_sorted(steps, made.replicas))


def _ranges(made: History, rng: Random) -> History:
    """People have ranges ahead planned, most just when something else is done to the trigger."""
    done = [step for step in made.steps if step.name and step.at < made.busy - 60]
    names = [name for name, _ in made.first]
    steps = list(made.steps)
    for _ in range(rng.choice((1, 2, 4))):
        at, name = rng.uniform(30, made.busy - 60), rng.choice(names)
        if done and rng.random() < 0.6:
            near = rng.choice(done)
            at, name = max(0.0, near.at + rng.choice((-20, -0.4, 0, 0.001, 0.02, 2))), near.name
        low = rng.choice((0, 0, 60, 240, 900))
        value = (low, low + rng.choice((60, 300, 600)))
        steps.append(Step(at, "range", name, rng.randrange(made.replicas), value=value))
    return replace(made, steps=_sorted(steps, made.replicas))


WRONG = (
    *("crash", "stop", "down", "store", "lost", "torn", "target", "away", "hang", "slow", "refuse", "jump"),
    "rate",
)
"""Steps by which something goes wrong, or is slow."""


def with_ahead(made: History) -> History:
    """The same at targets that have runs ahead, and more triggers whose slots no policy gives up.

    A target may be away by itself, and may have its runs ahead no longer, or for longer.
    """
    rng = Random(f"ahead {made.seed}")

    def owed(spec: Spec) -> Spec:
        kept = rng.random() < 0.3
        often = spec.rule if kept or spec.rule.kind == "once" else Rule("every", (rng.choice((60, 60, 90)),))
        return spec if kept else spec.but(rule=often, catch_up="all", max_age=None, overlap="allow")

    first = tuple((name, owed(spec)) for name, spec in made.first)
    steps = [
        replace(step, value=owed(step.value)) if isinstance(step.value, Spec) else step for step in made.steps
    ]
    for _ in range(rng.choice((0, 2, 4))):
        name = rng.choice(("first", "second"))
        steps.append(Step(rng.uniform(30, made.busy - 200), "away", name, length=rng.choice((20, 60, 200))))
    if rng.random() < 0.3:
        at, name = rng.uniform(60, made.busy - 200), rng.choice(("first", "second"))
        steps.append(Step(at, "ahead", name, value=rng.choice((0, 0, 60, 240))))
    for _ in range(rng.choice((0, 3, 6))):
        at, name = rng.uniform(60, made.busy - 60), rng.choice(first)[0]
        what = rng.choice(("edit", "edit", "pause", "cancel", "shadow", "delete"))
        value: Any = {"shadow": True}.get(what)
        if what == "edit":  # of one thing only, so that the slots stay
            changes: list[dict[str, Any]] = [{"target": "second"}, {"mark": 7}, {"catch_up": "latest"}]
            changes += [{"overlap": "skip", "completion_timeout": 60}] if made.reports else []
            value = dict(first)[name].but(**rng.choice(changes))
        steps.append(Step(at, what, name, rng.randrange(made.replicas), value=value))
        if what in ("pause", "shadow"):
            back = "resume" if what == "pause" else "shadow"
            steps.append(Step(at + rng.uniform(1, 90), back, name, value=False))
    if made.seed % 2:
        # Only people and lost answers: whatever begins there that should not can be blamed on nothing else.
        steps = [step for step in steps if step.what not in WRONG]
        made = replace(made, stalls=0.0, slow_target=0.0, rate=None, places=8)
    # A clock that is wrong by more than the mirror's look back has it forget what it should withdraw.
    steps = [
        replace(step, value=max(-600, min(600, step.value))) if step.what == "jump" else step
        for step in steps
    ]
    return replace(
        made,
        first=first,
        steps=_sorted(steps, made.replicas),
        slow_target=rng.choice((0.0, made.slow_target)),
        ahead=(("first", rng.choice((120, 180, 240))), ("second", rng.choice((0, 120, 180)))),
    )


def _overlapping(made: History, rng: Random) -> History:
    """Targets that tell of ends, and triggers of which one run at a time is wanted, most with a slot every
    minute or two; edits change the policy too."""

    def policy(spec: Spec) -> Spec:
        often = Rule("every", (rng.choice((60, 60, 90, 120)),)) if rng.random() < 0.7 else spec.rule
        return spec.but(
            rule=spec.rule if spec.rule.kind == "once" else often,
            overlap=rng.choice(("allow", "skip", "skip", "queue", "queue", "queue", "replace", "replace")),
            completion_timeout=rng.choice((30, 60, 120)),
        )

    first = tuple((name, policy(spec).but(active=True)) for name, spec in made.first)
    steps = [
        replace(step, value=policy(step.value)) if isinstance(step.value, Spec) else step
        for step in made.steps
    ]
    names = [name for name, _ in first]
    if rng.random() < 0.4:
        # Some runs are refused; people have them tried again while the next ones are under way.
        at = rng.uniform(60, made.busy - 300)
        steps.append(Step(at, "refuse", length=150))
        for _ in range(4):
            who = rng.randrange(made.replicas)
            steps.append(Step(at + rng.uniform(30, 220), "retry", rng.choice(names), who))
    for _ in range(rng.choice((0, 2, 5))):
        what = rng.choice(("manual", "manual", "retry", "cancel", "policy"))
        step = Step(rng.uniform(60, made.busy - 90), what, rng.choice(names), rng.randrange(made.replicas))
        if what == "policy":
            spec = policy(dict(first)[step.name])
            step = replace(step, what="edit", value=spec)
        steps.append(step)
    # After a clock was far ahead, quiet lasts as long; with runs that never end there that is many steps.
    steps = [
        replace(step, value=max(-600, min(600, step.value))) if step.what == "jump" else step
        for step in steps
    ]
    return replace(made, first=first, steps=_sorted(steps, made.replicas), reports=True)


def _meetings(made: History) -> History:
    """Two replicas at least on a database with a clock of its own, and bursts of what people ask: the planner
    is at a trigger just when it is changed again."""
    rng = Random(f"meetings {made.seed}")
    replicas = max(2, made.replicas)
    skews = (*made.skews, *(round(rng.uniform(-8, 8), 3) for _ in range(replicas)))[:replicas]
    steps = list(made.steps)
    names = [name for name, _ in made.first]
    for _ in range(rng.choice((2, 4, 8))):
        at, name = rng.uniform(30, made.busy - 120), rng.choice(names)
        for _ in range(rng.choice((2, 3, 4))):
            at += rng.choice((0.0, 0.001, 0.02, 0.4, 2.0))
            what = rng.choice(("edit", "edit", "edit", "backfill", "pause", "resume", "manual"))
            who = rng.randrange(replicas)
            match what:
                case "edit":
                    spec = _spec(rng, made.start, made.busy, False, past=True)
                    steps.append(Step(at, what, name, who, value=spec))
                case "backfill":
                    steps.append(Step(at, what, name, who, value=rng.choice((120, 600))))
                case "resume":
                    steps.append(Step(at, what, name, who, value=rng.random() < 0.5))
                case _:
                    steps.append(Step(at, what, name, who))
    return replace(
        made,
        store="memory",
        database_clock=True,
        replicas=replicas,
        skews=skews,
        between=rng.choice((0.0, 0.02, 0.1, 0.3)),
        steps=_sorted(steps, replicas),
    )


def _leaning(made: History, seed: int) -> History:
    rng = Random(f"mood {seed}")
    match rng.choice(("plain",) * 4 + ("zombies", "backlog", "pushes")):
        case "zombies":
            return _zombies(made, rng)
        case "backlog":
            return _backlog(made, rng)
        case "pushes":
            return _pushes(made, rng)
    return made


def _zombies(made: History, rng: Random) -> History:
    """Two replicas; one by one they lose the database for longer than a lease, while the target is away."""
    steps = list(made.steps)
    for at in range(100, made.busy - 300, 220):
        who = rng.randrange(2)
        steps.append(
            Step(at + rng.uniform(0, 60), rng.choice(("store", "store", "slow")), who=who, length=110)
        )
        what = rng.choice(("target", "refuse", "target"))
        steps.append(Step(at + rng.uniform(-20, 60), what, length=rng.choice((100, 150))))
    return replace(
        made,
        replicas=2,
        skews=tuple((*made.skews, 0.0)[:2]),
        slow_target=0.3,
        rate=None,
        places=8,
        first=_often(made, rng),
        steps=_sorted(steps, 2),
    )


def _backlog(made: History, rng: Random) -> History:
    """More comes due than the allowance lets through, of rules that expire; then nobody is there."""
    steps = [step for step in made.steps if step.what not in ("rate", "down")]
    for at in range(400, made.busy - 400, 500):
        steps.append(Step(at + rng.uniform(0, 100), "down", length=rng.choice((70, 100, 160))))
    first = tuple(
        (
            name,
            spec.but(
                catch_up=rng.choice(("none", "latest")), max_age=rng.choice((None, 120)), target="first"
            ),
        )
        for name, spec in _often(made, rng)
    )
    return replace(
        made, rate=rng.choice(((0.02, 1), (0.03, 2))), first=first, steps=_sorted(steps, made.replicas)
    )


def _pushes(made: History, rng: Random) -> History:
    """A source that is pushed to every few seconds, and replicas that are slow to read it."""
    steps = list(made.steps)
    managed = [name for name, _ in made.first if int(name[1:]) % 2 == 0]
    for at in range(120, made.busy - 200, 150):
        steps.append(Step(at, "slow", who=rng.randrange(made.replicas), length=120))
        for _ in range(3):
            spec = _spec(rng, made.start, made.busy, False, past=True)
            steps.append(Step(at + rng.uniform(0, 120), "edit", rng.choice(managed), value=spec))
    if made.seed % 2 == 0:
        # Nobody is there for longer than was planned, and meanwhile the source changes: the edit may come
        # before the planner, and owes what nobody has decided.
        steps = [step for step in steps if not 200 < step.at < 860]
        steps.append(Step(200, "down", length=640))
        for name in managed:
            spec = _spec(rng, made.start, made.busy, False, past=True)
            steps.append(Step(rng.uniform(700, 820), "edit", name, value=spec))
        made = replace(made, first=_often(made, rng), busy=max(made.busy, 1_200))
    return replace(made, steps=_sorted(steps, made.replicas))


def _often(made: History, rng: Random) -> tuple[tuple[str, Spec], ...]:
    """The same triggers under rules that name a slot every minute or two."""
    return tuple(
        (name, spec.but(rule=Rule("every", (rng.choice((60, 90, 120)),)), active=True))
        for name, spec in made.first
    )


def _sorted(steps: Sequence[Step], replicas: int) -> tuple[Step, ...]:
    moved = (replace(step, who=step.who % replicas) if step.who >= 0 else step for step in steps)
    return tuple(sorted(moved, key=lambda step: step.at))


def _plain(seed: int) -> History:
    rng = Random(f"history {seed}")
    tz = rng.random() < 0.12
    start = NIGHT if tz else MONDAY + rng.randrange(0, 1_200)
    replicas = rng.choice((1, 2, 2, 3))
    busy = rng.choice((900, 1_200, 1_500, 1_800))
    names = [f"t{number}" for number in range(rng.choice((2, 3, 3, 4)))]
    skewed = rng.random() < 0.5
    skews = tuple(round(rng.uniform(-8, 8), 3) if skewed else 0.0 for _ in range(replicas))
    first = tuple((name, _spec(rng, start, busy, tz)) for name in names)
    steps = [
        *_people(rng, start, busy, names, dict(first), replicas, tz),
        *_faults(rng, busy, replicas),
    ]
    if tz:
        steps.append(Step(rng.uniform(60, busy - 300), "tz"))
    if rng.random() < 0.15:
        by = rng.choice((1, -1)) * rng.choice((90, 600, 7_200))
        steps.append(Step(rng.uniform(60, busy - 300), "jump", who=rng.randrange(replicas), value=by))
        if rng.random() < 0.7:
            last = steps[-1]
            steps.append(Step(last.at + rng.uniform(20, 400), "jump", who=last.who, value=-by))
    return History(
        seed=seed,
        start=start,
        busy=busy,
        replicas=replicas,
        skews=skews,
        database_clock=rng.random() < 0.4,
        stalls=rng.choice((0.0, 0.02, 0.1, 0.25)),
        slow_target=rng.choice((0.0, 0.1, 0.3)),
        rate=rng.choice((None, None, (1.0, 3), (0.1, 2), (0.05, 1))),
        places=rng.choice((1, 2, 4, 8)),
        first=first,
        steps=tuple(sorted(steps, key=lambda step: step.at)),
    )


def _rule(rng: Random, start: int, busy: int, tz: bool) -> Rule:
    kind = rng.choice(("minutes", "minutes", "hourly", "every", "every", "daily", "once"))
    zone = CASABLANCA if tz and rng.random() < 0.8 else None
    match kind:
        case "minutes":
            return Rule(kind, (rng.choice((2, 3, 5, 7, 10)),), zone)
        case "hourly":
            return Rule(kind, tuple(sorted(rng.sample(range(60), rng.choice((2, 4, 6))))), zone)
        case "every":
            return Rule(kind, (rng.choice((60, 90, 120, 250, 420)),))
        case _:
            at = start + rng.randrange(120, busy + 300)
            if kind == "once":
                return Rule(kind, (at,))
            return Rule(kind, (at % 86_400 // 3_600, at % 3_600 // 60))


def _spec(rng: Random, start: int, busy: int, tz: bool, past: bool = False) -> Spec:
    rule = _rule(rng, start, busy, tz)
    while past and rule.kind == "once":  # one that is past when it comes would be refused
        rule = _rule(rng, start, busy, tz)
    return Spec(
        rule,
        catch_up=rng.choice(("all", "all", "latest", "none")),
        max_age=rng.choice((None, None, None, 120, 600)),
        jitter=rng.choice((0, 0, 0, 30)),
        active=rng.random() > 0.05,
        mark=rng.randrange(3),
        target=rng.choice(("first", "first", "second")),
    )


ASKED = (
    *("edit", "edit", "edit", "aba", "pause", "pause", "resume", "resume", "manual", "backfill"),
    *("delete", "add", "rename", "rate", "cancel", "retry"),
)


def _people(
    rng: Random,
    start: int,
    busy: int,
    names: Sequence[str],
    specs: dict[str, Spec],
    replicas: int,
    tz: bool,
) -> list[Step]:
    steps: list[Step] = []
    fresh = len(names)
    for _ in range(rng.choice((3, 6, 9, 12))):
        at, who, name = rng.uniform(30, busy - 60), rng.randrange(replicas), rng.choice(names)
        what = rng.choice(ASKED)
        match what:
            case "edit":
                steps.append(Step(at, "edit", name, who, value=_spec(rng, start, busy, tz, past=True)))
            case "aba":
                other = _spec(rng, start, busy, tz, past=True)
                steps.append(Step(at, "edit", name, who, value=other))
                steps.append(Step(at + rng.uniform(0, 40), "back", name, who))
            case "pause":
                until = rng.choice((None, None, rng.uniform(60, 900)))
                steps.append(Step(at, "pause", name, who, value=until))
                if rng.random() < 0.7:
                    after = at + rng.uniform(10, 900)
                    steps.append(Step(after, "resume", name, who, value=rng.random() < 0.4))
            case "resume":
                steps.append(Step(at, "resume", name, who, value=rng.random() < 0.4))
            case "backfill":
                steps.append(Step(at, "backfill", name, who, value=rng.uniform(120, 3_600)))
            case "delete":
                steps.append(Step(at, "delete", name, who))
                if rng.random() < 0.7:
                    revived = _spec(rng, start, busy, tz, past=True)
                    steps.append(Step(at + rng.uniform(5, 600), "edit", name, who, value=revived))
            case "add":
                steps.append(Step(at, "add", f"t{fresh}", who, value=_spec(rng, start, busy, tz, past=True)))
                fresh += 1
            case "rate":
                steps.append(Step(at, "rate", value=rng.choice((None, (1.0, 2), (0.2, 1), (0.1, 3)))))
            case _:
                steps.append(Step(at, what, name, who))
    return steps


def _faults(rng: Random, busy: int, replicas: int) -> list[Step]:
    steps: list[Step] = []
    for _ in range(rng.choice((0, 2, 4, 7))):
        at, who = rng.uniform(20, busy - 120), rng.randrange(replicas)
        what = rng.choice(
            (
                "crash",
                "crash",
                "crash",
                "down",
                "store",
                "lost",
                "torn",
                "target",
                "target",
                "hang",
                "slow",
                "refuse",
            )
        )
        match what:
            case "crash":
                # `value` is at how many store calls from then on it dies.
                steps.append(Step(at, "crash", who=who, length=rng.uniform(5, 200), value=rng.randrange(8)))
            case "down":
                # Nobody is there: a gap in which slots come due.
                steps.append(Step(at, "down", length=rng.choice((90, 240, 600))))
            case "store" | "lost" | "torn":
                steps.append(Step(at, what, who=rng.choice((-1, who)), length=rng.choice((10, 60, 150))))
            case "slow":
                steps.append(Step(at, "slow", who=who, length=rng.choice((60, 200))))
            case _:
                steps.append(Step(at, what, length=rng.choice((30, 120, 400))))
    return steps
