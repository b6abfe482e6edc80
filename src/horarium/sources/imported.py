"""What an import hands back, and how it writes its triggers file.

An import reads what another scheduler was told and writes a triggers file that does the same. Whatever can't
be carried over faithfully is never bent until it fits: the entry, or the part of it, is left out, named with
its place and the reason, in the report and as a comment in the file. Each other scheduler has a module of its
own beside this one; they share the report, the naming and the writing.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from horarium.core import schedule as schedules
from horarium.core.keys import NAME
from horarium.core.spec import Json
from horarium.errors import InvalidInput, Problem


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was not carried over. `line` is 1-based; `whole` says that the entry is lost, not a part of it."""

    line: int
    text: str
    reason: str
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person should know about an entry that was carried over."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Imported:
    """`text` is a triggers file in YAML, of `carried` deployments; `names` are theirs by line of what was
    imported, of several in one line the last.

    `unit` is what `line` counts: the lines of a text, or the rows of what has no lines.
    """

    text: str
    dropped: tuple[Dropped, ...] = ()
    notes: tuple[Note, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    unit: str = "line"
    carried: int = 0

    def in_shadow(self) -> Imported:
        """The same file, whose triggers start in shadow."""
        lines = self.text.split("\n")
        if _DEFAULTS in lines:
            lines.insert(lines.index(_DEFAULTS) + 1, _SHADOW)
        else:
            place = next(number for number, line in enumerate(lines) if line.startswith("deployments:"))
            lines[place:place] = [_DEFAULTS, _SHADOW]
        return replace(self, text="\n".join(lines))

    def of(self, **keys: str) -> Imported:
        """The same file, for a `project` or `domain` other than `default`."""
        lines = self.text.split("\n")
        place = next(number for number, line in enumerate(lines) if line.startswith("source:")) + 1
        lines[place:place] = [f"{key}: {quoted(name)}" for key, name in keys.items()]
        return replace(self, text="\n".join(lines))


_DEFAULTS = "defaults:"
_SHADOW = "  shadow: true  # until `horarium shadow off`"


class Drop(Exception):
    """Why an entry can't be carried over."""


@dataclass
class Report:
    """What an import has to say, as it goes on."""

    dropped: list[Dropped] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def drop(self, line: int, text: str, reason: str) -> None:
        """The entry is lost."""
        self.dropped.append(Dropped(line, text, reason))

    def lose(self, line: int, text: str, reason: str) -> None:
        """The entry is carried over, this part of it is lost."""
        self.dropped.append(Dropped(line, text, reason, whole=False))

    def note(self, line: int, text: str) -> None:
        self.notes.append(Note(line, text))

    def add(self, other: Report) -> None:
        """All of `other`: what was said of an entry, once it is known to be carried over."""
        self.dropped += other.dropped
        self.notes += other.notes


@dataclass(frozen=True)
class Entry:
    """A deployment of the written file, or a trigger of one: its words in the order they are written.

    What the report says of `line` stands above it; None is a trigger of which it says nothing.
    """

    name: str
    line: int | None
    words: Mapping[str, Json]
    comments: Sequence[str] = ()
    triggers: Sequence[Entry] = ()


def check_schedule(words: Mapping[str, Any], seed: str = "") -> None:
    """Raise `Drop` with the reason if the schedule among `words` is none."""
    try:
        schedules.parse({key: value for key, value in words.items() if key in _SCHEDULE}, seed=seed)
    except InvalidInput as error:
        raise refused(error) from error


def refused(error: InvalidInput) -> Drop:
    """The reason of an entry that breaks our own rules."""
    return Drop("; ".join(_reason(problem) for problem in error.problems))


_SCHEDULE = frozenset(
    {"cron", "every", "rrule", "at", "timezone", "dialect", "dst", "day_or", "start", "end"}
)


def _reason(problem: Problem) -> str:
    text = f"{problem.pointer.strip('/')} {problem.got}: {problem.rule}".strip()
    return f"{text} (try: {problem.hint})" if problem.hint else text


# --- naming -------------------------------------------------------------------------------------------


def unique_names(wanted: Iterable[tuple[str, str]]) -> list[str]:
    """A name for each of `wanted`, which are names and what tells two of one name apart.

    Names stay when other entries come and go: a second entry of one name is told apart by what it is, not
    by its place.
    """
    taken: set[str] = set()
    names: list[str] = []
    for slug, what in wanted:
        name = slug
        if name in taken:
            name = f"{slug[:80]}-{hashlib.blake2b(what.encode(), digest_size=3).hexdigest()}"
        count = 2
        base = name
        while name in taken:
            name, count = f"{base}-{count}", count + 1
        taken.add(name)
        names.append(name)
    return names


def name_of(text: str, otherwise: str) -> str:
    """`text` as a name; as it is where it can be one."""
    if NAME.fullmatch(text):
        return text
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:80].strip("-._") or otherwise


def last_of_each(keys: Sequence[tuple[str, int]], report: Report) -> list[bool]:
    """Which of `keys` (with their lines) count, where one that comes later takes the place of its like.

    An empty key is like no other.
    """
    last = {key: index for index, (key, _) in enumerate(keys)}
    counts = [not key or last[key] == index for index, (key, _) in enumerate(keys)]
    for (key, line), counted in zip(keys, counts, strict=True):
        if not counted:
            report.note(keys[last[key]][1], f"{key} is set in line {line} too; the last one counts")
    return counts


# --- values -------------------------------------------------------------------------------------------

LARGEST = 20_000
"""Values in one entry; a small file with aliases could stand for terabytes."""


