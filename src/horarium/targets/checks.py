"""Reading the mappings that people write for targets: one field after the other, all problems at once.

`Fields` is what `check_config` and `check_action` of every target are written with, so that they all
answer in the same way: unknown fields are refused by name, each problem has a pointer, none hides another.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from horarium.core.duration import parse_duration
from horarium.errors import InvalidInput, Problem, shown

P = ParamSpec("P")
T = TypeVar("T")


def pointer_to(pointer: str, key: object) -> str:
    """`pointer` one step further down, escaped as RFC 6901 asks."""
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"


class Fields:
    """A mapping under a pointer. Collects problems; `raise_problems` ends the reading."""

    def __init__(self, value: object, pointer: str, what: str, allowed: Iterable[str]) -> None:
        self.pointer = pointer
        self.problems: list[Problem] = []
        self.allowed = tuple(allowed)
        self._data: Mapping[Any, Any] = {}
        if isinstance(value, Mapping):
            self._data = value
        else:
            self.problems.append(Problem(pointer, shown(value), f"{what} is a mapping", self._known()))
        for key in self._data:
            if key not in self.allowed:
                self.problems.append(
                    Problem(
                        pointer_to(pointer, key),
                        # The value is not shown: it may be a secret under a mistyped name.
                        shown(key),
                        f"{what} has no such field",
                        self._closest(key),
                        code="unknown-field",
                    )
                )

    def has(self, key: str) -> bool:
        return self._data.get(key) is not None

    def raw(self, key: str) -> Any:
        return self._data.get(key)

    def at(self, key: object) -> str:
        return pointer_to(self.pointer, key)

    def problem(self, key: str, rule: str, hint: str = "", code: str = "invalid") -> None:
        self.problems.append(Problem(self.at(key), shown(self._data.get(key)), rule, hint, code=code))

    def attempt(self, read: Callable[[], T], default: T) -> T:
        """What `read` returns; if it raises `InvalidInput`, its problems are kept and `default` stands in."""
        try:
            return read()
        except InvalidInput as error:
            self.problems.extend(error.problems)
            return default

    def check(self, checker: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a checker for its problems alone."""
        try:
            checker(*args, **kwargs)
        except InvalidInput as error:
            self.problems.extend(error.problems)

    def text(self, key: str, *, empty: bool = False) -> str | None:
        value = self._data.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.problem(key, f"{key} is text", "quote it")
            return None
        if not value and not empty:
            self.problem(key, f"{key} is not empty", "leave the field out")
            return None
        if "\0" in value:
            self.problem(key, f"{key} has no NUL character")
            return None
        return value

    def required(self, key: str, rule: str, hint: str) -> str | None:
        """The text of a field that has to be there; None where there is a problem."""
        if not self.has(key):
            self.problems.append(Problem(self.at(key), "nothing", rule, hint))
        return self.text(key)

    def flag(self, key: str) -> bool | None:
        value = self._data.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.problem(key, f"{key} is true or false", "true or false, without quotes")
        return None

    def whole(self, key: str, low: int, high: int) -> int | None:
        value = self._data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.problem(key, f"{key} is a whole number from {low} to {high:,}")
            return None
        return value

    def seconds(self, key: str, high: timedelta) -> float | None:
        """A duration as seconds, above zero and at most `high`."""
        value = self._data.get(key)
        if value is None:
            return None
        length = self.attempt(lambda: parse_duration(value, self.at(key), positive=True), None)
        if length is not None and length > high:
            self.problem(key, f"{key} is at most {high}")
            return None
        return None if length is None else length / timedelta(seconds=1)

    def mapping(self, key: str) -> Mapping[Any, Any]:
        value = self._data.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.problem(key, f"{key} is a mapping", "NAME: value")
            return {}
        return value

    def check_parameters(self, parameters: Mapping[str, object], pointer: str) -> None:
        """That all parameters of the deployment at `pointer` are JSON."""
        for name, value in parameters.items():
            why = json_problem(value)
            if why is not None:
                where = pointer_to(pointer_to(pointer, "parameters"), name)
                self.problems.append(Problem(where, "a value", f"parameters are JSON: {why}"))

    def raise_problems(self) -> None:
        if self.problems:
            raise InvalidInput(self.problems)

    def _known(self) -> str:
        return f"the fields {', '.join(self.allowed)}" if self.allowed else "{}"

    def _closest(self, key: object) -> str:
        close = difflib.get_close_matches(str(key), self.allowed, 1)
        return close[0] if close else self._known()


def json_problem(value: object) -> str | None:
    """Why `value` can't be written as JSON that every reader takes, or None if it can."""
    match value:
        case None | bool() | int() | str():
            return None
        case float():
            return None if math.isfinite(value) else "JSON has no NaN and no infinity"
        case list() | tuple():
            return next((why for item in value if (why := json_problem(item))), None)
        case Mapping():
            if not all(isinstance(key, str) for key in value):
                return "keys in JSON are text"
            return next((why for item in value.values() if (why := json_problem(item))), None)
        case _:
            return f"JSON has no {type(value).__name__}"
