"""The `ray` target: a job of a Ray cluster, by its jobs API, under the run's name as `submission_id`.

Ray takes a `submission_id` once; its answer to a second one can't be told from other faults (a 500 with a
traceback). So after every answer to a submission that is not good, the job itself is asked for: if it is
there with our metadata, it exists. Else the answer counts:

    400, a 500 that passes on a 400   Refused: the request can't be used
    401, 403                          Unavailable: it is about the token, which can be mended
    408, 425, 429, 5xx                Unavailable; Retry-After is honoured, 500, 502 and 504 are unknown
    other 4xx                         Refused
    no answer                         Unavailable; unknown where it may have happened

A cluster keeps jobs in its head's memory unless it is set up otherwise: a head that is started anew knows
neither names nor ends of those before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from horarium.clock import Clock
from horarium.core.instant import from_micros, rfc3339
from horarium.core.run import FiredRun, Report, Result
from horarium.core.spec import Json, TargetSpec
from horarium.errors import Problem, shown
from horarium.targets.base import (
    AlreadyExists,
    Answer,
    Created,
    FireRequest,
    Refused,
    TargetTraits,
)
from horarium.targets.calling import EngineTarget
from horarium.targets.checks import Fields, json_problem, pointer_to
from horarium.targets.connection import LONGEST_TIMEOUT, Access, CallFailed
from horarium.targets.outgoing import (
    EXCERPT,
    address_of,
    check_headers,
    check_server,
    check_token,
    check_verify,
)
from horarium.targets.rest import (
    Reply,
    RestConnection,
    each,
    environment,
    redirected,
)

CONFIG_KEYS = ("url", "token", "headers", "timeout", "verify")
ACTION_KEYS = ("entrypoint", "runtime_env", "resources", "metadata")
RESOURCES = {"cpus": "entrypoint_num_cpus", "gpus": "entrypoint_num_gpus", "memory": "entrypoint_memory"}
"""Words of `resources` → fields of a submission; all other words are custom resources."""

DEFAULT_TIMEOUT = timedelta(seconds=30)
"""Ray's own patience for an agent that takes a job is longer than that of most services."""

DEFAULT_MAX_IN_FLIGHT = 16

_RUN, _TRIGGER, _SLOT = "horarium.run", "horarium.trigger", "horarium.slot"
"""Metadata of a job."""

_ENDS = {
    "SUCCEEDED": Result.SUCCEEDED,
    "FAILED": Result.ERRORED,
    "STOPPED": Result.CANCELLED,
}
_NOT_YOU = frozenset((401, 403))
_NOT_NOW = frozenset((408, 425, 429))
_PASSED_ON = "status code 400"
"""The head hands submissions to an agent, and answers 500 with this text when that one answered 400."""


