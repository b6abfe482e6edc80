"""The first schema"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TIME = sa.BigInteger().with_variant(sa.DateTime(timezone=True), "postgresql")
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOCUMENT = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("detail", DOCUMENT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("audit_pkey")),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index("audit_at", ["at"], unique=False)

    op.create_table(
        "deployment",
        sa.Column("id", ID, nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("spec", DOCUMENT, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("withdrawn", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("deployment_pkey")),
        sa.UniqueConstraint("project", "domain", "name", name=op.f("deployment_project_domain_name_key")),
    )
    op.create_table(
        "idempotency",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("response", sa.Text(), nullable=True),
        sa.Column("at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("idempotency_pkey")),
    )
    op.create_table(
        "local_run",
        sa.Column("run_name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("output", sa.LargeBinary(), nullable=False),
        sa.Column("output_total", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("run_name", name=op.f("local_run_pkey")),
    )
    with op.batch_alter_table("local_run", schema=None) as batch_op:
        batch_op.create_index(
            "local_run_live",
            ["owner"],
            unique=False,
            sqlite_where=sa.text("state in ('starting', 'running')"),
            postgresql_where=sa.text("state in ('starting', 'running')"),
        )

    op.create_table(
        "source",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("listed_at", TIME, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("source_pkey")),
    )
    op.create_table(
        "target",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("spec", DOCUMENT, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("withdrawn", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("target_pkey")),
        sa.UniqueConstraint("name", name=op.f("target_name_key")),
    )
    op.create_table(
        "trigger",
        sa.Column("id", ID, nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("deployment", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash_seed", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("cursor", TIME, nullable=False),
        sa.Column("plan_due_at", TIME, nullable=True),
        sa.Column("paused", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("pause_note", sa.Text(), nullable=True),
        sa.Column("paused_by", sa.Text(), nullable=True),
        sa.Column("paused_at", TIME, nullable=True),
        sa.Column("resume_at", TIME, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("zone_digest", sa.Text(), nullable=True),
        sa.Column("tzdata_version", sa.Text(), nullable=True),
        sa.Column("pruned_before", TIME, nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.CheckConstraint("status <> 'active' or plan_due_at is not null", name=op.f("trigger_never_stuck")),
        sa.CheckConstraint(
            "status in ('active', 'paused', 'finished', 'deleted')", name=op.f("trigger_status")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("trigger_pkey")),
        sa.UniqueConstraint(
            "project", "domain", "deployment", "name", name=op.f("trigger_project_domain_deployment_name_key")
        ),
    )
    with op.batch_alter_table("trigger", schema=None) as batch_op:
        batch_op.create_index(
            "trigger_plan_due",
            ["plan_due_at"],
            unique=False,
            sqlite_where=sa.text("plan_due_at is not null"),
            postgresql_where=sa.text("plan_due_at is not null"),
        )
        batch_op.create_index(
            "trigger_source", ["source", "project", "domain", "deployment", "name"], unique=False
        )
        batch_op.create_index(
            "trigger_unusual",
            ["status", "project", "domain", "deployment", "name"],
            unique=False,
            sqlite_where=sa.text("status <> 'active'"),
            postgresql_where=sa.text("status <> 'active'"),
        )
        batch_op.create_index(
            "trigger_error",
            ["project", "domain", "deployment", "name"],
            unique=False,
            sqlite_where=sa.text("error is not null"),
            postgresql_where=sa.text("error is not null"),
        )

    op.create_table(
        "backfill",
        sa.Column("id", ID, nullable=False),
        sa.Column("trigger_id", ID, nullable=False),
        sa.Column("from_time", TIME, nullable=False),
        sa.Column("to_time", TIME, nullable=False),
        sa.Column("cursor", TIME, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("runs", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.CheckConstraint("state in ('open', 'done', 'ended')", name=op.f("backfill_state")),
        sa.ForeignKeyConstraint(["trigger_id"], ["trigger.id"], name=op.f("backfill_trigger_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("backfill_pkey")),
    )
    with op.batch_alter_table("backfill", schema=None) as batch_op:
        batch_op.create_index(
            "backfill_open",
            ["trigger_id"],
            unique=False,
            sqlite_where=sa.text("state = 'open'"),
            postgresql_where=sa.text("state = 'open'"),
        )

    op.create_table(
        "run",
        sa.Column("id", ID, nullable=False),
        sa.Column("trigger_id", ID, nullable=False),
        sa.Column("scheduled_time", TIME, nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("target_id", ID, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("due_at", TIME, nullable=False),
        sa.Column("first_due_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("first_claimed_at", TIME, nullable=True),
        sa.Column("outcome_unknown", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("utc_offset", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("parameters", DOCUMENT, nullable=True),
        sa.Column("request_key", sa.Text(), nullable=True),
        sa.Column("fired_at", TIME, nullable=True),
        sa.Column("settled_at", TIME, nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("target_run_id", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(origin = 'manual') = (request_key is not null)", name=op.f("run_manual_has_request_key")
        ),
        sa.CheckConstraint("origin in ('schedule', 'backfill', 'manual')", name=op.f("run_origin")),
        sa.CheckConstraint(
            "state <> 'cancelled' or origin = 'manual'", name=op.f("run_only_manual_runs_are_cancelled")
        ),
        sa.CheckConstraint(
            "state in ('scheduled', 'held', 'fired', 'failed', 'cancelled')", name=op.f("run_state")
        ),
        sa.ForeignKeyConstraint(["target_id"], ["target.id"], name=op.f("run_target_id_fkey")),
        sa.ForeignKeyConstraint(["trigger_id"], ["trigger.id"], name=op.f("run_trigger_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("run_pkey")),
    )
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.create_index(
            "run_due",
            ["target_id", "due_at", "id"],
            unique=False,
            sqlite_where=sa.text("state = 'scheduled'"),
            postgresql_where=sa.text("state = 'scheduled'"),
        )
        batch_op.create_index("run_name", ["project", "domain", "name"], unique=True)
        batch_op.create_index(
            "run_pending",
            ["trigger_id", "scheduled_time"],
            unique=False,
            sqlite_where=sa.text("state in ('scheduled', 'held')"),
            postgresql_where=sa.text("state in ('scheduled', 'held')"),
        )
        batch_op.create_index(
            "run_slot",
            ["trigger_id", "scheduled_time"],
            unique=True,
            sqlite_where=sa.text("origin <> 'manual'"),
            postgresql_where=sa.text("origin <> 'manual'"),
        )
        batch_op.create_index("run_time", ["scheduled_time", "id"], unique=False)
        batch_op.create_index(
            "run_manual",
            ["trigger_id", "scheduled_time", "id"],
            unique=False,
            sqlite_where=sa.text("origin = 'manual'"),
            postgresql_where=sa.text("origin = 'manual'"),
        )
        batch_op.create_index(
            "run_unusual",
            ["state", "scheduled_time", "id"],
            unique=False,
            sqlite_where=sa.text("state in ('held', 'failed', 'cancelled')"),
            postgresql_where=sa.text("state in ('held', 'failed', 'cancelled')"),
        )

    op.create_table(
        "skip",
        sa.Column("id", ID, nullable=False),
        sa.Column("trigger_id", ID, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("first_time", TIME, nullable=False),
        sa.Column("last_time", TIME, nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["trigger_id"], ["trigger.id"], name=op.f("skip_trigger_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("skip_pkey")),
    )
    with op.batch_alter_table("skip", schema=None) as batch_op:
        batch_op.create_index("skip_slot", ["trigger_id", "last_time"], unique=False)
        batch_op.create_index("skip_first", ["first_time", "id"], unique=False)
        batch_op.create_index("skip_last", ["last_time", "id"], unique=False)

    op.create_table(
        "target_allowance",
        sa.Column("target_id", ID, autoincrement=False, nullable=False),
        sa.Column("tokens", sa.Float(), nullable=False),
        sa.Column("refilled_at", TIME, nullable=False),
        sa.Column("looked_at", TIME, nullable=False),
        sa.Column("frozen", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["target.id"], name=op.f("target_allowance_target_id_fkey")),
        sa.PrimaryKeyConstraint("target_id", name=op.f("target_allowance_pkey")),
    )
    op.create_table(
        "trigger_revision",
        sa.Column("trigger_id", ID, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("effective_from", TIME, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("spec", DOCUMENT, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.CheckConstraint("state in ('active', 'paused', 'deleted')", name=op.f("trigger_revision_state")),
        sa.ForeignKeyConstraint(
            ["trigger_id"], ["trigger.id"], name=op.f("trigger_revision_trigger_id_fkey")
        ),
        sa.PrimaryKeyConstraint("trigger_id", "number", name=op.f("trigger_revision_pkey")),
    )
    op.create_table(
        "attempt",
        sa.Column("run_id", ID, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("answered_at", TIME, nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("attempt_run_id_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", name=op.f("attempt_pkey")),
    )
    if op.get_bind().dialect.name == "postgresql":
        # Every fire writes a row of `run` several times. At the default of a fifth, dead rows of a large
        # history would pile up in `run_due` until a claim walks over more of them than of living ones.
        op.execute("alter table run set (autovacuum_vacuum_scale_factor = 0.01)")


def downgrade() -> None:
    op.drop_table("attempt")
    op.drop_table("trigger_revision")
    op.drop_table("target_allowance")
    with op.batch_alter_table("skip", schema=None) as batch_op:
        batch_op.drop_index("skip_last")
        batch_op.drop_index("skip_first")
        batch_op.drop_index("skip_slot")

    op.drop_table("skip")
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.drop_index(
            "run_unusual",
            sqlite_where=sa.text("state in ('held', 'failed', 'cancelled')"),
            postgresql_where=sa.text("state in ('held', 'failed', 'cancelled')"),
        )
        batch_op.drop_index(
            "run_manual",
            sqlite_where=sa.text("origin = 'manual'"),
            postgresql_where=sa.text("origin = 'manual'"),
        )
        batch_op.drop_index("run_time")
        batch_op.drop_index(
            "run_slot",
            sqlite_where=sa.text("origin <> 'manual'"),
            postgresql_where=sa.text("origin <> 'manual'"),
        )
        batch_op.drop_index(
            "run_pending",
            sqlite_where=sa.text("state in ('scheduled', 'held')"),
            postgresql_where=sa.text("state in ('scheduled', 'held')"),
        )
        batch_op.drop_index("run_name")
        batch_op.drop_index(
            "run_due",
            sqlite_where=sa.text("state = 'scheduled'"),
            postgresql_where=sa.text("state = 'scheduled'"),
        )

    op.drop_table("run")
    with op.batch_alter_table("backfill", schema=None) as batch_op:
        batch_op.drop_index(
            "backfill_open",
            sqlite_where=sa.text("state = 'open'"),
            postgresql_where=sa.text("state = 'open'"),
        )

    op.drop_table("backfill")
    with op.batch_alter_table("trigger", schema=None) as batch_op:
        batch_op.drop_index(
            "trigger_error",
            sqlite_where=sa.text("error is not null"),
            postgresql_where=sa.text("error is not null"),
        )
        batch_op.drop_index(
            "trigger_unusual",
            sqlite_where=sa.text("status <> 'active'"),
            postgresql_where=sa.text("status <> 'active'"),
        )
        batch_op.drop_index("trigger_source")
        batch_op.drop_index(
            "trigger_plan_due",
            sqlite_where=sa.text("plan_due_at is not null"),
            postgresql_where=sa.text("plan_due_at is not null"),
        )

    op.drop_table("trigger")
    op.drop_table("target")
    op.drop_table("source")
    with op.batch_alter_table("local_run", schema=None) as batch_op:
        batch_op.drop_index(
            "local_run_live",
            sqlite_where=sa.text("state in ('starting', 'running')"),
            postgresql_where=sa.text("state in ('starting', 'running')"),
        )

    op.drop_table("local_run")
    op.drop_table("idempotency")
    op.drop_table("deployment")
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.drop_index("audit_at")

    op.drop_table("audit")
