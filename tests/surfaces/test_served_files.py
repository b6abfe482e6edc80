"""What `serve --apply` makes of files under it: what can't be read takes nothing away, and says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from horarium import wiring
from horarium.app.paging import Paging
from horarium.config import load_settings

ONE = "source: one\ndeployments: {tick: {run: date, every: 1h}}\n"
TWO = "source: two\ndeployments: {tock: {run: date, every: 1h}}\n"


class Served:
    """An instance whose syncer passes when a test says so."""

    def __init__(self, root: Path, *paths: str) -> None:
        settings = load_settings(flags={"db": f"sqlite:///{root / 'horarium.db'}"})
        wiring.migrate(settings)
        self.instance = wiring.build(settings, apply=[str(root / item) for item in paths])

    async def synced(self) -> Mapping[str, Any]:
        """The error of each source after a pass."""
        syncer = self.instance.service.parts.syncer
        assert syncer is not None
        await syncer.run_once()
        return {item["name"]: item["error"] for item in (await self.instance.queries.status())["sources"]}

    async def schedules(self) -> Mapping[str, Any]:
        page = await self.instance.queries.triggers(Paging())
        return {item["deployment"]: item["schedule"]["every"] for item in page["items"]}


@pytest.mark.parametrize("gone", ["file", "folder"])
async def test_what_is_gone_withdraws_nothing_says_so_and_costs_itself_alone(
    tmp_path: Path, gone: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    one = folder / "one.yaml"
    one.write_text(ONE)
    (tmp_path / "two.yaml").write_text(TWO)
    served = Served(tmp_path, "folder/one.yaml" if gone == "file" else "folder", "two.yaml")
    await served.instance.store.open()
    try:
        assert await served.synced() == {"one": None, "two": None}

        rmtree(folder)
        (tmp_path / "two.yaml").write_text(TWO.replace("1h", "2h"))
        errors = await served.synced()
        assert "No such file" in errors["one"]
        assert errors["two"] is None
        assert await served.schedules() == {"tick": "1h", "tock": "2h"}

        folder.mkdir()
        one.write_text(ONE)
        assert await served.synced() == {"one": None, "two": None}
    finally:
        await served.instance.store.close()
