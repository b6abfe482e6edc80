"""How a command ends: its exit codes, and what people read when something is wrong.

A failure says the field, what was got, the rule and what to try, on standard error; nothing that a person
typed ends in a traceback. `docs/cli.md` has the table of codes, and a test holds that it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from horarium.errors import (
    AlreadyServing,
    Conflict,
    HorariumError,
    InvalidInput,
    NotFound,
    SchemaMismatch,
    StaleVersion,
    StoreUnavailable,
)


class Exit(IntEnum):
    """The exit codes of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5
    INTERRUPTED = 130
    PIPE = 141


MEANINGS: Mapping[Exit, str] = {
    Exit.OK: "done",
    Exit.FAILED: "refused: what was typed, or a file, is wrong; or it failed; "
    "or `import` or `sync` left something out",
    Exit.USAGE: "wrong usage of the command; with `apply --exit-code`: there are changes",
    Exit.NOT_FOUND: "there is no such trigger, run, ...",
    Exit.CONFLICT: "it does not fit the present state: managed by a source, stale, already serving",
    Exit.UNREACHABLE: "the server or the database can't be reached, or its schema is another",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
    Exit.PIPE: "whoever read the output closed it",
}


class Failure(Exception):
    """The command ends with `code` and says why. `problems` are as `errors.Problem.to_json` shows them."""

    def __init__(
        self,
        message: str,
        code: Exit = Exit.FAILED,
        *,
        hint: str = "",
        problems: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.problems = [dict(problem) for problem in problems]

    def to_json(self) -> dict[str, Any]:
        """What `-o json` writes to standard error."""
        full = {
            "error": self.message,
            "try": self.hint,
            "problems": self.problems,
            "exit_code": int(self.code),
        }
        return {key: value for key, value in full.items() if value or key == "exit_code"}

    def text(self) -> str:
        """What people read."""
        lines = [f"error: {self.message}"] if self.message else []
        for problem in self.problems:
            lines += problem_lines(problem)
        if self.hint:
            lines.append(f"  try   {self.hint}")
        return "\n".join(lines)


def problem_lines(problem: Mapping[str, Any]) -> list[str]:
    """One problem, a line a part: where, got, rule, try."""
    where = str(problem.get("pointer") or "/")
    if problem.get("line") is not None:
        where = f"line {problem['line']}: {where}"
    lines = [f"  at    {where}"]
    if problem.get("got") not in (None, ""):
        place = problem.get("position")
        lines.append(f"  got   {problem['got']}{'' if place is None else f', at character {int(place) + 1}'}")
    lines.append(f"  rule  {problem.get('rule', '')}")
    if problem.get("try"):
        lines.append(f"  try   {problem['try']}")
    return [*lines, ""]


def failure_of(error: HorariumError) -> Failure:
    """An error of the inside as a command tells it."""
    match error:
        case InvalidInput():
            count = len(error.problems)
            message = "1 problem" if count == 1 else f"{count} problems"
            return Failure(message, problems=[problem.to_json() for problem in error.problems])
        case NotFound():
            return Failure(f"there is no {error.kind} {error.key}", Exit.NOT_FOUND, hint=error.hint)
        case Conflict() | StaleVersion() | AlreadyServing():
            return Failure(str(error), Exit.CONFLICT)
        case SchemaMismatch():
            return Failure(str(error), Exit.UNREACHABLE)
        case StoreUnavailable():
            return Failure(f"the database can't be used: {error}", Exit.UNREACHABLE)
        case _:
            return Failure(str(error))
