"""Runs that have not ended: when their target is asked again, what it said, and what waits for them.

Columns that may be null, and indexes: a process of the release before goes on beside it. It does not know
`overlap`, and claims runs that should wait.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

readable_by = "0004"

TIME = sa.BigInteger().with_variant(sa.DateTime(timezone=True), "postgresql")
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("run", sa.Column("result_at", TIME, nullable=True))
    op.add_column("run", sa.Column("result_detail", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("report_due_at", TIME, nullable=True))
    op.add_column("run", sa.Column("waits_for", ID, nullable=True))
    running = sa.text("report_due_at is not null")
    for name, column in (("run_report_due", "report_due_at"), ("run_running", "trigger_id")):
        op.create_index(name, "run", [column], sqlite_where=running, postgresql_where=running)


def downgrade() -> None:
    op.drop_index("run_running", "run")
    op.drop_index("run_report_due", "run")
    for column in ("waits_for", "report_due_at", "result_detail", "result_at"):
        op.execute(f'alter table "run" drop column {column}')