class RayTarget(EngineTarget[RestConnection]):
    """See the module. `spec.config` was checked by `check_config`."""

    traits = TargetTraits(
        dedupes=True,
        reports_completion=True,
        cancels=True,
        note="the run's name is the job's submission_id: a repeat is no second job while the head lives",
    )

    def __init__(self, spec: TargetSpec, clock: Clock) -> None:
        config = self._config = spec.config
        timeout = timedelta(seconds=config.get("timeout") or DEFAULT_TIMEOUT.total_seconds())
        limit = spec.max_in_flight or DEFAULT_MAX_IN_FLIGHT
        connection = RestConnection(self._access, config.get("verify", True), timeout, limit, clock)
        super().__init__(connection, clock, timeout, limit)

    async def status(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        return await each(runs, self._status)

    async def cancel(self, run: FiredRun) -> Report | None:
        """Stop the job. None until it has ended. Raises `CallFailed`."""
        report = await self._status(run)
        if report.result is not Result.RUNNING:
            return report
        reply = await self._connection.call("POST", f"{_job(run.name)}/stop")
        if not reply.good and reply.status != 404:
            raise CallFailed(f"the job was not stopped: answered {reply.status}{_why(reply)}")
        report = await self._status(run)
        return None if report.result is Result.RUNNING else report

    async def _create(self, request: FireRequest) -> Answer:
        reply = await self._call("POST", "/api/jobs/", submission(request), request)
        if reply.good:
            return Created(request.run_name)
        moved = redirected(reply)
        if moved is not None:
            return moved
        there = await self._call("GET", _job(request.run_name), None, request)
        if there.good and isinstance(there.data, dict):
            run = (there.data.get("metadata") or {}).get(_RUN)
            if run == request.run_key:
                return AlreadyExists(request.run_name)
            return Refused(
                f"a job {request.run_name} is there that is not of this run: its metadata {_RUN} is {run!r}"
            )
        refused = reply.status == 400 or (reply.status == 500 and _PASSED_ON in reply.text)
        if not refused and (reply.status >= 500 or reply.status in _NOT_NOW | _NOT_YOU):
            return reply.unavailable(_why(reply))
        return Refused(f"answered {reply.status}{_why(reply)}")

    async def _status(self, run: FiredRun) -> Report:
        reply = await self._connection.call("GET", _job(run.name))
        now = self._clock.now()
        if reply.status == 404 and run.name in reply.text:
            return Report(run.run_key, Result.UNKNOWN, now, "there is no such job (any more)")
        if not reply.good or not isinstance(reply.data, dict):
            raise CallFailed(f"the job can't be read: answered {reply.status}{_why(reply)}")
        if (reply.data.get("metadata") or {}).get(_RUN) != run.run_key:
            return Report(run.run_key, Result.UNKNOWN, now, "the job of this name is not of this run")
        result, at, detail = job_result(reply.data, now)
        return Report(run.run_key, result, at, detail)

    async def _call(self, method: str, path: str, body: object, request: FireRequest) -> Reply:
        return await self._connection.call(method, path, body, timeout=request.deadline - self._clock.now())

    def _access(self) -> Access:
        url, secrets = address_of(self._config["url"])
        headers = dict(self._config.get("headers", {}))
        if "token" in self._config:
            headers["Authorization"] = f"Bearer {self._config['token']}"
        return Access.of(url, headers, secrets)


def submission(request: FireRequest) -> dict[str, Any]:
    """The body of a run's submission."""
    action = request.action
    runtime_env = dict(action.get("runtime_env", {}))
    runtime_env["env_vars"] = {**dict(environment(request)), **runtime_env.get("env_vars", {})}
    body: dict[str, Any] = {
        "entrypoint": action["entrypoint"],
        "submission_id": request.run_name,
        "runtime_env": runtime_env,
        "metadata": {
            **action.get("metadata", {}),
            _RUN: request.run_key,
            _TRIGGER: str(request.trigger),
            _SLOT: rfc3339(request.scheduled_time),
        },
    }
    resources = dict(action.get("resources", {}))
    body |= {field: resources.pop(word) for word, field in RESOURCES.items() if word in resources}
    if resources:
        body["entrypoint_resources"] = resources
    return body


def job_result(job: Mapping[str, Any], now: datetime) -> tuple[Result, datetime, str]:
    """How a job is going: the result, when it came to that, and why."""
    result = _ENDS.get(str(job.get("status")), Result.RUNNING)
    if result is Result.RUNNING:
        return result, now, str(job.get("status", "")).lower()
    ended = job.get("end_time")
    at = from_micros(ended * 1_000) if isinstance(ended, int) else now
    detail = "" if result is Result.SUCCEEDED else " ".join(str(job.get("message") or "").split())[:EXCERPT]
    return result, min(at, now), detail


def check_config(config: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """The normalised config: `url` (of the dashboard, or a reference to it), `token` (a reference to the
    cluster's token), `headers`, `timeout` (30 s), `verify`. Raises `InvalidInput`.
    """
    fields = Fields(config, pointer, "a ray target", CONFIG_KEYS)
    checked: dict[str, Any] = {}
    rule = "a ray target has the url of the cluster's dashboard"
    check_server(fields, checked, "url", rule, "http://127.0.0.1:8265")
    check_headers(fields, checked)
    check_token(fields, checked, "RAY_AUTH_TOKEN")
    if fields.has("timeout"):
        checked["timeout"] = fields.seconds("timeout", LONGEST_TIMEOUT)
    check_verify(fields, checked)
    fields.raise_problems()
    return checked


def check_action(action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str) -> dict[str, Any]:
    """The normalised action: `entrypoint` (a shell command), `runtime_env`, `resources` (`cpus`, `gpus`,
    `memory` in bytes, custom ones by name) of the entrypoint, `metadata` (texts). Raises `InvalidInput`.
    """
    fields = Fields(action, pointer, "a deployment of a ray target", ACTION_KEYS)
    checked: dict[str, Any] = {}
    rule = "a deployment of a ray target has an entrypoint, the command of its job"
    checked["entrypoint"] = fields.required("entrypoint", rule, "python train.py")
    runtime_env = fields.mapping("runtime_env")
    if runtime_env:
        why = json_problem(runtime_env)
        if why is not None:
            fields.problem("runtime_env", f"runtime_env is JSON: {why}")
        checked["runtime_env"] = dict(runtime_env)
        _check_texts(fields, fields.at("runtime_env") + "/env_vars", runtime_env.get("env_vars", {}))
    metadata = fields.mapping("metadata")
    if metadata:
        _check_texts(fields, fields.at("metadata"), metadata)
        checked["metadata"] = dict(metadata)
    resources = fields.mapping("resources")
    if resources:
        for word, value in resources.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                where = pointer_to(fields.at("resources"), word)
                fields.problems.append(Problem(where, shown(value), "a resource is a number from 0", "1"))
            elif word == "memory" and not isinstance(value, int):
                where = pointer_to(fields.at("resources"), word)
                fields.problems.append(Problem(where, shown(value), "memory is a whole number of bytes"))
        checked["resources"] = dict(resources)
    fields.check_parameters(parameters, pointer)
    fields.raise_problems()
    return checked


def _check_texts(fields: Fields, pointer: str, values: object) -> None:
    if not isinstance(values, Mapping):
        fields.problems.append(Problem(pointer, shown(values), "a mapping of texts", "NAME: value"))
        return
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str):
            where = pointer_to(pointer, name)
            fields.problems.append(Problem(where, shown(value), "Ray takes texts only here", "quote it"))


def _job(name: str) -> str:
    return f"/api/jobs/{quote(name, safe='')}"


def _why(reply: Reply) -> str:
    """The end of what Ray says, where a traceback has its reason; with a colon before it, or nothing."""
    said = reply.text if len(reply.text) <= EXCERPT else "…" + reply.text[1 - EXCERPT :]
    return f": {said}" if said else ""
