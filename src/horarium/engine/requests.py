"""What a target is told of a run: the same when it is fired and when it is created ahead."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from horarium.core.instant import rfc3339
from horarium.core.keys import TriggerKey
from horarium.core.overlap import COMPLETION_TIMEOUT
from horarium.core.run import Origin
from horarium.core.spec import Json, TriggerSpec
from horarium.targets.base import FireRequest


def fire_request(
    key: TriggerKey,
    spec: TriggerSpec,
    *,
    name: str,
    origin: Origin,
    scheduled_time: datetime,
    attempt: int,
    revision: int,
    utc_offset: timedelta,
    parameters: Mapping[str, Json] | None,
    deadline: datetime,
) -> FireRequest:
    """The request of a run of `spec`. `parameters` lie over the spec's; `deadline` ends the call."""
    given: dict[str, Json] = {**spec.parameters, **(parameters or {})}
    if spec.kickoff_time_arg is not None:
        given[spec.kickoff_time_arg] = rfc3339(scheduled_time)
    return FireRequest(
        run_name=name,
        trigger=key,
        origin=origin.value,
        scheduled_time=scheduled_time,
        attempt=attempt,
        action=spec.action,
        parameters=given,
        deadline=deadline,
        revision=revision,
        utc_offset=utc_offset,
        kickoff_time_arg=spec.kickoff_time_arg,
        completion_timeout=spec.completion_timeout or COMPLETION_TIMEOUT,
    )
