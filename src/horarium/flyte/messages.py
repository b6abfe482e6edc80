"""What Flyte declares, in our words, and back. Pure: messages and mappings in, messages and mappings out.

| Flyte | here |
|---|---|
| `TriggerName.project`, `.domain`, `.task_name`, `.name` | `TriggerKey(project, domain, deployment, name)` |
| `TriggerAutomationSpec`'s `Schedule` | the words of a schedule: `schedule_words`, `automation_of` |
| `Schedule.kickoff_time_input_arg` | `kickoff_time_arg` |
| `TriggerSpec` | the action of a deployment on a target of kind `flyte`: `trigger_action` |
| `Inputs`' literals | `parameters`, by `literal`; or, exactly, protobuf JSON in the action's `inputs` |

Protobuf JSON is the mapping that the protobuf specification defines, with the names of the `.proto` files.
What can't be read is an `InvalidInput` whose pointer leads to the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar

from flyteidl2.common.identifier_pb2 import RunIdentifier, TriggerName
from flyteidl2.common.run_pb2 import OffloadedInputData
from flyteidl2.core.literals_pb2 import Literal, LiteralCollection, LiteralMap, Primitive, Scalar, Void
from flyteidl2.task import common_pb2
from flyteidl2.task.common_pb2 import Cron, FixedRate, Inputs, NamedLiteral, Schedule, TriggerAutomationSpec
from flyteidl2.task.run_pb2 import RunSpec
from flyteidl2.task.task_definition_pb2 import TaskIdentifier, TaskSpec
from flyteidl2.trigger.trigger_definition_pb2 import TriggerSpec
from flyteidl2.workflow import run_definition_pb2
from flyteidl2.workflow.run_service_pb2 import CreateRunRequest
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from horarium.core import schedule as schedules
from horarium.core.duration import parse_duration
from horarium.core.instant import EPOCH, rfc3339
from horarium.core.keys import TriggerKey
from horarium.core.once import parse_instant
from horarium.core.spec import Json, canonical_json
from horarium.core.zone import DEFAULT_ZONES
from horarium.errors import InvalidInput, Problem, shown
from horarium.targets.base import FireRequest

TASK_KEYS = ("name", "version", "org", "project", "domain")
TRIGGER_KEYS = ("org", "project", "domain", "task_name", "name")

_MESSAGES: Mapping[str, type[Message]] = {
    "task_spec": TaskSpec,
    "inputs": Inputs,
    "offloaded_inputs": OffloadedInputData,
    "run_spec": RunSpec,
}
"""The words whose values are protobuf JSON, and of which message."""

_UNITS = {
    common_pb2.FIXED_RATE_UNIT_MINUTE: 1,
    common_pb2.FIXED_RATE_UNIT_HOUR: 60,
    common_pb2.FIXED_RATE_UNIT_DAY: 1_440,
}
"""A rate's units in minutes."""
_MINUTE = timedelta(minutes=1)
_MAX_RATE = 2**32 - 1
_INT64 = range(-(2**63), 2**63)

M = TypeVar("M", bound=Message)


# --- keys -----------------------------------------------------------------------------------------------


def trigger_key(name: TriggerName) -> TriggerKey:
    """Our key of a trigger over there."""
    return TriggerKey(name.project, name.domain, name.task_name, name.name)


def trigger_name(key: TriggerKey, org: str = "") -> TriggerName:
    """Its name over there of a trigger here."""
    return TriggerName(
        org=org, project=key.project, domain=key.domain, task_name=key.deployment, name=key.name
    )


# --- schedules ------------------------------------------------------------------------------------------


