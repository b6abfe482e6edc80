"""`horarium runs` and `horarium skips`: what became of slots, and what people do to a run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import click

from horarium.cli import options
from horarium.cli.client import Api, connect
from horarium.cli.failure import Exit, Failure
from horarium.cli.lookup import run_path, trigger_path
from horarium.cli.options import Command, Group, connected, output, zone_option
from horarium.cli.render import (
    distance,
    facts,
    print_json,
    say,
    seconds,
    short,
    short_key,
    state,
    styled,
    table,
)
from horarium.cli.where import Where
from horarium.core.instant import rfc3339

FOLLOW_SECONDS = 0.5
"""Between two looks at a run's output: quick enough for people, cheap for the server."""

_RUNNING = {"scheduled", "held", "starting", "running"}


@click.group("runs", cls=Group)
def runs_command() -> None:
    """List, show, retry and cancel runs, and read their output.

    RUN is a run's name, as lists show it; project/domain/name where two have the same.
    """


@runs_command.command("list")
@click.option("--trigger", metavar="TRIGGER", help="Runs of this trigger.")
@click.option(
    "--state", "run_state", metavar="STATE", help="scheduled, fired, failed, held, shadowed or cancelled."
)
@click.option("--origin", metavar="ORIGIN", help="schedule, backfill or manual.")
@click.option("--late/--on-time", "late", default=None, help="Only late runs, or only those that are not.")
@click.option("--project", metavar="NAME")
@click.option("--domain", metavar="NAME")
@click.option("--deployment", metavar="NAME")
@click.option("--target", metavar="NAME")
@click.option("--owner", metavar="NAME")
@click.option("-q", "text", metavar="TEXT", help="Names or keys that contain TEXT.")
@click.option("--from", "start", metavar="TIME", help="Slots at or after.")
@click.option("--to", "end", metavar="TIME", help="Slots before.")
@click.option("--planned", is_flag=True, help="Those that are still to come, too.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=50, help="At most so many [50].")
@zone_option
@output
@connected
def list_runs(
    trigger: str | None,
    run_state: str | None,
    late: bool | None,
    text: str | None,
    start: str | None,
    end: str | None,
    planned: bool,
    limit: int,
    timezone: str,
    *,
    as_json: bool,
    where: Where,
    **filters: str | None,
) -> None:
    """List runs, newest slot first.

    Those whose time has come; planned ones too with --planned, and where --state, --from or --to is given.
    """
    between = _between(start, end, timezone)
    if not planned and not between and run_state is None:
        # Some hundred runs a trigger are planned ahead, and would hide what has happened.
        between["to"] = rfc3339(options.now().replace(microsecond=0) + timedelta(seconds=1))

    async def work() -> list[dict[str, Any]]:
        async with connect(where) as api:
            of = await _key(api, trigger)
            return await api.items(
                "/runs", limit, trigger=of, state=run_state, late=late, q=text, **between, **filters
            )

    items = options.wait_for(work())
    if as_json:
        return print_json({"items": items})
    if not items:
        return say("No run matches.")
    now = options.now()
    table(
        ["SLOT", "TRIGGER", "STATE", "RESULT", "LATE BY", "ORIGIN", "TRIES", "NAME", "REASON"],
        (
            [
                seconds(item["scheduled_time"]),
                short_key(item["trigger"]),
                state(item["state"]),
                state(item.get("result") or ""),
                styled(_late(item), "yellow") if item["late"] else "",
                "" if item["origin"] == "schedule" else item["origin"],
                item["attempt"] if item["attempt"] > 1 else "",
                item["name"],
                _reason(item, now),
            ]
            for item in items
        ),
    )
    return None


@runs_command.command("show")
@click.argument("run", metavar="RUN")
@output
@connected
def show_run(run: str, *, as_json: bool, where: Where) -> None:
    """Show one run with its attempts."""

    async def work() -> dict[str, Any]:
        async with connect(where) as api:
            return await api.get(await run_path(api, run))

    found = options.wait_for(work())
    if as_json:
        return print_json(found)
    facts(
        [
            ("run", found["name"]),
            ("trigger", found["trigger"]),
            ("slot", seconds(found["scheduled_time"]) + _on_the_wall(str(found.get("local_time") or ""))),
            ("origin", found["origin"]),
            ("state", state(found["state"])),
            ("result", state(found.get("result") or "")),
            ("ended", found.get("result_at")),
            ("how", found.get("result_detail")),
            ("waits for", found.get("waits_for")),
            ("late", "by " + _late(found) if found["late"] else None),
            ("reason", found.get("reason")),
            ("outcome", "unknown: an answer was lost" if found.get("outcome_unknown") else None),
            ("due", seconds(found["due_at"]) if found["state"] in ("scheduled", "held") else None),
            ("expires", seconds(found.get("expires_at"))),
            ("fired", found.get("fired_at")),
            ("settled", found.get("settled_at") if not found.get("fired_at") else None),
            ("target", found["target"]),
            ("id there", found.get("target_run_id")),
            ("revision", found["revision"]),
            ("parameters", found.get("parameters")),
        ]
    )
    if found.get("attempts"):
        say("")
        table(
            [">TRY", "STARTED", ">TOOK", "ANSWER", "REASON"],
            (
                [
                    item["attempt"],
                    item["started_at"],
                    _took(item["started_at"], item.get("answered_at")),
                    item["answer"],
                    item.get("reason"),
                ]
                for item in found["attempts"]
            ),
        )
    return None


@runs_command.command("logs")
@click.argument("run", metavar="RUN")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends.")
@output
@connected
def run_logs(run: str, follow: bool, *, as_json: bool, where: Where) -> int:
    """Print what a run of a local target wrote."""

    async def work() -> int:
        async with connect(where) as api:
            path = await run_path(api, run)
            if follow and not as_json:
                await follow_logs(api, path)
                return Exit.OK
            found = await api.get(f"{path}/logs")
            if as_json:
                print_json(found)
                return Exit.OK
            _write(found["output"])
            if found.get("detail") and not found["output"]:
                print(found["detail"], file=sys.stderr)
            return Exit.OK

    return options.wait_for(work())


@runs_command.command("retry")
@click.argument("run", metavar="RUN")
@output
@connected
def retry_run(run: str, *, as_json: bool, where: Where) -> None:
    """Try a failed run again."""
    found = options.wait_for(_post(where, run, "retry"))
    return (
        print_json(found) if as_json else say(f"run {found['name']} is tried again; it is {found['state']}.")
    )


@runs_command.command("cancel")
@click.argument("run", metavar="RUN")
@output
@connected
def cancel_run(run: str, *, as_json: bool, where: Where) -> None:
    """Cancel a run that has not fired: its slot becomes a skip."""
    found = options.wait_for(_post(where, run, "cancel"))
    if as_json:
        return print_json(found)
    slot = " Its slot is recorded as a skip." if found["outcome"] == "skipped" else ""
    return say(f"run {run} does not run: {found['outcome']}.{slot}")


@click.command("skips", cls=Command)
@click.option("--trigger", metavar="TRIGGER", help="Skips of this trigger.")
@click.option("--project", metavar="NAME")
@click.option("--domain", metavar="NAME")
@click.option("--deployment", metavar="NAME")
@click.option("--from", "start", metavar="TIME", help="Skips that reach past this.")
@click.option("--to", "end", metavar="TIME", help="Skips that begin before.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=50, help="At most so many [50].")
@zone_option
@output
@connected
def skips_list(
    trigger: str | None,
    start: str | None,
    end: str | None,
    limit: int,
    timezone: str,
    *,
    as_json: bool,
    where: Where,
    **filters: str | None,
) -> None:
    """List the slots that policy decided not to run, newest first."""
    between = _between(start, end, timezone)

    async def work() -> list[dict[str, Any]]:
        async with connect(where) as api:
            return await api.items("/skips", limit, trigger=await _key(api, trigger), **between, **filters)

    items = options.wait_for(work())
    if as_json:
        return print_json({"items": items})
    if not items:
        return say("No skip matches.")
    table(
        ["FROM", "TO", ">SLOTS", "TRIGGER", "REASON", "DETAIL"],
        (
            [
                seconds(item["first"]),
                seconds(item["last"]) if item["last"] != item["first"] else "",
                item["count"],
                short_key(item["trigger"]),
                item["reason"],
                item.get("detail"),
            ]
            for item in items
        ),
    )
    return None


@click.group("skips", cls=Group)
def skips_command() -> None:
    """List the slots that policy decided not to run."""


skips_command.add_command(skips_list, "list")


async def follow_logs(api: Api, path: str) -> int:
    """Print the output of a run as it comes, until it ends; 1 if it did not succeed."""
    offset = 0
    pause = asyncio.Event()
    from horarium.clock import SystemClock

    clock = SystemClock()
    while True:
        run = await api.get(path)
        found = await api.get(f"{path}/logs", offset=offset)
        _write(found["output"])
        offset = found["offset"]
        if found["output"]:
            continue
        if found["state"] is None and run["state"] not in _RUNNING:
            if run["state"] != "fired":
                raise Failure(
                    f"run {run['name']} is {run['state']}: {run.get('reason') or 'it never started'}"
                )
            if found.get("detail"):
                print(found["detail"], file=sys.stderr)
            return Exit.OK
        if found["state"] is not None and found["state"] not in _RUNNING:
            if found.get("detail"):
                print(found["detail"], file=sys.stderr)
            return Exit.OK if found["state"] == "succeeded" else Exit.FAILED
        await clock.wait(pause, FOLLOW_SECONDS)


async def _post(where: Where, run: str, verb: str) -> dict[str, Any]:
    async with connect(where) as api:
        path = await run_path(api, run)
        answer, _ = await api.send("POST", f"{path}/{verb}", {})
        return answer


async def _key(api: Api, trigger: str | None) -> str | None:
    if trigger is None:
        return None
    return (await trigger_path(api, trigger, deleted=True)).removeprefix("/triggers/")


def _between(start: str | None, end: str | None, zone: str) -> dict[str, str]:
    found = {}
    if start is not None:
        found["from_"] = rfc3339(options.read_time(start, zone, "/from"))
    if end is not None:
        found["to"] = rfc3339(options.read_time(end, zone, "/to"))
    return found


def _on_the_wall(local: str) -> str:
    """The local time, where it is another one than UTC."""
    if not local or local.endswith("+00:00"):
        return ""
    return f" ({local[:10]} {local[11:19]} on the wall, UTC{local[-6:]})"


def _late(item: Mapping[str, Any]) -> str:
    return short(timedelta(seconds=float(item.get("lateness_seconds") or 0)))


def _reason(item: Mapping[str, Any], now: datetime) -> str:
    reason = str(item.get("reason") or "")
    if item["state"] == "scheduled" and item["attempt"]:
        again = f"again {distance(item['due_at'], now)}"
        return f"{again}: {reason}" if reason else again
    return reason


def _took(started: str, answered: str | None) -> str:
    if not answered:
        return ""
    length = datetime.fromisoformat(answered) - datetime.fromisoformat(started)
    return f"{length / timedelta(milliseconds=1):.1f} ms"


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
