"""A trigger's spec between Flyte's words and ours.

A trigger without an automation, which Flyte starts on demand alone, is here an inactive one-off whose instant
was over when it was declared: it has a name, inputs and runs by hand, and nothing is ever planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from flyteidl2.common.identifier_pb2 import ApplicationIdentifier, TriggerIdentifier
from flyteidl2.common.identity_pb2 import Application, EnrichedIdentity
from flyteidl2.common.run_pb2 import OffloadedInputData
from flyteidl2.task.common_pb2 import (
    TYPE_ARTIFACT,
    TYPE_NONE,
    TYPE_SCHEDULE,
    TYPE_UNSPECIFIED,
    Inputs,
    Schedule,
    TriggerAutomationSpec,
)
from flyteidl2.task.run_pb2 import RunSpec
from flyteidl2.trigger import trigger_definition_pb2 as flyte
from google.protobuf.timestamp_pb2 import Timestamp

from horarium.api.flyte_inputs import check_size, restored
from horarium.api.flyte_words import bad, kept
from horarium.app.records import Record
from horarium.core.instant import rfc3339
from horarium.core.keys import TriggerKey
from horarium.core.revision import Status
from horarium.core.spec import DeploymentSpec, TriggerEntry, TriggerSpec
from horarium.errors import InvalidInput
from horarium.flyte.messages import automation_of, from_json, schedule_words, trigger_name

OF_TRIGGER = ("inputs", "offloaded_inputs", "run_spec", "description")
"""The words of an action that a trigger has for itself; the rest are its task's."""

_ACTIONS = {
    "delete": flyte.TRIGGER_REVISION_ACTION_DELETE,
    "activate": flyte.TRIGGER_REVISION_ACTION_ACTIVATE,
    "resume": flyte.TRIGGER_REVISION_ACTION_ACTIVATE,
    "resume-deployment": flyte.TRIGGER_REVISION_ACTION_ACTIVATE,
    "deactivate": flyte.TRIGGER_REVISION_ACTION_DEACTIVATE,
    "pause": flyte.TRIGGER_REVISION_ACTION_DEACTIVATE,
    "pause-deployment": flyte.TRIGGER_REVISION_ACTION_DEACTIVATE,
}


# Flyte → ours


def entry(
    key: TriggerKey,
    deployment: DeploymentSpec,
    spec: flyte.TriggerSpec,
    automation: TriggerAutomationSpec,
    *,
    anchor: datetime,
    pointer: str,
) -> TriggerEntry:
    """What a trigger of a deployment is declared to be. `spec` stands at `pointer` + `/spec` of the request.

    `anchor` is when the trigger was first declared: from then on a rate without a start counts, whatever is
    deployed later. Raises `InvalidInput`.
    """
    action = {word: value for word, value in deployment.action.items() if word not in OF_TRIGGER}
    inputs: Inputs | None = spec.inputs if spec.HasField("inputs") else None
    if spec.HasField("offloaded_input_data"):
        where = f"{pointer}/spec/offloaded_input_data"
        inputs = restored(spec.offloaded_input_data, where)
        if inputs is None:
            if not spec.offloaded_input_data.uri:
                raise bad(f"{where}/uri", "", "offloaded inputs lie at a uri", "what UploadInputs answered")
            action["offloaded_inputs"] = kept(spec.offloaded_input_data, where)
    if inputs is not None and inputs.ByteSize():
        check_size(inputs)
        action["inputs"] = kept(inputs, f"{pointer}/spec/inputs")
    if spec.run_spec.ByteSize():
        action["run_spec"] = kept(spec.run_spec, f"{pointer}/spec/run_spec")
    if spec.description:
        action |= kept(flyte.TriggerSpec(description=spec.description), f"{pointer}/spec")
    schedule = _schedule(automation, anchor, f"{pointer}/automation_spec")
    return TriggerEntry(
        key,
        TriggerSpec(
            schedule=schedule,
            target=deployment.target,
            action=action,
            parameters=dict(deployment.parameters),
            kickoff_time_arg=automation.schedule.kickoff_time_input_arg or None,
            active=spec.active and "at" not in schedule,
            owner=deployment.owner,
            runbook=deployment.runbook,
            late_after=deployment.late_after,
            retry_for=deployment.retry_for,
        ),
    )


