"""The `kubernetes` target: a Job of the cluster, by its REST API, named by the run.

Two Jobs of one name can't be in a namespace, so a repeat makes no second one while the first is there. What
the API server answers:

    201, 200, 202                   Created
    409                             AlreadyExists; Refused where that Job is not of this run
    401, 403 "exceeded quota"       Unavailable: it can be mended, or passes
    408, 425, 429, 5xx              Unavailable; Retry-After is honoured, up to a day
    400, 403, 404, 422, other 4xx   Refused, with the message of the answer's Status
    no answer                       Unavailable; unknown where it may have happened

A deployment has the Job's spec, or names a CronJob whose `jobTemplate` is read when the run is due. A Job is
deleted in the foreground, though a CronJob's Replace does it in the background: it goes last, after its pods,
so that the run that replaces it does not begin beside them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from horarium.clock import Clock
from horarium.core.instant import rfc3339
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
from horarium.targets.secrets import SecretMissing

CONFIG_KEYS = ("server", "token", "headers", "namespace", "timeout", "verify")
ACTION_KEYS = ("job", "cronjob", "namespace")

DEFAULT_TIMEOUT = timedelta(seconds=15)
DEFAULT_MAX_IN_FLIGHT = 32
DEFAULT_TTL = timedelta(days=7)
"""How long a finished Job stays where its spec doesn't say: they must not pile up, and a name has to be
known for longer than a call is retried."""

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""What a pod finds of its service account: `token`, `ca.crt`, `namespace`."""

RUN, TRIGGER, SLOT, REVISION = "horarium/run", "horarium/trigger", "horarium/slot", "horarium/revision"
"""Annotations of a Job."""

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MOST_KNOWN = 10_000
_NOT_NOW = frozenset((401, 408, 425, 429))


