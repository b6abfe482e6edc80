"""Text into plain data: YAML 1.2 or JSON, strict, bounded, and with the line of every value.

What comes out is what JSON can say: mappings with text keys, lists, text, whole and decimal numbers, true,
false and null. YAML's other features are refused, because each has surprised somebody: anchors and aliases
(one small file can stand for terabytes), tags, merge keys, several documents, other versions than 1.2.
Duplicate keys are errors in both formats. Values are typed by the core schema of YAML 1.2 and no other, so
`no` and `yes` are text, `010` is ten, and `18:00` is text.

The YAML reader turns ruamel's events into data itself: its loaders are slower, keep no position of a
plain value, and know types of YAML 1.1. JSON goes through the standard library first; positions are found
by a second walk that runs only when there is something to point at.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from json.decoder import scanstring  # type: ignore[attr-defined] # typeshed leaves it out; public since 3.1
from typing import Any, NamedTuple, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from horarium.core.spec import Json
from horarium.errors import InvalidInput, Problem, shown

MAX_BYTES = 32 * 1024 * 1024
"""The largest file that is read: some 300,000 triggers."""

MAX_DEPTH = 40
"""How deep values nest; triggers need 6, the rest is for parameters."""

MAX_INTEGER = 2**63
"""Whole numbers are below this in size: what every database and target can hold."""


class Mark(NamedTuple):
    """Where a value is: 1-based line and column of its key (or of itself in a list) and of its value."""

    key_line: int
    key_column: int
    line: int
    column: int
    inside: Marks | None


Marks: TypeAlias = dict[str, Mark]
"""Positions in a mapping by key, or in a list by index written as text, as in a JSON pointer."""


@dataclass(frozen=True)
class Document:
    """What a text says, the problems that leave it readable (duplicate keys, tags), and where all is."""

    data: Json
    problems: tuple[Problem, ...] = ()
    marks: Callable[[], Marks] = field(default=dict, repr=False)

    def located(self, problems: list[Problem]) -> list[Problem]:
        """`problems` with line and column, as far as their pointers lead into the text."""
        if all(problem.line is not None for problem in problems):
            return problems
        marks = self.marks()
        return [problem if problem.line is not None else _located(problem, marks) for problem in problems]


AT_KEY = frozenset(
    {"unknown-key", "unknown_key", "unknown-field", "duplicate", "name", "not-yet", "conflict"}
)
"""Codes of problems that are about a key, not about its value: the position is the key's."""


def read_document(text: str, *, as_json: bool = False) -> Document:
    """The data of `text`. Raises `InvalidInput` where it can't be read at all.

    JSON is recognised by its content, and insisted on where `as_json`.
    """
    if len(text) > MAX_BYTES:
        raise InvalidInput(
            Problem(
                "", f"{len(text):,} characters", f"a file has at most {MAX_BYTES:,}", "split it", code="size"
            )
        )
    if as_json or text.lstrip("\ufeff \t\r\n").startswith("{"):
        try:
            return _read_json(text.removeprefix("\ufeff"))
        except InvalidInput:
            raise
        except json.JSONDecodeError as error:
            # A YAML flow mapping begins with a brace too.
            if as_json:
                raise InvalidInput(_json_fault(error)) from error
    return _read_yaml(text)


def escape(key: str) -> str:
    """A key as a reference token of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1") if "/" in key or "~" in key else key


def _located(problem: Problem, marks: Marks) -> Problem:
    at: tuple[int, int] = (1, 1)
    inside: Marks | None = marks
    for token in problem.pointer.split("/")[1:]:
        mark = None if inside is None else inside.get(token.replace("~1", "/").replace("~0", "~"))
        if mark is None:
            # The field is absent, or inherited: the nearest thing that is written down.
            break
        on_key = problem.code in AT_KEY
        at = (mark.key_line, mark.key_column) if on_key else (mark.line, mark.column)
        inside = mark.inside
    return replace(problem, line=at[0], column=at[1])


def _wrong_text(value: str) -> str | None:
    """Why `value` can't be kept as text, or None."""
    if "\0" in value:
        return "text holds no NUL character: neither a process nor PostgreSQL takes one"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "text is Unicode, without lone surrogates"
    return None


