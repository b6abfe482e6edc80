"""The house rules that a machine can hold (docs/design: imports point down, one place reads a clock).

surfaces (cli, api, ui) → app → core and contracts; engine → core and contracts; store, sources and
targets implement contracts; core imports only the standard library and date libraries; only wiring
knows everyone. Nothing outside `clock.py` reads a clock or makes up randomness.

Each rule is a small function over a module's syntax tree, and each is shown a program that breaks it.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
MODULES = sorted((SOURCE / "horarium").rglob("*.py"))

# --- imports point down -------------------------------------------------------------------------------

CONTRACTS = {
    "errors", "clock", "telemetry", "store.base", "store.tables", "sources.base", "targets.base",
    # What the tables hold, as values: for the store, and for whoever shows it.
    "store.rows",
    # How a mapping of fields is read, a secret is named, and a service is called: the same for all who do.
    "targets.checks", "targets.secrets", "targets.outgoing", "targets.connection",
}  # fmt: skip
"""What any part may lean on: words and protocols, no work of its own."""

MAY_IMPORT: dict[str, set[str]] = {
    "core": {"core", "errors"},
    "contracts": {"core", "contracts"},
    "config": {"core", "contracts"},
    "engine": {"core", "contracts"},
    "store": {"core", "contracts"},
    # Flyte's words, which its target, its source and its API share.
    "flyte": {"core", "contracts"},
    # Prefect's words, which its target, its source and the importer share.
    "prefect": {"core", "contracts"},
    "sources": {"core", "contracts", "flyte", "prefect"},
    "targets": {"core", "contracts", "flyte", "prefect"},
    "app": {"core", "contracts", "config"},
    # A surface asks `app`; it may name the values that it shows. `cli` is where a process begins, so it
    # calls wiring, which for its part never looks back at `cli`.
    "api": {"app", "core", "contracts", "config", "flyte"},
    "ui": {"app", "core", "contracts", "config"},
    "cli": {"app", "core", "contracts", "config", "wiring"},
    "__main__": {"cli"},
    # The package's front door: `from horarium import Horarium`.
    "__init__": {"embedded"},
    "embedded": {"app", "core", "contracts", "config", "wiring"},
    # Public helpers for users' tests: they keep the contracts. The suite for targets builds one as we do.
    "testing": {"core", "contracts", "targets"},
    "wiring": {
        "core", "contracts", "config", "engine", "store", "sources", "targets", "app", "api", "ui", "flyte",
        "prefect",
    },
}  # fmt: skip

DATE_LIBRARIES = {"tzdata", "holidays"}

# The parts of the standard library that reach outside. `importlib` is how the one loader of time zone
# data reads its package.
OUTSIDE = {
    "asyncio", "concurrent", "http", "io", "logging", "multiprocessing", "os", "pathlib", "select",
    "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "urllib.request",
}  # fmt: skip
OUTSIDE_CALLS = {"open", "print", "input", "exec", "eval"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_point_down(path: Path) -> None:
    assert wrong_imports(module_name(path), ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    ("module", "program"),
    [
        ("horarium.core.plan", "import horarium.engine.planner"),
        ("horarium.core.plan", "import sqlalchemy"),
        ("horarium.core.plan", "from pathlib import Path"),
        ("horarium.core.plan", "from horarium.clock import Clock"),
        ("horarium.core.plan", "text = open('x').read()"),
        ("horarium.core.cron", "from importlib import resources"),
        ("horarium.engine.planner", "from horarium.store.sqlite import SqliteStore"),
        ("horarium.engine.planner", "def late():\n    from horarium import store"),
        ("horarium.engine.planner", "from ..store import sqlite"),
        ("horarium.store.sqlite", "from horarium.engine import planner"),
        ("horarium.targets.base", "from horarium.targets.http import HttpTarget"),
        ("horarium.app.commands", "from horarium.api import rest"),
        ("horarium.api.rest", "from horarium.engine.service import Service"),
        ("horarium.cli.main", "from horarium.store.sqlite import SqliteStore"),
        ("horarium.wiring", "from horarium.cli import main"),
        ("horarium.newcomer", "import json"),
    ],
)
def test_an_import_that_points_up_is_found(module: str, program: str) -> None:
    assert wrong_imports(module, ast.parse(program)) != []


@pytest.mark.parametrize(
    ("module", "program"),
    [
        ("horarium.core.plan", "from horarium.core import cron\nfrom horarium.errors import Problem"),
        ("horarium.core.calendars", "import holidays"),
        ("horarium.core.zone", "from importlib import resources"),
        (
            "horarium.engine.planner",
            "from horarium.store.base import Store\nfrom horarium.engine import wake",
        ),
        ("horarium.store.sqlite", "from .base import Store\nimport sqlite3"),
        ("horarium.api.rest", "from horarium.app import queries\nimport fastapi"),
        ("horarium.cli.main", "from horarium import __version__, wiring"),
    ],
)
def test_an_import_that_points_down_is_not(module: str, program: str) -> None:
    assert wrong_imports(module, ast.parse(program)) == []


def wrong_imports(module: str, tree: ast.AST) -> list[str]:
    """What `module` (its dotted name) imports against the rule, as `line: name`."""
    layer = layer_of(module)
    if layer not in MAY_IMPORT:
        return [f"0: {module} has no place in the house: say in MAY_IMPORT what it may import"]
    wrong = [
        f"{line}: {layer} imports {name}"
        for line, name in imported_names(module, tree)
        if not allowed(module, layer, name)
    ]
    if layer == "core":
        wrong += [
            f"{node.lineno}: core calls {node.func.id}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in OUTSIDE_CALLS
        ]
    return wrong


def allowed(module: str, layer: str, name: str) -> bool:
    if name == "horarium" or name.startswith("horarium."):
        if name in ("horarium", "horarium.__version__"):
            return True
        other = layer_of(name)
        part = name.split(".")[1]
        return (
            other in MAY_IMPORT[layer]
            or part in MAY_IMPORT[layer]
            # Neighbours know each other; but a contract knows no implementation.
            or (layer != "contracts" and part == layer)
        )
    if layer != "core":
        return True
    top = name.split(".")[0]
    if name in OUTSIDE or top in OUTSIDE:
        return False
    if top == "importlib":
        return module == "horarium.core.zone"
    return top in sys.stdlib_module_names or top in DATE_LIBRARIES


def layer_of(name: str) -> str:
    """The layer of a dotted name: `horarium.store.base.Store` is a contract, `horarium.cli.x` is cli."""
    parts = name.split(".")[1:]
    if not parts:
        return "__init__"
    if parts[0] in CONTRACTS or ".".join(parts[:2]) in CONTRACTS:
        return "contracts"
    return parts[0]


def imported_names(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every import in `tree`, wherever it stands, as the full dotted name of what it binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *filter(None, [node.module])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    # A package's own file is named with `__init__`, so that its relative imports resolve as a module's do.
    return "horarium" if parts == ("horarium", "__init__") else ".".join(parts)


# --- one place reads a clock ----------------------------------------------------------------------------

CLOCKS_AND_CHANCE = re.compile(
    r"""datetime\.(datetime|date)\.(now|utcnow|today)
      | time\.(time|monotonic|perf_counter|process_time|thread_time|clock_gettime)(_ns)?
      | time\.(localtime|gmtime|ctime|asctime|sleep)
      | random(\..*)? | secrets\.(?!compare_digest).* | secrets
      | uuid\.(uuid1|uuid4|uuid6|uuid7|uuid8) | os\.(urandom|getrandom) | ssl\.RAND_.* | numpy\.random.*
    """,
    re.VERBOSE,
)
SQL_CLOCKS = re.compile(
    r"\bnow\(\)|\bcurrent_(timestamp|time|date)\b|\b(datetime|julianday)\('now'", re.IGNORECASE
)


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if path.relative_to(SOURCE).as_posix() != "horarium/clock.py"],
    ids=lambda path: path.relative_to(SOURCE).as_posix(),
)
def test_nothing_but_clock_reads_a_clock_or_chance(path: Path) -> None:
    assert clock_reads(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "program",
    [
        "from datetime import datetime\ndatetime.now()",
        "from datetime import datetime as dt, UTC\nf(default_factory=lambda: dt.now(UTC))",
        "import datetime\ndatetime.datetime.utcnow()",
        "import datetime as d\nd.date.today()",
        "import time\ntime.time()",
        "import time as t\nstarted = t.monotonic_ns",
        "from time import perf_counter\nperf_counter()",
        "import time\ntime.sleep(1)",
        "import random\nrandom.random()",
        "from random import shuffle",
        "import uuid\nuuid.uuid4()",
        "from uuid import uuid4 as new\nnew()",
        "import secrets\nsecrets.token_hex()",
        "import os\nos.urandom(8)",
        "import asyncio\nasyncio.get_running_loop().time()",
        "self.loop.time()",
        "connection.execute('update run set fired_at = now() where id = ?')",
        "STATEMENT = f'select {x} where due_at <= CURRENT_TIMESTAMP'",
    ],
)
def test_a_clock_that_is_read_elsewhere_is_found(program: str) -> None:
    assert clock_reads(ast.parse(program)) != []


@pytest.mark.parametrize(
    "program",
    [
        '"""Like SQL\'s now(), but passed in."""\nclock.now()',
        "from datetime import datetime\ndatetime.fromtimestamp(0)",
        "import uuid\nuuid.uuid5(uuid.NAMESPACE_DNS, 'x')",
        "import secrets\nsecrets.compare_digest(a, b)",
        "row.time()",
    ],
)
def test_what_only_looks_like_a_clock_is_not(program: str) -> None:
    assert clock_reads(ast.parse(program)) == []


