"""Calling `horarium` from tests: in this process, with what it printed and how it ended."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest import mock

from horarium.cli.main import run


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed for programs."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line that it printed."""
        return [line.split() for line in self.out.splitlines()]


def horarium(*arguments: str, stdin: bytes = b"") -> Ran:
    """Run a command line."""
    out, err = io.StringIO(), io.StringIO()
    given = io.TextIOWrapper(io.BytesIO(stdin))
    with redirect_stdout(out), redirect_stderr(err), mock.patch.object(sys, "stdin", given):
        code = run(arguments)
    return Ran(code, out.getvalue(), err.getvalue())
