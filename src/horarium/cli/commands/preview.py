"""`horarium preview`: when does it run next, and what do clock changes do to it.

An expression needs no server and no database: the same pure functions that plan runs are called here. A
trigger is looked up, so that its own rule, hash seed and jitter count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from horarium.cli import options
from horarium.cli.failure import Exit, Failure
from horarium.cli.options import Command, connected, output
from horarium.cli.render import clean, print_json, say, styled, table
from horarium.cli.where import Where
from horarium.core.instant import rfc3339
from horarium.errors import InvalidInput, Problem, shown

Preview = Mapping[str, Any]

_DURATION = re.compile(r"(?:[0-9.]+\s*[A-Za-zµ]+\s*)+|P(?=[0-9T])(?:[0-9.]+[WD])*(?:T(?:[0-9.]+[HMS])+)?")
_YEAR_FIRST = re.compile(r"\d{4}-\d\d-\d\d")
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_WORDS = ("cron", "every", "rrule", "at")


@click.command("preview", cls=Command)
@click.argument("expression", metavar="EXPR|TRIGGER")
@click.option("--timezone", "-z", metavar="ZONE", help="The zone of the schedule [UTC].")
@click.option("-n", "number", type=int, help="How many instants [10].")
@click.option("--from", "start", metavar="TIME", default="now", help="After this instant [now].")
@click.option("--dst", metavar="POLICY", help="vixie, literal or skip_once: what a clock change does.")
@click.option("--dialect", metavar="NAME", help="The dialect of a cron expression: horarium or robfig.")
@click.option(
    "--day-or/--day-and", "day_or", default=None, help="Two restricted day fields: either, or both."
)
@click.option("--compare", metavar="A,B", help="DST policies side by side: vixie,literal,skip_once.")
@click.option("--year", type=int, metavar="YEAR", help="Only what clock changes do, in a whole year.")
@click.option("--key", metavar="KEY", help="The trigger whose hash `H` takes.")
@output
@connected
def preview_command(
    expression: str,
    timezone: str | None,
    number: int | None,
    start: str,
    dst: str | None,
    dialect: str | None,
    day_or: bool | None,
    compare: str | None,
    year: int | None,
    key: str | None,
    *,
    as_json: bool,
    where: Where,
) -> None:
    """Show when EXPR or TRIGGER runs next.

    EXPR is a cron expression ('*/5 * * * *', '@daily', 'CRON_TZ=Europe/Berlin 0 9 * * *'), an interval
    ('every 20s', '@every 5m'), an RRULE or the name of an .ics file, an instant, or a mapping in JSON with
    the words of the triggers file. Anything else is the name of a trigger.

    \b
    horarium preview '30 2 * * *' --timezone Europe/Berlin --from 2026-03-28
    horarium preview '0 2 * * *' -z America/New_York --compare vixie,literal,skip_once --from 2026-03-07
    """
    words = words_of(expression)
    asked: dict[str, Any] = {"n": 10 if number is None else number, "compare": compare, "year": year}
    asked = {name: value for name, value in asked.items() if value is not None}
    given: dict[str, Any] = {"timezone": timezone, "dst": dst, "dialect": dialect, "day_or": day_or}
    given = {name: value for name, value in given.items() if value is not None}
    if words is not None:
        from horarium.app.preview import preview_rule

        rule = {**words, **given}
        from_time = options.read_time(start, str(rule.get("timezone", "UTC")), "/from")
        number = asked.pop("n")
        return _show(preview_rule(rule, start=from_time, number=number, key=key, **asked), as_json)
    own = [*(name for name in given if name != "timezone"), *(["key"] if key else [])]
    if own:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in own)
        raise Failure(f"{names}: a trigger says that itself", Exit.USAGE, hint="preview its expression")
    from_time = options.read_time(start, timezone or "UTC", "/from")
    return _show(options.wait_for(_of_trigger(where, expression.strip(), from_time, asked)), as_json)


def words_of(expression: str) -> dict[str, Any] | None:
    """The words of the triggers file that an expression stands for; None for what is a trigger's name.

    Raises `InvalidInput`.
    """
    text = expression.strip()
    lower = text.lower()
    if not text:
        raise _wrong(expression, "an expression or the name of a trigger is needed")
    if text.startswith("{"):
        return _mapping(text)
    if lower.endswith(".ics"):
        return {"rrule": Path(text).read_text(encoding="utf-8")}
    if re.match(r"(rrule|dtstart|begin|freq)\b", lower) or "freq=" in lower:
        return {"rrule": text}
    if lower.startswith("every "):
        return {"every": text[len("every ") :].strip()}
    if _YEAR_FIRST.match(text):
        return {"at": text}
    if _DURATION.fullmatch(text):
        return {"every": text}
    if _KEY.fullmatch(text):
        return None
    return {"cron": text}


async def _of_trigger(where: Where, name: str, start: datetime, asked: Mapping[str, Any]) -> Preview:
    from horarium.cli.client import connect
    from horarium.cli.lookup import trigger_path

    async with connect(where) as api:
        path = await trigger_path(api, name)
        return await api.get(f"{path}/preview", from_=rfc3339(start), **asked)


def _mapping(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _wrong(text, f"what begins with a brace is JSON: {error}") from None
    if not isinstance(found, dict):
        raise _wrong(text, "what begins with a brace is a mapping")
    # A calendar interval is a mapping itself: {"months": 1, "on_day": 31}.
    return found if any(word in found for word in _WORDS) else {"every": found}


def _wrong(text: str, rule: str) -> InvalidInput:
    return InvalidInput(
        Problem("/expression", shown(text), rule, "'*/5 * * * *', 'every 20s'", code="expression")
    )


# --- for people -----------------------------------------------------------------------------------------


def _show(preview: Preview, as_json: bool) -> None:
    if as_json:
        return print_json(preview)
    say(styled(_sentence(str(preview["describe"])), "bold"))
    items: Sequence[Mapping[str, Any]] = preview["items"]
    if preview.get("year") is not None:
        return _show_year(items, preview["year"])
    if preview.get("compare"):
        return _show_compared(preview["compare"])
    if not items:
        return say("It never runs after that.")
    has_due = any(item.get("due_at") for item in items)
    columns = ["LOCAL", "UTC", *(["TRIED AT"] if has_due else []), "NOTE"]
    return table(
        columns,
        (
            [_local(item["local"]), item["utc"], *([item.get("due_at")] if has_due else []), item.get("note")]
            for item in items
        ),
    )


def _show_compared(found: Mapping[str, Preview]) -> None:
    by_policy = {policy: {item["utc"]: item for item in shown["items"]} for policy, shown in found.items()}
    # Past the last instant that all of them reach, a missing one would only be cut off.
    ends = [max(items) for items in by_policy.values() if items]
    instants = sorted({utc for items in by_policy.values() for utc in items if utc <= min(ends, default="")})
    rows = []
    for utc in instants:
        cells = [
            styled("runs", "green") if utc in items else styled("-", "yellow") for items in by_policy.values()
        ]
        item = next(items[utc] for items in by_policy.values() if utc in items)
        notes = dict.fromkeys(
            f"{policy}: {items[utc]['note']}"
            for policy, items in by_policy.items()
            if utc in items and items[utc].get("note")
        )
        rows.append([_local(item["local"]), utc, *cells, _joined(list(notes))])
    if not rows:
        return say("It never runs after that.")
    return table(["LOCAL", "UTC", *(policy.upper() for policy in by_policy), "NOTE"], rows)


def _joined(notes: list[str]) -> str:
    """Policies that say the same share it: `vixie, skip_once: ...`."""
    by_text: dict[str, list[str]] = {}
    for note in notes:
        policy, _, text = note.partition(": ")
        by_text.setdefault(text, []).append(policy)
    if len(by_text) == 1 and len(notes) > 1:
        return next(iter(by_text))
    return "; ".join(f"{', '.join(policies)}: {text}" for text, policies in by_text.items())


def _show_year(items: Sequence[Mapping[str, Any]], year: int) -> None:
    if not items:
        return say(f"No clock change touches it in {year}.")
    return table(
        ["CLOCK CHANGE", "OUTCOME", "WHAT"],
        ([_local(item["local"]), item["outcome"], item["note"]] for item in items),
    )


def _local(text: str) -> str:
    """`Sun 2026-10-25 02:30:00 +02:00`: a weekday tells more than a `T`."""
    at = datetime.fromisoformat(text)
    return f"{at:%a %Y-%m-%d %H:%M:%S} {text[19:].replace('Z', '+00:00')}"


def _sentence(text: str) -> str:
    return clean(text[:1].upper() + text[1:])
