"""The `prefect` target: a flow run of a deployment, by Prefect's REST API, under the run's own name.

The run name is the flow run's `idempotency_key`, which is unique in its flow: a repeat makes no second flow
run. The flow run is `Scheduled` at the slot's time, so a worker takes it at once. What Prefect answers:

    201                                   Created
    200                                   AlreadyExists; Refused where that flow run is another deployment's
    400, 404, 409, 422, other 4xx         Refused, with Prefect's detail
    401, 403                              Unavailable: it is about the key, which can be mended meanwhile
    408, 425, 429, 5xx                    Unavailable; Retry-After is honoured, up to a day
    no answer                             Unavailable; unknown where it may have happened

With `ahead`, flow runs are there before they are due: `engine/mirror.py` keeps them in step, through the
methods of `AheadTarget`. What a flow run was made of stands in its labels, so that one made by a rule that
has changed since is made again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from horarium.clock import Clock
from horarium.core.instant import rfc3339
from horarium.core.run import FiredRun, Report, Result
from horarium.core.spec import Json, TargetSpec
from horarium.errors import Problem, shown
from horarium.prefect import AUTO_SCHEDULED, CONNECTION_KEYS
from horarium.prefect.client import Client, Reply, check_connection
from horarium.targets.base import (
    AheadFailed,
    AlreadyExists,
    Answer,
    Created,
    FireRequest,
    Mirrored,
    Refused,
    TargetTraits,
)
from horarium.targets.calling import EngineTarget
from horarium.targets.checks import Fields, json_problem
from horarium.targets.connection import CallFailed
from horarium.targets.outgoing import EXCERPT
from horarium.targets.secrets import SecretMissing

CONFIG_KEYS = (*CONNECTION_KEYS, "tags", "ahead", "marker")
ACTION_KEYS = ("deployment", "tags", "work_queue", "job_variables", "ahead_runs")

DEFAULT_MAX_IN_FLIGHT = 32
LONGEST_AHEAD = timedelta(days=7)
"""Flow runs are rows over there; a week of them is more than its UI shows well."""

DEFAULT_MARKER = "horarium"

_RUN, _SLOT, _REVISION = "horarium.run", "horarium.slot", "horarium.revision"
_TARGET = "horarium.target"
"""Labels of a flow run: the run's key, its slot, and the revision that it was made of."""

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_NAME = re.compile(r"[^/%&<>\x00-\x1f]{1,500}/[^/%&<>\x00-\x1f]{1,500}")
_ENDS = {
    "COMPLETED": Result.SUCCEEDED,
    "FAILED": Result.ERRORED,
    "CRASHED": Result.INTERRUPTED,
    "CANCELLED": Result.CANCELLED,
}
"""Types of states that end a flow run. `CRASHED` is of its process or pod, not of its code."""

_MOST_KNOWN = 10_000
_DELETED_AT_ONCE = 50
"""Prefect's own limit of one bulk deletion."""


