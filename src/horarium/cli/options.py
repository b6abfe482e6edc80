"""What commands have in common: their class, the options that say where and how, and reading times.

`-2h` is a time and not an option: what begins with a dash and a digit is handed on as a value.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from horarium.cli.where import Where
from horarium.errors import InvalidInput, Problem, shown

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_TIMES = "2026-01-05T10:00:00Z, '2026-01-05 10:00', now, -2h or +30m"


class Command(click.Command):
    """A command whose arguments may be negative lengths of time."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # A blank in front makes it no option to click; whoever reads the time takes it off again.
        return super().parse_args(ctx, [f" {arg}" if re.match(r"-[.\d]", arg) else arg for arg in args])


class Group(click.Group):
    """A group of such commands, which knows what a mistyped name was meant to be."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = click.utils.make_str(args[0])
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            close = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f": did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"there is no command {name!r}{hint}")
        return super().resolve_command(ctx, args)


def connected(function: F) -> F:
    """Adds `--server`, `--db` and `--config`; the command takes them as `where: Where`."""

    @functools.wraps(function)
    def call(*args: Any, server: str | None, db: str | None, config: str | None, **kwargs: Any) -> Any:
        return function(*args, where=Where(server, db, config), **kwargs)

    for option in (
        click.option("--config", metavar="FILE", help="The settings file [HORARIUM_CONFIG, horarium.toml]."),
        click.option("--db", metavar="URL", help="The database to work on [HORARIUM_DB]."),
        click.option("--server", metavar="URL", help="The server to speak to [HORARIUM_SERVER]."),
    ):
        call = option(call)
    return call  # type: ignore[return-value]  # it takes the options in place of `where`


def output(function: F) -> F:
    """Adds `-o`; the command takes it as `as_json: bool`."""

    def chosen(_ctx: click.Context, _param: click.Parameter, value: str) -> bool:
        return value == "json"

    return click.option(
        "-o",
        "--output",
        "as_json",
        type=click.Choice(["table", "json"]),
        default="table",
        callback=chosen,
        help="A table for people, or JSON for programs.",
    )(function)


def zone_option(function: F) -> F:
    """Adds `--timezone`: the zone of times that are typed without one."""
    return click.option(
        "--timezone",
        "-z",
        metavar="ZONE",
        default="UTC",
        help="The zone of a time that is typed without an offset [UTC].",
    )(function)


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run the asynchronous part of a command."""
    import asyncio  # late: `preview` of an expression waits for nothing

    return asyncio.run(work)


def read_time(text: str, zone: str, pointer: str, *, end_of_day: bool = False) -> datetime:
    """The instant that a person typed: RFC 3339, a local time in `zone`, `now`, or a length from now.

    `pointer` names the option. Raises `InvalidInput`.
    """
    from horarium.core.duration import parse_duration
    from horarium.core.instant import from_seconds
    from horarium.core.once import parse_instant
    from horarium.core.zone import load_zone

    typed = text.strip()
    if typed.lower() == "now":
        return now().replace(microsecond=0)
    relative = re.fullmatch(r"([+-])\s*(.+)", typed)
    try:
        if relative:
            length = parse_duration(relative[2], pointer)
            return (now() + (length if relative[1] == "+" else -length)).replace(microsecond=0)
        place = load_zone(zone, "/timezone")
        return from_seconds(parse_instant(typed, place, pointer, end_of_day=end_of_day))
    except OverflowError:
        raise _no_time(typed, pointer, "a time lies between the years 1 and 9999") from None
    except InvalidInput as error:
        if any(problem.pointer == "/timezone" for problem in error.problems):
            raise
        raise _no_time(typed, pointer, error.problems[0].rule) from None


def now() -> datetime:
    """The host's time, to the second that `preview` and tables need."""
    from horarium.clock import SystemClock

    return SystemClock().now()


def _no_time(text: str, pointer: str, rule: str) -> InvalidInput:
    return InvalidInput(Problem(pointer, shown(text), rule, _TIMES, code="time"))


def local_and_utc(at: datetime, zone: str) -> str:
    """`2026-01-05T10:00:00Z`, with the zone's own time where it is another."""
    from horarium.core.instant import rfc3339, to_seconds
    from horarium.core.zone import load_zone

    text = rfc3339(at.replace(microsecond=0))
    offset = load_zone(zone).offset_at(to_seconds(at))
    if zone == "UTC":
        return text
    local = at.astimezone(UTC).replace(tzinfo=None) + timedelta(seconds=offset)
    return f"{text} ({local:%Y-%m-%d %H:%M:%S} in {zone})"