_ENOUGH = 500
"""Problems of one text: more than anybody reads, and what bounds the work on a hostile one."""

_INTEGER_RULE = "a whole number is between -2^63 and 2^63"
_FINITE_RULE = "a number is finite, and JSON can write it"


# --- YAML ---------------------------------------------------------------------------------------------

_CONSTANTS: dict[str, Json] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_NUMERIC_START = frozenset("-+.0123456789")
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

_LONGEST_NUMBER = 400
"""Characters of a number; Python refuses to read whole numbers of more than 4,300 digits."""


def _read_yaml(text: str) -> Document:
    composer = _Composer(text)
    try:
        data, marks = composer.document()
    except InvalidInput:
        raise
    except YAMLError as error:
        raise InvalidInput(_traps(text, composer.pointer(), error)) from error
    except Exception as error:
        # ruamel's scanner fails in other ways on some texts (an escape past the end of Unicode is an
        # OverflowError); whatever it says, the text is not YAML, and it is the file that is at fault.
        line = composer.line
        raise InvalidInput(
            Problem(
                composer.pointer(),
                _quoted(_line(text, line)),
                f"this is not YAML ({error})",
                code="syntax",
                line=line,
            )
        ) from error
    return Document(data, tuple(composer.problems), lambda: marks)


class _Composer:
    """One pass over a text's events."""

    def __init__(self, text: str) -> None:
        loader = YAML(typ="safe", pure=True)
        loader.version = (1, 2)
        self._text = text
        self._events: Iterator[Any] = iter(loader.parse(text))
        self._path: list[str] = []
        self.problems: list[Problem] = []
        self.line = 1  # of the last event: where to look when the scanner fails without a mark

    def pointer(self) -> str:
        return "".join("/" + escape(token) for token in self._path)

    def document(self) -> tuple[Json, Marks]:
        marks: Marks = {}
        data: Json = None
        started = False
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                if started:
                    raise self._fault(
                        event, "a second document", "a file holds one document", "take the --- out"
                    )
                started = True
                if event.version not in (None, (1, 2)):
                    raise self._fault(
                        event,
                        f"%YAML {event.version[0]}.{event.version[1]}",
                        "the file is read as YAML 1.2",
                        "%YAML 1.2",
                    )
                if event.tags:
                    raise self._fault(event, "%TAG", "tags are not used", "take the line out")
                data, inside = self._node(next(self._events))
                marks = inside or {}
            elif isinstance(event, StreamEndEvent):
                break
        return data, marks

    def _node(self, event: Any) -> tuple[Json, Marks | None]:
        if isinstance(event, ScalarEvent):
            return self._scalar(event), None
        if isinstance(event, AliasEvent):
            self.problems.extend(_unquoted_on(self._text, event.start_mark.line + 1, self.pointer()))
            if self.problems:
                raise InvalidInput(self.problems)
            raise self._fault(
                event,
                f"*{event.anchor}",
                "an unquoted * begins a YAML alias, and aliases are not used here",
                "quote the value, or write it out in both places",
                code="alias",
            )
        if len(self._path) >= MAX_DEPTH:
            raise self._fault(event, "a deeper value", f"values nest at most {MAX_DEPTH} deep", code="depth")
        self._plain(event)
        if isinstance(event, MappingStartEvent):
            return self._mapping()
        if isinstance(event, SequenceStartEvent):
            return self._sequence()
        raise self._fault(event, type(event).__name__, "a value was expected here")

    def _mapping(self) -> tuple[Json, Marks]:
        data: dict[str, Json] = {}
        marks: Marks = {}
        for event in self._events:
            if isinstance(event, MappingEndEvent):
                break
            at = event.start_mark
            key = self._key(event)
            self._path.append(key)
            value_event = next(self._events)
            value_at = value_event.start_mark
            value, inside = self._node(value_event)
            if key in data:
                first = marks[key].key_line
                self._problem(
                    at,
                    key,
                    f"a key is there once; this one is on line {first} too",
                    "rename or remove one",
                    "duplicate",
                )
            else:
                data[key] = value
                marks[key] = Mark(at.line + 1, at.column + 1, value_at.line + 1, value_at.column + 1, inside)
            self._path.pop()
        return data, marks

    def _sequence(self) -> tuple[Json, Marks]:
        data: list[Json] = []
        marks: Marks = {}
        for event in self._events:
            if isinstance(event, SequenceEndEvent):
                break
            at = event.start_mark
            index = str(len(data))
            self._path.append(index)
            value, inside = self._node(event)
            self._path.pop()
            data.append(value)
            marks[index] = Mark(at.line + 1, at.column + 1, at.line + 1, at.column + 1, inside)
        return data, marks

    def _key(self, event: Any) -> str:
        if isinstance(event, AliasEvent):
            self._node(event)
        if not isinstance(event, ScalarEvent):
            raise self._fault(
                event,
                "a list or mapping",
                "a key is text",
                "quote the key; a value that begins with ?, [ or { needs quotes too",
                code="key",
            )
        self._plain(event)
        text: str = event.value
        if event.implicit[0] and not isinstance(_plain_value(text), str):
            self._problem(event.start_mark, text, "a key is text", f'quote it: "{text}"', "key")
        elif text == "<<" and event.implicit[0]:
            self._problem(
                event.start_mark, text, "merge keys are not used", "write the fields out", "unknown-key"
            )
        elif (why := _wrong_text(text)) is not None:
            self._problem(event.start_mark, ascii(text), why, "", "text")
            return ascii(text)
        return text

    def _scalar(self, event: Any) -> Json:
        self._plain(event)
        text: str = event.value
        if event.implicit[0]:
            value = _plain_value(text)
            if isinstance(value, _Bad):
                self._problem(event.start_mark, shown(text), value.rule, "quote it if it is text", "number")
                return None
            if not isinstance(value, str):
                return value
        if (why := _wrong_text(text)) is not None:
            self._problem(event.start_mark, ascii(text)[:120], why, "", "text")
            return ""
        return text

    def _plain(self, event: Any) -> None:
        """Notes an anchor or a tag, which are refused but don't make the rest unreadable."""
        self.line = event.end_mark.line + 1
        if event.anchor is not None:
            self._problem(
                event.start_mark,
                f"&{event.anchor}",
                "anchors are not used",
                "quote a value that begins with &",
                "alias",
            )
        tag = None if event.ctag is None else str(event.ctag)
        if tag is not None:
            self._problem(
                event.start_mark,
                shown(tag),
                "tags are not used",
                'quote text: "5"; a value that begins with ! too',
                "tag",
            )

    def _problem(self, mark: Any, got: str, rule: str, hint: str, code: str) -> None:
        self.problems.append(
            Problem(self.pointer(), got, rule, hint, code=code, line=mark.line + 1, column=mark.column + 1)
        )
        if len(self.problems) >= _ENOUGH:
            raise InvalidInput(self.problems)

    def _fault(self, event: Any, got: str, rule: str, hint: str = "", code: str = "syntax") -> InvalidInput:
        self._problem(event.start_mark, got, rule, hint, code)
        return InvalidInput(self.problems)