class KubernetesTarget(EngineTarget[RestConnection]):
    """See the module. `spec.config` was checked by `check_config`."""

    traits = TargetTraits(
        dedupes=True,
        reports_completion=True,
        cancels=True,
        note="the run's name is the Job's: a repeat makes no second one while the Job is there",
    )

    def __init__(self, spec: TargetSpec, clock: Clock, account: Path = ACCOUNT) -> None:
        config = self._config = spec.config
        self._account = account
        timeout = timedelta(seconds=config.get("timeout") or DEFAULT_TIMEOUT.total_seconds())
        limit = spec.max_in_flight or DEFAULT_MAX_IN_FLIGHT
        verify: bool | str = config.get("verify", True)
        if verify is True and "server" not in config:
            verify = str(account / "ca.crt")
        self._deleted: set[str] = set()
        """Runs whose Jobs we have deleted: nothing over there says so afterwards."""
        connection = RestConnection(self._access, verify, timeout, limit, clock)
        super().__init__(connection, clock, timeout, limit)

    async def status(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        return await each(runs, self._status)

    async def cancel(self, run: FiredRun) -> Report | None:
        """Delete the Job, unless it has ended. None until it is gone with its pods. Raises `CallFailed`."""
        report = await self._status(run)
        if report.result is Result.UNKNOWN:  # deleted before, by another replica or by somebody
            return Report(run.run_key, Result.CANCELLED, report.at, "its Job was deleted")
        if report.result is not Result.RUNNING:
            return report
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        reply = await self._connection.call("DELETE", self._job_path(run), options)
        if not reply.good and reply.status != 404:
            raise CallFailed(f"the Job was not deleted: answered {reply.status}{_why(reply)}")
        if len(self._deleted) >= _MOST_KNOWN:
            self._deleted.clear()
        self._deleted.add(run.run_key)
        report = await self._status(run)
        return None if report.result is Result.RUNNING else report

    async def _create(self, request: FireRequest) -> Answer:
        namespace = request.action.get("namespace") or self._namespace()
        template = await self._template(request, namespace)
        if not isinstance(template, dict):
            return template
        path = f"{_jobs(namespace)}?fieldManager=horarium&fieldValidation=Strict"
        reply = await self._call("POST", path, job_of(request, namespace, template), request)
        if reply.good:
            return Created(f"{namespace}/{request.run_name}")
        if reply.status == 409:
            return await self._existing(request, namespace, reply)
        return _not_created(reply)

    async def _template(self, request: FireRequest, namespace: str) -> dict[str, Any] | Answer:
        """The Job that the run's is made of: its `metadata` and `spec`."""
        if "job" in request.action:
            return {"spec": request.action["job"]}
        name = str(request.action["cronjob"])
        path = f"/apis/batch/v1/namespaces/{quote(namespace, safe='')}/cronjobs/{quote(name, safe='')}"
        reply = await self._call("GET", path, None, request)
        if not reply.good:
            answer = _not_created(reply)
            if isinstance(answer, Refused):
                return Refused(f"the CronJob {namespace}/{name} can't be read: {answer.reason}")
            return answer
        found = reply.data if isinstance(reply.data, dict) else {}
        template = (found.get("spec") or {}).get("jobTemplate")
        if not isinstance(template, dict):
            return Refused(f"answered something that is no CronJob for {namespace}/{name}")
        owner = {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "name": name,
            "uid": str((found.get("metadata") or {}).get("uid", "")),
            "controller": True,
        }
        metadata = dict(template.get("metadata") or {})
        return {"spec": template.get("spec"), "metadata": {**metadata, "ownerReferences": [owner]}}

    async def _existing(self, request: FireRequest, namespace: str, conflict: Reply) -> Answer:
        """Whose Job it is that has the run's name."""
        name = request.run_name
        reply = await self._call("GET", f"{_jobs(namespace)}/{quote(name, safe='')}", None, request)
        if not reply.good:
            # It was there a moment ago, and is gone; or it can't be read now.
            return conflict.unavailable(_why(conflict))
        run = _metadata(reply).get("annotations", {}).get(RUN)
        if run != request.run_key:
            return Refused(
                f"a Job {namespace}/{name} is there that is not of this run: its annotation {RUN} is {run!r}"
            )
        return AlreadyExists(f"{namespace}/{name}")

    async def _status(self, run: FiredRun) -> Report:
        reply = await self._connection.call("GET", self._job_path(run))
        now = self._clock.now()
        if reply.status == 404 and _is_status(reply) and run.run_key in self._deleted:
            return Report(run.run_key, Result.CANCELLED, now, "its Job was deleted")
        if reply.status == 404 and _is_status(reply):
            return Report(run.run_key, Result.UNKNOWN, now, "there is no such Job (any more)")
        if not reply.good or not isinstance(reply.data, dict):
            raise CallFailed(f"the Job can't be read: answered {reply.status}{_why(reply)}")
        if _metadata(reply).get("annotations", {}).get(RUN) != run.run_key:
            return Report(run.run_key, Result.UNKNOWN, now, "the Job of this name is not of this run")
        result, at, detail = job_result(reply.data, now)
        return Report(run.run_key, result, at, detail)

    async def _call(self, method: str, path: str, body: object, request: FireRequest) -> Reply:
        return await self._connection.call(method, path, body, timeout=request.deadline - self._clock.now())

    def _job_path(self, run: FiredRun) -> str:
        namespace, _, name = (run.target_run_id or "").rpartition("/")
        return f"{_jobs(namespace or self._namespace())}/{quote(name or run.name, safe='')}"

    def _namespace(self) -> str:
        given = self._config.get("namespace")
        if given is not None:
            return str(given)
        if "server" in self._config:
            return "default"
        return _of_account(self._account / "namespace")

    def _access(self) -> Access:
        config = self._config
        headers = dict(config.get("headers", {}))
        if "server" in config:
            url, secrets = address_of(config["server"])
            if "token" in config:
                headers["Authorization"] = f"Bearer {config['token']}"
            return Access.of(url, headers, secrets)
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{word}") for word in ("HOST", "PORT"))
        if not host or not port:
            raise SecretMissing(
                "a kubernetes target without server speaks to the cluster that it runs in, and this is none: "
                "KUBERNETES_SERVICE_HOST is not set; give server and token"
            )
        _of_account(self._account / "token")
        headers["Authorization"] = f"Bearer file:{self._account / 'token'}"
        return Access.of(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", headers)


def job_of(request: FireRequest, namespace: str, template: Mapping[str, Any]) -> dict[str, Any]:
    """The Job of a run: `template` with the run's name, labels, annotations and environment."""
    spec = copy.deepcopy(dict(template.get("spec") or {}))
    spec.setdefault("ttlSecondsAfterFinished", int(DEFAULT_TTL.total_seconds()))
    for container in _containers(spec):
        given = container.get("env") or []
        names = {item.get("name") for item in given if isinstance(item, dict)}
        # Ours come first: Kubernetes expands $(NAME) in what follows.
        ours = [
            {"name": name, "value": _literal(value)}
            for name, value in environment(request)
            if name not in names
        ]
        container["env"] = [*ours, *given]
    key = request.trigger
    parts = {"project": key.project, "domain": key.domain, "deployment": key.deployment, "trigger": key.name}
    labels = {f"horarium/{word}": part for word, part in parts.items() if _LABEL_VALUE.fullmatch(part)}
    annotations = {
        RUN: request.run_key,
        TRIGGER: str(key),
        SLOT: rfc3339(request.scheduled_time),
        REVISION: str(request.revision),
    }
    metadata = dict(template.get("metadata") or {})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **metadata,
            "name": request.run_name,
            "namespace": namespace,
            "labels": {
                **(metadata.get("labels") or {}),
                "app.kubernetes.io/managed-by": "horarium",
                **labels,
            },
            "annotations": {**(metadata.get("annotations") or {}), **annotations},
        },
        "spec": spec,
    }


