"""`horarium triggers`: what there is, and what people do to one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from horarium.cli import options
from horarium.cli.client import Api, connect
from horarium.cli.failure import Exit, Failure
from horarium.cli.lookup import trigger_path
from horarium.cli.options import Group, connected, output, zone_option
from horarium.cli.render import (
    distance,
    facts,
    instant,
    print_json,
    say,
    seconds,
    short_key,
    state,
    styled,
    table,
)
from horarium.cli.where import Where
from horarium.core.instant import rfc3339
from horarium.errors import InvalidInput, Problem, shown


@click.group("triggers", cls=Group)
def triggers_command() -> None:
    """List, show, pause, resume, delete and run triggers.

    TRIGGER is a deployment, deployment/name, the whole key, or any ending of it that only one trigger has.
    """


@triggers_command.command("list")
@click.option("-q", "text", metavar="TEXT", help="Keys that contain TEXT.")
@click.option("--project", metavar="NAME")
@click.option("--domain", metavar="NAME")
@click.option("--deployment", metavar="NAME")
@click.option("--target", metavar="NAME")
@click.option("--owner", metavar="NAME")
@click.option("--source", metavar="NAME", help="Managed by this source; `api` for those that people manage.")
@click.option("--status", metavar="STATUS", help="active, paused, finished, deleted or error.")
@click.option("--shadow/--no-shadow", "shadow", default=None, help="In shadow, or not.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many; all unless given.")
@output
@connected
def list_triggers(
    text: str | None, limit: int | None, *, as_json: bool, where: Where, **filters: Any
) -> None:
    """List triggers."""

    async def work() -> list[dict[str, Any]]:
        async with connect(where) as api:
            return await api.items("/triggers", limit, q=text, **filters)

    items = options.wait_for(work())
    if as_json:
        return print_json({"items": items})
    if not items:
        return say(
            "There are no triggers."
            if not text and set(filters.values()) == {None}
            else "No trigger matches."
        )
    now = options.now()
    table(
        ["TRIGGER", "STATUS", "SCHEDULE", "ZONE", "NEXT", "LAST", "TARGET", "MANAGED BY", "ERROR"],
        (
            [
                short_key(item["key"]),
                state(status_word(item)),
                schedule_text(item["schedule"]),
                "" if item["timezone"] == "UTC" else item["timezone"],
                distance((item.get("next") or [None])[0], now),
                _last(item.get("last_run")),
                item["target"],
                item.get("managed_by"),
                styled(item.get("error") or "", "red"),
            ]
            for item in items
        ),
    )
    return None


@triggers_command.command("show")
@click.argument("trigger", metavar="TRIGGER")
@output
@connected
def show_trigger(trigger: str, *, as_json: bool, where: Where) -> None:
    """Show one trigger whole."""

    async def work() -> dict[str, Any]:
        async with connect(where) as api:
            return await api.get(await trigger_path(api, trigger))

    found = options.wait_for(work())
    return print_json(found) if as_json else _show(found, options.now())


@triggers_command.command("pause")
@click.argument("trigger", metavar="TRIGGER")
@click.option("--note", metavar="TEXT", help="Why, for others to read.")
@click.option(
    "--until", metavar="TIME", help="When to resume: 2026-01-05T10:00:00Z, '2026-01-05 10:00' or +2h."
)
@zone_option
@output
@connected
def pause_trigger(
    trigger: str, note: str | None, until: str | None, timezone: str, *, as_json: bool, where: Where
) -> None:
    """Stop all of a trigger: later runs go, owed ones are held. Its slots from now on are skipped."""
    body: dict[str, Any] = {}
    if note is not None:
        body["note"] = note
    if until is not None:
        body["until"] = rfc3339(options.read_time(until, timezone, "/until"))
    found = options.wait_for(_post(where, trigger, "pause", body))
    if as_json:
        return print_json(found)
    resume = f"; it resumes at {seconds(found['resume_at'])}" if found.get("resume_at") else ""
    return say(f"{found['key']} is paused{resume}.")


@triggers_command.command("resume")
@click.argument("trigger", metavar="TRIGGER")
@click.option("--backfill", is_flag=True, help="Run the slots of the pause too.")
@output
@connected
def resume_trigger(trigger: str, backfill: bool, *, as_json: bool, where: Where) -> None:
    """Let a paused trigger go on. The slots of the pause stay skipped unless --backfill."""
    found = options.wait_for(_post(where, trigger, "resume", {"backfill": True} if backfill else {}))
    if as_json:
        return print_json(found)
    if found["status"] == "paused":
        return say(f"{found['key']} is no longer paused itself, but {_in_the_way(found)}.")
    upcoming = (found.get("next") or [None])[0]
    when = f"; it runs next at {seconds(upcoming)} ({distance(upcoming, options.now())})" if upcoming else ""
    filled = "; the slots of the pause are filled by a backfill" if backfill else ""
    return say(f"{found['key']} is {found['status']}{when}{filled}.")


@triggers_command.command("delete")
@click.argument("trigger", metavar="TRIGGER")
@click.option(
    "--if-match", metavar="ETAG", help="Only if it is still this version (`etag` of `show -o json`)."
)
@output
@connected
def delete_trigger(trigger: str, if_match: str | None, *, as_json: bool, where: Where) -> None:
    """Delete a trigger. What it owed is skipped; its runs and skips stay to be read."""

    async def work() -> tuple[str, dict[str, Any]]:
        async with connect(where) as api:
            path = await trigger_path(api, trigger)
            answer, _ = await api.send("DELETE", path, headers={"if-match": if_match} if if_match else {})
            return path.removeprefix("/triggers/"), answer

    key, answer = options.wait_for(work())
    return print_json(answer or {"key": key, "status": "deleted"}) if as_json else say(f"{key} is deleted.")


@triggers_command.command("run")
@click.argument("trigger", metavar="TRIGGER")
@click.option(
    "-p", "--parameter", "pairs", multiple=True, metavar="NAME=VALUE", help="Over the trigger's own."
)
@click.option("--request-key", metavar="TEXT", help="The same key again makes no second run.")
@click.option("--follow", is_flag=True, help="Print its output until it ends; 1 if it did not succeed.")
@output
@connected
def run_trigger(
    trigger: str,
    pairs: tuple[str, ...],
    request_key: str | None,
    follow: bool,
    *,
    as_json: bool,
    where: Where,
) -> int:
    """Run a trigger once, now. VALUE is JSON where it reads as JSON, else text."""
    body: dict[str, Any] = {}
    if pairs:
        body["parameters"] = parameters_of(pairs)
    if request_key is not None:
        body["request_key"] = request_key

    async def work() -> tuple[dict[str, Any], int]:
        from horarium.cli.commands.runs import follow_logs

        async with connect(where) as api:
            path = await trigger_path(api, trigger)
            run = await created(api, f"{path}/run", body)
            if not follow:
                return run, Exit.OK
            say(f"run {run['name']}")
            return run, await follow_logs(api, f"/runs/{run['project']}/{run['domain']}/{run['name']}")

    run, code = options.wait_for(work())
    if as_json:
        print_json(run)
    elif not follow:
        say(
            f"run {run['name']} of {short_key(run['trigger'])} is {run['state']}; "
            f"`horarium runs show {run['name']}` says what became of it."
        )
    return code


def parameters_of(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`NAME=VALUE` as parameters. Raises `InvalidInput`."""
    found: dict[str, Any] = {}
    problems = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            problems.append(Problem("/parameter", shown(pair), "a parameter is NAME=VALUE", "epochs=3"))
            continue
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    if problems:
        raise InvalidInput(problems)
    return found


