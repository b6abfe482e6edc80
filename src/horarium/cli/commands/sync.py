"""`horarium sync flyte|prefect`: make triggers as another system has them, once; show what changes."""

from __future__ import annotations

from typing import Any

import click

from horarium.cli import options
from horarium.cli.client import connect
from horarium.cli.commands.apply import show
from horarium.cli.commands.triggers import created
from horarium.cli.failure import Exit, Failure
from horarium.cli.options import Command, F, Group, connected, output
from horarium.cli.render import count, print_json, say, styled
from horarium.cli.where import Where


@click.group("sync", cls=Group)
def sync_command() -> None:
    """Take over the triggers of another system, once.

    `serve` keeps doing so where its settings name a source.
    """


def shared(function: F) -> F:
    """Adds what every kind of source takes: how it is reached, who fires, and what a pass may do."""
    call = connected(output(function))
    for option in (
        click.option("--allow-withdraw", is_flag=True, help="Let one pass withdraw many triggers."),
        click.option(
            "--exit-code", is_flag=True, help="Exit with 2 if there are changes, 0 if there are none."
        ),
        click.option("--dry-run", is_flag=True, help="Only show what would change."),
        click.option(
            "--target", metavar="NAME", help="The target that fires [one of that kind, at the same address]."
        ),
        click.option("--verify", metavar="FILE", help="Certificates to trust (PEM); false checks none."),
        click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="One more header."),
    ):
        call = option(call)
    return call


@sync_command.command("flyte", cls=Command)
@click.option("--endpoint", metavar="URL", help="Where Flyte's API is [the settings' sources.flyte].")
@click.option("--org", metavar="NAME", help="The organisation, where Flyte has any.")
@click.option("--token", metavar="REF", help="A bearer token: env:NAME or file:PATH.")
@click.option("--project", "projects", multiple=True, metavar="P/D", help="Only this project/domain [all].")
@shared
def flyte_command(**options: Any) -> int:
    """Make triggers as a Flyte backend has them, under the same names.

    They are fired by a target `flyte` at the same endpoint, unless --target names another of that kind. A
    trigger that can't be taken is named, and stays as it is here.
    """
    return _sync("flyte", "endpoint", **options)


@sync_command.command("prefect", cls=Command)
@click.option("--url", metavar="URL", help="Where Prefect's API is [the settings' sources.prefect].")
@click.option("--api-key", metavar="REF", help="An API key: env:NAME or file:PATH.")
@click.option("--auth-string", metavar="REF", help="user:password, of basic authentication: env:NAME.")
@click.option("--project", metavar="NAME", help="The project of all keys [prefect].")
@click.option("--ahead", metavar="TIME", help="How long before they are due flow runs exist [not at all].")
@shared
def prefect_command(**options: Any) -> int:
    """Make triggers as a Prefect server has schedules: PROJECT/flow/deployment/slug.

    They are fired by a target `prefect` at the same server, unless --target names another of that kind. A
    schedule that can't be taken is named, and stays as it is here.
    """
    return _sync("prefect", "url", **options)


def _sync(
    kind: str,
    place: str,
    *,
    headers: tuple[str, ...],
    dry_run: bool,
    exit_code: bool,
    allow_withdraw: bool,
    as_json: bool,
    where: Where,
    **given: Any,
) -> int:
    """Sync once with a source of that kind, which is where the word `place` of `given` says."""
    given["headers"] = dict(map(_header, headers))
    config = {word: value for word, value in given.items() if value}
    if given["verify"] in ("true", "false"):
        config["verify"] = given["verify"] == "true"
    if config and given[place] is None:
        word = next(iter(config)).rstrip("s").replace("_", "-")
        raise Failure(
            f"--{word} says how {kind.capitalize()} is reached, and not where: --{place} is not given",
            Exit.USAGE,
            hint=f"--{place} URL, or all of it in the settings' [sources.{kind}]",
        )
    body = {
        "kind": kind,
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
    if left_out:
        return Exit.FAILED  # as an import that could not carry all over
    return Exit.USAGE if found.get("changed") and exit_code else Exit.OK


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise Failure(f"--header {name!r} has no value", Exit.USAGE, hint="--header 'X-Team: etl'")
    return name.strip(), value.strip()
