"""`TriggerService`: Flyte's triggers are ours, under the key project/domain/task/name.

Revisions are our revisions, so a deploy that changes nothing makes none. `deployed_at` is the time of the
last one that brought a spec, `updated_at` of the last that made the trigger active or inactive,
`triggered_at` the last slot that was handed over.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeAlias

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from flyteidl2.trigger import trigger_service_pb2 as flyte
from flyteidl2.trigger.trigger_service_connect import TriggerService

from horarium.api.flyte_specs import details, entry, revision, summary, version_of
from horarium.api.flyte_words import Field, Part, asked, bad, names, page, task_key, trigger_key, who_of
from horarium.app.paging import Filters
from horarium.app.records import Order, Record, Term
from horarium.core.keys import TriggerKey
from horarium.core.revision import Status
from horarium.errors import InvalidInput, NotFound, Problem

Context: TypeAlias = RequestContext[Any, Any]

MOST_NAMES = 500
"""Triggers of one request; they are changed in one transaction."""

FIELDS = {
    "project": Field("project"),
    "domain": Field("domain"),
    "task_name": Field("deployment"),
    "name": Field("name"),
    "active": Field("active", bool),
    "deployed_at": Field("declared_at", datetime),
    "updated_at": Field("switched_at", datetime),
    "task_version": Field("version"),
    "automation_type": Field("on_demand", choices={"TYPE_NONE": 1, "TYPE_SCHEDULE": 0}),
}
"""What triggers are sorted and filtered by, in Flyte's words."""

REVISION_FIELDS = {
    "revision": Field("revision", int),
    "deployed_at": Field("declared_at", datetime),
    "updated_at": Field("switched_at", datetime),
    "action": Field(
        "change",
        choices={
            "TRIGGER_REVISION_ACTION_DEPLOY": "declared",
            "TRIGGER_REVISION_ACTION_ACTIVATE": "activated",
            "TRIGGER_REVISION_ACTION_DEACTIVATE": "deactivated",
            "TRIGGER_REVISION_ACTION_DELETE": "deleted",
        },
    ),
}
"""What revisions are sorted and filtered by, in Flyte's words."""


