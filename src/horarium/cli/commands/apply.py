"""`horarium apply`: make triggers as a file or folder says, and show what that changes.

The diff is of specs, field by field, and of slots: which planned runs go, which come.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from horarium.cli import options
from horarium.cli.client import connect
from horarium.cli.commands.triggers import created, schedule_text
from horarium.cli.failure import Exit, Failure
from horarium.cli.options import Command, connected, output
from horarium.cli.render import count, print_json, say, short_key, styled
from horarium.cli.where import Where
from horarium.errors import InvalidInput, Problem, shown

_SLOTS = 3
"""Slots that one trigger shows each way; the rest are counted."""

_VALUE = 100
"""Characters of a value in a diff."""


@click.command("apply", cls=Command)
@click.argument("path", metavar="FILE|FOLDER")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--exit-code", is_flag=True, help="Exit with 2 if there are changes, 0 if there are none.")
@click.option("--prune", is_flag=True, help="Withdraw the triggers of files that have left the folder too.")
@click.option("--allow-withdraw", is_flag=True, help="Let one pass withdraw many triggers.")
@output
@connected
def apply_command(
    path: str,
    dry_run: bool,
    exit_code: bool,
    prune: bool,
    allow_withdraw: bool,
    *,
    as_json: bool,
    where: Where,
) -> int:
    """Make triggers as FILE, or every triggers file in FOLDER, says.

    What a file no longer names is withdrawn: its later runs go, its past stays. A file is the source of its
    triggers, under the name that `source:` gives it, else under its absolute path.
    """
    if prune and not Path(path).is_dir():
        raise Failure(
            "--prune withdraws the triggers of files that have left a folder, and this is no folder",
            Exit.USAGE,
            hint="apply the folder; what a file no longer names goes without --prune",
        )
    body: dict[str, Any] = {
        "files": read_files(path),
        "dry_run": dry_run,
        "prune": prune,
        "allow_withdraw": allow_withdraw,
    }
    if Path(path).is_dir():
        body["folder"] = str(Path(path).absolute())

    async def work() -> dict[str, Any]:
        async with connect(where, create=True) as api:
            return await created(api, "/apply", body)

    found = options.wait_for(work())
    changed = bool(found.get("changed"))
    if as_json:
        print_json(found)
    else:
        show(found, dry_run)
    refused = [f"{item['source']}: {item['refused']}" for item in found["sources"] if item.get("refused")]
    if refused:
        raise Failure(
            "nothing was written: " + "; ".join(refused), hint="--allow-withdraw, if that is what you want"
        )
    return Exit.USAGE if changed and exit_code else Exit.OK


def read_files(path: str) -> list[dict[str, str]]:
    """The triggers files at `path` as the API takes them. Raises `InvalidInput` and `SourceUnavailable`."""
    from horarium import wiring

    found = []
    for file in wiring.files_at(path):
        try:
            found.append({"path": str(file), "text": file.read_bytes().decode("utf-8-sig")})
        except UnicodeDecodeError as error:
            got = f"{file}: the byte 0x{error.object[error.start]:02x}"
            raise InvalidInput(
                Problem("", shown(got), "a triggers file is UTF-8", "save it as UTF-8", code="encoding")
            ) from None
    if not found:
        raise Failure(
            f"there is no triggers file in {path}", hint="a file whose name ends in .yaml, .yml or .json"
        )
    return found


def show(found: Mapping[str, Any], dry_run: bool) -> None:
    """The diff, then one line that sums it up."""
    added = edited = withdrawn = unchanged = others = 0
    for source in found["sources"]:
        parts = [source.get(name) or [] for name in ("added", "edited", "withdrawn")]
        extra = list(_others(source, parts))
        added, edited, withdrawn = (
            total + len(part) for total, part in zip((added, edited, withdrawn), parts, strict=True)
        )
        unchanged += _number(source.get("unchanged"))
        others += len(extra)
        if not any(parts) and not extra:
            continue
        say(styled(f"source {source['source']}", "bold"))
        for sign, style, text in extra:
            say(styled(f"  {sign} {text}", style))
        for item in parts[0]:
            _added(_entry(item))
        for item in parts[1]:
            _edited(_entry(item))
        for item in parts[2]:
            _withdrawn(_entry(item))
        say("")
    if found.get("lint"):
        from horarium.cli.advice import show as show_advice

        show_advice(found["lint"])
        say("")
    summary = f"{added} added, {edited} edited, {withdrawn} withdrawn, {unchanged} unchanged"
    if others:
        summary += f"; {count(others, 'change')} of targets and deployments"
    if not found.get("changed"):
        say(f"Nothing to change in {count(unchanged, 'trigger')}.")
    elif dry_run:
        say(f"{summary} (dry run: nothing was written).")
    elif found.get("refused"):
        say(f"{summary} (refused: nothing was written).")
    else:
        say(f"{summary}.")


def _added(item: Mapping[str, Any]) -> None:
    schedule = item.get("schedule")
    what = schedule_text(schedule) if isinstance(schedule, Mapping) else ""
    zone = schedule.get("timezone") if isinstance(schedule, Mapping) else None
    say(styled(f"  + {_name(item)}", "green"), f"  {what}{f'  ({zone})' if zone else ''}")
    _slots(item)


def _edited(item: Mapping[str, Any]) -> None:
    renamed = f" (was {short_key(item['renamed_from'])})" if item.get("renamed_from") else ""
    say(styled(f"  ~ {_name(item)}{renamed}", "yellow"))
    changes = item.get("changes") or []
    width = max((len(str(change["field"])) for change in changes), default=0)
    for change in changes:
        say(
            f"      {str(change['field']).ljust(width)}  ",
            styled(_value(change.get("old")), "red"),
            " → ",
            styled(_value(change.get("new")), "green"),
        )
    _slots(item)


def _withdrawn(item: Mapping[str, Any]) -> None:
    say(styled(f"  - {_name(item)}", "red"))
    _slots(item)


def _slots(item: Mapping[str, Any]) -> None:
    for name, sign, style, word in (
        ("runs_withdrawn", "-", "red", "goes"),
        ("runs_added", "+", "green", "comes"),
    ):
        slots = item.get(name) or []
        number = int(item.get(f"{name}_count") or len(slots))
        for at in slots[:_SLOTS]:
            say(styled(f"      {sign} {at}", style))
        if number > len(slots[:_SLOTS]):
            more = number - len(slots[:_SLOTS])
            verb = word if more == 1 else {"goes": "go", "comes": "come"}[word]
            say(styled(f"      {sign} {count(more, 'more run')} {verb}", style))
    if item.get("slots_skipped"):
        say(styled(f"      {count(int(item['slots_skipped']), 'owed slot')} skipped", "yellow"))


def _others(source: Mapping[str, Any], triggers: Iterable[Iterable[Any]]) -> Iterable[tuple[str, str, str]]:
    """Targets that change, and deployments that change while none of their triggers does."""
    for name in source.get("targets") or []:
        yield "~", "yellow", f"target {name}"
    for name in source.get("targets_withdrawn") or []:
        yield "-", "red", f"target {name}"
    shown = {str(_entry(item).get("key")).rpartition("/")[0] for part in triggers for item in part}
    for sign, style, word in (("~", "yellow", "deployments"), ("-", "red", "deployments_withdrawn")):
        for key in source.get(word) or []:
            if key not in shown:
                yield sign, style, f"deployment {key}"


def _entry(item: Any) -> Mapping[str, Any]:
    return item if isinstance(item, Mapping) else {"key": str(item)}


def _name(item: Mapping[str, Any]) -> str:
    key = str(item.get("key") or item.get("name") or "")
    return short_key(key) if key.count("/") == 3 else key


def _number(value: Any) -> int:
    return len(value) if isinstance(value, list) else int(value or 0)


def _value(value: Any) -> str:
    text = "(none)" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE else text[: _VALUE - 1] + "…"
