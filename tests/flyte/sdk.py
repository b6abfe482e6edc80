"""Flyte's SDK and its command as users have them: unmodified, in an environment of their own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ran:
    """What a command printed, and its exit code."""

    code: int
    out: str


@dataclass(frozen=True)
class Sdk:
    """The SDK in a folder with the user's configuration and code."""

    python_path: Path
    folder: Path

    def configure(self, url: str) -> None:
        """Flyte's own configuration file, as its documentation has it for a server without TLS."""
        endpoint = "dns:///" + url.removeprefix("http://")
        (self.folder / "config.yaml").write_text(
            f"admin:\n  endpoint: {endpoint}\n  insecure: true\n"
            "task:\n  project: proj\n  domain: development\n"
        )

    def flyte(self, *arguments: str) -> Ran:
        """The command `flyte`."""
        return self._run([str(self.python_path.with_name("flyte")), "-c", "config.yaml", *arguments])

    def python(self, program: str) -> Ran:
        """A program that uses the SDK."""
        return self._run([str(self.python_path), "-c", program])

    def _run(self, command: list[str]) -> Ran:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FLYTE"))}
        env |= {
            "HOME": str(self.folder),
            "FLYTE_DISABLE_TELEMETRY": "true",
            "NO_COLOR": "1",
            "TERM": "dumb",
            "COLUMNS": "200",
        }
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return Ran(done.returncode, done.stdout)
