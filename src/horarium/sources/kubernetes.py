"""CronJobs of Kubernetes become a triggers file that starts the same Jobs at the same times.

`import_kubernetes` is pure on text: manifests, or what `kubectl get cronjobs -o yaml` prints. A command on
this machine can't be the pod of a CronJob, so a run asks the cluster for it, and the CronJob keeps its
template there. With the cluster's address that is done by a `kubernetes` target, which also learns how the
Job ends; without one by `kubectl create job` on this machine, of which no more is known than that it has
created the Job. Either way the Job is named by the run, so that one run makes one Job. Times are those of the
controller, which asks robfig/cron; so the dialect is `robfig`. What passed while the controller was down is
made up for by its latest slot, if `startingDeadlineSeconds` lets it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import compress
from typing import Any

from horarium.core import schedule as schedules
from horarium.core.spec import Json
from horarium.errors import InvalidInput, Problem, shown
from horarium.sources.foreign_yaml import documents, line_of, mapping
from horarium.sources.imported import (
    Drop,
    Entry,
    Imported,
    Report,
    brief,
    check_schedule,
    last_of_each,
    name_of,
    plain,
    shorten,
    unique_names,
    written,
)

_PREFIXES = ("CRON_TZ=", "TZ=")
TARGET = "kubernetes"
IN_CLUSTER = "cluster"
"""In place of the server's address: the cluster in which Horarium runs."""

_OVERLAP = {"Forbid": "queue", "Replace": "replace"}
"""With `Forbid` the controller skips a slot that meets a Job, and makes up for it when that has ended."""

_SPEC = frozenset(
    {
        *("schedule", "timeZone", "startingDeadlineSeconds", "concurrencyPolicy", "suspend", "jobTemplate"),
        *("successfulJobsHistoryLimit", "failedJobsHistoryLimit"),
    }
)

_RENDERED = "import what it makes (helm template, kustomize build)"

_API_VERSIONS = frozenset({"batch/v1", "batch/v1beta1"})


def import_kubernetes(text: str, path: str, *, timezone: str = "UTC", server: str | None = None) -> Imported:
    """The triggers file of the CronJobs in the YAML (or JSON) `text`.

    `path` names the source (`-` for standard input). `timezone` is the zone of the controller manager, in
    which a CronJob without `timeZone` runs. `server` is the API server's address, or `IN_CLUSTER`; None: runs
    go by kubectl. Raises `InvalidInput` if the text is no YAML, has no CronJob, the zone is none, or the
    address.
    """
    schedules.parse({"cron": "0 0 * * *", "timezone": timezone})
    connection: dict[str, Json] = {}
    if server is not None and server != IN_CLUSTER:
        if not re.fullmatch(r"https?://[^\s/?#@]+/?", server):
            rule = "the API server is reached at an http or https address"
            hint = f"https://k8s.example:6443, or {IN_CLUSTER} where Horarium runs in it"
            raise InvalidInput(Problem("/server", shown(server), rule, hint))
        connection = {"server": server.rstrip("/"), "token": "env:KUBERNETES_TOKEN"}
    report = Report()
    found: list[tuple[str, int, dict[str, Json]]] = []
    hint = f"it looks like a template: {_RENDERED}" if "{{" in text else ""
    items = [*_items(documents(text, hint=hint), report)]
    if not items and not report.dropped:
        hint = "kubectl get cronjobs --all-namespaces -o yaml"
        raise InvalidInput(Problem("", "the file", "there is no CronJob in it", hint, code="kubernetes"))
    # Of several manifests of one name the cluster has the last.
    keys = [(_known_as(*_names(item)), _line(item)) for item in items]
    for item in compress(items, last_of_each(keys, report)):
        line = _line(item)
        name, namespace = _names(item)
        about = Report()
        try:
            if not name:
                raise Drop("it has no metadata.name")
            made = _words(item, name, namespace, timezone, about, by_api=server is not None)
            words = {key: plain(each) for key, each in made.items()}
        except Drop as drop:
            report.drop(line, _known_as(name, namespace) or "CronJob", str(drop))
        else:
            found.append((_deployment(name, namespace), line, words))
            report.add(about)
    names = unique_names((name, str(words.get("run") or words)) for name, _, words in found)
    entries = [Entry(name, line, words) for name, (_, line, words) in zip(names, found, strict=True)]
    return written(
        "Imported from CronJobs of Kubernetes: each run makes the CronJob's Job under the run's name. When "
        "Horarium fires them, suspend them in the cluster, or both will: kubectl patch cronjob NAME -p "
        """'{"spec":{"suspend":true}}'""",
        "kubernetes" if path == "-" else path,
        entries,
        report,
        top=None if server is None else {"targets": {TARGET: {"kubernetes": connection}}},
        defaults={
            "timezone": timezone,
            "dialect": "robfig",
            "catch_up": "latest",
            **({"shell": True} if server is None else {"target": TARGET}),
        },
    )


def _items(read: list[Any], report: Report) -> Iterator[Mapping[str, Any]]:
    """Every CronJob; what else there is gets a note."""
    for item in read:
        kind = mapping(item).get("kind")
        if kind in ("List", "CronJobList"):
            inner = item.get("items")
            inner = inner if isinstance(inner, list) else []
            if kind == "CronJobList":  # the items of a typed list need not repeat their kind
                yield from (each for each in inner if isinstance(each, Mapping))
            else:
                yield from _items(inner, report)
        elif kind != "CronJob":
            what = f"the kind {brief(kind)}" if kind else "a document without a kind"
            report.note(line_of(item), f"{what} is passed over: it is no CronJob")
        elif item.get("apiVersion") not in _API_VERSIONS:
            version = brief(item.get("apiVersion"))
            report.drop(_line(item), _names(item)[0] or "CronJob", f"apiVersion {version} is not batch/v1")
        else:
            yield item


