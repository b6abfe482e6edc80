"""The server: tables, transactions, row locks, and what a statement may see.

Committed rows are immutable tuples in a dict a table; an open transaction keeps what it wrote beside them,
and a commit puts that in, all at once. A statement reads what was committed when it began, and its own
transaction's writes. It takes no time; it can only wait, for a row lock or for another transaction's key.
It waits by raising `MustWait`, and when the others have ended it is run again from its beginning: with the
locks that it has, and with everything that was committed meanwhile hidden from it (`Reader.undo`). So it
arrives where it stood, and sees of the newer world only the newest version of each row that it locks: what
PostgreSQL does at READ COMMITTED.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

import asyncpg
from sqlalchemy import CheckConstraint, Float, Index, MetaData, UniqueConstraint
from sqlalchemy import Table as Schema
from sqlalchemy.types import JSON

Row: TypeAlias = tuple[Any, ...]
Key: TypeAlias = tuple[Any, ...]

KEY_SHARE, SHARE, NO_KEY_UPDATE, UPDATE = 1, 2, 3, 4
STRENGTHS = {"key share": KEY_SHARE, "share": SHARE, "no key update": NO_KEY_UPDATE, "update": UPDATE}
CONFLICTS = {
    KEY_SHARE: (UPDATE,),
    SHARE: (NO_KEY_UPDATE, UPDATE),
    NO_KEY_UPDATE: (SHARE, NO_KEY_UPDATE, UPDATE),
    UPDATE: (KEY_SHARE, SHARE, NO_KEY_UPDATE, UPDATE),
}

FOUND_BY: Mapping[str, Sequence[Sequence[str]]] = {
    "run": [("trigger_id",), ("target_id", "state"), ("project", "domain", "name")],
    "skip": [("trigger_id",)],
    "backfill": [("trigger_id",)],
    "trigger_revision": [("trigger_id",)],
    "trigger": [("project", "domain", "deployment", "name")],
    "target": [("name",)],
}
"""Columns by which rows are found without reading all; each table's key besides. Only speed depends on it."""


class MustWait(Exception):
    """A statement can't go on before one of these transactions has ended."""

    def __init__(self, others: Iterable[Transaction]) -> None:
        self.others = frozenset(others)


@dataclass(frozen=True, slots=True)
class Json:
    """A `jsonb` value: its text, in the order in which PostgreSQL keeps keys."""

    text: str

    @classmethod
    def of(cls, text: str) -> Json:
        return cls(json.dumps(_ordered(json.loads(text))))

    def load(self) -> Any:
        return json.loads(self.text)


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value, key=lambda text: (len(text), text))}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, eq=False)
class Unique:
    """`holds` says whether a row is in a partial index."""

    name: str
    columns: tuple[int, ...]
    holds: Callable[[Row], bool] | None = None

    def key(self, row: Row) -> Key | None:
        """What no other row may have; None where it has no say."""
        if self.holds is not None and not self.holds(row):
            return None
        found = tuple(row[column] for column in self.columns)
        return None if None in found else found


@dataclass(frozen=True, slots=True)
class Foreign:
    """Rows of `table` name one of `other`, by its key."""

    table: Table
    columns: tuple[int, ...]
    other: Table
    cascades: bool

    def key(self, row: Row) -> Key | None:
        found = tuple(row[column] for column in self.columns)
        return None if None in found else found


