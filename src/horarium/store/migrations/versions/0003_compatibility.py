"""Who may work on this schema, said by the database itself; and an index to let old idempotency keys go by.

A table and an index: a process of the release before goes on beside it. Programs from here on look at the
mark when they start, so that one of them starts on a later schema too, if that says so.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

readable_by = "0002"


def upgrade() -> None:
    op.create_table(
        "schema_compatibility",
        sa.Column("readable_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("readable_by", name=op.f("schema_compatibility_pkey")),
    )
    op.create_index("idempotency_at", "idempotency", ["at"])


def downgrade() -> None:
    op.drop_index("idempotency_at", "idempotency")
    op.drop_table("schema_compatibility")
