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

    Raises `InvalidInput` for a revision that is not older, `Conflict` while something is held that an older
    program would never let go, and `SchemaMismatch` for a newer Horarium's.
    """
    from alembic import command

    there = current(connection)
    if there is not None and there not in _known():
        raise SchemaMismatch(
            f"the schema is at {there}, which this program (built for {head()}) does not know; the way back "
            "is known by the version that made it: use its 'horarium db downgrade'"
        )
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
    if wanted < "0004" <= str(there):
        _must_be_out_of_shadow(connection)
    if wanted < "0006" <= str(there):
        _must_be_resumed(connection)
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


def _must_be_out_of_shadow(connection: Connection) -> None:
    """Shadow came with 0004: an older program would fire what is in it, and has no word for what was."""
    shadowed = connection.execute(
        text(
            "select exists (select 1 from trigger where shadow)"
            " or exists (select 1 from run where state = 'shadowed')"
            # Pending runs of before a cut-over.
            " or exists (select 1 from run r join trigger_revision v on v.trigger_id = r.trigger_id"
            " and v.number = r.revision where v.shadow and r.state in ('scheduled', 'held')"
            " and r.origin = 'schedule')"
        )
    ).scalar_one()
    if shadowed:
        raise Conflict(
            "triggers are in shadow, or have runs that were decided in it, which the older schema can't keep",
            "`horarium shadow off` cuts them over; retention takes their records away",
        )


def _must_be_resumed(connection: Connection) -> None:
    """Pauses of deployments came with 0006: an older program has no way to end one."""
    rows = connection.execute(
        text(
            "select project, domain, name from deployment where paused order by project, domain, name limit 3"
        )
    ).all()
    if rows:
        raise Conflict(
            f"deployment {'/'.join(rows[0])} is paused, which the older schema can't keep",
            "; ".join(f"horarium deployments resume {'/'.join(row)}" for row in rows),
        )


def check(connection: Connection) -> None:
    """Raises `SchemaMismatch`, with what to do, unless this program can work on the schema: it is the one
    that it was built for, or a later one that says that it can (`readable_by`)."""
    there, needed = current(connection), head()
    if there == needed:
        return
    if there is None:
        raise SchemaMismatch("the database has no Horarium schema; run 'horarium db upgrade'")
    if there in _known():
        raise SchemaMismatch(
            f"the schema is at {there}, this program needs {needed}; run 'horarium db upgrade'"
        )
    least = readable_by(connection)
    if _is_later(there) and least is not None and least <= needed:
        return
    programs = f"; only programs built for {least} or later can work on it" if least else ""
    way_back = "" if least is None else f", or take the schema back with its 'horarium db downgrade {needed}'"
    raise SchemaMismatch(
        f"the schema is at {there}, which this program (built for {needed}) does not know{programs}: "
        f"it was made by a newer Horarium: use that version{way_back}"
    )


def readable_by(connection: Connection) -> str | None:
    """The least revision that a program must be built for to work on this schema.

    Migrations write it, so that a program can tell of a schema which is newer than itself whether it was only
    added to (`expand`), or whether something that it needs is gone. None: the schema is older than this mark.
    """
    if not inspect(connection).has_table("schema_compatibility"):
        return None
    found: str | None = connection.scalar(text("select readable_by from schema_compatibility"))
    return found


def bring_up(connection: Connection) -> tuple[str | None, str]:
    """Bring an older schema, or none, up to this program's; the revision before, and the one now.

    A newer one that this program can work on stays as it is. Raises `SchemaMismatch` for any other.
    """
    before = current(connection)
    if before is None or before in _known():
        if before != head():
            upgrade(connection)
        return before, head()
    check(connection)
    return before, before


def _is_later(revision: str) -> bool:
    """Whether it is of our line, where revisions are numbers, and after ours."""
    return revision.isdigit() and len(revision) == len(head()) and revision > head()


@cache
def _known() -> tuple[str, ...]:
    """Every revision, in order."""
    return tuple(sorted(file.name.partition("_")[0] for file in (_HERE / "versions").glob("[0-9]*_*.py")))
