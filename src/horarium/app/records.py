"""Triggers as other systems list them: with the times of their last changes, sorted and filtered at will.

A record is a trigger at one of its revisions. What other systems keep in columns of their own is read from
our revisions: it was *declared* by the last one that brought a spec, and *switched* by the last one that made
it active or inactive. Pages are keyset pages over any order: a trigger that comes or goes between two pages
moves no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    and_,
    case,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    text,
    true,
)

from horarium.app.paging import MAX_LIMIT, Filters, Paging, token
from horarium.app.selects import NOT_MANUAL, is_key, micros
from horarium.core.instant import to_micros
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.revision import Revision, Status
from horarium.core.spec import DeploymentSpec, TriggerSpec
from horarium.core.trigger import Trigger
from horarium.errors import NotFound
from horarium.store import tables as t
from horarium.store.base import Store
from horarium.store.rows import deployment_spec_of, trigger_of

DECLARING = ("create", "edit", "revive", "rename")
"""The words of revisions that bring a spec."""

VERSIONS = (("task_spec", "task_template", "id", "version"), ("task", "version"))
"""Where the action of a deployment on a Flyte target says which version of its task it runs."""

_AT_ONCE = 200
"""Names in one look, well within what either database takes as parameters."""


@dataclass(frozen=True, slots=True)
class Record:
    """A trigger at a revision: when and by whom it was declared and switched last, at or before it.

    `fired_slot` is the last slot that was handed over, of whatever revision.
    """

    trigger: Trigger
    revision: Revision
    declared_at: datetime
    declared_by: str
    switched_at: datetime
    switched_by: str
    fired_slot: datetime | None

    @property
    def deleted_at(self) -> datetime | None:
        return self.revision.effective_from if self.revision.state is Status.DELETED else None


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A deployment, and when it was written last."""

    spec: DeploymentSpec
    managed_by: str | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Term:
    """One condition on a field: `test` is one of `TESTS`, `values` are of the field's type."""

    field: str
    test: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """By which field, and which way."""

    field: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What a list shall be: conditions that all hold, in this order, at most `limit` after `page_token`."""

    terms: tuple[Term, ...] = ()
    order: tuple[Order, ...] = ()
    limit: int = 50
    page_token: str | None = None


TESTS: Mapping[str, Callable[[Any, Sequence[Any]], ColumnElement[bool]]] = {
    "equal": lambda column, values: column == values[0],
    "not_equal": lambda column, values: column != values[0],
    "greater_than": lambda column, values: column > values[0],
    "greater_than_or_equal": lambda column, values: column >= values[0],
    "less_than": lambda column, values: column < values[0],
    "less_than_or_equal": lambda column, values: column <= values[0],
    "in": lambda column, values: column.in_(values),
    "not_in": lambda column, values: column.not_in(values),
    # Not LIKE, which on SQLite takes capitals for small letters.
    "contains": lambda column, values: func.replace(column, values[0], "") != column,
    "contains_in_any_case": lambda column, values: (
        func.replace(func.lower(column), values[0].lower(), "") != func.lower(column)
    ),
    "ends_with": lambda column, values: _ends(column, values[0]),
    "not_ends_with": lambda column, values: not_(_ends(column, values[0])),
}


class Records:
    """See the module. Raises `NotFound`, `InvalidInput`, `StoreUnavailable`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def trigger(self, key: TriggerKey) -> Record | None:
        """The trigger at its present revision, deleted or not; None if it was never there."""
        rows = await self._store.fetch(_record_select(t.trigger.c.revision).where(is_key(key)))
        return _record(rows[0]) if rows else None

    async def began(self, task: DeploymentKey, names: Sequence[str]) -> dict[str, datetime]:
        """When triggers of a deployment were first declared, by name; those that were."""
        trigger = t.trigger.c
        found: dict[str, datetime] = {}
        for first in range(0, len(names), _AT_ONCE):
            rows = await self._store.fetch(
                select(trigger.name, trigger.created_at).where(
                    trigger.project == task.project,
                    trigger.domain == task.domain,
                    trigger.deployment == task.name,
                    trigger.name.in_(names[first : first + _AT_ONCE]),
                )
            )
            found |= {row.name: row.created_at for row in rows}
        return found

    async def at_revision(self, key: TriggerKey, number: int) -> Record:
        """The trigger at a revision. Raises `NotFound`."""
        rows = await self._store.fetch(_record_select(literal(number)).where(is_key(key)))
        if not rows:
            raise NotFound("revision", f"{key}@{number}")
        return _record(rows[0])

    async def triggers(self, scope: Filters, asked: Asked) -> tuple[list[Record], str | None]:
        """A page of the triggers that are not deleted, and the next page's token.

        `scope` may name a project, domain and deployment; the fields are those of `trigger_fields`.
        """
        trigger = t.trigger.c
        statement = _record_select(trigger.revision).where(trigger.status != Status.DELETED.value)
        for name in ("project", "domain", "deployment"):
            if (value := getattr(scope, name)) is not None:
                statement = statement.where(trigger[name] == value)
        rows, more = await self._page("records", statement, asked, trigger_fields(), trigger.id, scope)
        return [_record(row) for row in rows], more

    async def revisions(self, key: TriggerKey, asked: Asked) -> tuple[list[Record], str | None]:
        """A page of a trigger's revisions; the fields are those of `revision_fields`. Raises `NotFound`."""
        if await self.trigger(key) is None:
            raise NotFound("trigger", str(key))
        rows, more = await self._page(
            "record-revisions",
            _record_select(None).where(is_key(key)),
            asked,
            revision_fields(),
            t.trigger_revision.c.number,
            Filters(trigger=key),
        )
        return [_record(row) for row in rows], more

    async def task(self, key: DeploymentKey) -> TaskRecord | None:
        """A deployment that is there."""
        table = t.deployment.c
        rows = await self._store.fetch(
            select(t.deployment).where(
                table.project == key.project,
                table.domain == key.domain,
                table.name == key.name,
                table.withdrawn.is_(False),
            )
        )
        return _task(rows[0]) if rows else None

    async def tasks(self, scope: Filters, asked: Asked) -> tuple[list[TaskRecord], str | None]:
        """A page of the deployments that a whole Flyte task was deployed as; the fields are those of
        `task_fields`."""
        table = t.deployment.c
        whole = table.spec[("action", "task_spec", "task_template", "id", "name")].as_string().is_not(None)
        statement = select(t.deployment).where(table.withdrawn.is_(False), whole)
        for name in ("project", "domain"):
            if (value := getattr(scope, name)) is not None:
                statement = statement.where(table[name] == value)
        rows, more = await self._page("tasks", statement, asked, task_fields(), table.id, scope)
        return [_task(row) for row in rows], more

    async def run_exists(self, project: str, domain: str, name: str) -> bool:
        """Whether there is a run of that name."""
        run = t.run.c
        rows = await self._store.fetch(
            select(run.id).where(run.project == project, run.domain == domain, run.name == name)
        )
        return bool(rows)

    async def slot_run(self, key: TriggerKey, slot: datetime) -> str | None:
        """The name of the run of a slot, if it has one."""
        run = t.run.c
        rows = await self._store.fetch(
            select(run.name)
            .join(t.trigger, t.trigger.c.id == run.trigger_id)
            .where(is_key(key), run.scheduled_time == slot, NOT_MANUAL)
        )
        return str(rows[0].name) if rows else None

    async def _page(
        self,
        kind: str,
        statement: Select[Any],
        asked: Asked,
        fields: Mapping[str, Any],
        last: Any,
        scope: Filters,
    ) -> tuple[Sequence[Row[Any]], str | None]:
        for term in asked.terms:
            statement = statement.where(TESTS[term.test](fields[term.field], term.values))
        order = [(fields[item.field], item.descending) for item in asked.order]
        columns = [*order, (last, False)]
        names = [f"key_{index}" for index in range(len(columns))]
        statement = statement.add_columns(
            *(column.label(name) for (column, _), name in zip(columns, names, strict=True))
        )
        # Bound to the conditions and the order, so that a token leads nowhere under others.
        bound = Filters(
            q=json.dumps([str(scope), [str(term) for term in asked.terms], [str(o) for o in asked.order]])
        )
        types = [_type(column) for column, _ in columns]
        paging = Paging(min(asked.limit, MAX_LIMIT), asked.page_token)
        after = paging.after(kind, bound, [int if kind is datetime else kind for kind in types])
        if after is not None:
            values = [
                micros(value, asked.page_token) if kind is datetime else value
                for value, kind in zip(after, types, strict=True)
            ]
            statement = statement.where(_past(columns, values))
        ordering = [column.desc() if descending else column.asc() for column, descending in columns]
        rows = await self._store.fetch(statement.order_by(*ordering).limit(paging.limit + 1))
        if len(rows) <= paging.limit:
            return rows, None
        end = rows[paging.limit - 1]
        key = [_token_value(getattr(end, name)) for name in names]
        return rows[: paging.limit], token(kind, bound, key)


