"""The API for tests: the real application over a real database, under a clock that stands still.

Every answer is checked against the OpenAPI document on its way, so each test of behaviour is a test of the
published contract too.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, urlencode

import asyncpg
import jsonschema
from starlette.types import Message

from horarium.api.server import create_app
from horarium.app.commands import Commands
from horarium.app.queries import Queries
from horarium.core.instant import rfc3339
from horarium.core.outcome import Outcome
from horarium.core.plan import Window, plan
from horarium.core.run import RunState
from horarium.sources.files import parse_triggers
from horarium.sources.incumbents import Incumbents
from horarium.store import migrations
from horarium.store.base import Claimed, Demand
from horarium.store.postgres import PostgresStore
from horarium.store.sqlite import SqliteStore, engine
from horarium.store.tables import metadata
from horarium.targets import registry
from horarium.testing import SequenceIds, VirtualClock

V1 = "/api/v1"
TICK = "/triggers/default/default/tick/default"
LATE_AFTER = timedelta(seconds=60)


@dataclass(frozen=True)
class Reply:
    """One answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def pointers(self) -> list[str]:
        """The fields that its problems name."""
        return [item["pointer"] for item in self.json["problems"]]


@dataclass
class World:
    """An instance without loops: tests plan and fire by hand, with the store's own methods."""

    rows: Callable[[], str]
    """Every row of the database, as text."""
    clock: VirtualClock
    store: SqliteStore | PostgresStore
    commands: Commands
    queries: Queries
    app: Any
    window: Window
    woken: list[None] = field(default_factory=list)
    path: Path = Path()
    """The file, on SQLite."""

    # requests

    async def get(self, path: str, **query: object) -> Any:
        """The body of a read that works."""
        reply = await self.call("GET", path, query=query)
        assert reply.status == 200, reply.body
        return reply.json

    async def all(self, path: str, limit: int, **query: object) -> list[Any]:
        """Every item of a list, over pages of `limit`."""
        found: list[Any] = []
        token = None
        for _ in range(10_000):
            page = await self.get(path, limit=limit, page_token=token, **query)
            assert len(page["items"]) <= limit
            found += page["items"]
            token = page["next_page_token"]
            if token is None:
                return found
        raise AssertionError("the pages have no end")

    async def put(self, path: str, words: Mapping[str, Any], **headers: str) -> Reply:
        return await self.call("PUT", path, words, headers=headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return await self.call("POST", path, body, headers=headers)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
        query: Mapping[str, object] | None = None,
    ) -> Reply:
        """One request through the whole application, without a socket."""
        sent = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        pairs = {name.rstrip("_"): str(value) for name, value in (query or {}).items() if value is not None}
        place = path if path.startswith(("/livez", "/readyz", "/metrics", "/api", "//")) else V1 + path
        names = {"host": "localhost:8090", **({"content-type": "application/json"} if sent else {})}
        names |= {name.replace("_", "-").lower(): value for name, value in (headers or {}).items()}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": place,
            "raw_path": quote(place).encode(),
            "root_path": "",
            "query_string": urlencode(pairs).encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in names.items()],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8_090),
        }
        messages: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: Message) -> None:
            messages.append(message)

        await self.app(scope, receive, send)
        reply = Reply(
            messages[0]["status"],
            {name.decode().lower(): value.decode() for name, value in messages[0]["headers"]},
            b"".join(message.get("body", b"") for message in messages[1:]),
        )
        check_contract(self.app, method, place, reply)
        return reply

    # what the loops would do

    async def plan(self) -> None:
        """The planner's turns until nothing is due."""
        for _ in range(1_000):
            now = self.clock.now()
            due = await self.store.lease_due(now, now, 1_000)
            if not due:
                return
            await self.store.apply_plans([plan(item, now, self.window) for item in due], now)
        raise AssertionError("planning has no end")

    async def claim(self, wanted: int = 1_000, lease: timedelta = timedelta(minutes=1)) -> list[Claimed]:
        """What is due, claimed."""
        now = self.clock.now()
        targets = await self.store.targets()
        for row in targets:
            await self.store.look(row.id, now, timedelta(seconds=60))
        claims = await self.store.claim(
            [Demand(row.id, wanted, None) for row in targets],
            now,
            now + lease,
            "test",
            backlog_first=False,
            late_after=LATE_AFTER,
            grace=timedelta(seconds=60),
        )
        return list(claims.runs)

    async def settle(
        self, claimed: list[Claimed], state: RunState = RunState.FIRED, reason: str | None = None
    ) -> None:
        """End claimed runs; those in shadow as an executor does."""
        now = self.clock.now()
        answer = "created" if state is RunState.FIRED else "refused"
        await self.store.settle(
            [
                Outcome(item.run.id, item.run.attempt, RunState.SHADOWED, "shadowed", now, now)
                if item.shadow
                else Outcome(item.run.id, item.run.attempt, state, answer, now, now, reason=reason)
                for item in claimed
            ],
            now,
        )

    async def fire(self, state: RunState = RunState.FIRED, reason: str | None = None) -> int:
        """Claim and settle what is due; how many."""
        claimed = await self.claim()
        await self.settle(claimed, state, reason)
        return len(claimed)

    # the rest

    def dump(self) -> str:
        """Every row of the database, as text."""
        return self.rows()

    def time(self, seconds: float = 0) -> str:
        """Now and some seconds, as the API takes it."""
        return rfc3339((self.clock.now() + timedelta(seconds=seconds)).replace(microsecond=0))

    def now(self) -> datetime:
        return self.clock.now()


