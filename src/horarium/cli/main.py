"""The `horarium` command: which commands there are, and how each of them ends.

Commands are imported when they are called, so that `horarium preview` does not wait for a database driver.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from horarium import __version__
from horarium.cli.failure import Exit, Failure, failure_of
from horarium.cli.options import Command, Group
from horarium.errors import HorariumError

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve", "Run Horarium: sync, plan, fire, and the API."),
    "apply": ("apply", "Make triggers as a file or folder says."),
    "sync": ("sync", "Take over the triggers of another system, such as Flyte, once."),
    "validate": ("files", "Check triggers files; needs no database."),
    "lint": ("files", "Say what in triggers files will surprise you."),
    "init": ("files", "Write a commented triggers file to start from."),
    "import": ("imports", "Make a triggers file of something else."),
    "preview": ("preview", "Show when a schedule or a trigger runs next."),
    "status": ("status", "Show how everything stands."),
    "owed": ("owed", "Show what is owed, and what targets make of names that they have had."),
    "why": ("status", "Say what became of an instant, and why."),
    "triggers": ("triggers", "List, show, pause, resume, delete, run triggers."),
    "deployments": ("deployments", "List, show, pause, resume deployments: all their triggers."),
    "runs": ("runs", "List, show, retry, cancel runs; read their output."),
    "skips": ("runs", "List the slots that policy decided not to run."),
    "backfill": ("backfill", "Run the past slots of a trigger that have no run."),
    "plan": ("plan", "Have the runs of a range ahead now, before the window comes to them."),
    "freeze": ("freeze", "Stop firing: a target, a deployment, a project or everything."),
    "release": ("freeze", "End a freeze, and say what becomes of what was owed."),
    "shadow": ("shadow", "Decide and fire nothing, beside another scheduler; compare; cut over."),
    "db": ("db", "Upgrade, downgrade, check, back up the database."),
}
"""Each command: the module under `commands` that has it, and its line in `--help`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line `arguments` (those of the process unless given) and exit with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """The same, returning the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal without UTF-8 shows '?' for an arrow; it must not end the command.
            stream.reconfigure(errors="replace")
    try:
        code = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has gone (`| head`). What Python would still flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.PIPE
    return code


def _run(arguments: list[str]) -> int:
    try:
        result = _invoke(arguments)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        return _usage(error)
    except click.ClickException as error:
        return _fail(Failure(error.format_message(), Exit.FAILED), arguments)
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except Failure as failure:
        return _fail(failure, arguments)
    except HorariumError as error:
        return _fail(failure_of(error), arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(Failure(f"{name}{error.strerror or error}"), arguments)
    except Exception as error:
        refused = _database_says(error)
        if refused is None:
            raise
        hint = "--db names another database"
        unusable = Failure(f"the database can't be used: {refused}", Exit.UNREACHABLE, hint=hint)
        return _fail(unusable, arguments)
    return result if isinstance(result, int) else Exit.OK


def _database_says(error: Exception) -> str | None:
    """What a database driver found before the store was open, such as a file that is no database."""
    module = sys.modules.get("sqlalchemy.exc")  # not imported here: most commands never need it
    if module is None or not isinstance(error, module.DBAPIError):
        return None
    return str(error.orig)


def _invoke(arguments: list[str]) -> object:
    """Call the command. Not by click's `main`, which makes a closed pipe look like a refusal (code 1)."""
    if "_HORARIUM_COMPLETE" in os.environ:  # a shell asks for completions, which `main` knows to give
        return horarium.main(args=arguments, prog_name="horarium", standalone_mode=False)
    with horarium.make_context("horarium", arguments) as context:
        return horarium.invoke(context)


def _fail(failure: Failure, arguments: list[str]) -> int:
    """Say it in the form that was asked for. Standard output keeps only what succeeded."""
    if _wants_json(arguments):
        print(json.dumps(failure.to_json(), ensure_ascii=False), file=sys.stderr)
    else:
        from horarium.cli.render import clean

        print(clean(failure.text()).rstrip(), file=sys.stderr)
    return failure.code


def _usage(error: click.UsageError) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        print(error.format_message(), file=sys.stderr)
        return Exit.USAGE
    print(f"error: {error.format_message()}", file=sys.stderr)
    if error.ctx is not None:
        print(f"  try   {error.ctx.command_path} --help", file=sys.stderr)
    return Exit.USAGE


def _wants_json(arguments: list[str]) -> bool:
    """Whether `-o json` was typed, as far as it can be told of a line that may be wrong."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return any(
        word in ("-ojson", "-o=json", "--output=json") or (word in ("-o", "--output") and value == "json")
        for word, value in pairs
    )


class _Lazy(Group):
    """Knows its commands by name, and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"horarium.cli.commands.{COMMANDS[cmd_name][0]}")
        found: Any = getattr(module, f"{cmd_name}_command")
        assert isinstance(found, Command | Group)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list for `--help`, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", prog_name="horarium", message="%(prog)s %(version)s")
def horarium() -> None:
    """A durable schedule service: exactly one run for every slot of every trigger.

    Commands speak to the server that --server or HORARIUM_SERVER names; without one they work straight on the
    database of --db or HORARIUM_DB (sqlite:///horarium.db). -o json prints for programs.
    """