def _action(table: Any, *paths: Sequence[str]) -> Any:
    """The first text that the action of a spec has at one of these places; empty where there is none."""
    found = (func.nullif(table.c.spec[("action", *path)].as_string(), "") for path in paths)
    return func.coalesce(*found, "")


def trigger_fields() -> dict[str, Any]:
    """What triggers can be sorted and filtered by. `version` is that of the task that they run; `on_demand`
    are those that no time starts any more."""
    trigger, revision = t.trigger.c, t.trigger_revision
    return {
        "project": trigger.project,
        "domain": trigger.domain,
        "deployment": trigger.deployment,
        "name": trigger.name,
        "active": case((trigger.status.in_(("active", "finished")), 1), else_=0),
        "version": _action(revision, *VERSIONS),
        "on_demand": case((revision.c.spec[("schedule", "at")].as_string().is_not(None), 1), else_=0),
        "declared_at": _when(trigger.id, trigger.revision, _declares),
        "switched_at": _when(trigger.id, trigger.revision, _switches),
    }


def revision_fields() -> dict[str, Any]:
    """What revisions can be sorted and filtered by."""
    revision = t.trigger_revision.c
    return {
        "revision": revision.number,
        "change": case(
            (revision.what == "delete", "deleted"),
            (revision.what.in_(("activate", "resume", "resume-deployment")), "activated"),
            (revision.what.in_(("deactivate", "pause", "pause-deployment")), "deactivated"),
            else_="declared",
        ),
        "declared_at": _when(revision.trigger_id, revision.number, _declares),
        "switched_at": _when(revision.trigger_id, revision.number, _switches),
    }


