"""`horarium sync flyte`: make triggers as another system has them, once, and show what that changes."""

from __future__ import annotations

from typing import Any

import click

from horarium.cli import options
from horarium.cli.client import connect
from horarium.cli.commands.apply import show
from horarium.cli.commands.triggers import created
from horarium.cli.failure import Exit, Failure
from horarium.cli.options import Command, Group, connected, output
from horarium.cli.render import count, print_json, say, styled
from horarium.cli.where import Where


@click.group("sync", cls=Group)
def sync_command() -> None:
    """Take over the triggers of another system, once.

    `serve` keeps doing so where its settings name a source.
    """


@sync_command.command("flyte", cls=Command)
@click.option("--endpoint", metavar="URL", help="Where Flyte's API is [the settings' sources.flyte].")
@click.option("--org", metavar="NAME", help="The organisation, where Flyte has any.")
@click.option("--token", metavar="REF", help="A bearer token: env:NAME or file:PATH.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="One more header.")
@click.option("--verify", metavar="FILE", help="Certificates to trust, a PEM file; false checks none.")
@click.option("--project", "projects", multiple=True, metavar="P/D", help="Only this project/domain [all].")
@click.option("--target", metavar="NAME", help="The target that fires [flyte, at the same endpoint].")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--exit-code", is_flag=True, help="Exit with 2 if there are changes, 0 if there are none.")
@click.option("--allow-withdraw", is_flag=True, help="Let one pass withdraw many triggers.")
@output
@connected
def flyte_command(
    endpoint: str | None,
    org: str | None,
    token: str | None,
    headers: tuple[str, ...],
    verify: str | None,
    projects: tuple[str, ...],
    target: str | None,
    dry_run: bool,
    exit_code: bool,
    allow_withdraw: bool,
    *,
    as_json: bool,
    where: Where,
) -> int:
    """Make triggers as a Flyte backend has them, under the same names.

    They are fired by a target `flyte` at the same endpoint, unless --target names another of that kind. A
    trigger that can't be taken is named, and stays as it is here.
    """
    given: dict[str, Any] = {
        "endpoint": endpoint,
        "org": org,
        "token": token,
        "headers": dict(_header(item) for item in headers),
        "verify": {"true": True, "false": False}.get(verify, verify) if verify else None,
        "projects": list(projects),
        "target": target,
    }
    config = {word: value for word, value in given.items() if value}
    if verify == "false":
        config["verify"] = False
    if config and endpoint is None:
        raise Failure(
            f"--{next(iter(config)).rstrip('s')} says how an endpoint is reached, and none is given",
            Exit.USAGE,
            hint="--endpoint https://flyte.example.com, or all of it in the settings' [sources.flyte]",
        )
    body = {
        "kind": "flyte",
        "config": config or None,
        "dry_run": dry_run,
        "allow_withdraw": allow_withdraw,
    }

    async def work() -> dict[str, Any]:
        async with connect(where, create=True) as api:
            return await created(api, "/sync", body)

    found = options.wait_for(work())
    (source,) = found["sources"]
    left_out = source["left_out"]
    if as_json:
        print_json(found)
    else:
        show(found, dry_run)
        if left_out:
            say(
                styled(
                    f"{count(len(left_out), 'mistake')} over there; what has one stays as it is here:",
                    "yellow",
                )
            )
        for problem in left_out:
            hint = f"; try: {problem['try']}" if problem.get("try") else ""
            say(f"  {problem['pointer']}: got {problem['got']}: {problem['rule']}{hint}")
    if source.get("refused"):
        raise Failure(
            f"nothing was written: {source['refused']}",
            hint="--allow-withdraw, if that is what you want",
        )
    return Exit.USAGE if found.get("changed") and exit_code else Exit.OK


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise Failure(f"--header {name!r} has no value", Exit.USAGE, hint="--header 'X-Team: etl'")
    return name.strip(), value.strip()
