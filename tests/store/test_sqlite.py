"""What only SQLite has: a file that is locked, read-only, foreign or without a schema, and a live copy."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from horarium.errors import SchemaMismatch, StoreUnavailable
from horarium.store import sqlite
from horarium.store.sqlite import SqliteStore
from horarium.testing import VirtualClock
from tests.store.conftest import sqlite_back_door
from tests.store.world import NOW, World, at


@pytest.fixture
async def threaded(sqlite_file: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A store that gives up waiting for a lock after 50 ms."""
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 50)
    store = SqliteStore(sqlite_file, VirtualClock(NOW))
    await store.open()
    yield World(store, sqlite_back_door(sqlite_file))
    await store.close()


async def test_a_file_that_another_process_writes_to_for_too_long_is_unavailable(
    threaded: World, sqlite_file: Path
) -> None:
    await threaded.add("a")
    before = await threaded.everything()
    other = sqlite3.connect(sqlite_file, isolation_level=None)
    other.execute("begin immediate")
    try:
        with pytest.raises(StoreUnavailable, match=r"^database is locked$"):
            await threaded.pause("a", at("10:01"))
        with pytest.raises(StoreUnavailable, match="locked"):
            await threaded.claim(at("10:01"), look=False)
        assert await threaded.everything() == before  # readers are not in the way
    finally:
        other.execute("rollback")
        other.close()
    assert await threaded.pause("a", at("10:01")) != []


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_was_taken_away_is_unavailable_until_it_is_back(
    threaded: World, sqlite_file: Path, replaced: bool
) -> None:
    """SQLite itself would go on, and all that fires would be forgotten at the next start."""
    await threaded.add("a")
    parts = [path for path in sqlite_file.parent.iterdir() if path.name.startswith(sqlite_file.name)]
    for path in parts:
        path.rename(path.with_name("away-" + path.name))
    if replaced:
        sqlite_file.write_bytes(b"")
    for work in (threaded.pause("a", at("10:01")), threaded.claim(at("10:01"), look=False)):
        with pytest.raises(StoreUnavailable, match="another one" if replaced else "is gone"):
            await work
    with pytest.raises(StoreUnavailable, match="put it back"):
        await threaded.triggers()
    for path in parts:
        path.with_name("away-" + path.name).rename(path)
    assert await threaded.pause("a", at("10:01")) != []


async def test_a_read_only_database_is_unavailable_and_reads_go_on(threaded: World) -> None:
    await threaded.add("a")
    store = threaded.store
    assert isinstance(store, SqliteStore)
    await store._on_writer(lambda: store._connection.execute("pragma query_only = on"))
    with pytest.raises(StoreUnavailable, match="readonly"):
        await threaded.pause("a", at("10:01"))
    assert len(await threaded.triggers()) == 1
    await store._on_writer(lambda: store._connection.execute("pragma query_only = off"))
    assert await threaded.pause("a", at("10:01")) != []


async def test_a_full_disk_is_unavailable_and_changes_nothing(threaded: World) -> None:
    await threaded.add("a", "* * * * *")
    store = threaded.store
    assert isinstance(store, SqliteStore)
    (pages,) = await store._on_writer(lambda: store._connection.execute("pragma page_count").fetchone())
    await store._on_writer(lambda: store._connection.execute(f"pragma max_page_count = {pages}").fetchone())
    before = await threaded.everything()

    async def fill() -> None:
        for _ in range(50):
            await threaded.plan_all(NOW)
            await threaded.add("b", "* * * * *", parameters={"filler": "x" * 100_000})

    with pytest.raises(StoreUnavailable, match="full"):
        await fill()
    assert [item for item in await threaded.everything() if item[0] == "deployment"] == [
        item for item in before if item[0] == "deployment"
    ]
    await store._on_writer(lambda: store._connection.execute("pragma max_page_count = 1000000").fetchone())
    await threaded.add("b")


@pytest.mark.parametrize("inline", [False, True])
async def test_a_file_without_a_schema_or_with_another_is_refused_with_what_to_do(
    tmp_path: Path, sqlite_file: Path, inline: bool
) -> None:
    with pytest.raises(SchemaMismatch, match="horarium db upgrade"):
        await SqliteStore(tmp_path / "new.db", VirtualClock(NOW), inline=inline).open()
    with sqlite3.connect(sqlite_file) as raw:
        raw.execute("update alembic_version set version_num = '9999'")
        raw.execute("update schema_compatibility set readable_by = '9999'")
    raw.close()
    with pytest.raises(SchemaMismatch, match="newer Horarium"):
        await SqliteStore(sqlite_file, VirtualClock(NOW), inline=inline).open()


async def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("this is not a database, however long one looks at it" * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        await SqliteStore(path, VirtualClock(NOW)).open()


async def test_a_store_that_is_not_open_says_so(sqlite_file: Path) -> None:
    store = SqliteStore(sqlite_file, VirtualClock(NOW))
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.source_version("x")


async def test_a_backup_is_a_whole_copy_of_a_live_database(threaded: World, tmp_path: Path) -> None:
    await threaded.add("a")
    await threaded.plan(NOW)
    store = threaded.store
    assert isinstance(store, SqliteStore)
    copy = tmp_path / "copy.db"
    await store.backup(copy)
    with pytest.raises(FileExistsError):
        await store.backup(copy)
    second = SqliteStore(copy, VirtualClock(NOW))
    await second.open()
    try:
        copied = World(second, sqlite_back_door(copy))
        assert await copied.everything() == await threaded.everything()
    finally:
        await second.close()


async def test_its_clock_is_the_hosts(threaded: World) -> None:
    assert await threaded.store.clock() == NOW


async def test_what_was_written_is_there_after_the_next_open(sqlite_file: Path) -> None:
    store = SqliteStore(sqlite_file, VirtualClock(NOW))
    await store.open()
    first = World(store, sqlite_back_door(sqlite_file))
    await first.add("a")
    await first.plan(NOW)
    rows = await first.everything()
    await store.close()
    await store.open()
    try:
        assert await first.everything() == rows
        assert (await first.claim(NOW + timedelta(minutes=5))).runs != ()
    finally:
        await store.close()
