"""The instance that tests of the API get: on SQLite, and again on PostgreSQL.

A module with a `world` of its own runs on SQLite only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.store.conftest import PostgresServer
from tests.store.conftest import postgres as postgres  # the server's fixture, for this folder too
from tests.surfaces.api_world import World, open_postgres_world, open_world


@pytest.fixture(params=["sqlite", "postgres"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        async with open_postgres_world(await server.emptied()) as opened:
            yield opened
        return
    async with open_world(tmp_path) as opened:
        yield opened
