"""What a linter says of triggers files: for `horarium lint`, and for what `horarium apply` changes.

Looked at where the files are read and not in the server, whose loops have better things to do.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from horarium.cli.options import now
from horarium.cli.render import say, short_key, styled
from horarium.core.instant import to_seconds
from horarium.core.lint import Subject, lint
from horarium.errors import Problem

CROWD = 20
"""Triggers that may share a second unless `--crowd` says otherwise."""


def advice(
    paths: Iterable[str],
    *,
    ignored: Collection[str] = (),
    crowd: int = CROWD,
) -> tuple[list[dict[str, Any]], int]:
    """Findings with their file and line, and how many triggers were looked at.

    Raises `InvalidInput` and `SourceUnavailable` for files that can't be read.
    """
    from horarium import wiring

    places: dict[str, tuple[str, int | None]] = {}
    subjects: list[Subject] = []
    for path in paths:
        for parsed in wiring.parse_files(path):
            for entry in parsed.listing.triggers:
                key = str(entry.key)
                at = parsed.located([Problem(parsed.pointers.get(entry.key, ""), "", "")])
                places[key] = (parsed.path, at[0].line if at else None)
                subjects.append(Subject(key, entry.spec.schedule, seed=key))
    found = lint(subjects, to_seconds(now()), silenced=ignored, crowd=crowd)
    nowhere: tuple[str | None, int | None] = (None, None)
    return [
        {
            **finding.to_json(),
            **dict(zip(("file", "line"), places.get(finding.trigger, nowhere), strict=True)),
        }
        for finding in found
    ], len(subjects)


def show(findings: Iterable[Mapping[str, Any]]) -> None:
    """Findings for people, two lines each."""
    for finding in findings:
        place = f"{os.path.relpath(finding['file'])}:{finding['line']}: " if finding.get("file") else ""
        name = short_key(finding["trigger"]) if finding.get("file") else finding["trigger"]
        say(place, styled(finding["code"], "yellow"), f" {name}: {finding['reason']}")
        say(f"    try: {finding['fix']}")
