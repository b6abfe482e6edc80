"""The shipped PostgreSQL store on a PostgreSQL in memory.

Everything above the driver is the shipped code: `PostgresStore`, SQLAlchemy's engine and pool, its compiler,
the text of every statement. Below it, instead of asyncpg's connection and a server, are `Session` and
`Server`. They have no sockets, threads or clock of their own, so that on a seeded event loop the same seed
gives the same order of statements.

What is modelled, as PostgreSQL does it at READ COMMITTED:

- a statement sees what was committed when it began, and its own transaction's writes; nothing of it shows
  before the commit, and a transaction that fails or loses its connection leaves nothing;
- the four strengths of row locks: those of `FOR …`, of UPDATE and DELETE, and of a foreign key on the row
  that it names; SKIP LOCKED and NOWAIT; locks are held until the transaction ends;
- after a wait only the rows of the statement's own snapshot are looked at again, each in its newest version,
  beside the old versions of everything else; rows that became visible meanwhile are not seen;
- two inserts of one key: the second waits, then fails or, with ON CONFLICT DO NOTHING, does nothing;
- constraints of `store/tables.py`: keys, partial unique indexes, checks, NOT NULL, foreign keys with CASCADE;
- deadlocks, the lock timeout, and NOTIFY at the commit.

What is not:

- who of several that wait for a row is next: PostgreSQL mostly keeps their order, here chance decides;
- a deadlock is found at once and costs the one that closes the circle, not the one that has waited a second;
- a statement takes no time: others come in between statements and while it waits, never inside its reading;
- a query of WITH is worked out whole before what follows reads it; plans, their order of rows where none is
  asked for, and statistics are not PostgreSQL's;
- other isolation levels, savepoints, advisory and table locks, DDL, and whatever else no statement of
  Horarium's uses: `NotSpoken` is raised. Migrations are not run; the schema is that of `store/tables.py`.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from horarium.clock import Clock
from horarium.store.postgres import Limits, PostgresStore
from horarium.store.tables import metadata
from tests.memory.queries import Compiled, Result, compile_condition, compile_statement
from tests.memory.server import Json, Server, Transaction

_OPENING = {
    "show standard_conforming_strings": "on",
    "show transaction isolation level": "read committed",
    "show default_transaction_isolation": "read committed",
}
"""What SQLAlchemy asks of a server when it meets it first."""


_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_ALIAS = {"TIMESTAMP WITH TIME ZONE": "timestamptz"}


class Database:
    """One server, and the sessions on it. `before` is awaited before each statement and each commit, with the
    session: others may go first there, and it may raise what a broken connection raises."""

    def __init__(self) -> None:
        self.server = Server(metadata, compile_condition)
        self.before: Callable[[Session, str], Awaitable[None]] = _nothing
        self.sessions: list[Session] = []
        self.server.notify = self._notify
        self._compiled: dict[str, Compiled] = {}

    def engine(self, limits: Limits, made: Callable[[Session], None], **rest: Any) -> AsyncEngine:
        """SQLAlchemy's engine, whose connections are sessions here; `made` is told of each."""

        async def connected() -> Session:
            session = Session(self, limits.lock.total_seconds())
            self.sessions.append(session)
            made(session)
            return session

        return create_async_engine(
            "postgresql+asyncpg://", connect_args={"async_creator_fn": connected}, **rest
        )

    def clear(self) -> None:
        """As it was made: no rows, no sessions. Statements stay compiled, which is most of the work."""
        self.sessions.clear()
        self.before = _nothing
        self.server.clear()

    def end(self, owner: object) -> None:
        """End all sessions of an owner, as a server does whose client is gone."""
        for session in list(self.sessions):
            if session.owner is owner:
                session.terminate()

    def compiled(self, text: str) -> Compiled:
        found = self._compiled.get(text)
        if found is None:
            found = self._compiled[text] = compile_statement(text, self.server)
        return found

    def _notify(self, channel: str, payload: str) -> None:
        for session in self.sessions:
            for listener in session.listeners.get(channel, ()):
                listener(session, 0, channel, payload)


