"""How commands speak to Horarium: always the REST API, over one of two ways.

With a server, over HTTP. Without one, straight on a database: the same API runs in this process and is
called without a socket. So a command does the same thing, and is refused in the same words, either way.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import quote, urlencode

from horarium import __version__
from horarium.cli.failure import Exit, Failure
from horarium.cli.where import Where

if TYPE_CHECKING:
    from horarium.config import Settings

Json: TypeAlias = dict[str, Any]
AsgiMessage: TypeAlias = MutableMapping[str, Any]
AsgiApp: TypeAlias = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[AsgiMessage]],
        Callable[[AsgiMessage], Awaitable[None]],
    ],
    Awaitable[None],
]

BASE = "/api/v1"
PAGE = 1_000
"""Items asked for at once: the most that a page has."""

_CONNECT_SECONDS = 5
_READ_SECONDS = 120
"""A dry run over a large folder takes a while; longer than this, the server hangs."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, not yet judged. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """One way to the API."""

    async def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Response:
        """Send one request; `target` is path and query."""
        ...


@asynccontextmanager
async def connect(where: Where, *, create: bool = False) -> AsyncIterator[Api]:
    """The API of a server, or of a database where none is named. `create` makes an SQLite file that is not
    there. Raises `Failure` if neither can be reached."""
    if where.server and where.db:
        raise Failure("a command speaks to a server or to a database", Exit.USAGE, hint="--server or --db")
    settings = where.settings()
    if settings.server and not where.db:
        async with _over_http(settings.server) as api:
            yield api
    else:
        async with _in_process(settings, create) as api:
            yield api


class Api:
    """The REST API. Every method raises `Failure` with the exit code that an answer means."""

    def __init__(self, transport: Transport, place: str) -> None:
        self._transport = transport
        self.place = place
        """Where it is, for people: a URL without its password."""

    async def get(self, path: str, **query: object) -> Json:
        """The answer of one read. Query values that are None or empty are left out."""
        return (await self.send("GET", path, query=query))[0]

    async def items(self, path: str, limit: int | None, **query: object) -> list[Json]:
        """At most `limit` items of a list, over as many pages as it takes; None is all of them."""
        found: list[Json] = []
        token: object = None
        while True:
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            page = await self.get(path, **query, limit=size, page_token=token)
            found += page["items"]
            token = page.get("next_page_token")
            if not token or (limit is not None and len(found) >= limit):
                return found if limit is None else found[:limit]

    async def send(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Json, Mapping[str, str]]:
        """One request: the answer's object and headers."""
        pairs = [
            (name.rstrip("_"), "true" if value is True else "false" if value is False else str(value))
            for name, value in (query or {}).items()
            if value is not None and value != ""
        ]
        target = BASE + quote(path, safe="/-._~") + (f"?{urlencode(pairs)}" if pairs else "")
        sent = {"accept": "application/json", "x-horarium-user": _user(), **(headers or {})}
        raw: bytes | None = None
        if body is not None:
            raw = json.dumps(body).encode()
            sent["content-type"] = "application/json"
        answer = await self._transport.exchange(method, target, sent, raw)
        return self._judged(answer), answer.headers

    def _judged(self, answer: Response) -> Json:
        data = _json(answer.body)
        if 200 <= answer.status < 300 and (data is not None or not answer.body):
            return data or {}
        if data is None:
            raise Failure(
                f"what answers at {self.place} is not Horarium's API (status {answer.status})",
                Exit.UNREACHABLE,
                hint="the address that `horarium serve` prints",
            )
        raise _refusal(answer, data)


def _refusal(answer: Response, problem: Json) -> Failure:
    """RFC 9457 problem details as a failure with its exit code."""
    code = {
        404: Exit.NOT_FOUND,
        409: Exit.CONFLICT,
        412: Exit.CONFLICT,
        502: Exit.UNREACHABLE,
        503: Exit.UNREACHABLE,
    }.get(answer.status, Exit.FAILED)
    problems = problem.get("problems") or []
    title = str(problem.get("title") or f"status {answer.status}")
    hint = str(problem.get("try") or "")
    detail = str(problem.get("detail") or "").removesuffix(f"; try: {hint}").removesuffix(f"; {hint}")
    # With problems the detail is their list again.
    message = f"{title[:1].lower()}{title[1:]}" if problems else detail or title
    return Failure(message, code, problems=problems, hint=hint)


def _json(body: bytes) -> Json | None:
    try:
        data = json.loads(body)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container without a line in /etc/passwd
        name = "cli"
    return name.encode("ascii", "replace").decode()


# --- over HTTP ------------------------------------------------------------------------------------------


@asynccontextmanager
async def _over_http(url: str) -> AsyncIterator[Api]:
    import aiohttp

    from horarium.config import without_password

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, headers={"user-agent": _agent()}) as session:
        yield Api(_Http(session, url), without_password(url))


class _Http:
    def __init__(self, session: Any, url: str) -> None:
        self._session = session
        self._url = url

    async def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Response:
        import aiohttp
        from yarl import URL

        from horarium.config import without_password

        url = URL(self._url + target, encoded=True)
        try:
            async with self._session.request(
                method, url, headers=headers, data=body, allow_redirects=False
            ) as answer:
                return Response(
                    answer.status,
                    {name.lower(): value for name, value in answer.headers.items()},
                    await answer.read(),
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = _reason(error)
            raise Failure(
                f"no server answers at {without_password(self._url)}: {reason}",
                Exit.UNREACHABLE,
                hint="start one with `horarium serve`, or leave out --server and HORARIUM_SERVER to work "
                "straight on the database",
            ) from error


def _reason(error: Exception) -> str:
    """Why there was no answer, in words that don't name a library's insides."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number).lower()
    return str(error) or type(error).__name__


def _agent() -> str:
    return f"horarium/{__version__}"


# --- straight on a database -----------------------------------------------------------------------------


@asynccontextmanager
async def _in_process(settings: Settings, create: bool) -> AsyncIterator[Api]:
    from horarium import wiring

    path = settings.sqlite_path
    if path is not None and not path.exists() and not create:
        raise Failure(
            f"there is no database at {settings.db_shown}",
            Exit.UNREACHABLE,
            hint="`horarium serve` or `horarium apply` makes one; --db or --server names another place",
        )
    async with wiring.open_app(settings) as app:
        yield Api(InProcess(app), settings.db_shown)


class InProcess:
    """Calls an ASGI application without a socket, one request a call."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app

    async def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Response:
        path, _, query = target.partition("?")
        raw = body or b""
        sent = {"host": "localhost", "user-agent": _agent(), "content-length": str(len(raw)), **headers}
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": _unquoted(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in sent.items()],
            "client": ("127.0.0.1", 0),
            "server": ("localhost", 80),
        }
        started: list[AsgiMessage] = []
        chunks: list[bytes] = []
        received = False
        done = asyncio.Event()

        async def receive() -> AsgiMessage:
            nonlocal received
            if not received:
                received = True
                return {"type": "http.request", "body": raw, "more_body": False}
            await done.wait()
            return {"type": "http.disconnect"}

        async def send(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                started.append(message)
            elif message["type"] == "http.response.body":
                chunks.append(message.get("body", b""))

        try:
            await self._app(scope, receive, send)
        except Exception:
            # An error that nobody expects is answered with 500 and then raised, for servers to log.
            if not started:
                raise
        finally:
            done.set()
        return Response(started[0]["status"], _headers(started[0].get("headers", ())), b"".join(chunks))


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode().lower(): value.decode("latin-1") for name, value in pairs}


def _unquoted(path: str) -> str:
    from urllib.parse import unquote

    return unquote(path)
