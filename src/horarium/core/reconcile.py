"""The three-way reconcile of a source's listing with what the store has of it. Pure.

gone → withdrawn, changed → edited, new → added, same → untouched. The identity of a rule is the digest of
its spec; one that was another for a while, unseen, and is as it was again has changed too. An entry that
could not be read (`Listing.kept`) is neither gone nor changed. What another manager owns is a conflict, and
a pass that would withdraw a large part of a source stops until allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from horarium.core.keys import TriggerKey
from horarium.core.revision import Status, next_slot
from horarium.core.spec import DeploymentSpec, Listing, Step, TargetSpec, TriggerEntry
from horarium.errors import Problem, shown

_Part = TypeVar("_Part")

API = "api"
"""The source name that stands for people through the API; no file may have it."""

WITHDRAW_SHARE = 0.10
WITHDRAW_FREE = 5
"""A pass may withdraw this many triggers, or this share of a source's, without being allowed to."""


@dataclass(frozen=True, slots=True)
class Existing:
    """What the store has under a key: enough to tell "same" from "changed" without its whole spec.

    `effective_from` is its present revision's: what was in force before is known.
    """

    id: int
    key: TriggerKey
    digest: str
    status: Status
    managed_by: str | None
    effective_from: datetime

    def steps_to(self, entry: TriggerEntry) -> tuple[Step, ...]:
        """What came since at the source, the last as it is listed; none where nothing did."""
        deleted = self.status is Status.DELETED
        return entry.steps(None if deleted else self.digest, self.effective_from)


@dataclass(frozen=True, slots=True)
class Known:
    """What the store has that a listing may touch: its own triggers, and whatever its keys meet."""

    triggers: Mapping[TriggerKey, Existing]
    targets: Mapping[str, tuple[str | None, str]]
    """name → (source, digest), withdrawn ones left out"""
    deployments: Mapping[str, tuple[str | None, str]]
    """key → (source, digest), withdrawn ones left out"""


@dataclass(frozen=True, slots=True)
class Edited:
    """An entry whose rule changed, or that comes back from a tombstone, or that was renamed."""

    existing: Existing
    entry: TriggerEntry

    @property
    def renamed(self) -> bool:
        return self.existing.key != self.entry.key


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What a pass would do. With `problems` it must do nothing, nor when `refused`: too much would go."""

    added: tuple[TriggerEntry, ...] = ()
    edited: tuple[Edited, ...] = ()
    withdrawn: tuple[Existing, ...] = ()
    unchanged: int = 0
    targets: tuple[TargetSpec, ...] = ()
    withdrawn_targets: tuple[str, ...] = ()
    deployments: tuple[DeploymentSpec, ...] = ()
    withdrawn_deployments: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    refused: str | None = None

    @property
    def empty(self) -> bool:
        """Whether the pass changes nothing."""
        return not (
            self.added
            or self.edited
            or self.withdrawn
            or self.targets
            or self.withdrawn_targets
            or self.deployments
            or self.withdrawn_deployments
        )


def reconcile(
    listing: Listing,
    known: Known,
    now: datetime,
    *,
    allow_withdraw: bool = False,
    partial: bool = False,
) -> Reconciled:
    """Compare a listing with what is known. `partial`: it is not the whole source, so nothing is gone."""
    source = listing.source
    problems: list[Problem] = []
    added: list[TriggerEntry] = []
    edited: list[Edited] = []
    unchanged = 0
    seen: set[TriggerKey] = set()
    for entry in listing.triggers:
        seen.add(entry.key)
        existing = known.triggers.get(entry.key)
        old_key = entry.old_key
        if old_key is not None:
            old = known.triggers.get(old_key)
            if old is not None and old.status is not Status.DELETED and existing is None:
                seen.add(old_key)
                existing = old
        if existing is not None and existing.status is not Status.DELETED and existing.managed_by != source:
            problems.append(
                _taken("trigger", str(existing.key), _pointer(entry.key), existing.managed_by, source)
            )
            continue
        if existing is None:
            added.append(entry)
        elif existing.key != entry.key or existing.steps_to(entry):
            edited.append(Edited(existing, entry))
        else:
            unchanged += 1
            continue
        renamed_alone = (
            existing is not None
            and existing.status is not Status.DELETED
            and existing.digest == entry.spec.digest()
        )
        if not renamed_alone:
            problems += _past(entry, now)
    problems += _twice(listing)
    problems += _without_target(listing, known)
    problems += _old_names_in_use(listing, known)
    withdrawn = tuple(
        existing
        for key, existing in known.triggers.items()
        if not partial
        and existing.managed_by == source
        and existing.status is not Status.DELETED
        and key not in seen
        and key not in listing.kept
    )
    mine = sum(
        1
        for existing in known.triggers.values()
        if existing.managed_by == source and existing.status is not Status.DELETED
    )
    refused = None
    if not allow_withdraw and len(withdrawn) > max(WITHDRAW_FREE, mine * WITHDRAW_SHARE):
        refused = (
            f"this pass would withdraw {len(withdrawn)} of the {mine} triggers of {source!r}, more than "
            f"{WITHDRAW_SHARE:.0%} and more than {WITHDRAW_FREE}; nothing was changed"
        )
    targets, gone_targets, target_problems = _parts(
        "target",
        {item.name: (item, item.digest()) for item in listing.targets},
        known.targets,
        source,
        "/targets/",
    )
    deployments, gone_deployments, deployment_problems = _parts(
        "deployment",
        {str(item.key): (item, item.digest()) for item in listing.deployments},
        known.deployments,
        source,
        "/deployments/",
    )
    if listing.kept or partial:
        gone_targets = gone_deployments = ()
    return Reconciled(
        tuple(added),
        tuple(edited),
        withdrawn,
        unchanged,
        targets,
        gone_targets,
        deployments,
        gone_deployments,
        (*problems, *target_problems, *deployment_problems),
        refused,
    )


def _past(entry: TriggerEntry, now: datetime) -> list[Problem]:
    """A one-off instant is in the future when new or changed; later it may be as old as it likes."""
    at = entry.spec.schedule.get("at")
    if at is None or not entry.spec.active:
        return []
    if next_slot(entry.spec, str(entry.key), now) is not None:
        return []
    return [
        Problem(
            f"{_pointer(entry.key)}/at",
            shown(at),
            "a one-off instant lies in the future when it is new or changed",
            "give a later instant, or use 'horarium triggers run' to run it once now",
            code="past",
        )
    ]


def _without_target(listing: Listing, known: Known) -> list[Problem]:
    """A trigger's target is named by its source, by another one, or is the one that is always there."""
    there = {"local", *known.targets, *(target.name for target in listing.targets)}
    return [
        Problem(
            f"/deployments/{entry.key.deployment}/target",
            shown(entry.spec.target),
            "a deployment runs on a target that some source defines",
            f"define it under 'targets', or use one of {', '.join(sorted(there))}",
            code="target",
        )
        for entry in listing.triggers
        if entry.spec.target not in there
    ]


