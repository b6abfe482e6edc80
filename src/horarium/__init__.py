"""Horarium: a durable schedule service. One run a slot, nothing lost, nothing silent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horarium.embedded import Horarium as Horarium
    from horarium.embedded import current_run as current_run

__version__ = "0.1.0"

__all__ = ["Horarium", "__version__", "current_run"]


def __getattr__(name: str) -> Any:
    # The command line imports this package too, and must not wait for a server's libraries.
    if name in ("Horarium", "current_run"):
        from horarium import embedded

        return getattr(embedded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
