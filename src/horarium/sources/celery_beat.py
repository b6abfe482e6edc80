"""Celery beat's schedule becomes a triggers file that sends the same tasks at the same times.

`import_celery` is pure on text: the Python module that sets `beat_schedule`, which is read and never run
(`python_values.py`), or JSON. A run sends its task with the entry's arguments and routing: by `celery call`,
which knows the app and its routes, or with the broker's address by a `celery` target, which knows neither but
tells how the task ends.

A crontab of Celery's is five sets of numbers that all must match, so `day_or` is false. When the clock jumps,
beat runs a fixed time of a gap an hour late, and waits through the second pass of an overlap; the nearest
policies are `vixie` for fixed times and `skip_once` for others. What passed while beat was down is made up
for once (`catch_up: latest`).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from itertools import compress
from pathlib import PurePath
from types import UnionType
from typing import Any

from horarium.core import schedule as schedules
from horarium.core.duration import format_duration
from horarium.core.spec import Json
from horarium.errors import InvalidInput, Problem
from horarium.sources.document import read_document
from horarium.sources.imported import (
    Drop,
    Entry,
    Imported,
    Report,
    brief,
    check_schedule,
    compact,
    last_of_each,
    name_of,
    plain,
    shorten,
    unique_names,
    written,
)
from horarium.sources.python_values import (
    Call,
    Module,
    Unclear,
    changed_in_place,
    read_module,
    shown_source,
)

_SCHEDULES = frozenset({"beat_schedule", "CELERY_BEAT_SCHEDULE", "CELERYBEAT_SCHEDULE"})
_ZONES = ("timezone", "CELERY_TIMEZONE", "TIME_ZONE")
_UTC = ("enable_utc", "CELERY_ENABLE_UTC")
_DEADLINES = ("beat_cron_starting_deadline", "CELERY_BEAT_CRON_STARTING_DEADLINE")
_ROUTES = ("task_routes", "CELERY_TASK_ROUTES", "CELERY_ROUTES")
_QUEUES = ("task_default_queue", "CELERY_TASK_DEFAULT_QUEUE", "CELERY_DEFAULT_QUEUE")
_SETTINGS = frozenset({*_SCHEDULES, *_ZONES, *_UTC, *_DEADLINES, *_ROUTES, *_QUEUES})

TARGET = "celery"


def import_celery(
    text: str,
    path: str,
    *,
    app: str | None = None,
    timezone: str | None = None,
    connection: Mapping[str, Json] | None = None,
) -> Imported:
    """The triggers file of the beat schedule in the Python module, or the JSON, `text`.

    `path` names the source (`-` for standard input). `app` is what `celery --app` takes; where that is the
    module that is read, it tells the names of the module's own tasks. `timezone` is the app's zone, for a
    text that doesn't say it. `connection` is the checked config of a `celery` target that sends the tasks;
    None: `celery call` does. Raises `InvalidInput` if the text can't be read, has no schedule, or if the
    zone is none.
    """
    report = Report()
    found = (
        _from_json(text) if text.lstrip("\ufeff \t\r\n").startswith("{") else _from_python(text, app, path)
    )
    if not found.entries and not found.unclear:
        raise InvalidInput(
            Problem("", "the file", "it sets no beat_schedule", "the module that sets it", code="celery")
        )
    zone = timezone or found.zone()
    said = found.zone_said()
    if said not in (None, zone):
        report.note(1, f"the file says timezone {said}; --timezone {zone} counts instead")
    schedules.parse({"cron": "0 0 * * *", "timezone": zone})
    for line, what, why in found.unclear:
        report.drop(line, what, why)
    for line, what, why in found.lost:
        report.lose(line, what, why)
    carried: list[tuple[str, int, dict[str, Json]]] = []
    counts = last_of_each([(item.key, item.line) for item in found.entries], report)
    for item in compress(found.entries, counts):
        about = Report()
        if item.condition is not None:
            about.note(item.line, f"it is under the condition of line {item.condition}, taken to hold")
        try:
            entry = _entry(item, found)
            if connection is None:
                sends = _call(entry, app, item.line, about)
            else:
                sends = _message(entry, item.line, found, about)
            made = {**sends, **_when(entry, zone, item.line, found, about)}
            words = {key: plain(each) for key, each in made.items()}
        except Drop as drop:
            report.drop(item.line, item.name, str(drop))
        except Unclear as unclear:
            report.drop(item.line, item.name, str(unclear))
        else:
            carried.append((name_of(item.name, "task"), item.line, words))
            report.add(about)
    if app is None and connection is None and carried:
        report.note(
            carried[0][1], "no --app was given: celery call uses the app that APP names where it runs"
        )
    names = unique_names((name, json.dumps(words, sort_keys=True)) for name, _, words in carried)
    entries = [Entry(name, line, words) for name, (_, line, words) in zip(names, carried, strict=True)]
    by = "celery call" if connection is None else "a celery target, under the run's name"
    return written(
        f"Imported from the schedule of Celery beat: each run sends its task by {by}. Stop beat when "
        "Horarium sends them, or both will.",
        "celery" if path == "-" else path,
        entries,
        report,
        top=None if connection is None else {"targets": {TARGET: {"celery": dict(connection)}}},
        defaults={
            "timezone": zone,
            "day_or": False,
            "catch_up": "latest",
            **({} if connection is None else {"target": TARGET}),
        },
    )


@dataclass(frozen=True)
class _Item:
    """One entry of the schedule, its value unread: what it is made of may be unclear.

    Beat has one entry of a `key`, the last. `condition` is the line of the `if` that it is under.
    """

    name: str
    line: int
    value: Mapping[str, Any] | ast.expr
    key: str
    condition: int | None = None


class _Found:
    """What a text says about beat."""

    def __init__(self, module: Module | None = None) -> None:
        self.module = module
        self.entries: list[_Item] = []
        self.unclear: list[tuple[int, str, str]] = []
        self.lost: list[tuple[int, str, str]] = []
        self.settings: dict[str, Any] = {}

    def setting(self, names: tuple[str, ...]) -> Any:
        for name in names:
            value = self.settings.get(name)
            if isinstance(value, ast.expr):
                assert self.module is not None
                value = self.module.value(value)
            if value is not None:
                return value
        return None

    def zone_said(self) -> str | None:
        """The zone that the file names, if it can be read."""
        try:
            zone = self.setting(_ZONES)
        except Unclear:
            return None
        return None if zone is None else str(zone)

    def zone(self) -> str:
        """The app's zone: its `timezone`, else UTC. Raises `InvalidInput` where the file doesn't tell."""
        try:
            zone, utc = self.setting(_ZONES), self.setting(_UTC)
        except Unclear as unclear:
            raise _no_zone(str(unclear)) from unclear
        if zone is not None:
            return str(zone)
        if utc is False:
            raise _no_zone("enable_utc is false and no timezone is set, so the host's counts")
        return "UTC"


def _no_zone(why: str) -> InvalidInput:
    return InvalidInput(Problem("/timezone", "no zone", why, "--timezone Europe/Berlin", code="timezone"))


# --- the text -----------------------------------------------------------------------------------------


def _from_python(text: str, app: str | None, path: str) -> _Found:
    module = read_module(text)
    if app is not None:
        _name_module(module, app, PurePath(path))
    found = _Found(module)
    names = set(_SCHEDULES)
    set_at: list[int] = []
    for node, condition in _in_order(module.tree):
        for name, value in _assigned(node):
            if name in _SCHEDULES:
                set_at.append(value.lineno)
                if isinstance(value, ast.Name) and value.id in module.names:
                    names.add(value.id)  # what is done to it under that name is done to the schedule
                    value = module.names[value.id]
                _take(found, value, condition)
            elif name in _SETTINGS:
                found.settings[name] = value
    put: set[ast.expr] = set()
    for node, condition in _in_order(module.tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_periodic_task")):
                _take_call(found, node, condition)
            case ast.AugAssign(target=target, op=ast.BitOr(), value=value) if _last(target) in names:
                _take(found, value, condition)
            case ast.Assign(targets=[ast.Subscript(value=inner, slice=key) as target], value=value) if (
                _last(inner) in names
            ):
                put.add(target)
                _take(found, ast.copy_location(ast.Dict([key], [value]), node), condition)
            case ast.Call(func=ast.Attribute(value=inner, attr="update")) if _last(inner) in names:
                named = ast.copy_location(ast.Call(ast.Name("dict"), [], node.keywords), node)
                for value in (*node.args, named):
                    _take(found, value, condition)
            case ast.expr() if node not in put and _changes(node, names):
                why = f"only running tells what becomes of the schedule (line {node.lineno})"
                found.unclear.append((node.lineno, shown_source(node), why))
    if len(set_at) > 1:
        places = ", ".join(map(str, sorted(set_at)))
        found.lost.append((set_at[-1], "beat_schedule", f"it is set in lines {places}: all entries are here"))
    found.entries.sort(key=lambda item: item.line)
    return found


def _name_module(module: Module, app: str, path: PurePath) -> None:
    """Call it what Celery imports it as, if that is where `app` is: `proj` is `proj.celery` as well."""
    given = app.partition(":")[0]
    parts = path.with_suffix("").parts
    for name in (given, f"{given}.celery", f"{given}.__init__"):
        dotted = tuple(name.split("."))
        if parts[-len(dotted) :] == dotted:
            module.name = name.removesuffix(".__init__")
            module.package = name.rpartition(".")[0]


def _in_order(tree: ast.Module) -> Iterator[tuple[ast.AST, int | None]]:
    """All nodes as they stand in the text, each with the line of the condition that it is under."""
    waiting: list[tuple[ast.AST, int | None]] = [(tree, None)]
    while waiting:
        node, condition = waiting.pop()
        yield node, condition
        under = node.lineno if isinstance(node, ast.If | ast.IfExp | ast.Match) else condition
        waiting += [(child, under) for child in reversed([*ast.iter_child_nodes(node)])]


def _changes(node: ast.expr, names: set[str]) -> bool:
    """Whether a schedule of these names, or an entry of one, is changed in place by `node`."""
    changed = changed_in_place(node)
    while changed is not None and _last(changed) not in names:
        changed = changed.value if isinstance(changed, ast.Subscript) else None
    return changed is not None


def _last(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str() as name)):
            return name
    return ""


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Settings that a node sets: `x = ...`, `app.conf.x = ...`, `conf["x"] = ...`, `conf.update(x=...)`."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield _last(target), value
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield _last(target), value
        case ast.Call(func=ast.Attribute(attr="update") | ast.Name(id="dict" | "Celery"), keywords=keywords):
            for keyword in keywords:
                if keyword.arg is not None:
                    yield keyword.arg, keyword.value
            for arg in node.args:
                if isinstance(arg, ast.Dict):
                    for key, value in zip(arg.keys, arg.values, strict=True):
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            yield key.value, value


def _take(found: _Found, node: ast.expr, condition: int | None) -> None:
    assert found.module is not None
    parts = _parts(node)
    if parts:  # what of a mapping can't be told costs itself alone
        for part in parts:
            _take(found, part, condition)
        return
    try:
        for key, value in found.module.entries(node):
            try:
                name = str(found.module.value(key))
            except Unclear as unclear:
                found.unclear.append((key.lineno, shown_source(key), str(unclear)))
            else:
                found.entries.append(_Item(name, key.lineno, value, name, condition))
    except Unclear as unclear:
        found.unclear.append((node.lineno, "beat_schedule", str(unclear)))


def _parts(node: ast.expr) -> list[ast.expr]:
    """The mappings that `{**a, "b": ...}` and `a | b` are made of; nothing where it is one."""
    match node:
        case ast.BinOp(op=ast.BitOr()):
            return [node.left, node.right]
        case ast.Dict() if None in node.keys:
            pairs = zip(node.keys, node.values, strict=True)
            return [
                value if key is None else ast.copy_location(ast.Dict([key], [value]), key)
                for key, value in pairs
            ]
    return []


def _take_call(found: _Found, node: ast.Call, condition: int | None) -> None:
    """`add_periodic_task(schedule, signature, args, kwargs, name, **options)`."""
    assert found.module is not None
    given: dict[str, ast.expr] = dict(
        zip(("schedule", "sig", "args", "kwargs", "name"), node.args, strict=False)
    )
    given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
    try:
        if "schedule" not in given or "sig" not in given or any(word.arg is None for word in node.keywords):
            raise Unclear(f"{shown_source(node)} is not written out", node.lineno)
        task, args, kwargs = _signature(found.module, given["sig"])
        for word, extra in (("args", args), ("kwargs", kwargs)):
            if word in given and extra:
                raise Unclear(f"{word} stand in the signature and beside it", node.lineno)
        name = str(found.module.value(given["name"])) if "name" in given else task
        entry: dict[str, Any] = {
            "task": task,
            "schedule": given["schedule"],
            "args": given.get("args", args),
            "kwargs": given.get("kwargs", kwargs),
            "options": {
                key: value
                for key, value in given.items()
                if key not in ("schedule", "sig", "args", "kwargs", "name")
            },
        }
        # Without a name beat knows it by its signature: the same one added again takes its place.
        key = name if "name" in given else shown_source(given["sig"])
        found.entries.append(_Item(name, node.lineno, entry, key, condition))
    except Unclear as unclear:
        found.unclear.append((node.lineno, "add_periodic_task", str(unclear)))


def _signature(module: Module, node: ast.expr) -> tuple[str, Any, Any]:
    """Task, args and kwargs of `task.s(...)`, `task.si(...)`, `signature("task", args=..., kwargs=...)`."""
    match node:
        case ast.Call(func=ast.Attribute(value=task, attr="s" | "si")):
            args = [module.value(arg) for arg in node.args]
            if any(keyword.arg is None for keyword in node.keywords):
                raise Unclear(f"{shown_source(node)} is not written out", node.lineno)
            kwargs = {str(keyword.arg): module.value(keyword.value) for keyword in node.keywords}
            return _task(module, task), args, kwargs
        case ast.Call(func=function, args=[name, *rest]) if _last(function) == "signature":
            given: dict[str, ast.expr] = dict(zip(("args", "kwargs"), rest, strict=False))
            given |= {str(keyword.arg): keyword.value for keyword in node.keywords}
            if set(given) - {"args", "kwargs", "immutable", "app"}:
                raise Unclear(f"{shown_source(node)} has options", node.lineno)
            values = [module.value(given[key]) if key in given else None for key in ("args", "kwargs")]
            return str(module.value(name)), values[0] or [], values[1] or {}
    return _task(module, node), [], {}


def _task(module: Module, node: ast.expr) -> str:
    """A task's name: that of its decorator, else where it is imported from."""
    if isinstance(node, ast.Name):
        for function in module.tree.body:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name == node.id:
                return _own_task(module, function)
    dotted = module.dotted(node)
    if dotted is not None and module.package and dotted.startswith(".") and not dotted.startswith(".."):
        dotted = module.package + dotted
    if dotted is None or "." not in dotted or dotted.startswith("."):
        raise Unclear(f"the name of task {shown_source(node)} can't be told from here", node.lineno)
    return dotted


