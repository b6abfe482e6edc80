"""`horarium serve`: the server."""

from __future__ import annotations

from typing import Any

import click

from horarium.cli.options import Command
from horarium.cli.where import Where


@click.command("serve", cls=Command)
@click.option(
    "--apply",
    "apply",
    multiple=True,
    metavar="FILE|FOLDER",
    help="Make triggers as these say, and read them again every resync_interval.",
)
@click.option(
    "--frozen",
    is_flag=True,
    help="Freeze everything first: plan, and fire nothing until a release. For after a restore.",
)
@click.option("--db", metavar="URL", help="The database [HORARIUM_DB, sqlite:///horarium.db].")
@click.option("--config", metavar="FILE", help="The settings file [HORARIUM_CONFIG, horarium.toml].")
@click.option("--host", metavar="HOST", help="Where the API listens [127.0.0.1].")
@click.option("--port", metavar="PORT", help="The API's port; 0 takes any free one [8090].")
@click.option("--roles", metavar="ROLES", help="Any of sync,plan,fire,api [all].")
@click.option("--shadow", is_flag=True, default=None, help="New triggers start in shadow: they fire nothing.")
@click.option("--log-format", metavar="FORMAT", help="human, json or auto [auto].")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error [info].")
def serve_command(
    apply: tuple[str, ...], frozen: bool, db: str | None, config: str | None, **flags: Any
) -> int:
    """Run Horarium until SIGTERM or Ctrl-C: sync, plan, claim, fire, settle, and the API.

    It then stops claiming, lets what is in flight end, and exits with 0; a second signal ends it at once.
    Nothing is lost either way. docs/settings.md names all settings.
    """
    settings = Where(None, db, config).settings(**flags)

    from horarium import telemetry, wiring

    telemetry.configure(settings.log_format.value, settings.log_level.value)
    return wiring.serve(settings, apply, frozen=frozen)
