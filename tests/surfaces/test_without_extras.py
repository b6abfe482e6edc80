"""`pip install horarium` without extras: what needs none works, and what needs one says which."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys

EXTRAS = ("asyncpg", "greenlet", "flyteidl2", "connectrpc", "docket", "celery", "redis")

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Missing())
from horarium.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def horarium(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def upgrade(url: str) -> subprocess.CompletedProcess[str]:
    return horarium("db", "upgrade", "--db", url)


def test_sqlite_needs_no_driver_of_postgresql(tmp_path: Path) -> None:
    done = upgrade(f"sqlite:///{tmp_path}/horarium.db")
    assert done.returncode == 0, done.stderr


def test_postgresql_without_its_driver_says_what_to_install() -> None:
    done = upgrade("postgresql://user@localhost/horarium")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "horarium[postgres]" in done.stderr


def test_a_target_of_flyte_without_its_extra_says_what_to_install(tmp_path: Path) -> None:
    file = tmp_path / "triggers.yaml"
    file.write_text("targets: {f: {flyte: {endpoint: 'https://flyte.example.com'}}}\ndeployments: {}\n")
    done = horarium("validate", str(file))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "/targets/f/flyte" in done.stderr + done.stdout
    assert "pip install 'horarium[flyte]'" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("kind", "config"),
    [("docket", "{url: 'redis://r/0'}"), ("celery", "{broker: 'amqp://r//', backend: 'redis://r/1'}")],
)
def test_a_target_of_an_engine_without_its_extra_says_what_to_install(
    tmp_path: Path, kind: str, config: str
) -> None:
    file = tmp_path / "triggers.yaml"
    file.write_text(f"targets: {{t: {{{kind}: {config}}}}}\ndeployments: {{}}\n")
    done = horarium("validate", str(file))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert f"/targets/t/{kind}" in done.stderr + done.stdout
    assert f"pip install 'horarium[{kind}]'" in done.stderr + done.stdout


def test_a_file_without_flyte_needs_no_extra(tmp_path: Path) -> None:
    file = tmp_path / "triggers.yaml"
    file.write_text("deployments: {a: {run: date, every: 1h}}\n")
    done = horarium("validate", str(file))
    assert done.returncode == 0, done.stderr


def test_flytes_api_without_its_extra_says_what_to_install(tmp_path: Path) -> None:
    file = tmp_path / "horarium.toml"
    file.write_text("[api.flyte]\nenabled = true\n")
    db = f"sqlite:///{tmp_path}/horarium.db"
    done = horarium("serve", "--config", str(file), "--db", db, "--port", "0")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "/api_flyte_enabled" in done.stderr
    assert "pip install 'horarium[flyte]'" in done.stderr
