"""The REST API under /api/v1: what each path reads or commands. No decision is made here.

A handler turns a request into typed values, calls `app`, and answers what that gives. Errors are raised and
become problem details in `server.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from horarium.api import schemas
from horarium.api.idempotency import once
from horarium.api.problems import MEDIA_TYPE, BadRequest, JsonResponse, read_body, read_object
from horarium.app.commands import Commands, FileText
from horarium.app.paging import DEFAULT_LIMIT, MAX_LIMIT, Filters, Paging
from horarium.app.queries import Queries
from horarium.app.shadow import TOLERANCE, Asked
from horarium.core.duration import parse_duration
from horarium.core.freeze import EVERYTHING, Owed, Scope
from horarium.core.instant import from_seconds, rfc3339
from horarium.core.keys import DeploymentKey, TriggerKey, check_key_part
from horarium.core.once import parse_instant
from horarium.core.run import Result
from horarium.core.zone import load_zone
from horarium.errors import InvalidInput, Problem, shown

USER_HEADER = "x-horarium-user"
LONGEST_USER = 100
_MAX_ID = 2**63 - 1


def create_router(commands: Commands, queries: Queries) -> APIRouter:
    """All paths of the API, over these commands and queries."""
    router = APIRouter(dependencies=[Depends(known_parameters)])
    _status(router, queries)
    _deployments(router, commands, queries)
    _triggers(router, commands, queries)
    _runs(router, commands, queries)
    _backfills(router, commands, queries)
    _plans(router, commands)
    _freezes(router, commands)
    _shadow(router, commands, queries)
    _files(router, commands, queries)
    return router


# requests → values


def bad(pointer: str, got: object, rule: str, hint: str = "", code: str = "invalid") -> NoReturn:
    """Refuse a part of the query, the path or a header."""
    raise BadRequest(400, [Problem(pointer, shown(got), rule, hint, code=code)])


def in_query(read: Callable[[], Any]) -> Any:
    """What `read` gives; its problems are about the query or the path, so they are a 400."""
    try:
        return read()
    except InvalidInput as error:
        raise BadRequest(400, error.problems) from error


def known_parameters(request: Request) -> None:
    """Refuses query parameters that the path does not have, by name."""
    known = {field.alias for field in _query_fields(request.scope["route"].dependant)}
    problems = [
        Problem(
            f"/{name}",
            shown(name, 60),
            "there is no such query parameter",
            f"one of {', '.join(sorted(known))}" if known else "leave it out",
            code="unknown-key",
        )
        for name in dict(request.query_params)
        if name not in known
    ]
    problems += [
        Problem(f"/{name}", f"{name} {count} times", "a query parameter stands once", code="duplicate")
        for name in dict(request.query_params)
        if (count := len(request.query_params.getlist(name))) > 1
    ]
    if problems:
        raise BadRequest(400, problems)


def _query_fields(dependant: Any) -> list[Any]:
    return [*dependant.query_params, *(f for sub in dependant.dependencies for f in _query_fields(sub))]


def read_time(value: str, pointer: str) -> datetime:
    """An instant that somebody typed: RFC 3339, or without an offset in UTC. Whole seconds."""
    return from_seconds(parse_instant(value, load_zone("UTC"), pointer))


def query_time(value: str, pointer: str) -> datetime:
    """The same from the query, where a mistake is a 400 and a plus sign arrives as a space."""
    try:
        return read_time(value, pointer)
    except InvalidInput as error:
        if " " in value.strip():
            hint = "in a query + is a space: write %2B, or the time in UTC with Z"
            bad(pointer, value, error.problems[0].rule, hint, "time")
        raise BadRequest(400, error.problems) from error


Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="items on a page")]
Token = Annotated[
    str | None,
    Query(max_length=2_000, description="`next_page_token` of the page before", pattern=r"^[\w-]*$"),
]


def paging_of(limit: Limit = DEFAULT_LIMIT, page_token: Token = None) -> Paging:
    """Which page of a list."""
    return Paging(limit, page_token)


Pages = Annotated[Paging, Depends(paging_of)]

_FILTERS: Mapping[str, tuple[Any, str]] = {
    "project": (str, "of this project"),
    "domain": (str, "of this domain"),
    "deployment": (str, "of this deployment's name"),
    "trigger": (str, "of one trigger: `deployment`, `deployment/name` or the whole key"),
    "target": (str, "on this target"),
    "owner": (str, "of this owner"),
    "source": (str, "managed by this source; `api` for people"),
    "origin": (Literal["schedule", "backfill", "manual"], "of this origin"),
    "late": (bool, "late, or not late"),
    "shadow": (bool, "in shadow, or not"),
    "withdrawn": (bool, "withdrawn by their source; others unless given"),
    "q": (str, "with this text in the key or the run's name, whatever its case"),
    "from": (str, "from this instant on, included"),
    "to": (str, "up to this instant, not included"),
}
_RUN_STATES = Literal["scheduled", "held", "fired", "failed", "shadowed", "cancelled"]
_BACKFILL_STATES = Literal["open", "done", "ended"]
_TRIGGER_STATES = Literal["active", "paused", "finished", "deleted", "error"]


def filters_of(*names: str, **special: Any) -> Callable[..., Filters]:
    """A dependency that reads the filters `names`, and those with their own types, into `Filters`."""

    def read(**given: Any) -> Filters:
        values = {name.rstrip("_"): value for name, value in given.items() if value is not None}
        for name, value in values.items():
            if isinstance(value, str) and (not value.isprintable() or not value):
                bad(f"/{name}", value, "a filter is printable text", "leave it out", "text")
        if "trigger" in values:
            values["trigger"] = in_query(lambda: TriggerKey.parse(values["trigger"]))
        for name, field in (("from", "from_time"), ("to", "to_time")):
            if name in values:
                values[field] = query_time(values.pop(name), f"/{name}")
        return Filters(**values)

    types = {name: _FILTERS[name] for name in names} | {
        name: (kind, f"in this {name}") for name, kind in special.items()
    }
    parameters = []
    for name, (kind, description) in types.items():
        longest = 500 if kind is str else None
        query = Query(alias=name, description=description, max_length=longest)
        parameters.append(
            inspect.Parameter(
                f"{name}_" if name == "from" else name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind | None, query],
            )
        )
    read.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what FastAPI reads
    return read


def trigger_key(
    project: Annotated[str, Path()],
    domain: Annotated[str, Path()],
    deployment: Annotated[str, Path()],
    name: Annotated[str, Path()],
) -> TriggerKey:
    """The key in a path."""
    parts = {"project": project, "domain": domain, "deployment": deployment, "name": name}
    return TriggerKey(*(_name(part, word) for word, part in parts.items()))


def run_key(
    project: Annotated[str, Path()], domain: Annotated[str, Path()], name: Annotated[str, Path()]
) -> tuple[str, str, str]:
    """The project, domain and name of a run in a path."""
    return _name(project, "project"), _name(domain, "domain"), _name(name, "name")


def _name(part: str, word: str) -> str:
    return str(in_query(lambda: check_key_part(part, f"/{word}")))


def who_of(request: Request) -> str:
    """Who asks, for the audit: a name that the caller gives, no proof of anything."""
    given = request.headers.get(USER_HEADER)
    if given is None:
        return "api"
    if not (0 < len(given) <= LONGEST_USER and given.isprintable()):
        bad("/X-Horarium-User", given, f"a user's name is 1 to {LONGEST_USER} printable characters")
    return given


Key = Annotated[TriggerKey, Depends(trigger_key)]
RunKey = Annotated[tuple[str, str, str], Depends(run_key)]
Who = Annotated[str, Depends(who_of)]
BackfillId = Annotated[int, Path(ge=1, le=_MAX_ID)]


def body(model: type[Any], *, required: bool = True) -> dict[str, Any]:
    """The request's body in the OpenAPI document; `server.py` adds the schemas."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": reference}}}}


