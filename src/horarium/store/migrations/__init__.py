"""The schema's history, and what can be done with it: upgrade, downgrade, check, and say where it is.

History is a line, and a revision's file begins with its number, so where a database stands is known without
Alembic: every command asks that, and few ever migrate.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text

from horarium.errors import Conflict, InvalidInput, Problem, SchemaMismatch, shown

_HERE = Path(__file__).parent


def head() -> str:
    """The revision that this program was built for."""
    return _known()[-1]


def current(connection: Connection) -> str | None:
    """The revision that the database is at; None: it has no schema of ours."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(text("select version_num from alembic_version"))
    return found


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the schema up to `revision`, in the caller's transaction."""
    from alembic import command

    command.upgrade(_config(connection), revision)


def downgrade(connection: Connection, revision: str | None = None) -> None:
    """Take the schema back to `revision`, or to the one before, in the caller's transaction.

    Raises `InvalidInput` for a revision that is not older, and `Conflict` while something is held that an
    older program would never let go.
    """
    from alembic import command

    there = current(connection)
    older = [item for item in _known() if there is not None and item < there]
    wanted = revision or (older[-1] if older else "")
    if wanted not in older:
        raise InvalidInput(
            Problem(
                "/revision",
                shown(revision),
                f"a downgrade goes to an older schema, and this one is {there or 'none'}",
                f"one of {', '.join(older)}" if older else "there is none before it",
            )
        )
    if wanted < "0002" <= str(there):
        _must_be_released(connection)
    command.downgrade(_config(connection), wanted)


def _config(connection: Connection) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _must_be_released(connection: Connection) -> None:
    """Marks on triggers and the catch-up guard came with 0002; what they hold would be held for ever."""
    held = connection.execute(
        text(
            # Quoted: PostgreSQL keeps the word for itself.
            "select (select count(*) from \"freeze\" where kind in ('project', 'deployment'))"
            " + (select count(*) from target_allowance where guard_state = 'held')"
        )
    ).scalar_one()
    if held:
        raise Conflict(
            "something is frozen, or the catch-up guard holds runs, which the older schema can't keep",
            "`horarium status` says what; release it first",
        )


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


@cache
def _known() -> tuple[str, ...]:
    """Every revision, in order."""
    return tuple(sorted(file.name.partition("_")[0] for file in (_HERE / "versions").glob("[0-9]*_*.py")))
