"""What holds of every plan, whatever the rule, the window, the policy and the moments it was made at.

Expected slots come from `every`, a calculator of a few lines that knows nothing of horarium.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from horarium.core import trigger as decisions
from horarium.core.keys import TriggerKey
from horarium.core.plan import PlanInput, Window, plan
from horarium.core.revision import Revision, Status
from horarium.core.run import Origin, Run, RunState
from horarium.core.spec import CatchUp, TriggerSpec
from horarium.core.trigger import Trigger, TriggerState

START = 1_767_607_200
"""2026-01-05T10:00:00Z"""

STEPS = {60: "* * * * *", 300: "*/5 * * * *", 900: "*/15 * * * *", 3_600: "0 * * * *", 86_400: "0 0 * * *"}
KEY = TriggerKey("p", "d", "a", "b")
LONG = settings(max_examples=60, deadline=None)


def every(step: int, after: int, until: int) -> list[int]:
    """Multiples of `step` in `(after, until]`."""
    return list(range((after // step + 1) * step, until + 1, step))


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@dataclass
class Kept:
    """A store of one trigger in a few lines: rows by slot, skips, the trigger's row."""

    step: int
    spec: TriggerSpec
    now: float = START
    runs: dict[int, int] = field(default_factory=dict)
    skipped: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.revisions = [Revision(1, at(START), Status.ACTIVE, self.spec)]
        self.trigger = Trigger(1, KEY, "seed", None, 1, Status.ACTIVE, at(START), at(START))

    def plan(self, now: float, window: Window) -> None:
        """One step, written as a store writes it."""
        assert self.trigger.plan_due_at is not None
        before = self.trigger.cursor
        made = plan(PlanInput(self.trigger, tuple(self.revisions), self.trigger.plan_due_at), at(now), window)
        assert made.cursor >= before
        for run in made.runs:
            self.runs.setdefault(run.scheduled_time, run.revision)
        for skip in made.skips:
            covered = every(
                self.step_of(skip.revision), int(skip.first.timestamp()) - 1, int(skip.last.timestamp())
            )
            assert len(covered) == skip.count
            self.skipped.update(covered)
        self.trigger = replace(
            self.trigger, cursor=made.cursor, plan_due_at=made.plan_due_at, status=made.status
        )

    def plan_all(self, now: float, window: Window) -> None:
        for _ in range(10_000):
            due = self.trigger.plan_due_at
            if due is None or due > at(now):
                return
            self.plan(now, window)
        raise AssertionError("it never ends")

    def step_of(self, revision: int) -> int:
        text = self.revisions[revision - 1].spec.schedule["cron"]
        return next(step for step, cron in STEPS.items() if cron == text)

    def edit(self, step: int, now: float, *, paused: bool = False) -> None:
        """A new rule (or a pause) from now on: later runs go, the cursor comes back."""
        state = TriggerState(self.trigger, tuple(self.revisions), self.pending(now))
        spec = replace(self.spec, schedule={"cron": STEPS[step]}, active=not paused)
        change = decisions.edit(state, spec, "ann", at(now))
        if change is None:
            return
        assert change.revision is not None
        for run_id in change.withdrawn:
            del self.runs[run_id]
        self.revisions.append(change.revision)
        self.trigger = change.trigger

    def pending(self, now: float) -> tuple[Run, ...]:
        """What is still ahead; all that is due has been fired."""
        return tuple(
            Run(slot, 1, at(slot), Origin.SCHEDULE, "r", revision, 1, RunState.SCHEDULED, at(slot), at(slot))
            for slot, revision in sorted(self.runs.items())
            if slot > now
        )


def spec_of(step: int, catch_up: CatchUp = CatchUp.ALL, max_age: int | None = None) -> TriggerSpec:
    age = None if max_age is None else timedelta(seconds=max_age)
    return TriggerSpec(schedule={"cron": STEPS[step]}, target="work", catch_up=catch_up, max_age=age)


steps = st.sampled_from(sorted(STEPS))
gaps = st.lists(st.floats(0.1, 40_000, allow_nan=False), min_size=1, max_size=12)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    min_runs = draw(st.integers(1, 5))
    return Window(
        min_runs=min_runs,
        max_runs=draw(st.integers(2 * min_runs, 60)),
        min_scheduled_time=timedelta(seconds=draw(st.integers(0, 7_200))),
        max_scheduled_time=timedelta(seconds=draw(st.integers(90_000, 900_000))),
        max_catchup_runs=draw(st.integers(1, 50)),
        max_walk=draw(st.integers(1, 200)),
    )