IDEMPOTENT: list[dict[str, Any]] = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        "description": "the same key and body get the same answer; another body is refused",
    }
]
_IF_MATCH: dict[str, Any] = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "the `ETag` that was read; another one in force is a 412",
}
_IF_NONE_MATCH: dict[str, Any] = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "enum": ["*"]},
    "description": "`*`: only if there is no such trigger",
}


_NO_TOKEN: dict[str, Any] = {
    "description": "not with a token of this run that holds",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
}


# the paths


def _status(router: APIRouter, queries: Queries) -> None:
    @router.get("/status", response_model=schemas.Status)
    async def status() -> Response:
        """The whole at a glance."""
        return JsonResponse(await queries.status())

    @router.get("/owed", response_model=schemas.OwedNow)
    async def owed() -> Response:
        """What is owed now, and which targets know a run that they have had."""
        return JsonResponse(await queries.owed())

    @router.get("/targets", response_model=schemas.Targets)
    async def targets(pages: Pages) -> Response:
        """Targets by name."""
        return JsonResponse(await in_pages(queries.targets(pages)))

    @router.get("/targets/{name}", response_model=schemas.Target)
    async def target(name: Annotated[str, Path()]) -> Response:
        """One target, and how many runs are due for it."""
        return JsonResponse(await queries.target(_name(name, "name")))


