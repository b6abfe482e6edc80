"""The deployments of a prefect.yaml become a triggers file that makes the same flow runs at the same times.

`import_prefect` is pure on text; where it needs the name of a flow it asks `read` for the source that an
entrypoint names, which is parsed and never run. The deployments themselves stay in Prefect, with their work
pools, their storage and their limits; what is taken out of it is when they run, and with what parameters.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from itertools import compress
from typing import Any
from urllib.parse import urlsplit

from horarium.core.spec import Json
from horarium.errors import InvalidInput, Problem
from horarium.prefect.schedules import of_schedule
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
    refused,
    shorten,
    unique_names,
    written,
)
from horarium.sources.python_values import Unclear, read_module

DEFAULT_URL = "http://127.0.0.1:4200/api"
_CLOUD = "api.prefect.cloud"

_DEPLOYMENT = frozenset(
    {
        *("name", "version", "version_type", "description", "tags", "entrypoint", "flow_name", "parameters"),
        *("schedule", "schedules", "paused", "is_schedule_active", "enforce_parameter_schema"),
        *("concurrency_limit", "work_pool", "work_queue_name", "job_variables", "infra_overrides"),
        *(
            "build",
            "push",
            "pull",
            "path",
            "storage",
            "triggers",
            "sla",
            "docker",
            "parameter_openapi_schema",
        ),
    }
)
"""What Prefect knows of a deployment; most of it stays there."""

_LIMITS = ("max_active_runs", "max_scheduled_runs", "catchup")
"""Words of a schedule about runs that Prefect makes ahead, or makes up for."""

_SCHEDULE = frozenset(
    {
        *("cron", "interval", "rrule", "timezone", "anchor_date", "day_or"),
        *("active", "parameters", "slug", "replaces"),
    }
)


def import_prefect(
    text: str, path: str, *, url: str = DEFAULT_URL, read: Callable[[str], str | None] = lambda name: None
) -> Imported:
    """The triggers file of the prefect.yaml `text`.

    `path` names the source (`-` for standard input), `url` is Prefect's API, `read` gives the text of a file
    that an entrypoint names, or None. Raises `InvalidInput` if the text is no prefect.yaml.
    """
    found = documents(text)
    deployments = mapping(found[0]).get("deployments") if found else None
    if not isinstance(deployments, list):
        raise InvalidInput(
            Problem("/deployments", "nothing", "a prefect.yaml has a list of deployments", "prefect.yaml")
        )
    report = Report()
    carried: list[tuple[str, int, dict[str, Json], list[Entry]]] = []
    for index, item in enumerate(deployments):
        line, about = line_of(deployments, index), Report()
        name = mapping(item).get("name")
        try:
            if not isinstance(name, str) or not name:
                raise Drop("it has no name")
            words, triggers = _deployment(item, name, line, read, about)
        except Drop as drop:
            report.drop(line, str(name or "deployment"), str(drop))
        else:
            report.add(about)
            if triggers:
                carried.append((name_of(name, "deployment"), line, words, triggers))
    # A deployment that is deployed again is the same one, with the later schedules.
    keys = [(str(words["deployment"]), line) for _, line, words, _ in carried]
    carried = list(compress(carried, last_of_each(keys, report)))
    names = unique_names((name, str(words["deployment"])) for name, _, words, _ in carried)
    entries = [
        Entry(name, line, {**words, **triggers[0].words})
        if len(triggers) == 1 and triggers[0].name == "default"
        else Entry(name, line, words, triggers=triggers)
        for name, (_, line, words, triggers) in zip(names, carried, strict=True)
    ]
    connection: dict[str, Json] = {"url": url}
    if urlsplit(url).hostname == _CLOUD:
        connection["api_key"] = "env:PREFECT_API_KEY"
    return written(
        "Imported from a prefect.yaml: each run makes a flow run of its deployment. When Horarium makes "
        "them, switch Prefect's scheduler off, or both will: PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED=false",
        "prefect" if path == "-" else path,
        entries,
        report,
        top={"targets": {"prefect": {"prefect": connection}}},
        defaults={"target": "prefect"},
    )


def _deployment(
    item: Mapping[str, Any], name: str, line: int, read: Callable[[str], str | None], report: Report
) -> tuple[dict[str, Json], list[Entry]]:
    """The words of a deployment and its triggers; nothing for one that has no schedule."""
    schedules = item.get("schedules")
    if schedules is None:
        schedules = [item["schedule"]] if item.get("schedule") else []
    if not isinstance(schedules, list):
        raise Drop("its schedules are no list")
    for word in item:
        if word not in _DEPLOYMENT:
            close = get_close_matches(str(word), _DEPLOYMENT, 1)
            hint = f": is it meant as {close[0]}?" if close else ""
            report.note(line, f"{shorten(str(word))} is no word of a deployment that is known here{hint}")
    if not schedules:
        report.note(line, f"{name} has no schedule, so there is nothing to import")
        return {}, []
    _no_template(name, "the name")
    flow = _flow_name(item, line, read, report)
    for what, text in (("name", name), ("flow's name", flow)):
        if not _NAME.fullmatch(text):
            raise Drop(f"the {what} is {brief(text)}: Prefect takes none with / % & < >")
    words: dict[str, Json] = {"deployment": f"{flow}/{name}"}
    if item.get("parameters"):
        parameters = _own_parameters(item["parameters"], line, report)
        words |= {"parameters": parameters} if parameters else {}
    paused = _flag(item, "paused", False) or not _flag(item, "is_schedule_active", True)
    if paused:
        report.note(line, "it is paused, so its triggers are not active")
    triggers: list[tuple[str, int, dict[str, Json]]] = []
    for index, schedule in enumerate(schedules):
        at = line_of(schedules, index) if "schedules" in item else line_of(item, "schedule")
        about = Report()
        try:
            slug, rule = _trigger(schedule, at, about)
        except Drop as drop:
            report.lose(at, f"{name}: schedule {index + 1}", str(drop))
        else:
            report.add(about)
            triggers.append((slug, at, {**rule, "active": False} if paused else rule))
    if not triggers:
        raise Drop(f"none of its schedules: {'; '.join(item.reason for item in report.dropped)}")
    if len(schedules) == 1 and not triggers[0][0]:
        return words, [Entry("default", line, triggers[0][2])]
    names = unique_names(
        (slug or next(kind for kind in ("cron", "every", "rrule") if kind in rule), json.dumps(rule))
        for slug, _, rule in triggers
    )
    return words, [Entry(name, at, rule) for name, (_, at, rule) in zip(names, triggers, strict=True)]


def _trigger(schedule: Any, line: int, report: Report) -> tuple[str, dict[str, Json]]:
    """A schedule's slug, empty where it has none, and the words of its trigger."""
    if not isinstance(schedule, Mapping):
        raise Drop("a schedule is a mapping")
    unknown = sorted(str(key) for key in schedule if key not in _SCHEDULE and key not in _LIMITS)
    if unknown:
        raise Drop(f"{', '.join(unknown)}: no word of a schedule of Prefect's")
    for key in _LIMITS:
        if schedule.get(key) is not None:
            reason = (
                "it limits what Prefect's scheduler makes; here catch_up, overlap and ahead_runs say that"
            )
            report.lose(line, f"{key}: {brief(schedule[key])}", reason)
    given = {
        str(key): plain(value) for key, value in schedule.items() if value is not None and key not in _LIMITS
    }
    for key, value in given.items():
        if key != "parameters":
            _no_template(value, key)
    for key in ("active", "day_or"):
        if not isinstance(given.get(key, True), bool):
            raise Drop(f"{key} is {brief(given[key])}, neither true nor false")
    if sum(key in given for key in ("cron", "interval", "rrule")) != 1:
        raise Drop("a schedule has exactly one of cron, interval and rrule")
    if "interval" in given:
        given["interval"] = _interval(given["interval"])
        if "anchor_date" not in given:
            report.note(
                line, "without an anchor_date Prefect counts from the deploy; here it counts from 1970"
            )
    if "rrule" in given:
        given |= _rrule(given["rrule"])
    if "replaces" in given:
        report.note(line, "replaces is for prefect deploy; a trigger that was renamed says renamed_from")
    try:
        words: dict[str, Json] = {**of_schedule(given, "")}
    except InvalidInput as error:
        raise refused(error) from error
    check_schedule(words)
    if given.get("active") is False:
        words["active"] = False
    if given.get("parameters"):
        words["parameters"] = _parameters(given["parameters"])
    slug = given.get("slug", "")
    if not isinstance(slug, str):
        raise Drop("a slug is text")
    return (name_of(slug, "schedule") if slug else ""), words