def schedule_text(schedule: Mapping[str, Any]) -> str:
    """A schedule in its own words, short."""
    for word in ("cron", "every", "rrule", "at"):
        if word in schedule:
            value = schedule[word]
            text = value if isinstance(value, str) else json.dumps(value)
            first = text.splitlines()[0] if text else ""
            return first if word == "cron" else f"{word} {first}"
    return json.dumps(dict(schedule))


def status_word(trigger: Mapping[str, Any]) -> str:
    """The status; of a paused one, what stands in the way: its own pause, its deployment's, or its spec
    (`inactive`). `shadow` is an active one that fires nothing."""
    if trigger["status"] == "active" and trigger["shadow"]:
        return "shadow"
    if trigger["status"] == "paused" and not trigger["paused"]:
        return "deployment-paused" if trigger["deployment_paused"] else "inactive"
    return str(trigger["status"])


def _in_the_way(trigger: Mapping[str, Any]) -> str:
    """What keeps a trigger that is not paused itself."""
    if trigger["deployment_paused"]:
        return f"its deployment is: {_resumes(trigger)}"
    return f"it is not active: {trigger.get('inactive_because') or 'its spec says active: false'}"


def _resumes(trigger: Mapping[str, Any]) -> str:
    key = str(trigger["key"]).rpartition("/")[0]
    return f"`horarium deployments resume {shlex.quote(key)}` ends that"


