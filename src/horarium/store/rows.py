"""Values from rows of the tables, whoever asked for them: a store, or what is shown to people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from horarium.core.deployment import Deployment, Pause
from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.core.revision import Revision, Status
from horarium.core.run import Origin, Run, RunState
from horarium.core.spec import DeploymentSpec, TriggerSpec
from horarium.core.trigger import Backfill, Trigger

if TYPE_CHECKING:
    # Only for types: `horarium preview` reads this module, and should not wait for a database driver.
    from sqlalchemy import Row


def trigger_of(row: Row[Any]) -> Trigger:
    """A trigger from the columns of the table `trigger`."""
    return Trigger(
        id=row.id,
        key=TriggerKey(row.project, row.domain, row.deployment, row.name),
        hash_seed=row.hash_seed,
        managed_by=row.source,
        revision=row.revision,
        status=Status(row.status),
        cursor=row.cursor,
        plan_due_at=row.plan_due_at,
        paused=row.paused,
        pause_note=row.pause_note,
        paused_by=row.paused_by,
        paused_at=row.paused_at,
        resume_at=row.resume_at,
        shadow=row.shadow,
        frozen=row.frozen,
        error=row.error,
        error_count=row.error_count,
        zone_digest=row.zone_digest,
        tzdata_version=row.tzdata_version,
        pruned_before=row.pruned_before,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def run_of(row: Row[Any]) -> Run:
    """A run from the columns of the table `run`."""
    return Run(
        id=row.id,
        trigger_id=row.trigger_id,
        scheduled_time=row.scheduled_time,
        origin=Origin(row.origin),
        name=row.name,
        revision=row.revision,
        target_id=row.target_id,
        state=RunState(row.state),
        due_at=row.due_at,
        first_due_at=row.first_due_at,
        expires_at=row.expires_at,
        attempt=row.attempt,
        lease_owner=row.lease_owner,
        first_claimed_at=row.first_claimed_at,
        outcome_unknown=row.outcome_unknown,
        utc_offset=timedelta(seconds=row.utc_offset),
        parameters=row.parameters,
        request_key=row.request_key,
        fired_at=row.fired_at,
        settled_at=row.settled_at,
        reason=row.reason,
        target_run_id=row.target_run_id,
        result=row.result,
        result_at=row.result_at,
        result_detail=row.result_detail,
        waits_for=row.waits_for,
    )


def revision_of(row: Row[Any]) -> Revision:
    """A revision from the columns of the table `trigger_revision`."""
    return Revision(
        row.number,
        row.effective_from,
        Status(row.state),
        TriggerSpec.from_json(row.spec),
        row.what,
        row.who,
        row.shadow,
        row.deployment_paused,
    )


def deployment_of(row: Row[Any]) -> Deployment:
    """A deployment, but for its spec, from the columns of the table `deployment`."""
    return Deployment(
        id=row.id,
        key=DeploymentKey(row.project, row.domain, row.name),
        digest=row.digest,
        withdrawn=row.withdrawn,
        updated_at=row.updated_at,
        pause=pause_of(row),
    )


def pause_of(row: Row[Any]) -> Pause | None:
    """The pause of a deployment, from the columns of its table."""
    return Pause(row.paused_by, row.paused_at, row.pause_note) if row.paused else None


def deployment_spec_of(row: Row[Any]) -> DeploymentSpec:
    """What a deployment runs, from the columns of its table."""
    return DeploymentSpec.from_json(DeploymentKey(row.project, row.domain, row.name), row.spec)


def backfill_of(row: Row[Any]) -> Backfill:
    """A backfill from the columns of the table `backfill`."""
    return Backfill(
        row.id,
        row.trigger_id,
        row.from_time,
        row.to_time,
        row.cursor,
        row.state,
        row.runs,
        row.created_by,
        row.created_at,
        row.ended_at,
    )


@lru_cache(maxsize=16_384)
def spec_of(text: str) -> TriggerSpec:
    """A spec from its stored JSON; many triggers are planned and fired again and again."""
    data: Mapping[str, Any] = json.loads(text)
    return TriggerSpec.from_json(data)