def _deployments(router: APIRouter, commands: Commands, queries: Queries) -> None:
    one = "/deployments/{project}/{domain}/{name}"

    async def shown_deployment(key: DeploymentKey, *, withdrawn: bool = False) -> Response:
        view = await queries.deployment(key, withdrawn=withdrawn)
        return JsonResponse(view, headers={"etag": view["etag"]})

    @router.get("/deployments", response_model=schemas.Deployments)
    async def deployments(
        pages: Pages,
        filters: Annotated[
            Filters,
            Depends(
                filters_of("project", "domain", "deployment", "target", "owner", "source", "withdrawn", "q")
            ),
        ],
    ) -> Response:
        """Deployments by key."""
        return JsonResponse(await in_pages(queries.deployments(pages, filters)))

    @router.get(one, response_model=schemas.Deployment)
    async def deployment(key: RunKey) -> Response:
        """One deployment and its triggers' keys, with its `ETag`."""
        return await shown_deployment(DeploymentKey(*key))

    @router.post(
        one + "/pause",
        response_model=schemas.Deployment,
        openapi_extra={**body(schemas.NoteBody, required=False), "parameters": [_IF_MATCH]},
    )
    async def pause(request: Request, key: RunKey, who: Who) -> Response:
        """Stop all triggers of a deployment until it is resumed. Each one's own pause stays what it is."""
        given = await read_body(request, schemas.NoteBody)
        etag = request.headers.get("if-match")
        await commands.pause_deployment(DeploymentKey(*key), note=given.note, etag=etag, who=who)
        return await shown_deployment(DeploymentKey(*key))

    @router.post(
        one + "/resume",
        response_model=schemas.Deployment,
        openapi_extra={**body(schemas.ResumeBody, required=False), "parameters": [_IF_MATCH]},
    )
    async def resume(request: Request, key: RunKey, who: Who) -> Response:
        """End the pause of a deployment. A trigger that is paused itself stays so."""
        given = await read_body(request, schemas.ResumeBody)
        etag = request.headers.get("if-match")
        await commands.resume_deployment(DeploymentKey(*key), backfill=given.backfill, etag=etag, who=who)
        return await shown_deployment(DeploymentKey(*key), withdrawn=True)


