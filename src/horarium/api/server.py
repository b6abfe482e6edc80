"""The ASGI application: who may speak to it, how errors look, whether it is alive.

There is no access control yet, so it is for this machine alone: it binds to loopback (`config` refuses any
other address), answers only to a Host of this machine (a page that rebinds its name to 127.0.0.1 has
another), and refuses what a browser sends from another site.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import horarium
from horarium.api import schemas
from horarium.api.problems import (
    MEDIA_TYPE,
    BadRequest,
    JsonResponse,
    from_validation,
    problem_response,
    response_for,
)
from horarium.api.rest import create_router
from horarium.app.commands import Commands
from horarium.app.figures import Figures
from horarium.app.queries import Queries
from horarium.app.status import Health
from horarium.errors import (
    Conflict,
    HorariumError,
    InvalidInput,
    NotFound,
    SchemaMismatch,
    StaleVersion,
    StoreUnavailable,
    Unauthorized,
    shown,
)
from horarium.sources.base import SourceUnavailable
from horarium.targets.secrets import SecretMissing
from horarium.telemetry import get_logger

LOG = get_logger(__name__)
PREFIX = "/api/v1"
RESULT_PATH = re.compile(rf"{PREFIX}/runs/[^/]+/[^/]+/[^/]+/result")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_BODIES = (
    schemas.PauseBody,
    schemas.ResumeBody,
    schemas.NoteBody,
    schemas.OwedBody,
    schemas.FreezeBody,
    schemas.ReleaseBody,
    schemas.RunBody,
    schemas.BackfillBody,
    schemas.PlanBody,
    schemas.ApplyBody,
    schemas.SyncBody,
    schemas.ShadowBody,
    schemas.ReportBody,
    schemas.FilesBody,
    schemas.PreviewBody,
    schemas.ResultBody,
    schemas.TriggerWords,
)
_PROBLEMS = {
    400: "the query, the path or the JSON is wrong",
    403: "from another host or site",
    404: "there is no such thing",
    409: "it does not fit the present state",
    412: "changed meanwhile",
    413: "too large",
    415: "not JSON",
    422: "the body is wrong",
    503: "the database did not answer",
}


def create_app(
    commands: Commands,
    queries: Queries,
    *,
    health: Health | None = None,
    figures: Figures | None = None,
    mounts: Mapping[str, ASGIApp] | None = None,
) -> FastAPI:
    """The API over these commands and queries. `health` is that of this process's loops, if it has any, and
    `figures` are what `/metrics` shows of it. `mounts` are applications for other paths, behind the same
    door."""
    app = FastAPI(
        title="Horarium",
        version=horarium.__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        # Their pages load scripts from a CDN.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(create_router(commands, queries), prefix=PREFIX, responses=_problem_responses())
    _liveness(app, queries, health)
    if figures is not None:
        _metrics(app, figures)
    for path, mounted in (mounts or {}).items():
        app.router.routes.append(Route(path, mounted, include_in_schema=False))
    _errors(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign] # FastAPI's own way to replace it
    app.add_middleware(OnlyThisMachine)
    return app


class OnlyThisMachine:
    """Refuses requests for another host, and a browser's from another site.

    A run's result is reported from other machines, under the server's public name; a token of that run
    guards it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["type"] == "http" and not RESULT_PATH.fullmatch(scope["path"])
        refusal = _refusal(Request(scope)) if asked else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal(scope, receive, send)


def _refusal(request: Request) -> Response | None:
    host = request.headers.get("host", "")
    if _name_of(f"//{host}") not in LOOPBACK_NAMES:
        return problem_response(
            421,
            f"this server answers for localhost only, not for {shown(host, 80)}",
            hint="http://127.0.0.1 or http://localhost, with the port that `horarium serve` prints",
        )
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return None
    origin = request.headers.get("origin")
    foreign = origin is not None and _name_of(origin) not in LOOPBACK_NAMES
    if foreign or request.headers.get("sec-fetch-site") == "cross-site":
        return problem_response(
            403, f"a page of another site ({shown(origin, 80)}) may not change anything here"
        )
    return None


