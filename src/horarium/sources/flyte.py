"""A Flyte backend as a source: the triggers that people deploy there with its SDK.

`version` lists every trigger, and `read` asks for the details of those whose revision is new; both see one
listing, so that what is read is what the version says. A listing comes in pages by offset, and a trigger that
is deleted meanwhile moves another one out of sight; so one that was there before and is missing is asked for
by name before it counts as gone. Nothing is gone because a call failed.

What happened to a trigger between two listings is read from its revisions, so that a slot is decided by what
was in force then: one that was switched off and on again owes nothing for the time between.

An entry that can't be taken costs itself alone: it is kept as it was, and said why. One whose call failed is
asked for again at the next pass; many of them mean that the backend is not there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from flyteidl2.common.identifier_pb2 import ProjectIdentifier, TriggerIdentifier
from flyteidl2.common.list_pb2 import ListRequest, Sort
from flyteidl2.task import common_pb2
from flyteidl2.trigger.trigger_definition_pb2 import Trigger, TriggerDetails
from flyteidl2.trigger.trigger_service_pb2 import (
    GetTriggerDetailsRequest,
    GetTriggerDetailsResponse,
    GetTriggerRevisionDetailsRequest,
    GetTriggerRevisionDetailsResponse,
    ListTriggersRequest,
    ListTriggersResponse,
)

from horarium.clock import Clock
from horarium.core.keys import DeploymentKey, TriggerKey, check_key_part
from horarium.core.spec import DeploymentSpec, Listing, Step, TargetSpec, TriggerEntry, TriggerSpec
from horarium.errors import InvalidInput, Problem, shown
from horarium.flyte.client import Client, check_connection
from horarium.flyte.messages import (
    datetime_of,
    schedule_words,
    trigger_action,
    trigger_key,
    trigger_name,
)
from horarium.sources.base import SourceUnavailable
from horarium.targets.checks import Fields
from horarium.targets.connection import CallFailed
from horarium.targets.secrets import SecretMissing

NAME = "flyte"
"""The source's name, and that of the target it brings along."""

CONFIG_KEYS = ("projects", "target", "shadow")
"""The source's fields beside those of a connection."""

_SERVICE = "flyteidl2.trigger.TriggerService"
_PAGE = 200
"""Triggers asked for at once: the open-source server refuses more."""

_AT_ONCE = 16
"""Calls in flight: a backend that serves people has better to do than to be listed fast."""

_ATTEMPTS = 3
_FIRST_WAIT = 0.2
"""Seconds before a call is repeated; they double."""

_MOST_FAILURES = 20
"""Calls for details that may fail in one pass. More of them mean that the backend is not there."""

_MOST_STEPS = 20
"""Revisions between two listings that are looked at; of what came before them there is no word."""

_SKEW = timedelta(minutes=10)
"""How far the backend's clock and the store's may be apart."""

