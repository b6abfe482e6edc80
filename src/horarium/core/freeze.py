"""Freezes: what can be stopped, and what a release makes of the runs that were owed meanwhile. Pure.

A freeze stops one target or all of them (a flag that claims look at: nothing is taken, but what is due is
seen), or all triggers of one deployment or project (their runs are `held`). It is not a pause: slots go on
being planned, nothing is skipped, and only a release ends it. That release asks one question, because what
was owed meanwhile may be hundreds of runs that nobody wants any more.

The catch-up guard asks the same question by itself:

    none ---- a look after a gap ----> open ---- more owed runs of the gap than the limit ----> held
      ^                                  |                                                       |
      +---- all of the gap is planned, --+                                                       |
      |     and nothing of it waits                                                              |
      +------------------------------------- a person releases ---------------------------------+
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from horarium.core.keys import DeploymentKey
from horarium.core.run import Run


class ScopeKind(StrEnum):
    """What a freeze can stop."""

    ALL = "all"
    TARGET = "target"
    PROJECT = "project"
    DEPLOYMENT = "deployment"


@dataclass(frozen=True, slots=True)
class Scope:
    """Everything, or one target, project or deployment. `key` is its name or key; empty for everything."""

    kind: ScopeKind
    key: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.key}" if self.key else "everything"

    @property
    def of_targets(self) -> bool:
        """Whether it is a flag on targets; else it is a mark on triggers."""
        return self.kind in (ScopeKind.ALL, ScopeKind.TARGET)

    @classmethod
    def target(cls, name: str) -> Scope:
        return cls(ScopeKind.TARGET, name)

    @classmethod
    def project(cls, name: str) -> Scope:
        return cls(ScopeKind.PROJECT, name)

    @classmethod
    def deployment(cls, key: DeploymentKey) -> Scope:
        return cls(ScopeKind.DEPLOYMENT, str(key))


EVERYTHING = Scope(ScopeKind.ALL)


class Owed(StrEnum):
    """What a release makes of automatic runs that came due and were never claimed."""

    ALL = "all"
    LATEST = "latest"
    DROP = "drop"


class GuardState(StrEnum):
    """Of a target's catch-up guard; see the module."""

    NONE = "none"
    OPEN = "open"
    HELD = "held"


def given_up(owed: Owed, runs: Iterable[Run]) -> list[Run]:
    """Which of the owed runs become skips: none, all but the newest of each trigger, or all."""
    runs = list(runs)
    match owed:
        case Owed.ALL:
            return []
        case Owed.DROP:
            return runs
        case Owed.LATEST:
            newest: dict[int, Run] = {}
            for run in runs:
                known = newest.get(run.trigger_id)
                if known is None or run.scheduled_time > known.scheduled_time:
                    newest[run.trigger_id] = run
            kept = {run.id for run in newest.values()}
            return [run for run in runs if run.id not in kept]