@dataclass(frozen=True)
class _Bad:
    rule: str


def _plain_value(text: str) -> Json | _Bad:
    """An unquoted scalar under the core schema of YAML 1.2.2 §10.3.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in _NUMERIC_START:
        return text
    if _FLOAT.fullmatch(text):
        if len(text) > _LONGEST_NUMBER:
            return _Bad(f"a number has at most {_LONGEST_NUMBER} characters")
        if _INT.fullmatch(text):
            return _integer(int(text))
        number = float(text)
        return number if math.isfinite(number) else _Bad(_FINITE_RULE)
    if _OCTAL.fullmatch(text):
        return _integer(int(text, 8))
    if _HEX.fullmatch(text):
        return _integer(int(text, 16))
    return _Bad(_FINITE_RULE) if _NOT_FINITE.fullmatch(text) else text


def _integer(number: int) -> int | _Bad:
    return number if abs(number) < MAX_INTEGER else _Bad(_INTEGER_RULE)


_UNQUOTED = re.compile(
    r"(?:^|[{,\s])([\w.-]+):[ \t]+([*@%`](?:(?!,[ \t]*[\w.-]+:|[ \t]#)[^\n}])*)", re.MULTILINE
)
"""A field whose unquoted value begins with a character that means something else to YAML. In a flow mapping
the value ends at `}` or before the next field; a comma alone may belong to a cron expression."""


def _traps(text: str, pointer: str, error: YAMLError) -> list[Problem]:
    """What a syntax error of the scanner means to somebody who wrote a schedule."""
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        # A character that YAML does not allow; the reader says where, but in characters from the start.
        position = getattr(error, "position", 0) or 0
        character = getattr(error, "character", "")
        line = text.count("\n", 0, position) + 1
        column = position - (text.rfind("\n", 0, position) + 1) + 1
        return [
            Problem(
                pointer,
                ascii(chr(character)) if isinstance(character, int) else ascii(character),
                "YAML holds printable characters only",
                "take it out, or write it as an escape in double quotes",
                code="syntax",
                line=line,
                column=column,
            )
        ]
    mark = error.problem_mark
    source = _line(text, mark.line + 1)
    if trapped := _unquoted_on(text, mark.line + 1, pointer):
        return trapped
    said = f"{error.context}: {error.problem}" if error.context else f"{error.problem}"
    hint = ""
    if "\\t" in said or "\t" in source[: mark.column + 1]:
        said, hint = "tabs don't indent in YAML", "use spaces"
    elif "mapping values are not allowed" in said:
        said, hint = (
            f"a ': ' inside an unquoted value, or wrong indentation ({error.problem})",
            "quote the whole value",
        )
    elif "expected <block end>" in said:
        hint = "line the key up with its neighbours; nothing may follow a closing quote or bracket"
    elif "quoted scalar" in said:
        hint = "close the quote"
    elif "flow" in said:
        hint = "close the bracket, and put commas between fields"
    return [
        Problem(
            pointer,
            _quoted(source),
            said,
            hint,
            code="syntax",
            line=mark.line + 1,
            column=mark.column + 1,
        )
    ]


_CHARACTER_MEANS = {
    "*": "an unquoted * begins a YAML alias",
    "@": "@ can't begin an unquoted YAML value",
    "%": "% can't begin an unquoted YAML value",
    "`": "` can't begin an unquoted YAML value",
}


def _unquoted_on(text: str, line: int, pointer: str) -> list[Problem]:
    """If `line` has an unquoted trap: that one under `pointer`, and every other of the file too."""
    found: list[Problem] = []
    hit = False
    here, counted = 1, 0
    for match in _UNQUOTED.finditer(text):
        value, start = match[2].rstrip(), match.start(2)
        here += text.count("\n", counted, start)
        counted = start
        first = here == line and not hit
        hit = hit or first
        found.append(
            Problem(
                pointer if first and pointer.endswith("/" + escape(match[1])) else "/" + escape(match[1]),
                shown(value),
                _CHARACTER_MEANS[value[0]],
                f'quote it: {match[1]}: "{value}"',
                code="quotes",
                line=here,
                column=start - text.rfind("\n", 0, start),
            )
        )
        if len(found) >= _ENOUGH:
            break
    return found if hit else []


_SECRET = re.compile(r"secret|passw|token|credential|api_?key", re.IGNORECASE)


def _quoted(source: str) -> str:
    """A line of the file for a message, unless it may hold a secret."""
    return "a line that may hold a secret" if _SECRET.search(source) else shown(source.strip())


def _line(text: str, number: int) -> str:
    lines = text.split("\n", number)
    return lines[number - 1] if number <= len(lines) else ""


# --- JSON ---------------------------------------------------------------------------------------------


class _NotInJson(Exception):
    """A constant (`NaN`) that Python reads and JSON does not have."""


def _read_json(text: str) -> Document:
    repeated = False

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        made = dict(items)
        repeated = repeated or len(made) != len(items)
        return made

    def constant(name: str) -> Any:
        raise _NotInJson(name)

    try:
        # Unbounded numbers become infinite floats, which the check below refuses with their pointer.
        data: Json = json.loads(
            text,
            object_pairs_hook=pairs,
            parse_constant=constant,
            parse_int=lambda raw: int(raw) if len(raw) <= 20 else math.inf,
        )
    except RecursionError as error:
        raise InvalidInput(
            Problem("", "a deeper value", f"values nest at most {MAX_DEPTH} deep", code="depth", line=1)
        ) from error
    except _NotInJson as error:
        at = text.find(str(error))
        raise InvalidInput(
            Problem("", str(error), _FINITE_RULE, code="number", line=text.count("\n", 0, at) + 1)
        ) from error
    problems: list[Problem] = []
    _check_json(data, "", 0, problems)
    walk = _JsonWalk(text)
    if not repeated and not problems:
        return Document(data, (), walk.marks)
    marks = walk.marks()
    return Document(
        data, (*walk.repeated, *(_located(problem, marks) for problem in problems)), lambda: marks
    )


def _check_json(value: Json, pointer: str, depth: int, problems: list[Problem]) -> None:
    """What JSON can write and we don't take: depth, size of numbers, text that can't be stored."""
    if len(problems) >= _ENOUGH:
        return
    match value:
        case dict() | list():
            if depth >= MAX_DEPTH:
                raise InvalidInput(
                    Problem(
                        pointer,
                        "a deeper value",
                        f"values nest at most {MAX_DEPTH} deep",
                        code="depth",
                        line=1,
                    )
                )
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, inner in items:
                if isinstance(key, str) and (why := _wrong_text(key)) is not None:
                    problems.append(Problem(pointer, ascii(key)[:120], why, code="text"))
                if (
                    type(inner) is not bool
                    and inner is not None
                    and not (type(inner) is str and inner.isascii() and "\0" not in inner)
                ):
                    _check_json(inner, f"{pointer}/{escape(str(key))}", depth + 1, problems)
        case str():
            if (why := _wrong_text(value)) is not None:
                problems.append(Problem(pointer, ascii(value)[:120], why, code="text"))
        case float():
            if not math.isfinite(value):
                problems.append(Problem(pointer, "a larger number", _FINITE_RULE, "quote it", code="number"))
        case int():
            if abs(value) >= MAX_INTEGER:
                problems.append(Problem(pointer, shown(value), _INTEGER_RULE, "quote it", code="number"))


def _json_fault(error: json.JSONDecodeError) -> Problem:
    return Problem(
        "",
        _quoted(_line(error.doc, error.lineno)),
        f"this is not JSON ({error.msg})",
        "name the file .yaml if it is YAML",
        code="syntax",
        line=error.lineno,
        column=error.colno,
    )


_SPACE = re.compile(r"[ \t\r\n]*")
_ATOM = re.compile(r"[^\s,\]}]+")


class _JsonWalk:
    """Positions in a text that is known to be JSON."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: list[int] = []
        self.repeated: list[Problem] = []

    def marks(self) -> Marks:
        self.repeated.clear()
        self._ends = [found.start() for found in re.finditer("\n", self._text)]
        inside, _ = self._value(self._space(0), "")
        return inside or {}

    def _space(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        return at if found is None else found.end()

    def _position(self, at: int) -> tuple[int, int]:
        line = bisect_right(self._ends, at - 1) if at else 0
        return line + 1, at - (self._ends[line - 1] + 1 if line else 0) + 1

    def _value(self, at: int, pointer: str) -> tuple[Marks | None, int]:
        character = self._text[at]
        if character == "{" or character == "[":
            return self._container(at, pointer, keyed=character == "{")
        if character == '"':
            _, end = scanstring(self._text, at + 1, True)
            return None, end
        found = _ATOM.match(self._text, at)
        return None, len(self._text) if found is None else found.end()

    def _container(self, at: int, pointer: str, *, keyed: bool) -> tuple[Marks, int]:
        marks: Marks = {}
        at = self._space(at + 1)
        while self._text[at] not in "}]":
            start = at
            key = str(len(marks))
            if keyed:
                key, end = scanstring(self._text, at + 1, True)
                at = self._space(self._space(end) + 1)
            where = f"{pointer}/{escape(key)}"
            here, value_at = self._position(start), self._position(at)
            inside, end = self._value(at, where)
            if key in marks and len(self.repeated) < _ENOUGH:
                rule = f"a key is there once; this one is on line {marks[key].key_line} too"
                self.repeated.append(
                    Problem(
                        where,
                        key,
                        rule,
                        "rename or remove one",
                        code="duplicate",
                        line=here[0],
                        column=here[1],
                    )
                )
            marks[key] = Mark(*here, *value_at, inside)
            at = self._space(end)
            if self._text[at] == ",":
                at = self._space(at + 1)
        return marks, at + 1