async def _post(where: Where, trigger: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    async with connect(where) as api:
        path = await trigger_path(api, trigger)
        return (await api.send("POST", f"{path}/{verb}", body))[0]


async def created(api: Api, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """POST what makes something, under an idempotency key: after a lost answer it is asked once more."""
    from horarium.clock import SystemIds

    headers = {"idempotency-key": SystemIds().new_id()}
    try:
        answer, _ = await api.send("POST", path, body, headers=headers)
    except Failure as failure:
        if failure.code is not Exit.UNREACHABLE:
            raise
        answer, _ = await api.send("POST", path, body, headers=headers)
    return answer


def _show(found: Mapping[str, Any], now: datetime) -> None:
    facts(
        [
            ("trigger", found["key"]),
            ("status", state(status_word(found))),
            ("inactive", "" if found["active"] else found.get("inactive_because") or "active: false"),
            ("pause", _pause(found)),
            ("", f"its deployment is paused: {_resumes(found)}" if found["deployment_paused"] else ""),
            ("shadow", "yes: it is planned and decided, and nothing is fired" if found["shadow"] else ""),
            ("frozen", "yes: its deployment or project is" if found.get("frozen") else ""),
            ("error", styled(found.get("error") or "", "red")),
            ("schedule", schedule_text(found["schedule"])),
            ("", found.get("describe")),
            ("timezone", found["timezone"]),
            *((word, found["schedule"].get(word)) for word in ("dst", "dialect", "start", "end")),
            ("catch_up", found.get("catch_up")),
            ("overlap", None if found.get("overlap") == "allow" else found.get("overlap")),
            *(
                (word, found.get(word))
                for word in ("max_age", "jitter", "late_after", "retry_for", "completion_timeout")
                if found.get(word) != "0s"
            ),
            ("target", found["target"]),
            *((name, value) for name, value in (found.get("action") or {}).items()),
            *((word, found.get(word)) for word in ("parameters", "kickoff_time_arg", "owner", "runbook")),
            ("managed by", found.get("managed_by") or "people, through the API"),
            ("revision", found["revision"]),
            ("decided to", seconds(found.get("cursor"))),
            ("next", ", ".join(seconds(at) for at in found.get("next") or [])),
            ("last", _last_line(found.get("last_run"), now)),
        ]
    )


def _pause(found: Mapping[str, Any]) -> str:
    if not found["paused"]:
        return ""
    parts = [f"by {found['paused_by']}" if found.get("paused_by") else "", found.get("pause_note") or ""]
    if found.get("resume_at"):
        parts.append(f"resumes at {seconds(found['resume_at'])}")
    return ", ".join(part for part in parts if part)


def _last(run: Mapping[str, Any] | None) -> Any:
    return "" if run is None else state(_became(run))


def _became(run: Mapping[str, Any]) -> str:
    """What became of a run whose time has come: one that was not fired is owed, not planned."""
    if run["state"] == "scheduled":
        return "late" if run["late"] else "owed"
    return str(run.get("result") or run["state"])


def _last_line(run: Mapping[str, Any] | None, now: datetime) -> str:
    if run is None:
        return ""
    at = instant(run["scheduled_time"])
    when = distance(run["scheduled_time"], now) if at else ""
    return f"{seconds(run['scheduled_time'])} ({when}): {run['name']} {_became(run)}"
