"""The migrations make exactly the tables that the program describes."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import IntegrityError

from horarium.core.run import RunState
from horarium.errors import Conflict, SchemaMismatch
from horarium.store import migrations
from horarium.store.sqlite import SqliteStore, downgrade_sqlite, engine, migrate_sqlite
from horarium.store.tables import metadata
from horarium.testing import VirtualClock
from tests.store.conftest import migrate_file, sqlite_back_door
from tests.store.world import NOW, World, at, entry, fired, listing


def differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(
        connection, opts={"compare_type": True, "compare_server_default": False}
    )
    return list(compare_metadata(context, metadata))


def test_the_migrated_tables_are_those_of_tables_py(sqlite_file: Path) -> None:
    made = engine(str(sqlite_file))
    with made.connect() as connection:
        assert differences(connection) == []
        assert shapes(connection) == created_directly(sqlite_file.with_suffix(".direct"))
    made.dispose()


def created_directly(path: Path) -> object:
    """The shape that `tables.py` itself makes, which has no history."""
    made = engine(str(path))
    with made.connect() as connection, connection.begin():
        metadata.create_all(connection)
        found = shapes(connection)
    made.dispose()
    return found


def shapes(connection: Connection) -> object:
    """What compare_metadata does not compare: checks, unique keys, partial indexes, defaults."""
    there = inspect(connection)
    return {
        table: (
            sorted((item["name"], item["sqltext"]) for item in there.get_check_constraints(table)),
            sorted(
                (item["name"], tuple(item["column_names"])) for item in there.get_unique_constraints(table)
            ),
            sorted(
                (
                    str(item["name"]),
                    tuple(str(column) for column in item["column_names"]),
                    bool(item["unique"]),
                    str(item.get("dialect_options", {}).get(f"{connection.dialect.name}_where", "")),
                )
                for item in there.get_indexes(table)
            ),
            [
                (item["name"], str(item["type"]), item["nullable"], _default(item["default"]))
                for item in sorted(there.get_columns(table), key=lambda column: column["name"])
            ],
        )
        for table in there.get_table_names()
        if table != "alembic_version"
    }


def _default(value: object) -> str:
    """`false` and `0` are one default on SQLite, which has no truth values of its own."""
    return {"false": "0", "None": ""}.get(str(value), str(value))


def test_upgrading_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "twice.db"
    migrate_file(path)
    migrate_file(path)
    made = engine(str(path))
    with made.connect() as connection:
        assert migrations.current(connection) == migrations.head()
        migrations.check(connection)
    made.dispose()


def test_history_is_a_line_in_the_order_of_the_files_names() -> None:
    """`head` and `check` go by the names, because Alembic takes longer to load than most commands."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    script = ScriptDirectory.from_config(config)
    revisions = [item.revision for item in script.walk_revisions()]
    assert list(reversed(revisions)) == list(migrations._known())
    assert script.get_heads() == [migrations.head()]


def test_an_older_and_an_unknown_schema_are_refused_with_what_to_do(sqlite_file: Path) -> None:
    made = engine(str(sqlite_file))
    with made.connect() as connection, connection.begin():
        connection.execute(text("update alembic_version set version_num = 'from-the-future'"))
        with pytest.raises(SchemaMismatch, match=r"does not know.*it was made by a newer Horarium"):
            migrations.check(connection)
        connection.execute(text("delete from alembic_version"))
        with pytest.raises(SchemaMismatch, match="horarium db upgrade"):
            migrations.check(connection)
    made.dispose()


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A file that a newer release has migrated, with a revision that says which programs can work on it."""

    def migrate(readable_by: str) -> Path:
        history = tmp_path / "newer"
        shutil.copytree(Path(migrations.__file__).parent, history)
        (history / "versions" / "9000_next.py").write_text(
            f"""
from alembic import op
revision, down_revision, branch_labels, depends_on = "9000", "{migrations.head()}", None, None
readable_by = "{readable_by}"

def upgrade():
    op.execute("alter table run add column priority integer not null default 0")

def downgrade():
    op.execute("alter table run drop column priority")
