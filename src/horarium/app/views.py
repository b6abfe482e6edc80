"""The JSON shapes that people and programs see: one function a thing, rows and values in, mappings out.

The API, `-o json` and the UI show the same mappings. Times are RFC 3339 in UTC with `Z`, durations are
text that the triggers file takes, words are those of the design. Nothing here reads anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from horarium.core.deployment import Pause
from horarium.core.duration import format_duration
from horarium.core.instant import rfc3339, to_micros
from horarium.core.keys import TriggerKey
from horarium.core.plan import RangePlan
from horarium.core.revision import Revision, Skip, schedule_of
from horarium.core.run import Origin, Run, RunState
from horarium.core.spec import DeploymentSpec, TargetSpec, TriggerSpec
from horarium.core.trigger import Backfill, Trigger
from horarium.errors import HorariumError
from horarium.store.rows import deployment_spec_of, pause_of

if TYPE_CHECKING:
    # Only for types: `horarium preview` reads this module, and should not wait for a database driver.
    from sqlalchemy import Row

View = dict[str, Any]


def moment(at: datetime | None) -> str | None:
    """A time as it is shown, or None."""
    return None if at is None else rfc3339(at)


def length(value: timedelta | None) -> str | None:
    """A duration as the triggers file writes it, or None."""
    return None if value is None else format_duration(value)


def local_time(at: datetime, offset: timedelta) -> str:
    """The wall clock's time at a slot, with its offset from UTC."""
    try:
        return at.astimezone(timezone(offset)).isoformat()
    except OverflowError:  # the first or last day of the calendar, seen from another zone
        return at.isoformat()


def short_key(key: TriggerKey) -> str:
    """The shortest text that `TriggerKey.parse` reads as `key`: parts that are `default` are left out."""
    if (key.project, key.domain) != ("default", "default"):
        return str(key)
    return key.deployment if key.name == "default" else f"{key.deployment}/{key.name}"


def etag(revision: int, updated_at: datetime | None) -> str:
    """The version of a trigger for `If-Match`: its revision and its last change."""
    return f'"{revision}-{0 if updated_at is None else to_micros(updated_at)}"'


def deployment_etag(digest: str, updated_at: datetime, pause: Pause | None) -> str:
    """The version of a deployment for `If-Match`: its spec, its last change, and its pause as it stands."""
    paused = "" if pause is None else f"{to_micros(pause.at)} {pause.by} {pause.note}"
    stands = hashlib.sha256(f"{digest} {to_micros(updated_at)} {paused}".encode()).hexdigest()
    return f'"{stands[:16]}"'


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run with what a reader needs of its neighbours."""

    run: Run
    key: TriggerKey
    target: str
    late_after: timedelta | None
    waits_for: str | None = None


def lateness(run: Run, now: datetime) -> timedelta | None:
    """How long after its first `due_at` it was fired or ended, or has waited so far; None before that.

    None for a backfill too: its slots lie in the past by intent, and nobody waited for them at their time.
    """
    if run.origin is Origin.BACKFILL:
        return None
    match run.state:
        case RunState.FIRED:
            until = run.fired_at
        case RunState.FAILED | RunState.SHADOWED:
            until = run.settled_at
        case RunState.SCHEDULED | RunState.HELD:
            until = now
        case RunState.CANCELLED:
            until = None
    return None if until is None or until < run.first_due_at else until - run.first_due_at


def is_late(row: RunRow, now: datetime, late_after: timedelta) -> bool:
    """Whether it was not fired by its first `due_at` plus the trigger's own `late_after`, else this one."""
    waited = lateness(row.run, now)
    own = row.late_after
    return waited is not None and waited > (late_after if own is None else own)


def run_view(row: RunRow, now: datetime, late_after: timedelta) -> View:
    """One run."""
    run, waited = row.run, lateness(row.run, now)
    return {
        "name": run.name,
        "project": row.key.project,
        "domain": row.key.domain,
        "trigger": str(row.key),
        "scheduled_time": rfc3339(run.scheduled_time),
        "local_time": local_time(run.scheduled_time, run.utc_offset),
        "origin": run.origin.value,
        "state": run.state.value,
        "late": is_late(row, now, late_after),
        "lateness_seconds": None if waited is None else round(waited.total_seconds(), 6),
        "due_at": rfc3339(run.due_at),
        "expires_at": moment(run.expires_at),
        "attempt": run.attempt,
        "leased": run.leased(now),
        "target": row.target,
        "revision": run.revision,
        "fired_at": moment(run.fired_at),
        "settled_at": moment(run.settled_at),
        "reason": run.reason,
        "result": run.result,
        "result_at": moment(run.result_at),
        "result_detail": run.result_detail,
        "waits_for": row.waits_for,
        "target_run_id": run.target_run_id,
        "outcome_unknown": run.outcome_unknown,
        "parameters": None if run.parameters is None else dict(run.parameters),
        "request_key": run.request_key,
    }


def describe(spec: TriggerSpec, seed: str) -> str:
    """The rule in plain English; what is wrong with it where it can't be read any more."""
    try:
        return schedule_of(spec, seed).describe()
    except Exception as error:  # a stored rule that a newer release refuses must not hide its trigger
        return f"unreadable: {error}"