_PASSING = frozenset(
    ("unavailable", "deadline_exceeded", "resource_exhausted", "aborted", "internal", "unknown")
)
_ORDER = ("project", "domain", "task_name", "name")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """Where the triggers are. `connection` was checked by `check_connection`.

    `projects` are the pairs of project and domain that are listed, all where there are none. `target` is the
    name of a target of kind `flyte` that fires; without one the source brings its own along. `shadow`: its
    new triggers start in shadow; None as the instance says.
    """

    connection: Mapping[str, Any]
    projects: tuple[tuple[str, str], ...] = ()
    target: str | None = None
    shadow: bool | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a trigger's state in the listing became: an entry, nothing of ours, or a mistake.

    `revision` is the one that was read, and `steps` what was in force up to it.
    """

    state: tuple[int, bool, bytes]
    revision: int
    entry: TriggerEntry | None = None
    problems: tuple[Problem, ...] = ()
    steps: tuple[Step, ...] = ()


class FlyteSource:
    """See the module. `listed_at` tells when the source was listed last, by any process: what happened to a
    trigger since then may have been seen by nobody. None: never."""

    name = NAME

    def __init__(
        self, config: SourceConfig, clock: Clock, listed_at: Callable[[], Awaitable[datetime | None]]
    ) -> None:
        self._config = config
        self._clock = clock
        self._listed_at = listed_at
        self._target = config.target or NAME
        self._listed: dict[TriggerKey, Trigger] | None = None
        self._before: frozenset[TriggerKey] | None = None
        self._seen: dict[TriggerKey, _Seen] = {}
        self._unread: dict[TriggerKey, str] = {}
        self._pass = 0
        self._read: str | None = None
        self._failures = 0

    @property
    def path(self) -> str:
        """Where the source is, for people. A reference stays one."""
        return str(self._config.connection["endpoint"])

    async def version(self) -> str:
        """A token of all triggers' revisions. Raises `SourceUnavailable`."""
        if self._read is not None:
            # What has just been read is one listing; a later one is for the next pass.
            token, self._read = self._read, None
            return token
        async with self._connected() as client:
            self._listed = await self._list(client)
        return self._token()

    async def read(self) -> Listing:
        """Every trigger that time starts. Raises `SourceUnavailable`."""
        async with self._connected() as client:
            if self._listed is None:
                self._listed = await self._list(client)
            listed = self._listed
            self._read = self._token()
            await self._details(client, listed)
        self._pass += 1
        self._listed = None
        return self._listing(listed)

    # listing

    async def _list(self, client: Client) -> dict[TriggerKey, Trigger]:
        if self._before is None:
            # A first pass has nothing to compare with, so it looks twice.
            self._before = frozenset(await self._pages(client))
        found = await self._pages(client)
        missing = sorted(self._before - found.keys())
        for details in await self._each(missing, lambda key: self._ask(client, key)):
            if details is not None:
                found[trigger_key(details.id.name)] = Trigger(
                    id=details.id,
                    status=details.status,
                    active=details.spec.active,
                    automation_spec=details.automation_spec,
                )
        self._before = frozenset(found)
        return found

    async def _pages(self, client: Client) -> dict[TriggerKey, Trigger]:
        found: dict[TriggerKey, Trigger] = {}
        for scope in self._scopes():
            sorts = [Sort(key=key, direction=Sort.ASCENDING) for key in _ORDER]
            token, tokens = "", set[str]()
            while True:
                request = ListRequest(limit=_PAGE, token=token, sort_by_fields=sorts)
                asked = ListTriggersRequest(request=request, **scope)
                try:
                    page = await self._call(client, "ListTriggers", asked, ListTriggersResponse)
                except CallFailed as failed:
                    if failed.code == "invalid_argument" and sorts and not token:
                        sorts = []  # a backend that sorts by none of these
                        continue
                    raise SourceUnavailable(NAME, failed.reason) from failed
                for item in page.triggers:
                    key = trigger_key(item.id.name)
                    if key not in found or found[key].id.revision <= item.id.revision:
                        found[key] = item
                token = page.token
                if not token:
                    break
                if token in tokens:
                    raise SourceUnavailable(NAME, f"ListTriggers gives the page {token!r} again and again")
                tokens.add(token)
        return found

    def _scopes(self) -> list[dict[str, Any]]:
        org = self._config.connection.get("org", "")
        if not self._config.projects:
            return [{"org": org}]
        return [
            {"project_id": ProjectIdentifier(organization=org, name=project, domain=domain)}
            for project, domain in self._config.projects
        ]

    def _token(self) -> str:
        assert self._listed is not None
        hashed = hashlib.blake2b(digest_size=16)
        for key in sorted(self._listed):
            hashed.update(f"{key}\n{_state(self._listed[key])}\n".encode())
        if self._unread:
            hashed.update(str(self._pass).encode())  # those that could not be read are read again
        return hashed.hexdigest()

    # details

    async def _details(self, client: Client, listed: Mapping[TriggerKey, Trigger]) -> None:
        self._failures = 0
        self._unread = {}
        new = [
            key
            for key, item in listed.items()
            if key not in self._seen or self._seen[key].state != _state(item)
        ]
        listed_at = await self._listed_at() if new else None
        await self._each(new, lambda key: self._learn(client, key, listed[key], listed_at))
        self._seen = {key: seen for key, seen in self._seen.items() if key in listed}

    async def _learn(
        self, client: Client, key: TriggerKey, item: Trigger, listed_at: datetime | None
    ) -> None:
        state, revision, steps = _state(item), item.id.revision, tuple[Step, ...]()
        if item.automation_spec.type != common_pb2.TYPE_SCHEDULE:
            self._seen[key] = _Seen(state, revision)
            return
        try:
            details = await self._ask(client, key, item)
            if details is None:
                self._seen[key] = _Seen(state, revision)  # deleted since it was listed
                return
            revision = details.id.revision
            steps = await self._earlier(client, key, details, listed_at)
            entry = self._entry(key, details, await self._anchor(client, details), steps)
            steps = (*steps, Step(entry.since, entry.spec))
            self._seen[key] = _Seen(state, revision, entry, steps=steps)
        except CallFailed as failed:
            self._failed(key, failed)
        except InvalidInput as error:
            own = f"/{key}"
            self._seen[key] = _Seen(
                state,
                revision,
                problems=tuple(
                    item if item.pointer.startswith(own) else item.under(own) for item in error.problems
                ),
                steps=steps,
            )

    async def _earlier(
        self, client: Client, key: TriggerKey, details: TriggerDetails, listed_at: datetime | None
    ) -> tuple[Step, ...]:
        """What was in force before these details, ascending, as far as it may be unseen.

        That is what this process has seen itself, and the revisions that it hasn't. Raises `CallFailed`.
        """
        before = self._seen.get(key)
        found: list[Step] = []
        for number in range(details.id.revision - 1, 0, -1):
            seen = listed_at is None if before is None else number <= before.revision
            if seen or len(found) >= _MOST_STEPS:
                break
            old = await self._revision(client, details, number)
            since = None if old is None else _since(old)
            if old is None or since is None:
                break
            try:
                found.append(Step(since, await self._rule(client, key, old)))
            except InvalidInput:
                continue  # it could not have been taken: what was before it stayed in force
            if before is None and listed_at is not None and since < listed_at - _SKEW:
                break
        steps = (*(before.steps if before else ()), *reversed(found))
        return steps[-_MOST_STEPS:]

    async def _rule(self, client: Client, key: TriggerKey, old: TriggerDetails) -> TriggerSpec | None:
        """The spec of a revision; None where it was deleted, or nothing of ours. Raises `InvalidInput`."""
        if old.status.HasField("deleted_at") or old.automation_spec.type != common_pb2.TYPE_SCHEDULE:
            return None
        return self._entry(key, old, await self._anchor(client, old)).spec

    async def _revision(self, client: Client, details: TriggerDetails, number: int) -> TriggerDetails | None:
        """A revision of a trigger; None where the backend has none to tell. Raises `CallFailed`."""
        asked = GetTriggerRevisionDetailsRequest(id=TriggerIdentifier(name=details.id.name, revision=number))
        try:
            answer = await self._call(
                client, "GetTriggerRevisionDetails", asked, GetTriggerRevisionDetailsResponse
            )
        except CallFailed as failed:
            if failed.code not in ("not_found", "unimplemented"):
                raise
            return None
        found: TriggerDetails = answer.trigger
        return found

    def _failed(self, key: TriggerKey, failed: CallFailed) -> None:
        self._failures += 1
        if self._failures > _MOST_FAILURES:
            raise SourceUnavailable(NAME, failed.reason) from failed
        self._unread[key] = failed.reason

    async def _ask(
        self, client: Client, key: TriggerKey, item: Trigger | None = None
    ) -> TriggerDetails | None:
        """A trigger as it is now; None when it is gone. Raises `CallFailed`, of one not listed
        `SourceUnavailable`."""
        name = item.id.name if item is not None else trigger_name(key, self._config.connection.get("org", ""))
        try:
            asked = GetTriggerDetailsRequest(name=name)
            found = (await self._call(client, "GetTriggerDetails", asked, GetTriggerDetailsResponse)).trigger
        except CallFailed as failed:
            if failed.code == "not_found":
                return None
            if item is None:
                raise SourceUnavailable(NAME, failed.reason) from failed
            raise
        return None if found.status.HasField("deleted_at") else found

    async def _anchor(self, client: Client, details: TriggerDetails) -> datetime | None:
        """From when a rate without a start counts: its first deploy, which no redeploy moves."""
        schedule = details.automation_spec.schedule
        fixed = schedule.WhichOneof("expression") == "rate" and schedule.rate.HasField("start_time")
        counts = schedule.WhichOneof("expression") == "rate" or "@every" in (
            schedule.cron.expression + schedule.cron_expression
        )
        if fixed or not counts:
            return None
        first = details if details.id.revision <= 1 else await self._revision(client, details, 1)
        return None if first is None else datetime_of(first.status, "deployed_at")

    def _entry(
        self,
        key: TriggerKey,
        details: TriggerDetails,
        anchor: datetime | None,
        earlier: tuple[Step, ...] = (),
    ) -> TriggerEntry:
        """What a trigger is here. Raises `InvalidInput`."""
        pointer = f"/{key}"
        for word, part in zip(_ORDER, (key.project, key.domain, key.deployment, key.name), strict=True):
            check_key_part(part, f"{pointer}/id/{word}")
        where = f"{pointer}/automation_spec/schedule"
        schedule = schedule_words(details.automation_spec, anchor=anchor, pointer=where)
        if schedule is None:
            raise InvalidInput(
                Problem(where, "another kind", "this trigger had a schedule when it was listed")
            )
        return TriggerEntry(
            key,
            TriggerSpec(
                schedule=schedule,
                target=self._target,
                action=trigger_action(details.id.name, details.spec),
                kickoff_time_arg=details.automation_spec.schedule.kickoff_time_input_arg or None,
                active=details.spec.active,
                inactive_because=None if details.spec.active else "deactivated in Flyte",
            ),
            since=_since(details),
            last_slot=datetime_of(details.status, "triggered_at"),
            earlier=earlier,
        )

    def _listing(self, listed: Mapping[TriggerKey, Trigger]) -> Listing:
        entries: list[TriggerEntry] = []
        kept: set[TriggerKey] = set(self._unread)
        left_out = [
            Problem(f"/{key}", "no details", f"GetTriggerDetails failed: {reason}", code="call")
            for key, reason in sorted(self._unread.items())
        ]
        for key in sorted(listed):
            seen = self._seen.get(key)
            if seen is None or key in self._unread:
                continue
            if seen.problems:
                kept.add(key)
                left_out += seen.problems
            elif seen.entry is not None:
                entries.append(seen.entry)
        tasks = sorted({entry.key.deployment_key for entry in entries})
        own = TargetSpec(NAME, "flyte", self._config.connection)
        return Listing(
            NAME,
            targets=() if self._config.target else (own,),
            deployments=tuple(self._deployment(task) for task in tasks),
            triggers=tuple(entries),
            kept=frozenset(kept),
            left_out=tuple(left_out),
            shadow=self._config.shadow,
        )

    def _deployment(self, key: DeploymentKey) -> DeploymentSpec:
        return DeploymentSpec(key, self._target, {"task": {"name": key.name}})

    # calls

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        """A connection for one step of a pass: secrets are resolved anew each time."""
        try:
            async with Client(self._config.connection, self._clock, limit=_AT_ONCE) as client:
                yield client
        except SecretMissing as error:
            raise SourceUnavailable(NAME, str(error)) from error

    async def _call(self, client: Client, method: str, message: Any, kind: type[T]) -> T:
        """A call, repeated while what fails may pass. Raises `CallFailed`."""
        wait = _FIRST_WAIT
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                found: T = await client.call(f"{_SERVICE}/{method}", message, kind)
                return found
            except CallFailed as failed:
                if attempt == _ATTEMPTS or failed.code not in _PASSING:
                    raise
            await self._clock.wait(asyncio.Event(), wait)
            wait *= 2
        raise AssertionError("the last attempt answers or raises")

    async def _each(self, keys: Sequence[TriggerKey], work: Callable[[TriggerKey], Awaitable[T]]) -> list[T]:
        """`work` for every key, a few at once; the first exception ends all."""
        rest = iter(keys)
        found: list[T] = []

        async def one_after_the_other() -> None:
            for key in rest:
                found.append(await work(key))

        tasks = [asyncio.ensure_future(one_after_the_other()) for _ in range(min(_AT_ONCE, len(keys)))]
        try:
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return found


