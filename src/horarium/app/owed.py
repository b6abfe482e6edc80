"""What is owed, and what becomes of it, for the start of a server (`down 60 s: tick owes 3 slots; …`) and for
people who have restored a backup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, select

from horarium.app import views
from horarium.app.reads import COUNT_BOUND, all_revisions, decided_slots_ahead
from horarium.app.selects import SCHEDULED, UNUSUAL
from horarium.app.views import View
from horarium.app.why import rough
from horarium.core.duration import format_duration
from horarium.core.instant import from_seconds
from horarium.core.keys import TriggerKey
from horarium.core.plan import PlanInput, Window, plan
from horarium.core.revision import Revision
from horarium.core.run import Run, RunState
from horarium.core.trigger import Trigger
from horarium.store import tables as t
from horarium.store.base import Store, TargetRow
from horarium.store.rows import run_of, trigger_of

SHOWN = 20
LOOKED_AT = 1_000
"""Triggers that the report names, and counts."""

WALK = 100_000
"""Instants that the report walks in all, in about a second: the server starts when it is done. A trigger that
runs every second owes 86,400 in a day."""

DOWN_FROM = timedelta(seconds=1)
"""A shorter absence is not called one."""


@dataclass(frozen=True, slots=True)
class Owed:
    """What one trigger owes, and what becomes of it under its catch-up policy.

    Of `slots`, `firing` are fired, `holding` wait for a release because of `why`, and the rest becomes skips.
    """

    trigger: TriggerKey
    target: str
    slots: int
    firing: int
    catch_up: str
    at_least: bool = False
    holding: int = 0
    why: str = ""

    @property
    def skipping(self) -> int:
        """How many policy gives up."""
        return self.slots - self.firing - self.holding

    def __str__(self) -> str:
        bound = "at least " if self.at_least else ""
        parts = [f"catch_up={self.catch_up}"]
        if self.firing or not self.holding:
            parts.append(f"firing {bound}{self.firing}")
        if self.holding:
            parts.append(f"holding {bound}{self.holding} ({self.why})")
        if self.skipping:
            parts.append(f"skipping {self.skipping}")
        number = f"{bound}{self.slots} slot{'' if self.slots == 1 else 's'}"
        return f"{views.short_key(self.trigger)} owes {number}; {', '.join(parts)}"

    def view(self) -> View:
        """As the API shows it."""
        return {
            "trigger": str(self.trigger),
            "target": self.target,
            "catch_up": self.catch_up,
            "slots": self.slots,
            "firing": self.firing,
            "holding": self.holding,
            "held_by": self.why or None,
            "skipping": self.skipping,
            "at_least": self.at_least,
        }


@dataclass(frozen=True, slots=True)
class OwedReport:
    """What is owed: the first triggers by name, the rest as a sum.

    `down` is for how long nobody looked at any target; None when there is none yet, or it is no time at all.
    `looked_at` is when somebody last did: after a restore the moment of the backup, until a server starts.
    """

    down: timedelta | None
    triggers: tuple[Owed, ...]
    more_triggers: int = 0
    more_slots: int = 0
    at_least: bool = False
    looked_at: datetime | None = None
    to_release: tuple[str, ...] = ()
    """Targets for whose runs a release is asked."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines())

    def lines(self) -> list[str]:
        """One line a trigger, as `serve` prints them; none when nothing is owed."""
        since = "" if self.down is None else f"down {rough(self.down)}: "
        found = [f"{since}{item}" for item in self.triggers]
        if self.more_triggers:
            bound = "at least " if self.at_least else ""
            found.append(f"{since}{bound}{self.more_triggers} more triggers owe {self.more_slots} slots")
        found += [
            f"target {name}: `horarium release --target {name}` says what becomes of the runs that are held"
            for name in self.to_release
        ]
        return found


async def owed_report(
    store: Store, window: Window, now: datetime, guard: int = 0, shown: int = SHOWN
) -> OwedReport:
    """What is owed at `now`; see `OwedReport`. Meant for before any loop of this process has looked.

    More than `guard` runs (0: any number) that came due for one target while nobody looked are held. At most
    `shown` triggers are told one by one.
    """
    targets = {row.id: row for row in await store.targets()}
    looked = max((row.looked_at for row in targets.values()), default=None)
    pending = await _pending(store, targets, now)
    trigger = t.trigger
    rows = await store.fetch(
        select(trigger)
        .where(trigger.c.plan_due_at <= now, trigger.c.cursor < now, trigger.c.status == "active")
        .order_by(trigger.c.plan_due_at)
        .limit(LOOKED_AT)
    )
    behind = {row.id: trigger_of(row) for row in rows}
    counted: list[_Count] = []
    left = WALK
    for trigger_id in sorted({*pending, *behind}):
        past = Window(max_catchup_runs=left, max_walk=left, grace=window.grace)
        count = await _owed_by(
            store, past, trigger_id, behind.get(trigger_id), pending.get(trigger_id, []), targets, now
        )
        if count is not None:
            left -= count.walked
            counted.append(count)
    found = _judged([item for item in counted if item.owed.slots or item.owed.at_least], targets, guard)
    found.sort(key=lambda item: (-item.slots, item.trigger))
    rest = found[shown:]
    # At a first start the targets are as old as the applying of the file: that was no downtime.
    down = None if looked is None or now - looked < DOWN_FROM else now - looked
    return OwedReport(
        down,
        tuple(found[:shown]),
        len(rest),
        sum(item.slots for item in rest),
        len(rows) >= LOOKED_AT or len(pending) >= LOOKED_AT,
        looked,
        tuple(sorted({item.target for item in found if item.holding and item.why != _MARKED})),
    )


_MARKED = "its deployment or project is frozen"
_GUARDED = "catch_up_guard"