def _interval(value: Json) -> Json:
    """Prefect takes `HH:MM:SS` too, which YAML 1.1 reads as a number unless it is quoted."""
    clock = re.fullmatch(r"(\d+):(\d{2}):(\d{2})", value) if isinstance(value, str) else None
    return value if clock is None else int(clock[1]) * 3_600 + int(clock[2]) * 60 + int(clock[3])


def _rrule(value: Json) -> dict[str, Json]:
    """A rule, or JSON of one with its time zone."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise Drop(f"its rrule is no JSON ({error})") from error
        return {key: plain(inner[key]) for key in ("rrule", "timezone") if key in inner}
    return {"rrule": value}


def _flag(item: Mapping[str, Any], key: str, otherwise: bool) -> bool:
    value = item.get(key)
    if value is not None and not isinstance(value, bool):
        raise Drop(f"{key} is {brief(value)}, neither true nor false")
    return otherwise if value is None else value


def _own_parameters(value: Any, line: int, report: Report) -> dict[str, Json]:
    """A deployment's parameters. Those that `prefect deploy` fills in are there, and need not be sent."""
    parameters = plain(value)
    if not isinstance(parameters, dict):
        raise Drop("parameters are no mapping")
    for key in [key for key, given in parameters.items() if _TEMPLATE.search(json.dumps({key: given}))]:
        del parameters[key]
        report.note(line, f"parameter {key} has a template, and stays as it was deployed to Prefect")
    return parameters


