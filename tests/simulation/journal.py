"""What a store call wrote, row by row, in order.

SQLite tells through triggers of the test's own: each write of a watched table calls a Python function inside
the transaction. It notes the row; and it can fail, so that a call breaks off in the middle of its
transaction, as a full disk or a dying database does. The PostgreSQL in memory keeps a log, and tells at the
commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from horarium.core.instant import to_micros
from tests.memory.server import Written
from tests.simulation.oracle import Entry

COLUMNS: dict[str, Sequence[str]] = {
    "trigger": (
        "id",
        "deployment",
        "name",
        "revision",
        "status",
        "cursor",
        "plan_due_at",
        "paused",
        "resume_at",
        "error",
    ),
    "trigger_revision": (
        "trigger_id",
        "number",
        "effective_from",
        "state",
        "shadow",
        "deployment_paused",
    ),
    "run": (
        "id",
        "trigger_id",
        "scheduled_time",
        "origin",
        "name",
        "revision",
        "target_id",
        "state",
        "due_at",
        "first_due_at",
        "expires_at",
        "attempt",
        "lease_owner",
        "first_claimed_at",
        "outcome_unknown",
        "request_key",
        "reason",
        "result",
        "fired_at",
        "report_due_at",
        "waits_for",
    ),
    "skip": ("id", "trigger_id", "revision", "first_time", "last_time", "count", "reason", "at"),
    "backfill": ("id", "trigger_id", "from_time", "to_time", "cursor", "state"),
    "target_allowance": ("target_id", "tokens", "refilled_at", "looked_at"),
}


class Torn(Exception):
    """The database broke off in the middle of a transaction."""


class Journal:
    """The rows written since `begin`, in order. `torn_at` is after how many rows the database breaks off."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._entries: list[Entry] = []
        self.torn_at: int | None = None
        for table, columns in COLUMNS.items():
            for op in ("insert", "update", "delete"):
                which = "old" if op == "delete" else "new"
                name = f"note_{table}_{op}"
                connection.create_function(name, len(columns), self._noter(table, op, columns))
                values = ", ".join(f'{which}."{column}"' for column in columns)
                connection.execute(f'drop trigger if exists temp."{name}"')
                connection.execute(
                    f'create temp trigger "{name}" after {op} on main."{table}"'
                    f" begin select {name}({values}); end"
                )

    @property
    def changes(self) -> int:
        """How many rows were ever written, watched or not, kept or not."""
        return self._connection.total_changes

    def begin(self, torn_at: int | None = None) -> None:
        self._entries = []
        self.torn_at = torn_at

    def take(self) -> list[Entry]:
        found, self._entries = self._entries, []
        self.torn_at = None
        return found

    def _noter(self, table: str, op: str, columns: Sequence[str]) -> Any:
        def note(*values: Any) -> None:
            if self.torn_at is not None and len(self._entries) >= self.torn_at:
                raise Torn
            self._entries.append(Entry(table, op, dict(zip(columns, values, strict=True))))

        return note


def entries_of(log: Iterable[Written]) -> list[Entry]:
    """The watched rows of a transaction in memory, as SQLite would have told them."""
    found: list[Entry] = []
    for item in log:
        columns = COLUMNS.get(item.table.name)
        if columns is not None:
            row = item.values()
            found.append(Entry(item.table.name, item.op, {name: _micros(row[name]) for name in columns}))
    return found


def _micros(value: Any) -> Any:
    return to_micros(value) if isinstance(value, datetime) else value
