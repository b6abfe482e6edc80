"""Core selects that several reads share, and what their rows mean.

The terms of partial indexes stand here once, as text: such an index serves only a query that repeats its term
literally.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, func, or_, select, text

from horarium.app.paging import Filters, in_calendar, wrong_token
from horarium.app.views import RunRow
from horarium.core.instant import from_micros, to_seconds
from horarium.core.keys import TriggerKey
from horarium.core.revision import Skip
from horarium.core.schedule import Schedule
from horarium.store import tables as t
from horarium.store.rows import run_of

PENDING = text("run.state in ('scheduled', 'held')")
SCHEDULED = text("run.state = 'scheduled'")
UNUSUAL = text("run.state in ('held', 'failed', 'cancelled')")
NOT_MANUAL = text("run.origin <> 'manual'")
MANUAL = text("run.origin = 'manual'")
NOT_ACTIVE = text("trigger.status <> 'active'")
IN_SHADOW = text("trigger.shadow")
PAUSED_DEPLOYMENT = text("deployment.paused")
LIVE = text("trigger.status <> 'deleted'")


def run_select() -> Select[Any]:
    """Runs with their trigger's key, their target's name, their revision's `late_after` and the name of the
    run that they wait for."""
    run, trigger, target, revision = t.run, t.trigger, t.target, t.trigger_revision
    behind = t.run.alias("behind")
    return (
        select(
            run,
            trigger.c.deployment.label("trigger_deployment"),
            trigger.c.name.label("trigger_name"),
            target.c.name.label("target_name"),
            revision.c.spec["late_after"].as_float().label("late_after"),
            select(behind.c.name).where(behind.c.id == run.c.waits_for).scalar_subquery().label("behind"),
        )
        .join(trigger, trigger.c.id == run.c.trigger_id)
        .join(target, target.c.id == run.c.target_id)
        .outerjoin(
            revision,
            and_(revision.c.trigger_id == run.c.trigger_id, revision.c.number == run.c.revision),
        )
    )


def run_row(row: Row[Any]) -> RunRow:
    key = TriggerKey(row.project, row.domain, row.trigger_deployment, row.trigger_name)
    late_after = None if row.late_after is None else timedelta(seconds=row.late_after)
    return RunRow(run_of(row), key, row.target_name, late_after, row.behind)


def run_filters(filters: Filters, now: datetime) -> list[ColumnElement[bool]]:
    """What a run must be, beside its time and its trigger. Empty: the index alone decides."""
    run, revision = t.run.c, t.trigger_revision
    found: list[ColumnElement[bool]] = []
    for column, value in ((run.project, filters.project), (run.domain, filters.domain)):
        if value is not None:
            # Wrapped, so that no index of names serves: it would read and sort all runs of a project.
            found.append(func.coalesce(column, "") == value)
    if filters.deployment is not None:
        found.append(func.coalesce(t.trigger.c.deployment, "") == filters.deployment)
    if filters.target is not None:
        found.append(t.target.c.name == filters.target)
    if filters.state is not None:
        found.append(run.state == filters.state)
    if filters.origin is not None:
        found.append(run.origin == filters.origin)
    if filters.owner is not None:
        found.append(revision.c.spec["owner"].as_string() == filters.owner)
    if filters.q is not None:
        key = (run.project, run.domain, t.trigger.c.deployment, t.trigger.c.name)
        found.append(or_(found_in(filters.q, key), like(run.name, filters.q)))
    if filters.late is not None:
        # What can be late at all; the trigger's own `late_after` is judged on the row.
        possible = or_(
            and_(run.state.in_(("scheduled", "held")), run.first_due_at < now),
            run.fired_at > run.first_due_at,
            and_(run.state.in_(("failed", "shadowed")), run.settled_at > run.first_due_at),
        )
        possible = and_(run.origin != "backfill", possible)
        found.append(possible if filters.late else run.id.is_not(None))
    return found


def trigger_filters(filters: Filters) -> list[ColumnElement[bool]]:
    found = equal(t.trigger, filters, "project", "domain", "deployment")
    if filters.trigger is not None:
        found.append(is_key(filters.trigger))
    return found


def needs_spec(filters: Filters) -> bool:
    return filters.target is not None or filters.owner is not None or filters.q is not None


def joined_spec(statement: Select[Any], trigger_id: Any, number: Any, filters: Filters) -> Select[Any]:
    revision, trigger = t.trigger_revision, t.trigger
    statement = statement.join(
        revision, and_(revision.c.trigger_id == trigger_id, revision.c.number == number)
    ).where(*in_spec(revision.c.spec, filters))
    if filters.q is not None:
        key = (trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name)
        statement = statement.where(found_in(filters.q, key))
    return statement


def in_spec(spec: Any, filters: Filters) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if filters.target is not None:
        found.append(spec["target"].as_string() == filters.target)
    if filters.owner is not None:
        found.append(spec["owner"].as_string() == filters.owner)
    return found


def equal(table: Any, filters: Filters, *names: str) -> list[ColumnElement[bool]]:
    return [table.c[name] == value for name in names if (value := getattr(filters, name)) is not None]


def is_key(key: TriggerKey) -> ColumnElement[bool]:
    trigger = t.trigger.c
    return and_(
        trigger.project == key.project,
        trigger.domain == key.domain,
        trigger.deployment == key.deployment,
        trigger.name == key.name,
    )


def found_in(q: str, parts: Sequence[Any]) -> ColumnElement[bool]:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + "/" + part
    return like(whole, q)


def like(column: Any, q: str) -> ColumnElement[bool]:
    found: ColumnElement[bool] = func.lower(column).contains(q.lower(), autoescape=True)
    return found


def stored_source(name: str) -> str | None:
    """`api` is how people are called who manage triggers without a source."""
    return None if name == "api" else name


def key_of(row: Row[Any]) -> TriggerKey:
    return TriggerKey(row.project, row.domain, row.deployment, row.name)


def skip_of(row: Row[Any]) -> Skip:
    # `count` is also a method of every row, so its column is asked for by name.
    mapping = row._mapping
    return Skip(
        row.revision, row.first_time, row.last_time, mapping["count"], mapping["reason"], mapping["detail"]
    )


def is_slot(rule: Schedule, at: datetime) -> bool:
    second = to_seconds(at)
    return at.microsecond == 0 and rule.after(second - 1) == second


def micros(value: int, given: str | None) -> datetime:
    if not in_calendar(value):
        raise wrong_token(given)
    return from_micros(value)