def _triggers(router: APIRouter, commands: Commands, queries: Queries) -> None:
    one = "/triggers/{project}/{domain}/{deployment}/{name}"

    async def shown_trigger(key: TriggerKey, status: int = 200) -> Response:
        view = await queries.trigger(key)
        return JsonResponse(view, status, headers={"etag": view["etag"]})

    @router.get("/triggers", response_model=schemas.Triggers)
    async def triggers(
        pages: Pages,
        filters: Annotated[
            Filters,
            Depends(
                filters_of(
                    "project",
                    "domain",
                    "deployment",
                    "target",
                    "owner",
                    "source",
                    "q",
                    "shadow",
                    status=_TRIGGER_STATES,
                )
            ),
        ],
    ) -> Response:
        """Triggers by key. Deleted ones only under `status=deleted`."""
        return JsonResponse(await in_pages(queries.triggers(pages, filters)))

    @router.get(one, response_model=schemas.Trigger)
    async def trigger(key: Key) -> Response:
        """One trigger, with its `ETag`."""
        return await shown_trigger(key)

    @router.put(
        one,
        response_model=schemas.Trigger,
        responses={201: {"model": schemas.Trigger}},
        openapi_extra={**body(schemas.TriggerWords), "parameters": [_IF_MATCH, _IF_NONE_MATCH]},
    )
    async def put_trigger(request: Request, key: Key, who: Who) -> Response:
        """Create, replace or revive a trigger that people manage."""
        words = await read_object(request)
        none = request.headers.get("if-none-match")
        if none not in (None, "*"):
            bad("/If-None-Match", none, "only * is known here", "*")
        done = await commands.put_trigger(
            key, words, etag=request.headers.get("if-match"), must_be_new=none is not None, who=who
        )
        return await shown_trigger(key, 201 if done.created else 200)

    @router.delete(one, status_code=204, openapi_extra={"parameters": [_IF_MATCH]})
    async def delete_trigger(request: Request, key: Key, who: Who) -> Response:
        """Delete a trigger that people manage. Its key keeps its id, and `why` still answers."""
        await commands.delete_trigger(key, etag=request.headers.get("if-match"), who=who)
        return Response(status_code=204)

    @router.post(
        one + "/pause",
        response_model=schemas.Trigger,
        openapi_extra={**body(schemas.PauseBody, required=False), "parameters": [_IF_MATCH]},
    )
    async def pause(request: Request, key: Key, who: Who) -> Response:
        """Stop a trigger, whoever manages it, until it is resumed."""
        given = await read_body(request, schemas.PauseBody)
        until = None if given.until is None else read_time(given.until, "/until")
        await commands.pause(key, note=given.note, until=until, etag=request.headers.get("if-match"), who=who)
        return await shown_trigger(key)

    @router.post(
        one + "/resume",
        response_model=schemas.Trigger,
        openapi_extra={**body(schemas.ResumeBody, required=False), "parameters": [_IF_MATCH]},
    )
    async def resume(request: Request, key: Key, who: Who) -> Response:
        """End a pause."""
        given = await read_body(request, schemas.ResumeBody)
        await commands.resume(key, backfill=given.backfill, etag=request.headers.get("if-match"), who=who)
        return await shown_trigger(key)

    @router.post(
        one + "/shadow/on", response_model=schemas.Trigger, openapi_extra={"parameters": [_IF_MATCH]}
    )
    async def shadow_on(request: Request, key: Key, who: Who) -> Response:
        """Put a trigger into shadow: its slots from now on are decided, and nothing is fired."""
        await _no_body(request)
        await commands.set_shadow(key, True, etag=request.headers.get("if-match"), who=who)
        return await shown_trigger(key)

    @router.post(
        one + "/shadow/off", response_model=schemas.Trigger, openapi_extra={"parameters": [_IF_MATCH]}
    )
    async def shadow_off(request: Request, key: Key, who: Who) -> Response:
        """Cut a trigger over: its slots from now on are fired. Those before stay the other scheduler's."""
        await _no_body(request)
        await commands.set_shadow(key, False, etag=request.headers.get("if-match"), who=who)
        return await shown_trigger(key)

    @router.post(
        one + "/run",
        status_code=201,
        response_model=schemas.RunWithAttempts,
        responses={200: {"model": schemas.RunWithAttempts}},
        openapi_extra={**body(schemas.RunBody, required=False), "parameters": IDEMPOTENT},
    )
    async def run(request: Request, key: Key, who: Who) -> Response:
        """Run a trigger once now. 200 where the request key had its run already."""
        given = await read_body(request, schemas.RunBody)

        async def work(idempotency_key: str | None) -> Response:
            made, new = await commands.run_now(
                key,
                parameters=given.parameters,
                request_key=given.request_key or (idempotency_key and idempotency_key[:200]),
                who=who,
            )
            view = await queries.run(key.project, key.domain, made.name)
            place = f"/api/v1/runs/{quote(key.project)}/{quote(key.domain)}/{quote(made.name)}"
            return JsonResponse(view, 201 if new else 200, headers={"location": place})

        return await once(request, commands.store, work)

    @router.get(one + "/why", response_model=schemas.Why)
    async def why(
        key: Key, time: Annotated[str, Query(max_length=64, description="the instant that is asked about")]
    ) -> Response:
        """What became of an instant of a trigger, and why."""
        return JsonResponse(await queries.why(key, query_time(time, "/time")))

    @router.get(one + "/preview", response_model=schemas.Preview)
    async def preview(
        key: Key,
        n: Annotated[int, Query(ge=1, le=1_000)] = 10,
        from_: Annotated[str | None, Query(alias="from", max_length=64)] = None,
        compare: Annotated[str | None, Query(max_length=200, description=schemas.COMPARE)] = None,
        year: Annotated[int | None, Query(description=schemas.YEAR)] = None,
    ) -> Response:
        """The next slots of a trigger's rule, with what clock changes and calendars do to them."""
        start = None if from_ is None else query_time(from_, "/from")
        return JsonResponse(
            await in_pages(queries.preview_trigger(key, n, start, compare=compare, year=year))
        )

    @router.get(one + "/revisions", response_model=schemas.Revisions)
    async def revisions(key: Key, pages: Pages) -> Response:
        """A trigger's revisions, newest first."""
        return JsonResponse(await in_pages(queries.revisions(key, pages)))


