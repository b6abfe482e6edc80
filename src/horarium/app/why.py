"""`why TRIGGER TIME`: the one verdict for any instant of a trigger, and a sentence that says why. Pure.

fired, late, skipped, owed, planned, held, failed or never; or pruned, when retention has taken the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from horarium.app import views
from horarium.app.selects import is_slot
from horarium.app.views import RunRow, View
from horarium.core.deployment import Pause
from horarium.core.duration import format_duration
from horarium.core.instant import MAX_SECONDS, from_seconds, rfc3339, to_seconds
from horarium.core.revision import Revision, Skip, Status, schedule_of
from horarium.core.run import Origin, RunState
from horarium.core.schedule import Schedule
from horarium.core.trigger import Trigger


class Why:
    """The one verdict for an instant; every branch ends in a sentence that a person understands."""

    def __init__(
        self,
        trigger: Trigger,
        revisions: Sequence[Revision],
        at: datetime,
        now: datetime,
        run: RunRow | None,
        skip: Skip | None,
        skipped_at: datetime | None,
        late_after: timedelta,
        stopped_by: str | None = None,
        deployment_pause: Pause | None = None,
    ) -> None:
        """`stopped_by` is what keeps a run that is still to be fired from being fired, but for a pause;
        `deployment_pause` the pause of the trigger's deployment that is in force."""
        self.trigger = trigger
        self.revisions = revisions
        self.at = at
        self.now = now
        self.run = run
        self.skip = skip
        self.skipped_at = skipped_at
        self.late_after = late_after
        self.stopped_by = stopped_by
        self.deployment_pause = deployment_pause
        earlier = [item for item in revisions if item.effective_from < at]
        self.revision = earlier[-1] if earlier else None
        shown_by = self.revision or revisions[0]
        self.rule: Schedule = schedule_of(shown_by.spec, trigger.hash_seed)

    def answer(self) -> View:
        verdict, reason = self._verdict()
        trigger = self.trigger
        slot = self.run is not None or self.skip is not None or self._named()
        return {
            "trigger": str(trigger.key),
            "time": rfc3339(self.at),
            "verdict": verdict,
            "slot": slot,
            "reason": reason,
            "run": None if self.run is None else views.run_view(self.run, self.now, self.late_after),
            "skip": None if self.skip is None else views.skip_view(trigger.key, self.skip, self.skipped_at),
            "revision": None if self.revision is None else self.revision.number,
            "nearest": self._nearest(),
        }

    def _verdict(self) -> tuple[str, str]:
        if self.run is not None:
            return self._of_run(self.run)
        if self.skip is not None:
            return "skipped", self._of_skip(self.skip)
        if self.revision is None:
            first = self.revisions[0]
            return "never", f"the trigger is there only since {rfc3339(first.effective_from)}"
        if not self._named():
            return "never", self._not_named()
        return self._undecided(self.revision)

    def _of_run(self, row: RunRow) -> tuple[str, str]:
        run = row.run
        late = views.is_late(row, self.now, self.late_after)
        waited = views.lateness(run, self.now) or timedelta()
        match run.state:
            case RunState.FIRED:
                when = f"run {run.name} was fired at {views.moment(run.fired_at)}"
                ended = f"; at the target it {_ENDED[run.result]}" if run.result in _ENDED else ""
                if run.origin is Origin.BACKFILL:
                    return "fired", f"{when}, by a backfill{ended}"
                if late:
                    return "late", f"{when}, {rough(waited)} after its time{ended}"
                return "fired", when + (f", {rough(waited)} after its time" if waited else "") + ended
            case RunState.SHADOWED:
                when = f", {rough(waited)} after its time" if waited else ""
                return "shadowed", (
                    f"run {run.name} was decided at {views.moment(run.settled_at)}{when}; nobody was called:"
                    " the trigger was in shadow, and this slot is another scheduler's"
                )
            case RunState.FAILED:
                unknown = "; its outcome is unknown" if run.outcome_unknown else ""
                tries = f"after {run.attempt} attempts" if run.attempt != 1 else "at its first attempt"
                return "failed", f"run {run.name} failed {tries}: {run.reason}{unknown}"
            case RunState.HELD if self.stopped_by is not None:
                return "held", f"run {run.name} is held: {self.stopped_by}"
            case RunState.HELD:
                return "held", f"run {run.name} is held while {self._paused()}"
            case _:
                pass
        if run.first_due_at > self.now:
            return "planned", f"run {run.name} is planned and due at {rfc3339(run.due_at)}"
        if row.waits_for is not None:
            how = f"waits for the end of run {row.waits_for}, as its overlap policy says"
        elif run.leased(self.now):
            how = f"is being fired now, attempt {run.attempt}"
        elif run.attempt:
            how = f"was tried {run.attempt} times and is tried again at {rfc3339(run.due_at)}"
            how += f" ({run.reason})" if run.reason else ""
        else:
            how = "waits to be fired" + (f", because {self.stopped_by}" if self.stopped_by else "")
        past = (
            "it is a backfill's" if run.origin is Origin.BACKFILL else f"it is {rough(waited)} past its time"
        )
        return ("late" if late else "owed"), f"run {run.name} {how}; {past}"

    def _of_skip(self, skip: Skip) -> str:
        said = {
            "paused": "the trigger was paused",
            "deleted": "the trigger was deleted",
            "cancelled": "it was cancelled",
            "catch_up_latest": "a later slot had come before anybody could fire it (catch_up: latest)",
            "catch_up_none": "nobody could fire it at its time (catch_up: none)",
            "max_age": "it was older than max_age when it could have been fired",
            "overlap": "another run of the trigger was under way (overlap)",
            "released": "it was given up when a freeze or the catch-up guard was released",
        }.get(skip.reason, skip.reason)
        among = f", one of {skip.count} slots skipped together" if skip.count > 1 else ""
        return f"{said}{f' ({skip.detail})' if skip.detail else ''}{among}"

    def _undecided(self, revision: Revision) -> tuple[str, str]:
        """A slot of the rule in force that is neither a run nor in a skip."""
        trigger = self.trigger
        if revision.state is Status.DELETED:
            return "never", f"the trigger was deleted at {rfc3339(revision.effective_from)} by {revision.who}"
        if revision.state is Status.PAUSED:
            ahead = self.at > self.now
            because = revision.spec.inactive_because or "active: false"
            by_spec = not revision.spec.active and not (ahead and trigger.paused)
            why = f"the trigger is not active ({because})" if by_spec else self._paused(revision)
            tail = "; it will be skipped unless that is resumed before" if ahead else ""
            return "skipped", f"{why}, since {rfc3339(revision.effective_from)}{tail}"
        if self.at > trigger.cursor:
            if trigger.error is not None:
                verdict = "planned" if self.at > self.now else "owed"
                return verdict, f"it is not planned, because the trigger has an error: {trigger.error}"
            if self.at > self.now:
                return (
                    "planned",
                    f"a slot further ahead than is planned yet (up to {rfc3339(trigger.cursor)})",
                )
            return "owed", f"the planner has come to {rfc3339(trigger.cursor)} and will decide it"
        if trigger.pruned_before is not None and self.at < trigger.pruned_before:
            return "pruned", f"records before {rfc3339(trigger.pruned_before)} were deleted by retention"
        return "never", "a slot of the rule without a record, which must not be: please report it"

    def _not_named(self) -> str:
        assert self.revision is not None
        if self.at.microsecond:
            return "slots are on whole seconds"
        what = f"{self.rule.describe()} (revision {self.revision.number}) does not name it"
        for other in reversed(self.revisions):
            if other is self.revision or other.state is not Status.ACTIVE:
                continue
            if is_slot(schedule_of(other.spec, self.trigger.hash_seed), self.at):
                when = f"in force only {'from' if other.number > self.revision.number else 'before'}"
                edge = other if other.number > self.revision.number else self.revision
                return (
                    f"{what}; revision {other.number} does, but it was {when} {rfc3339(edge.effective_from)}"
                )
        start, end = self.revision.spec.schedule.get("start"), self.revision.spec.schedule.get("end")
        bounds = [f"{word} {value}" for word, value in (("start", start), ("end", end)) if value is not None]
        return what + (f" ({', '.join(bounds)})" if bounds else "")

    def _named(self) -> bool:
        return self.revision is not None and is_slot(self.rule, self.at)

    def _nearest(self) -> View:
        at = to_seconds(self.at)
        before = self.rule.before(at if self.at.microsecond else at - 1)
        after = self.rule.after(at)
        return {
            "before": None if before is None else rfc3339(from_seconds(before)),
            "after": None if after is None or after > MAX_SECONDS else rfc3339(from_seconds(after)),
        }

    def _paused(self, revision: Revision | None = None) -> str:
        """Whose pause it is, the trigger's or its deployment's, by whom and why; in `revision`, else now."""
        trigger, whole = self.trigger, self.deployment_pause
        parts = []
        if trigger.paused:
            parts.append(f"the trigger is paused{_by(trigger.paused_by, trigger.pause_note)}")
        if (revision or self.revisions[-1]).deployment_paused:
            said = "" if whole is None else _by(whole.by, whole.note)
            parts.append(f"its deployment is paused{said}")
        return " and ".join(parts) or "the trigger is paused"


def _by(who: str | None, note: str | None) -> str:
    return (f" by {who}" if who else "") + (f" ({note})" if note else "")


_ENDED = {
    "running": "runs",
    "succeeded": "succeeded",
    "errored": "ended in an error",
    "interrupted": "was interrupted",
    "cancelled": "was cancelled",
    "unknown": "came to an end that was never reported",
}
"""What a target reported of a run that it took."""


def rough(value: timedelta) -> str:
    """A duration for a sentence: whole seconds from ten seconds on, else to the millisecond."""
    if value >= timedelta(seconds=10):
        return format_duration(timedelta(seconds=int(value.total_seconds())))
    return format_duration(timedelta(milliseconds=int(value / timedelta(milliseconds=1))))