def trigger_view(
    trigger: Trigger,
    spec: TriggerSpec,
    upcoming: Sequence[datetime],
    last_run: View | None,
    *,
    deployment_paused: bool,
) -> View:
    """One trigger with its present spec.

    Where its status is `paused`, `active`, `paused` and `deployment_paused` say what stands in the way.
    """
    key = trigger.key
    return {
        "key": str(key),
        "project": key.project,
        "domain": key.domain,
        "deployment": key.deployment,
        "name": key.name,
        "status": trigger.status.value,
        "active": spec.active,
        "inactive_because": spec.inactive_because,
        "paused": trigger.paused,
        "pause_note": trigger.pause_note,
        "paused_by": trigger.paused_by,
        "paused_at": moment(trigger.paused_at),
        "resume_at": moment(trigger.resume_at),
        "deployment_paused": deployment_paused,
        "shadow": trigger.shadow,
        "frozen": trigger.frozen,
        "schedule": dict(spec.schedule),
        "describe": describe(spec, trigger.hash_seed),
        "timezone": str(spec.schedule.get("timezone", "UTC")),
        **policy_view(spec),
        "managed_by": trigger.managed_by,
        "revision": trigger.revision,
        "etag": etag(trigger.revision, trigger.updated_at),
        "cursor": rfc3339(trigger.cursor),
        "plan_due_at": moment(trigger.plan_due_at),
        "error": trigger.error,
        "next": [rfc3339(at) for at in upcoming],
        "last_run": last_run,
        "created_at": moment(trigger.created_at),
        "updated_at": moment(trigger.updated_at),
    }


def policy_view(spec: TriggerSpec) -> View:
    """What a spec says beside its schedule."""
    return {
        "catch_up": spec.catch_up.value,
        "max_age": length(spec.max_age),
        "jitter": length(spec.jitter),
        "overlap": spec.overlap.value,
        **_work_view(spec),
    }


def _work_view(spec: TriggerSpec | DeploymentSpec) -> View:
    """What runs, and for how long it is waited for."""
    return {
        "target": spec.target,
        "action": dict(spec.action),
        "parameters": dict(spec.parameters),
        "kickoff_time_arg": spec.kickoff_time_arg,
        "owner": spec.owner,
        "runbook": spec.runbook,
        "late_after": length(spec.late_after),
        "retry_for": length(spec.retry_for),
        "completion_timeout": length(spec.completion_timeout),
    }


def spec_view(spec: TriggerSpec) -> View:
    """A whole spec, as a revision shows it."""
    return {
        "schedule": dict(spec.schedule),
        "active": spec.active,
        "inactive_because": spec.inactive_because,
        **policy_view(spec),
    }


def revision_view(revision: Revision, until: datetime | None) -> View:
    """One revision: in force after `effective_from`, up to and at `until`."""
    return {
        "number": revision.number,
        "effective_from": rfc3339(revision.effective_from),
        "until": moment(until),
        "state": revision.state.value,
        "what": revision.what,
        "who": revision.who,
        "shadow": revision.shadow,
        "deployment_paused": revision.deployment_paused,
        "spec": spec_view(revision.spec),
    }


def skip_view(key: TriggerKey, skip: Skip, at: datetime | None) -> View:
    """A range of slots that shall not run."""
    return {
        "trigger": str(key),
        "first": rfc3339(skip.first),
        "last": rfc3339(skip.last),
        "count": skip.count,
        "reason": skip.reason,
        "detail": skip.detail,
        "revision": skip.revision,
        "at": moment(at),
    }


def planned_view(
    from_time: datetime,
    to_time: datetime,
    plans: Sequence[tuple[TriggerKey, RangePlan, HorariumError | None]],
) -> View:
    """What became of the wish for the runs of a range, by trigger and in all."""
    return {
        "from": rfc3339(from_time),
        "to": rfc3339(to_time),
        **{name: sum(getattr(found, name) for _, found, _ in plans) for name in _PLANNED},
        "triggers": [
            {
                "trigger": str(key),
                **{name: getattr(found, name) for name in _PLANNED},
                "problem": None if problem is None else str(problem),
            }
            for key, found, problem in plans
        ],
    }


_PLANNED = ("planned", "existing", "decided")


def backfill_view(key: TriggerKey, backfill: Backfill) -> View:
    """One backfill and how far it has come."""
    return {
        "id": backfill.id,
        "trigger": str(key),
        "from": rfc3339(backfill.from_time),
        "to": rfc3339(backfill.to_time),
        "cursor": rfc3339(backfill.cursor),
        "state": backfill.state,
        "runs": backfill.runs,
        "created_by": backfill.created_by,
        "created_at": moment(backfill.created_at),
        "ended_at": moment(backfill.ended_at),
    }


def target_view(spec: TargetSpec, source: str | None, *, frozen: bool, looked_at: datetime | None) -> View:
    """One target. Secrets in `config` are references, never values."""
    return {
        "name": spec.name,
        "kind": spec.kind,
        "config": dict(spec.config),
        "rate": rate_view(spec),
        "max_in_flight": spec.max_in_flight,
        "source": source,
        "frozen": frozen,
        "looked_at": moment(looked_at),
    }


def rate_view(spec: TargetSpec) -> Any:
    """`unlimited`, the two numbers, or None for the instance's default."""
    if spec.unlimited:
        return "unlimited"
    return None if spec.rate is None else {"per_second": spec.rate.per_second, "burst": spec.rate.burst}


def deployment_view(row: Row[Any]) -> View:
    """One deployment, from the columns of its table."""
    spec, pause = deployment_spec_of(row), pause_of(row)
    return {
        "key": str(spec.key),
        "project": spec.key.project,
        "domain": spec.key.domain,
        "name": spec.key.name,
        **_work_view(spec),
        "managed_by": row.source,
        "paused": pause is not None,
        "pause_note": pause and pause.note,
        "paused_by": pause and pause.by,
        "paused_at": pause and rfc3339(pause.at),
        "etag": deployment_etag(row.digest, row.updated_at, pause),
        "updated_at": moment(row.updated_at),
    }


def times(values: Iterable[datetime]) -> list[str]:
    """Many times."""
    return [rfc3339(value) for value in values]