def task_fields() -> dict[str, Any]:
    """What deployments can be sorted and filtered by."""
    table = t.deployment
    return {
        "project": table.c.project,
        "domain": table.c.domain,
        "name": table.c.name,
        "version": _action(table, *VERSIONS),
        "environment": _action(table, ("task_spec", "environment", "name")),
        "short_name": _action(table, ("task_spec", "short_name")),
        "updated_at": table.c.updated_at,
    }


# revisions


def _declares(revision: Any, _: Any) -> ColumnElement[bool]:
    return revision.c.what.in_(DECLARING)  # type: ignore[no-any-return]


def _switches(revision: Any, before: Any) -> ColumnElement[bool]:
    first = before.c.number.is_(None)
    return and_(revision.c.state != "deleted", or_(first, before.c.state != revision.c.state))


def _last(trigger_id: Any, number: Any, meant: Any) -> Any:
    """The number of the last revision, at or before `number`, that is meant."""
    revision, before = t.trigger_revision.alias(), t.trigger_revision.alias()
    return (
        select(func.max(revision.c.number))
        .select_from(
            revision.outerjoin(
                before,
                and_(before.c.trigger_id == revision.c.trigger_id, before.c.number == revision.c.number - 1),
            )
        )
        .where(revision.c.trigger_id == trigger_id, revision.c.number <= number, meant(revision, before))
        .correlate_except(revision, before)
        .scalar_subquery()
    )