def schedule_words(
    automation: TriggerAutomationSpec, *, anchor: datetime | None = None, pointer: str = ""
) -> dict[str, Any] | None:
    """The words of the triggers file for a trigger's schedule, canonical; None if time doesn't start it.

    `anchor` is from when a rate without a `start_time` counts: a time that a later deploy doesn't change.
    Raises `InvalidInput`, for what Flyte's own scheduler can't run either: what robfig's `ParseStandard`
    doesn't take, a time that never comes, a rate of zero or without a unit.
    """
    if automation.type != common_pb2.TYPE_SCHEDULE:
        return None
    schedule = automation.schedule
    words: dict[str, Any]
    match schedule.WhichOneof("expression"):
        case "cron":
            words = _cron_words(schedule.cron, f"{pointer}/cron")
            where, fields = f"{pointer}/cron", {"/cron": "/expression"}
        case "cron_expression":
            words = {"cron": schedule.cron_expression, "dialect": "robfig"}
            where, fields = f"{pointer}/cron_expression", {"/cron": ""}
        case "rate":
            words = _rate_words(schedule.rate, f"{pointer}/rate")
            where, fields = f"{pointer}/rate", {"/every": "", "/start": "/start_time"}
        case _:
            raise InvalidInput(
                Problem(
                    pointer,
                    "no expression",
                    "a schedule has one of cron, cron_expression, rate",
                    'cron: {expression: "0 6 * * *"}',
                    code="schedule",
                )
            )
    words = _canonical(words, where, fields)
    if "every" in words and "start" not in words and anchor is not None:
        words["start"] = rfc3339(anchor.replace(microsecond=0))
    return words


def automation_of(words: Mapping[str, Any], kickoff_time_arg: str | None = None) -> TriggerAutomationSpec:
    """Flyte's automation for the words of a schedule: what `schedule_words` reads back.

    Raises `InvalidInput` for a rule that Flyte has no words for: one that counts seconds or months, RRULE,
    one-off, with an end, on calendars, or a cron expression in other words than robfig's.
    """
    schedule = Schedule(kickoff_time_input_arg=kickoff_time_arg or "")
    plain = schedules.canonical(words)
    strange = plain.keys() - {"cron", "dialect", "timezone", "every", "start"}
    if "cron" in plain and plain.get("dialect") == "robfig" and not strange and "start" not in plain:
        schedule.cron.CopyFrom(Cron(expression=plain["cron"], timezone=plain.get("timezone", "UTC")))
    elif isinstance(plain.get("every"), str) and not strange:
        count, rest = divmod(parse_duration(plain["every"]), _MINUTE)
        if rest or not 0 < count <= _MAX_RATE:
            raise _no_words("/every", plain["every"], "a rate of Flyte counts whole minutes")
        schedule.rate.CopyFrom(FixedRate(value=count, unit=common_pb2.FIXED_RATE_UNIT_MINUTE))
        if "start" in plain:
            schedule.rate.start_time.CopyFrom(_timestamp(_instant(plain["start"])))
    else:
        kind = next((word for word in ("cron", "every", "rrule", "at") if word in plain), "")
        raise _no_words(f"/{kind}", plain.get(kind), "Flyte has cron in robfig's words, and fixed rates")
    return TriggerAutomationSpec(type=common_pb2.TYPE_SCHEDULE, schedule=schedule)


def _cron_words(cron: Cron, pointer: str) -> dict[str, Any]:
    words = {"cron": cron.expression, "dialect": "robfig"}
    if cron.timezone:
        words["timezone"] = cron.timezone
        if cron.expression.lstrip().startswith(("CRON_TZ=", "TZ=")):
            raise InvalidInput(
                Problem(
                    f"{pointer}/expression",
                    shown(cron.expression),
                    f"a zone is named once, and timezone is {cron.timezone!r}",
                    "the expression without its zone",
                    code="schedule",
                )
            )
    return words


def _rate_words(rate: FixedRate, pointer: str) -> dict[str, Any]:
    unit = _UNITS.get(rate.unit)
    if unit is None:
        got = common_pb2.FixedRateUnit.Name(rate.unit) if rate.unit in _unit_numbers() else str(rate.unit)
        raise InvalidInput(
            Problem(f"{pointer}/unit", got, "a rate counts minutes, hours or days", "MINUTE", code="schedule")
        )
    if rate.value == 0:
        raise InvalidInput(
            Problem(f"{pointer}/value", "0", "a rate is one unit or more", "1", code="schedule")
        )
    words: dict[str, Any] = {"every": f"{rate.value * unit}m"}
    if rate.HasField("start_time"):
        words["start"] = rfc3339(_datetime(rate.start_time, f"{pointer}/start_time").replace(microsecond=0))
    return words


