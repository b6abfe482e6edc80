"""Shadow: whose slots a revision's are, where a trigger is now, and a state for runs that called nobody.

A process of the release before knows no shadow: it would fire what is in it, so it must not start.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

readable_by = "0004"

BEFORE = "state in ('scheduled', 'held', 'fired', 'failed', 'cancelled')"
AFTER = "state in ('scheduled', 'held', 'fired', 'failed', 'shadowed', 'cancelled')"


def upgrade() -> None:
    for table in ("trigger", "trigger_revision"):
        op.add_column(table, sa.Column("shadow", sa.Boolean(), server_default=sa.false(), nullable=False))
    shadow = sa.text("shadow")
    op.create_index(
        "trigger_shadow",
        "trigger",
        ["project", "domain", "deployment", "name"],
        sqlite_where=shadow,
        postgresql_where=shadow,
    )
    _check_states(BEFORE, AFTER)


def downgrade() -> None:
    """Refused by `migrations.downgrade` while anything is in shadow, or was."""
    _check_states(AFTER, BEFORE)
    op.drop_index("trigger_shadow", "trigger")
    # In SQL, as both databases know it: Alembic would copy SQLite's whole table.
    for table in ("trigger_revision", "trigger"):
        op.execute(f'alter table "{table}" drop column shadow')


def _check_states(old: str, new: str) -> None:
    """Put one check of `run.state` in the place of another.

    SQLite has no statement for it, and a copy of the table would take a file of a million runs minutes (and
    its `drop table` the rows that refer to it). A check has no part in how rows are stored, so its text in
    the schema may be changed as the manual says: https://www.sqlite.org/lang_altertable.html#otheralter
    """
    if op.get_bind().dialect.name != "sqlite":
        op.drop_constraint(op.f("run_state"), "run", type_="check")
        op.create_check_constraint(op.f("run_state"), "run", new)
        return
    bind = op.get_bind()
    (version,) = bind.exec_driver_sql("pragma schema_version").one()
    bind.exec_driver_sql("pragma writable_schema = on")
    try:
        written = bind.exec_driver_sql(
            "update sqlite_master set sql = replace(sql, ?, ?)"
            " where type = 'table' and name = 'run' and instr(sql, ?) > 0",
            (old, new, old),
        ).rowcount
        if written != 1:
            raise RuntimeError(f"the table run has no check ({old})")
        bind.exec_driver_sql(f"pragma schema_version = {version + 1}")
    finally:
        bind.exec_driver_sql("pragma writable_schema = off")