def _parameters(value: Any) -> dict[str, Json]:
    parameters = plain(value)
    if not isinstance(parameters, dict):
        raise Drop("parameters are no mapping")
    _no_template(json.dumps(parameters), "parameters")
    return parameters


_TEMPLATE = re.compile(r"\{\{.*\}\}", re.DOTALL)


def _no_template(value: Any, what: str) -> None:
    if isinstance(value, str) and _TEMPLATE.search(value):
        raise Drop(f"{what} has a {{{{ template }}}}, which prefect deploy fills in")


# --- the flow's name ----------------------------------------------------------------------------------

_NAME = re.compile(r"[^/%&<>\x00-\x1f]{1,500}")
_ENTRYPOINT = re.compile(r"(?P<file>.+\.py):(?P<path>[\w.]+)|(?P<module>[\w.]+)[.:](?P<name>\w+)")


def _flow_name(item: Mapping[str, Any], line: int, read: Callable[[str], str | None], report: Report) -> str:
    """What `@flow` names the function of the entrypoint; else its own name with dashes."""
    given = item.get("flow_name")
    if isinstance(given, str) and given:
        _no_template(given, "flow_name")
        return given
    entrypoint = item.get("entrypoint")
    found = _ENTRYPOINT.fullmatch(entrypoint) if isinstance(entrypoint, str) else None
    if found is None:
        raise Drop("neither a flow_name nor an entrypoint says which flow it is")
    function = (found["path"] or found["name"]).rpartition(".")[2]
    source = read(found["file"] or found["module"].replace(".", "/") + ".py")
    named, there = (None, False) if source is None else _decorated(source, function)
    if named is not None:
        return named
    named = function.replace("_", "-")
    if not there:
        why = "is not here" if source is None else f"has no function {function}"
        report.note(line, f"the source of {entrypoint} {why}: the flow's name is taken to be {named}")
    return named


def _decorated(source: str, function: str) -> tuple[str | None, bool]:
    """`@flow(name="...")` of the function, or None; and whether there is such a function.

    Raises `Drop` where the name is not written out.
    """
    try:
        module = read_module(source)
    except InvalidInput as error:
        raise refused(error) from error
    there = False
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            there = True
            for decorator in node.decorator_list:
                for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
                    if keyword.arg == "name":
                        try:
                            return str(module.value(keyword.value)), True
                        except Unclear as unclear:
                            raise Drop(f"the name of flow {function}: {unclear}") from unclear
    return None, there
