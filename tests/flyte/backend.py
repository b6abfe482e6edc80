"""A Flyte backend's run service and trigger service, as far as a scheduler meets them: a stand-in on the
server code that flyteidl2 generates, on real sockets.

It keeps triggers with their revisions and statuses as the open-source server does, and creates a run once
for a name; how a repeated name is answered is a choice (`duplicates`), as it is between servers. What goes
wrong is said by `faults`: each `CreateRun` takes the next one.

In a test it runs in the test's own event loop (`serving`). As a process of its own it keeps its state in a
folder, as a database would, so that it can be killed and started again:

    python -m tests.flyte.backend --port 8090 --state /tmp/backend

It prints a line of JSON when it can be called, and one for each call of `CreateRun`, once its run is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import queue
import socket
import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from flyteidl2.common.identifier_pb2 import ActionIdentifier, TriggerIdentifier
from flyteidl2.common.list_pb2 import Filter, ListRequest, Sort
from flyteidl2.task import task_service_pb2 as task_service
from flyteidl2.task.task_definition_pb2 import Task, TaskIdentifier
from flyteidl2.task.task_service_connect import TaskService, TaskServiceASGIApplication
from flyteidl2.trigger import trigger_service_pb2 as service
from flyteidl2.trigger.trigger_definition_pb2 import Trigger, TriggerDetails
from flyteidl2.trigger.trigger_service_connect import TriggerService, TriggerServiceASGIApplication
from flyteidl2.workflow.run_definition_pb2 import Action, Run
from flyteidl2.workflow.run_service_connect import RunService, RunServiceASGIApplication
from flyteidl2.workflow.run_service_pb2 import CreateRunRequest, CreateRunResponse, ListRunsResponse
from google.protobuf import json_format

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Refuse:
    """The call is answered with an error and does nothing. With `body` it is not in Connect's form."""

    status: int
    code: str = ""
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "text/html"


@dataclass(frozen=True)
class Lose:
    """The call does its work, and the connection is reset before the answer."""


@dataclass(frozen=True)
class Reset:
    """The connection is reset before the call does anything."""


@dataclass(frozen=True)
class Hang:
    """The call does its work, and is answered when `until` is set."""

    until: asyncio.Event


Fault = Refuse | Lose | Reset | Hang