def _own_task(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    for decorator in function.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg == "name":
                return str(module.value(keyword.value))
    if module.name is None:
        raise Unclear(
            f"the name of task {function.name} depends on how its module is imported: --app with this "
            "module, or @app.task(name=...)",
            function.lineno,
        )
    return f"{module.name}.{function.name}"


def _from_json(text: str) -> _Found:
    document = read_document(text, as_json=True)
    if document.problems:
        raise InvalidInput(document.problems)
    data, marks = document.data, document.marks()
    assert isinstance(data, dict)
    found = _Found()
    found.settings = {key: value for key, value in data.items() if key in _SETTINGS}
    at = next((key for key in data if key in _SCHEDULES), None)
    if at is not None:
        data, marks = data[at], marks[at].inside or {}
    if not isinstance(data, dict):
        raise InvalidInput(Problem(f"/{at}", brief(data), "a beat schedule is a mapping", code="celery"))
    for name, value in data.items():
        if isinstance(value, dict) and ("task" in value or at is not None):
            found.entries.append(_Item(name, marks[name].key_line, value, name))
        elif at is not None:
            found.unclear.append((marks[name].key_line, name, "an entry is a mapping with task and schedule"))
    return found


# --- an entry -----------------------------------------------------------------------------------------

_WORDS = frozenset({"task", "schedule", "args", "kwargs", "options", "relative"})
_SHAPES: tuple[tuple[str, Any, type | UnionType, str], ...] = (
    ("args", [], list | tuple, "list"),
    ("kwargs", {}, Mapping, "mapping"),
    ("options", {}, Mapping, "mapping"),
)
_YEAR = 366 * 86_400
_ROUTING = {
    "queue": "--queue",
    "exchange": "--exchange",
    "routing_key": "--routing-key",
    "serializer": "--serializer",
}


def _entry(item: _Item, found: _Found) -> dict[str, Any]:
    def read(value: Any) -> Any:
        if isinstance(value, ast.expr):
            assert found.module is not None
            return found.module.value(value)
        return {key: read(inner) for key, inner in value.items()} if isinstance(value, dict) else value

    entry = read(item.value)
    if not isinstance(entry, dict):
        raise Drop("an entry is a mapping with task and schedule")
    unknown = sorted(str(key) for key in entry if key not in _WORDS)
    if unknown:
        raise Drop(f"{', '.join(unknown)}: no word of an entry of beat's")
    for key, empty, kinds, what in _SHAPES:
        entry[key] = entry.get(key) or empty
        if not isinstance(entry[key], kinds):
            raise Drop(f"{key}: {brief(entry[key])} is no {what}")
    if not isinstance(entry.get("task"), str) or not entry["task"]:
        raise Drop("it names no task")
    return entry


def _call(entry: Mapping[str, Any], app: str | None, line: int, report: Report) -> dict[str, Json]:
    run: list[Json] = ["celery", *(["--app", app] if app is not None else []), "call", entry["task"]]
    if entry["args"]:
        run += ["--args", json.dumps(plain(entry["args"]), ensure_ascii=False)]
    if entry["kwargs"]:
        run += ["--kwargs", json.dumps(plain(entry["kwargs"]), ensure_ascii=False)]
    return {"run": [*run, *_flags(entry["options"], line, report)]}


def _flags(options: Mapping[Any, Any], line: int, report: Report) -> list[str]:
    """The flags of `celery call`; what it has no flag for is lost."""
    flags: list[str] = []
    for key, value in options.items():
        if value is None:
            continue
        if key in _ROUTING:
            flags += [_ROUTING[key], _route(key, value)]
        elif key in ("expires", "countdown") and (seconds := _seconds(value)) is not None:
            flags += [f"--{key}", f"{seconds:g}"]
        else:
            report.lose(line, f"option {key}", "celery call has no flag for it")
    return flags


def _message(entry: Mapping[str, Any], line: int, found: _Found, report: Report) -> dict[str, Json]:
    """What a `celery` target sends; what it has no word for is lost, unless it is where the task goes."""
    words: dict[str, Json] = {"task_name": entry["task"]}
    if entry["args"]:
        words["args"] = plain(entry["args"])
    if entry["kwargs"]:
        words["parameters"] = plain(entry["kwargs"])
    for key, value in entry["options"].items():
        if value is None or (key, value) == ("serializer", "json"):
            continue
        if key in ("exchange", "routing_key"):
            raise Drop(f"option {key}: a celery target sends to a queue by its name alone: give the queue")
        if key == "queue":
            words["queue"] = _route(key, value)
        elif key == "priority" and type(value) is int and 0 <= value <= 255:
            words["priority"] = value
        elif key == "expires" and (seconds := _seconds(value)) is not None and 0 < seconds <= _YEAR:
            words["expires"] = format_duration(timedelta(seconds=seconds))
        else:
            report.lose(line, f"option {key}", "a celery target has no word for it")
    if "queue" not in words and (queue := _queue_of(entry["task"], line, found, report)):
        words["queue"] = queue
    return words


def _queue_of(task: str, line: int, found: _Found, report: Report) -> str | None:
    """Where the app's own routes lead a task: a target knows none of them."""
    try:
        routes, default = found.setting(_ROUTES), found.setting(_QUEUES)
        route = None if routes is None else _routed(task, routes)
        queue = default if route is None else route
        return None if queue is None else _route("queue", queue)
    except (Drop, Unclear) as why:
        reason = f"a celery target doesn't know them ({why}), so the task goes to the default queue: give one"
        report.lose(line, "the app's routes", reason)
        return None


def _routed(task: str, routes: Any) -> Any:
    """The queue that `task_routes` gives the task; None where it gives none. Raises `Drop`."""
    if not isinstance(routes, dict) or not all(isinstance(key, str) for key in routes):
        raise Drop("task_routes is no mapping")
    for key in (task, *(key for key in routes if "*" in key)):
        if key in routes and fnmatchcase(task, key):
            route = routes[key]
            if isinstance(route, dict) and set(route) != {"queue"}:
                raise Drop(f"{key!r} is routed by {', '.join(map(str, route))}")
            return route["queue"] if isinstance(route, dict) else route
    return None


def _route(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise Drop(f"option {key} is {brief(value)}, which is no name")
    return value


def _when(entry: Mapping[str, Any], zone: str, line: int, found: _Found, report: Report) -> dict[str, Json]:
    words = _schedule(entry.get("schedule"), bool(entry.get("relative")), line, found, report)
    check_schedule({"timezone": zone, **words, **({"day_or": False} if "cron" in words else {})})
    return words


def _seconds(value: Any) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _schedule(value: Any, relative: bool, line: int, found: _Found, report: Report) -> dict[str, Json]:
    match value:
        case Call(name=name) if name.rpartition(".")[2] == "crontab":
            return _cron(_arguments(value, _CRONTAB), line, found)
        case Call(name=name) if name.rpartition(".")[2] == "schedule":
            given = _arguments(value, ("run_every", "relative"))
            return _every(given.get("run_every"), relative or bool(given.get("relative")), line, report)
        case Call(name=name) if name.rpartition(".")[2] == "solar":
            raise Drop("solar: Horarium knows no sunrise; the nearest is a cron")
        case Call(name=name):
            raise Drop(f"{name} is no schedule that is known here (line {value.line})")
        case dict() if "crontab" in value and len(value) == 1 and isinstance(value["crontab"], dict):
            return _cron(value["crontab"], line, found)
        case dict() if value and set(value) <= {*_CRONTAB}:
            return _cron(value, line, found)
        case dict() if "every" in value and set(value) <= {"every", "relative"}:
            return _every(value["every"], relative or value.get("relative") is True, line, report)
        case str():
            return _text(value, relative, line, found, report)
    return _every(value, relative, line, report)


_CRONTAB = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
_SHOWN = re.compile(r"<crontab: (.*) \(m/h/dM/MY/d\)>")
_SHOWN_FREQUENCY = re.compile(r"<freq: (\d+)\.00 seconds>")


def _text(text: str, relative: bool, line: int, found: _Found, report: Report) -> dict[str, Json]:
    """Five fields, or what `celery inspect conf --json` shows of a schedule."""
    frequency = _SHOWN_FREQUENCY.fullmatch(text)
    if frequency is not None:
        return _every(int(frequency[1]), relative, line, report)
    shown = _SHOWN.fullmatch(text)
    fields = (shown[1] if shown is not None else text).split()
    if len(fields) != 5:
        raise Drop(f"{shorten(text)} is neither seconds nor five fields")
    minute, hour, day, month, weekday = fields
    given = dict(zip(_CRONTAB, (minute, hour, weekday, day, month), strict=True))
    return _cron(given, line, found)


def _arguments(call: Call, names: tuple[str, ...]) -> dict[str, Any]:
    if len(call.args) > len(names):
        raise Drop(f"{call.name} has too many arguments (line {call.line})")
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise Drop(f"{call.name} is given {', '.join(unknown)} (line {call.line})")
    return given


def _every(value: Any, relative: bool, line: int, report: Report) -> dict[str, Json]:
    seconds = _seconds(value)
    if seconds is None:
        raise Drop(f"the schedule {brief(value)} is none that is known here")
    if not seconds.is_integer() or not 1 <= seconds < 2**31:
        raise Drop(f"every {seconds:g} s: an interval is whole seconds, at least one")
    if relative:
        report.lose(line, "relative", "beat rounds to the unit of the interval; here it counts from 1970")
    else:
        report.note(line, "beat counts from its own start; here the interval counts from 1970 (see start)")
    return {"every": format_duration(timedelta(seconds=seconds))}


def _cron(given: Mapping[str, Any], line: int, found: _Found) -> dict[str, Json]:
    fields = []
    for word in ("minute", "hour", "day_of_month", "month_of_year", "day_of_week"):
        low, high = _BOUNDS[word]
        spec = given.get(word)
        fields.append(compact(_values("*" if spec is None else spec, low, high, word), low, high))
    fixed = not fields[0].startswith("*") and not fields[1].startswith("*")
    words: dict[str, Json] = {"cron": " ".join(fields)}
    if not fixed:
        words["dst"] = "skip_once"
    try:
        deadline = found.setting(_DEADLINES)
    except Unclear as unclear:
        raise Drop(f"beat_cron_starting_deadline: {unclear}") from unclear
    if deadline is not None:
        seconds = _seconds(deadline)
        if seconds is None or seconds < 1:
            raise Drop(f"beat_cron_starting_deadline {deadline!r} is no number of seconds")
        words["max_age"] = format_duration(timedelta(seconds=int(seconds)))
    return words


_BOUNDS = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day_of_month": (1, 31),
    "month_of_year": (1, 12),
    "day_of_week": (0, 6),
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_RANGE = re.compile(r"(\w+?)-(\w+)(?:/(\w+))?")
_STAR = re.compile(r"\*(?:/(\w+))?")


def _values(spec: Any, low: int, high: int, word: str) -> set[int]:
    """The numbers that a field of `crontab()` stands for; ranges wrap around, so `fri-mon` has four days."""
    if isinstance(spec, str):
        return {value for part in spec.split(",") for value in _part(part, low, high, word)}
    values = list(spec) if isinstance(spec, list | tuple) else [spec]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Drop(f"{word} is {low} to {high}, not {brief(value)}")
    if not values:
        raise Drop(f"{word} is empty")
    return set(values)


def _part(part: str, low: int, high: int, word: str) -> list[int]:
    def number(text: str) -> int:
        name = text[:3].lower()
        if text.isascii() and text.isdecimal():
            value = int(text[:9])
        elif name in _MONTHS:
            value = _MONTHS.index(name) + 1
        elif name in _DAYS:
            value = _DAYS.index(name)
        else:
            raise Drop(f"{text!r} in {word} is no number and no name")
        if not low <= value <= high:
            raise Drop(f"{word} is {low} to {high}, not {text}")
        return value

    star, span = _STAR.fullmatch(part), _RANGE.fullmatch(part)
    if star is not None:
        chosen, step = list(range(low, high + 1)), star[1]
    elif span is not None:
        first, last, step = number(span[1]), number(span[2]), span[3]
        if last >= first:
            chosen = list(range(first, last + 1))
        else:
            chosen = [*range(first, high + 1), *range(low, last + 1)]
    else:
        return [number(part)]
    if step is None:
        return chosen
    if not (step.isascii() and step.isdecimal()) or int(step[:9]) < 1:
        raise Drop(f"{part!r} in {word} has no step")
    return chosen[:: int(step[:9])]
