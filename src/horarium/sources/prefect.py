"""A Prefect server as a source: the deployments that people make there, and their schedules.

`version` lists every deployment, and `read` is that listing; so what is read is what the version says. A
listing comes in pages by offset, and a deployment that is deleted meanwhile moves another one out of sight;
so one that was there before and is missing is asked for by id before it counts as gone. Nothing is gone
because a call failed. A schedule that can't be taken costs itself alone: it is kept as it was, and said why.

    Prefect                      here
    flow / deployment            PROJECT/flow/deployment, with PROJECT of the source's config (`prefect`)
    schedule's slug              the trigger's name; without a slug `schedule-` and the end of its id
    parameters                   the deployment's, with the schedule's laid over
    paused, active               the trigger is active if its deployment is not paused and the schedule is
                                 active; `inactive_because` tells them apart
    max_scheduled_runs           `ahead_runs`: flow runs that are there ahead, at most
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from horarium.clock import Clock
from horarium.core.keys import DeploymentKey, TriggerKey, check_key_part, check_name
from horarium.core.spec import DeploymentSpec, Listing, TargetSpec, TriggerEntry, TriggerSpec, canonical_json
from horarium.errors import InvalidInput, Problem
from horarium.prefect import CONNECTION_KEYS
from horarium.prefect.client import Client, check_connection
from horarium.prefect.schedules import of_schedule, slug_of
from horarium.sources.base import SourceUnavailable
from horarium.targets.checks import Fields, json_problem
from horarium.targets.connection import CallFailed
from horarium.targets.secrets import SecretMissing

NAME = "prefect"
"""The source's name, and that of the target it brings along."""

CONFIG_KEYS = (*CONNECTION_KEYS, "project", "target", "ahead", "shadow")
"""The source's fields. `ahead` is for the target that it brings along."""

DEFAULT_PROJECT = "prefect"
LONGEST_AHEAD = timedelta(days=7)

_IDS_AT_ONCE = 200
_AT_ONCE = 4
"""Calls in flight: a server that serves people has better to do than to be listed fast."""

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """Where the deployments are. `connection` was checked by `check_connection`.

    `target` is the name of a target of kind `prefect` that fires; without one the source brings its own
    along, with `ahead` in seconds. `shadow`: its new triggers start in shadow; None as the instance says.
    """

    connection: Mapping[str, Any]
    project: str = DEFAULT_PROJECT
    target: str | None = None
    ahead: float | None = None
    shadow: bool | None = None


