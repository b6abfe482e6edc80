"""Histories that are told on both databases ask for `each_database`."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fundamentals.house import House
from tests.store.conftest import PostgresServer, postgres

__all__ = ["each_database", "postgres"]


@pytest.fixture(params=["sqlite", "postgres"])
def each_database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the house of a test keeps its rows."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        with ThreadPoolExecutor(1) as thread:  # a loop of its own: not every test here has one
            emptied = thread.submit(lambda: asyncio.run(server.emptied()))
        monkeypatch.setattr(House, "postgres", emptied.result())
