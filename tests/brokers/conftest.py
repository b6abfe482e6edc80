"""One Redis, one Docket worker and one Celery worker for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.brokers.redis_server import RedisServer
from tests.brokers.workers import Worker, celery_worker, docket_worker

PASSWORD = "correct-horse-battery"


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), PASSWORD)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def docket(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = docket_worker(redis_server, tmp_path_factory.mktemp("docket"))
    yield worker
    worker.kill()


@pytest.fixture(scope="session")
def celery(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = celery_worker(redis_server, tmp_path_factory.mktemp("celery"))
    yield worker
    worker.kill()