def _runs(router: APIRouter, commands: Commands, queries: Queries) -> None:
    one = "/runs/{project}/{domain}/{name}"

    @router.get("/runs", response_model=schemas.Runs)
    async def runs(
        pages: Pages,
        filters: Annotated[
            Filters,
            Depends(
                filters_of(
                    "project",
                    "domain",
                    "deployment",
                    "trigger",
                    "target",
                    "origin",
                    "owner",
                    "late",
                    "from",
                    "to",
                    "q",
                    state=_RUN_STATES,
                )
            ),
        ],
    ) -> Response:
        """Runs, latest slot first. A page may be short and have a next one."""
        return JsonResponse(await in_pages(queries.runs(pages, filters)))

    @router.get(one, response_model=schemas.RunWithAttempts)
    async def run(key: RunKey) -> Response:
        """One run and its attempts."""
        return JsonResponse(await queries.run(*key))

    @router.get(one + "/logs", response_model=schemas.Logs)
    async def logs(key: RunKey, offset: Annotated[int, Query(ge=0, le=_MAX_ID)] = 0) -> Response:
        """What a run of the local target wrote, from a byte on."""
        return JsonResponse(await queries.logs(*key, offset))

    @router.post(one + "/retry", response_model=schemas.RunWithAttempts)
    async def retry(request: Request, key: RunKey, who: Who) -> Response:
        """Try a failed run again."""
        await _no_body(request)
        await commands.retry_run(*key, who=who)
        return JsonResponse(await queries.run(*key))

    @router.post(one + "/cancel", response_model=schemas.Cancelled)
    async def cancel(request: Request, key: RunKey, who: Who) -> Response:
        """Let a pending run not fire: a slot becomes a skip, a manual run ends `cancelled`."""
        await _no_body(request)
        outcome = await commands.cancel_run(*key, who=who)
        view = None if outcome == "skipped" else await queries.run(*key)
        return JsonResponse({"outcome": outcome, "run": view})

    @router.post(
        one + "/result",
        response_model=schemas.Reported,
        responses={401: _NO_TOKEN},
        openapi_extra={**body(schemas.ResultBody), "security": [{"callback": []}]},
    )
    async def result(request: Request, key: RunKey) -> Response:
        """How a run goes, from the one who does its work, with the token that came with the call.

        The same report may come again. The first end stays: another one is a conflict.
        """
        row = await commands.check_callback(*key, _bearer(request))
        given = await read_body(request, schemas.ResultBody)
        at = None if given.at is None else read_time(given.at, "/at")
        told = await commands.report_result(row, _result(given.result), detail=given.detail or "", at=at)
        return JsonResponse({"run": "/".join(key), "result": told.result.value, "written": told.written})

    @router.get("/skips", response_model=schemas.Skips)
    async def skips(
        pages: Pages,
        filters: Annotated[
            Filters, Depends(filters_of("project", "domain", "deployment", "trigger", "from", "to"))
        ],
    ) -> Response:
        """What did not run by policy or by a person's word, latest first."""
        return JsonResponse(await in_pages(queries.skips(pages, filters)))

    @router.get("/slots", response_model=schemas.SlotPage, response_model_exclude_none=True)
    async def slots(
        pages: Pages,
        from_: Annotated[str, Query(alias="from", max_length=64, description="included")],
        to: Annotated[str, Query(max_length=64, description="not included")],
        filters: Annotated[
            Filters, Depends(filters_of("project", "domain", "deployment", "trigger", "target", "owner", "q"))
        ],
    ) -> Response:
        """Runs, skips and projected slots in one list, by time."""
        start, end = query_time(from_, "/from"), query_time(to, "/to")
        return JsonResponse(await in_pages(queries.slots(start, end, pages, filters)))


