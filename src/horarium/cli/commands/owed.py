"""`horarium owed`: what waits to be made up for, and what becomes of it; first of all after a restore."""

from __future__ import annotations

from typing import Any

import click

from horarium.cli import options
from horarium.cli.client import connect
from horarium.cli.options import Command, connected, output
from horarium.cli.render import count, facts, print_json, say, seconds, styled, table
from horarium.cli.where import Where

REPEATS = {
    "known": "knows them: nothing runs twice",
    "forgotten": "forgotten with the restore: runs again",
    "unknown": "may run again",
}
"""What a target makes of a run that it has had before the database was restored."""


@click.command("owed", cls=Command)
@output
@connected
def owed_command(*, as_json: bool, where: Where) -> None:
    """Show what is owed since somebody last looked, by target and by trigger, and what becomes of it.

    After a restore to an earlier moment that is what is owed since the backup; and of each target it says
    whether a run that it has had since would run again.

    \b
    horarium owed && horarium release --target crm --owed all
    """

    async def work() -> dict[str, Any]:
        async with connect(where) as api:
            return await api.get("/owed")

    found = options.wait_for(work())
    if as_json:
        return print_json(found)
    facts(
        [
            ("now", seconds(found["now"])),
            ("last looked", seconds(found["last_looked_at"]) if found.get("last_looked_at") else "never"),
        ]
    )
    if found["targets"]:
        say("")
        table(
            ["TARGET", "KIND", ">OWED", "FROZEN", "NAMES THAT IT HAS HAD"],
            (
                [
                    target["name"],
                    target["kind"],
                    target["owed"],
                    styled("frozen", "yellow") if target["frozen"] else "",
                    REPEATS[target["repeated_names"]],
                ]
                for target in found["targets"]
            ),
        )
        for target in found["targets"]:
            if target["repeated_names"] != "known" and target["note"]:
                say(f"{target['name']}: {target['note']}")
    say("")
    if not found["triggers"]:
        return say("Nothing is owed.")
    return _triggers(found)


def _triggers(found: dict[str, Any]) -> None:
    table(
        ["TRIGGER", "TARGET", ">SLOTS", ">FIRING", ">HOLDING", ">SKIPPING", "CATCH UP", "HELD BY"],
        (
            [
                item["trigger"],
                item["target"],
                f"{item['slots']}{'+' if item['at_least'] else ''}",
                item["firing"],
                item["holding"],
                item["skipping"],
                item["catch_up"],
                item["held_by"] or "",
            ]
            for item in found["triggers"]
        ),
    )
    if found["more_triggers"]:
        bound = "at least " if found["at_least"] else ""
        more = count(found["more_triggers"], "more trigger")
        say(f"and {bound}{more} with {count(found['more_slots'], 'slot')}")
