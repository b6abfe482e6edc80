"""An operator's pause of a deployment: of all its triggers at once, apart from each one's own. Pure.

It stands beside the pause of a trigger and the spec's `active`, and none of the three touches another: a
trigger that was paused by itself stays so when its deployment goes on. What a pause does to a trigger is
`core/trigger.py`'s, and it is the same whoever paused: later runs are withdrawn, owed ones held, and the
slots meanwhile become a skip.

The instruction stays with the deployment's key: a source that withdraws the deployment and names it again
finds it paused still.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from horarium.core import trigger as decisions
from horarium.core.keys import DeploymentKey
from horarium.core.revision import GRACE
from horarium.core.trigger import Change, TriggerState


@dataclass(frozen=True, slots=True)
class Pause:
    """Who stopped it, when, and why if they said so."""

    by: str
    at: datetime
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment's row without its spec, which a pause has no business with. `digest` is the spec's."""

    id: int
    key: DeploymentKey
    digest: str
    withdrawn: bool
    updated_at: datetime
    pause: Pause | None = None


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """What a decision may look at: the deployment, and its triggers under their locks.

    `paused_since` has, for each trigger that is paused with its deployment, since when that has kept it from
    firing: later than the pause for one that was made, revived, moved here or cut over in between. One in
    shadow is not there: its slots are another scheduler's.
    """

    deployment: Deployment
    triggers: tuple[TriggerState, ...]
    paused_since: Mapping[int, datetime]


@dataclass(frozen=True, slots=True)
class DeploymentChange:
    """What a store writes, in one transaction: the deployment as it shall be, and its triggers' changes."""

    what: str
    deployment: Deployment
    triggers: tuple[tuple[TriggerState, Change], ...] = ()


def pause(
    state: DeploymentState, who: str, now: datetime, *, note: str | None = None
) -> DeploymentChange | None:
    """Stop all of its triggers. None when it is paused so already.

    A pause with another note is theirs who wrote that, and began when it began.
    """
    before = state.deployment.pause
    found = [(item, decisions.pause_with_deployment(item, who, now)) for item in state.triggers]
    stopped = tuple((item, change) for item, change in found if change is not None)
    if before is None:
        paused = Pause(who, now, note)
    elif before.note != note:
        paused = Pause(who, before.at, note)
    elif stopped:
        paused = before
    else:
        return None
    return DeploymentChange("pause", replace(state.deployment, pause=paused), stopped)


def resume(
    state: DeploymentState, who: str, now: datetime, *, backfill: bool = False, grace: timedelta = GRACE
) -> DeploymentChange | None:
    """The end of the pause: its triggers go on but for those that something else keeps. None: not paused.

    `backfill` also fills the slots of the pause, of those that go on.
    """
    if state.deployment.pause is None:
        return None
    found = [
        (
            item,
            decisions.resume_with_deployment(
                item,
                who,
                now,
                fill_from=state.paused_since.get(item.trigger.id) if backfill else None,
                grace=grace,
            ),
        )
        for item in state.triggers
    ]
    return DeploymentChange(
        "resume",
        replace(state.deployment, pause=None),
        tuple((item, change) for item, change in found if change is not None),
    )