async def _nothing(session: Session, what: str) -> None:
    await asyncio.sleep(0)


class Answer(tuple[Any, ...]):
    """A row as the driver gives it: by number, and by name."""

    names: dict[str, int]

    def __getitem__(self, item: Any) -> Any:
        return tuple.__getitem__(self, self.names[item] if isinstance(item, str) else item)

    def keys(self) -> list[str]:
        return list(self.names)


@dataclass(frozen=True)
class _Type:
    """`oid` is `float8`'s, which SQLAlchemy leaves as it is; it asks of numbers only."""

    oid: int = 701
    name: str = ""
    kind: str = "scalar"
    schema: str = "pg_catalog"


@dataclass(frozen=True)
class _Attribute:
    name: str
    type: _Type = _Type()


class Session:
    """What asyncpg's connection is to the store, on a server in memory. One transaction at a time."""

    def __init__(self, database: Database, patience: float | None) -> None:
        self.database = database
        self.owner: Any = None
        """Whose it is; for whoever breaks connections."""
        self.transaction_open: Transaction | None = None
        self.listeners: dict[str, list[Callable[..., object]]] = {}
        self._terminations: list[Callable[..., object]] = []
        self._patience = patience
        self._closed = False
        self._busy = False

    # statements

    async def fetch(self, statement: str, *given: Any) -> list[Answer]:
        return _answers(await self._run(statement, given))

    async def fetchrow(self, statement: str, *given: Any) -> Answer | None:
        rows = await self.fetch(statement, *given)
        return rows[0] if rows else None

    async def fetchval(self, statement: str, *given: Any) -> Any:
        row = await self.fetchrow(statement, *given)
        return row[0] if row is not None else None

    async def execute(self, statement: str, *given: Any) -> str:
        result = await self._run(statement, given)
        return f"{result.verb} {result.count}"

    async def executemany(self, statement: str, many: Sequence[Sequence[Any]]) -> None:
        for given in many:
            await self._run(statement, given)

    async def copy_records_to_table(
        self, table: str, *, columns: Sequence[str], records: Iterable[Sequence[Any]]
    ) -> str:
        """COPY, as the one INSERT that does the same: it writes all rows or fails."""
        kinds = [metadata.tables[table].c[name].type.compile(_DIALECT) for name in columns]
        arrays = ", ".join(f"${number}::{_ALIAS.get(kind, kind)}[]" for number, kind in enumerate(kinds, 1))
        names = ", ".join(columns)
        statement = f"insert into {table} ({names}) select s.* from unnest({arrays}) s({names})"
        return await self.execute(statement, *(list(column) for column in zip(*records, strict=True)))

    async def prepare(self, statement: str, *, name: str | None = None) -> Prepared:
        return Prepared(self, statement)

    async def _run(self, statement: str, given: Sequence[Any]) -> Result:
        await self.turn(statement)
        known = _OPENING.get(statement.strip())
        if known is not None:
            return Result((statement.split()[-1],), [(known,)], 1, "SELECT")
        open_one = self.transaction_open
        if open_one is not None and open_one.failed:
            raise asyncpg.InFailedSQLTransactionError("current transaction is aborted")
        transaction = open_one or self.database.server.begin()
        compiled = self.database.compiled(statement)
        parameters = [_plain(value) for value in given]
        self._busy = True
        try:
            result: Result = await self.database.server.run(
                transaction, lambda reader: compiled.run(reader, parameters), self._patience
            )
        except BaseException:
            transaction.failed = True
            if open_one is None:
                self.database.server.rollback(transaction)
            raise
        finally:
            self._busy = False
        if open_one is None:
            self.database.server.commit(transaction)
        return result

    async def turn(self, what: str) -> None:
        """Others may go first."""
        self._must_live()
        if self._busy:
            raise asyncpg.InterfaceError("cannot perform operation: another operation is in progress")
        await self.database.before(self, what)
        self._must_live()

    def _must_live(self) -> None:
        if self._closed:
            raise asyncpg.InterfaceError("connection is closed")

    # the connection

    def transaction(self, **_: Any) -> _Block:
        return _Block(self)

    def is_in_transaction(self) -> bool:
        return self.transaction_open is not None

    def is_closed(self) -> bool:
        return self._closed

    async def close(self, timeout: float | None = None) -> None:
        self.terminate()

    def terminate(self) -> None:
        """The server rolls back what was open, at once."""
        if self._closed:
            return
        self._closed = True
        open_one, self.transaction_open = self.transaction_open, None
        if open_one is not None:
            self.database.server.rollback(open_one)
        self.database.sessions.remove(self)
        for told in self._terminations:
            told(self)

    async def set_type_codec(self, *_: Any, **__: Any) -> None:
        """A document comes and goes as the codec of SQLAlchemy's dialect would have it."""

    async def reload_schema_state(self) -> None:
        """The schema never changes."""

    async def add_listener(self, channel: str, callback: Callable[..., object]) -> None:
        self.listeners.setdefault(channel, []).append(callback)

    def add_termination_listener(self, callback: Callable[..., object]) -> None:
        self._terminations.append(callback)


