"""What a change would do, before it is done: of specs field by field, and of slots. Pure.

The slots that come are found by running the planner's own `plan` on the trigger as it would be; those that
go are the planned runs that the change withdraws. A slot that goes and comes again at the same time is
neither: its run stays, under the new spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from horarium.app.views import View, length, times
from horarium.core.instant import from_seconds
from horarium.core.plan import PlanInput, Window, plan
from horarium.core.revision import Revision, Status
from horarium.core.spec import TriggerEntry, TriggerSpec
from horarium.core.trigger import Change, Trigger, TriggerState

SLOTS_FOR = 1_000
"""Changes whose slots are worked out; the planner does some 5,000 triggers a second."""

SLOTS_SHOWN = 100
"""Slots that one change names; `…_count` has them all."""

_DURATIONS = ("jitter", "max_age", "late_after", "retry_for", "completion_timeout")


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field's old and new value, as JSON; None where it was or is absent."""

    field: str
    old: Any
    new: Any

    def to_json(self) -> View:
        return {"field": self.field, "old": self.old, "new": self.new}


@dataclass(frozen=True, slots=True)
class SlotDiff:
    """Planned runs that go and that come, by slot; `kept` stay at their time under the new spec."""

    withdrawn: tuple[datetime, ...] = ()
    added: tuple[datetime, ...] = ()
    kept: int = 0
    skipped: int = 0

    def to_json(self) -> View:
        return {
            "runs_withdrawn": times(self.withdrawn[:SLOTS_SHOWN]),
            "runs_withdrawn_count": len(self.withdrawn),
            "runs_added": times(self.added[:SLOTS_SHOWN]),
            "runs_added_count": len(self.added),
            "runs_kept": self.kept,
            "slots_skipped": self.skipped,
        }


def spec_changes(old: TriggerSpec, new: TriggerSpec) -> tuple[FieldChange, ...]:
    """The fields that differ, in the words of the triggers file, the schedule's first."""
    before, after = flat(old), flat(new)
    names = [*before, *(name for name in after if name not in before)]
    return tuple(
        FieldChange(name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    )


def flat(spec: TriggerSpec) -> dict[str, Any]:
    """A spec as one level of words: `cron`, `timezone`, `run`, `parameters.epochs`, `catch_up` …"""
    found: dict[str, Any] = dict(spec.schedule)
    found |= {"target": spec.target, **spec.action}
    found |= {f"parameters.{name}": value for name, value in spec.parameters.items()}
    found |= {
        "catch_up": spec.catch_up.value,
        "active": spec.active,
        "kickoff_time_arg": spec.kickoff_time_arg,
        "owner": spec.owner,
        "runbook": spec.runbook,
    }
    return found | {name: length(getattr(spec, name)) for name in _DURATIONS}


def slot_diff(before: TriggerState, change: Change, now: datetime, window: Window) -> SlotDiff:
    """What `change`, decided on `before`, does to the planned runs. Raises what the new schedule raises."""
    gone = {run.scheduled_time for run in before.pending if run.id in change.withdrawn}
    skipped = sum(skip.count for skip in change.skips)
    # A withdrawn run that is owed becomes a skip and is counted there.
    gone = {at for at in gone if at > now}
    if change.trigger.status is Status.DELETED:
        return SlotDiff(tuple(sorted(gone)), skipped=skipped)
    revisions = (*before.revisions, *change.revisions)
    staying = {run.scheduled_time for run in before.pending if run.id not in change.withdrawn}
    coming = {at for at in _coming(change.trigger, revisions, now, window) if at > now} - staying
    return SlotDiff(tuple(sorted(gone - coming)), tuple(sorted(coming - gone)), len(gone & coming), skipped)


def new_slots(entry: TriggerEntry, managed_by: str | None, now: datetime, window: Window) -> SlotDiff:
    """The first runs of a trigger that is added. Raises what its schedule raises."""
    spec = entry.spec
    state = Status.ACTIVE if spec.active else Status.PAUSED
    trigger = Trigger(0, entry.key, str(entry.key), managed_by, 1, state, now, now)
    found = _coming(trigger, (Revision(1, now, state, spec),), now, window)
    return SlotDiff(added=tuple(sorted(found)))


def revised(before: TriggerState, change: Change) -> tuple[FieldChange, ...]:
    """The field changes of a change that has a new revision; none of one that has not."""
    if change.revision is None:
        return ()
    return spec_changes(before.current.spec, change.revision.spec)


def _coming(trigger: Trigger, revisions: Sequence[Revision], now: datetime, window: Window) -> set[datetime]:
    if trigger.status is not Status.ACTIVE:
        return set()
    # The past is decided elsewhere; only what the window ahead would hold is asked for.
    ahead = PlanInput(replace(trigger, cursor=max(now, trigger.cursor)), tuple(revisions[-1:]), now)
    return {from_seconds(run.scheduled_time) for run in plan(ahead, now, window).runs}