@dataclass(frozen=True)
class Call:
    """A request as it came over the wire: `body` is what the client sent, `plain` without its compression."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    plain: bytes


class Backend:
    """See the module. An ASGI application."""

    def __init__(self, state: Path | None = None) -> None:
        self.duplicates = "ok"
        self.faults: deque[Fault] = deque()
        self.calls: list[Call] = []
        self.keep_calls = True
        self.runs: dict[tuple[str, str, str], CreateRunRequest] = {}
        self.made: dict[tuple[str, str, str], datetime] = {}
        """When each run was created; a run that was loaded from a folder is of now."""
        self.attempts: list[str] = []
        self.triggers: dict[Key, list[TriggerDetails]] = {}
        self.versions: dict[str, list[str]] = {}
        self.broken: dict[Key, ConnectError] = {}
        self.down: Refuse | None = None
        self.no_revisions: ConnectError | None = None
        self.page = MOST_LISTED
        self.pages = 0
        self.after_page: Callable[[int], None] = lambda number: None
        self.in_flight = self.most_in_flight = 0
        self.called = asyncio.Event()
        self.tell: Callable[[CreateRunRequest, bool], None] = lambda request, new: None
        self._state = state
        self._load()
        self._apps = {
            "flyteidl2.workflow.RunService": RunServiceASGIApplication(_Runs(self)),
            "flyteidl2.trigger.TriggerService": TriggerServiceASGIApplication(_Triggers(self)),
            "flyteidl2.task.TaskService": TaskServiceASGIApplication(_Tasks(self)),
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if self.keep_calls:
            packed = headers.get("content-encoding") == "gzip"
            self.calls.append(Call(scope["path"], headers, body, gzip.decompress(body) if packed else body))
        app: Any = self._apps.get(scope["path"].split("/")[1])
        creates = scope["path"].endswith("/CreateRun")
        fault = self.faults.popleft() if creates and self.faults else self.down
        if app is None:
            fault = Refuse(404, body=b"not found", content_type="text/plain")
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Any:
            # Then nothing more comes: a client that goes away is not what is tested here.
            found = next(parts, None)
            return found if found is not None else await asyncio.Event().wait()

        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            match fault:
                case Refuse():
                    await _refuse(fault, send)
                case Reset():
                    _reset(send)
                case Lose():
                    await app(scope, replay, _swallow)
                    _reset(send)
                case Hang(until=until):
                    await app(scope, replay, _swallow)
                    self.called.set()
                    await until.wait()
                    _reset(send)
                case None:
                    await app(scope, replay, send)
        finally:
            self.in_flight -= 1
            self.called.set()

    # state

    def deploy(self, details: TriggerDetails, at: datetime | None = None) -> TriggerDetails:
        """A new revision of a trigger, as `DeployTrigger` makes one."""
        name = details.id.name
        key = (name.project, name.domain, name.task_name, name.name)
        history = self.triggers.setdefault(key, [])
        kept = TriggerDetails()
        kept.CopyFrom(details)
        kept.id.CopyFrom(TriggerIdentifier(name=name, revision=len(history) + 1))
        now = at or datetime.now(UTC)
        kept.status.deployed_at.FromDatetime(now)
        kept.status.updated_at.FromDatetime(now)
        kept.status.ClearField("deleted_at")
        history.append(kept)
        self._save()
        return kept

    def activate(self, key: Key, active: bool, at: datetime | None = None) -> None:
        """`UpdateTriggers`: a revision that differs in `active`."""
        self._revise(key, at).spec.active = active
        self._save()

    def delete(self, key: Key, at: datetime | None = None) -> None:
        """`DeleteTriggers`: a revision that says so."""
        self._revise(key, at).status.deleted_at.FromDatetime(at or datetime.now(UTC))
        self._save()

    def _revise(self, key: Key, at: datetime | None) -> TriggerDetails:
        history = self.triggers[key]
        kept = TriggerDetails()
        kept.CopyFrom(history[-1])
        kept.id.revision += 1
        kept.status.updated_at.FromDatetime(at or datetime.now(UTC))
        history.append(kept)
        return kept

    def create(self, request: CreateRunRequest) -> CreateRunResponse:
        """A run of that name, once. Raises `ConnectError`."""
        if not request.HasField("run_id"):
            raise ConnectError(Code.INVALID_ARGUMENT, "run_id: value is required")
        name = request.run_id
        place = (name.project, name.domain, name.name)
        self.attempts.append(name.name)
        if request.HasField("trigger_name"):
            trigger = request.trigger_name
            key = (trigger.project, trigger.domain, trigger.task_name, trigger.name)
            if key not in self.triggers or _gone(self.triggers[key][-1]):
                raise ConnectError(Code.NOT_FOUND, f'trigger "{trigger.name}" not found')
        new = place not in self.runs
        if not new:
            self.tell(request, new)
            if self.duplicates == "already_exists":
                raise ConnectError(Code.ALREADY_EXISTS, f"run {name.name} exists")
        else:
            self.runs[place] = request
            self.made[place] = datetime.now(UTC)
            if self._state is not None:
                with (self._state / "runs.jsonl").open("a") as file:
                    file.write(json.dumps(json_format.MessageToDict(request)) + "\n")
            self.tell(request, new)
        return CreateRunResponse(run=Run(action=Action(id=ActionIdentifier(run=name, name="a0"))))

    def list_runs(self, request: Any) -> tuple[list[Run], str]:
        """The runs of a trigger, as the open-source server lists them. Raises `ConnectError`."""
        asked = request.request
        wanted = request.trigger_name
        chosen = [
            (self.made[place], made)
            for place, made in self.runs.items()
            if made.trigger_name == wanted and all(_passes(self.made[place], item) for item in asked.filters)
        ]
        chosen.sort(key=lambda item: item[0], reverse=asked.sort_by_fields[0].direction == Sort.DESCENDING)
        page, token = _page(chosen, asked, MOST_LISTED)
        listed = []
        for at, made in page:
            run = Run(action=Action(id=ActionIdentifier(run=made.run_id, name="a0")))
            run.action.metadata.source = made.source
            run.action.status.start_time.FromDatetime(at)
            listed.append(run)
        return listed, token

    def _save(self) -> None:
        if self._state is None:
            return
        text = json.dumps(
            [json_format.MessageToDict(item) for history in self.triggers.values() for item in history]
        )
        part = self._state / "triggers.part"
        part.write_text(text)
        part.replace(self._state / "triggers.json")

    def _load(self) -> None:
        if self._state is None:
            return
        self._state.mkdir(parents=True, exist_ok=True)
        for request in read_runs(self._state):
            name = request.run_id
            self.runs[name.project, name.domain, name.name] = request
            self.made[name.project, name.domain, name.name] = datetime.now(UTC)
        file = self._state / "triggers.json"
        for item in json.loads(file.read_text()) if file.exists() else []:
            details = json_format.ParseDict(item, TriggerDetails())
            name = details.id.name
            key = (name.project, name.domain, name.task_name, name.name)
            self.triggers.setdefault(key, []).append(details)


def read_runs(state: Path) -> list[CreateRunRequest]:
    """The runs that a process has created, by its folder; a line that a kill cut off is none."""
    file = state / "runs.jsonl"
    found = []
    for line in file.read_text().split("\n") if file.exists() else []:
        try:
            found.append(json_format.ParseDict(json.loads(line), CreateRunRequest()))
        except ValueError:
            continue
    return found


class _Runs(RunService):  # type: ignore[misc]
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create_run(self, request: CreateRunRequest, ctx: RequestContext[Any, Any]) -> CreateRunResponse:
        return self._backend.create(request)

    async def list_runs(self, request: Any, ctx: RequestContext[Any, Any]) -> ListRunsResponse:
        runs, token = self._backend.list_runs(request)
        return ListRunsResponse(runs=runs, token=token)


class _Triggers(TriggerService):  # type: ignore[misc]
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def list_triggers(self, request: Any, ctx: RequestContext[Any, Any]) -> Any:
        backend = self._backend
        there = [history[-1] for history in backend.triggers.values() if not _gone(history[-1])]
        if request.WhichOneof("scope_by") == "project_id":
            scope = request.project_id
            there = [
                item
                for item in there
                if (item.id.name.project, item.id.name.domain) == (scope.name, scope.domain)
            ]
        order = sorted(there, key=lambda item: self._sort_key(item, request.request))
        page, token = _page(order, request.request, backend.page)
        backend.pages += 1
        backend.after_page(backend.pages)
        return service.ListTriggersResponse(
            triggers=[
                Trigger(
                    id=item.id,
                    metadata=item.metadata,
                    status=item.status,
                    active=item.spec.active,
                    automation_spec=item.automation_spec,
                )
                for item in page
            ],
            token=token,
        )

    def _sort_key(self, item: TriggerDetails, asked: ListRequest) -> list[Any]:
        """As the open-source server: by what is asked for, else the active and the last updated first."""
        if asked.sort_by_fields:
            return [getattr(item.id.name, sort.key) for sort in asked.sort_by_fields]
        return [not item.spec.active, -item.status.updated_at.ToNanoseconds()]

    async def get_trigger_details(self, request: Any, ctx: RequestContext[Any, Any]) -> Any:
        history = self._history(request.name)
        if _gone(history[-1]):
            raise ConnectError(Code.NOT_FOUND, "no such trigger")
        return service.GetTriggerDetailsResponse(trigger=history[-1])

    async def get_trigger_revision_details(self, request: Any, ctx: RequestContext[Any, Any]) -> Any:
        if self._backend.no_revisions is not None:
            raise self._backend.no_revisions
        for item in self._history(request.id.name):
            if item.id.revision == request.id.revision:
                return service.GetTriggerRevisionDetailsResponse(trigger=item)
        raise ConnectError(Code.NOT_FOUND, "no such revision")

    async def deploy_trigger(self, request: Any, ctx: RequestContext[Any, Any]) -> Any:
        details = TriggerDetails(
            id=TriggerIdentifier(name=request.name),
            spec=request.spec,
            automation_spec=request.automation_spec,
        )
        return service.DeployTriggerResponse(trigger=self._backend.deploy(details))

    async def update_triggers(self, request: Any, ctx: RequestContext[Any, Any]) -> Any:
        for name in request.names:
            self._backend.activate(
                (name.project, name.domain, name.task_name, name.name), bool(request.active)
            )
        return service.UpdateTriggersResponse()

    async def delete_triggers(self, request: Any, ctx: RequestContext[Any, Any]) -> Any:
        for name in request.names:
            self._backend.delete((name.project, name.domain, name.task_name, name.name))
        return service.DeleteTriggersResponse()

    def _history(self, name: Any) -> list[TriggerDetails]:
        key = (name.project, name.domain, name.task_name, name.name)
        if key in self._backend.broken:
            raise self._backend.broken[key]
        if key not in self._backend.triggers:
            raise ConnectError(Code.NOT_FOUND, "no such trigger")
        return self._backend.triggers[key]


class _Tasks(TaskService):  # type: ignore[misc]
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def list_tasks(self, request: Any, ctx: RequestContext[Any, Any]) -> Any:
        scope = request.project_id
        (name,) = request.request.filters[0].values
        versions = list(reversed(self._backend.versions.get(name, [])))[: request.request.limit]
        return task_service.ListTasksResponse(
            tasks=[
                Task(
                    task_id=TaskIdentifier(
                        project=scope.name, domain=scope.domain, name=name, version=version
                    )
                )
                for version in versions
            ]
        )


MOST_LISTED = 200
"""Items that a page has at most; who asks for more is refused."""


def _passes(at: datetime, item: Filter) -> bool:
    bound = datetime.fromisoformat(item.values[0])
    assert item.field == "created_at"
    return at >= bound if item.function == Filter.GREATER_THAN_OR_EQUAL else at <= bound


def _gone(details: TriggerDetails) -> bool:
    return bool(details.status.HasField("deleted_at"))


def _page(items: list[Any], asked: ListRequest, most: int) -> tuple[list[Any], str]:
    """A page of at most `most`, and the token of the next one: the open-source server gives one after every
    full page, so that the last one may be empty."""
    if asked.limit > MOST_LISTED:
        raise ConnectError(
            Code.INVALID_ARGUMENT, f"invalid limit: {asked.limit} (exceeds maximum of {MOST_LISTED})"
        )
    start = int(asked.token or 0)
    limit = min(asked.limit or 50, most)
    page = items[start : start + limit]
    return page, str(start + limit) if len(page) == limit else ""


async def _refuse(fault: Refuse, send: Any) -> None:
    if fault.body is not None:
        body, content_type = fault.body, fault.content_type
    else:
        body = json.dumps({"code": fault.code, "message": fault.message}).encode()
        content_type = "application/json"
    headers = {"content-type": content_type, "content-length": str(len(body)), **fault.headers}
    await send(
        {
            "type": "http.response.start",
            "status": fault.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def _swallow(message: Any) -> None:
    """Where an answer goes that nobody gets."""


def _reset(send: Any) -> None:
    """Cut the connection with a TCP reset: `send` belongs to uvicorn's cycle, which has the transport."""
    transport = send.__self__.transport
    transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    transport.abort()


