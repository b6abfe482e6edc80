"""What people declare: targets, deployments and triggers, parsed and resolved.

These are values. `TriggerSpec` is whole: the deployment's parameters, defaults and action are already
merged in, so that a revision can fire long after its deployment has changed. Each has a digest of its
canonical JSON; two specs with one digest are the same rule, and a redeploy of it changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias

from horarium.core.keys import DeploymentKey, TriggerKey
from horarium.errors import Problem

Json: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None


class CatchUp(StrEnum):
    """What becomes of slots whose time passed while nobody could fire them."""

    ALL = "all"
    LATEST = "latest"
    NONE = "none"


class Overlap(StrEnum):
    """What a slot does while another run of its trigger is under way; see `core/overlap.py`."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces: equal values have equal text."""
    return _encode(value)


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
"""Made once: `json.dumps` builds an encoder for each call that asks for more than the defaults."""


def digest(value: object) -> str:
    """32 hex digits of a 128-bit hash of `canonical_json(value)`."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=16).hexdigest()


def _seconds(value: timedelta | None) -> float | None:
    return None if value is None else value / timedelta(seconds=1)


def _delta(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _later_words(**words: Json) -> dict[str, Json]:
    """Words that came after specs had been stored: only those that are used are part of a spec's identity, so
    that a new release changes no rule."""
    return {word: value for word, value in words.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket: `per_second` tokens a second, at most `burst` of them saved up."""

    per_second: float
    burst: int


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A named target, instance-wide.

    `kind` is the word under which a target module is registered (`local`, `http`), `config` is that
    module's own mapping, already checked by it; secrets in it are references (`env:NAME`,
    `file:PATH`), never values. `rate` None means the instance's default, `unlimited` no limit at all.
    """

    name: str
    kind: str
    config: Mapping[str, Any] = field(default_factory=dict)
    rate: Rate | None = None
    unlimited: bool = False
    max_in_flight: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "config": dict(self.config),
            "rate": None if self.rate is None else [self.rate.per_second, self.rate.burst],
            "unlimited": self.unlimited,
            "max_in_flight": self.max_in_flight,
        }

    def digest(self) -> str:
        """The identity of this spec; see the module."""
        return digest(self.to_json())

    @classmethod
    def from_json(cls, name: str, data: Mapping[str, Any]) -> TargetSpec:
        rate = data.get("rate")
        return cls(
            name=name,
            kind=data["kind"],
            config=data["config"],
            rate=None if rate is None else Rate(float(rate[0]), int(rate[1])),
            unlimited=data["unlimited"],
            max_in_flight=data["max_in_flight"],
        )


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """Something that can be run. `action` is the target's own mapping (`{"run": …}`, `{"python": …}`)."""

    key: DeploymentKey
    target: str
    action: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Json] = field(default_factory=dict)
    kickoff_time_arg: str | None = None
    owner: str | None = None
    runbook: str | None = None
    late_after: timedelta | None = None
    retry_for: timedelta | None = None
    completion_timeout: timedelta | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "action": dict(self.action),
            "parameters": dict(self.parameters),
            "kickoff_time_arg": self.kickoff_time_arg,
            "owner": self.owner,
            "runbook": self.runbook,
            "late_after": _seconds(self.late_after),
            "retry_for": _seconds(self.retry_for),
            **_later_words(completion_timeout=_seconds(self.completion_timeout)),
        }

    def digest(self) -> str:
        """The identity of this spec; see the module."""
        return digest(self.to_json())

    @classmethod
    def from_json(cls, key: DeploymentKey, data: Mapping[str, Any]) -> DeploymentSpec:
        return cls(
            key=key,
            target=data["target"],
            action=data["action"],
            parameters=data["parameters"],
            kickoff_time_arg=data["kickoff_time_arg"],
            owner=data["owner"],
            runbook=data["runbook"],
            late_after=_delta(data["late_after"]),
            retry_for=_delta(data["retry_for"]),
            completion_timeout=_delta(data.get("completion_timeout")),
        )


