"""What Prefect's own scheduler made: the flow runs of schedules, by deployment and expected start time.

Prefect says of each flow run which schedule it is of (`created_by`), so those that people asked for, and
ours, are left out. A trigger is found there by its key, `PROJECT/flow/deployment/slug`, as the source names
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from horarium.clock import Clock
from horarium.core.instant import rfc3339
from horarium.core.keys import TriggerKey
from horarium.core.shadow import TheirRun
from horarium.core.spec import TargetSpec
from horarium.prefect.client import Client
from horarium.prefect.schedules import slug_of
from horarium.sources.base import SourceUnavailable
from horarium.targets.connection import CallFailed
from horarium.targets.secrets import SecretMissing

AT_ONCE = 4
"""Calls in flight: a server that serves people has better to do than to be listed fast."""

SOME = 50
"""Deployments asked for in one call."""


class PrefectIncumbent:
    """The scheduler of the server that a target of kind `prefect` fires into; `spec.config` was checked."""

    def __init__(self, spec: TargetSpec, clock: Clock) -> None:
        self._name = spec.name
        self._config = spec.config
        self._clock = clock

    async def runs(
        self, triggers: Sequence[TriggerKey], low: datetime, high: datetime
    ) -> Mapping[TriggerKey, Sequence[TheirRun]]:
        """Those of slots in `(low, high]`; see `sources.base.Incumbent`."""
        client = Client(self._config, self._clock, limit=AT_ONCE)
        found: dict[TriggerKey, list[TheirRun]] = {key: [] for key in triggers}
        try:
            await client.start()
            schedules = await self._schedules(client, triggers)
            deployments = sorted({deployment for deployment, _ in schedules.values()})
            of = {schedule: key for key, (_, schedule) in schedules.items()}
            for first in range(0, len(deployments), SOME):
                which = {
                    "deployment_id": {"any_": deployments[first : first + SOME]},
                    "expected_start_time": {"after_": rfc3339(low), "before_": rfc3339(high)},
                }
                for item in await client.every("/flow_runs/filter", {"flow_runs": which, "sort": "ID_DESC"}):
                    maker = item.get("created_by") or {}
                    key = of.get(str(maker.get("id"))) if maker.get("type") == "SCHEDULE" else None
                    if key is not None:
                        slot = _time(item["expected_start_time"]).replace(microsecond=0)
                        found[key].append(TheirRun(slot, _time(item["created"]), str(item.get("name"))))
        except (CallFailed, SecretMissing) as error:
            raise SourceUnavailable(self._name, f"its flow runs can't be listed: {error}") from error
        finally:
            await client.close()
        return {key: [run for run in runs if low < run.at <= high] for key, runs in found.items()}

    async def _schedules(
        self, client: Client, triggers: Sequence[TriggerKey]
    ) -> dict[TriggerKey, tuple[str, str]]:
        """The ids of the deployment and the schedule that a trigger is of, where there are any."""
        wanted = {(key.domain, key.deployment): key.project for key in triggers}
        keys, found = {*triggers}, dict[TriggerKey, tuple[str, str]]()
        names = sorted(wanted)
        for first in range(0, len(names), SOME):
            some = names[first : first + SOME]
            body = {
                "flows": {"name": {"any_": sorted({flow for flow, _ in some})}},
                "deployments": {"name": {"any_": sorted({name for _, name in some})}},
                "sort": "CREATED_DESC",
            }
            flows = await client.every("/flows/filter", {"flows": body["flows"]})
            flow_names = {str(item.get("id")): str(item.get("name")) for item in flows}
            for item in await client.every("/deployments/filter", body):
                flow, name = flow_names.get(str(item.get("flow_id")), ""), str(item.get("name"))
                for schedule in item.get("schedules") or ():
                    key = TriggerKey(wanted.get((flow, name), ""), flow, name, slug_of(schedule))
                    if key in keys:
                        found[key] = str(item.get("id")), str(schedule.get("id"))
        return found


def _time(text: object) -> datetime:
    at = datetime.fromisoformat(str(text))
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