def _result(word: str) -> Result:
    """Most receivers say `failed`, which is a run's state here and not its result."""
    return Result.ERRORED if word == "failed" else Result(word)


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _backfills(router: APIRouter, commands: Commands, queries: Queries) -> None:
    @router.post(
        "/triggers/{project}/{domain}/{deployment}/{name}/backfills",
        status_code=201,
        response_model=schemas.BackfillSlots,
        responses={200: {"model": schemas.BackfillSlots}},
        openapi_extra={**body(schemas.BackfillBody), "parameters": IDEMPOTENT},
    )
    async def start(request: Request, key: Key, who: Who) -> Response:
        """Fill the holes of a range. With `dry_run` a 200 that says which."""
        given = await read_body(request, schemas.BackfillBody)
        since, until = read_time(given.from_, "/from"), read_time(given.to, "/to")

        async def work(_: str | None) -> Response:
            if given.dry_run:
                return JsonResponse({"id": None, **await commands.preview_backfill(key, since, until)})
            return JsonResponse(await commands.start_backfill(key, since, until, who=who), 201)

        return await once(request, commands.store, work)

    @router.get("/backfills", response_model=schemas.Backfills)
    async def backfills(
        pages: Pages,
        filters: Annotated[
            Filters, Depends(filters_of("project", "domain", "deployment", "trigger", state=_BACKFILL_STATES))
        ],
    ) -> Response:
        """Backfills, newest first."""
        return JsonResponse(await in_pages(queries.backfills(pages, filters)))

    @router.get("/backfills/{backfill_id}", response_model=schemas.Backfill)
    async def backfill(backfill_id: BackfillId) -> Response:
        """One backfill and how far it is."""
        return JsonResponse(await queries.backfill(backfill_id))

    @router.post("/backfills/{backfill_id}/cancel", response_model=schemas.Backfill)
    async def cancel(request: Request, backfill_id: BackfillId, who: Who) -> Response:
        """Stop a backfill where it is; the runs that it made stay."""
        await _no_body(request)
        await commands.cancel_backfill(backfill_id, who=who)
        return JsonResponse(await queries.backfill(backfill_id))


def _plans(router: APIRouter, commands: Commands) -> None:
    extra = {**body(schemas.PlanBody), "parameters": IDEMPOTENT}
    made: dict[int | str, dict[str, Any]] = {201: {"model": schemas.RangePlanned}}

    async def plan_it(request: Request, key: TriggerKey | DeploymentKey, who: str) -> Response:
        given = await read_body(request, schemas.PlanBody)
        since = None if given.from_ is None else read_time(given.from_, "/from")
        until = read_time(given.to, "/to")

        async def work(_: str | None) -> Response:
            found = await commands.plan_range(key, since, until, who=who)
            return JsonResponse(found, 201 if found["planned"] else 200)

        return await once(request, commands.store, work)

    @router.post(
        "/triggers/{project}/{domain}/{deployment}/{name}/plan",
        response_model=schemas.RangePlanned,
        responses=made,
        openapi_extra=extra,
    )
    async def plan_trigger(request: Request, key: Key, who: Who) -> Response:
        """Have the runs of a range ahead as rows now. 200 where all were there."""
        return await plan_it(request, key, who)

    @router.post(
        "/deployments/{project}/{domain}/{name}/plan",
        response_model=schemas.RangePlanned,
        responses=made,
        openapi_extra=extra,
    )
    async def plan_deployment(request: Request, key: RunKey, who: Who) -> Response:
        """The same of all triggers of a deployment. One that can't be planned is named and costs no other."""
        return await plan_it(request, DeploymentKey(*key), who)


