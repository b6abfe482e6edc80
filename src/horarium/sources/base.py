"""The contract of a source: where triggers are kept when not here.

A source names its triggers, and is listed whole: what it doesn't name any more is withdrawn. So a source
that can't be read whole must say so (`SourceUnavailable`), and one that holds a mistake must name it
(`InvalidInput`); neither ever answers with a shorter listing, because a shorter listing withdraws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from horarium.core.keys import TriggerKey
from horarium.core.shadow import TheirRun
from horarium.core.spec import Json, Listing, TargetSpec
from horarium.errors import HorariumError


class SourceUnavailable(HorariumError):
    """A source could not be read whole just now. Nothing of it is changed; it is read again later."""

    def __init__(self, source: str, reason: str) -> None:
        self.source, self.reason = source, reason
        super().__init__(f"source {source!r} can't be read: {reason}")


class Source(Protocol):
    """One source. `read` and `version` may be called from one task at a time."""

    @property
    def name(self) -> str:
        """The name under which the store keeps what this source manages."""
        ...

    async def version(self) -> str:
        """A token of the content as it is now: while it stays the same, so does what `read` returns.

        Cheap, so that an unchanged source costs no parsing. Raises `SourceUnavailable`.
        """
        ...

    async def read(self) -> Listing:
        """Everything that the source names. Raises `SourceUnavailable`, or `InvalidInput` if it is wrong."""
        ...


class Incumbent(Protocol):
    """The scheduler in whose shadow triggers are: what it ran."""

    async def runs(
        self, triggers: Sequence[TriggerKey], low: datetime, high: datetime
    ) -> Mapping[TriggerKey, Sequence[TheirRun]]:
        """The runs that it made of these triggers for slots in `(low, high]`, or in that time.

        More is harmless. Not those that people asked for. Raises `SourceUnavailable` where it can't be asked.
        """
        ...


class IncumbentText(Incumbent, Protocol):
    """One that is told as text, whole."""

    @property
    def triggers(self) -> Sequence[TriggerKey]:
        """All triggers that it names."""
        ...


class Incumbents(Protocol):
    """Where to learn what another scheduler ran. `sources/incumbents.py` is one; `wiring` passes it."""

    def of_text(self, text: str) -> IncumbentText:
        """One whose runs are these lines. Raises `InvalidInput`."""
        ...

    def of_target(self, spec: TargetSpec) -> Incumbent | None:
        """The scheduler of the system that a target fires into; None where its kind can't be asked."""
        ...


class KindWords(Protocol):
    """What a kind of target says about its words."""

    @property
    def action_keys(self) -> tuple[str, ...]:
        """The fields that a deployment on such a target may have beside the common ones."""
        ...

    @property
    def completes_with(self) -> str:
        """What makes a deployment's runs report their end, where that is a choice; else empty."""
        ...

    @property
    def cancels(self) -> bool:
        """Whether such a target can cancel a run that it has."""
        ...

    def completes(self, action: Mapping[str, Any]) -> bool:
        """Whether such a target says when a run of this action has ended."""
        ...


class TargetChecks(Protocol):
    """How a source checks what its entries say to targets. The module `targets.registry` is one; `wiring`
    passes it, so that no source knows the targets themselves."""

    def kinds(self) -> tuple[str, ...]:
        """The words of all kinds, sorted."""
        ...

    def kind(self, name: object, pointer: str = ...) -> KindWords:
        """The kind of that name."""
        ...

    def check_config(self, kind_name: str, config: Mapping[str, Any], pointer: str) -> dict[str, Any]:
        """The normalised config of a target. Raises `InvalidInput` with every problem."""
        ...

    def check_action(
        self, kind_name: str, action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str
    ) -> dict[str, Any]:
        """The normalised action of a deployment. Raises `InvalidInput` with every problem."""
        ...

    def check_use(
        self, kind_name: str, config: Mapping[str, Any] | None, action: Mapping[str, Any], pointer: str
    ) -> None:
        """Raises `InvalidInput` for a checked action that a target with this checked config can't serve.

        `config` is None where it is wrong itself.
        """
        ...