class PrefectTarget(EngineTarget[Client]):
    """See the module. `spec.config` was checked by `check_config`."""

    traits = TargetTraits(
        dedupes=True,
        reports_completion=True,
        cancels=True,
        note="the run's name is the flow run's idempotency key: a repeat is no flow run",
    )

    def __init__(self, spec: TargetSpec, clock: Clock) -> None:
        limit = spec.max_in_flight or DEFAULT_MAX_IN_FLIGHT
        client = Client(spec.config, clock, limit=limit)
        super().__init__(client, clock, client.timeout, limit)
        self._name = spec.name
        self._tags: Sequence[str] = spec.config.get("tags", ())
        self._marker: str = spec.config.get("marker", DEFAULT_MARKER)
        self._ahead = timedelta(seconds=spec.config.get("ahead") or 0)
        self._ids: dict[str, str] = {}
        """`flow/deployment` → the deployment's id over there."""

    # how they go

    async def status(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        """Raises `CallFailed`, `SecretMissing`."""
        there = await self._flow_runs(runs)
        now = self._clock.now()
        return [_report(run, there.get(run.run_key), now) for run in runs]

    async def cancel(self, run: FiredRun) -> Report | None:
        """Ask Prefect to cancel it: what has not begun is cancelled at once, else its worker does it.

        None until it has ended. Raises `CallFailed`, `SecretMissing`.
        """
        there = (await self._flow_runs([run])).get(run.run_key)
        report = _report(run, there, self._clock.now())
        if there is None or report.result is not Result.RUNNING:
            return report
        if there.get("state_type") != "CANCELLING":
            state = {"type": "CANCELLING", "name": "Cancelling", "message": "Cancelled by Horarium"}
            path = f"/flow_runs/{quote(str(there.get('id')), safe='')}/set_state"
            reply = await self._connection.call("POST", path, {"state": state})
            if not reply.good and reply.status != 404:
                why = f"answered {reply.status}{self._connection.why(reply)}"
                raise CallFailed(f"the flow run was not cancelled: {why}")
            (report,) = await self.status([run])
        return None if report.result is Result.RUNNING else report

    async def _flow_runs(self, runs: Sequence[FiredRun]) -> dict[str, dict[str, Any]]:
        """Run key → flow run. Asked for by their idempotency keys, which are known also where the answer to a
        creation was lost."""
        keys = sorted({run.name for run in runs})
        found = await self._connection.every(
            "/flow_runs/filter",
            {"flow_runs": {"idempotency_key": {"any_": keys}}, "sort": "ID_DESC"},
        )
        return {str(_labels(item).get(_RUN)): item for item in found}

    # ahead

    @property
    def ahead(self) -> timedelta:
        return self._ahead

    async def create_ahead(self, request: FireRequest, start_at: datetime) -> Mirrored | Refused:
        try:
            answer = await self._create_at(request, start_at)
        except (CallFailed, SecretMissing) as error:
            raise AheadFailed(str(error)) from error
        if isinstance(answer, Refused):
            return answer
        assert isinstance(answer, Created | AlreadyExists)
        return Mirrored(answer.target_run_id or "", request.run_key, request.scheduled_time, request.revision)

    async def list_ahead(self) -> Sequence[Mirrored]:
        try:
            found = await self._connection.every(
                "/flow_runs/filter",
                {
                    "flow_runs": {
                        "tags": {"all_": [self._marker]},
                        "state": {"type": {"any_": ["SCHEDULED"]}},
                    },
                    "sort": "ID_DESC",
                },
            )
        except (CallFailed, SecretMissing) as error:
            raise AheadFailed(str(error)) from error
        # Another target of ours may have its own on the same server, under the same marker.
        mine = [item for item in found if _labels(item).get(_TARGET) == self._name]
        return [mirrored for item in mine if (mirrored := _mirrored(item)) is not None]

    async def withdraw(self, flow_run_ids: Sequence[str]) -> None:
        try:
            await self._delete_scheduled(flow_run_ids)
        except (CallFailed, SecretMissing) as error:
            raise AheadFailed(str(error)) from error

    # calls

    async def _create(self, request: FireRequest) -> Answer:
        return await self._create_at(request, request.scheduled_time)

    async def _create_at(self, request: FireRequest, start_at: datetime) -> Answer:
        """Create the flow run, which is to start at `start_at`. Raises `CallFailed`, `SecretMissing`."""
        name = str(request.action["deployment"])
        answer = await self._create_of(await self._deployment(name, request), request, start_at)
        if isinstance(answer, Refused) and self._ids.pop(name, None) is not None:
            # Perhaps the deployment was made anew under its name, with another id.
            answer = await self._create_of(await self._deployment(name, request), request, start_at)
        return answer

    async def _create_of(self, deployment: str | Refused, request: FireRequest, start_at: datetime) -> Answer:
        if isinstance(deployment, Refused):
            return deployment
        path = f"/deployments/{deployment}/create_flow_run"
        body = self._body(request, start_at)
        reply = await self._call("POST", path, body, request)
        if reply.status == 200 and _made_of_older(reply.data, request):
            # It has not begun, and its slot has been decided anew since: by other parameters, say.
            await self._delete_scheduled([str(reply.data["id"])])
            reply = await self._call("POST", path, body, request)
        if not reply.good:
            return Refused(f"answered {reply.status}{self._connection.why(reply)}")
        data = reply.data if isinstance(reply.data, dict) else {}
        there = str(data.get("id") or "")
        if reply.status == 201:
            return Created(there)
        if str(data.get("deployment_id", deployment)).lower() != deployment.lower():
            return Refused(
                f"flow run {there} of another deployment of this flow has the idempotency key "
                f"{request.run_name} already"
            )
        return AlreadyExists(there)

    async def _deployment(self, name: str, request: FireRequest) -> str | Refused:
        """The id of the deployment called `flow/deployment`, or what is wrong with that name."""
        if _ID.fullmatch(name):
            return name
        known = self._ids.get(name)
        if known is not None:
            return known
        flow, _, deployment = name.partition("/")
        path = f"/deployments/name/{quote(flow, safe='')}/{quote(deployment, safe='')}"
        reply = await self._call("GET", path, None, request)
        found = reply.data.get("id") if isinstance(reply.data, dict) else None
        if not reply.good or not isinstance(found, str):
            why = self._connection.why(reply)
            return Refused(f"there is no deployment {name!r} in Prefect: answered {reply.status}{why}")
        if len(self._ids) >= _MOST_KNOWN:
            self._ids.clear()
        self._ids[name] = found
        return found

    async def _call(self, method: str, path: str, body: object, request: FireRequest) -> Reply:
        return await self._connection.call(method, path, body, timeout=request.deadline - self._clock.now())

    def _body(self, request: FireRequest, start_at: datetime) -> dict[str, Any]:
        action = request.action
        automatic = request.origin != "manual"
        tags = [AUTO_SCHEDULED] if automatic else []
        body: dict[str, Any] = {
            "name": request.run_name,
            "idempotency_key": request.run_name,
            "parameters": dict(request.parameters),
            "state": {
                "type": "SCHEDULED",
                "name": "Scheduled",
                "message": "Flow run scheduled by Horarium",
                "state_details": {"scheduled_time": rfc3339(start_at)},
            },
            "tags": list(dict.fromkeys((*tags, self._marker, *self._tags, *action.get("tags", ())))),
            "labels": {
                _RUN: request.run_key,
                _SLOT: rfc3339(request.scheduled_time),
                _REVISION: request.revision,
                _TARGET: self._name,
                "horarium.trigger": str(request.trigger),
            },
        }
        if "work_queue" in action:
            body["work_queue_name"] = action["work_queue"]
        if "job_variables" in action:
            body["job_variables"] = action["job_variables"]
        return body

    async def _delete_scheduled(self, flow_run_ids: Sequence[str]) -> None:
        """Delete those of them that are still `Scheduled`; one that a worker has taken goes on.

        Raises `CallFailed`, `SecretMissing`.
        """
        for first in range(0, len(flow_run_ids), _DELETED_AT_ONCE):
            some = list(flow_run_ids[first : first + _DELETED_AT_ONCE])
            which = {"id": {"any_": some}, "state": {"type": {"any_": ["SCHEDULED"]}}}
            reply = await self._connection.call(
                "POST", "/flow_runs/bulk_delete", {"flow_runs": which, "limit": _DELETED_AT_ONCE}
            )
            if not reply.good:
                raise CallFailed(
                    f"flow runs can't be withdrawn: answered {reply.status}{self._connection.why(reply)}"
                )


def _labels(item: Mapping[str, Any]) -> Mapping[str, Any]:
    labels = item.get("labels")
    return labels if isinstance(labels, dict) else {}


def _report(run: FiredRun, flow_run: Mapping[str, Any] | None, now: datetime) -> Report:
    """How a run goes, by the state of its flow run; None: there is none."""
    if flow_run is None:
        return Report(run.run_key, Result.UNKNOWN, now, "there is no such flow run (any more)")
    state = flow_run.get("state") or {}
    result = _ENDS.get(str(flow_run.get("state_type")))
    if result is None:
        return Report(run.run_key, Result.RUNNING, now, str(flow_run.get("state_name") or ""))
    try:
        at = datetime.fromisoformat(str(state.get("timestamp")))
    except ValueError:
        at = now
    detail = "" if result is Result.SUCCEEDED else " ".join(str(state.get("message") or "").split())
    return Report(run.run_key, result, min(at, now) if at.tzinfo is not None else now, detail[:EXCERPT])


def _mirrored(item: Mapping[str, Any]) -> Mirrored | None:
    """What a flow run says of the run that it is of; None where it is none of ours."""
    labels = _labels(item)
    run_key, slot, revision = labels.get(_RUN), labels.get(_SLOT), labels.get(_REVISION)
    try:
        at = datetime.fromisoformat(str(slot))
    except ValueError:
        return None
    if not isinstance(run_key, str) or not isinstance(revision, int | float) or at.tzinfo is None:
        return None
    return Mirrored(str(item.get("id")), run_key, at, int(revision))


def _made_of_older(data: object, request: FireRequest) -> bool:
    """Whether the flow run that exists waits still, and was made of an older revision of its trigger."""
    if not isinstance(data, dict) or data.get("state_type") != "SCHEDULED":
        return False
    there = _mirrored(data)
    return there is not None and there.run_key == request.run_key and there.revision < request.revision


def check_config(config: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """The normalised config: the fields of `check_connection`, and `tags`, `ahead` (a duration, at most seven
    days: how long before they are due flow runs are there; 0), `marker` (the tag that says which are ours).

    Raises `InvalidInput`.
    """
    fields = Fields(config, pointer, "a prefect target", CONFIG_KEYS)
    checked = check_connection(fields)
    _check_tags(fields, checked)
    if fields.has("ahead"):
        checked["ahead"] = fields.seconds("ahead", LONGEST_AHEAD)
    marker = fields.text("marker")
    if marker is not None:
        checked["marker"] = marker
    fields.raise_problems()
    return checked


def check_action(action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str) -> dict[str, Any]:
    """The normalised action: `deployment` (`flow-name/deployment-name`, or its id), `tags`, `work_queue`,
    `job_variables`, `ahead_runs` (how many flow runs of a trigger are there ahead, at most).

    Raises `InvalidInput`.
    """
    fields = Fields(action, pointer, "a deployment of a prefect target", ACTION_KEYS)
    checked: dict[str, Any] = {}
    rule = "a deployment of a prefect target says which one it is over there"
    name = checked["deployment"] = fields.required("deployment", rule, "etl/nightly")
    if name is not None and not _ID.fullmatch(name) and not _NAME.fullmatch(name):
        rule = "a deployment of Prefect is flow-name/deployment-name, or its id"
        fields.problem("deployment", rule, "etl/nightly")
    _check_tags(fields, checked)
    queue = fields.text("work_queue")
    if queue is not None:
        checked["work_queue"] = queue
    variables = fields.mapping("job_variables")
    if variables:
        why = json_problem(variables)
        if why is not None:
            fields.problem("job_variables", f"job_variables are JSON: {why}")
        checked["job_variables"] = dict(variables)
    if fields.has("ahead_runs"):
        checked["ahead_runs"] = fields.whole("ahead_runs", 1, 10_000)
    fields.check_parameters(parameters, pointer)
    fields.raise_problems()
    return checked


def _check_tags(fields: Fields, checked: dict[str, Any]) -> None:
    tags = fields.raw("tags")
    if tags is None:
        return
    if not isinstance(tags, list) or not all(isinstance(tag, str) and tag for tag in tags):
        fields.problems.append(
            Problem(fields.at("tags"), shown(tags), "tags are a list of texts", "[nightly]")
        )
        return
    checked["tags"] = list(tags)