def _freezes(router: APIRouter, commands: Commands) -> None:
    async def freeze_it(scope: Scope, note: str | None, who: str) -> Response:
        done = await commands.freeze(scope, note=note, who=who)
        counts = {"targets": done.targets, "triggers": done.triggers, "held": done.held}
        return JsonResponse({"kind": scope.kind.value, "key": scope.key, **counts})

    async def release_it(scope: Scope, owed: str, who: str) -> Response:
        done = await commands.release(scope, Owed(owed), who=who)
        counts = {"released": done.released, "skipped": done.skipped}
        return JsonResponse({"kind": scope.kind.value, "key": scope.key, **counts})

    @router.post(
        "/targets/{name}/freeze",
        response_model=schemas.Frozen,
        openapi_extra=body(schemas.NoteBody, required=False),
    )
    async def freeze_target(request: Request, name: Annotated[str, Path()], who: Who) -> Response:
        """Stop firing into a target. What is due waits, and is planned on."""
        given = await read_body(request, schemas.NoteBody)
        return await freeze_it(Scope.target(_name(name, "name")), given.note, who)

    @router.post(
        "/targets/{name}/release", response_model=schemas.Released, openapi_extra=body(schemas.OwedBody)
    )
    async def release_target(request: Request, name: Annotated[str, Path()], who: Who) -> Response:
        """Fire into a target again, and let go what its catch-up guard holds."""
        given = await read_body(request, schemas.OwedBody)
        return await release_it(Scope.target(_name(name, "name")), given.owed, who)

    @router.post("/freeze", response_model=schemas.Frozen, openapi_extra=body(schemas.FreezeBody))
    async def freeze(request: Request, who: Who) -> Response:
        """Stop firing everything, a project or a deployment. Slots go on being planned."""
        given = await read_body(request, schemas.FreezeBody)
        return await freeze_it(_scope_of(given), given.note, who)

    @router.post("/release", response_model=schemas.Released, openapi_extra=body(schemas.ReleaseBody))
    async def release(request: Request, who: Who) -> Response:
        """End a freeze, and say what becomes of what was owed meanwhile."""
        given = await read_body(request, schemas.ReleaseBody)
        return await release_it(_scope_of(given), given.owed, who)


def _shadow(router: APIRouter, commands: Commands, queries: Queries) -> None:
    async def set_it(request: Request, on: bool, who: str) -> Response:
        given = await read_body(request, schemas.ShadowBody)
        if (given.source is None) == (given.scope is None):
            rule = "exactly one of scope and source says what it is about"
            hint = '{"scope": "all"} or {"source": "git/etl"}'
            raise InvalidInput(Problem("/scope", shown(given.scope), rule, hint, code="scope"))
        done = await commands.set_shadow_of(on, source=given.source, who=who)
        items = [{"trigger": str(item.key), "after": rfc3339(item.after)} for item in done]
        return JsonResponse({"shadow": on, "items": items})

    @router.post("/shadow/on", response_model=schemas.ShadowSet, openapi_extra=body(schemas.ShadowBody))
    async def on(request: Request, who: Who) -> Response:
        """Put every trigger of a source, or all, into shadow. Those that are there are left alone."""
        return await set_it(request, True, who)

    @router.post("/shadow/off", response_model=schemas.ShadowSet, openapi_extra=body(schemas.ShadowBody))
    async def off(request: Request, who: Who) -> Response:
        """Cut every trigger of a source, or all, over: slots after its `after` are fired."""
        return await set_it(request, False, who)

    @router.post(
        "/shadow/report", response_model=schemas.ShadowReport, openapi_extra=body(schemas.ReportBody)
    )
    async def report(request: Request) -> Response:
        """What was decided in shadow beside what the other scheduler ran."""
        given = await read_body(request, schemas.ReportBody)
        asked = Asked(
            triggers=tuple(TriggerKey.parse(text) for text in given.triggers),
            source=given.source,
            from_time=None if given.from_ is None else read_time(given.from_, "/from"),
            to_time=None if given.to is None else read_time(given.to, "/to"),
            tolerance=TOLERANCE if given.tolerance is None else parse_duration(given.tolerance, "/tolerance"),
            text=given.incumbent,
            everything=given.everything,
        )
        return JsonResponse(await queries.shadow_report(asked))