def job_result(job: Mapping[str, Any], now: datetime) -> tuple[Result, datetime, str]:
    """How a Job is going, by its conditions: the result, when it came to that, and why."""
    status = job.get("status") or {}
    conditions = {
        item.get("type"): item
        for item in status.get("conditions") or []
        if isinstance(item, dict) and item.get("status") == "True"
    }
    for kind, result in (("Complete", Result.SUCCEEDED), ("Failed", Result.ERRORED)):
        if kind in conditions:
            condition = conditions[kind]
            said = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
            detail = "" if result is Result.SUCCEEDED else said[:EXCERPT]
            return result, _time(condition.get("lastTransitionTime"), now), detail
    if "Suspended" in conditions:
        return Result.RUNNING, now, "suspended"
    return Result.RUNNING, now, ""


def check_config(config: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """The normalised config. Raises `InvalidInput`.

    Fields: `server` (the API server's address, or a reference to it; without one that of the cluster in which
    Horarium runs, with the pod's service account), `token` (a reference to a bearer token; one in a file is
    read again when it is no longer taken), `headers`, `namespace`, `timeout` (15 s), `verify` (true, false,
    or a file of certificates).
    """
    fields = Fields(config, pointer, "a kubernetes target", CONFIG_KEYS)
    checked: dict[str, Any] = {}
    if fields.has("server"):
        check_server(fields, checked, "server")
    check_headers(fields, checked)
    check_token(fields, checked, "KUBERNETES_TOKEN")
    if fields.has("token") and not fields.has("server"):
        rule = "without server a kubernetes target is the cluster it runs in, with its service account"
        fields.problems.append(Problem(fields.at("token"), "a token", rule, "server: https://…"))
    _check_namespace(fields, checked)
    if fields.has("timeout"):
        checked["timeout"] = fields.seconds("timeout", LONGEST_TIMEOUT)
    check_verify(fields, checked)
    fields.raise_problems()
    return checked


def check_action(action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str) -> dict[str, Any]:
    """The normalised action: `job` (the spec of a Job) or `cronjob` (the name of a CronJob, whose template is
    read when a run is due), and `namespace`. Raises `InvalidInput`.
    """
    fields = Fields(action, pointer, "a deployment of a kubernetes target", ACTION_KEYS)
    checked: dict[str, Any] = {}
    if fields.has("job") == fields.has("cronjob"):
        got = "both" if fields.has("job") else "nothing"
        rule = "a deployment of a kubernetes target has a job (its spec) or names a cronjob"
        hint = "job: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: …}]}}}"
        fields.problems.append(Problem(fields.at("job"), got, rule, hint))
    elif fields.has("job"):
        checked["job"] = _check_job(fields)
    else:
        name = fields.text("cronjob")
        if name is not None and not _DNS_NAME.fullmatch(name):
            fields.problem(
                "cronjob", "a CronJob's name is lower-case letters, digits, '-' and '.'", "nightly"
            )
        checked["cronjob"] = name
    _check_namespace(fields, checked)
    fields.check_parameters(parameters, pointer)
    fields.raise_problems()
    return checked


def _check_job(fields: Fields) -> Mapping[str, Any]:
    job = fields.mapping("job")
    why = json_problem(job)
    if why is not None:
        fields.problem("job", f"job is JSON: {why}")
        return job
    where = fields.at("job")
    for word in ("apiVersion", "kind", "metadata", "spec"):
        if word in job:
            rule = "job is the spec of a Job, not the whole of it: its name is the run's"
            fields.problems.append(Problem(pointer_to(where, word), shown(word), rule, "what is under spec"))
            return job
    template = job.get("template")
    pod = template.get("spec") if isinstance(template, Mapping) else None
    containers = pod.get("containers") if isinstance(pod, Mapping) else None
    if not isinstance(pod, Mapping) or not isinstance(containers, list) or not containers:
        rule = "the spec of a Job has template.spec.containers, a list"
        got = shown(containers) if isinstance(pod, Mapping) else "nothing"
        fields.problems.append(Problem(f"{where}/template/spec/containers", got, rule))
    elif not all(isinstance(item, Mapping) for item in _all_containers(pod)):
        rule = "a container is a mapping"
        fields.problems.append(Problem(f"{where}/template/spec/containers", shown(containers), rule))
    elif pod.get("restartPolicy") not in ("Never", "OnFailure"):
        rule = "the pod of a Job has restartPolicy Never or OnFailure"
        got = shown(pod.get("restartPolicy"))
        fields.problems.append(Problem(f"{where}/template/spec/restartPolicy", got, rule, "Never"))
    return job


def _check_namespace(fields: Fields, checked: dict[str, Any]) -> None:
    namespace = fields.text("namespace")
    if namespace is None:
        return
    if not _DNS_LABEL.fullmatch(namespace):
        rule = "a namespace is up to 63 lower-case letters, digits and '-'"
        fields.problem("namespace", rule, "batch")
    checked["namespace"] = namespace


def _containers(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    pod = (spec.get("template") or {}).get("spec") or {}
    return (item for item in _all_containers(pod) if isinstance(item, dict))


def _all_containers(pod: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = []
    for word in ("initContainers", "containers"):
        items = pod.get(word)
        found += items if isinstance(items, list) else []
    return found


def _literal(text: str) -> str:
    """`text` as a value of a container's variable, where Kubernetes would else expand `$(NAME)`."""
    return text.replace("$(", "$$(")


def _not_created(reply: Reply) -> Answer:
    moved = redirected(reply)
    if moved is not None:
        return moved
    why = _why(reply)
    quota = reply.status == 403 and "exceeded quota" in why
    if reply.status in _NOT_NOW or reply.status >= 500 or quota:
        return reply.unavailable(why)
    return Refused(f"answered {reply.status}{why}")


def _is_status(reply: Reply) -> bool:
    return isinstance(reply.data, dict) and reply.data.get("kind") == "Status"


def _why(reply: Reply) -> str:
    """What the answer's Status says, else its beginning; with a colon before it, or nothing."""
    said = reply.text
    if _is_status(reply) and isinstance(reply.data.get("message"), str):
        # The text is clean of secrets, the data is not.
        with contextlib.suppress(ValueError, KeyError):
            said = str(json.loads(reply.text)["message"])
    said = said if len(said) <= EXCERPT else said[: EXCERPT - 1] + "…"
    return f": {said}" if said else ""


def _metadata(reply: Reply) -> Mapping[str, Any]:
    found = reply.data.get("metadata") if isinstance(reply.data, dict) else None
    return found if isinstance(found, dict) else {}


def _jobs(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{quote(namespace, safe='')}/jobs"


def _of_account(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise SecretMissing(
            f"{path}: {error.strerror}; a kubernetes target without server needs the pod's service account "
            "(automountServiceAccountToken), or give server and token"
        ) from error


def _time(value: object, now: datetime) -> datetime:
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        return now
    return now if at.tzinfo is None else min(at, now)
