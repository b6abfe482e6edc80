"""A real Ray 2.60 for the tests: a cluster of one node, which runs in an environment of its own.

It starts in five seconds if its bytecode is there (`tests/environments.py`), and takes a job in about one.
Processor time: 5 s for the start and 0.5 s a job.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.environments import environment, first_line

SERVE = Path(__file__).parent / "serve.py"
MARK = "HORARIUM_TESTS_RAY"
READY = 240
"""Seconds that it may take to be there; five on a machine that has little else to do."""
GONE = 30.0
"""Seconds that its processes may take to end, after it has said that it ends; two, for the most part."""


class RayCluster:
    """A cluster that takes jobs of whoever has `token`. Twenty processes, 700 MB."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.url = ""
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # AF_UNIX: a path has 107 bytes at most
        self._process: subprocess.Popen[str] | None = None
        self._dashboard = 0

    def start(self) -> None:
        """Returns once it takes jobs. Raises `AssertionError` with what it said."""
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHON"))},
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # not of several machines: it listens on loopback alone
            "RAY_DASHBOARD_STARTUP_TIMEOUT_S": str(READY),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            MARK: self._folder,
        }
        with (Path(self._folder) / "log").open("w") as log:
            self._process = subprocess.Popen(
                [str(environment("ray")), str(SERVE), self._folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
                start_new_session=True,
            )
        line = first_line(self._process, READY)
        assert line.startswith("ready "), f"Ray did not start: {(Path(self._folder) / 'log').read_text()}"
        _, self.url, pid = line.split()
        self._dashboard = int(pid)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """While this is entered, it takes connections, and answers nothing."""
        os.kill(self._dashboard, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._dashboard, signal.SIGCONT)

    def stop(self) -> None:
        """End it. Raises `AssertionError` if a process of it is left; that is killed."""
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            try:
                self._process.wait(GONE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            until = time.monotonic() + GONE
            while (left := self._processes()) and (patience := until - time.monotonic()) > 0:
                _await_end(next(iter(left)), patience)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert not left, f"Ray has left processes: {left}"
        shutil.rmtree(self._folder)

    def _processes(self) -> dict[int, str]:
        """What runs of it, and of its jobs, which have sessions of their own."""
        assert self._process is not None
        mark, found = f"{MARK}={self._folder}".encode(), dict[int, str]()
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                name, _, rest = (place / "stat").read_text().rpartition(")")
                state, _, _, session, *_ = rest.split()
                ours = int(session) == self._process.pid or mark in (place / "environ").read_bytes()
                if ours and state != "Z":
                    found[int(place.name)] = name
        return found


def _await_end(pid: int, patience: float) -> None:
    """Until a process has ended that is nobody's child here, or for so many seconds."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            select.select([process], [], [], patience)
        finally:
            os.close(process)
