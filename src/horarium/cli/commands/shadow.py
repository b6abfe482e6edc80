"""`horarium shadow`: decide and fire nothing beside another scheduler, compare the two, and cut over."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from horarium.cli import options
from horarium.cli.client import connect
from horarium.cli.failure import Exit
from horarium.cli.lookup import trigger_path
from horarium.cli.options import Group, connected, output, zone_option
from horarium.cli.render import count, facts, print_json, say, seconds, short_key, styled, table
from horarium.cli.where import Where
from horarium.core.instant import rfc3339

_SHOWN = 20
"""Slots and triggers that a report names to people; `-o json` has more."""


@click.group("shadow", cls=Group)
def shadow_command() -> None:
    """Run beside another scheduler: plan and decide, fire nothing; compare; then cut over, and back.

    TRIGGER is a deployment, deployment/name, the whole key, or any ending of it that only one trigger has.
    """


def _which(function: Any) -> Any:
    """Adds what says which triggers are meant."""
    function = click.option("--all", "everything", is_flag=True, help="Every trigger.")(function)
    function = click.option(
        "--source", metavar="NAME", help="All triggers of this source; `api` for those that people manage."
    )(function)
    return click.argument("triggers", metavar="[TRIGGER]...", nargs=-1)(function)


@shadow_command.command("on")
@_which
@output
@connected
def shadow_on(
    triggers: tuple[str, ...], source: str | None, everything: bool, *, as_json: bool, where: Where
) -> None:
    """Put triggers into shadow: their slots from now on are decided, and nothing is fired."""
    found = options.wait_for(_set(where, True, triggers, source, everything))
    if as_json:
        return print_json(found)
    return _say_set(found, "in shadow: slots after {} are the other scheduler's")


@shadow_command.command("off")
@_which
@output
@connected
def shadow_off(
    triggers: tuple[str, ...], source: str | None, everything: bool, *, as_json: bool, where: Where
) -> None:
    """Cut triggers over: their slots from now on are fired. Those before stay the other scheduler's.

    Let the other scheduler stop in the same gap between two slots.

    \b
    horarium shadow off nightly
    """
    found = options.wait_for(_set(where, False, triggers, source, everything))
    if as_json:
        return print_json(found)
    return _say_set(found, "cut over: slots after {} are fired")


@shadow_command.command("report")
@click.option(
    "--trigger", "triggers", metavar="TRIGGER", multiple=True, help="Only this one; may be given again."
)
@click.option("--source", metavar="NAME", help="Only triggers of this source; `api` for those of people.")
@click.option("--since", metavar="TIME", help="The beginning [a day before --until].")
@click.option("--until", metavar="TIME", help="The end, included [a minute ago].")
@click.option(
    "--incumbent",
    metavar="FILE|-",
    help="What the other scheduler ran: CSV with columns trigger and time (or created_at), or JSON lines. "
    "Not needed where the triggers' targets can be asked.",
)
@click.option("--tolerance", metavar="DURATION", help="How far a created_at may lie from its slot [60s].")
@click.option("--all", "everything", is_flag=True, help="Show the slots that both have, too.")
@zone_option
@output
@connected
def shadow_report(
    triggers: tuple[str, ...],
    source: str | None,
    since: str | None,
    until: str | None,
    incumbent: str | None,
    tolerance: str | None,
    everything: bool,
    timezone: str,
    *,
    as_json: bool,
    where: Where,
) -> int:
    """Compare what was decided in shadow with what the other scheduler ran, slot by slot.

    The exit code is 0 where both have the same slots, and 1 where they differ.

    \b
    horarium shadow report --incumbent runs.csv --since -7d
    """
    body: dict[str, Any] = {"everything": everything}
    if source is not None:
        body["source"] = source
    if since is not None:
        body["from"] = rfc3339(options.read_time(since, timezone, "/since"))
    if until is not None:
        body["to"] = rfc3339(options.read_time(until, timezone, "/until", end_of_day=True))
    if tolerance is not None:
        body["tolerance"] = tolerance
    if incumbent is not None:
        body["incumbent"] = _text(incumbent)

    async def work() -> dict[str, Any]:
        async with connect(where) as api:
            if triggers:
                paths = [await trigger_path(api, text, deleted=True) for text in triggers]
                body["triggers"] = [path.removeprefix("/triggers/") for path in paths]
            return (await api.send("POST", "/shadow/report", body))[0]

    found = options.wait_for(work())
    if as_json:
        print_json(found)
    else:
        _show(found)
    return Exit.OK if found["equal"] else Exit.FAILED


def _text(path: str) -> str:
    raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    return raw.decode("utf-8", "replace")


async def _set(
    where: Where, on: bool, triggers: tuple[str, ...], source: str | None, everything: bool
) -> dict[str, Any]:
    if (len(triggers) > 0) + (source is not None) + everything != 1:
        raise click.UsageError("give triggers, or one of --source and --all")
    verb = "on" if on else "off"
    async with connect(where) as api:
        if not triggers:
            body = {"source": source} if source is not None else {"scope": "all"}
            return (await api.send("POST", f"/shadow/{verb}", body))[0]
        # All are looked up before any is changed, so that a mistyped one changes nothing.
        paths = [await trigger_path(api, text) for text in triggers]
        before = [await api.get(path) for path in paths]
        items = []
        for path, there in zip(paths, before, strict=True):
            after = (await api.send("POST", f"{path}/shadow/{verb}", {}))[0]
            if there["shadow"] is not on:
                revision = (await api.items(f"{path}/revisions", 1))[0]
                items.append({"trigger": after["key"], "after": revision["effective_from"]})
        return {"shadow": on, "items": items}


def _say_set(found: Mapping[str, Any], words: str) -> None:
    items = found["items"]
    if not items:
        return say(
            f"Nothing to do: {'all are in shadow already' if found['shadow'] else 'none is in shadow'}."
        )
    for item in items[:_SHOWN]:
        say(f"{short_key(item['trigger'])} is {words.format(seconds(item['after']))}.")
    if len(items) > _SHOWN:
        say(f"... and {count(len(items) - _SHOWN, 'more trigger')}.")
    return None


def _show(found: Mapping[str, Any]) -> None:
    counts = found["counts"]
    facts(
        [
            ("period", f"{seconds(found['from'])} to {seconds(found['to'])}"),
            ("in shadow", count(counts["triggers"], "trigger")),
            ("in both", count(counts["both"], "slot") + _lateness(found["lateness"])),
            ("only ours", count(counts["only_ours"], "slot")),
            ("only theirs", count(counts["only_theirs"], "run")),
            ("undecided", count(counts["pending"], "slot") if counts["pending"] else ""),
        ]
    )
    shown = [item for item in found["triggers"] if item["slots"]]
    for item in shown[:_SHOWN]:
        say("")
        say(styled(short_key(item["trigger"]), "bold"), f"  {_counted(item)}{_lateness(item['lateness'])}")
        slots = item["slots"][:_SHOWN]
        table(
            ["SLOT", "IN", "DECIDED", "MADE THERE", "WHY"],
            (
                [
                    seconds(slot["time"]),
                    styled(slot["in"], "" if slot["in"] in ("both", "pending") else "red"),
                    seconds(slot["decided_at"]),
                    seconds(slot["created_at"]),
                    slot["reason"] or "",
                ]
                for slot in slots
            ),
        )
        more = len(item["slots"]) - len(slots) + item["more_slots"]
        if more:
            say(f"... and {more:,} more.")
    if len(shown) > _SHOWN:
        say("")
        say(f"... and {count(len(shown) - _SHOWN, 'more trigger')}.")
    for word, what in (("unknown", "is not here"), ("not_in_shadow", "was not in shadow here")):
        for key in found[word][:_SHOWN]:
            say("")
            say(styled(f"{short_key(key)} ran there, and {what}.", "yellow"))
    say("")
    say("Both have the same slots." if found["equal"] else styled("They differ.", "red"))


def _counted(item: Mapping[str, Any]) -> str:
    words = (("both", "in both"), ("only_ours", "only ours"), ("only_theirs", "only theirs"))
    return ", ".join(f"{item[name]:,} {text}" for name, text in words if item[name])


def _lateness(found: Mapping[str, Any] | None) -> str:
    """By how much ours were decided later than theirs were made."""
    if found is None:
        return ""
    return (
        f"; ours {found['median_seconds']:+g} s (median; {found['least_seconds']:+g} to"
        f" {found['most_seconds']:+g} s)"
    )
