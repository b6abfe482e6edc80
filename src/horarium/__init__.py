"""Horarium: a durable schedule service. One run a slot, nothing lost, nothing silent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horarium.embedded import Horarium as Horarium
    from horarium.targets.inline import current_run as current_run

__version__ = "0.1.0"

__all__ = ["Horarium", "__version__", "current_run"]


def __getattr__(name: str) -> Any:
    # The command line imports this package too, and must not wait for a server's libraries.
    if name == "Horarium":
        from horarium.embedded import Horarium

        return Horarium
    if name == "current_run":
        from horarium.targets.inline import current_run

        return current_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