class Table:
    """A table as `store/tables.py` has it. `rows` are the committed ones."""

    def __init__(self, schema: Schema, compile_check: Callable[[str, Table], Callable[[Row], Any]]) -> None:
        self.name = schema.name
        self.columns = tuple(column.name for column in schema.columns)
        self.at = {name: number for number, name in enumerate(self.columns)}
        self.key_columns = tuple(self.at[column.name] for column in schema.primary_key.columns)
        self.numbered = self.columns[self.key_columns[0]] == "id"
        self.last_id = 0
        self.json = frozenset(
            number for number, column in enumerate(schema.columns) if isinstance(column.type, JSON)
        )
        self.floats = frozenset(
            number for number, column in enumerate(schema.columns) if isinstance(column.type, Float)
        )
        self.needed = tuple(number for number, column in enumerate(schema.columns) if not column.nullable)
        self.defaults: list[Callable[[Row], Any] | None] = [
            None if column.server_default is None else compile_check(str(column.server_default.arg), self)  # type: ignore[attr-defined]
            for column in schema.columns
        ]
        self.checks = [
            (str(item.name), compile_check(str(item.sqltext), self))
            for item in schema.constraints
            if isinstance(item, CheckConstraint)
        ]
        self.uniques = [Unique(f"{self.name}_pkey", self.key_columns)]
        for constraint in schema.constraints:
            if isinstance(constraint, UniqueConstraint):
                named = tuple(self.at[column.name] for column in constraint.columns)
                self.uniques.append(Unique(str(constraint.name), named))
        for index in sorted(schema.indexes, key=lambda item: str(item.name)):
            if index.unique:
                self.uniques.append(self._unique(index, compile_check))
        self.key_indexes = frozenset(
            column for unique in self.uniques if unique.holds is None for column in unique.columns
        )
        """Columns that another table may name: to change one takes the strongest lock."""
        self.foreign: list[Foreign] = []
        self.named_by: list[Foreign] = []
        self.rows: dict[Key, Row] = {}
        by = {self.key_columns, *(unique.columns for unique in self.uniques)}
        by |= {tuple(self.at[name] for name in names) for names in FOUND_BY.get(self.name, ())}
        self.indexes: dict[tuple[int, ...], dict[Key, dict[Key, None]]] = {columns: {} for columns in by}

    def _unique(self, index: Index, compile_check: Callable[[str, Table], Callable[[Row], Any]]) -> Unique:
        where = index.dialect_options["postgresql"]["where"]
        holds = None if where is None else compile_check(str(where), self)
        return Unique(str(index.name), tuple(self.at[column.name] for column in index.columns), holds)

    def key(self, row: Row) -> Key:
        return tuple([row[column] for column in self.key_columns])

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def put(self, key: Key, row: Row | None) -> None:
        """The committed row of this key from now on; None: there is none."""
        old = self.rows.get(key)
        for columns, found in self.indexes.items():
            if old is not None:
                value = tuple([old[column] for column in columns])
                if row is not None and value == tuple([row[column] for column in columns]):
                    continue
                del found[value][key]
            if row is not None:
                found.setdefault(tuple([row[column] for column in columns]), {})[key] = None
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row

    def filled(self, columns: Sequence[int], given: Iterable[Any]) -> Row:
        """A new row: what is `given` for these columns, and what the table gives the others."""
        blank = (None,) * len(self.columns)
        row: list[Any] = list(blank)
        for column, value in zip(columns, given, strict=True):
            row[column] = self.plain(column, value)
        for column, default in enumerate(self.defaults):
            if default is not None and column not in columns:
                row[column] = self.plain(column, default(blank))
        if self.numbered and row[self.at["id"]] is None:
            row[self.at["id"]] = self.next_id()
        return tuple(row)

    def plain(self, column: int, value: Any) -> Any:
        """A value as this column keeps it."""
        if value is not None and column in self.json and not isinstance(value, Json):
            return Json.of(value)
        if value is not None and column in self.floats:
            return float(value)
        return value


@dataclass(frozen=True, slots=True)
class Written:
    """One row that a transaction wrote; `op`: insert, update, delete. A deleted row is as it was."""

    table: Table
    op: str
    row: Row

    def values(self) -> dict[str, Any]:
        return dict(zip(self.table.columns, self.row, strict=True))