def clock_reads(tree: ast.Module) -> list[str]:
    """Where `tree` reads a clock or makes up randomness, as `line: name`."""
    origins = {
        alias.asname or alias.name.split(".")[0]: alias.name if alias.asname else alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if CLOCKS_AND_CHANCE.fullmatch(f"{node.module}.{alias.name}"):
                    found.append(f"{node.lineno}: {node.module}.{alias.name}")
    prose = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = dotted(node, origins)
            loop_time = node.attr == "time" and re.search(r"loop(\(\))?$", ast.unparse(node.value))
            if loop_time or (name and CLOCKS_AND_CHANCE.fullmatch(name)):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in prose
            and (match := SQL_CLOCKS.search(node.value))
        ):
            found.append(f"{node.lineno}: SQL {match[0]}")
    return found


def dotted(node: ast.expr, origins: dict[str, str]) -> str | None:
    """`dt.now` as `datetime.datetime.now`, seen through the imports; None when it isn't a plain name."""
    match node:
        case ast.Name(id=name):
            return origins.get(name)
        case ast.Attribute(value=value, attr=attr):
            base = dotted(value, origins)
            return f"{base}.{attr}" if base else None
    return None


def docstrings(tree: ast.AST) -> set[int]:
    """The strings that stand as statements of their own: prose, not SQL. By identity."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


# --- what is shipped ------------------------------------------------------------------------------------


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())
    files = {
        path.relative_to(SOURCE).as_posix()
        for path in (SOURCE / "horarium").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert files - shipped == set()


# --- pins -------------------------------------------------------------------------------------------------


def pins(name: str) -> dict[str, set[str]]:
    """Each package of `requirements/NAME` with its versions (several, where Pythons differ)."""
    found: dict[str, set[str]] = {}
    for match in re.finditer(
        r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements" / name).read_text(), re.MULTILINE
    ):
        found.setdefault(match[1], set()).add(match[2])
    return found


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "requirements").glob("*.txt")))
def test_pins_are_hashed_and_name_no_place(name: str) -> None:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    requirement = re.compile(r"[a-z0-9][\w.-]*==\S+( ; .+)? \\")
    pinned_hash = re.compile(r" {4}--hash=sha256:[0-9a-f]{64}( \\)?")
    odd = [line for line in lines if not (requirement.fullmatch(line) or pinned_hash.fullmatch(line))]
    assert odd == ["# Written by `make lock` from pyproject.toml; not by hand."]


def test_every_dependency_is_pinned_and_both_files_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    run, dev = pins("run.txt"), pins("dev.txt")
    for wanted, pinned in [
        (project["project"]["dependencies"], run),
        (project["project"]["optional-dependencies"]["postgres"], run),
        (project["project"]["optional-dependencies"]["docket"], dev),
        (project["project"]["optional-dependencies"]["celery"], dev),
        (project["dependency-groups"]["build"], run),
        (project["dependency-groups"]["dev"], dev),
    ]:
        names = {
            re.split(r"[\s\[<>=!~;]", line)[0].lower().replace(".", "-").replace("_", "-") for line in wanted
        }
        assert names - set(pinned) == set()
    assert {name: dev.get(name) for name in run} == run


def test_each_dependency_has_its_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    page = (ROOT / "docs" / "design" / "dependencies.md").read_text().lower()
    groups = project["dependency-groups"]
    lines = [
        *project["project"]["dependencies"],
        *(line for extra in project["project"]["optional-dependencies"].values() for line in extra),
        *groups["build"],
        *groups["dev"],
        *groups["lock"],
    ]
    names = {re.split(r"[\s\[<>=!~;]", line)[0].lower() for line in lines}
    assert {name for name in names if f"`{name}`" not in page} == set()


# --- a skipped test is a red run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "allowed", "ci", "green"),
    [
        ("def test_it(): pass", "", "true", True),
        ("import pytest\ndef test_it(): pytest.skip('no tool')", "", "true", False),
        ("import pytest\ndef test_it(): pytest.skip('no tool')", "", "", True),
        (
            "import pytest\ndef test_it(): pytest.skip('no tool')",
            "tests/test_it.py::test_it -- why",
            "true",
            True,
        ),
        ("import pytest\ndef test_it(): pytest.skip('no tool')", "tests/test_it.py::test_it", "true", False),
        ("import pytest\npytest.skip('no tool', allow_module_level=True)", "", "true", False),
        ("import pytest\n@pytest.mark.xfail\ndef test_it(): assert False", "", "true", False),
        ("", "", "true", False),
    ],
    ids=["passes", "skips", "skips-at-home", "allowed", "no-reason", "skips-the-module", "xfails", "no-test"],
)
def test_a_skip_that_nobody_allowed_fails_ci(
    tmp_path: Path, program: str, allowed: str, ci: str, green: bool
) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tests / "test_it.py").write_text(program)
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "allowed-skips").write_text(f"# a comment\n\n{allowed}\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        env={**os.environ, "CI": ci, "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode == 0) is green, run.stdout
    if run.stdout:
        assert re.search(r"^=+ .* in \d.*s =+$", run.stdout.splitlines()[-1]), (
            "pytest's own summary comes last"
        )
