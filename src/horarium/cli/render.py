"""What commands print: tables and sentences for people, one JSON document for programs.

Colour only on a terminal, and not where `NO_COLOR` is set. A table that goes into a pipe or a file is not
wrapped, so that a line stays a row. Values from outside can't steer the terminal: control characters are
replaced.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from horarium.core.duration import format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_UNWRAPPED = 100_000
"""Columns of what is not a terminal: no row is longer."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

STATE_STYLES = {
    "fired": "green",
    "succeeded": "green",
    "active": "green",
    "failed": "red",
    "errored": "red",
    "error": "red",
    "interrupted": "red",
    "late": "yellow",
    "owed": "yellow",
    "held": "yellow",
    "shadowed": "cyan",
    "shadow": "cyan",
    "paused": "yellow",
    "deployment-paused": "yellow",
    "inactive": "dim",
    "skipped": "yellow",
    "deleted": "dim",
    "cancelled": "dim",
    "finished": "dim",
    "never": "dim",
    "running": "cyan",
    "projected": "dim",
}


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def say(*parts: str | Text) -> None:
    """One line for people; parts follow each other."""
    from rich.text import Text

    line = Text()
    for part in parts:
        line.append(clean(part)) if isinstance(part, str) else line.append_text(part)
    out = _console()
    with out.capture() as captured:
        out.print(line, soft_wrap=True)
    _write(captured.get())


def styled(text: object, style: str = "") -> Text:
    """`text` in a style; `style` is a word of `STATE_STYLES` or rich's own."""
    from rich.text import Text

    return Text(clean(str(text)), style=STATE_STYLES.get(style, style))


def state(word: object) -> Text:
    """A state in its colour."""
    return styled(word, STATE_STYLES.get(str(word), ""))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, indent: int = 0) -> None:
    """Rows under headings. A column whose heading begins with `>` stands to the right. Empty columns are left
    out, so that a table has only what it says."""
    from rich.table import Table
    from rich.text import Text

    cells = [[cell if isinstance(cell, Text) else Text(clean(_cell(cell))) for cell in row] for row in rows]
    kept = [i for i in range(len(columns)) if not cells or any(row[i].plain for row in cells)]
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i in kept:
        name = columns[i].removeprefix(">")
        drawn.add_column(
            name, justify="right" if columns[i].startswith(">") else "left", overflow="fold", no_wrap=False
        )
    for row in cells:
        drawn.add_row(*(row[i] for i in kept))
    out = _console()
    with out.capture() as captured:
        out.print(drawn)
    _write("".join(" " * indent + line.rstrip() + "\n" for line in captured.get().splitlines()))


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line; what is None or empty is left out."""
    from rich.text import Text

    shown = [
        (name, value)
        for name, value in pairs
        if value not in (None, "", [], {}) and not (isinstance(value, Text) and not value.plain)
    ]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(
            styled(name.ljust(width + 2), "dim"),
            value if isinstance(value, Text) else _cell(value),
        )


def clean(text: str) -> str:
    """`text` without characters that would steer a terminal; line breaks and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def instant(text: str | None) -> datetime | None:
    """A time of the API."""
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)


def seconds(text: str | None) -> str:
    """A time of the API to the second, as people copy it: `2026-01-05T10:00:00Z`."""
    at = instant(text)
    return "" if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def distance(text: str | None, now: datetime) -> str:
    """How far a time of the API is from `now`: `in 5m`, `2h ago`. Two units at most."""
    at = instant(text)
    if at is None:
        return ""
    return f"in {short(at - now)}" if at >= now else f"{short(now - at)} ago"


def short(length: timedelta) -> str:
    """A length with its two largest units: `2d3h`, `1m5s`, `0s`."""
    whole = timedelta(seconds=round(length.total_seconds()))
    return "".join(re.findall(r"\d+[a-z]+", format_duration(whole))[:2])


def count(number: int, word: str, plural: str | None = None) -> str:
    """`1 run`, `3 runs`, `1,200 skips`."""
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


def short_key(key: str) -> str:
    """A key without the parts that need not be typed."""
    project, domain, deployment, name = key.split("/")
    if (project, domain) != ("default", "default"):
        return key
    return deployment if name == "default" else f"{deployment}/{name}"


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case Mapping() | list() | tuple():
            return json.dumps(value, ensure_ascii=False) if value else ""
        case _:
            return str(value)


def _console() -> Console:
    from rich.console import Console

    terminal = sys.stdout.isatty()
    width: dict[str, Any] = {} if terminal else {"width": _UNWRAPPED}
    return Console(file=sys.stdout, markup=False, highlight=False, emoji=False, **width)


def _write(text: str) -> None:
    sys.stdout.write(text)
