"""The errors that people and programs see.

Expected answers of the world (a target that is down, a row that someone else took) are values, not
exceptions. What is here is either a mistake in what somebody typed (`InvalidInput`), a request that
does not fit the present state (`Conflict`, `NotFound`, `StaleVersion`), or a broken promise of a
part that we depend on (`StoreUnavailable`).

Every problem that a person can mend names the field, the value, the rule and what to try.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with an input.

    `pointer` is a JSON pointer (RFC 6901) to the field, e.g. `/deployments/backup/cron`; `got` is the
    value as it was typed (shortened, never a secret); `rule` says what holds; `hint` says what to
    try. `line` and `column` (1-based) are known for files, `position` (0-based) inside `got` for
    expressions. `code` is a stable word that programs can match on.
    """

    pointer: str
    got: str
    rule: str
    hint: str = ""
    code: str = "invalid"
    line: int | None = None
    column: int | None = None
    position: int | None = None

    def under(self, prefix: str) -> Problem:
        """The same problem seen from a document that holds this one under `prefix`."""
        return replace(self, pointer=prefix.rstrip("/") + self.pointer)

    def __str__(self) -> str:
        where = self.pointer or "/"
        if self.line is not None:
            where = f"line {self.line}: {where}"
        text = f"{where}: got {self.got}: {self.rule}"
        return f"{text}; try: {self.hint}" if self.hint else text

    def to_json(self) -> Mapping[str, Any]:
        """The problem as the API and `-o json` show it; absent parts are left out."""
        full = {
            "pointer": self.pointer,
            "got": self.got,
            "rule": self.rule,
            "try": self.hint or None,
            "code": self.code,
            "line": self.line,
            "column": self.column,
            "position": self.position,
        }
        return {key: value for key, value in full.items() if value is not None}


def shown(value: object, limit: int = 120) -> str:
    """`value` as a message quotes it: `repr`, bounded to `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


class HorariumError(Exception):
    """The base of every error that Horarium raises on purpose."""


class InvalidInput(HorariumError):
    """What was typed breaks a rule. Holds every problem found, not only the first."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        found = (problems,) if isinstance(problems, Problem) else tuple(problems)
        self.problems: tuple[Problem, ...] = found
        super().__init__("\n".join(str(problem) for problem in found))


class NotFound(HorariumError):
    """There is no such thing. `kind` is a word of the design, `key` what was asked for."""

    def __init__(self, kind: str, key: str, hint: str = "") -> None:
        self.kind, self.key, self.hint = kind, key, hint
        super().__init__(f"no {kind} {key!r}" + (f"; {hint}" if hint else ""))


class Conflict(HorariumError):
    """The request does not fit the present state, and would not fit if it were repeated."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.hint = hint
        super().__init__(message + (f"; try: {hint}" if hint else ""))


class Unauthorized(HorariumError):
    """The caller has not shown that it may do this. The message holds nothing of what it sent."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.hint = hint
        super().__init__(message + (f"; try: {hint}" if hint else ""))


class StaleVersion(HorariumError):
    """The caller edited an older version than the one in force (HTTP 412)."""

    def __init__(self, expected: str, actual: str) -> None:
        self.expected, self.actual = expected, actual
        super().__init__(f"the version is {actual}, not {expected}: read it again, then repeat the change")


class StoreUnavailable(HorariumError):
    """The database did not do what was asked (gone, hung, locked past its limit). Nothing was changed."""


class SchemaMismatch(HorariumError):
    """The database's schema is not the one that this program was built for."""


class AlreadyServing(HorariumError):
    """Another server process holds this SQLite file."""