@dataclass(frozen=True, slots=True)
class TriggerSpec:
    """A trigger's whole, resolved spec.

    `schedule` is the mapping that `core.schedule.parse` takes, in the words of the triggers file
    (`{"cron": "30 2 * * *", "timezone": "Europe/Berlin"}`). `parameters` are the deployment's with the
    trigger's own laid over them. Durations are `timedelta`s; `late_after` and `retry_for` None mean the
    instance's default, as does `completion_timeout`; `max_age` None means without bound. `inactive_because`
    is why its source has it not active, for people.
    """

    schedule: Mapping[str, Any]
    target: str
    action: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Json] = field(default_factory=dict)
    kickoff_time_arg: str | None = None
    jitter: timedelta = timedelta()
    catch_up: CatchUp = CatchUp.ALL
    max_age: timedelta | None = None
    active: bool = True
    owner: str | None = None
    runbook: str | None = None
    late_after: timedelta | None = None
    retry_for: timedelta | None = None
    inactive_because: str | None = None
    overlap: Overlap = Overlap.ALLOW
    completion_timeout: timedelta | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "schedule": dict(self.schedule),
            "target": self.target,
            "action": dict(self.action),
            "parameters": dict(self.parameters),
            "kickoff_time_arg": self.kickoff_time_arg,
            "jitter": _seconds(self.jitter),
            "catch_up": self.catch_up.value,
            "max_age": _seconds(self.max_age),
            "active": self.active,
            "owner": self.owner,
            "runbook": self.runbook,
            "late_after": _seconds(self.late_after),
            "retry_for": _seconds(self.retry_for),
            **_later_words(
                overlap=None if self.overlap is Overlap.ALLOW else self.overlap.value,
                completion_timeout=_seconds(self.completion_timeout),
                inactive_because=self.inactive_because,
            ),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TriggerSpec:
        return cls(
            schedule=data["schedule"],
            target=data["target"],
            action=data["action"],
            parameters=data["parameters"],
            kickoff_time_arg=data["kickoff_time_arg"],
            jitter=timedelta(seconds=data["jitter"]),
            catch_up=CatchUp(data["catch_up"]),
            max_age=_delta(data["max_age"]),
            active=data["active"],
            owner=data["owner"],
            runbook=data["runbook"],
            late_after=_delta(data["late_after"]),
            retry_for=_delta(data["retry_for"]),
            inactive_because=data.get("inactive_because"),
            overlap=Overlap(data.get("overlap", "allow")),
            completion_timeout=_delta(data.get("completion_timeout")),
        )

    def digest(self) -> str:
        """The identity of this rule; see the module."""
        return digest(self.to_json())


@dataclass(frozen=True, slots=True)
class Step:
    """What was in force at a source from `since` on, until the next step. `spec` None: it was not there.

    `since` None: from when it is seen.
    """

    since: datetime | None
    spec: TriggerSpec | None


@dataclass(frozen=True, slots=True)
class TriggerEntry:
    """One trigger of a listing: its key, its spec, and the key it had before, if it was renamed.

    `since` is when its source put the spec in force, where the source knows: a trigger that is new here owes
    its slots from then on, and an edit begins then, instead of when it is seen. `last_slot` is when somebody
    else fired it last, as the source says: a trigger that is new here owes nothing up to then. `shadow` is
    where it starts if it is new, None as its listing says; it is no part of the spec, as where a trigger is
    later is for people to say. `earlier` is what was in force before, ascending, as far as the source knows:
    a trigger that is known here takes those steps that nobody has seen, each at its instant.
    """

    key: TriggerKey
    spec: TriggerSpec
    renamed_from: str | None = None
    since: datetime | None = None
    last_slot: datetime | None = None
    shadow: bool | None = None
    earlier: tuple[Step, ...] = ()

    def steps(self, digest: str | None, seen: datetime) -> tuple[Step, ...]:
        """The steps from a rule to this one; none where it is the same still, and was all the time.

        `digest` is the rule's that is known (None: it is deleted), in force from `seen` on: what was in force
        before then is known. The last step's spec is `self.spec`; its instant is when that came into force.
        """
        found: list[Step] = []
        last = digest
        unseen = [step for step in self.earlier if step.since is not None and step.since > seen]
        for step in [*unseen, Step(self.since, self.spec)]:
            rule = None if step.spec is None else step.spec.digest()
            if rule != last:
                found.append(step)
            last = rule
        return tuple(found)

    @property
    def old_key(self) -> TriggerKey | None:
        """`renamed_from` as a key: a name in the same deployment, `deployment/name`, or a whole key.

        Raises `InvalidInput` where it is none of them.
        """
        if self.renamed_from is None:
            return None
        parts = self.renamed_from.split("/")
        if len(parts) <= 2:
            deployment = parts[0] if len(parts) == 2 else self.key.deployment
            return TriggerKey(self.key.project, self.key.domain, deployment, parts[-1])
        return TriggerKey.parse(self.renamed_from)


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything that a source names, read whole.

    `source` is the source's name. `kept` are keys of entries that are there but could not be read: sync
    leaves what it has of them as it is, and `left_out` says why, for people. `shadow`: its new triggers start
    in shadow; None as the instance says.
    """

    source: str
    targets: tuple[TargetSpec, ...] = ()
    deployments: tuple[DeploymentSpec, ...] = ()
    triggers: tuple[TriggerEntry, ...] = ()
    kept: frozenset[TriggerKey] = frozenset()
    left_out: tuple[Problem, ...] = ()
    shadow: bool | None = None

    @property
    def complaint(self) -> str:
        """What people read of `left_out`: more than they mend in one go is counted."""
        shown = [str(problem) for problem in self.left_out[:20]]
        if len(self.left_out) > len(shown):
            shown.append(f"and {len(self.left_out) - len(shown):,} more")
        return "\n".join(shown)

    def digest(self) -> str:
        """The identity of the whole listing."""
        return digest(
            [
                self.source,
                sorted((target.name, target.to_json()) for target in self.targets),
                sorted((str(item.key), item.to_json()) for item in self.deployments),
                sorted((str(item.key), item.spec.to_json(), item.renamed_from) for item in self.triggers),
            ]
        )
