"""One Prefect server for all tests of this folder, and one process with its SDK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.prefect.server import PrefectServer, Sdk


@pytest.fixture(scope="session")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """A real server, without its scheduler. Tests share it: each has deployments of its own."""
    server = PrefectServer(tmp_path_factory.mktemp("prefect"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def sdk(prefect: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sdk]:
    """Prefect's SDK, which speaks to that server."""
    process = Sdk(tmp_path_factory.mktemp("prefect-sdk"), prefect)
    yield process
    process.close()