@dataclass(eq=False, slots=True)
class Transaction:
    """What one has written and locked. `ended`: it is over, either way; `waiters` are told."""

    number: int
    own: dict[Table, dict[Key, Row | None]] = field(default_factory=dict)
    taken: dict[tuple[Unique, Key], Key] = field(default_factory=dict)
    """What its own rows have of what no two may have, and which row has it."""
    log: list[Written] = field(default_factory=list)
    locks: dict[tuple[Table, Key], int] = field(default_factory=dict)
    waits_for: frozenset[Transaction] = frozenset()
    ended: bool = False
    waiters: list[asyncio.Future[bool]] = field(default_factory=list)
    failed: bool = False
    passed: set[tuple[Table, Key]] = field(default_factory=set)
    """Rows that its statements passed by, because somebody had them locked."""
    notes: list[tuple[str, str]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Reader:
    """One statement under way: what it sees."""

    server: Server
    transaction: Transaction
    undo: dict[Table, dict[Key, Row | None]] = field(default_factory=dict)
    """What was there when the statement began, of rows that were committed anew while it waited."""
    skipped: set[tuple[Table, Key]] = field(default_factory=set)
    """Rows that SKIP LOCKED passed by: they stay passed by when the statement is run again."""

    def rows(
        self, table: Table, columns: tuple[int, ...] | None = None, values: Iterable[Key] = ()
    ) -> Iterator[Row]:
        """The rows that the statement sees; with `columns`, those that have one of `values` there."""
        own, undo = self.transaction.own.get(table), self.undo.get(table)
        keys: Iterable[Key] = table.rows
        if columns is not None:
            index = table.indexes[columns]
            values = dict.fromkeys(value for value in values if None not in value)
            keys = [key for value in values for key in index.get(value, ())]
        if not own and not undo:
            for key in list(keys):
                yield table.rows[key]
            return
        over = {**(undo or {}), **(own or {})}
        for key in list(keys):
            if key not in over:
                yield table.rows[key]
        for row in over.values():
            if row is not None and (columns is None or tuple([row[item] for item in columns]) in values):
                yield row

    def lock(self, table: Table, key: Key, strength: int, *, skip: bool, nowait: bool) -> Row | None:
        """Lock a row; its newest version. None: it is gone, or it is passed by."""
        if (table, key) in self.skipped:
            return None
        others = self.server.in_the_way(self.transaction, table, key, strength)
        if others:
            if skip:
                self.skipped.add((table, key))
                self.transaction.passed.add((table, key))
                return None
            if nowait:
                raise asyncpg.LockNotAvailableError("could not obtain lock on row")
            raise MustWait(others)
        self.server.take(self.transaction, table, key, strength)
        return self.newest(table, key)

    def newest(self, table: Table, key: Key) -> Row | None:
        """The newest version that is committed or our own."""
        own = self.transaction.own.get(table)
        if own is not None and key in own:
            return own[key]
        return table.rows.get(key)


class Server:
    """One database. `metadata` says which tables; `compile_check` makes a function of an SQL condition.

    `committed` is called within each commit that wrote something, with what it wrote in order. It may raise
    nothing.
    """

    def __init__(
        self, metadata: MetaData, compile_check: Callable[[str, Table], Callable[[Row], Any]]
    ) -> None:
        self.tables = {schema.name: Table(schema, compile_check) for schema in metadata.sorted_tables}
        for schema in metadata.sorted_tables:
            for constraint in schema.foreign_key_constraints:
                table, other = self.tables[schema.name], self.tables[constraint.referred_table.name]
                columns = tuple(table.at[column.name] for column in constraint.columns)
                found = Foreign(table, columns, other, constraint.ondelete == "CASCADE")
                table.foreign.append(found)
                other.named_by.append(found)
        self.locks: dict[tuple[Table, Key], dict[Transaction, int]] = {}
        self.open: dict[Transaction, None] = {}
        self.waiting: dict[Reader, None] = {}
        self.committed: Callable[[Transaction], None] = lambda _: None
        self.notify: Callable[[str, str], None] = lambda channel, payload: None
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.deadlocks = 0
        self._numbers = 0

    def clear(self) -> None:
        """As it was made: no rows, no transactions, nobody told."""
        for table in self.tables.values():
            table.rows.clear()
            table.last_id = 0
            for found in table.indexes.values():
                found.clear()
        self.locks.clear()
        self.open.clear()
        self.waiting.clear()
        self.committed = lambda _: None
        self.deadlocks = self._numbers = 0

    def begin(self) -> Transaction:
        self._numbers += 1
        found = Transaction(self._numbers)
        self.open[found] = None
        return found

    def commit(self, transaction: Transaction) -> None:
        """All that it wrote is there at once; statements that wait go on not to see it."""
        for table, rows in transaction.own.items():
            for key, row in rows.items():
                old = table.rows.get(key)
                for reader in self.waiting:
                    if reader.transaction is not transaction:
                        reader.undo.setdefault(table, {}).setdefault(key, old)
                table.put(key, row)
        if transaction.log:
            self.committed(transaction)
        for channel, payload in dict.fromkeys(transaction.notes):
            self.notify(channel, payload)
        self._end(transaction)

    def rollback(self, transaction: Transaction) -> None:
        self._end(transaction)

    def _end(self, transaction: Transaction) -> None:
        self.open.pop(transaction, None)
        for place in transaction.locks:
            holders = self.locks[place]
            holders.pop(transaction, None)
            if not holders:
                del self.locks[place]
        transaction.locks.clear()
        transaction.own, transaction.taken, transaction.log = {}, {}, []
        transaction.ended = True
        for waiter in transaction.waiters:
            if not waiter.done():
                waiter.set_result(True)

    # locks

    def in_the_way(
        self, transaction: Transaction, table: Table, key: Key, strength: int
    ) -> list[Transaction]:
        """Who holds a lock on the row that this one does not go with."""
        conflicts = CONFLICTS[strength]
        return [
            other
            for other, held in self.locks.get((table, key), {}).items()
            if other is not transaction and held in conflicts
        ]

    def take(self, transaction: Transaction, table: Table, key: Key, strength: int) -> None:
        place = (table, key)
        holders = self.locks.setdefault(place, {})
        holders[transaction] = transaction.locks[place] = max(strength, holders.get(transaction, 0))

    async def run(
        self, transaction: Transaction, work: Callable[[Reader], Any], patience: float | None
    ) -> Any:
        """A statement's result. `patience` is the session's `lock_timeout` in seconds; None: for ever."""
        reader = Reader(self, transaction)
        try:
            while True:
                if transaction.ended:
                    raise asyncpg.ConnectionDoesNotExistError("the server has ended this session")
                try:
                    return work(reader)
                except MustWait as wait:
                    self.waiting[reader] = None
                    await self._wait(transaction, wait.others, patience)
        finally:
            self.waiting.pop(reader, None)
            transaction.waits_for = frozenset()

    async def _wait(
        self, transaction: Transaction, others: frozenset[Transaction], patience: float | None
    ) -> None:
        """Until one of `others` has ended. Who closes a circle is sent back, at once."""
        transaction.waits_for = others
        seen: set[Transaction] = set()
        rest = list(others)
        while rest:
            other = rest.pop()
            if other is transaction:
                self.deadlocks += 1
                raise asyncpg.DeadlockDetectedError("deadlock detected")
            if other not in seen:
                seen.add(other)
                rest += other.waits_for
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        for other in others:
            other.waiters.append(waiter)
        timer = None if patience is None else loop.call_later(patience, _give_up, waiter)
        try:
            if not await waiter:
                raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
        finally:
            if timer is not None:
                timer.cancel()
            for other in others:
                other.waiters.remove(waiter)

    # writing

    def insert(self, reader: Reader, table: Table, rows: Sequence[Row], *, ignore: bool) -> list[Row]:
        """The rows that were new; with `ignore`, one whose key is taken is left out."""
        new: dict[Key, Row] = {}
        beside: dict[tuple[Unique, Key], Key] = {}
        for row in rows:
            self._check(table, row)
            taken = self._taken(reader, table, row, beside)
            if taken is None:
                new[table.key(row)] = row
                beside |= _values(table, row)
            elif not ignore:
                raise _unique(taken)
        for row in new.values():
            self._check_foreign(reader, table, row)
        for key, row in new.items():
            self._write(reader.transaction, table, key, row, "insert")
        return list(new.values())

    def update(self, reader: Reader, table: Table, rows: Mapping[Key, Row]) -> None:
        """Write new versions of rows that are locked."""
        beside: dict[tuple[Unique, Key], Key] = {}
        for key, row in rows.items():
            if table.key(row) != key:
                raise NotImplementedError(f"a statement that changes the key of {table.name}")
            self._check(table, row)
            old = reader.newest(table, key)
            assert old is not None
            if any(item.key(row) != item.key(old) for item in table.uniques):
                taken = self._taken(reader, table, row, beside, updated=key)
                if taken is not None:
                    raise _unique(taken)
                beside |= _values(table, row)
            for foreign in table.foreign:
                if foreign.key(row) != foreign.key(old):
                    self._check_foreign(reader, table, row)
        for key, row in rows.items():
            self._write(reader.transaction, table, key, row, "update")

    def delete(self, reader: Reader, table: Table, keys: Iterable[Key]) -> None:
        """Delete rows that are locked, and those that name them where the schema says so."""
        keys = list(keys)
        follow: list[tuple[Table, Key]] = []
        for foreign in table.named_by:
            named = set(keys)
            if foreign.columns in foreign.table.indexes:
                rows = reader.rows(foreign.table, foreign.columns, keys)
            else:
                rows = reader.rows(foreign.table)
            for row in rows:
                if foreign.key(row) in named:
                    if not foreign.cascades:
                        raise asyncpg.ForeignKeyViolationError(f"{foreign.table.name} names {table.name}")
                    follow.append((foreign.table, foreign.table.key(row)))
        for other, key in follow:
            reader.lock(other, key, UPDATE, skip=False, nowait=False)
        for other, key in follow:
            self._write(reader.transaction, other, key, None, "delete")
        for key in keys:
            self._write(reader.transaction, table, key, None, "delete")

    def _write(self, transaction: Transaction, table: Table, key: Key, row: Row | None, op: str) -> None:
        own = transaction.own.setdefault(table, {})
        shown = row if row is not None else own.get(key) or table.rows.get(key)
        assert shown is not None
        before = own.get(key)
        if before is not None:
            for place in _values(table, before):
                transaction.taken.pop(place, None)
        if row is not None:
            transaction.taken |= _values(table, row)
        own[key] = row
        transaction.log.append(Written(table, op, shown))

    def _check(self, table: Table, row: Row) -> None:
        for column in table.needed:
            if row[column] is None:
                raise asyncpg.NotNullViolationError(
                    f'null value in column "{table.columns[column]}" of relation "{table.name}"'
                )
        for name, holds in table.checks:
            if holds(row) is False:
                raise asyncpg.CheckViolationError(f'row of "{table.name}" violates check constraint "{name}"')

    def _taken(
        self,
        reader: Reader,
        table: Table,
        row: Row,
        beside: Mapping[tuple[Unique, Key], Key],
        *,
        updated: Key | None = None,
    ) -> Unique | None:
        """The constraint by which another row than the `updated` one is in the way, seen or not.

        Waits for one that may yet go, or come, or be changed. `beside` is what the rows have that the same
        statement writes.
        """
        mine = reader.transaction
        own = mine.own.get(table, {})
        for place in _values(table, row):
            unique, value = place
            if any(place in taken and taken[place] != updated for taken in (beside, mine.taken)):
                return unique
            there = [
                key
                for key in table.indexes[unique.columns].get(value, ())
                if key != updated and key not in own and unique.key(table.rows[key]) == value
            ]
            unsure = [
                other
                for other in self.open
                if other is not mine
                and (
                    (place in other.taken and other.taken[place] != updated)
                    or any(key in other.own.get(table, ()) for key in there)
                )
            ]
            if unsure:
                raise MustWait(unsure)
            if there:
                return unique
        return None

    def _check_foreign(self, reader: Reader, table: Table, row: Row) -> None:
        for foreign in table.foreign:
            key = foreign.key(row)
            if key is None:
                continue
            if reader.newest(foreign.other, key) is None or (
                reader.lock(foreign.other, key, KEY_SHARE, skip=False, nowait=False) is None
            ):
                raise asyncpg.ForeignKeyViolationError(f"{table.name} names no row of {foreign.other.name}")


def _values(table: Table, row: Row) -> dict[tuple[Unique, Key], Key]:
    """What this row has of what no two may have."""
    key = table.key(row)
    return {(unique, value): key for unique in table.uniques if (value := unique.key(row)) is not None}


def _unique(found: Unique) -> asyncpg.UniqueViolationError:
    return asyncpg.UniqueViolationError(f'duplicate key value violates unique constraint "{found.name}"')


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
