"""One suite, every store: SQLite with its thread, SQLite inline, PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy import Executable

from horarium.store import migrations
from horarium.store.base import Store
from horarium.store.sqlite import SqliteStore, engine
from horarium.testing import VirtualClock
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


@pytest.fixture(params=["sqlite", "sqlite-inline"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
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


def sqlite_back_door(path: Path) -> Callable[[Executable], Awaitable[None]]:
    async def run_sql(statement: Executable) -> None:
        made = engine(str(path))
        try:
            with made.connect() as connection, connection.begin():
                connection.execute(statement)
        finally:
            made.dispose()

    return run_sql
