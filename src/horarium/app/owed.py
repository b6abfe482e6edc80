"""What is owed when a server starts, and what becomes of it: `down 60 s: tick owes 3 slots; …`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select

from horarium.app import views
from horarium.app.reads import COUNT_BOUND, all_revisions
from horarium.app.selects import SCHEDULED
from horarium.app.why import rough
from horarium.core.duration import format_duration
from horarium.core.instant import from_seconds
from horarium.core.keys import TriggerKey
from horarium.core.plan import PlanInput, Window, plan
from horarium.core.revision import Revision
from horarium.core.run import Run
from horarium.core.trigger import Trigger
from horarium.store import tables as t
from horarium.store.base import Store

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
    """What one trigger owes at start, and what becomes of it under its catch-up policy."""

    trigger: TriggerKey
    slots: int
    firing: int
    catch_up: str
    at_least: bool = False

    def __str__(self) -> str:
        number = f"{'at least ' if self.at_least else ''}{self.slots} slot{'' if self.slots == 1 else 's'}"
        firing = f"{'at least ' if self.at_least else ''}{self.firing}"
        line = f"{views.short_key(self.trigger)} owes {number}; catch_up={self.catch_up}, firing {firing}"
        return line + (f", skipping {self.slots - self.firing}" if self.slots > self.firing else "")


@dataclass(frozen=True, slots=True)
class OwedReport:
    """What is owed when a server starts: the first triggers by name, the rest as a sum.

    `down` is for how long nobody looked at any target; None when there is none yet, or it is no time at all.
    """

    down: timedelta | None
    triggers: tuple[Owed, ...]
    more_triggers: int = 0
    more_slots: int = 0
    at_least: bool = False

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines())

    def lines(self) -> list[str]:
        """One line a trigger, as `serve` prints them; none when nothing is owed."""
        since = "" if self.down is None else f"down {rough(self.down)}: "
        found = [f"{since}{item}" for item in self.triggers]
        if self.more_triggers:
            bound = "at least " if self.at_least else ""
            found.append(f"{since}{bound}{self.more_triggers} more triggers owe {self.more_slots} slots")
        return found


async def owed_report(store: Store, window: Window, now: datetime) -> OwedReport:
    """What is owed at `now`, before any loop of this process has looked; see `OwedReport`."""
    targets = await store.targets()
    looked_at = {row.id: row.looked_at for row in targets}
    looked = max(looked_at.values(), default=None)
    pending = await _pending(store, looked_at, now)
    trigger = t.trigger
    rows = await store.fetch(
        select(trigger)
        .where(trigger.c.plan_due_at <= now, trigger.c.cursor < now, trigger.c.status == "active")
        .order_by(trigger.c.plan_due_at)
        .limit(LOOKED_AT)
    )
    behind = {row.id: views.trigger_of(row) for row in rows}
    found: list[Owed] = []
    left = WALK
    for trigger_id in sorted({*pending, *behind}):
        past = Window(max_catchup_runs=left, max_walk=left, grace=window.grace)
        owed, walked = await _owed_by(
            store, past, trigger_id, behind.get(trigger_id), pending.get(trigger_id, []), looked_at, now
        )
        left -= walked
        if owed is not None:
            found.append(owed)
    found.sort(key=lambda item: (-item.slots, item.trigger))
    rest = found[SHOWN:]
    # At a first start the targets are as old as the applying of the file: that was no downtime.
    down = None if looked is None or now - looked < DOWN_FROM else now - looked
    return OwedReport(
        down,
        tuple(found[:SHOWN]),
        len(rest),
        sum(item.slots for item in rest),
        len(rows) >= LOOKED_AT or len(pending) >= LOOKED_AT,
    )


async def _pending(store: Store, targets: Iterable[int], now: datetime) -> dict[int, list[Run]]:
    """Pending runs whose time has come, by trigger; at most `COUNT_BOUND` of them a target."""
    run = t.run
    found: dict[int, list[Run]] = {}
    for target_id in targets:
        rows = await store.fetch(
            select(run)
            .where(run.c.target_id == target_id, SCHEDULED, run.c.due_at <= now, run.c.origin != "manual")
            .order_by(run.c.due_at, run.c.id)
            .limit(COUNT_BOUND)
        )
        for row in rows:
            if row.trigger_id in found or len(found) < LOOKED_AT:
                found.setdefault(row.trigger_id, []).append(views.run_of(row))
    return found


async def _owed_by(
    store: Store,
    window: Window,
    trigger_id: int,
    behind: Trigger | None,
    pending: Sequence[Run],
    looked_at: Mapping[int, datetime],
    now: datetime,
) -> tuple[Owed | None, int]:
    """What it owes, and how many instants were walked to know."""
    trigger = behind
    if trigger is None:
        rows = await store.fetch(select(t.trigger).where(t.trigger.c.id == trigger_id))
        trigger = views.trigger_of(rows[0])
    revisions = await all_revisions(store, trigger.id)
    slots = len(pending)
    firing = sum(not _gone(run, looked_at[run.target_id], now, window.grace) for run in pending)
    at_least, walked = False, 0
    if behind is not None:
        try:
            step = plan(PlanInput(trigger, _deciding(revisions, trigger.cursor), now), now, window)
        except Exception:  # a trigger that can't be planned is shown with its error by `status`
            return None, 0
        past = [item for item in step.runs if from_seconds(item.scheduled_time) <= now]
        skipped = sum(skip.count for skip in step.skips if skip.reason != "paused")
        slots += len(past) + skipped
        firing += len(past)
        walked = len(past) + sum(skip.count for skip in step.skips)
        at_least = step.cursor < now
    if slots == 0 and not at_least:
        return None, walked
    spec = revisions[-1].spec
    policy = spec.catch_up.value
    if spec.max_age is not None:
        policy += f", max_age={format_duration(spec.max_age)}"
    return Owed(trigger.key, slots, firing, policy, at_least), walked


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
