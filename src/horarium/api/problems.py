"""Errors as RFC 9457 problem details, and the strict reading of JSON bodies.

Whatever a caller sends, the answer is a problem that names the field, what was got, the rule and what to
try; never a 500. A body is read here and not by the framework, because Python's JSON takes what a database
can't hold: NaN, numbers without bound, lone surrogates, a key twice.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from horarium.errors import Conflict, InvalidInput, NotFound, Problem, StaleVersion, Unauthorized, shown
from horarium.sources.base import SourceUnavailable

MEDIA_TYPE = "application/problem+json"

MAX_BODY = 32 * 1024 * 1024
"""As large as the largest triggers file."""

MAX_DEPTH = 40
MAX_INTEGER = 2**63
"""What every database holds; the same bounds as for a triggers file."""

TITLES = {
    400: "The request can't be read",
    401: "Not allowed",
    403: "Refused",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    412: "Changed meanwhile",
    413: "Too large",
    415: "Not JSON",
    421: "Wrong host",
    422: "The input is wrong",
    500: "Internal error",
    502: "A source can't be read",
    503: "Unavailable",
}

M = TypeVar("M", bound=BaseModel)


class BadRequest(Exception):
    """A request that is wrong in its query, path, headers or syntax: `status` instead of the body's 422."""

    def __init__(self, status: int, problems: Iterable[Problem]) -> None:
        self.status = status
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


class JsonResponse(Response):
    """JSON as it is: UTF-8, no spaces."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content).encode()


def to_json(content: Any) -> str:
    """The text of an answer."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def problem_response(
    status: int,
    detail: str,
    problems: Sequence[Problem] = (),
    *,
    hint: str = "",
    kind: str = "about:blank",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """One problem document. `try` says what would help, `problems` has one entry a field."""
    body: dict[str, Any] = {
        "type": kind,
        "title": TITLES.get(status, "Error"),
        "status": status,
        "detail": detail,
    }
    if hint:
        body["try"] = hint
    if problems or status in (400, 422):
        body["problems"] = [dict(item.to_json()) for item in problems]
    return Response(
        to_json(body),
        status_code=status,
        media_type=MEDIA_TYPE,
        headers=None if headers is None else {**headers},
    )


def response_for(error: Exception) -> Response | None:
    """The answer for an error that is expected of callers; None for any other."""
    match error:
        case BadRequest():
            return problem_response(error.status, _lines(error.problems), error.problems)
        case InvalidInput():
            return problem_response(422, _lines(error.problems), error.problems)
        case NotFound():
            return problem_response(404, _without(str(error), f"; {error.hint}"), hint=error.hint)
        case Conflict():
            return problem_response(409, _without(str(error), f"; try: {error.hint}"), hint=error.hint)
        case Unauthorized():
            detail = _without(str(error), f"; try: {error.hint}")
            return problem_response(401, detail, hint=error.hint, headers={"www-authenticate": "Bearer"})
        case StaleVersion():
            return problem_response(412, str(error))
        case SourceUnavailable():
            return problem_response(502, str(error), hint="nothing was changed; try again when it is there")
        case _:
            return None


def _without(message: str, hint: str) -> str:
    """A message without its hint, which stands in a field of its own."""
    return message.removesuffix(hint)


def from_validation(
    errors: Iterable[ErrorDetails | Mapping[str, Any]], known: Iterable[str] = ()
) -> list[Problem]:
    """What pydantic found, as problems; `known` are the names of fields that there are."""
    names = list(known)
    return [_problem(item, names) for item in errors]


def _problem(error: ErrorDetails | Mapping[str, Any], names: Sequence[str]) -> Problem:
    place = [str(part) for part in error["loc"]]
    if place and place[0] in ("query", "path", "header", "body"):
        place = place[1:]
    pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in place)
    kind = str(error["type"])
    got = shown(error.get("input"))
    if kind == "missing":
        return Problem(pointer, "nothing", "this field is needed", code="missing")
    if kind == "extra_forbidden":
        word = place[-1] if place else ""
        close = difflib.get_close_matches(word, names, 1)
        hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(sorted(names))}" if names else ""
        return Problem(pointer, shown(word), "there is no such field", hint, code="unknown-key")
    message = str(error["msg"])
    return Problem(pointer, got, message[:1].lower() + message[1:], code=kind.replace("_", "-"))


async def read_body(request: Request, model: type[M]) -> M:
    """The body as `model`. Raises `BadRequest` and `InvalidInput`; nothing at all is an empty object."""
    return validated(await read_object(request), model)


