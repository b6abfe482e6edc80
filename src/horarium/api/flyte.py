"""Flyte's API, served from here: so that Flyte's own SDK and CLI manage triggers in Horarium.

The services are `flyteidl2`'s own, spoken over Connect (HTTP/1.1; protobuf or JSON, plain or gzip). Which
calls there are, and what each means here, is in docs/design/flyte-api.md:

| service | calls |
|---|---|
| `TriggerService` | all, `flyte_triggers.py` |
| `TaskService` | `DeployTask`, `GetTaskDetails`, `ListTasks`, `ListVersions`, `flyte_tasks.py` |
| `ClusterService`, `DataProxyService` | `SelectCluster`, `UploadInputs`, `flyte_tasks.py` |
| `RunService` | `CreateRun`, `flyte_runs.py` |

Every other call is answered `unimplemented`. A request that can't be read is `invalid_argument`, whatever is
wrong with it; no message gets past `MAX_BODY`, before or after it is unpacked.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from flyteidl2.cluster.service_connect import ClusterServiceASGIApplication
from flyteidl2.dataproxy.dataproxy_service_connect import DataProxyServiceASGIApplication
from flyteidl2.task.task_service_connect import TaskServiceASGIApplication
from flyteidl2.trigger.trigger_service_connect import TriggerServiceASGIApplication
from flyteidl2.workflow.run_service_connect import RunServiceASGIApplication
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from horarium.api.flyte_json import no_message
from horarium.api.flyte_runs import Runs
from horarium.api.flyte_tasks import Clusters, DataProxy, Tasks
from horarium.api.flyte_triggers import Triggers
from horarium.api.flyte_words import FlyteSettings, Part
from horarium.api.problems import to_json
from horarium.app.commands import Commands
from horarium.app.queries import Queries
from horarium.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    SchemaMismatch,
    StaleVersion,
    StoreUnavailable,
    shown,
)
from horarium.telemetry import get_logger

LOG = get_logger(__name__)

PATH = "/flyteidl2.{call:path}"
MAX_BODY = 8 * 1024 * 1024
"""A task's whole declaration is some kilobytes, and all inputs of one trigger at most a quarter of a
megabyte."""

_MEDIA_TYPES = ("application/json", "application/proto")
_CODES: Mapping[type[Exception], Code] = {
    InvalidInput: Code.INVALID_ARGUMENT,
    NotFound: Code.NOT_FOUND,
    StaleVersion: Code.ABORTED,
    Conflict: Code.FAILED_PRECONDITION,
    StoreUnavailable: Code.UNAVAILABLE,
    SchemaMismatch: Code.UNAVAILABLE,
}
_STATUSES = {
    Code.INVALID_ARGUMENT: 400,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
}

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class FlyteApi:
    """The ASGI application for every path that begins with `/flyteidl2.`."""

    def __init__(self, commands: Commands, queries: Queries, settings: FlyteSettings) -> None:
        part = Part(commands, queries, settings)
        errors = (_Errors(),)
        self._services: dict[str, Any] = {
            app.path: app
            for app in (
                TriggerServiceASGIApplication(Triggers(part), interceptors=errors),
                TaskServiceASGIApplication(Tasks(part), interceptors=errors),
                ClusterServiceASGIApplication(Clusters(part), interceptors=errors),
                DataProxyServiceASGIApplication(DataProxy(part), interceptors=errors),
                RunServiceASGIApplication(Runs(part), interceptors=errors),
            )
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, _, method = scope["path"].rpartition("/")
        app = self._services.get(service)
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        media_type = _media_type(headers)
        if app is None:
            refusal: Response | None = _refused(
                Code.UNIMPLEMENTED,
                f"Horarium does not serve {shown(scope['path'], 120)}: it keeps tasks' triggers and creates "
                "their runs; ask a Flyte backend for the rest",
            )
        elif scope["method"] != "POST":
            refusal = Response(status_code=405, headers={"allow": "POST"})
        elif media_type not in _MEDIA_TYPES:
            refusal = Response(status_code=415, headers={"accept-post": ", ".join(_MEDIA_TYPES)})
        else:
            refusal = await self._call(app, method, scope, headers, receive, send)
        if refusal is not None:
            await refusal(scope, receive, send)

    async def _call(
        self,
        app: Any,
        method: str,
        scope: Scope,
        headers: Mapping[str, str],
        receive: Receive,
        send: Send,
    ) -> Response | None:
        """One call, answered through `send`; or what refuses it."""
        encoding, media_type = headers.get("content-encoding", "identity").lower(), _media_type(headers)
        if encoding not in ("identity", "gzip"):
            return _refused(
                Code.UNIMPLEMENTED, f"content-encoding {shown(encoding)}: gzip and identity are known"
            )
        try:
            body = await _read(receive)
            if encoding == "gzip" and body:
                body = _unpacked(body)
        except _TooLarge:
            return _refused(
                Code.RESOURCE_EXHAUSTED,
                f"a message has at most {MAX_BODY:,} bytes, unpacked; keep large inputs in storage and give "
                "their address",
            )
        except zlib.error as error:
            return _refused(Code.INVALID_ARGUMENT, f"the body is not gzip: {error}")
        if media_type == "application/json" and not body.lstrip().startswith(b"{"):
            # protobuf's reader takes "" and [] for a message that says nothing
            return _refused(
                Code.INVALID_ARGUMENT, f"the body is not the message of {method}: a message is a JSON object"
            )
        if media_type == "application/json":
            service = scope["path"].rpartition("/")[0].lstrip("/")
            wrong = no_message(service, method, body)
            if wrong is not None:
                return _refused(
                    Code.INVALID_ARGUMENT, f"{wrong[0]}: got {shown(wrong[1])}: a message is a JSON object"
                )
        plain = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-encoding"]
        answered: list[Message] = []

        async def given() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def hold(message: Message) -> None:
            answered.append(message)

        try:
            await app({**scope, "headers": plain}, given, hold)
        except Exception as error:  # all that a call itself raises has been answered: the message is at fault
            return _refused(
                Code.INVALID_ARGUMENT,
                f"the body is not the message of {method}: {type(error).__name__}: {error}",
            )
        if answered[0]["status"] == 404 and not any(message.get("body") for message in answered):
            return _refused(Code.UNIMPLEMENTED, f"{scope['path'].split('/')[1]} has no call {shown(method)}")
        for message in answered:
            await send(message)
        return None


class _Errors:
    """Turns the errors of our commands and queries into those of Connect."""

    async def intercept_unary(
        self,
        call_next: Callable[[Request, RequestContext[Any, Any]], Awaitable[Answer]],
        request: Request,
        ctx: RequestContext[Any, Any],
    ) -> Answer:
        """See `connectrpc.interceptor`."""
        try:
            return await call_next(request, ctx)
        except ConnectError:
            raise
        except tuple(_CODES) as error:
            code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
            raise ConnectError(code, str(error)) from error
        except Exception as error:
            LOG.error("request failed", method=ctx.method().name, exc_info=error)
            raise ConnectError(Code.INTERNAL, "this is a fault of Horarium; its log says more") from error


def _media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


class _TooLarge(Exception):
    """A body of more than `MAX_BODY`."""


async def _read(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY:
            raise _TooLarge
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _unpacked(body: bytes) -> bytes:
    unpack = zlib.decompressobj(wbits=31)
    found = unpack.decompress(body, MAX_BODY + 1)
    if len(found) > MAX_BODY:
        raise _TooLarge
    if not unpack.eof or unpack.unused_data:
        raise zlib.error("it is cut off, or something follows it")
    return found


def _refused(code: Code, message: str) -> Response:
    """An error as Connect has it."""
    content = to_json({"code": code.value, "message": message})
    return Response(content, _STATUSES[code], media_type="application/json")