def _line(item: Mapping[str, Any]) -> int:
    spec = item.get("spec")
    return line_of(spec, "schedule") if isinstance(spec, Mapping) else line_of(item)


def _names(item: Mapping[str, Any]) -> tuple[str, str]:
    """Name and namespace; each empty where it isn't text."""
    metadata = mapping(item.get("metadata"))
    name, namespace = metadata.get("name"), metadata.get("namespace")
    return (name if isinstance(name, str) else "", namespace if isinstance(namespace, str) else "")


def _known_as(name: str, namespace: str) -> str:
    """The name with its namespace; empty where there is no name."""
    return name and f"{namespace}/{name}".lstrip("/")


def _deployment(name: str, namespace: str) -> str:
    return name_of(name if namespace in ("", "default") else f"{namespace}.{name}", "cronjob")


def _words(
    item: Mapping[str, Any], name: str, namespace: str, timezone: str, report: Report, *, by_api: bool
) -> dict[str, Json]:
    spec = mapping(item.get("spec"))
    line = _line(item)
    for key in spec:
        if key not in _SPEC:
            close = get_close_matches(str(key), _SPEC, 1)
            hint = f" (try: {close[0]})" if close else ""
            report.lose(line, shorten(str(key)), f"Kubernetes knows no such field of a CronJob's spec{hint}")
    words: dict[str, Json] = {"run": _run(name, namespace)}
    if by_api:
        words = {"cronjob": name, **({"namespace": namespace} if namespace else {})}
    words |= _schedule(item, spec, timezone, line, report)
    deadline = spec.get("startingDeadlineSeconds")
    if deadline is not None:
        if isinstance(deadline, bool) or not isinstance(deadline, int) or deadline < 0:
            raise Drop(f"startingDeadlineSeconds {brief(deadline)} is no number of seconds")
        if deadline:
            words["max_age"] = f"{int(deadline)}s"
        else:
            report.lose(line, "startingDeadlineSeconds: 0", "the shortest max_age is a second")
            words["max_age"] = "1s"
    if _flag(spec, "suspend"):
        words["active"] = False
        report.note(line, "it is suspended, so it is not active")
    policy = spec.get("concurrencyPolicy")
    if policy in _OVERLAP and by_api:
        words["overlap"] = _OVERLAP[policy]
    elif policy in _OVERLAP:
        does = "waits for" if policy == "Forbid" else "replaces"
        report.lose(
            line,
            f"concurrencyPolicy: {policy}",
            f"Kubernetes {does} a Job that still runs; kubectl does not tell when a Job ends, so runs of one "
            "trigger may overlap; import with --server URL (or cluster) and a kubernetes target makes them, "
            "which does",
        )
    elif policy not in (None, "", "Allow"):
        raise Drop(f"concurrencyPolicy {brief(policy)} is none of Allow, Forbid and Replace")
    return words


def _run(name: str, namespace: str) -> str:
    command = f'kubectl create job "$HORARIUM_RUN_NAME" --from=cronjob/{shlex.quote(name)}'
    return f"{command} --namespace={shlex.quote(namespace)}" if namespace else command


def _flag(spec: Mapping[str, Any], key: str) -> bool:
    value = spec.get(key)
    if value is not None and not isinstance(value, bool):
        raise Drop(f"{key} {brief(value)} is neither true nor false")
    return bool(value)


def _schedule(
    item: Mapping[str, Any], spec: Mapping[str, Any], timezone: str, line: int, report: Report
) -> dict[str, Json]:
    cron, zone = spec.get("schedule"), spec.get("timeZone")
    if isinstance(cron, Mapping) or (isinstance(cron, str) and "{{" in cron):
        raise Drop(f"its schedule is a template: {_RENDERED}")
    if not isinstance(cron, str) or not cron.strip():
        raise Drop("it has no spec.schedule" if cron is None else f"schedule {brief(cron)} is no text")
    prefixed = cron.startswith(_PREFIXES)
    words: dict[str, Json] = {"cron": str(cron)}
    if zone is not None:
        if not isinstance(zone, str) or not zone:
            raise Drop(f"timeZone {brief(zone)} is no name of a zone")
        if prefixed:
            raise Drop("it has a timeZone and a zone in the schedule, which Kubernetes refuses")
        if zone != timezone:
            words["timezone"] = str(zone)
    elif not prefixed and "@every" not in cron:
        report.note(line, f"it has no timeZone, so the controller's zone counts, taken to be {timezone}")
    if "@every" in cron:
        words |= _counted(item, line, report)
    check_schedule({"dialect": "robfig", "timezone": timezone, **words})
    return words


def _counted(item: Mapping[str, Any], line: int, report: Report) -> dict[str, Json]:
    """`@every` counts from the last slot, and the first from the object's creation."""
    last = mapping(item.get("status")).get("lastScheduleTime")
    since = last or mapping(item.get("metadata")).get("creationTimestamp")
    if isinstance(since, str) and since:
        return {"start": str(since)}
    report.note(
        line,
        "@every counts from the CronJob's creation, which a manifest doesn't know; here it counts from 1970 "
        "(import what `kubectl get cronjobs -o yaml` prints, to have it)",
    )
    return {}
