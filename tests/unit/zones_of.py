"""Time zones of tests: a loader that overlays files of a folder, and zones of the standard library.

`tests/cases/tzdata-2025b` holds two zones as the release 2025b of the tz database has them. Since then
Morocco and Cuba have changed their rules for the years ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from zoneinfo import ZoneInfo

from horarium.core.zone import TzdataLoader, Zones

CASES = Path(__file__).parent.parent / "cases"


class Overlay:
    """The `tzdata` package, with some zones from an older release."""

    def __init__(self, folder: Path, version: str) -> None:
        self._under = TzdataLoader()
        self._files = {path.stem.replace("-", "/"): path for path in folder.glob("*.tzif")}
        self._version = version

    def load(self, name: str) -> bytes | None:
        path = self._files.get(name)
        return path.read_bytes() if path else self._under.load(name)

    def names(self) -> Sequence[str]:
        return self._under.names()

    def tzdata_version(self) -> str:
        return self._version


ZONES_2025B = Zones(Overlay(CASES / "tzdata-2025b", "2025b"))


@cache
def library_zone(name: str) -> ZoneInfo:
    """The standard library's reading of the same data; never the host's files."""
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)