class Prepared:
    """A statement that SQLAlchemy keeps."""

    def __init__(self, session: Session, statement: str) -> None:
        self._session = session
        self._statement = statement
        self._status = ""

    def get_attributes(self) -> list[_Attribute]:
        if self._statement.strip() in _OPENING:
            return [_Attribute("show")]
        return [_Attribute(name) for name in self._session.database.compiled(self._statement).names or ()]

    async def fetch(self, *given: Any) -> list[Answer]:
        result = await self._session._run(self._statement, given)
        self._status = f"{result.verb} {result.count}"
        return _answers(result)

    def get_statusmsg(self) -> str:
        return self._status


class _Block:
    """asyncpg's transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def start(self) -> None:
        session = self._session
        await session.turn("begin")
        if session.transaction_open is not None:
            raise NotImplementedError("a savepoint")
        session.transaction_open = session.database.server.begin()

    async def commit(self) -> None:
        session = self._session
        await session.turn("commit")
        open_one, session.transaction_open = session.transaction_open, None
        assert open_one is not None
        if open_one.failed:
            session.database.server.rollback(open_one)
        else:
            session.database.server.commit(open_one)

    async def rollback(self) -> None:
        session = self._session
        open_one, session.transaction_open = session.transaction_open, None
        if open_one is not None:
            session.database.server.rollback(open_one)


def _plain(value: Any) -> Any:
    if type(value) in (int, str, bool, float, type(None)):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value


_ANSWERS: dict[tuple[str, ...], type[Answer]] = {}


def _answers(result: Result) -> list[Answer]:
    if result.names is None:
        return []
    made = _ANSWERS.get(result.names)
    if made is None:
        names: dict[str, int] = {}
        for number, name in enumerate(result.names):
            names.setdefault(name, number)
        made = _ANSWERS[result.names] = type("Answer", (Answer,), {"names": names, "__slots__": ()})
    return [made([value.load() if type(value) is Json else value for value in row]) for row in result.rows]


class MemoryStore(PostgresStore):
    """See the module. Several stores may be on one `database`, as replicas are."""

    def __init__(self, database: Database, clock: Clock | None = None, *, owner: object = None, **rest: Any):
        super().__init__("postgresql://memory", clock, **rest)
        self._database = database
        self._owner = owner

    async def open(self) -> None:
        def made(session: Session) -> None:
            session.owner = self._owner
            self._made.add(session)

        self._engine = self._database.engine(
            self._limits,
            made,
            pool_size=self._pool,
            max_overflow=0,
            pool_timeout=self._limits.answer.total_seconds(),
            isolation_level="AUTOCOMMIT",
        )
