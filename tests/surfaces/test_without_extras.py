"""`pip install horarium` without the extra `postgres`: SQLite works, and PostgreSQL says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("asyncpg", "greenlet"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Missing())
from horarium.cli.main import run
sys.exit(run(["db", "upgrade", "--db", sys.argv[1]]))
"""


def upgrade(url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, url], capture_output=True, text=True, timeout=60, check=False
    )


def test_sqlite_needs_no_driver_of_postgresql(tmp_path: Path) -> None:
    done = upgrade(f"sqlite:///{tmp_path}/horarium.db")
    assert done.returncode == 0, done.stderr


def test_postgresql_without_its_driver_says_what_to_install() -> None:
    done = upgrade("postgresql://user@localhost/horarium")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "horarium[postgres]" in done.stderr
