"""What a linter found in triggers files, as people read it: for `horarium lint` and `horarium apply`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from horarium.cli.render import say, short_key, styled


def show(findings: Iterable[Mapping[str, Any]]) -> None:
    """Findings, two lines each."""
    for finding in findings:
        place = f"{os.path.relpath(finding['file'])}:{finding['line']}: "
        say(
            place, styled(finding["code"], "yellow"), f" {short_key(finding['trigger'])}: {finding['reason']}"
        )
        say(f"    try: {finding['fix']}")