# --- serving --------------------------------------------------------------------------------------------


def listener(port: int = 0) -> socket.socket:
    """A listening socket on the loopback interface."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", port))
    found.listen(512)
    return found


@asynccontextmanager
async def serving(backend: Any, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """The ASGI application `backend` on a port of its own, in this event loop; its address."""
    sock = listener(port)
    config = uvicorn.Config(
        backend,
        log_level="critical",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        **options,
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]  # they are the test's
    task = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started:
        await asyncio.sleep(0)
    scheme = "https" if "ssl_certfile" in options else "http"
    try:
        yield f"{scheme}://localhost:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        sock.close()


@contextmanager
def beside(backend: Any) -> Iterator[str]:
    """The same in a thread and event loop of its own, for a test that runs one itself; its address."""
    told: queue.SimpleQueue[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = queue.SimpleQueue()

    async def serve() -> None:
        done = asyncio.Event()
        async with serving(backend) as url:
            told.put((url, asyncio.get_running_loop(), done))
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    url, loop, done = told.get(timeout=60)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()


def main() -> None:
    """A backend as a process."""
    options = argparse.ArgumentParser(description="A stand-in for a Flyte backend.")
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--state", type=Path)
    given = options.parse_args()

    async def run() -> None:
        backend = Backend(given.state)
        backend.keep_calls = False
        backend.tell = _print
        server = uvicorn.Server(
            uvicorn.Config(backend, log_level="critical", access_log=False, lifespan="off")
        )
        sock = listener(given.port)  # from here on a connection waits for its answer
        print(json.dumps({"serves": given.port}), flush=True)
        await server.serve(sockets=[sock])

    asyncio.run(run())


def _print(request: CreateRunRequest, new: bool) -> None:
    line = {
        "name": request.run_id.name,
        "trigger": request.trigger_name.name,
        "slot": request.run_start_time.seconds,
        "new": new,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
