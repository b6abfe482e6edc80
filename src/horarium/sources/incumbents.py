"""What another scheduler ran: from a text that says so, or from the system itself.

The text has a line a run: CSV with a header, or a JSON object a line, with the fields

    trigger     deployment, deployment/name or the whole key
    time        the slot that the run is of, or
    created_at  when the run was made, where the slot is not known (cron's log); both may stand
    name        the run's name there, if it has one

Times are RFC 3339; without an offset they are UTC.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from horarium.clock import Clock
from horarium.core.instant import from_seconds
from horarium.core.keys import TriggerKey
from horarium.core.once import parse_instant
from horarium.core.shadow import TheirRun
from horarium.core.spec import TargetSpec
from horarium.core.zone import load_zone
from horarium.errors import InvalidInput, Problem, shown
from horarium.flyte import extra_missing
from horarium.sources.base import Incumbent

FIELDS = ("trigger", "time", "created_at", "name")
_HEADER = "trigger,time"
_POINTER = "/incumbent"

MAX_PROBLEMS = 50
"""More than anybody reads at once."""


class ToldRuns:
    """An incumbent whose runs are in a text; see the module."""

    def __init__(self, runs: Mapping[TriggerKey, Sequence[TheirRun]]) -> None:
        self._runs = runs

    @property
    def triggers(self) -> Sequence[TriggerKey]:
        return tuple(self._runs)

    async def runs(
        self, triggers: Sequence[TriggerKey], low: datetime, high: datetime
    ) -> Mapping[TriggerKey, Sequence[TheirRun]]:
        return {
            key: [run for run in self._runs[key] if low < run.at <= high]
            for key in triggers
            if key in self._runs
        }


def of_text(text: str) -> ToldRuns:
    """The runs that `text` tells. Raises `InvalidInput` with every wrong line."""
    found: dict[TriggerKey, list[TheirRun]] = {}
    problems: list[Problem] = []
    for number, line in _lines(text.removeprefix("\ufeff")):
        try:
            key, run = _run(line)
        except InvalidInput as error:
            problems += [replace(item.under(_POINTER), line=number) for item in error.problems]
            if len(problems) >= MAX_PROBLEMS:
                break
            continue
        found.setdefault(key, []).append(run)
    if problems:
        raise InvalidInput(problems)
    return ToldRuns(found)


class Incumbents:
    """Where to learn what another scheduler ran; see `sources/base.py`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def of_text(self, text: str) -> ToldRuns:
        """The runs that `text` tells. Raises `InvalidInput` with every wrong line."""
        return of_text(text)

    def of_target(self, spec: TargetSpec) -> Incumbent | None:
        """Flyte's scheduler, behind a target of kind `flyte`, and Prefect's; no other kind can be asked."""
        if spec.kind == "prefect":
            from horarium.prefect.incumbent import PrefectIncumbent

            return PrefectIncumbent(spec, self._clock)
        if spec.kind != "flyte":
            return None
        try:
            from horarium.flyte.incumbent import FlyteIncumbent
        except ImportError as missing:
            raise extra_missing("/incumbent", spec.name, missing) from missing
        return FlyteIncumbent(spec, self._clock)


def _lines(text: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Line numbers and fields. Raises `InvalidInput`."""
    if text.lstrip().startswith("{"):
        yield from _json_lines(text)
        return
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True, strict=True)
    names = [name.strip() for name in reader.fieldnames or ()]
    wrong = [name for name in names if name not in FIELDS]
    if "trigger" not in names or not {"time", "created_at"} & {*names} or wrong:
        raise InvalidInput(
            Problem(
                _POINTER,
                shown(wrong[0] if wrong else ",".join(names)),
                f"the first line names the columns: trigger, and time or created_at, of {', '.join(FIELDS)}",
                _HEADER,
                line=1,
                code="header",
            )
        )
    reader.fieldnames = names
    try:
        for row in reader:
            if None in row:
                raise InvalidInput(
                    Problem(
                        _POINTER, shown(row[None]), f"a line has {len(names)} fields", line=reader.line_num
                    )
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise InvalidInput(
            Problem(_POINTER, "CSV", str(error), _HEADER, line=reader.line_num + 1, code="csv")
        ) from error


def _json_lines(text: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(
                Problem(
                    _POINTER, shown(line), f"a line is one JSON object: {error}", line=number, code="json"
                )
            ) from error
        if not isinstance(data, dict):
            raise InvalidInput(Problem(_POINTER, shown(line), "a line is one JSON object", line=number))
        yield number, data


def _run(fields: Mapping[str, object]) -> tuple[TriggerKey, TheirRun]:
    problems = [
        Problem(f"/{name}", shown(name), "there is no such field", ", ".join(FIELDS), code="unknown-key")
        for name in fields
        if name not in FIELDS
    ]
    given = {name: value for name, value in fields.items() if value not in (None, "")}
    for name, value in given.items():
        if not isinstance(value, str):
            problems.append(Problem(f"/{name}", shown(value), f"{name} is text", "quote it"))
    if problems:
        raise InvalidInput(problems)
    texts = {name: str(value).strip() for name, value in given.items()}
    if "trigger" not in texts:
        raise InvalidInput(Problem("/trigger", "nothing", "a run is of a trigger", "deployment/name"))
    if "time" not in texts and "created_at" not in texts:
        raise InvalidInput(
            Problem("/time", "nothing", "a run has a time or a created_at", "2026-01-05T02:30:00Z")
        )
    key = TriggerKey.parse(texts["trigger"])
    time = created_at = None
    if "time" in texts:
        time = _instant(texts["time"], "/time")
    if "created_at" in texts:
        fraction = _FRACTION.search(texts["created_at"])
        whole = _FRACTION.sub("", texts["created_at"], 1)
        created_at = _instant(whole, "/created_at")
        created_at += timedelta(microseconds=int(f"{fraction[0][1:7]:0<6}") if fraction else 0)
    return key, TheirRun(time, created_at, texts.get("name"))


_FRACTION = re.compile(r"(?<=:\d\d)[.,]\d+")
"""Of a second: a slot has none, when a run was made may."""


def _instant(text: str, pointer: str) -> datetime:
    return from_seconds(parse_instant(text, load_zone("UTC"), pointer))