def _unit_numbers() -> list[int]:
    return list(common_pb2.FixedRateUnit.values())


def _canonical(words: dict[str, Any], pointer: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """`words` in the one way to write them, known to name a time; problems point to Flyte's field.

    `fields` is where Flyte keeps what our words call otherwise.
    """
    try:
        if schedules.parse(words).after(0) is None:
            word, hint = ("cron", "a date that exists") if "cron" in words else ("every", "a shorter one")
            raise InvalidInput(
                Problem(f"/{word}", shown(words[word]), "this never names a time", hint, "schedule")
            )
        return schedules.canonical(words)
    except InvalidInput as error:
        raise InvalidInput(
            Problem(
                pointer + fields.get(problem.pointer, problem.pointer),
                problem.got,
                problem.rule,
                problem.hint,
                code=problem.code,
                position=problem.position,
            )
            for problem in error.problems
        ) from None


def _no_words(pointer: str, got: object, rule: str) -> InvalidInput:
    return InvalidInput(Problem(pointer, shown(got), rule, code="schedule"))


# --- literals -------------------------------------------------------------------------------------------


def literal(value: Json, like: Literal | None = None) -> Literal:
    """The literal of a plain value: text, whole and decimal numbers, truth values and null as what they are,
    a list as a collection, a mapping as a map.

    `like` is the literal that it takes the place of: where that is a decimal number, a time or a duration and
    the value can be read as one, it becomes one too.
    """
    if value is None:
        return Literal(scalar=Scalar(none_type=Void()))
    if isinstance(value, list | tuple):
        return Literal(collection=LiteralCollection(literals=[literal(item) for item in value]))
    if isinstance(value, Mapping):
        return Literal(map=LiteralMap(literals={str(key): literal(item) for key, item in value.items()}))
    kind = like.scalar.primitive.WhichOneof("value") if like is not None else None
    return Literal(scalar=Scalar(primitive=_primitive(value, kind)))


def _primitive(value: bool | int | float | str, like: str | None) -> Primitive:
    if isinstance(value, bool):
        return Primitive(boolean=value)
    if isinstance(value, int):
        if value not in _INT64:
            raise InvalidInput(Problem("", shown(value), "a whole number of Flyte's has 64 bits", "text"))
        return Primitive(float_value=value) if like == "float_value" else Primitive(integer=value)
    if isinstance(value, float):
        return Primitive(float_value=value)
    if like == "datetime" and (at := _read_instant(value)) is not None:
        return Primitive(datetime=_timestamp(at))
    if like == "duration":
        try:
            return Primitive(duration=parse_duration(value))
        except InvalidInput:
            pass  # it is text then, and Flyte says what it thinks of it
    return Primitive(string_value=value)


def time_literal(at: datetime) -> Literal:
    """The literal of an instant."""
    return Literal(scalar=Scalar(primitive=Primitive(datetime=_timestamp(at))))


def parameters_of(inputs: Inputs) -> dict[str, Json]:
    """The literals of `inputs` that are plain values, by name; `literal` gives them back.

    What is none (a time, a file, a structure of another encoding) is left out: `inputs` says it exactly.
    """
    found: dict[str, Json] = {}
    for named in inputs.literals:
        plain, value = _plain(named.value)
        if plain:
            found[named.name] = value
    return found


def _plain(item: Literal) -> tuple[bool, Json]:
    match item.WhichOneof("value"):
        case "collection":
            items = [_plain(each) for each in item.collection.literals]
            return all(plain for plain, _ in items), [value for _, value in items]
        case "map":
            pairs = {key: _plain(each) for key, each in item.map.literals.items()}
            return all(plain for plain, _ in pairs.values()), {key: v for key, (_, v) in pairs.items()}
        case "scalar" if item.scalar.HasField("none_type"):
            return True, None
        case "scalar" if item.scalar.HasField("primitive"):
            primitive = item.scalar.primitive
            kind = primitive.WhichOneof("value")
            if kind in ("integer", "float_value", "string_value", "boolean"):
                return True, getattr(primitive, kind)
    return False, None


# --- what a run is asked for with -----------------------------------------------------------------------


def trigger_action(name: TriggerName, spec: TriggerSpec) -> dict[str, Any]:
    """The action that fires a trigger over there with all that its spec says of a run."""
    action: dict[str, Any] = {
        "trigger": {word: getattr(name, word) for word in TRIGGER_KEYS if getattr(name, word)}
    }
    if spec.HasField("inputs") and spec.inputs.ByteSize():
        action["inputs"] = to_json(spec.inputs)
    if spec.HasField("offloaded_input_data"):
        action["offloaded_inputs"] = to_json(spec.offloaded_input_data)
    if spec.HasField("run_spec") and spec.run_spec.ByteSize():
        action["run_spec"] = to_json(spec.run_spec)
    return action


def create_run_request(request: FireRequest, org: str = "") -> CreateRunRequest:
    """What creates a run over there.

    The action's `inputs` come first, then the parameters over them by name, then the kickoff time as a
    time. A request has either inputs or offloaded ones: with offloaded ones the kickoff time travels as
    `run_start_time` alone, from which Flyte's runtime fills the argument that the offloaded inputs name.
    Raises `InvalidInput` for parameters beside offloaded inputs, which Flyte would drop.
    """
    action, key = request.action, request.trigger
    project, domain, owner = key.project, key.domain, org
    message = CreateRunRequest(run_start_time=_timestamp(request.scheduled_time))
    if request.origin != "manual":
        message.source = run_definition_pb2.RUN_SOURCE_SCHEDULE_TRIGGER
    if "trigger" in action:
        named = action["trigger"]
        message.trigger_name.CopyFrom(
            TriggerName(
                org=named.get("org", org),
                project=named.get("project", project),
                domain=named.get("domain", domain),
                task_name=named.get("task_name", key.deployment),
                name=named.get("name", key.name),
            )
        )
        place: TriggerName | TaskIdentifier = message.trigger_name
    elif "task" in action:
        named = action["task"]
        message.task_id.CopyFrom(
            TaskIdentifier(
                org=named.get("org", org),
                project=named.get("project", project),
                domain=named.get("domain", domain),
                name=named["name"],
                version=named.get("version", ""),
            )
        )
        place = message.task_id
    else:
        _fill(message.task_spec, "task_spec", action)
        template = message.task_spec.task_template.id
        place = TaskIdentifier(
            org=template.org or org, project=template.project or project, domain=template.domain or domain
        )
    message.run_id.CopyFrom(
        RunIdentifier(
            org=place.org or owner, project=place.project, domain=place.domain, name=request.run_name
        )
    )
    if "run_spec" in action:
        _fill(message.run_spec, "run_spec", action)
    plain = {name: value for name, value in request.parameters.items() if name != request.kickoff_time_arg}
    if "offloaded_inputs" in action:
        if plain:
            raise InvalidInput(_beside_offloaded(plain))
        _fill(message.offloaded_input_data, "offloaded_inputs", action)
        return message
    inputs = Inputs()
    if "inputs" in action:
        _fill(inputs, "inputs", action)
    for name, value in plain.items():
        _put(inputs, name, literal(value, _named(inputs, name)))
    if request.kickoff_time_arg is not None:
        _put(inputs, request.kickoff_time_arg, time_literal(request.scheduled_time))
    if inputs.ByteSize():
        message.inputs.CopyFrom(inputs)
    return message


def check_action(action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str) -> dict[str, Any]:
    """The messages of an action in the one way to write them. Raises `InvalidInput` with every problem."""
    checked: dict[str, Any] = {}
    problems: list[Problem] = []
    for word, kind in _MESSAGES.items():
        if action.get(word) is None:
            continue
        try:
            checked[word] = to_json(from_json(action[word], kind, f"{pointer}/{word}"))
        except InvalidInput as error:
            problems += error.problems
    if "offloaded_inputs" in checked:
        if "inputs" in checked:
            problems.append(
                Problem(
                    f"{pointer}/inputs",
                    "inputs and offloaded_inputs",
                    "Flyte takes a run's inputs from one place",
                    "leave one of them out",
                    code="conflict",
                )
            )
        if not checked["offloaded_inputs"].get("uri"):
            problems.append(
                Problem(
                    f"{pointer}/offloaded_inputs/uri",
                    "nothing",
                    "offloaded inputs lie at a uri",
                    "what UploadInputs answered",
                )
            )
    if problems:
        raise InvalidInput(problems)
    return checked


def _fill(message: Message, word: str, action: Mapping[str, Any]) -> None:
    """Read the message that a word of an action means. Raises `InvalidInput`."""
    message.SetInParent()
    message.MergeFromString(_wire(word, canonical_json(action[word])))


@lru_cache(maxsize=4_096)
def _wire(word: str, text: str) -> bytes:
    """The message that a word's JSON means, on the wire: to read JSON anew costs more than to make a call."""
    found: bytes = from_json(json.loads(text), _MESSAGES[word], f"/{word}").SerializeToString()
    return found


def _beside_offloaded(plain: Mapping[str, Json]) -> Problem:
    return Problem(
        "/parameters",
        ", ".join(sorted(plain)),
        "the inputs are offloaded, and Flyte takes a run's inputs from one place: these would be dropped",
        "leave the parameters out, or deploy the trigger without offloaded inputs",
        code="conflict",
    )


def _named(inputs: Inputs, name: str) -> Literal | None:
    return next((item.value for item in inputs.literals if item.name == name), None)


def _put(inputs: Inputs, name: str, value: Literal) -> None:
    """Set one literal, where one of that name stands already or at the end."""
    for item in inputs.literals:
        if item.name == name:
            item.value.CopyFrom(value)
            return
    inputs.literals.append(NamedLiteral(name=name, value=value))


# --- protobuf JSON --------------------------------------------------------------------------------------


def to_json(message: Message) -> dict[str, Any]:
    """`message` as plain data. Raises `InvalidInput` for what JSON can't say: a time in year 10000."""
    try:
        found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    except (json_format.Error, ValueError, OverflowError) as error:
        name = message.DESCRIPTOR.full_name
        raise InvalidInput(Problem("", f"a {name}", f"JSON can't say it: {error}", code="protobuf")) from None
    return found


def from_json(value: object, kind: type[M], pointer: str) -> M:
    """The message that plain data mean. Raises `InvalidInput`: unknown fields are mistakes."""
    name = kind.DESCRIPTOR.full_name
    if not isinstance(value, Mapping):
        raise InvalidInput(Problem(pointer, shown(value), f"this is a {name} in protobuf JSON", "a mapping"))
    try:
        message: M = json_format.ParseDict(dict(value), kind())
        return message
    except json_format.ParseError as error:
        raise InvalidInput(
            Problem(pointer, shown(value), f"this is a {name} in protobuf JSON: {error}", code="protobuf")
        ) from error


def datetime_of(message: Message, field: str) -> datetime | None:
    """A message's time, aware UTC; None where it has none. Raises `InvalidInput` outside years 1 to 9999."""
    return _datetime(getattr(message, field), f"/{field}") if message.HasField(field) else None


def _timestamp(at: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(at)
    return stamp


def _datetime(stamp: Timestamp, pointer: str) -> datetime:
    try:
        return EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1_000)
    except OverflowError:
        raise InvalidInput(
            Problem(pointer, str(stamp.seconds), "a time lies in the years 1 to 9999", code="schedule")
        ) from None


def _instant(text: str) -> datetime:
    return EPOCH + timedelta(seconds=parse_instant(text, DEFAULT_ZONES.get("UTC", ""), ""))


def _read_instant(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