def validated(data: Mapping[str, Any], model: type[M]) -> M:
    """`data` as `model`; raises `InvalidInput` with every problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        names = [field.alias or name for name, field in model.model_fields.items()]
        raise InvalidInput(from_validation(error.errors(include_url=False), names)) from error


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object, strictly read; nothing at all is an empty one."""
    raw = await read_raw(request)
    if not raw.strip():
        return {}
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise BadRequest(
            415,
            [
                Problem(
                    "",
                    shown(kind) if kind else "no content type",
                    "a body is application/json",
                    "Content-Type: application/json",
                    code="content-type",
                )
            ],
        )
    data = _parse(raw)
    if not isinstance(data, dict):
        raise InvalidInput(Problem("", shown(data), "a body is a JSON object", "{}", code="object"))
    problems: list[Problem] = []
    _check(data, "", 0, problems)
    if problems:
        raise InvalidInput(problems)
    return data


async def read_raw(request: Request) -> bytes:
    """The bytes of the body, once; at most `MAX_BODY`."""
    kept: bytes | None = getattr(request.state, "raw_body", None)
    if kept is not None:
        return kept
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY:
                raise BadRequest(
                    413,
                    [
                        Problem(
                            "",
                            f"more than {MAX_BODY:,} bytes",
                            f"a body has at most {MAX_BODY:,}",
                            "apply fewer files at once",
                            code="size",
                        )
                    ],
                )
            chunks.append(chunk)
    except ClientDisconnect as gone:
        raise BadRequest(400, [Problem("", "a part of it", "the body ended early", code="cut")]) from gone
    request.state.raw_body = b"".join(chunks)
    return request.state.raw_body  # type: ignore[no-any-return] # the state holds anything


class _Twice(Exception):
    def __init__(self, key: str) -> None:
        self.key = key


class _NotJson(Exception):
    def __init__(self, word: str) -> None:
        self.word = word


def _parse(raw: bytes) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            names = [name for name, _ in items]
            raise _Twice(next(name for name in names if names.count(name) > 1))
        return found

    def constant(word: str) -> Any:
        raise _NotJson(word)

    try:
        text = raw.decode("utf-8")
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except UnicodeDecodeError as error:
        raise _syntax(f"the byte 0x{raw[error.start]:02x} at {error.start}", "JSON is UTF-8") from error
    except json.JSONDecodeError as error:
        got = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise BadRequest(
            400,
            [Problem("", got, "a body is JSON", code="syntax", line=error.lineno, column=error.colno)],
        ) from error
    except _Twice as error:
        raise _syntax(shown(error.key), "a key stands once in an object", "take one out") from error
    except _NotJson as error:
        raise _syntax(error.word, "JSON has no such number", "null, or text") from error
    except RecursionError as error:
        raise _syntax("values inside values", f"values nest at most {MAX_DEPTH} deep") from error
    except ValueError as error:  # an integer of thousands of digits
        raise _syntax("a number of thousands of digits", "a whole number is below 2^63 in size") from error


def _syntax(got: str, rule: str, hint: str = "") -> BadRequest:
    return BadRequest(400, [Problem("", got, rule, hint, code="syntax")])


def _check(value: Any, pointer: str, depth: int, problems: list[Problem]) -> None:
    """What JSON can say and a database can't hold."""
    if depth > MAX_DEPTH:
        problems.append(Problem(pointer, "values inside values", f"values nest at most {MAX_DEPTH} deep"))
        return
    match value:
        case dict():
            for key, item in value.items():
                where = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
                if _bad_text(key):
                    problems.append(Problem(pointer or "", shown(key), _TEXT_RULE, code="text"))
                    continue
                _check(item, where, depth + 1, problems)
        case list():
            for index, item in enumerate(value):
                _check(item, f"{pointer}/{index}", depth + 1, problems)
        case str():
            if _bad_text(value):
                problems.append(Problem(pointer, shown(value), _TEXT_RULE, code="text"))
        case bool():
            pass
        case int():
            if not -MAX_INTEGER <= value < MAX_INTEGER:
                problems.append(
                    Problem(
                        pointer, shown(value), "a whole number is below 2^63 in size", "text", code="number"
                    )
                )
        case float():
            if not math.isfinite(value):
                problems.append(Problem(pointer, shown(value), "a number is finite", "text", code="number"))
        case _:
            pass


def storable(value: Any) -> list[Problem]:
    """What is in plain data that a database can't hold; empty for almost everything."""
    problems: list[Problem] = []
    _check(value, "", 0, problems)
    return problems


_TEXT_RULE = "text has no NUL and no half of a surrogate pair"


def _bad_text(value: str) -> bool:
    return "\x00" in value or any("\ud800" <= char <= "\udfff" for char in value)


def _lines(problems: Sequence[Problem]) -> str:
    shown_problems = [str(item) for item in problems[:5]]
    more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
    return "; ".join([*shown_problems, *more])
