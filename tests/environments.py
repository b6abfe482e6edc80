"""Virtual environments of other programs that tests run against, each made once from its pins.

A system whose own dependencies fight ours (Prefect, the Flyte SDK, Ray) gets an environment of its own under
`build/environments/`, named by the hash of its pins and of the Python that made it: new pins make a new one,
the same pins are installed once a clone. Every file that comes over the network is checked against a hash.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / "build" / "environments"


def environment(name: str) -> Path:
    """The interpreter of an environment that has what `requirements/NAME.txt` pins.

    The first to ask makes it; others, in other processes too, wait for that. Raises `AssertionError` with
    what the installer said.
    """
    pins = ROOT / "requirements" / f"{name}.txt"
    key = hashlib.sha256(pins.read_bytes() + sys.version.encode() + sys.executable.encode()).hexdigest()[:16]
    place = ENVIRONMENTS / f"{name}-{key}"
    python = place / "bin" / "python"
    stamp = place / ".installed"
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            for old in ENVIRONMENTS.glob(f"{name}-*"):
                shutil.rmtree(old)
            _run([sys.executable, "-m", "venv", str(place)])
            _install(python, pins)
            stamp.touch()
    return python


def first_line(process: subprocess.Popen[str], patience: float) -> str:
    """Its next line, or what there is of it once it has taken far too long (seconds) and was ended."""
    assert process.stdout is not None
    late = threading.Timer(patience, process.kill)
    late.start()
    try:
        return process.stdout.readline()
    finally:
        late.cancel()


def _install(python: Path, pins: Path) -> None:
    """With uv where it is found and reaches an index, else with pip; as `requirements/install` does.

    Bytecode is made here and once, as pip does it: each of Ray's twenty processes would compile for itself
    else, and a start takes 17 s where 5 are enough.
    """
    hashes = ["--quiet", "--require-hashes", "-r", str(pins)]
    uv = shutil.which("uv")
    if uv is not None:
        install = [uv, "pip", "install", "--compile-bytecode", "--python", str(python), *hashes]
        said = subprocess.run(install, capture_output=True)
        if said.returncode == 0:
            return
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    _run([*pip, *hashes])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=_own_environment())
    assert done.returncode == 0, f"{' '.join(command[:4])} ... failed:\n{done.stdout}{done.stderr}"


def _own_environment() -> dict[str, str]:
    """Ours, without what would make an installation a user's."""
    return {**os.environ, "PIP_USER": "0"}
