"""What a linter says of triggers files, each finding with its file and line; for `lint`, `validate`, `apply`.

Pure, and slow for large files (about as long as reading them): a server calls it in a thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from horarium.app.views import View
from horarium.core.instant import to_seconds
from horarium.core.keys import TriggerKey
from horarium.core.lint import Subject, lint
from horarium.core.spec import Listing
from horarium.errors import Problem

CROWD = 20
"""Triggers that may share a second unless somebody says otherwise."""


class LintedFile(Protocol):
    """What is needed of a file; see `sources/files.py`."""

    @property
    def listing(self) -> Listing: ...
    @property
    def path(self) -> str: ...
    @property
    def pointers(self) -> Mapping[TriggerKey, str]: ...
    @property
    def silenced(self) -> Mapping[TriggerKey, frozenset[str]]: ...
    def located(self, problems: list[Problem]) -> list[Problem]: ...


def advice(
    files: Sequence[LintedFile],
    now: datetime,
    *,
    of: Collection[str] | None = None,
    ignored: Collection[str] = (),
    crowd: int = CROWD,
) -> list[View]:
    """Findings as mappings: code, trigger, reason, fix, file, line.

    `of` are keys of triggers: what was there before was told before, so only these are looked at, and crowds
    only if there are any. `ignored` are codes that nobody wants to hear of.
    """
    if of is not None and not of:
        return []
    places: dict[str, tuple[LintedFile, TriggerKey]] = {}
    subjects: list[Subject] = []
    for file in files:
        for entry in file.listing.triggers:
            key = str(entry.key)
            places[key] = (file, entry.key)
            silenced = file.silenced.get(entry.key, frozenset())
            subjects.append(Subject(key, entry.spec.schedule, seed=key, silenced=silenced))
    found = []
    for finding in lint(subjects, to_seconds(now), silenced=ignored, crowd=crowd, of=of):
        file, trigger = places[finding.trigger]
        (problem,) = file.located([Problem(file.pointers.get(trigger, ""), "", "")])
        found.append({**finding.to_json(), "file": file.path, "line": problem.line})
    return found
