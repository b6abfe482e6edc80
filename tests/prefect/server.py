"""A real Prefect 3.9 for the tests: its server, and its SDK in a process beside it.

Both run in Prefect's own environment (`tests/environments.py`) and are started by signals of readiness. The
server keeps its SQLite file, so that it can be killed and started again as it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.environments import environment, first_line

HERE = Path(__file__).parent
READY = 120
"""Seconds that a process may take to be there; six on a machine that has nothing else to do."""

_OFF = (
    "ANALYTICS_ENABLED",
    "UI_ENABLED",
    "SERVICES_SCHEDULER_ENABLED",
    "SERVICES_LATE_RUNS_ENABLED",
    "SERVICES_TRIGGERS_ENABLED",
    "SERVICES_FOREMAN_ENABLED",
    "SERVICES_CANCELLATION_CLEANUP_ENABLED",
    "SERVICES_PAUSE_EXPIRATIONS_ENABLED",
    "SERVICES_REPOSSESSOR_ENABLED",
)
"""Its scheduler, which Horarium replaces, and what no test needs."""


class PrefectServer:
    """A Prefect server on a loopback port, with a folder of its own. `settings` are more of its variables,
    without their `PREFECT_SERVER_`."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.settings = settings
        self._process: subprocess.Popen[str] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Where its API is."""
        return f"http://127.0.0.1:{self._port}/api"

    @property
    def database(self) -> str:
        """Where its SQLite file is, as Prefect's settings have it."""
        return f"sqlite+aiosqlite:///{self.home}/prefect.db"

    def begin(self) -> None:
        """Start it, without waiting for it; on the port that it had before, if it had one."""
        self.home.mkdir(parents=True, exist_ok=True)
        environ = {
            **_clean(os.environ),
            "PREFECT_HOME": str(self.home),
            "PREFECT_API_DATABASE_CONNECTION_URL": self.database,
            "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
            **{f"PREFECT_SERVER_{name}": "false" for name in _OFF},
            **{f"PREFECT_SERVER_{name}": value for name, value in self.settings.items()},
        }
        with (self.home / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                [str(environment("prefect")), str(HERE / "serve.py"), str(self._port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
            )

    def wait(self) -> None:
        """Wait until it answers. Raises `AssertionError` with its log."""
        assert self._process is not None
        line = first_line(self._process, READY)
        assert line.startswith("ready "), f"Prefect did not start: {(self.home / 'server.log').read_text()}"
        self._port = int(line.split()[1])

    def start(self) -> None:
        """Start it and wait."""
        self.begin()
        self.wait()

    def kill(self) -> None:
        """End it as a power failure does."""
        assert self._process is not None
        self._process.kill()
        self._reap()

    def signal(self, number: int) -> None:
        """Such as SIGSTOP: it takes connections, and answers nothing until SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.terminate()
            self._reap()

    def _reap(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.wait(timeout=30)
        process.stdin.close()
        process.stdout.close()

    # its API, as anybody calls it

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and data of a call of the REST API."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                raw = response.read()
                return response.status, json.loads(raw) if raw else None
        except urllib.error.HTTPError as error:
            raw = error.read()
            return error.code, json.loads(raw) if raw else None

    def good(self, method: str, path: str, body: object = None) -> Any:
        """The data of a call that is to succeed."""
        for _ in range(20):
            status, data = self.call(method, path, body)
            if status != 503:  # its SQLite is busy
                break
        assert status < 300, f"{method} {path} answered {status}: {data}"
        return data

    def flow(self, name: str) -> str:
        """The id of a flow of that name, made if it is not there."""
        return str(self.good("POST", "/flows/", {"name": name})["id"])

    def deployment(self, flow: str, name: str, **words: Any) -> str:
        """The id of a deployment, made or replaced as its REST API does it."""
        words.setdefault("enforce_parameter_schema", False)
        body = {"flow_id": self.flow(flow), "name": name, **words}
        return str(self.good("POST", "/deployments/", body)["id"])

    def schedules(self, deployment: str) -> list[dict[str, Any]]:
        """A deployment's schedules, by slug."""
        found: list[dict[str, Any]] = self.good("GET", f"/deployments/{deployment}")["schedules"]
        return sorted(found, key=lambda item: str(item["slug"]))

    def flow_runs(self, deployment: str, *states: str) -> list[dict[str, Any]]:
        """A deployment's flow runs in these states (any, if none is given), by expected time."""
        which: dict[str, Any] = {"deployment_id": {"any_": [deployment]}}
        if states:
            which["state"] = {"type": {"any_": list(states)}}
        found: list[dict[str, Any]] = []
        while page := self.good("POST", "/flow_runs/filter", {"flow_runs": which, "offset": len(found)}):
            found += page
        return sorted(found, key=lambda item: str(item["expected_start_time"]))

    def slots(self, deployment: str, *states: str) -> list[datetime]:
        """When its flow runs are to start, in order."""
        return [
            datetime.fromisoformat(item["expected_start_time"])
            for item in self.flow_runs(deployment, *states)
        ]


class Sdk:
    """Prefect's own SDK, in a process of its environment that does what it is asked, one line each."""

    def __init__(self, home: Path, server: PrefectServer) -> None:
        environ = {
            **_clean(os.environ),
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": server.url,
            "PREFECT_API_DATABASE_CONNECTION_URL": server.database,
        }
        self._process = subprocess.Popen(
            [str(environment("prefect")), str(HERE / "sdk.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=HERE,
        )

    def ask(self, what: str, **words: Any) -> Any:
        """The answer of one of the functions of `sdk.py`. Raises `AssertionError` with what it raised."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"what": what, **words}) + "\n")
        self._process.stdin.flush()
        line = first_line(self._process, READY)
        assert line, "the SDK's process ended"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()


def _clean(environ: Any) -> dict[str, str]:
    """The environment without what a developer has set for a Prefect of their own, or for pytest."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("PREFECT_") and name not in ("PYTHONPATH", "PYTEST_CURRENT_TEST")
    }
