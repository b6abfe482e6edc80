"""What all of Flyte's services here share: their settings, who asks, names and keys, and lists."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from flyteidl2.common.identifier_pb2 import TriggerName
from flyteidl2.common.list_pb2 import Filter, ListRequest, Sort
from google.protobuf.message import Message

from horarium.api.problems import storable
from horarium.app.commands import Commands
from horarium.app.paging import MAX_LIMIT
from horarium.app.queries import Queries
from horarium.app.records import Asked, Order, Records, Term
from horarium.core.instant import from_seconds
from horarium.core.keys import DeploymentKey, TriggerKey, check_name
from horarium.core.once import parse_instant
from horarium.core.zone import load_zone
from horarium.errors import InvalidInput, NotFound, Problem, shown
from horarium.flyte.messages import to_json

T = TypeVar("T")

USER_HEADER = "x-horarium-user"
LONGEST_USER = 100
DEFAULT_LIMIT = 50
"""As many as Flyte's own list has where nobody says how many."""

DEFAULT_TARGET = "flyte"


@dataclass(frozen=True, slots=True)
class FlyteSettings:
    """`[api.flyte]`: the target of deployed tasks, and the backend that takes code and images."""

    target: str | None = None
    uploads: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What a service is made of."""

    commands: Commands
    queries: Queries
    settings: FlyteSettings

    @property
    def records(self) -> Records:
        return self.queries.records

    async def target(self) -> str:
        """The target of tasks that are deployed here. Raises `ConnectError` where there is none."""
        name = self.settings.target or DEFAULT_TARGET
        try:
            kind = (await self.queries.target(name))["kind"]
        except NotFound:
            raise ConnectError(
                Code.FAILED_PRECONDITION,
                f"a deployed task runs on a target, and there is no target {name!r}: define it in a triggers "
                f"file (targets: {{{name}: {{flyte: {{endpoint: http://…}}}}}}), or say which other one to "
                "take (the setting api_flyte_target)",
            ) from None
        if kind != "flyte":
            raise ConnectError(
                Code.FAILED_PRECONDITION,
                f"a deployed task runs on a target of kind flyte, and target {name!r} is of kind {kind}: "
                "name another one (the setting api_flyte_target)",
            )
        return name


def who_of(ctx: RequestContext[Any, Any]) -> str:
    """Who asks, for the audit: a name that the caller gives, no proof of anything."""
    given = ctx.request_headers().get(USER_HEADER)
    if given is None:
        return "flyte"
    if not (0 < len(given) <= LONGEST_USER and given.isprintable()):
        raise bad("/X-Horarium-User", given, f"a user's name is 1 to {LONGEST_USER} printable characters")
    return given


def bad(pointer: str, got: object, rule: str, hint: str = "", code: str = "invalid") -> InvalidInput:
    """One problem of a request."""
    return InvalidInput(Problem(pointer, shown(got), rule, hint, code=code))


def names(pointer: str, **parts: str) -> list[str]:
    """The parts of a name, each checked. Raises `InvalidInput` with every problem."""
    problems: list[Problem] = []
    for field, value in parts.items():
        try:
            check_name(value, f"{pointer}/{field}")
        except InvalidInput as error:
            problems += error.problems
    if problems:
        raise InvalidInput(problems)
    return list(parts.values())


def trigger_key(name: TriggerName, pointer: str = "/name") -> TriggerKey:
    """The key of a trigger. Raises `InvalidInput`. Its `org` is Flyte's: there are none here."""
    project, domain, task, trigger = names(
        pointer, project=name.project, domain=name.domain, task_name=name.task_name, name=name.name
    )
    return TriggerKey(project, domain, task, trigger)


def task_key(task: Any, pointer: str = "/task_id") -> DeploymentKey:
    """The key of a task's deployment, from a `TaskIdentifier` or a `TaskName`. Raises `InvalidInput`."""
    return DeploymentKey(*names(pointer, project=task.project, domain=task.domain, name=task.name))


def kept(message: Message, pointer: str) -> dict[str, Any]:
    """A message as the data that we store. Raises `InvalidInput` for text that no database holds."""
    found = to_json(message)
    problems = [problem.under(pointer) for problem in storable(found)]
    if problems:
        raise InvalidInput(problems)
    return found


