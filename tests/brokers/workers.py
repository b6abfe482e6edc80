"""Real workers of Docket and of Celery, each a process that tests start, kill and wait for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.brokers.redis_server import PATIENCE, RedisServer

ROOT = Path(__file__).parents[2]
NOTES = 15
"""The database that the tasks write their notes to."""


class Worker:
    """A worker in a process group of its own, so that a kill takes its children along."""

    def __init__(self, server: RedisServer, arguments: Sequence[str], folder: Path) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "NOTES_URL": server.database(NOTES),
            "BROKER_URL": server.database(1),
            "BACKEND_URL": server.database(2),
        }
        with (folder / "worker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """As a machine that loses its power."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)


def docket_worker(server: RedisServer, folder: Path) -> Worker:
    """Redelivers a task of a worker that is gone after 2 s."""
    arguments = ["docket", "worker", "--url", server.url, "--tasks", "tests.brokers.work:DOCKET_TASKS"]
    return Worker(server, [*arguments, "--redelivery-timeout", "2s"], folder)


def celery_worker(server: RedisServer, folder: Path) -> Worker:
    quiet = ["--without-gossip", "--without-mingle", "--loglevel", "warning"]
    return Worker(server, ["celery", "-A", "tests.brokers.celery_app", "worker", *quiet], folder)


class Notes:
    """What the tasks wrote down."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def seen(self, name: str, times: int = 1) -> list[dict[str, object]]:
        """The parameters of each time that a run began, once there are so many of them."""
        with self._server.client(NOTES) as client:
            found = [client.blpop([f"seen:{name}"], PATIENCE) for _ in range(times)]
            if None in found:
                raise TimeoutError(f"{name} did not begin {times} times within {PATIENCE:g} s")
            client.lpush(f"seen:{name}", *(value for _, value in reversed(found)))
            return [json.loads(value) for value in client.lrange(f"seen:{name}", 0, -1)]

    def let_go(self, name: str) -> None:
        with self._server.client(NOTES) as client:
            client.rpush(f"go:{name}", "now")

    def let_go_all(self) -> None:
        """Whatever still holds goes on: no test leaves a worker's place taken."""
        with self._server.client(NOTES) as client:
            for key in client.keys("seen:*"):
                client.rpush(b"go:" + key.removeprefix(b"seen:"), "now")