@cache
def blank_file() -> bytes:
    """A migrated SQLite file without rows; migrating takes longer than most tests."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "blank.db")
        made = engine(str(path))
        with made.connect() as connection, connection.begin():
            migrations.upgrade(connection)
        made.dispose()
        return path.read_bytes()


@asynccontextmanager
async def open_world(folder: Path, window: Window | None = None, **more: Any) -> AsyncIterator[World]:
    """A new instance on a file in `folder`."""
    path = folder / "horarium.db"
    path.write_bytes(blank_file())
    clock = VirtualClock()

    def rows() -> str:
        with sqlite3.connect(path) as raw:
            found = "\n".join(raw.iterdump())
        raw.close()
        return found

    async with _open(SqliteStore(path, clock), clock, rows, window, path=path, **more) as world:
        yield world


@asynccontextmanager
async def open_postgres_world(url: str, window: Window | None = None, **more: Any) -> AsyncIterator[World]:
    """A new instance on a migrated and empty PostgreSQL database."""

    async def read() -> str:
        connection = await asyncpg.connect(url)
        try:
            found = [
                f"{table.name} {tuple(row)}"
                for table in metadata.sorted_tables
                for row in await connection.fetch(f'select * from "{table.name}"')
            ]
        finally:
            await connection.close()
        return "\n".join(sorted(found))

    def rows() -> str:
        with ThreadPoolExecutor(1) as thread:  # a loop of its own: the test's is running
            return thread.submit(lambda: asyncio.run(read())).result()

    clock = VirtualClock()
    async with _open(PostgresStore(url, clock), clock, rows, window, **more) as world:
        yield world


@asynccontextmanager
async def _open(
    store: SqliteStore | PostgresStore,
    clock: VirtualClock,
    rows: Callable[[], str],
    window: Window | None,
    path: Path = Path(),
    **more: Any,
) -> AsyncIterator[World]:
    await store.open()
    window = window or Window(min_runs=3, max_runs=10, min_scheduled_time=timedelta(minutes=1))
    woken: list[None] = []
    commands = Commands(
        store,
        clock,
        SequenceIds(),
        parse=partial(parse_triggers, checks=registry),
        window=window,
        late_after=LATE_AFTER,
        wake=lambda: woken.append(None),
        callback_keys=registry.callback_keys,
        **more,
    )
    queries = Queries(store, clock, window=window, late_after=LATE_AFTER, incumbents=Incumbents(clock))
    app = create_app(commands, queries)
    try:
        yield World(rows, clock, store, commands, queries, app, window, woken, path)
    finally:
        await store.close()


def triggers_file(**deployments: Mapping[str, Any]) -> str:
    """A triggers file, as JSON."""
    return json.dumps({"deployments": deployments})


# the published contract


_published: dict[str, Any] = {}


def document(app: Any) -> Mapping[str, Any]:
    """The OpenAPI document, made once: it is the same for every instance, and takes half a second."""
    if not _published:
        _published.update(app.openapi())
    return _published


def operation_of(app: Any, method: str, path: str) -> Mapping[str, Any] | None:
    """The operation of the document that serves `path`."""
    parts = path.split("/")
    for template, operations in document(app)["paths"].items():
        wanted = template.split("/")
        if len(wanted) == len(parts) and all(
            a == b or (a.startswith("{") and b) for a, b in zip(wanted, parts, strict=True)
        ):
            found: Mapping[str, Any] | None = operations.get(method.lower())
            return found
    return None


def check_contract(app: Any, method: str, path: str, reply: Reply) -> None:
    """Whether the answer is one that the document promises."""
    assert reply.status < 500 or reply.status in (502, 503), reply.body
    if reply.status >= 400 and not (path == "/livez" and reply.status == 503):
        assert reply.headers["content-type"] == "application/problem+json"
        _validate(app, {"$ref": "#/components/schemas/ProblemDetails"}, reply.json)
        return
    operation = operation_of(app, method, path)
    if operation is None:
        return
    assert str(reply.status) in operation["responses"], f"{reply.status} is not documented"
    contents = operation["responses"][str(reply.status)].get("content", {})
    content = contents.get("application/json")
    if content is None:
        assert reply.body == b"" or reply.headers["content-type"].split(";")[0] in contents
        return
    assert reply.headers["content-type"] == "application/json"
    _validate(app, content["schema"], reply.json)


_validators: dict[str, jsonschema.Draft202012Validator] = {}


def _validate(app: Any, schema: Mapping[str, Any], value: Any) -> None:
    name = json.dumps(schema, sort_keys=True)
    if name not in _validators:
        whole = {**schema, "components": document(app)["components"]}
        _validators[name] = jsonschema.Draft202012Validator(whole)
    _validators[name].validate(value)