class Triggers(TriggerService):  # type: ignore[misc] # generated, without types
    """See the module."""

    def __init__(self, part: Part) -> None:
        self._part = part

    async def deploy_trigger(
        self, request: flyte.DeployTriggerRequest, ctx: Context
    ) -> flyte.DeployTriggerResponse:
        """Create, replace or revive a trigger of a task that is there."""
        key = trigger_key(request.name)
        for field in ("spec", "automation_spec"):
            if not request.HasField(field):
                raise bad(f"/{field}", "nothing", f"a trigger has {field}")
        commands, records = self._part.commands, self._part.records
        task = await records.task(key.deployment_key)
        version = "" if task is None else version_of(task.spec.action)
        if task is None:
            raise NotFound(
                "task", str(key.deployment_key), "deploy it first, or declare it in a triggers file"
            )
        if request.spec.task_version not in ("", version):
            raise NotFound(
                "task",
                f"{key.deployment_key}@{request.spec.task_version}",
                f"the version deployed last is {version!r}, and Horarium keeps no other",
            )
        now = await commands.now()
        began = await records.began(key.deployment_key, [key.name])
        anchor = began.get(key.name, now)
        declared = entry(key, task.spec, request.spec, request.automation_spec, anchor=anchor, pointer="")
        await commands.declare(
            (), [declared], now=now, expected_revision=request.revision or None, who=who_of(ctx)
        )
        return flyte.DeployTriggerResponse(trigger=details(await self._live(key)))

    async def get_trigger_details(
        self, request: flyte.GetTriggerDetailsRequest, ctx: Context
    ) -> flyte.GetTriggerDetailsResponse:
        """A trigger that is not deleted."""
        return flyte.GetTriggerDetailsResponse(trigger=details(await self._live(trigger_key(request.name))))

    async def get_trigger_revision_details(
        self, request: flyte.GetTriggerRevisionDetailsRequest, ctx: Context
    ) -> flyte.GetTriggerRevisionDetailsResponse:
        """A trigger as a revision had it, deleted or not."""
        key = trigger_key(request.id.name, "/id/name")
        number = request.id.revision
        if not 1 <= number < 2**31:
            raise bad("/id/revision", number, "revisions count from 1")
        found = await self._part.records.at_revision(key, number)
        return flyte.GetTriggerRevisionDetailsResponse(trigger=details(found))

    async def list_triggers(
        self, request: flyte.ListTriggersRequest, ctx: Context
    ) -> flyte.ListTriggersResponse:
        """Triggers of a project and domain, of a task or of one of its versions; those that are active
        first, and what changed last before the rest."""
        want = asked(
            request.request, FIELDS, (Order("active", descending=True), Order("switched_at", descending=True))
        )
        scope = Filters()
        match request.WhichOneof("scope_by"):
            case "project_id":
                within = request.project_id
                project, domain = names("/project_id", name=within.name, domain=within.domain)
                scope = Filters(project=project, domain=domain)
            case "task_id" | "task_name" as which:
                task = getattr(request, which)
                place = task_key(task, f"/{which}")
                scope = Filters(project=place.project, domain=place.domain, deployment=place.name)
                if which == "task_id":
                    if not task.version.isprintable():
                        raise bad("/task_id/version", task.version, "a version is printable text")
                    want = replace(want, terms=(*want.terms, Term("version", "equal", (task.version,))))
            case _:
                pass  # all of this instance: there are no organizations here
        found, token = await page(self._part.records.triggers(scope, want))
        # In a thread: a full page takes a while, and runs that are due meanwhile must not wait for it.
        triggers = await asyncio.to_thread(lambda: [summary(item) for item in found])
        return flyte.ListTriggersResponse(triggers=triggers, token=token or "")

    async def get_trigger_revision_history(
        self, request: flyte.GetTriggerRevisionHistoryRequest, ctx: Context
    ) -> flyte.GetTriggerRevisionHistoryResponse:
        """The revisions of a trigger, deleted or not, newest first."""
        key = trigger_key(request.name)
        want = asked(request.request, REVISION_FIELDS, (Order("revision", descending=True),))
        found, token = await page(self._part.records.revisions(key, want))
        return flyte.GetTriggerRevisionHistoryResponse(
            triggers=[revision(item) for item in found], token=token or ""
        )

    async def update_triggers(
        self, request: flyte.UpdateTriggersRequest, ctx: Context
    ) -> flyte.UpdateTriggersResponse:
        """Make triggers active or inactive, all or none."""
        await self._part.commands.switch(_keys(request.names), active=request.active, who=who_of(ctx))
        return flyte.UpdateTriggersResponse()

    async def delete_triggers(
        self, request: flyte.DeleteTriggersRequest, ctx: Context
    ) -> flyte.DeleteTriggersResponse:
        """Tombstones, all or none; what is deleted stays so."""
        await self._part.commands.delete_triggers(_keys(request.names), who=who_of(ctx))
        return flyte.DeleteTriggersResponse()

    async def _live(self, key: TriggerKey) -> Record:
        found = await self._part.records.trigger(key)
        if found is None or found.trigger.status is Status.DELETED:
            raise NotFound("trigger", str(key), "" if found is None else "it was deleted; deploy it again")
        return found


def _keys(given: Any) -> list[TriggerKey]:
    if len(given) > MOST_NAMES:
        raise ConnectError(
            Code.INVALID_ARGUMENT, f"/names: {len(given)}: a request names at most {MOST_NAMES} triggers"
        )
    problems: list[Problem] = []
    keys: list[TriggerKey] = []
    for index, name in enumerate(given):
        try:
            keys.append(trigger_key(name, f"/names/{index}"))
        except InvalidInput as error:
            problems += error.problems
    if not given:
        problems.append(Problem("/names", "none", "a request names at least one trigger"))
    if problems:
        raise InvalidInput(problems)
    return list(dict.fromkeys(keys))