def _scope_of(given: schemas.Place) -> Scope:
    """The one place that a body names."""
    named = [word for word in ("scope", "project", "deployment") if getattr(given, word) is not None]
    if len(named) != 1:
        raise InvalidInput(
            Problem(
                f"/{named[1]}" if named else "/scope",
                shown(getattr(given, named[1])) if named else "nothing",
                "exactly one of scope, project and deployment says what it is about",
                '{"scope": "all"}, {"project": "shop"} or {"deployment": "default/default/nightly"}',
                code="scope",
            )
        )
    if given.project is not None:
        return Scope.project(check_key_part(given.project, "/project"))
    if given.deployment is None:
        return EVERYTHING
    parts = given.deployment.split("/")
    if len(parts) not in (1, 3):
        raise InvalidInput(
            Problem(
                "/deployment",
                shown(given.deployment),
                "a deployment is its name, or project/domain/name",
                "default/default/nightly",
                code="key",
            )
        )
    parts = parts if len(parts) == 3 else ["default", "default", *parts]
    return Scope.deployment(DeploymentKey(*(check_key_part(part, "/deployment") for part in parts)))


def _files(router: APIRouter, commands: Commands, queries: Queries) -> None:
    @router.post("/preview", response_model=schemas.Preview, openapi_extra=body(schemas.PreviewBody))
    async def preview(request: Request) -> Response:
        """The next instants of a rule, with what clock changes and calendars do to them."""
        given = await read_body(request, schemas.PreviewBody)
        asked = ("n", "from_", "key", "compare", "year")
        words = {name: getattr(given, name) for name in given.model_fields_set if name not in asked}
        start = None if given.from_ is None else read_time(given.from_, "/from")
        return JsonResponse(
            queries.preview(words, given.n, start, given.key, compare=given.compare, year=given.year)
        )

    @router.post(
        "/apply",
        response_model=schemas.Applied,
        openapi_extra={**body(schemas.ApplyBody), "parameters": IDEMPOTENT},
    )
    async def apply(request: Request, who: Who) -> Response:
        """Reconcile sources with files, or say what that would do."""
        given = await read_body(request, schemas.ApplyBody)

        async def work(_: str | None) -> Response:
            done = await commands.apply(
                [FileText(file.path, file.text) for file in given.files],
                dry_run=given.dry_run,
                prune=given.prune,
                folder=given.folder,
                allow_withdraw=given.allow_withdraw,
                who=who,
            )
            return JsonResponse(done.to_json())

        return await once(request, commands.store, work)

    @router.post(
        "/sync",
        response_model=schemas.Applied,
        openapi_extra={**body(schemas.SyncBody), "parameters": IDEMPOTENT},
    )
    async def sync(request: Request, who: Who) -> Response:
        """Reconcile a source that is no file, once, or say what that would do."""
        given = await read_body(request, schemas.SyncBody)

        async def work(_: str | None) -> Response:
            done = await commands.sync(
                given.kind,
                given.config,
                dry_run=given.dry_run,
                allow_withdraw=given.allow_withdraw,
                who=who,
            )
            return JsonResponse(done.to_json())

        return await once(request, commands.store, work)

    @router.post("/validate", response_model=schemas.Validated, openapi_extra=body(schemas.FilesBody))
    async def validate(request: Request) -> Response:
        """Read files and say what is wrong with them; nothing is changed."""
        given = await read_body(request, schemas.FilesBody)
        return JsonResponse(await commands.validate([FileText(file.path, file.text) for file in given.files]))


async def in_pages(reading: Any) -> Any:
    """A list's answer; what is wrong with its page or filters is about the query, so it is a 400."""
    try:
        return await reading
    except InvalidInput as error:
        raise BadRequest(400, error.problems) from error


async def _no_body(request: Request) -> None:
    """A path that takes no fields takes an empty object, and refuses any other by name."""
    given = await read_object(request)
    if given:
        raise InvalidInput(
            [
                Problem(f"/{name}", shown(name), "there is no such field", "{}", code="unknown-key")
                for name in given
            ]
        )
