"""`horarium backfill`: run the past slots of a trigger that have no run."""

from __future__ import annotations

from typing import Any

import click

from horarium.cli import options
from horarium.cli.client import connect
from horarium.cli.lookup import trigger_path
from horarium.cli.options import Command, connected, output, zone_option
from horarium.cli.render import count, print_json, say
from horarium.cli.where import Where
from horarium.core.instant import rfc3339

_SHOWN = 10
"""Slots that a dry run names at each end."""


@click.command("backfill", cls=Command)
@click.argument("trigger", metavar="TRIGGER")
@click.option("--from", "start", metavar="TIME", required=True, help="The first instant, included.")
@click.option("--to", "end", metavar="TIME", required=True, help="The last instant, included; at most now.")
@click.option("--dry-run", is_flag=True, help="Only show which slots it would run.")
@zone_option
@output
@connected
def backfill_command(
    trigger: str, start: str, end: str, dry_run: bool, timezone: str, *, as_json: bool, where: Where
) -> None:
    """Run the slots of TRIGGER between two instants that have no run, skipped ones among them.

    Slots that have run are left alone, so the same backfill again adds nothing. It works while the trigger is
    paused. A day alone, as --to, is its last second.
    """
    body: dict[str, Any] = {
        "from": rfc3339(options.read_time(start, timezone, "/from")),
        "to": rfc3339(options.read_time(end, timezone, "/to", end_of_day=True)),
        "dry_run": dry_run,
    }

    async def work() -> dict[str, Any]:
        from horarium.cli.commands.triggers import created

        async with connect(where) as api:
            path = await trigger_path(api, trigger)
            if dry_run:
                return (await api.send("POST", f"{path}/backfills", body))[0]
            return await created(api, f"{path}/backfills", body)

    found = options.wait_for(work())
    if as_json:
        return print_json(found)
    number = int(found.get("count") or 0)
    at_least = "at least " if found.get("at_least") else ""
    if not number:
        return say("Every slot in that range has a run already; there is nothing to do.")
    slots = found.get("slots") or []
    for at in slots[:_SHOWN] if len(slots) > 2 * _SHOWN else slots:
        say(f"  + {at}")
    if len(slots) > 2 * _SHOWN:
        say("  ...")
        if number == len(slots):
            for at in slots[-_SHOWN:]:
                say(f"  + {at}")
    if dry_run:
        return say(f"{at_least}{count(number, 'slot')} would run (dry run: nothing was written).")
    return say(f"backfill {found.get('id')}: {at_least}{count(number, 'slot')} will run.")