def _when(trigger_id: Any, number: Any, meant: Any) -> Any:
    revision = t.trigger_revision.alias()
    return (
        select(revision.c.effective_from)
        .where(revision.c.trigger_id == trigger_id, revision.c.number == _last(trigger_id, number, meant))
        .correlate_except(revision)
        .scalar_subquery()
    )


def _record_select(number: Any) -> Select[Any]:
    """Triggers at the revision `number`; None: at each of their revisions."""
    trigger, revision = t.trigger, t.trigger_revision
    declared, switched = revision.alias("declared"), revision.alias("switched")
    fired = (
        select(t.run.c.scheduled_time)
        .where(t.run.c.trigger_id == trigger.c.id, NOT_MANUAL, text("run.state = 'fired'"))
        .order_by(t.run.c.scheduled_time.desc())
        .limit(1)
        .correlate(trigger)
        .scalar_subquery()
    )
    own = revision.c.trigger_id == trigger.c.id
    return (
        select(
            trigger,
            revision.c.number,
            revision.c.effective_from,
            revision.c.state.label("revision_state"),
            revision.c.spec,
            revision.c.what,
            revision.c.who,
            declared.c.effective_from.label("declared_at"),
            declared.c.who.label("declared_by"),
            switched.c.effective_from.label("switched_at"),
            switched.c.who.label("switched_by"),
            fired.label("fired_slot"),
        )
        .join(revision, own if number is None else and_(own, revision.c.number == number))
        .join(
            declared,
            and_(
                declared.c.trigger_id == trigger.c.id,
                declared.c.number == _last(trigger.c.id, revision.c.number, _declares),
            ),
        )
        .join(
            switched,
            and_(
                switched.c.trigger_id == trigger.c.id,
                switched.c.number == _last(trigger.c.id, revision.c.number, _switches),
            ),
        )
    )


def _record(row: Row[Any]) -> Record:
    revision = Revision(
        row.number,
        row.effective_from,
        Status(row.revision_state),
        TriggerSpec.from_json(row.spec),
        row.what,
        row.who,
    )
    return Record(
        trigger_of(row),
        revision,
        row.declared_at,
        row.declared_by,
        row.switched_at,
        row.switched_by,
        row.fired_slot,
    )


def _task(row: Row[Any]) -> TaskRecord:
    return TaskRecord(deployment_spec_of(row), row.source, row.updated_at)


# pages


def _past(columns: Sequence[tuple[Any, bool]], values: Sequence[Any]) -> ColumnElement[bool]:
    """What comes after a key, in an order that may fall in one column and rise in another."""
    found: ColumnElement[bool] = false()
    same: ColumnElement[bool] = true()
    for (column, descending), value in zip(columns, values, strict=True):
        bound = literal(value, column.type)
        found = or_(found, and_(same, column < bound if descending else column > bound))
        same = and_(same, column == bound)
    return found


def _type(column: Any) -> type:
    found: type = datetime if isinstance(column.type, t.UtcTime) else column.type.python_type
    return found


def _token_value(value: Any) -> Any:
    return to_micros(value) if isinstance(value, datetime) else value


def _ends(column: Any, value: str) -> ColumnElement[bool]:
    size = len(value)
    return and_(
        func.length(column) >= size, func.substr(column, func.length(column) - size + 1, size) == value
    )
