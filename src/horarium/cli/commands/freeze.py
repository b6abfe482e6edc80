"""`horarium freeze` and `horarium release`: stop firing, and go on with or without what was owed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from horarium.cli import options
from horarium.cli.client import connect
from horarium.cli.failure import Exit, Failure
from horarium.cli.options import Command, connected, output
from horarium.cli.render import count, print_json, say
from horarium.cli.where import Where

F = TypeVar("F", bound=Callable[..., Any])

OWED = ("all", "latest", "drop")


def _place(function: F) -> F:
    """Adds the options of which exactly one says what it is about."""
    for option in (
        click.option("--all", "everything", is_flag=True, help="Every target."),
        click.option("--project", metavar="NAME", help="All triggers of a project."),
        click.option("--deployment", metavar="KEY", help="All triggers of a deployment."),
        click.option("--target", metavar="NAME", help="One target."),
    ):
        function = option(function)
    return function


@click.command("freeze", cls=Command)
@_place
@click.option("--note", metavar="TEXT", help="Why, for others to read.")
@output
@connected
def freeze_command(
    target: str | None,
    deployment: str | None,
    project: str | None,
    everything: bool,
    note: str | None,
    *,
    as_json: bool,
    where: Where,
) -> None:
    """Stop firing, and nothing else: slots go on being planned and wait, until a release.

    \b
    horarium freeze --target warehouse --note "it is down until noon"
    """
    path, body = _request(target, deployment, project, everything, "freeze")
    if note is not None:
        body["note"] = note
    found = options.wait_for(_send(where, path, body))
    if as_json:
        return print_json(found)
    if found["kind"] in ("all", "target"):
        return say(f"{_what(found)} is frozen: {count(found['targets'], 'target')}; what is due waits there.")
    counts = f"{count(found['triggers'], 'trigger')}, {count(found['held'], 'run')} held"
    return say(f"{_what(found)} is frozen: {counts}.")


@click.command("release", cls=Command)
@_place
@click.option(
    "--owed",
    type=click.Choice(OWED),
    help="What becomes of runs that came due and were never tried: all are fired, the latest of each "
    "trigger, or none (drop). Asked for unless given.",
)
@output
@connected
def release_command(
    target: str | None,
    deployment: str | None,
    project: str | None,
    everything: bool,
    owed: str | None,
    *,
    as_json: bool,
    where: Where,
) -> None:
    """End a freeze, and let go what a target's catch-up guard holds. Runs that are given up become skips.

    \b
    horarium release --target warehouse --owed latest
    """
    path, body = _request(target, deployment, project, everything, "release")
    if owed is None:
        if not sys.stdin.isatty():
            hint = "--owed all, --owed latest (of each trigger) or --owed drop"
            raise Failure("what becomes of the runs that came due meanwhile?", Exit.USAGE, hint=hint)
        question = "What becomes of the runs that came due meanwhile"
        owed = click.prompt(question, type=click.Choice(OWED), err=True)
    found = options.wait_for(_send(where, path, {**body, "owed": owed}))
    if as_json:
        return print_json(found)
    counts = f"{count(found['released'], 'run')} released, {count(found['skipped'], 'run')} skipped"
    return say(f"{_what(found)} is released: {counts}.")


def _request(
    target: str | None, deployment: str | None, project: str | None, everything: bool, verb: str
) -> tuple[str, dict[str, Any]]:
    given = [name for name in (target, deployment, project) if name is not None]
    if len(given) + everything != 1:
        raise click.UsageError("give one of --target, --deployment, --project and --all")
    if target is not None:
        return f"/targets/{target}/{verb}", {}
    if everything:
        return f"/{verb}", {"scope": "all"}
    return f"/{verb}", {"project": project} if project is not None else {"deployment": deployment}


async def _send(where: Where, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with connect(where) as api:
        return (await api.send("POST", path, body))[0]


def _what(found: dict[str, Any]) -> str:
    return f"{found['kind']} {found['key']}" if found["key"] else "everything"