def plain(value: Any) -> Json:
    """`value` as JSON has it. Raises `Drop` for what JSON can't say, and for what is larger than meant."""
    left = LARGEST

    def walk(value: Any, depth: int) -> Json:
        nonlocal left
        left -= 1
        if left < 0 or depth > 30:
            raise Drop(f"a value is deeper than 30 levels or holds more than {LARGEST:,} others")
        match value:
            case None | bool():
                return value
            case str():
                if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
                    raise Drop("a text holds a NUL character, or is not Unicode")
                return str(value)
            case int():
                if abs(value) >= 2**63:
                    raise Drop("a whole number is beyond 64 bits")
                return int(value)
            case float():
                if not math.isfinite(value):
                    raise Drop(f"{value!r} is no number that JSON can write")
                return float(value)
            case Mapping():
                if not all(isinstance(key, str) for key in value):
                    raise Drop("a mapping has a key that is no text")
                return {str(walk(key, depth)): walk(inner, depth + 1) for key, inner in value.items()}
            case list() | tuple():
                return [walk(inner, depth + 1) for inner in value]
            case _:
                raise Drop(f"{brief(value)} is nothing that JSON can say")

    return walk(value, 0)


def shorten(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def brief(value: Any) -> str:
    """`value` as a reason quotes it. What holds others is not walked: a few aliases stand for terabytes."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    return shorten(repr(str(value) if isinstance(value, str) else value))


def compact(values: Collection[int], low: int, high: int) -> str:
    """A cron field that means exactly `values`, of the whole numbers from `low` to `high`."""
    chosen = sorted(values)
    if chosen == list(range(low, high + 1)):
        return "*"
    if len(chosen) > 2:
        step = chosen[1] - chosen[0]
        if step > 1 and chosen == list(range(low, high + 1, step)):
            return f"*/{step}"
        if step > 1 and chosen == list(range(chosen[0], chosen[-1] + 1, step)):
            return f"{chosen[0]}-{chosen[-1]}/{step}"
    parts: list[list[int]] = []
    for value in chosen:
        if parts and parts[-1][-1] == value - 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    written: list[str] = []
    for part in parts:
        written += [f"{part[0]}-{part[-1]}"] if len(part) > 2 else [str(value) for value in part]
    return ",".join(written)


# --- writing ------------------------------------------------------------------------------------------


def written(
    heading: str,
    source: str,
    entries: Sequence[Entry],
    report: Report,
    *,
    top: Mapping[str, Json] | None = None,
    defaults: Mapping[str, Json] | None = None,
    unit: str = "line",
) -> Imported:
    """The triggers file of `entries`, with the report as comments at the places that it is about."""
    kept = {line for entry in entries for line in (entry.line, *(each.line for each in entry.triggers))}
    lines = [f"# {comment(heading)}"]
    lines += [
        f"# Not carried over, {unit} {item.line}: {comment(item.text)}: {comment(item.reason)}"
        for item in report.dropped
        if item.whole or item.line not in kept
    ]
    lines += [
        f"# Note, {unit} {note.line}: {comment(note.text)}" for note in report.notes if note.line not in kept
    ]
    lines.append(f"source: {quoted(source)}")
    lines += [f"{key}: {value(given)}" for key, given in (top or {}).items()]
    if defaults:
        lines.append(_DEFAULTS)
        lines += [f"  {key}: {value(given)}" for key, given in defaults.items()]
    lines.append("" if entries else "deployments: {}")
    if entries:
        lines.append("deployments:")

    def said(line: int) -> list[str]:
        return [
            *(f"Note, {unit} {line}: {note.text}" for note in report.notes if note.line == line),
            *(
                f"Not carried over, {unit} {line}: {item.text}: {item.reason}"
                for item in report.dropped
                if item.line == line and not item.whole
            ),
        ]

    by_line = {line: said(line) for line in kept if line is not None}

    def block(entry: Entry, indent: str) -> None:
        comments = [*entry.comments, *by_line.pop(entry.line or 0, ())]
        lines.extend(f"{indent}# {comment(text)}" for text in comments if text)
        lines.append(f"{indent}{quoted(entry.name)}:")
        lines.extend(f"{indent}  {quoted(key)}: {value(given)}" for key, given in entry.words.items())
        if entry.triggers:
            lines.append(f"{indent}  triggers:")
            for trigger in entry.triggers:
                block(trigger, indent + "    ")

    for entry in entries:
        block(entry, "  ")
    return Imported(
        "\n".join(lines).rstrip("\n") + "\n",
        tuple(sorted(report.dropped, key=lambda item: item.line)),
        tuple(sorted(report.notes, key=lambda note: note.line)),
        {entry.line: entry.name for entry in entries if entry.line is not None},
        unit,
        len(entries),
    )


def value(given: Json) -> str:
    """`given` as YAML 1.2 on one line."""
    match given:
        case None:
            return "null"
        case bool():
            return "true" if given else "false"
        case str():
            return quoted(given)
        case int():
            return str(given)
        case float():
            return repr(given)
        case dict():
            return "{" + ", ".join(f"{quoted(key)}: {value(inner)}" for key, inner in given.items()) + "}"
        case list():
            return "[" + ", ".join(value(inner) for inner in given) + "]"


_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_/.-]*")
_RESERVED = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def quoted(text: str) -> str:
    """`text` as a YAML 1.2 scalar on one line, in double quotes unless it is plainly a word."""
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    # U+FEFF and the line and paragraph separators are not printable to Python, and must not stand bare.
    if character.isprintable() and character != "\u00a0":
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def comment(text: str) -> str:
    """`text` as part of a comment: one line, printable."""
    return "".join(character if character.isprintable() else " " for character in text)[:500]