def _twice(listing: Listing) -> list[Problem]:
    keys = [entry.key for entry in listing.triggers]
    if len(set(keys)) == len(keys):
        return []
    doubled = sorted({key for key in keys if keys.count(key) > 1})
    return [
        Problem(
            _pointer(key), str(key), "a key stands once in a source", "rename one of them", code="duplicate"
        )
        for key in doubled
    ]


def _old_names_in_use(listing: Listing, known: Known) -> list[Problem]:
    """A trigger becomes one other: its old name is not listed any more, and no second entry claims it."""
    listed = {entry.key for entry in listing.triggers} | listing.kept
    claimed: set[TriggerKey] = set()
    problems: list[Problem] = []
    for entry in listing.triggers:
        old = entry.old_key
        if old is None or entry.key in known.triggers or old not in known.triggers:
            continue  # it has been renamed already, or there is nothing to rename
        if old in listed or old in claimed:
            problems.append(
                Problem(
                    f"{_pointer(entry.key)}/renamed_from",
                    shown(entry.renamed_from),
                    "a trigger is renamed to one other, and its old name stands nowhere else in the source",
                    "take the old entry out, or leave 'renamed_from' out to make a new trigger",
                    code="renamed",
                )
            )
        claimed.add(old)
    return problems


def _pointer(key: TriggerKey) -> str:
    return f"/deployments/{key.deployment}/triggers/{key.name}"


def _taken(kind: str, name: str, pointer: str, owner: str | None, source: str) -> Problem:
    whose = f"source {owner!r}" if owner != API else "people through the API"
    return Problem(
        pointer,
        name,
        f"this {kind} is managed by {whose}, so source {source!r} can't define it",
        "rename it, or withdraw it there first",
        code="managed",
    )


def _parts(
    kind: str,
    listed: Mapping[str, tuple[_Part, str]],
    known: Mapping[str, tuple[str | None, str]],
    source: str,
    base: str,
) -> tuple[tuple[_Part, ...], tuple[str, ...], list[Problem]]:
    """Targets or deployments: those to write, the names of those to withdraw, and what is in the way.

    What another source defines alike is shared; only a different definition is in the way.
    """
    write: list[_Part] = []
    problems: list[Problem] = []
    for name, (item, digest) in listed.items():
        owner, old = known.get(name, (source, ""))
        if owner != source and digest != old:
            problems.append(_taken(kind, name, base + name, owner, source))
        elif owner == source and digest != old:
            write.append(item)
    gone = tuple(name for name, (owner, _) in known.items() if owner == source and name not in listed)
    return tuple(write), gone, problems