def _schedule(automation: TriggerAutomationSpec, anchor: datetime, pointer: str) -> dict[str, Any]:
    if automation.type == TYPE_ARTIFACT or automation.HasField("artifact"):
        raise bad(
            f"{pointer}/artifact",
            automation.artifact.artifact_name,
            "Horarium starts runs by time, not when an artifact comes",
            "deploy this trigger to a Flyte backend",
        )
    if automation.HasField("schedule") and automation.type in (TYPE_SCHEDULE, TYPE_UNSPECIFIED):
        timed = TriggerAutomationSpec(type=TYPE_SCHEDULE, schedule=automation.schedule)
        words = schedule_words(timed, anchor=anchor, pointer=f"{pointer}/schedule")
        assert words is not None, "the type is that of a schedule"
        return words
    if automation.type == TYPE_SCHEDULE:
        raise bad(f"{pointer}/schedule", "nothing", "a trigger of type TYPE_SCHEDULE has a schedule", "cron")
    if automation.HasField("schedule"):
        raise bad(f"{pointer}/type", "TYPE_NONE", "a trigger with a schedule is of type TYPE_SCHEDULE")
    return {"at": rfc3339(anchor.replace(microsecond=0))}


# ours → Flyte


def details(record: Record) -> flyte.TriggerDetails:
    """A trigger at a revision, whole."""
    action = record.revision.spec.action
    spec = flyte.TriggerSpec(
        active=is_active(record),
        task_version=version_of(action),
        description=action.get("description", ""),
        run_spec=from_json(action.get("run_spec", {}), RunSpec, "/run_spec"),
    )
    if "offloaded_inputs" in action:
        spec.offloaded_input_data.CopyFrom(
            from_json(action["offloaded_inputs"], OffloadedInputData, "/offloaded_inputs")
        )
    else:
        spec.inputs.CopyFrom(from_json(action.get("inputs", {}), Inputs, "/inputs"))
    return flyte.TriggerDetails(
        id=identifier(record),
        metadata=_metadata(record),
        spec=spec,
        status=_status(record),
        automation_spec=automation(record),
        description=spec.description,
    )


def summary(record: Record) -> flyte.Trigger:
    """A trigger as a list has it."""
    return flyte.Trigger(
        id=identifier(record),
        metadata=_metadata(record),
        status=_status(record),
        active=is_active(record),
        automation_spec=automation(record),
    )


def revision(record: Record) -> flyte.TriggerRevision:
    """A revision as a history has it."""
    return flyte.TriggerRevision(
        id=identifier(record),
        metadata=_metadata(record),
        status=_status(record),
        action=_ACTIONS.get(record.revision.what, flyte.TRIGGER_REVISION_ACTION_DEPLOY),
        created_at=timestamp(record.revision.effective_from),
    )


def identifier(record: Record) -> TriggerIdentifier:
    """The name and the revision's number."""
    return TriggerIdentifier(name=trigger_name(record.trigger.key), revision=record.revision.number)


def is_active(record: Record) -> bool:
    """Whether it owes its slots at this revision: its spec says so, and nobody has paused it."""
    return record.revision.state is Status.ACTIVE


def automation(record: Record) -> TriggerAutomationSpec:
    """What starts it; a schedule without an expression where Flyte has no words for ours."""
    spec = record.revision.spec
    created = record.trigger.created_at
    began = None if created is None else rfc3339(created.replace(microsecond=0))
    if "at" in spec.schedule and (began is None or spec.schedule["at"] <= began):
        return TriggerAutomationSpec(type=TYPE_NONE)
    try:
        found = automation_of(spec.schedule, spec.kickoff_time_arg)
    except InvalidInput:
        schedule = Schedule(kickoff_time_input_arg=spec.kickoff_time_arg or "")
        return TriggerAutomationSpec(type=TYPE_SCHEDULE, schedule=schedule)
    if found.schedule.HasField("rate") and spec.schedule.get("start") == began:
        found.schedule.rate.ClearField("start_time")  # it was declared without one
    return found


def version_of(action: Mapping[str, Any]) -> str:
    """The version of the task that an action runs; empty where it says none."""
    template = action.get("task_spec", {}).get("task_template", {})
    found: str = template.get("id", {}).get("version") or action.get("task", {}).get("version", "")
    return found


def timestamp(at: datetime) -> Timestamp:
    """An instant as protobuf has it."""
    stamp = Timestamp()
    stamp.FromDatetime(at)
    return stamp


def identity(who: str) -> EnrichedIdentity:
    """Somebody, as far as we know who: a name that was given."""
    return EnrichedIdentity(application=Application(id=ApplicationIdentifier(subject=who)))


def _metadata(record: Record) -> flyte.TriggerMetadata:
    return flyte.TriggerMetadata(
        deployed_by=identity(record.declared_by), updated_by=identity(record.switched_by)
    )


def _status(record: Record) -> flyte.TriggerStatus:
    fired, deleted = record.fired_slot, record.deleted_at
    return flyte.TriggerStatus(
        deployed_at=timestamp(record.declared_at),
        updated_at=timestamp(record.switched_at),
        triggered_at=None if fired is None else timestamp(fired),
        deleted_at=None if deleted is None else timestamp(deleted),
    )
