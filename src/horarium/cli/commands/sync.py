"""`horarium sync flyte|prefect`: make triggers as another system has them, once; show what changes."""

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
        "verify": verify,
        "projects": list(projects),
        "target": target,
    }
    return _sync("flyte", "endpoint", given, dry_run, exit_code, allow_withdraw, as_json, where)


@sync_command.command("prefect", cls=Command)
@click.option("--url", metavar="URL", help="Where Prefect's API is [the settings' sources.prefect].")
@click.option("--api-key", metavar="REF", help="An API key: env:NAME or file:PATH.")
@click.option("--auth-string", metavar="REF", help="user:password, of basic authentication: env:NAME.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="One more header.")
@click.option("--verify", metavar="FILE", help="Certificates to trust, a PEM file; false checks none.")
@click.option("--project", metavar="NAME", help="The project of all keys [prefect].")
@click.option("--target", metavar="NAME", help="The target that fires [prefect, at the same server].")
@click.option("--ahead", metavar="TIME", help="How long before they are due flow runs exist [not at all].")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--exit-code", is_flag=True, help="Exit with 2 if there are changes, 0 if there are none.")
@click.option("--allow-withdraw", is_flag=True, help="Let one pass withdraw many triggers.")
@output
@connected
def prefect_command(
    url: str | None,
    api_key: str | None,
    auth_string: str | None,
    headers: tuple[str, ...],
    verify: str | None,
    project: str | None,
    target: str | None,
    ahead: str | None,
    dry_run: bool,
    exit_code: bool,
    allow_withdraw: bool,
    *,
    as_json: bool,
    where: Where,
) -> int:
    """Make triggers as a Prefect server has schedules: PROJECT/flow/deployment/slug.

    They are fired by a target `prefect` at the same server, unless --target names another of that kind. A
    schedule that can't be taken is named, and stays as it is here.
    """
    given: dict[str, Any] = {
        "url": url,
        "api_key": api_key,
        "auth_string": auth_string,
        "headers": dict(_header(item) for item in headers),
        "verify": verify,
        "project": project,
        "target": target,
        "ahead": ahead,
    }
    return _sync("prefect", "url", given, dry_run, exit_code, allow_withdraw, as_json, where)


def _sync(
    kind: str,
    place: str,
    given: dict[str, Any],
    dry_run: bool,
    exit_code: bool,
    allow_withdraw: bool,
    as_json: bool,
    where: Where,
) -> int:
    """Sync once with a source of that kind, which is where the word `place` of `given` says."""
    config = {word: value for word, value in given.items() if value}
    if given["verify"] in ("true", "false"):
        config["verify"] = given["verify"] == "true"
    if config and given[place] is None:
        word = next(iter(config)).rstrip("s").replace("_", "-")
        raise Failure(
            f"--{word} says how {kind.capitalize()} is reached, and not where: --{place} is not given",
            Exit.USAGE,
            hint=f"--{place} https://{kind}.example.com, or all of it in the settings' [sources.{kind}]",
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
    return Exit.USAGE if found.get("changed") and exit_code else Exit.OK


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise Failure(f"--header {name!r} has no value", Exit.USAGE, hint="--header 'X-Team: etl'")
    return name.strip(), value.strip()
