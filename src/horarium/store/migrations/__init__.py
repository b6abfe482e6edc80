"""The schema's history, and what can be done with it: upgrade, check, and say where it is."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from horarium.errors import SchemaMismatch

_HERE = Path(__file__).parent


def head() -> str:
    """The revision that this program was built for."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    assert found is not None
    return found


def current(connection: Connection) -> str | None:
    """The revision that the database is at; None: it has no schema of ours."""
    return MigrationContext.configure(connection).get_current_revision()


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the schema up to `revision`, in the caller's transaction."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def check(connection: Connection) -> None:
    """Raises `SchemaMismatch`, with what to do, unless the schema is the one that this program needs."""
    there, needed = current(connection), head()
    if there == needed:
        return
    if there is None:
        raise SchemaMismatch("the database has no Horarium schema; run 'horarium db upgrade'")
    if there in _known():
        raise SchemaMismatch(
            f"the schema is at {there}, this program needs {needed}; run 'horarium db upgrade'"
        )
    raise SchemaMismatch(
        f"the schema is at {there}, which this program (built for {needed}) does not know; "
        "it was made by a newer Horarium: use that version"
    )


def refuse_newer(connection: Connection) -> None:
    """Raises `SchemaMismatch` when the schema is one that this program does not know: leave it alone."""
    there = current(connection)
    if there is not None and there not in _known():
        check(connection)


def _known() -> set[str]:
    return {item.revision for item in ScriptDirectory.from_config(_config()).walk_revisions()}


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    return config