"""
        )
        path = tmp_path / "newer.db"
        with monkeypatch.context() as patch:
            patch.setattr(migrations, "_HERE", history)
            migrations._known.cache_clear()
            assert migrate_sqlite(path) == (None, "9000")
        migrations._known.cache_clear()
        return path

    return migrate


async def test_a_newer_schema_that_was_only_added_to_is_worked_on_and_left_as_it_is(
    newer: Callable[[str], Path],
) -> None:
    path = newer(migrations.head())
    assert migrate_sqlite(path) == ("9000", "9000")
    store = SqliteStore(path, VirtualClock(NOW), inline=True)
    await store.open()
    world = World(store, sqlite_back_door(path))
    await world.add("a")
    await world.plan(NOW)
    (item,) = (await world.claim(at("10:05"))).runs
    await world.settle(fired(item.run, at("10:05")), now=at("10:05"))
    assert (await world.runs())[0].state is RunState.FIRED
    await store.close()


async def test_a_newer_schema_that_needs_newer_programs_is_refused_with_what_to_do(
    newer: Callable[[str], Path],
) -> None:
    path = newer("9000")
    for attempt in (SqliteStore(path, VirtualClock(NOW), inline=True).open, migrated(path)):
        with pytest.raises(SchemaMismatch) as refused:
            await attempt()
        assert "the schema is at 9000" in str(refused.value)
        assert "only programs built for 9000 or later can work on it" in str(refused.value)
        assert f"'horarium db downgrade {migrations.head()}'" in str(refused.value)


def migrated(path: Path) -> Callable[[], Awaitable[object]]:
    async def work() -> object:
        return migrate_sqlite(path)

    return work


def test_only_the_version_that_made_a_newer_schema_knows_the_way_back(newer: Callable[[str], Path]) -> None:
    path = newer(migrations.head())
    with pytest.raises(SchemaMismatch, match="use its 'horarium db downgrade'"):
        downgrade_sqlite(path, None)
    with pytest.raises(SchemaMismatch, match="use its 'horarium db downgrade'"):
        downgrade_sqlite(path, "0001")


def test_every_migration_says_who_can_work_on_what_it_makes_and_never_takes_that_back() -> None:
    """A mark that went back would let a program on a schema that has lost what it needs."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    history = list(reversed(list(ScriptDirectory.from_config(config).walk_revisions())))
    marks = [item.module.readable_by for item in history if item.revision >= "0003"]
    assert marks == sorted(marks)
    assert all(
        mark <= item.revision and mark in migrations._known()
        for mark, item in zip(marks, history[2:], strict=True)
    )


def test_the_mark_goes_with_the_schema_up_and_down(tmp_path: Path) -> None:
    path = tmp_path / "marked.db"
    migrate_sqlite(path)
    made = engine(str(path))
    with made.connect() as connection, connection.begin():
        assert migrations.readable_by(connection) == "0004"
    downgrade_sqlite(path, "0003")
    with made.connect() as connection, connection.begin():
        assert migrations.readable_by(connection) == "0002"
    downgrade_sqlite(path, "0002")
    with made.connect() as connection, connection.begin():
        assert migrations.readable_by(connection) is None
    migrate_sqlite(path)
    with made.connect() as connection, connection.begin():
        assert migrations.readable_by(connection) == "0004"
        assert connection.scalar(text("select count(*) from schema_compatibility")) == 1
    made.dispose()


async def test_a_file_with_runs_takes_the_new_state_and_loses_nothing(tmp_path: Path) -> None:
    """The check of a run's state is changed in place: a copy of the table would lose what refers to it."""
    path = tmp_path / "grown.db"
    migrate_sqlite(path)
    store = SqliteStore(path, VirtualClock(NOW), inline=True)
    await store.open()
    world = World(store, sqlite_back_door(path))
    await world.add("a")
    await world.plan(NOW)
    (item,) = (await world.claim(at("10:05"))).runs
    await world.settle(fired(item.run, at("10:05")), now=at("10:05"))
    before = await world.everything()
    await store.close()
    downgrade_sqlite(path, "0003")
    made = engine(str(path))
    with made.connect() as connection, pytest.raises(IntegrityError, match="run_state"):
        connection.execute(text("update run set state = 'shadowed'"))
    migrate_sqlite(path)
    with made.connect() as connection, connection.begin():
        assert connection.scalar(text("pragma integrity_check")) == "ok"
        assert connection.execute(text("update run set state = state")).rowcount > 0
    made.dispose()
    store = SqliteStore(path, VirtualClock(NOW), inline=True)
    await store.open()
    assert await World(store, sqlite_back_door(path)).everything() == before
    await store.close()


async def test_the_schema_does_not_go_back_while_an_older_program_would_fire_what_is_in_shadow(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shadow.db"
    migrate_sqlite(path)
    store = SqliteStore(path, VirtualClock(NOW), inline=True)
    await store.open()
    world = World(store, sqlite_back_door(path))
    await world.sync(listing(entry("a"), shadow=True))
    await store.close()
    with pytest.raises(Conflict, match="in shadow"):
        downgrade_sqlite(path, "0003")


async def test_the_schema_does_not_go_back_while_a_deployment_is_paused(tmp_path: Path) -> None:
    """An older program has no way to resume it, and its triggers would be paused for ever."""
    path = tmp_path / "paused.db"
    migrate_sqlite(path)
    store = SqliteStore(path, VirtualClock(NOW), inline=True)
    await store.open()
    world = World(store, sqlite_back_door(path))
    await world.add("a")
    await world.pause_deployment("a", NOW)
    with pytest.raises(Conflict, match="default/default/a is paused") as refused:
        downgrade_sqlite(path, "0005")
    assert "horarium deployments resume default/default/a" in str(refused.value.hint)
    await world.resume_deployment("a", NOW)
    await store.close()
    assert downgrade_sqlite(path, "0005") == (migrations.head(), "0005")
