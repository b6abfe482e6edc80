"""`horarium plan`: have the runs of a range ahead now, before the window comes to them."""

from __future__ import annotations

from typing import Any

import click

from horarium.cli import options
from horarium.cli.client import connect
from horarium.cli.lookup import deployment_path, trigger_path
from horarium.cli.options import Command, connected, output, zone_option
from horarium.cli.render import count, print_json, say, short_key
from horarium.cli.where import Where
from horarium.core.instant import rfc3339


@click.command("plan", cls=Command)
@click.argument("trigger", metavar="[TRIGGER]", required=False)
@click.option("--deployment", metavar="KEY", help="All triggers of a deployment, in place of one trigger.")
@click.option("--from", "start", metavar="TIME", help="The first instant, included [now].")
@click.option("--to", "end", metavar="TIME", required=True, help="The last instant, included.")
@zone_option
@output
@connected
def plan_command(
    trigger: str | None,
    deployment: str | None,
    start: str | None,
    end: str,
    timezone: str,
    *,
    as_json: bool,
    where: Where,
) -> None:
    """Have the runs of TRIGGER between two instants ahead now, to see, cancel or hand over single ones.

    They are made as the planner would make them later, one a slot, so the same range again adds nothing. A
    later edit or pause withdraws them with all that is ahead. A day alone, as --to, is its last second.

    \b
    horarium plan report --to +14d
    horarium plan --deployment default/default/report --from 2027-01-01 --to 2027-01-31
    """
    if (trigger is None) == (deployment is None):
        raise click.UsageError("give a TRIGGER or --deployment, one of the two")
    body: dict[str, Any] = {"to": rfc3339(options.read_time(end, timezone, "/to", end_of_day=True))}
    if start is not None and start.strip().lower() != "now":
        body["from"] = rfc3339(options.read_time(start, timezone, "/from"))

    async def work() -> dict[str, Any]:
        from horarium.cli.commands.triggers import created

        async with connect(where) as api:
            if trigger is not None:
                path = await trigger_path(api, trigger)
            else:
                path = await deployment_path(api, deployment or "")
            return await created(api, f"{path}/plan", body)

    found = options.wait_for(work())
    if as_json:
        return print_json(found)
    for item in found["triggers"]:
        say(f"  {short_key(item['trigger'])}: {item['problem'] or _figures(item)}")
    return say(f"{found['from']} to {found['to']}: {_figures(found)}.")


def _figures(found: dict[str, Any]) -> str:
    planned, existing, decided = found["planned"], found["existing"], found["decided"]
    parts = [f"{count(planned, 'run')} planned", f"{existing} there already"]
    if decided:
        parts.append(f"{decided} cancelled or fired")
    return ", ".join(parts)
