"""`horarium deployments`: what can be run, and the pause of all its triggers at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from horarium.cli import options
from horarium.cli.client import Api, connect
from horarium.cli.lookup import deployment_path
from horarium.cli.options import Group, connected, output
from horarium.cli.render import count, facts, print_json, say, seconds, state, table
from horarium.cli.where import Where

_SHOWN = 20
"""Triggers that a sentence names."""


@click.group("deployments", cls=Group)
def deployments_command() -> None:
    """List, show, pause and resume deployments.

    DEPLOYMENT is its name, project/domain/name, or an ending of that which only one deployment has.
    """


@deployments_command.command("list")
@click.option("-q", "text", metavar="TEXT", help="Keys that contain TEXT.")
@click.option("--project", metavar="NAME")
@click.option("--domain", metavar="NAME")
@click.option("--target", metavar="NAME")
@click.option("--owner", metavar="NAME")
@click.option("--source", metavar="NAME", help="Managed by this source; `api` for those that people manage.")
@click.option("--withdrawn", is_flag=True, default=None, help="Those that their source has withdrawn.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many; all unless given.")
@output
@connected
def list_deployments(
    text: str | None, limit: int | None, *, as_json: bool, where: Where, **filters: Any
) -> None:
    """List deployments."""

    async def work() -> list[dict[str, Any]]:
        async with connect(where) as api:
            return await api.items("/deployments", limit, q=text, **filters)

    items = options.wait_for(work())
    if as_json:
        return print_json({"items": items})
    if not items:
        asked = text or set(filters.values()) != {None}
        return say("No deployment matches." if asked else "There are no deployments.")
    table(
        ["DEPLOYMENT", "STATUS", "TARGET", "OWNER", "MANAGED BY"],
        (
            [item["key"], _status(item), item["target"], item.get("owner"), item.get("managed_by")]
            for item in items
        ),
    )
    return None


@deployments_command.command("show")
@click.argument("deployment", metavar="DEPLOYMENT")
@output
@connected
def show_deployment(deployment: str, *, as_json: bool, where: Where) -> None:
    """Show one deployment, and which triggers it has."""

    async def work() -> dict[str, Any]:
        async with connect(where) as api:
            return await api.get(await deployment_path(api, deployment))

    found = options.wait_for(work())
    return print_json(found) if as_json else _show(found)


@deployments_command.command("pause")
@click.argument("deployment", metavar="DEPLOYMENT")
@click.option("--note", metavar="TEXT", help="Why, for others to read.")
@output
@connected
def pause_deployment(deployment: str, note: str | None, *, as_json: bool, where: Where) -> None:
    """Stop all triggers of a deployment, those too that are made while it is paused.

    Each trigger's own pause is another thing: it is neither set nor ended by this.
    """
    body = {} if note is None else {"note": note}

    async def work() -> dict[str, Any]:
        async with connect(where) as api:
            return await _post(api, deployment, "pause", body)

    found = options.wait_for(work())
    if as_json:
        return print_json(found)
    return say(f"{found['key']} is paused: {count(len(found['triggers']), 'trigger')}.")


@deployments_command.command("resume")
@click.argument("deployment", metavar="DEPLOYMENT")
@click.option("--backfill", is_flag=True, help="Run the slots of the pause too.")
@output
@connected
def resume_deployment(deployment: str, backfill: bool, *, as_json: bool, where: Where) -> None:
    """Let a paused deployment go on, but for triggers that are paused themselves.

    The slots of the pause stay skipped unless --backfill. It fills none of triggers in shadow: those are
    another scheduler's.
    """

    async def work() -> tuple[dict[str, Any], list[str], list[str]]:
        async with connect(where) as api:
            found = await _post(api, deployment, "resume", {"backfill": True} if backfill else {})
            of_it = {word: found[word] for word in ("project", "domain")} | {"deployment": found["name"]}
            kept = await api.items("/triggers", None, status="paused", **of_it)
            shadows = await api.items("/triggers", None, shadow=True, **of_it) if backfill else []
            return found, [str(item["key"]) for item in kept], [str(item["key"]) for item in shadows]

    found, kept, shadows = options.wait_for(work())
    if as_json:
        return print_json(found)
    going = len(found["triggers"]) - len(kept)
    unfilled = [key for key in shadows if key not in kept]
    filled = "; the slots of the pause are filled by backfills" if backfill and going > len(unfilled) else ""
    say(f"{found['key']} goes on: {count(going, 'trigger')}{filled}.")
    if unfilled:
        say(f"Not filled, since in shadow those slots are another scheduler's: {_named(unfilled)}.")
    return say(f"Paused by something else still: {_named(kept)}.") if kept else None


def _named(keys: list[str]) -> str:
    more = [f"and {len(keys) - _SHOWN} more"] if len(keys) > _SHOWN else []
    return ", ".join([*keys[:_SHOWN], *more])


async def _post(api: Api, deployment: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    path = await deployment_path(api, deployment, withdrawn=verb == "resume")
    return (await api.send("POST", f"{path}/{verb}", body))[0]


def _status(found: Mapping[str, Any]) -> Any:
    return state("paused" if found["paused"] else "active")


def _show(found: Mapping[str, Any]) -> None:
    pause = ""
    if found["paused"]:
        note = f", {found['pause_note']}" if found.get("pause_note") else ""
        pause = f"by {found['paused_by']} at {seconds(found['paused_at'])}{note}"
    facts(
        [
            ("deployment", found["key"]),
            ("status", _status(found)),
            ("pause", pause),
            ("target", found["target"]),
            *((name, value) for name, value in (found.get("action") or {}).items()),
            *((word, found.get(word)) for word in ("parameters", "kickoff_time_arg", "owner", "runbook")),
            *((word, found.get(word)) for word in ("late_after", "retry_for", "completion_timeout")),
            ("managed by", found.get("managed_by") or "people, through the API"),
            ("triggers", ", ".join(found.get("triggers") or [])),
        ]
    )
