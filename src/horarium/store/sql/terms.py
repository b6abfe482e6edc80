"""Conditions and locks that several scripts share."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Executable, and_, select, tuple_
from sqlalchemy import text as term
from sqlalchemy.sql.elements import ColumnElement

from horarium.core.freeze import Scope, ScopeKind
from horarium.core.keys import TriggerKey
from horarium.core.spec import TargetSpec
from horarium.store import tables as t
from horarium.store.sql.script import Script, chunked

# The terms of partial indexes, which serve only a query that repeats them literally.
PENDING = term("run.state in ('scheduled', 'held')")
SCHEDULED = term("run.state = 'scheduled'")
HELD = term("run.state = 'held'")
UNUSUAL = term("run.state in ('held', 'failed', 'cancelled')")
MANUAL = term("run.origin = 'manual'")
NOT_MANUAL = term("run.origin <> 'manual'")
SETTLED = ("fired", "failed", "shadowed", "cancelled")

LOCAL = TargetSpec("local", "local")
"""The target that every instance has. Nobody owns it until a source defines it its own way."""


def stops_stand(*, exclusive: bool) -> Executable:
    """Keeps freezes and pauses of deployments as they are while triggers or targets are added, and the other
    way round.

    By a lock on the one target that is always there, taken before any trigger's. Else a freeze or a pause
    would miss a trigger added beside it.
    """
    row = select(t.target.c.id).where(t.target.c.name == LOCAL.name)
    return row.with_for_update(key_share=True) if exclusive else row.with_for_update(read=True)


def in_scope(scope: Scope) -> ColumnElement[bool]:
    """Triggers of a project or a deployment."""
    table = t.trigger.c
    if scope.kind is ScopeKind.PROJECT:
        return table.project == scope.key
    project, domain, name = scope.key.split("/")
    return and_(table.project == project, table.domain == domain, table.deployment == name)


def has_open_backfill(trigger_id: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether that trigger is being backfilled."""
    return (
        select(t.backfill.c.id)
        .where(t.backfill.c.trigger_id == trigger_id, t.backfill.c.state == "open")
        .exists()
    )


def ids_of(keys: Sequence[TriggerKey]) -> Script[dict[TriggerKey, int]]:
    """The ids of those of the keys that there are."""
    found: dict[TriggerKey, int] = {}
    table = t.trigger
    for chunk in chunked(keys):
        rows = yield select(
            table.c.id, table.c.project, table.c.domain, table.c.deployment, table.c.name
        ).where(key_in(chunk))
        for row in rows:
            found[TriggerKey(row.project, row.domain, row.deployment, row.name)] = row.id
    return found


def key_in(keys: Sequence[TriggerKey]) -> ColumnElement[bool]:
    """The triggers of these keys."""
    table = t.trigger
    return tuple_(table.c.project, table.c.domain, table.c.deployment, table.c.name).in_(
        [(key.project, key.domain, key.deployment, key.name) for key in keys]
    )


def is_key(key: TriggerKey) -> ColumnElement[bool]:
    """The trigger of this key."""
    table = t.trigger
    return and_(
        table.c.project == key.project,
        table.c.domain == key.domain,
        table.c.deployment == key.deployment,
        table.c.name == key.name,
    )


def is_deployment(project: str, domain: str, name: str) -> ColumnElement[bool]:
    """The deployment of this key."""
    table = t.deployment
    return and_(table.c.project == project, table.c.domain == domain, table.c.name == name)