def check_source(config: Mapping[str, Any], pointer: str, allowed: Iterable[str]) -> SourceConfig:
    """The checked config of the source. Raises `InvalidInput` with every problem.

    Its fields are those of a connection, `projects` (a list of `project/domain`), `target` and `shadow`.
    """
    fields = Fields(config, pointer, "a flyte source", allowed)
    connection = check_connection(fields)
    projects: list[tuple[str, str]] = []
    for index, item in enumerate(fields.raw("projects") or ()):
        parts = item.split("/") if isinstance(item, str) else []
        if len(parts) == 2 and all(parts):
            projects.append((parts[0], parts[1]))
        else:
            rule = "projects are a list of project/domain"
            fields.problems.append(
                Problem(f"{fields.at('projects')}/{index}", shown(item), rule, "flytesnacks/development")
            )
    target = fields.text("target")
    shadow = fields.flag("shadow")
    fields.raise_problems()
    return SourceConfig(connection, tuple(projects), target, shadow)


def _since(details: TriggerDetails) -> datetime | None:
    """When a revision was made. Raises `InvalidInput`."""
    times = [datetime_of(details.status, word) for word in ("deployed_at", "updated_at", "deleted_at")]
    return max((at for at in times if at is not None), default=None)


def _state(item: Trigger) -> tuple[int, bool, bytes]:
    """What of a listed trigger says that its details are as they were; `triggered_at` moves with each run."""
    return item.id.revision, item.active, item.automation_spec.SerializeToString(deterministic=True)
