"""The migrations make exactly the tables that the program describes."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from horarium.errors import SchemaMismatch
from horarium.store import migrations
from horarium.store.sqlite import engine
from horarium.store.tables import metadata
from tests.store.conftest import migrate_file


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
        with pytest.raises(SchemaMismatch, match="does not know; it was made by a newer Horarium"):
            migrations.check(connection)
        connection.execute(text("delete from alembic_version"))
        with pytest.raises(SchemaMismatch, match="horarium db upgrade"):
            migrations.check(connection)
    made.dispose()