@LONG
@given(steps, gaps, windows(), st.sampled_from(CatchUp), st.none() | st.integers(1, 20_000))
def test_runs_and_skips_cover_every_slot_since_creation_exactly_once(
    step: int, waits: list[float], window: Window, catch_up: CatchUp, max_age: int | None
) -> None:
    kept = Kept(step, spec_of(step, catch_up, max_age))
    now = float(START)
    for wait in waits:
        now += wait
        kept.plan_all(now, window)
        cursor = int(kept.trigger.cursor.timestamp())
        assert cursor >= int(now)
        assert set(kept.runs) & set(kept.skipped) == set()
        assert max(kept.skipped.values(), default=1) == 1
        assert sorted([*kept.runs, *kept.skipped]) == every(step, START, cursor)
    if catch_up is CatchUp.ALL and max_age is None:
        assert not kept.skipped


@LONG
@given(steps, gaps, windows())
def test_many_small_steps_equal_one_big_step(step: int, waits: list[float], window: Window) -> None:
    small, big = Kept(step, spec_of(step)), Kept(step, spec_of(step))
    now = float(START)
    for wait in waits:
        now += wait
        small.plan_all(now, window)
    big.plan_all(now, replace(window, max_catchup_runs=10**9, max_walk=10**9))
    past = {slot for slot in small.runs if slot <= now}
    assert past == {slot for slot in big.runs if slot <= now} == set(every(step, START, int(now)))


@LONG
@given(steps, st.floats(0, 200_000), windows())
def test_no_slot_lies_outside_its_window(step: int, wait: float, window: Window) -> None:
    kept = Kept(step, spec_of(step))
    now = START + wait
    kept.plan_all(now, window)
    ahead = sorted(slot for slot in kept.runs if slot > now)
    assert len(ahead) <= window.max_runs
    assert all(slot - now <= window.max_scheduled_time.total_seconds() for slot in ahead)
    assert ahead == every(step, int(now), int(now) + step * len(ahead))


@LONG
@given(steps, windows(), st.integers(1, 30))
def test_the_cursor_never_passes_an_undecided_slot(step: int, window: Window, count: int) -> None:
    kept = Kept(step, spec_of(step))
    now = START + 50 * step
    for _ in range(count):
        if kept.trigger.plan_due_at is None or kept.trigger.plan_due_at > at(now):
            break
        kept.plan(now, window)
        assert sorted(kept.runs) == every(step, START, int(kept.trigger.cursor.timestamp()))


@LONG
@given(steps, windows(), st.integers(3, 12))
def test_the_window_promise_holds_at_every_instant_between_top_ups(
    step: int, window: Window, rounds: int
) -> None:
    """The least there is just before each top-up is what the promise says, as far as the caps allow."""
    kept = Kept(step, spec_of(step))
    kept.plan_all(START, window)
    for _ in range(rounds):
        due = kept.trigger.plan_due_at
        assert due is not None
        now = due.timestamp() - 0.001
        for instant in (now, *(slot for slot in sorted(kept.runs) if START < slot < now)):
            promised(kept, step, instant, window)
        kept.plan_all(due.timestamp(), window)


def promised(kept: Kept, step: int, instant: float, window: Window) -> None:
    ahead = [slot for slot in kept.runs if slot > instant]
    horizon = instant + window.max_scheduled_time.total_seconds()
    possible = every(step, int(instant), int(horizon))
    # A window that is full may be used up to half before it is filled: then max_runs is in the way.
    covered = window.min_scheduled_time.total_seconds()
    full = window.max_runs * step < covered + 2 * step + window.lag.total_seconds()
    needed = [slot for slot in possible if slot <= instant + covered]
    if not full:
        assert set(needed) <= set(ahead)
    assert len(ahead) >= min(window.min_runs, len(possible) - 1)


@LONG
@given(
    st.lists(st.tuples(st.floats(1, 20_000), steps, st.booleans(), st.booleans()), min_size=1, max_size=8),
    windows(),
)
def test_every_slot_belongs_to_the_rule_in_force_at_it(
    edits: list[tuple[float, int, bool, bool]], window: Window
) -> None:
    """Edits and pauses at any moment, with the planner there or away: active rules' slots become runs,
    paused ones' skips, each once."""
    kept = Kept(300, spec_of(300))
    now = float(START)
    rules: list[tuple[float, int, bool]] = [(now, 300, False)]
    kept.plan_all(now, window)
    for wait, step, paused, planner_is_there in edits:
        now += wait
        if planner_is_there:
            kept.plan_all(now, window)
        kept.edit(step, now, paused=paused)
        rules.append((now, step, paused))
    # A paused interval becomes a skip once it is over.
    now += 10_000
    kept.edit(300, now)
    rules.append((now, 300, False))
    kept.plan_all(now, window)

    runs: list[int] = []
    skips: list[int] = []
    for (since, step, paused), (until, *_) in zip(rules, [*rules[1:], (now, 0, False)], strict=True):
        (skips if paused else runs).extend(every(step, int(since), int(until)))
    assert sorted(slot for slot in kept.runs if slot <= now) == runs
    assert sorted(kept.skipped.elements()) == skips
