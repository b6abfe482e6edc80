"""A real Redis of the tests' own: a free port on loopback, and all that was written survives a kill (AOF)."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from pathlib import Path

import redis

PATIENCE = 20.0


class RedisServer:
    """Started by `start`, killed by `kill`; a start after that has the data and the port of before."""

    def __init__(self, folder: Path, password: str = "") -> None:
        self.folder = folder
        self.password = password
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.database(0)

    def database(self, number: int) -> str:
        user = f":{self.password}@" if self.password else ""
        return f"redis://{user}127.0.0.1:{self.port}/{number}"

    def start(self) -> None:
        """Returns once it answers, with its data loaded."""
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "daemonize": "no",
        }
        if self.password:
            options["requirepass"] = self.password
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        log = (self.folder / "redis.log").open("ab")
        self._process = subprocess.Popen(["redis-server", *arguments], stdout=log, stderr=log)
        log.close()
        with self.client() as client:
            for _ in range(int(PATIENCE / 0.02)):
                with contextlib.suppress(redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
                    client.ping()
                    return
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.02)
        self.kill()
        raise AssertionError(f"redis-server did not start:\n{(self.folder / 'redis.log').read_text()}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
            self._process = None

    def freeze(self) -> None:
        """It takes connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self, number: int = 0) -> redis.Redis:
        return redis.Redis.from_url(self.database(number))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
