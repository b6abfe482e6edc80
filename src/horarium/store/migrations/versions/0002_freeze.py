"""Freezes of deployments and projects, the catch-up guard, and an index of what was settled when.

Columns with defaults and a table: a process of the release before goes on beside it, and knows no freeze.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TIME = sa.BigInteger().with_variant(sa.DateTime(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "freeze",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.CheckConstraint("kind in ('all', 'target', 'project', 'deployment')", name=op.f("freeze_kind")),
        sa.PrimaryKeyConstraint("kind", "key", name=op.f("freeze_pkey")),
    )
    op.add_column("trigger", sa.Column("frozen", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column(
        "target_allowance",
        sa.Column("guard_state", sa.Text(), server_default="none", nullable=False),
    )
    op.add_column("target_allowance", sa.Column("guard_from", TIME, nullable=True))
    op.add_column("target_allowance", sa.Column("guard_until", TIME, nullable=True))
    settled = sa.text("settled_at is not null")
    op.create_index("run_settled", "run", ["settled_at"], sqlite_where=settled, postgresql_where=settled)


def downgrade() -> None:
    """Refused by `migrations.downgrade` while anything is held by what goes here."""
    op.drop_index("run_settled", "run")
    # In SQL, as both databases know it: Alembic would copy SQLite's whole table.
    for table, column in (
        ("target_allowance", "guard_until"),
        ("target_allowance", "guard_from"),
        ("target_allowance", "guard_state"),
        ("trigger", "frozen"),
    ):
        op.execute(f'alter table "{table}" drop column {column}')
    op.drop_table("freeze")