class PrefectSource:
    """See the module."""

    name = NAME

    def __init__(self, config: SourceConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._flows: dict[str, str] = {}
        self._before: frozenset[str] | None = None
        self._listed: Sequence[Item] | None = None
        self._read: str | None = None

    @property
    def path(self) -> str:
        """Where the source is, for people. A reference stays one."""
        return str(self._config.connection["url"])

    async def version(self) -> str:
        """A token of all deployments. Raises `SourceUnavailable`."""
        if self._read is not None:
            # What has just been read is one listing; a later one is for the next pass.
            token, self._read = self._read, None
            return token
        self._listed = await self._list()
        return self._token()

    async def read(self) -> Listing:
        """Every deployment and schedule. Raises `SourceUnavailable`."""
        if self._listed is None:
            self._listed = await self._list()
        self._read = self._token()
        listed, self._listed = self._listed, None
        return self._listing(listed)

    # listing

    async def _list(self) -> Sequence[Item]:
        try:
            # A connection for one pass: secrets are resolved anew each time.
            async with Client(self._config.connection, self._clock, limit=_AT_ONCE) as client:
                if self._before is None:
                    # A first pass has nothing to compare with, so it looks twice.
                    self._before = frozenset(await self._pages(client))
                found = await self._pages(client)
                for some in _chunks(sorted(self._before - found.keys())):
                    which = {"deployments": {"id": {"any_": some}}}
                    found |= _by_id(await client.every("/deployments/filter", which))
                self._before = frozenset(found)
                await self._name_flows(client, found.values())
        except (CallFailed, SecretMissing) as error:
            raise SourceUnavailable(NAME, str(error)) from error
        return [found[key] for key in sorted(found)]

    async def _pages(self, client: Client) -> dict[str, Item]:
        # New ones come first and move the others on, where they are seen once more; nothing is missed.
        return _by_id(await client.every("/deployments/filter", {"sort": "CREATED_DESC"}))

    async def _name_flows(self, client: Client, deployments: Iterable[Item]) -> None:
        """Learn the flows' names, which never change."""
        new = sorted({str(item.get("flow_id")) for item in deployments} - self._flows.keys())
        for some in _chunks(new):
            for flow in await client.every("/flows/filter", {"flows": {"id": {"any_": some}}}):
                self._flows[str(flow.get("id"))] = str(flow.get("name"))
        if not {*new} <= self._flows.keys():
            raise SourceUnavailable(NAME, "a flow was deleted while its deployments were listed")

    def _token(self) -> str:
        assert self._listed is not None
        hashed = hashlib.blake2b(digest_size=16)
        for item in self._listed:
            hashed.update(canonical_json(_said(item)).encode())
        return hashed.hexdigest()

    # what they are here

    def _listing(self, listed: Sequence[Item]) -> Listing:
        deployments: dict[DeploymentKey, DeploymentSpec] = {}
        entries: dict[TriggerKey, TriggerEntry] = {}
        kept: set[TriggerKey] = set()
        left_out: list[Problem] = []
        for item in listed:
            try:
                key = self._key(item)
            except InvalidInput as error:
                left_out += error.problems  # it never had a key here
                continue
            named: list[tuple[TriggerKey, Item]] = []
            for schedule in item.get("schedules") or ():
                try:
                    name = check_key_part(slug_of(schedule), f"/{key}/slug")
                    named.append((TriggerKey(key.project, key.domain, key.name, name), schedule))
                except InvalidInput as error:
                    left_out += error.problems
            try:
                deployments[key] = self._deployment(key, item)
            except InvalidInput as error:
                kept |= {trigger for trigger, _ in named}
                left_out += error.problems
                continue
            for trigger, schedule in named:
                try:
                    entries[trigger] = self._entry(trigger, item, schedule)
                except InvalidInput as error:
                    kept.add(trigger)
                    left_out += error.problems
        config = dict(self._config.connection)
        if self._config.ahead is not None:
            config["ahead"] = self._config.ahead
        return Listing(
            NAME,
            targets=() if self._config.target else (TargetSpec(NAME, "prefect", config),),
            deployments=tuple(deployments[key] for key in sorted(deployments)),
            triggers=tuple(entries[key] for key in sorted(entries)),
            kept=frozenset(kept),
            left_out=tuple(left_out),
            shadow=self._config.shadow,
        )

    def _key(self, item: Item) -> DeploymentKey:
        """Raises `InvalidInput` where a name can't be part of a key."""
        flow, name = self._flows.get(str(item.get("flow_id")), ""), str(item.get("name"))
        pointer = f"/deployments/{item.get('id')}"
        return DeploymentKey(
            self._config.project,
            check_key_part(flow, f"{pointer}/flow"),
            check_key_part(name, f"{pointer}/name"),
        )

    def _deployment(self, key: DeploymentKey, item: Item) -> DeploymentSpec:
        parameters = item.get("parameters") or {}
        why = json_problem(parameters)
        if why is not None:
            raise InvalidInput(Problem(f"/{key}/parameters", "a value", f"parameters are JSON: {why}"))
        return DeploymentSpec(
            key, self._config.target or NAME, {"deployment": f"{key.domain}/{key.name}"}, parameters
        )

    def _entry(self, key: TriggerKey, item: Item, schedule: Item) -> TriggerEntry:
        """What a schedule is here. Raises `InvalidInput`."""
        whole = f"{key.domain}/{key.deployment}"
        rule = of_schedule(schedule.get("schedule"), f"/{key}", created=_time(schedule.get("created")))
        action: dict[str, Any] = {"deployment": whole}
        most = schedule.get("max_scheduled_runs")
        if isinstance(most, int):
            action["ahead_runs"] = most
        reasons = [
            *([f"deployment {whole} is paused in Prefect"] if item.get("paused") else ()),
            *([] if schedule.get("active", True) else ["the schedule is not active in Prefect"]),
        ]
        return TriggerEntry(
            key,
            TriggerSpec(
                schedule=rule,
                target=self._config.target or NAME,
                action=action,
                parameters={**(item.get("parameters") or {}), **(schedule.get("parameters") or {})},
                active=not reasons,
                inactive_because=", and ".join(reasons) or None,
            ),
        )


def check_source(config: Mapping[str, Any], pointer: str) -> SourceConfig:
    """The checked config of the source. Raises `InvalidInput` with every problem.

    Its fields are those of a connection, `project` (the first part of all keys), `target`, `ahead` and
    `shadow`.
    """
    fields = Fields(config, pointer, "a prefect source", CONFIG_KEYS)
    connection = check_connection(fields)
    project = fields.text("project")
    if project is not None:
        fields.check(check_name, project, fields.at("project"))
    target = fields.text("target")
    ahead = fields.seconds("ahead", LONGEST_AHEAD) if fields.has("ahead") else None
    if target is not None and ahead is not None:
        fields.problem("ahead", "ahead is said by the target that fires", f"ahead on target {target!r}")
    shadow = fields.flag("shadow")
    fields.raise_problems()
    return SourceConfig(connection, project or DEFAULT_PROJECT, target, ahead, shadow)


_SAID = ("id", "name", "flow_id", "paused", "parameters")
_SAID_OF_SCHEDULE = ("id", "slug", "schedule", "active", "parameters", "max_scheduled_runs")


def _said(item: Item) -> dict[str, Any]:
    """What of a deployment is ours to know: its status and its last poll change all the time."""
    found = {word: item.get(word) for word in _SAID}
    schedules = [item for item in item.get("schedules") or () if isinstance(item, Mapping)]
    said = [{word: schedule.get(word) for word in _SAID_OF_SCHEDULE} for schedule in schedules]
    found["schedules"] = sorted(said, key=lambda schedule: str(schedule["id"]))
    return found


def _time(value: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _by_id(items: Iterable[Item]) -> dict[str, Item]:
    return {str(item.get("id")): item for item in items}


def _chunks(keys: Sequence[str]) -> Iterable[list[str]]:
    for first in range(0, len(keys), _IDS_AT_ONCE):
        yield list(keys[first : first + _IDS_AT_ONCE])