def _name_of(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return None if parts.username is not None or parts.path not in ("", "/") else parts.hostname


def _liveness(app: FastAPI, queries: Queries, health: Health | None) -> None:
    @app.get("/livez", response_model=schemas.Alive, responses={503: {"model": schemas.Alive}})
    async def livez() -> Response:
        """Whether every loop turns."""
        stuck = bool(health and health.stuck())
        loops = queries.overview.loops() if health else []
        return JsonResponse({"ok": not stuck, "loops": loops}, 503 if stuck else 200)

    @app.get("/readyz", response_model=schemas.Ready, responses=_problem_responses(503))
    async def readyz() -> Response:
        """Whether the database answers and has the right schema."""
        wrong = await queries.ready()
        if wrong is None:
            return JsonResponse({"ok": True})
        return problem_response(503, wrong, headers={"retry-after": "1"})


def _metrics(app: FastAPI, figures: Figures) -> None:
    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus, in its text form."""
        text, content_type = await figures.text()
        return Response(text, media_type=content_type)


def _errors(app: FastAPI) -> None:
    async def known(_: Request, error: Exception) -> Response:
        answer = response_for(error)
        assert answer is not None  # registered for these classes only
        return answer

    async def unavailable(_: Request, error: Exception) -> Response:
        detail = f"the database did not do it, nothing was changed: {error}"
        return problem_response(503, detail, hint="try again", headers={"retry-after": "1"})

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = from_validation(error.errors())
        return problem_response(400, "; ".join(map(str, problems)), problems)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = str(error.detail)
        if error.status_code == 404:
            detail = f"there is nothing at {request.url.path}"
        elif error.status_code == 405:
            detail = f"{request.method} does not work on {request.url.path}"
        hint = f"{PREFIX}/openapi.json names every path" if error.status_code == 404 else ""
        return problem_response(error.status_code, detail, hint=hint, headers=error.headers)

    async def unexpected(request: Request, error: Exception) -> Response:
        LOG.error("request failed", method=request.method, path=request.url.path, exc_info=error)
        return problem_response(500, "this is a fault of Horarium; its log says more")

    expected: tuple[type[Exception], ...] = (
        BadRequest, InvalidInput, NotFound, Conflict, StaleVersion, SourceUnavailable, Unauthorized,
    )  # fmt: skip

    async def no_secret(_: Request, error: Exception) -> Response:
        return problem_response(503, str(error), hint="mend that, then try again")

    app.add_exception_handler(SecretMissing, no_secret)
    for kind in expected:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(StoreUnavailable, unavailable)
    app.add_exception_handler(SchemaMismatch, unavailable)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(HorariumError, unexpected)
    app.add_exception_handler(Exception, unexpected)


def _problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    reference = {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
    return {
        status: {"description": text, "content": {MEDIA_TYPE: reference}}
        for status, text in _PROBLEMS.items()
        if not statuses or status in statuses
    }


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document with the schemas of bodies, which FastAPI does not read itself."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version="3.1.0",
            description="Triggers in, runs out. Times are RFC 3339 in UTC, errors RFC 9457 problem details.",
            routes=app.routes,
        )
        _, more = models_json_schema(
            [*((model, "validation") for model in _BODIES), (schemas.ProblemDetails, "serialization")],
            ref_template="#/components/schemas/{model}",
        )
        found.setdefault("components", {})["securitySchemes"] = {
            "callback": {
                "type": "http",
                "scheme": "bearer",
                "description": "the token that came with the run: `ce-callbacktoken`",
            }
        }
        components = found["components"].setdefault("schemas", {})
        components.update(more["$defs"])
        for unused in ("HTTPValidationError", "ValidationError"):
            components.pop(unused, None)
        app.openapi_schema = found
    return app.openapi_schema
