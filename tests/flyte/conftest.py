"""An instance that serves Flyte's API, on SQLite and again on PostgreSQL; and Flyte's own SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.environments import environment
from tests.flyte.api import Api, open_api
from tests.flyte.backend import Backend, serving
from tests.flyte.reading import Reader
from tests.flyte.sdk import Sdk
from tests.fundamentals.house import House
from tests.store.conftest import postgres as postgres  # the server's fixture, for this folder too
from tests.surfaces.api_world import World
from tests.surfaces.conftest import world as world


@pytest.fixture
async def api(world: World) -> AsyncIterator[Api]:
    async with open_api(world) as opened:
        yield opened


@pytest.fixture(scope="session")
def sdk_python() -> Path:
    """The interpreter of the environment with Flyte's SDK."""
    return environment("flyte-sdk")


@pytest.fixture
def sdk(sdk_python: Path, tmp_path: Path) -> Sdk:
    """Flyte's SDK in a folder of its own."""
    return Sdk(sdk_python, tmp_path)


@pytest.fixture
async def backend() -> Backend:
    return Backend()


@pytest.fixture
async def url(backend: Backend) -> AsyncIterator[str]:
    async with serving(backend) as url:
        yield url


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with House(tmp_path) as house:
        yield house


@pytest.fixture
async def reader(house: House, url: str) -> Reader:
    return Reader(house, url)
