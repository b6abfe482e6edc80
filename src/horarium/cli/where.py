"""Where a command works: what was typed of `--server`, `--db` and `--config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horarium.config import Settings


@dataclass(frozen=True, slots=True)
class Where:
    """What was typed of `--server`, `--db` and `--config`."""

    server: str | None = None
    db: str | None = None
    config: str | None = None

    def settings(self, **more: object) -> Settings:
        """The settings with these flags. Raises `InvalidInput`."""
        from horarium.config import load_settings

        return load_settings(config=self.config, flags={"server": self.server, "db": self.db, **more})
