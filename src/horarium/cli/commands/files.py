"""Commands on files alone: `validate`, `lint` and `init`. They need no server and no database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from horarium.cli.failure import Exit, Failure
from horarium.cli.options import Command, now, output
from horarium.cli.render import count, print_json, say
from horarium.errors import InvalidInput, Problem, shown


@click.command("validate", cls=Command)
@click.argument("paths", metavar="FILE|FOLDER...", nargs=-1, required=True)
@output
def validate_command(paths: tuple[str, ...], *, as_json: bool) -> int:
    """Check triggers files, and name every mistake with its line."""
    problems, triggers = _parsed(paths)
    if as_json:
        print_json({"ok": not problems, "triggers": triggers, "problems": problems})
        return Exit.FAILED if problems else Exit.OK
    if problems:
        raise Failure(count(len(problems), "problem"), problems=problems)
    say(f"{', '.join(paths)}: {count(triggers, 'trigger')}, no problem.")
    return Exit.OK


@click.command("lint", cls=Command)
@click.argument("paths", metavar="FILE|FOLDER...", nargs=-1, required=True)
@click.option("--ignore", "ignored", multiple=True, metavar="CODE", help="Say nothing of this kind.")
@click.option("--crowd", type=click.IntRange(min=1), help="How many triggers may share a second [20].")
@output
def lint_command(
    paths: tuple[str, ...], ignored: tuple[str, ...], crowd: int | None, *, as_json: bool
) -> int:
    """Say what in triggers files is right to the letter and will surprise you; 1 if there is something.

    \b
    never              no instant from now on
    rare               less than once a year
    day_or             both day fields are restricted, so either is enough
    dst_gap            a fixed time that a jump of the clock skips in the next two years
    dst_overlap        a fixed time that the clock shows twice in the next two years
    uneven_step        */n that does not divide its field, so the last step is shorter
    crowded            too many triggers in one second
    sub_minute         more often than once a minute
    zone_abbreviation  a zone named by letters that mean several places
    """
    from horarium import wiring
    from horarium.app.advice import CROWD, advice
    from horarium.cli.advice import show
    from horarium.core.lint import CODES

    unknown = [code for code in ignored if code not in CODES]
    if unknown:
        raise InvalidInput(
            [Problem("/ignore", shown(code), "no such code", ", ".join(CODES)) for code in unknown]
        )
    files = [parsed for path in paths for parsed in wiring.parse_files(path)]
    findings = advice(files, now(), ignored=ignored, crowd=crowd or CROWD)
    if as_json:
        print_json({"findings": findings})
    elif findings:
        show(findings)
    else:
        say(f"{count(sum(len(file.listing.triggers) for file in files), 'trigger')}, nothing to say.")
    return Exit.FAILED if findings else Exit.OK


@click.command("init", cls=Command)
@click.argument("file", metavar="[FILE]", default="triggers.yaml", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def init_command(file: Path, force: bool) -> None:
    """Write a commented triggers file (triggers.yaml unless named) to start from."""
    from horarium import wiring

    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(wiring.STARTER)
    except FileExistsError:
        raise Failure(f"{file} is there already", Exit.CONFLICT, hint="another name, or --force") from None
    say(f"{file} is written. Next: `horarium serve --apply {file}`")


def _parsed(paths: tuple[str, ...]) -> tuple[list[dict[str, Any]], int]:
    """Every problem of the files, and how many triggers they have."""
    from horarium import wiring

    problems: list[dict[str, Any]] = []
    triggers = 0
    for path in paths:
        try:
            triggers += sum(len(parsed.listing.triggers) for parsed in wiring.parse_files(path))
        except InvalidInput as error:
            found = [dict(problem.to_json()) for problem in error.problems]
            problems += found if len(paths) == 1 else [{**problem, "file": path} for problem in found]
    return problems, triggers
