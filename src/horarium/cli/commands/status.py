"""`horarium status` and `horarium why`: how everything stands, and what became of one instant."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from horarium.cli import options
from horarium.cli.client import connect
from horarium.cli.lookup import trigger_path
from horarium.cli.options import Command, connected, output, zone_option
from horarium.cli.render import (
    distance,
    facts,
    instant,
    print_json,
    say,
    seconds,
    short,
    state,
    styled,
    table,
)
from horarium.cli.where import Where
from horarium.core.instant import rfc3339


@click.command("status", cls=Command)
@output
@connected
def status_command(*, as_json: bool, where: Where) -> None:
    """Show how everything stands: triggers, runs, targets, sources, and what is wrong."""

    async def work() -> tuple[dict[str, Any], str]:
        async with connect(where) as api:
            return await api.get("/status"), api.place

    found, place = options.wait_for(work())
    if as_json:
        return print_json(found)
    return _show_status(found, place)


@click.command("why", cls=Command)
@click.argument("trigger", metavar="TRIGGER")
@click.argument("time", metavar="TIME")
@zone_option
@output
@connected
def why_command(trigger: str, time: str, timezone: str, *, as_json: bool, where: Where) -> None:
    """Say what became of TIME for TRIGGER, and why.

    The verdict is one word: fired, late, skipped, owed, planned, held, failed, or never (never a slot). TIME
    is RFC 3339, 'now', a length from now such as -2h, or a local time in --timezone (UTC unless given).

    \b
    horarium why backup '2026-01-05 02:30' --timezone Europe/Berlin
    """
    at = options.read_time(time, timezone, "/time")

    async def work() -> dict[str, Any]:
        async with connect(where) as api:
            path = await trigger_path(api, trigger, deleted=True)
            return await api.get(f"{path}/why", time=rfc3339(at))

    found = options.wait_for(work())
    if as_json:
        return print_json(found)
    say(state(found["verdict"]), ": ", str(found["reason"]))
    nearest = found.get("nearest") or {}
    return facts(
        [
            ("trigger", found["trigger"]),
            ("time", options.local_and_utc(at, timezone)),
            ("revision", found.get("revision")),
            ("slot before", nearest.get("before")),
            ("slot after", nearest.get("after")),
        ]
    )


def _show_status(found: Mapping[str, Any], place: str) -> None:
    now = instant(found["now"])
    assert now is not None
    triggers, runs = found["counts"]["triggers"], found["counts"]["runs"]
    database = found.get("database") or {}
    facts(
        [
            ("horarium", f"{found['version']} at {place}"),
            ("database", _words(database.get("kind"), database.get("location"))),
            ("now", seconds(found["now"])),
            ("down since", _since(found.get("down_since"), now)),
            ("triggers", _counted(triggers, ("active", "paused", "finished", "shadow", "error"))),
            (
                "runs",
                _counted(
                    runs,
                    ("scheduled", "held", "late", "backlog", "fired_24h", "failed_24h", "shadowed_24h"),
                    runs.get("bound"),
                ),
            ),
            ("next due", _moment(found.get("next_due_at"), now)),
            ("next plan", _moment(found.get("next_plan_due_at"), now)),
        ]
    )
    if found["targets"]:
        say("")
        table(
            ["TARGET", "KIND", ">DUE", ">IN FLIGHT", ">FREE", "RATE", "WAITS FOR", "FROZEN"],
            (
                [
                    target["name"],
                    target["kind"],
                    target.get("due"),
                    target.get("in_flight"),
                    target.get("free"),
                    rate_text(target.get("rate")),
                    target.get("waiting"),
                    styled("frozen", "yellow") if target.get("frozen") else "",
                ]
                for target in found["targets"]
            ),
        )
    for item in found.get("freezes") or []:
        what = f"{item['kind']} {item['key']}" if item["key"] else "everything"
        note = f": {item['note']}" if item.get("note") else ""
        say("")
        say(styled(f"{what} is frozen", "yellow"), f" since {seconds(item['at'])} by {item['who']}{note}")
    for item in found.get("paused_deployments") or []:
        note = f": {item['note']}" if item.get("note") else ""
        say("")
        say(
            styled(f"deployment {item['deployment']} is paused", "yellow"),
            f" since {seconds(item['at'])} by {item['who']}{note}",
        )
    for target in found["targets"]:
        if target.get("waiting") == "guard":
            say("")
            say(
                styled(f"target {target['name']} holds runs", "yellow"),
                " that came due while nobody looked; ",
                f"`horarium release --target {target['name']}` says what becomes of them",
            )
    for target in found["targets"]:
        if target.get("error"):
            say("")
            say(styled(f"target {target['name']}: ", "red"), str(target["error"]))
    for target in found["targets"]:
        if target.get("ahead"):
            say("")
            say(styled(f"target {target['name']}, ahead of time: ", "yellow"), str(target["ahead"]))
    if found["sources"]:
        say("")
        table(
            ["SOURCE", "CHANGED", "ERROR"],
            (
                [
                    source["name"],
                    distance(source.get("listed_at"), now),
                    styled(source.get("error") or "", "red"),
                ]
                for source in found["sources"]
            ),
        )
    for item in found.get("triggers_with_errors") or []:
        say("")
        say(styled(f"{item['trigger']} can't be planned: ", "red"), str(item["error"]))
    loops = [loop for loop in found.get("loops") or [] if loop.get("error") or loop.get("alive") is False]
    for loop in loops:
        say("")
        say(styled(f"the {loop['name']} loop: ", "red"), str(loop.get("error") or "does not turn"))


def _counted(counts: Mapping[str, Any], names: tuple[str, ...], bound: int | None = None) -> str:
    words = {
        "fired_24h": "fired in 24 h",
        "failed_24h": "failed in 24 h",
        "shadowed_24h": "shadowed in 24 h",
        "shadow": "in shadow",
        "error": "with an error",
    }
    always = (names[0], "fired_24h")
    parts = []
    for name in names:
        number = counts.get(name) or 0
        if number or name in always:
            more = "+" if bound is not None and number >= bound else ""
            parts.append(f"{number:,}{more} {words.get(name, name)}")
    return ", ".join(parts)


def _moment(text: str | None, now: datetime) -> str:
    return f"{seconds(text)} ({distance(text, now)})" if text else ""


def _since(text: str | None, now: datetime) -> str:
    at = instant(text)
    return f"{seconds(text)}: nobody has looked at what is due for {short(now - at)}" if at else ""


def _words(*parts: object) -> str:
    return " ".join(str(part) for part in parts if part)


def rate_text(rate: object) -> str:
    """A target's rate: `10/s, burst 20`."""
    match rate:
        case {"per_second": per_second, "burst": burst}:
            return f"{per_second:g}/s, burst {burst}"
        case None:
            return ""
        case _:
            return str(rate)
