"""The tables, described once for both databases. Migrations create them; a test compares the two.

Times are microseconds since the epoch in an INTEGER on SQLite and `timestamptz` on PostgreSQL, so that a
compare-and-set token never repeats and neither database's clock or zone has a say.

Indexes that carry the promises:
- `run_slot`: one run a slot. It is partial (`origin <> 'manual'`); a query must repeat that term.
- `run_name`: one run a name in a project and domain; it notices a collision of 64-bit names.
- `run_due`: due, retry and expired lease are one look in one index.
- `trigger_plan_due`: a look over a million quiet triggers costs nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator, TypeEngine

from horarium.core.instant import from_micros, to_micros


class UtcTime(TypeDecorator[datetime]):
    """An aware UTC datetime with microseconds; see the module."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(BigInteger())
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        return to_micros(value) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if dialect.name == "sqlite":
            return from_micros(value)
        aware: datetime = value
        return aware.astimezone(UTC)


Document = JSON().with_variant(JSONB(), "postgresql")
OptionalDocument = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
Id = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite gives ids by itself only to a column that is declared INTEGER."""

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)

source = Table(
    "source",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", BigInteger, nullable=False, server_default=text("0")),
    Column("digest", Text),
    Column("path", Text),
    Column("listed_at", UtcTime),
    Column("error", Text),
    Column("error_at", UtcTime),
)

target = Table(
    "target",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("source", Text),
    Column("spec", Document, nullable=False),
    Column("digest", Text, nullable=False),
    Column("withdrawn", Boolean, nullable=False, server_default=text("false")),
    Column("updated_at", UtcTime, nullable=False),
)

target_allowance = Table(
    "target_allowance",
    metadata,
    Column("target_id", Id, ForeignKey("target.id"), primary_key=True, autoincrement=False),
    Column("tokens", Float, nullable=False),
    Column("refilled_at", UtcTime, nullable=False),
    Column("looked_at", UtcTime, nullable=False),
    Column("frozen", Boolean, nullable=False, server_default=text("false")),
    Column("guard_state", Text, nullable=False, server_default=text("'none'")),
    Column("guard_from", UtcTime),
    Column("guard_until", UtcTime),
)

freeze = Table(
    "freeze",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("note", Text),
    Column("who", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    CheckConstraint("kind in ('all', 'target', 'project', 'deployment')", name="kind"),
)

deployment = Table(
    "deployment",
    metadata,
    Column("id", Id, primary_key=True),
    Column("project", Text, nullable=False),
    Column("domain", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("source", Text),
    Column("spec", Document, nullable=False),
    Column("digest", Text, nullable=False),
    Column("withdrawn", Boolean, nullable=False, server_default=text("false")),
    Column("updated_at", UtcTime, nullable=False),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    Column("pause_note", Text),
    Column("paused_by", Text),
    Column("paused_at", UtcTime),
    UniqueConstraint("project", "domain", "name"),
)
_PAUSED = text("paused")
Index(
    "deployment_paused",
    deployment.c.project,
    deployment.c.domain,
    deployment.c.name,
    sqlite_where=_PAUSED,
    postgresql_where=_PAUSED,
)

trigger = Table(
    "trigger",
    metadata,
    Column("id", Id, primary_key=True),
    Column("project", Text, nullable=False),
    Column("domain", Text, nullable=False),
    Column("deployment", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("hash_seed", Text, nullable=False),
    Column("source", Text),
    Column("revision", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("cursor", UtcTime, nullable=False),
    Column("plan_due_at", UtcTime),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    Column("pause_note", Text),
    Column("paused_by", Text),
    Column("paused_at", UtcTime),
    Column("resume_at", UtcTime),
    Column("shadow", Boolean, nullable=False, server_default=text("false")),
    Column("frozen", Boolean, nullable=False, server_default=text("false")),
    Column("error", Text),
    Column("error_count", Integer, nullable=False, server_default=text("0")),
    Column("zone_digest", Text),
    Column("tzdata_version", Text),
    Column("pruned_before", UtcTime),
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    UniqueConstraint("project", "domain", "deployment", "name"),
    CheckConstraint("status in ('active', 'paused', 'finished', 'deleted')", name="status"),
    CheckConstraint("status <> 'active' or plan_due_at is not null", name="never_stuck"),
)
Index(
    "trigger_plan_due",
    trigger.c.plan_due_at,
    sqlite_where=text("plan_due_at is not null"),
    postgresql_where=text("plan_due_at is not null"),
)
_KEY = (trigger.c.project, trigger.c.domain, trigger.c.deployment, trigger.c.name)
Index("trigger_source", trigger.c.source, *_KEY)
# Lists for people go by key; what is rare among many has an index of its own, which costs the rest nothing.
_NOT_ACTIVE = text("status <> 'active'")
Index(
    "trigger_unusual",
    trigger.c.status,
    *_KEY,
    sqlite_where=_NOT_ACTIVE,
    postgresql_where=_NOT_ACTIVE,
)
_IN_SHADOW = text("shadow")
Index("trigger_shadow", *_KEY, sqlite_where=_IN_SHADOW, postgresql_where=_IN_SHADOW)
_WRONG = text("error is not null")
Index("trigger_error", *_KEY, sqlite_where=_WRONG, postgresql_where=_WRONG)

trigger_revision = Table(
    "trigger_revision",
    metadata,
    Column("trigger_id", Id, ForeignKey("trigger.id"), primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("effective_from", UtcTime, nullable=False),
    Column("state", Text, nullable=False),
    Column("spec", Document, nullable=False),
    Column("digest", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("shadow", Boolean, nullable=False, server_default=text("false")),
    Column("deployment_paused", Boolean, nullable=False, server_default=text("false")),
    CheckConstraint("state in ('active', 'paused', 'deleted')", name="state"),
)

run = Table(
    "run",
    metadata,
    Column("id", Id, primary_key=True),
    Column("trigger_id", Id, ForeignKey("trigger.id"), nullable=False),
    Column("scheduled_time", UtcTime, nullable=False),
    Column("origin", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("domain", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("target_id", Id, ForeignKey("target.id"), nullable=False),
    Column("state", Text, nullable=False),
    Column("due_at", UtcTime, nullable=False),
    Column("first_due_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("lease_owner", Text),
    Column("first_claimed_at", UtcTime),
    Column("outcome_unknown", Boolean, nullable=False, server_default=text("false")),
    Column("utc_offset", Integer, nullable=False, server_default=text("0")),
    Column("parameters", OptionalDocument),
    Column("request_key", Text),
    Column("fired_at", UtcTime),
    Column("settled_at", UtcTime),
    Column("reason", Text),
    Column("target_run_id", Text),
    Column("result", Text),
    Column("result_at", UtcTime),
    Column("result_detail", Text),
    Column("report_due_at", UtcTime),
    Column("waits_for", Id),
    CheckConstraint(
        "state in ('scheduled', 'held', 'fired', 'failed', 'shadowed', 'cancelled')", name="state"
    ),
    CheckConstraint("origin in ('schedule', 'backfill', 'manual')", name="origin"),
    CheckConstraint("state <> 'cancelled' or origin = 'manual'", name="only_manual_runs_are_cancelled"),
    CheckConstraint("(origin = 'manual') = (request_key is not null)", name="manual_has_request_key"),
)
_NOT_MANUAL = text("origin <> 'manual'")
Index(
    "run_slot",
    run.c.trigger_id,
    run.c.scheduled_time,
    unique=True,
    sqlite_where=_NOT_MANUAL,
    postgresql_where=_NOT_MANUAL,
)
Index("run_name", run.c.project, run.c.domain, run.c.name, unique=True)
_SCHEDULED = text("state = 'scheduled'")
Index(
    "run_due",
    run.c.target_id,
    run.c.due_at,
    run.c.id,
    sqlite_where=_SCHEDULED,
    postgresql_where=_SCHEDULED,
)
Index("run_time", run.c.scheduled_time, run.c.id)
_PENDING = text("state in ('scheduled', 'held')")
Index(
    "run_pending",
    run.c.trigger_id,
    run.c.scheduled_time,
    sqlite_where=_PENDING,
    postgresql_where=_PENDING,
)
# Runs that their target has and that have not ended, and runs that wait for one of them.
_RUNNING = text("report_due_at is not null")
Index("run_report_due", run.c.report_due_at, sqlite_where=_RUNNING, postgresql_where=_RUNNING)
Index("run_running", run.c.trigger_id, sqlite_where=_RUNNING, postgresql_where=_RUNNING)
_MANUAL = text("origin = 'manual'")
Index(
    "run_manual",
    run.c.trigger_id,
    run.c.scheduled_time,
    run.c.id,
    sqlite_where=_MANUAL,
    postgresql_where=_MANUAL,
)
_UNUSUAL = text("state in ('held', 'failed', 'cancelled')")
Index(
    "run_unusual",
    run.c.state,
    run.c.scheduled_time,
    run.c.id,
    sqlite_where=_UNUSUAL,
    postgresql_where=_UNUSUAL,
)
_SETTLED = text("settled_at is not null")
Index("run_settled", run.c.settled_at, sqlite_where=_SETTLED, postgresql_where=_SETTLED)

skip = Table(
    "skip",
    metadata,
    Column("id", Id, primary_key=True),
    Column("trigger_id", Id, ForeignKey("trigger.id"), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("first_time", UtcTime, nullable=False),
    Column("last_time", UtcTime, nullable=False),
    Column("count", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("detail", Text, nullable=False, server_default=text("''")),
    Column("at", UtcTime, nullable=False),
)
Index("skip_slot", skip.c.trigger_id, skip.c.last_time)
Index("skip_first", skip.c.first_time, skip.c.id)
Index("skip_last", skip.c.last_time, skip.c.id)

backfill = Table(
    "backfill",
    metadata,
    Column("id", Id, primary_key=True),
    Column("trigger_id", Id, ForeignKey("trigger.id"), nullable=False),
    Column("from_time", UtcTime, nullable=False),
    Column("to_time", UtcTime, nullable=False),
    Column("cursor", UtcTime, nullable=False),
    Column("state", Text, nullable=False),
    Column("runs", Integer, nullable=False, server_default=text("0")),
    Column("created_by", Text, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    CheckConstraint("state in ('open', 'done', 'ended')", name="state"),
)
Index(
    "backfill_open",
    backfill.c.trigger_id,
    sqlite_where=text("state = 'open'"),
    postgresql_where=text("state = 'open'"),
)

attempt = Table(
    "attempt",
    metadata,
    Column("run_id", Id, ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("started_at", UtcTime, nullable=False),
    Column("answered_at", UtcTime, nullable=False),
    Column("answer", Text, nullable=False),
    Column("reason", Text),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Id, primary_key=True),
    Column("at", UtcTime, nullable=False),
    Column("who", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("detail", Document, nullable=False),
)
Index("audit_at", audit.c.at)

idempotency = Table(
    "idempotency",
    metadata,
    Column("key", Text, primary_key=True),
    Column("request_digest", Text, nullable=False),
    Column("status", Integer),
    Column("response", Text),
    Column("at", UtcTime, nullable=False),
)
Index("idempotency_at", idempotency.c.at)

local_run = Table(
    "local_run",
    metadata,
    Column("run_name", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    Column("exit_code", Integer),
    Column("pid", Integer),
    Column("output", LargeBinary, nullable=False),
    Column("output_total", BigInteger, nullable=False, server_default=text("0")),
    Column("detail", Text, nullable=False, server_default=text("''")),
)
Index(
    "local_run_live",
    local_run.c.owner,
    sqlite_where=text("state in ('starting', 'running')"),
    postgresql_where=text("state in ('starting', 'running')"),
)

schema_compatibility = Table(
    "schema_compatibility",
    metadata,
    # One row, which migrations write: the least revision that a program must be built for to work here.
    Column("readable_by", Text, primary_key=True),
)