# lists


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a list: its name in `app/records.py`, and of what type its values are or which there are."""

    ours: str
    kind: type = str
    choices: Mapping[str, str | int] | None = None


_TESTS: Mapping[int, str] = {
    Filter.EQUAL: "equal",
    Filter.NOT_EQUAL: "not_equal",
    Filter.GREATER_THAN: "greater_than",
    Filter.GREATER_THAN_OR_EQUAL: "greater_than_or_equal",
    Filter.LESS_THAN: "less_than",
    Filter.LESS_THAN_OR_EQUAL: "less_than_or_equal",
    Filter.CONTAINS: "contains",
    Filter.VALUE_IN: "in",
    Filter.VALUE_NOT_IN: "not_in",
    Filter.ENDS_WITH: "ends_with",
    Filter.NOT_ENDS_WITH: "not_ends_with",
    Filter.CONTAINS_CASE_INSENSITIVE: "contains_in_any_case",
}
_MANY = ("in", "not_in")
_OF_TEXT = ("contains", "contains_in_any_case", "ends_with", "not_ends_with")
_MOST_FILTERS = 20
_MOST_VALUES = 500


def asked(request: ListRequest, fields: Mapping[str, Field], default: Sequence[Order]) -> Asked:
    """What a list shall be. Raises `InvalidInput` with every problem."""
    problems: list[Problem] = []
    if request.raw_filters:
        problems.append(
            Problem(
                "/request/raw_filters",
                shown(request.raw_filters[0]),
                "raw filters are not known here",
                "filters",
            )
        )
    if request.limit > MAX_LIMIT:
        problems.append(
            Problem(
                "/request/limit",
                str(request.limit),
                f"a page has at most {MAX_LIMIT:,} items",
                "token, for the next page",
            )
        )
    if len(request.filters) > _MOST_FILTERS:
        problems.append(
            Problem(
                "/request/filters", str(len(request.filters)), f"at most {_MOST_FILTERS} filters", "fewer"
            )
        )
        raise InvalidInput(problems)
    terms: list[Term] = []
    for index, item in enumerate(request.filters):
        try:
            terms.append(_term(item, fields, f"/request/filters/{index}"))
        except InvalidInput as error:
            problems += error.problems
    sorts = list(request.sort_by_fields)
    if request.HasField("sort_by"):
        sorts.insert(0, request.sort_by)
    order: list[Order] = []
    for index, sort in enumerate(sorts):
        if sort.key not in fields:
            problems.append(_unknown_field(sort.key, fields, f"/request/sort_by_fields/{index}/key"))
        else:
            order.append(Order(fields[sort.key].ours, descending=sort.direction == Sort.DESCENDING))
    if problems:
        raise InvalidInput(problems)
    return Asked(
        tuple(terms), tuple(order) or tuple(default), request.limit or DEFAULT_LIMIT, request.token or None
    )


async def page(found: Awaitable[T]) -> T:
    """A page of a list. Raises `InvalidInput` for a token that leads nowhere, by Flyte's name of it."""
    try:
        return await found
    except InvalidInput as error:
        raise InvalidInput(
            replace(
                problem,
                pointer="/request/token",
                rule="a token is that of the page before, under the same filters and order",
            )
            if problem.pointer == "/page_token"
            else problem
            for problem in error.problems
        ) from None


def _term(item: Filter, fields: Mapping[str, Field], pointer: str) -> Term:
    field = fields.get(item.field)
    if field is None:
        raise InvalidInput(_unknown_field(item.field, fields, f"{pointer}/field"))
    test = _TESTS.get(item.function)
    if test is None:
        got = (
            Filter.Function.Name(item.function)
            if item.function in Filter.Function.values()
            else item.function
        )
        raise bad(f"{pointer}/function", got, "every trigger has every field", "EQUAL, CONTAINS, VALUE_IN …")
    if test in _OF_TEXT and (field.kind is not str or field.choices):
        raise bad(
            f"{pointer}/function", Filter.Function.Name(item.function), f"{item.field} is not text", "EQUAL"
        )
    most = _MOST_VALUES if test in _MANY else 1
    if not 1 <= len(item.values) <= most:
        rule = f"one to {most} values" if most > 1 else "exactly one value"
        raise bad(f"{pointer}/values", len(item.values), rule)
    values = tuple(_value(text, field, f"{pointer}/values/{index}") for index, text in enumerate(item.values))
    if test in _OF_TEXT and not values[0]:
        raise bad(f"{pointer}/values/0", "", "a part of a text is not empty", "leave the filter out")
    return Term(field.ours, test, values)


def _value(text: str, field: Field, pointer: str) -> Any:
    if not text.isprintable():
        raise bad(pointer, text, "a filter is printable text")
    if field.choices is not None:
        if text not in field.choices:
            raise bad(pointer, text, f"one of {', '.join(field.choices)}")
        return field.choices[text]
    if field.kind is bool:
        if text.lower() not in ("true", "false"):
            raise bad(pointer, text, "true or false")
        return int(text.lower() == "true")
    if field.kind is datetime:
        return from_seconds(parse_instant(text, load_zone("UTC"), pointer))
    if field.kind is int:
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise bad(pointer, text, "a whole number")
        return int(text)
    return text


def _unknown_field(got: str, fields: Mapping[str, Field], pointer: str) -> Problem:
    return Problem(
        pointer, shown(got), "there is no such field", f"one of {', '.join(fields)}", code="unknown-key"
    )
