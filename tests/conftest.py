"""What every test shares: the event loop's kind, and the rule that a skipped test is a failed run.

A skip hides a broken promise as well as a missing tool does. Under CI (`CI=true`) the run fails
when a test was skipped, unless `.ci/allowed-skips` names it with a reason. `xfail` counts as a skip.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ALLOWED_SKIPS = Path(__file__).parent.parent / ".ci" / "allowed-skips"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, the loop that Horarium is written for."""
    return "asyncio"


def pytest_configure(config: pytest.Config) -> None:
    # What a developer has set for a server of their own is not for the servers of tests.
    for name in ("HORARIUM_CONFIG", "HORARIUM_DB", "HORARIUM_PORT", "HORARIUM_SERVER"):
        os.environ.pop(name, None)
    if os.environ.get("CI", "").lower() in ("1", "true"):
        config.pluginmanager.register(SkipsFail(read_allowed_skips(ALLOWED_SKIPS)), "skips-fail")


def read_allowed_skips(path: Path) -> dict[str, str]:
    """`NODE-ID-PATTERN -- reason` a line, `#` begins a comment line. A line without a reason is refused."""
    allowed: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, dashes, reason = line.partition(" -- ")
        if not dashes or not reason.strip():
            raise pytest.UsageError(f"{path.name}:{number}: got {line!r}: a skip needs ' -- ' and a reason")
        allowed[pattern.strip()] = reason.strip()
    return allowed


class SkipsFail:
    """Turns a run red when something was skipped that nobody allowed."""

    def __init__(self, allowed: dict[str, str]) -> None:
        self.allowed = allowed
        self.refused: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.note(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.note(report.nodeid)

    def note(self, node_id: str) -> None:
        if not any(node_id == pattern or fnmatchcase(node_id, pattern) for pattern in self.allowed):
            self.refused.append(node_id)

    # trylast: the exit status that pytest worked out comes first, ours only turns green into red.
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused:
            terminalreporter.section("skipped, and not allowed by .ci/allowed-skips", red=True)
            for node_id in self.refused:
                terminalreporter.line(node_id)
