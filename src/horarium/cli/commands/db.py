"""`horarium db`: the schema of the database, and a live copy of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from horarium.cli.failure import Exit, Failure
from horarium.cli.options import Group, output
from horarium.cli.render import print_json, say
from horarium.cli.where import Where


@click.group("db", cls=Group)
def db_command() -> None:
    """Upgrade, downgrade, check and back up the database."""


def _database(function: Any) -> Any:
    """Adds `--db` and `--config`: these commands never speak to a server."""
    for option in (
        click.option("--config", metavar="FILE", help="The settings file [HORARIUM_CONFIG, horarium.toml]."),
        click.option("--db", metavar="URL", help="The database to work on [HORARIUM_DB]."),
    ):
        function = option(function)
    return function


@db_command.command("upgrade")
@output
@_database
def upgrade(db: str | None, config: str | None, *, as_json: bool) -> None:
    """Bring the schema up to date. Makes an SQLite file that is not there.

    A newer version's schema stays as it is: nothing is done if this version can work on it, else it is 5.
    """
    from horarium import wiring

    settings = Where(None, db, config).settings()
    before, after = wiring.migrate(settings)
    needed = wiring.built_for()
    if as_json:
        return print_json({"database": settings.db_shown, "before": before, "schema": after})
    if after != needed:
        return say(
            f"{settings.db_shown} is newer than this version's {needed}, and fit for it: schema {after}."
        )
    if before == after:
        return say(f"{settings.db_shown} is up to date: schema {after}.")
    return say(f"{settings.db_shown}: schema {before or 'none'} → {after}.")


@db_command.command("downgrade")
@click.argument("revision", metavar="[REVISION]", required=False)
@output
@_database
def downgrade(revision: str | None, db: str | None, config: str | None, *, as_json: bool) -> None:
    """Take the schema back for an older version.

    To REVISION, or by one. Stop the servers first.

    It is refused while something is frozen or held that an older version would never let go.
    """
    from horarium import wiring

    settings = Where(None, db, config).settings()
    before, after = wiring.downgrade(settings, revision)
    if as_json:
        return print_json({"database": settings.db_shown, "before": before, "schema": after})
    return say(f"{settings.db_shown}: schema {before} → {after}.")


@db_command.command("check")
@output
@_database
def check(db: str | None, config: str | None, *, as_json: bool) -> None:
    """Check the schema; 5 if this version can't work on it.

    Each version of Horarium is built for one schema, and works on a later one that says that it can: one that
    was only added to. So replicas of two versions can share a database while they are replaced.
    """
    from horarium import wiring

    settings = Where(None, db, config).settings()
    found = wiring.check_schema(settings)
    if as_json:
        return print_json(
            {
                "database": settings.db_shown,
                "schema": found.schema,
                "built_for": found.built_for,
                "readable_by": found.readable_by,
            }
        )
    if found.schema == found.built_for:
        return say(f"{settings.db_shown} has the schema that this version needs: {found.schema}.")
    return say(
        f"{settings.db_shown} has a newer schema, {found.schema}, on which versions built for "
        f"{found.readable_by} or later can work: this one, built for {found.built_for}, too."
    )


@db_command.command("backup")
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@output
@_database
def backup(destination: Path, db: str | None, config: str | None, *, as_json: bool) -> None:
    """Copy an SQLite database to DEST.

    The copy is consistent, also while a server runs on it, and of a schema that is to be upgraded.
    """
    from horarium import wiring

    settings = Where(None, db, config).settings()
    source = settings.sqlite_path
    if source is not None and not source.exists():
        raise Failure(
            f"there is no database at {settings.db_shown}", Exit.UNREACHABLE, hint="--db names another"
        )
    if destination.exists():
        raise Failure(f"{destination} is there already", Exit.CONFLICT, hint="a name that is free")
    written = wiring.backup(settings, str(destination))
    size = written.stat().st_size
    if as_json:
        return print_json({"database": settings.db_shown, "copy": str(written), "bytes": size})
    return say(f"{written} is a copy of {settings.db_shown}, {size:,} bytes.")
