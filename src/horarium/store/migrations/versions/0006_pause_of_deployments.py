"""Pauses of deployments: whose, since when and why; and which revisions are paused with their deployment.

Columns with defaults and an index: a process of the release before goes on beside it. It does not know such
a pause: what is paused stays so there, but a trigger that it makes or edits in a paused deployment is active.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

readable_by = "0004"

TIME = sa.BigInteger().with_variant(sa.DateTime(timezone=True), "postgresql")


def upgrade() -> None:
    op.add_column("deployment", sa.Column("paused", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("deployment", sa.Column("pause_note", sa.Text(), nullable=True))
    op.add_column("deployment", sa.Column("paused_by", sa.Text(), nullable=True))
    op.add_column("deployment", sa.Column("paused_at", TIME, nullable=True))
    paused = sa.text("paused")
    op.create_index(
        "deployment_paused",
        "deployment",
        ["project", "domain", "name"],
        sqlite_where=paused,
        postgresql_where=paused,
    )
    op.add_column(
        "trigger_revision",
        sa.Column("deployment_paused", sa.Boolean(), server_default=sa.false(), nullable=False),
    )


def downgrade() -> None:
    """Refused by `migrations.downgrade` while a deployment is paused."""
    op.drop_index("deployment_paused", "deployment")
    # In SQL, as both databases know it: Alembic would copy SQLite's whole table.
    for table, column in (
        ("trigger_revision", "deployment_paused"),
        ("deployment", "paused_at"),
        ("deployment", "paused_by"),
        ("deployment", "pause_note"),
        ("deployment", "paused"),
    ):
        op.execute(f'alter table "{table}" drop column {column}')