@dataclass(frozen=True, slots=True)
class _Count:
    """What a trigger owes before the guard has judged it. `in_gap`: how many of what would be fired came due
    while nobody looked at the target; `walked`: how many instants it took to know."""

    owed: Owed
    in_gap: int
    walked: int


def _judged(counts: Sequence[_Count], targets: Mapping[int, TargetRow], guard: int) -> list[Owed]:
    """With what the guard is going to hold: all of a target's gap once it is more than its limit."""
    guarded = {row.spec.name for row in targets.values() if row.guarded}
    in_gap: Counter[str] = Counter()
    for item in counts:
        in_gap[item.owed.target] += item.in_gap
    found = []
    for item in counts:
        owed = item.owed
        if item.in_gap and (owed.target in guarded or 0 < guard < in_gap[owed.target]):
            owed = replace(
                owed, firing=owed.firing - item.in_gap, holding=owed.holding + item.in_gap, why=_GUARDED
            )
        found.append(owed)
    return found


async def _pending(store: Store, targets: Iterable[int], now: datetime) -> dict[int, list[Run]]:
    """Pending runs whose time has come, by trigger; at most `COUNT_BOUND` of them a target, and as many held
    ones. What a pause holds is not owed."""
    run, trigger = t.run, t.trigger
    found: dict[int, list[Run]] = {}

    def add(rows: Sequence[Row[Any]]) -> None:
        for row in rows:
            if row.trigger_id in found or len(found) < LOOKED_AT:
                found.setdefault(row.trigger_id, []).append(run_of(row))

    for target_id in targets:
        due = select(run).where(
            run.c.target_id == target_id, SCHEDULED, run.c.due_at <= now, run.c.origin != "manual"
        )
        add(await store.fetch(due.order_by(run.c.due_at, run.c.id).limit(COUNT_BOUND)))
    held = (
        select(run)
        .join(trigger, trigger.c.id == run.c.trigger_id)
        .where(UNUSUAL, run.c.state == "held", run.c.scheduled_time <= now, run.c.due_at <= now)
        .where(run.c.origin != "manual", trigger.c.status != "paused")
    )
    add(await store.fetch(held.order_by(run.c.scheduled_time, run.c.id).limit(COUNT_BOUND)))
    return found


async def _owed_by(
    store: Store,
    window: Window,
    trigger_id: int,
    behind: Trigger | None,
    pending: Sequence[Run],
    targets: Mapping[int, TargetRow],
    now: datetime,
) -> _Count | None:
    """What one trigger owes; None when it can't be planned: `status` shows it with its error."""
    trigger = behind
    if trigger is None:
        rows = await store.fetch(select(t.trigger).where(t.trigger.c.id == trigger_id))
        trigger = trigger_of(rows[0])
    revisions = await all_revisions(store, trigger.id)
    spec = revisions[-1].spec
    target = next((row for row in targets.values() if row.spec.name == spec.target), None)
    slots = len(pending)
    firing = held = in_gap = 0
    for run in pending:
        looked_at = targets[run.target_id].looked_at if run.target_id in targets else now
        if run.state is RunState.HELD:
            held += 1
        elif not _gone(run, looked_at, now, window.grace):
            firing += 1
            in_gap += _of_gap(run.automatic and run.attempt == 0, run.due_at, looked_at, now, window.grace)
    at_least, walked = False, 0
    if behind is not None:
        ahead = (await decided_slots_ahead(store, [trigger.id], now)).get(trigger.id, ())
        given = PlanInput(
            trigger, _deciding(revisions, trigger.cursor), now, decided=tuple((slot, slot) for slot in ahead)
        )
        try:
            step = plan(given, now, window)
        except Exception:  # shown with its error by `status`
            return None
        past = [from_seconds(item.scheduled_time) for item in step.runs]
        past = [slot for slot in past if slot <= now]
        skipped = sum(skip.count for skip in step.skips if skip.reason != "paused")
        slots += len(past) + skipped
        firing += len(past)
        if target is not None:
            in_gap += sum(_of_gap(True, slot, target.looked_at, now, window.grace) for slot in past)
        walked = len(past) + sum(skip.count for skip in step.skips)
        at_least = step.cursor < now
    policy = spec.catch_up.value
    if spec.max_age is not None:
        policy += f", max_age={format_duration(spec.max_age)}"
    why = ""
    if trigger.frozen:
        why = _MARKED
    elif target is not None and target.frozen:
        why = f"target {spec.target} is frozen"
    elif held:
        why = _GUARDED
    if trigger.frozen or (target is not None and target.frozen):
        firing, held, in_gap = 0, firing + held, 0
    owed = Owed(trigger.key, spec.target, slots, firing, policy, at_least, held, why)
    return _Count(owed, in_gap, walked)


def _of_gap(fresh: bool, due_at: datetime, looked_at: datetime, now: datetime, grace: timedelta) -> bool:
    """Whether the guard counts a run: automatic, never claimed, and due while nobody looked."""
    return fresh and now - looked_at > grace and due_at > looked_at


def _gone(run: Run, looked_at: datetime, now: datetime, grace: timedelta) -> bool:
    """Whether the first look skips a run that was planned ahead; see `Store.look`.

    Only after a gap of more than `grace`, and only what came due in it: what was due before waits for us.
    """
    return (
        now - looked_at > grace
        and run.automatic
        and run.attempt == 0
        and run.due_at > looked_at
        and run.expires_at is not None
        and run.expires_at <= now
    )


def _deciding(revisions: Sequence[Revision], cursor: datetime) -> tuple[Revision, ...]:
    """The revisions that decide anything after the cursor: the one in force there, and later ones."""
    first = 0
    for index, item in enumerate(revisions):
        if item.effective_from <= cursor:
            first = index
    return tuple(revisions[first:])
