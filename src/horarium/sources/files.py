"""The triggers file: text into a `Listing`, every mistake named with its line.

`parse_triggers` is pure on text. It resolves all that a file leaves out: a trigger takes from its
deployment, the deployment from `defaults`, and what comes out is whole (`TriggerSpec`). Every problem of a
file is collected and raised at once. Words that a later release will know are refused by name; a word
that is silently dropped would be a schedule that is silently wrong.

Schedules, calendars and targets check their own words (`core/`, and `TargetChecks`, which is the module
`targets.registry`); here is what goes where.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from horarium.core import schedule as schedules
from horarium.core.calendars import Calendar, OnExcluded, canonical_calendar, parse_calendar
from horarium.core.duration import parse_duration
from horarium.core.keys import NAME, DeploymentKey, TriggerKey, check_name
from horarium.core.spec import (
    CatchUp,
    DeploymentSpec,
    Json,
    Listing,
    Overlap,
    Rate,
    TargetSpec,
    TriggerEntry,
    TriggerSpec,
)
from horarium.errors import InvalidInput, Problem, shown
from horarium.sources.base import SourceUnavailable, TargetChecks
from horarium.sources.document import MAX_BYTES, Document, escape, read_document

TOP_WORDS = ("source", "project", "domain", "lint", "defaults", "calendars", "targets", "deployments")
RULE_WORDS = ("cron", "every", "rrule", "at")
"""Exactly one of them says when."""
CRON_WORDS = ("dialect", "dst", "day_or")
CALENDAR_WORDS = ("exclude", "only", "on_excluded")
SCHEDULE_WORDS = (*RULE_WORDS, "timezone", *CRON_WORDS, "start", "end", *CALENDAR_WORDS)
"""What `core.schedule.parse` takes."""
SHARED_POLICY_WORDS = ("catch_up", "max_age", "jitter", "overlap", "shadow")
POLICY_WORDS = (*SHARED_POLICY_WORDS, "active")
TRIGGER_WORDS = (*SCHEDULE_WORDS, *POLICY_WORDS, "parameters", "renamed_from", "lint")
SHARED_WORDS = (
    "timezone",
    *CRON_WORDS,
    *CALENDAR_WORDS,
    "catch_up",
    "max_age",
    "jitter",
    "overlap",
    "shadow",
)
"""Words of a trigger that may stand on its deployment and in `defaults` too; the nearest counts."""
OWN_WORDS = (
    "target",
    "kickoff_time_arg",
    "owner",
    "runbook",
    "late_after",
    "retry_for",
    "completion_timeout",
)
"""Words of a deployment that may stand in `defaults`; the deployment's counts."""
DEPLOYMENT_WORDS = (*OWN_WORDS, "triggers", *TRIGGER_WORDS)
"""Those that every deployment may have; its target's kind has more. A trigger's words make the short form."""
LOCAL_DEFAULTS = ("timeout", "shell", "env", "cwd")
"""Words of the `local` target's actions that may stand in `defaults`, for deployments on `local` targets."""
DEFAULT_WORDS = (*SHARED_WORDS, *OWN_WORDS, *LOCAL_DEFAULTS)
TARGET_WORDS = ("rate", "max_in_flight")
"""A target has one more: the word of its kind."""

LATER_WORDS = ("flow", "kickoff_format")
"""Refused by name until they work."""

IMPLICIT_TARGET = "local"
"""Every instance has it; a deployment without a target runs there."""

MAX_PROBLEMS = 500
"""More than anybody reads at once; what a huge file holds beyond is said in one line."""

FILE_NAMES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Parsed:
    """One triggers file.

    `elsewhere` are targets that deployments name and this file does not define: name and pointer. Whoever
    knows the instance's targets checks them, and with them the deployment's action. `pointers` lead
    from a trigger's key to where it stands; `located` gives problems (a linter's, too) their lines.
    `silenced` are the codes of a linter that a trigger's owner has answered, for triggers that have any; they
    are no part of the listing, so that to silence is not to edit.
    """

    listing: Listing
    path: str
    elsewhere: tuple[tuple[str, str], ...] = ()
    pointers: Mapping[TriggerKey, str] = field(default_factory=dict)
    document: Document = field(default_factory=lambda: Document(None), repr=False)
    silenced: Mapping[TriggerKey, frozenset[str]] = field(default_factory=dict)

    def located(self, problems: list[Problem]) -> list[Problem]:
        return self.document.located(problems)


def parse_triggers(
    text: str, path: str, checks: TargetChecks, *, targets: Mapping[str, TargetSpec] | None = None
) -> Parsed:
    """The triggers file `text`. `path` names its source where the file doesn't.

    `targets` are those that are defined elsewhere, by name. Raises `InvalidInput` with all
    problems, each with its line.
    """
    return _parsed(_read(text, path), path, checks, targets or {})


def _read(text: str, path: str) -> Document:
    return read_document(text, as_json=path.endswith(".json"))


def _parsed(document: Document, path: str, checks: TargetChecks, targets: Mapping[str, TargetSpec]) -> Parsed:
    reader = _Reader(document, path, checks, targets)
    try:
        parsed = reader.file()
    except _Enough:
        parsed = None
    problems = document.located([*document.problems, *reader.problems])
    if parsed is None or problems:
        problems.sort(key=lambda problem: (problem.line or 0, problem.column or 0))
        raise InvalidInput(problems)
    return parsed


def read_path(path: str | os.PathLike[str], checks: TargetChecks) -> list[Listing]:
    """The listings of a file, or of every triggers file in a folder, by path. See `read_parsed`."""
    return [parsed.listing for parsed in read_parsed(path, checks)]


def read_parsed(path: str | os.PathLike[str], checks: TargetChecks) -> list[Parsed]:
    """Every triggers file at `path`, parsed, each a source of its own.

    A folder is walked whole: files that end in .yaml, .yml or .json, except hidden ones. The default source
    is the absolute path, so that two files never share one by accident. A target may be defined in any file
    of the folder. Raises `InvalidInput` with the problems of all files, or `SourceUnavailable`.
    """
    texts = {str(file): _read_text(file) for file in triggers_files(path)}
    if not texts:
        raise SourceUnavailable(str(path), f"there is no file that ends in {', '.join(FILE_NAMES)}")
    problems: list[Problem] = []

    def keep(file: str, error: InvalidInput) -> None:
        problems.extend(_in_file(problem, file) if len(texts) > 1 else problem for problem in error.problems)

    documents: dict[str, Document] = {}
    for file, text in texts.items():
        try:
            documents[file] = _read(text, file)
        except InvalidInput as error:
            keep(file, error)
    # A deployment may come before the file that defines its target.
    known: dict[str, TargetSpec] = {}
    for document in documents.values():
        known.update(_targets_in(document, checks))
    found: list[Parsed] = []
    for file, document in documents.items():
        try:
            found.append(_parsed(document, file, checks, known))
        except InvalidInput as error:
            keep(file, error)
    problems.extend(_shared_twice(found))
    if problems:
        raise InvalidInput(problems)
    return found


def triggers_files(path: str | os.PathLike[str]) -> list[Path]:
    """The triggers files at `path`, absolute, sorted. Links to files are followed, links to folders are not.

    Raises `SourceUnavailable` if there is nothing at `path`.
    """
    top = Path(os.path.abspath(path))
    if top.is_file():
        return [top]
    if not top.is_dir():
        raise SourceUnavailable(str(path), "there is no such file or folder")
    found: list[Path] = []

    def refuse(error: OSError) -> None:
        raise SourceUnavailable(str(path), str(error)) from error

    for folder, folders, names in os.walk(top, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            Path(folder, name)
            for name in names
            if name.endswith(FILE_NAMES) and not name.startswith(".") and Path(folder, name).is_file()
        ]
    return sorted(found)


class FileSource:
    """One triggers file as a `Source`.

    `targets` gives those that are defined elsewhere, by name; they are asked for at each read.
    A file that was wrong is not parsed again until it changes. Nothing of a good one is kept: the store has
    it, and a hundred thousand triggers are a hundred megabytes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        checks: TargetChecks,
        name: str | None = None,
        targets: Callable[[], Mapping[str, TargetSpec]] = dict,
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self._checks = checks
        self._name = name
        self._targets = targets
        self._wrong: tuple[str, dict[str, TargetSpec], tuple[Problem, ...]] | None = None

    @property
    def name(self) -> str:
        """What the file calls itself once it was read, its path before."""
        return self._name or str(self.path)

    async def version(self) -> str:
        return _version(await asyncio.to_thread(_read_text, self.path))

    async def read(self) -> Listing:
        return (await self.read_parsed()).listing

    async def read_parsed(self) -> Parsed:
        """As `read`, with what else the file says."""
        parsed = await asyncio.to_thread(self._read, dict(self._targets()))
        self._name = parsed.listing.source
        return parsed

    def _read(self, targets: dict[str, TargetSpec]) -> Parsed:
        text = _read_text(self.path)
        version = _version(text)
        if self._wrong is not None and self._wrong[:2] == (version, targets):
            raise InvalidInput(self._wrong[2])
        try:
            return parse_triggers(text, str(self.path), self._checks, targets=targets)
        except InvalidInput as error:
            self._wrong = (version, targets, error.problems)
            raise


def _version(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SourceUnavailable(str(path), error.strerror or str(error)) from error
    if len(raw) > MAX_BYTES:
        raise InvalidInput(
            Problem(
                "",
                f"more than {MAX_BYTES:,} bytes",
                f"a file has at most {MAX_BYTES:,}",
                "split it",
                code="size",
            )
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        got = f"the byte 0x{raw[error.start]:02x}"
        raise InvalidInput(
            Problem("", got, "a triggers file is UTF-8", "save it as UTF-8", code="encoding", line=line)
        ) from error


def _targets_in(document: Document, checks: TargetChecks) -> dict[str, TargetSpec]:
    """The targets that a file defines, save for what is wrong with them: whoever reads the file says that."""
    data = document.data
    targets = data.get("targets") if isinstance(data, dict) else None
    found: dict[str, TargetSpec] = {}
    for name, target in targets.items() if isinstance(targets, dict) else ():
        for kind in target if isinstance(target, dict) else ():
            if kind in checks.kinds():
                with suppress(InvalidInput):
                    config = checks.check_config(kind, {} if target[kind] is None else target[kind], "")
                    found[name] = TargetSpec(name, kind, config)
    return found


def _in_file(problem: Problem, path: str) -> Problem:
    return replace(problem, rule=f"{problem.rule} ({path})")


def _shared_twice(found: list[Parsed]) -> Iterator[Problem]:
    """Sources, targets and triggers that two files of one folder both name."""
    seen: dict[tuple[str, str], str] = {}
    for parsed in found:
        names = [("source", parsed.listing.source, "/source")]
        names += [("target", target.name, f"/targets/{target.name}") for target in parsed.listing.targets]
        names += [
            ("deployment", str(item.key), f"/deployments/{item.key.name}")
            for item in parsed.listing.deployments
        ]
        for kind, name, pointer in names:
            other = seen.setdefault((kind, name), parsed.path)
            if other != parsed.path:
                yield parsed.located(
                    [
                        Problem(
                            pointer,
                            shown(name),
                            f"one file defines a {kind}; {other} has this one too ({parsed.path})",
                            "rename one, or put both in one file",
                            code="duplicate",
                        )
                    ]
                )[0]


# --- one file -----------------------------------------------------------------------------------------


class _Enough(Exception):
    """So many problems that reading on helps nobody."""


@dataclass(frozen=True)
class _Defaults:
    """What stands above a trigger: checked words of `defaults` and of its deployment."""

    words: Mapping[str, Any]

    def over(self, nearer: Mapping[str, Any]) -> _Defaults:
        return _Defaults({**self.words, **nearer}) if nearer else self


@dataclass
class _Found:
    """What a file has given so far."""

    targets: list[TargetSpec] = field(default_factory=list)
    deployments: list[DeploymentSpec] = field(default_factory=list)
    triggers: list[TriggerEntry] = field(default_factory=list)
    elsewhere: list[tuple[str, str]] = field(default_factory=list)
    pointers: dict[TriggerKey, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    silenced: dict[TriggerKey, frozenset[str]] = field(default_factory=dict)


class _Collect:
    """Swallows `InvalidInput` and hands its problems on. A class, so that mypy knows that it swallows."""

    def __init__(self, add: Callable[[tuple[Problem, ...]], None]) -> None:
        self._add = add

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, InvalidInput):
            self._add(error.problems)
            return True
        return False


class _Reader:
    def __init__(
        self, document: Document, path: str, checks: TargetChecks, known_targets: Mapping[str, TargetSpec]
    ) -> None:
        self._document = document
        self._path = path
        self._checks = checks
        self._target_kinds = checks.kinds()
        self._action_words: dict[str, tuple[str, ...]] = {}
        self._kinds = {name: spec.kind for name, spec in known_targets.items()} | {IMPLICIT_TARGET: "local"}
        self._configs = {name: spec.config for name, spec in known_targets.items()}
        self._calendars: dict[str, Calendar | None] = {}
        self._silenced: frozenset[str] = frozenset()
        self._found = _Found()
        self.problems: list[Problem] = []

    # A package's kind is loaded when a file uses it, so that a broken one costs its own users alone.

    def _words_of(self, kind: str) -> tuple[str, ...]:
        if kind not in self._action_words:
            self._action_words[kind] = self._checks.kind(kind).action_keys
        return self._action_words[kind]

    @cached_property
    def _every_action_word(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word for kind in self._target_kinds for word in self._words_of(kind)))

    # The file, part by part.

    def file(self) -> Parsed:
        data = self._document.data
        if not isinstance(data, dict):
            self._bad(
                "",
                "an empty file" if data is None else shown(data),
                "a triggers file is a mapping with deployments",
                "deployments: {} if nothing is to be left, or see horarium init",
            )
            raise _Enough
        self._words(data, "", TOP_WORDS, "the file")
        source = self._source(data.get("source", self._path))
        project = self._name(data.get("project", "default"), "/project") or "default"
        domain = self._name(data.get("domain", "default"), "/domain") or "default"
        self._silenced = self._silence(data, "")
        self._read_calendars(self._map(data, "calendars", ""))
        for name, target in self._map(data, "targets", "").items():
            self._target(name, target, f"/targets/{escape(name)}")
        defaults = self._defaults(self._map(data, "defaults", ""), "/defaults")
        for name, deployment in self._map(data, "deployments", "").items():
            pointer = f"/deployments/{escape(name)}"
            if self._name(name, pointer) is not None and self._is_map(
                deployment, pointer, "a deployment", "{run: date}"
            ):
                self._deployment(DeploymentKey(project, domain, name), deployment, defaults, pointer)
        self._check_renames()
        found = self._found
        listing = Listing(source, tuple(found.targets), tuple(found.deployments), tuple(found.triggers))
        return Parsed(
            listing, self._path, tuple(found.elsewhere), found.pointers, self._document, found.silenced
        )

    def _source(self, value: object) -> str:
        if (
            isinstance(value, str)
            and 0 < len(value) <= 500
            and value.isprintable()
            and value == value.strip()
        ):
            return value
        self._bad("/source", shown(value), "a source is 1 to 500 printable characters", "git/etl")
        return "?"

    def _read_calendars(self, calendars: Mapping[str, Any]) -> None:
        for name, definition in calendars.items():
            pointer = f"/calendars/{escape(name)}"
            # One that is wrong stays known, so that each use of it is not a second problem.
            self._calendars[name] = None
            if self._name(name, pointer) is not None:
                with self._collect():
                    self._calendars[name] = parse_calendar(name, definition, pointer)

    def _target(self, name: str, value: object, pointer: str) -> None:
        if self._name(name, pointer) is None or not self._is_map(
            value, pointer, "a target", "{http: {url: ...}}"
        ):
            return
        assert isinstance(value, dict)
        known = self._target_kinds
        self._words(value, pointer, (*known, *TARGET_WORDS), "a target", ())
        kinds = [word for word in value if word in known]
        if len(kinds) != 1:
            self._bad(
                pointer,
                f"{len(kinds)} kinds" if kinds else "no kind",
                f"a target has one kind: {' or '.join(known)}",
                "{local: {}} or {http: {url: ...}}",
            )
            return
        kind = kinds[0]
        if name == IMPLICIT_TARGET and kind != "local":
            self._bad(pointer, kind, "the name local is kept for a local target", "another name", "name")
            return
        self._kinds[name] = kind
        config: Mapping[str, Any] = {}
        self._configs.pop(name, None)
        written = {} if value[kind] is None else value[kind]
        self._filled(written, f"{pointer}/{kind}")
        with self._collect():
            config = self._configs[name] = self._checks.check_config(kind, written, f"{pointer}/{kind}")
        rate, unlimited = (
            self._rate(value.get("rate"), f"{pointer}/rate") if "rate" in value else (None, False)
        )
        places = value.get("max_in_flight")
        if "max_in_flight" in value and not _whole(places, 1, 100_000):
            self._bad(
                f"{pointer}/max_in_flight",
                shown(places),
                "max_in_flight is a whole number from 1 to 100,000",
                "32",
            )
            places = None
        self._found.targets.append(TargetSpec(name, kind, config, rate, unlimited, places))

    def _rate(self, value: object, pointer: str) -> tuple[Rate | None, bool]:
        if value == "unlimited":
            return None, True
        if not self._is_map(value, pointer, "a rate", "{per_second: 50, burst: 100} or unlimited"):
            return None, False
        assert isinstance(value, dict)
        self._words(value, pointer, ("per_second", "burst"), "a rate")
        rate = value.get("per_second")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1_000_000:
            self._bad(
                f"{pointer}/per_second",
                shown(rate),
                "per_second is a number above 0, at most 1,000,000",
                "50",
            )
            return None, False
        burst = value.get("burst", max(1, math.ceil(rate)))
        if not _whole(burst, 1, 1_000_000):
            self._bad(f"{pointer}/burst", shown(burst), "burst is a whole number from 1 to 1,000,000", "100")
            return None, False
        return Rate(float(rate), burst), False

    def _defaults(self, data: Mapping[str, Any], pointer: str) -> _Defaults:
        self._words(data, pointer, DEFAULT_WORDS, "defaults")
        words: dict[str, Any] = {}
        words |= self._shared(data, pointer)
        words |= self._own(data, pointer)
        action = {word: data[word] for word in LOCAL_DEFAULTS if data.get(word) is not None}
        if action:
            with self._collect():
                # A command that is never run makes the words whole, so that they are checked here, once.
                self._checks.check_action("local", {"run": "true", **action}, {}, pointer)
                words["action"] = action
        return _Defaults(words)

    def _deployment(
        self, key: DeploymentKey, data: dict[str, Any], defaults: _Defaults, pointer: str
    ) -> None:
        found = self._found
        own = {
            **{word: defaults.words[word] for word in OWN_WORDS if word in defaults.words},
            **self._own(data, pointer),
        }
        target = own.pop("target", IMPLICIT_TARGET)
        kind = self._kinds.get(target)
        if kind not in self._target_kinds:
            kind = None  # defined elsewhere, or of a kind whose package is not installed here
            found.elsewhere.append((target, f"{pointer}/target" if "target" in data else pointer))
        # One that is defined elsewhere may take anything that any kind takes.
        action_words = self._every_action_word if kind is None else self._words_of(kind)
        self._words(data, pointer, DEPLOYMENT_WORDS, "a deployment", LATER_WORDS, action_words, kind)
        parameters = self._parameters(data, pointer)
        action: Mapping[str, Any] = {word: data[word] for word in data if word in action_words}
        if kind == "local":
            action = _with_local_defaults(action, defaults.words.get("action", {}))
        kickoff: dict[str, Json] = {}
        if own.get("kickoff_time_arg") is not None:
            kickoff[own["kickoff_time_arg"]] = "1970-01-01T00:00:00Z"
        own_of = self._trigger_mappings(data, pointer)
        overlays = [
            self._parameters(mapping, where) if where != pointer else {} for _, mapping, where in own_of
        ]
        # Parameters must be whole when a run has them: a trigger may add what the deployment leaves out.
        checked = action
        for overlay in _distinct(overlays) or [{}]:
            if kind is None:
                break
            whole = {**parameters, **overlay, **kickoff}
            before = len(self.problems)
            with self._collect():
                checked = self._checks.check_action(kind, action, whole, pointer)
                self._checks.check_use(kind, self._configs.get(target), checked, pointer)
            if len(self.problems) > before:
                break
        deployment = DeploymentSpec(key, target, checked, parameters, **own)
        found.deployments.append(deployment)
        shared = defaults.over(self._shared(data, pointer)) if "triggers" in data else defaults
        former = self._former(data, pointer, key) if "renamed_from" in data else None
        silenced = self._silenced | self._silence(data, pointer)
        for (name, mapping, where), overlay in zip(own_of, overlays, strict=True):
            trigger_key = TriggerKey(key.project, key.domain, key.name, name)
            found.pointers[trigger_key] = where
            own_silence = self._silence(mapping, where) if where != pointer else frozenset[str]()
            if codes := silenced | own_silence:
                found.silenced[trigger_key] = codes
            spec = self._trigger(trigger_key, mapping, shared, deployment, overlay, where)
            renamed = self._renamed(trigger_key, mapping, where, former, short=where == pointer)
            if spec is not None:
                shadow = _either(mapping.get("shadow"), shared.words.get("shadow"))
                found.triggers.append(TriggerEntry(trigger_key, spec, renamed, shadow=shadow))

    def _trigger_mappings(self, data: dict[str, Any], pointer: str) -> list[tuple[str, dict[str, Any], str]]:
        """Name, mapping and pointer of each trigger of a deployment."""
        rules = [word for word in RULE_WORDS if word in data]
        if "triggers" not in data:
            if rules:
                return [("default", data, pointer)]
            for word in data:
                if word in SCHEDULE_WORDS or word in POLICY_WORDS:
                    self._bad(
                        f"{pointer}/{word}",
                        word,
                        f"{word} belongs to a trigger, and this deployment has none",
                        "add cron, every, rrule or at; or take it out",
                        "conflict",
                    )
            return []
        for word in [*rules, *(word for word in ("start", "end", "active") if word in data)]:
            self._bad(
                f"{pointer}/{word}",
                word,
                "a deployment has either triggers or a schedule of its own (the short form), not both",
                f"move {word} into a trigger under triggers",
                "conflict",
            )
        found: list[tuple[str, dict[str, Any], str]] = []
        for name, trigger in self._map(data, "triggers", pointer).items():
            where = f"{pointer}/triggers/{escape(name)}"
            if self._name(name, where) is not None and self._is_map(
                trigger, where, "a trigger", '{cron: "0 2 * * *"}'
            ):
                assert isinstance(trigger, dict)
                self._words(trigger, where, TRIGGER_WORDS, "a trigger")
                found.append((name, trigger, where))
        return found

    def _trigger(
        self,
        key: TriggerKey,
        data: dict[str, Any],
        shared: _Defaults,
        deployment: DeploymentSpec,
        overlay: Mapping[str, Json],
        pointer: str,
    ) -> TriggerSpec | None:
        schedule = self._schedule(key, data, shared.words, pointer)
        own = self._policy(data, pointer)
        policy = {
            word: shared.words[word]
            for word in ("catch_up", "max_age", "jitter", "overlap")
            if word in shared.words
        }
        policy |= {word: value for word, value in own.items() if word != "shadow"}
        self._completes(policy.get("overlap", Overlap.ALLOW), deployment, data, pointer)
        active = data.get("active", True)
        if not isinstance(active, bool) and active is not None:
            self._flag("active", active, pointer)
        if schedule is None:
            return None
        return TriggerSpec(
            schedule=schedule,
            target=deployment.target,
            action=deployment.action,
            parameters={**deployment.parameters, **overlay} if overlay else deployment.parameters,
            kickoff_time_arg=deployment.kickoff_time_arg,
            active=active,
            owner=deployment.owner,
            runbook=deployment.runbook,
            late_after=deployment.late_after,
            retry_for=deployment.retry_for,
            completion_timeout=deployment.completion_timeout,
            **policy,
        )

    def _schedule(
        self, key: TriggerKey, data: dict[str, Any], shared: Mapping[str, Any], pointer: str
    ) -> dict[str, Any] | None:
        """The trigger's whole rule: its own words, and those from above that mean something for its kind."""
        rules = [word for word in RULE_WORDS if word in data]
        if len(rules) != 1:
            self._bad(
                pointer,
                " and ".join(rules) or "no schedule",
                f"a trigger has one of {', '.join(RULE_WORDS)}",
                'cron: "0 2 * * *"' if not rules else "one trigger for each, under triggers",
                "conflict" if rules else "schedule",
            )
            return None
        rule = rules[0]
        if data[rule] is None:
            return None  # that it needs a value was said
        self._filled(data[rule], f"{pointer}/{rule}")
        schedule: dict[str, Any] = {word: data[word] for word in SCHEDULE_WORDS if word in data}
        for word in ("exclude", "only"):
            if word in data:
                names = self._calendar_names(data[word], f"{pointer}/{word}")
                if names is None:
                    return None
                schedule[word] = names
        for word in SHARED_WORDS:
            if word in shared and word not in schedule and _applies(word, rule, schedule, shared):
                schedule[word] = shared[word]
        used: dict[str, Calendar] = {}
        for name in sorted({name for word in ("exclude", "only") for name in schedule.get(word, ())}):
            calendar = self._calendars[name]
            if calendar is None:
                return None  # what is wrong with it was said
            used[name] = calendar
        try:
            # Parsed without the pointer, and with the seed only where it counts, so that equal rules of a
            # large file are parsed once.
            seed = str(key) if isinstance(schedule[rule], str) and "H" in schedule[rule].upper() else ""
            schedules.parse(schedule, seed=seed, calendars=used)
        except InvalidInput as error:
            self._add([problem.under(pointer) for problem in error.problems])
            return None
        if used:
            # Written into the rule, so that a revision means the same when the file has changed.
            schedule["calendars"] = {name: canonical_calendar(calendar) for name, calendar in used.items()}
        return schedule

    def _calendar_names(self, value: object, pointer: str) -> list[str] | None:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names:
            self._bad(pointer, shown(value), "this is a list of calendars' names", "[de]")
            return None
        found: list[str] = []
        for index, name in enumerate(names):
            if isinstance(name, str) and name in self._calendars:
                found.append(name)
                continue
            self._bad(
                f"{pointer}/{index}" if isinstance(value, list) else pointer,
                shown(name),
                "calendars are named under calendars" if self._calendars else "this file has no calendars",
                _close(str(name), self._calendars)
                or (f"one of {', '.join(sorted(self._calendars)[:10])}" if self._calendars else "")
                or "calendars: {de: {holidays: DE}}",
                "calendar",
            )
        return found if len(found) == len(names) else None

    # Words that several levels share.

    def _shared(self, data: Mapping[str, Any], pointer: str) -> dict[str, Any]:
        """The checked `SHARED_WORDS` of `defaults` or of a deployment with triggers."""
        words = {
            word: data[word]
            for word in ("timezone", *CRON_WORDS, "on_excluded")
            if data.get(word) is not None
        }
        checked = dict(words)
        if "on_excluded" in words and words["on_excluded"] not in list(OnExcluded):
            rule = f"on_excluded is {' or '.join(OnExcluded)}"
            self._bad(f"{pointer}/on_excluded", shown(checked.pop("on_excluded")), rule, "skip")
        plain = {word: value for word, value in words.items() if word != "on_excluded"}
        try:
            # A rule that is never evaluated makes the words whole, so that they are checked here, once.
            schedules.parse({"cron": "0 0 * * *", **plain})
        except InvalidInput as error:
            self._add([problem.under(pointer) for problem in error.problems])
            for problem in error.problems:
                checked.pop(problem.pointer.lstrip("/").split("/")[0], None)
        for word in ("exclude", "only"):
            if word in data and (names := self._calendar_names(data[word], f"{pointer}/{word}")) is not None:
                checked[word] = names
        return {**checked, **self._policy(data, pointer)}

    def _policy(self, data: Mapping[str, Any], pointer: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if data.get("catch_up") is not None:
            self._choice(data, "catch_up", CatchUp, pointer, found)
        if data.get("max_age") is not None:
            self._duration(data, "max_age", pointer, found, positive=True)
        if data.get("jitter") is not None:
            self._duration(data, "jitter", pointer, found)
        if data.get("overlap") is not None:
            self._choice(data, "overlap", Overlap, pointer, found)
        if data.get("shadow") is not None:
            if isinstance(data["shadow"], bool):
                found["shadow"] = data["shadow"]
            else:
                self._flag("shadow", data["shadow"], pointer)
        return found

    def _completes(
        self, overlap: Overlap, deployment: DeploymentSpec, data: Mapping[str, Any], pointer: str
    ) -> None:
        """Refuse an `overlap` of which the target can't tell, as it never says when a run ends."""
        kind = self._kinds.get(deployment.target)
        if overlap is Overlap.ALLOW or kind is None:
            return
        words = self._checks.kind(kind)
        where = f"{pointer}/overlap" if "overlap" in data else pointer
        if not words.completes(deployment.action):
            hint = f"{words.completes_with}, or overlap: allow" if words.completes_with else "overlap: allow"
            self._bad(
                where,
                overlap.value,
                f"the target {deployment.target} ({kind}) does not report when a run has ended",
                hint,
                "overlap",
            )
        elif overlap is Overlap.REPLACE and not words.cancels:
            self._bad(
                where,
                overlap.value,
                f"the target {deployment.target} ({kind}) can't cancel a run",
                "queue or skip",
                "overlap",
            )

    def _own(self, data: Mapping[str, Any], pointer: str) -> dict[str, Any]:
        """The checked `OWN_WORDS` that are there."""
        found: dict[str, Any] = {}
        if data.get("target") is not None:
            name = self._name(data["target"], f"{pointer}/target")
            if name is not None:
                found["target"] = name
        for word in ("kickoff_time_arg", "owner"):
            if data.get(word) is not None:
                value = data[word]
                if isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable():
                    found[word] = value
                else:
                    self._bad(
                        f"{pointer}/{word}",
                        shown(value),
                        f"{word} is 1 to 200 printable characters",
                        "quote it",
                    )
        if data.get("runbook") is not None:
            value = data["runbook"]
            if isinstance(value, str) and _URL.fullmatch(value):
                found["runbook"] = value
            else:
                self._bad(
                    f"{pointer}/runbook",
                    shown(value),
                    "a runbook is an http or https address",
                    "https://wiki.internal/job",
                )
        for word in ("late_after", "retry_for", "completion_timeout"):
            if data.get(word) is not None:
                self._duration(data, word, pointer, found, positive=word == "completion_timeout")
        return found

    def _silence(self, data: Mapping[str, Any], pointer: str) -> frozenset[str]:
        """The codes of `lint: {ignore: [...]}`, if it is there."""
        value = data.get("lint")
        where = f"{pointer}/lint"
        if value is None or not self._is_map(value, where, "lint", "{ignore: [sub_minute]}"):
            return frozenset()
        from horarium.core.lint import CODES  # late: few files have the word

        self._words(value, where, ("ignore",), "lint")
        codes = value.get("ignore", [])
        codes = [codes] if isinstance(codes, str) else codes
        if not isinstance(codes, list):
            self._bad(f"{where}/ignore", shown(codes), "ignore is a list of lint's codes", "[sub_minute]")
            return frozenset()
        for index, code in enumerate(codes):
            if code not in CODES:
                hint = _close(str(code), CODES) or ", ".join(CODES)
                self._bad(f"{where}/ignore/{index}", shown(code), "lint has no such code", hint)
        return frozenset(code for code in codes if code in CODES)

    def _parameters(self, data: Mapping[str, Any], pointer: str) -> Mapping[str, Json]:
        return self._map(data, "parameters", pointer) if "parameters" in data else {}

    def _choice(
        self, data: Mapping[str, Any], word: str, kind: type[StrEnum], pointer: str, found: dict[str, Any]
    ) -> None:
        value, words = data[word], [item.value for item in kind]
        if isinstance(value, str) and value in words:
            found[word] = kind(value)
        else:
            rule = f"{word} is {', '.join(words[:-1])} or {words[-1]}"
            self._bad(f"{pointer}/{word}", shown(value), rule, _close(str(value), words) or words[0])

    def _duration(
        self,
        data: Mapping[str, Any],
        word: str,
        pointer: str,
        found: dict[str, Any],
        *,
        positive: bool = False,
    ) -> None:
        with self._collect():
            found[word] = parse_duration(data[word], f"{pointer}/{word}", positive=positive)

    def _flag(self, word: str, value: object, pointer: str) -> None:
        hint = "true or false, without quotes"
        if isinstance(value, str) and value.lower() in ("yes", "no", "on", "off", "y", "n"):
            hint = f"{str(value.lower() in ('yes', 'on', 'y')).lower()}; in YAML 1.2 {value} is text"
        self._bad(f"{pointer}/{word}", shown(value), f"{word} is true or false", hint)

    # Renames.

    def _former(self, data: Mapping[str, Any], pointer: str, key: DeploymentKey) -> str | None:
        """`renamed_from` of a deployment with triggers: the name it had."""
        if "triggers" not in data:
            return None
        name = data["renamed_from"]
        return self._name(name, f"{pointer}/renamed_from")

    def _renamed(
        self, key: TriggerKey, data: Mapping[str, Any], pointer: str, former: str | None, *, short: bool
    ) -> str | None:
        """The whole key that the trigger had before, or None.

        In the short form a single name is the deployment's; on a trigger it is the trigger's. `A/B` is
        deployment and trigger, and four parts are the whole key.
        """
        if "renamed_from" not in data:
            return None if former is None else str(replace(key, deployment=former))
        where = f"{pointer}/renamed_from"
        value = data["renamed_from"]
        parts = value.split("/") if isinstance(value, str) else []
        if len(parts) not in (1, 2, 4) or not all(NAME.fullmatch(part) for part in parts):
            self._bad(
                where,
                shown(value),
                "renamed_from is the former name, deployment/name, or project/domain/deployment/name",
                "end-of-month",
            )
            return None
        match parts:
            case [name]:
                old = (
                    replace(key, deployment=name)
                    if short
                    else replace(key, deployment=former or key.deployment, name=name)
                )
            case [deployment, name]:
                old = replace(key, deployment=deployment, name=name)
            case _:
                old = TriggerKey(*parts)
        if old == key:
            self._bad(where, shown(value), "renamed_from is another name than the present one", "take it out")
            return None
        other = self._found.renamed.setdefault(str(old), where)
        if other != where:
            self._bad(
                where,
                shown(value),
                f"one trigger takes over from another; {other} takes this one too",
                "one of them",
            )
        return str(old)

    def _check_renames(self) -> None:
        here = {str(key): pointer for key, pointer in self._found.pointers.items()}
        for old, where in self._found.renamed.items():
            if old in here:
                self._bad(
                    where, old, f"that trigger is still in the file ({here[old]})", "take one of them out"
                )

    # Problems.

    def _words(
        self,
        data: Mapping[str, Any],
        pointer: str,
        words: tuple[str, ...],
        what: str,
        later: tuple[str, ...] = LATER_WORDS,
        more: tuple[str, ...] = (),
        kind: str | None = None,
    ) -> None:
        """Refuses keys that are not in `words`, and known ones without a value."""
        for word, value in data.items():
            if word in words or word in more:
                if value is None and word not in _MAY_BE_EMPTY and word not in self._target_kinds:
                    self._empty(pointer, word)
                continue
            where = f"{pointer}/{escape(word)}"
            if word in later:
                self._bad(where, word, f"{word} does not work yet", "take it out", "not-yet")
            else:
                hint = self._hint(word, value, (*words, *more), what, kind)
                self._bad(where, shown(word), f"{what} has no such field", hint, "unknown-key")

    def _hint(self, word: str, value: object, words: tuple[str, ...], what: str, kind: str | None) -> str:
        if value is None and re.match(r"[\d*?/]", word):
            return "in { } a comma ends the value: quote the whole cron expression"
        if what == "a trigger" and (word in DEPLOYMENT_WORDS or word in self._every_action_word):
            return f"{word} belongs to the deployment, one level up"
        if what == "a deployment" and word in self._every_action_word:
            return f"{word} belongs to targets of another kind; this one is {kind}"
        if what == "defaults" and (word in DEPLOYMENT_WORDS or word in self._every_action_word):
            return f"{word} belongs to a deployment"
        other = _OTHER_NAMES.get(word.lower())
        if other is not None and other.split(":")[0] in words:
            return f"did you mean {other}?"
        if close := _close(word, words):
            return f"did you mean {close}?"
        return f"one of {', '.join(sorted(set(words)))}"

    def _filled(self, value: object, pointer: str) -> None:
        """Refuses fields without a value in a mapping that somebody else checks, for whom they are absent."""
        for word, inner in value.items() if isinstance(value, dict) else ():
            if inner is None:
                self._empty(pointer, word)

    def _empty(self, pointer: str, word: str) -> None:
        where = f"{pointer}/{escape(word)}"
        self._bad(where, "nothing", f"{word} needs a value", "write one, or take the line out", "empty")

    def _map(self, data: Mapping[str, Any], word: str, pointer: str) -> dict[str, Any]:
        """The mapping under `word`; one that is left empty has no fields."""
        value = data.get(word)
        if value is None:
            return {}
        if isinstance(value, dict):
            return value
        self._bad(
            f"{pointer}/{word}", shown(value), f"{word} is a mapping", f"{word}: {{name: ...}}", "mapping"
        )
        return {}

    def _is_map(self, value: object, pointer: str, what: str, hint: str) -> bool:
        if isinstance(value, dict):
            return True
        self._bad(
            pointer, "nothing" if value is None else shown(value), f"{what} is a mapping", hint, "mapping"
        )
        return False

    def _name(self, value: object, pointer: str) -> str | None:
        with self._collect():
            return check_name(value, pointer)
        return None

    def _collect(self) -> _Collect:
        """Keeps the problems that are raised inside, and goes on after it."""
        return _Collect(self._add)

    def _bad(self, pointer: str, got: str, rule: str, hint: str = "", code: str = "invalid") -> None:
        self._add([Problem(pointer, got, rule, hint, code=code)])

    def _add(self, problems: list[Problem] | tuple[Problem, ...]) -> None:
        self.problems.extend(problems)
        if len(self.problems) >= MAX_PROBLEMS:
            del self.problems[MAX_PROBLEMS:]
            rule = f"the file was not read further after {MAX_PROBLEMS} problems"
            self.problems.append(Problem("", "more problems", rule, "mend these first", code="more"))
            raise _Enough


def _either(own: object, above: object) -> bool | None:
    """The nearer of two flags; whether it is one was checked."""
    return next((value for value in (own, above) if isinstance(value, bool)), None)


_URL = re.compile(r"https?://[!-~]{1,2000}", re.IGNORECASE)
_MAY_BE_EMPTY = frozenset(
    {"body", "calendars", "defaults", "deployments", "parameters", "targets", "triggers"}
)
_OFFSET = re.compile(r"(?:[Zz]|[+-]\d\d:?\d\d)$")

_OTHER_NAMES = {
    "annotations": "parameters",
    "args": "parameters",
    "arguments": "parameters",
    "catchup": "catch_up",
    "cmd": "run",
    "command": "run",
    "crontab": "cron",
    "date": "at",
    "directory": "cwd",
    "disabled": "active: false",
    "enabled": "active",
    "environment": "env",
    "function": "python",
    "inputs": "parameters",
    "interval": "every",
    "jobs": "deployments",
    "once": "at",
    "params": "parameters",
    "paused": "active: false; or pause it by horarium triggers pause",
    "repeat": "every",
    "retries": "retry_for",
    "schedule": "cron",
    "schedules": "triggers",
    "script": "run",
    "tasks": "deployments",
    "tz": "timezone",
    "until": "end",
    "when": "at",
    "working_directory": "cwd",
    "workdir": "cwd",
}
"""What other schedulers call our fields."""


def _close(word: str, words: Iterable[str]) -> str:
    lower = {name.lower(): name for name in words}
    found = difflib.get_close_matches(word.lower()[:100], lower, 1, 0.6)
    return lower[found[0]] if found else ""


def _with_local_defaults(action: Mapping[str, Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """A local action over the file's defaults; a function and a list of arguments have no shell."""
    if not defaults:
        return action
    words = {
        word: value
        for word, value in defaults.items()
        if word != "shell" or isinstance(action.get("run"), str)
    }
    env = action.get("env")
    if "env" in words and isinstance(env, dict):
        words["env"] = {**words["env"], **env}
        return {**action, **words} if len(words) == 1 else {**words, **action, "env": words["env"]}
    return {**words, **action}


def _applies(word: str, rule: str, schedule: Mapping[str, Any], shared: Mapping[str, Any]) -> bool:
    """Whether a word from above says anything about this rule. What says nothing stays out, so that a changed
    default is no edit of triggers that don't depend on it."""
    match word:
        case "timezone":
            value = schedule[rule]
            if rule == "cron":
                return not (isinstance(value, str) and value.lstrip().startswith(("CRON_TZ=", "TZ=")))
            if rule == "at":
                return not (isinstance(value, str) and _OFFSET.search(value))
            if rule == "every" and not isinstance(value, dict):
                return any(key in schedule or key in shared for key in ("start", "end", "exclude", "only"))
            return True
        case "dialect":
            return rule == "cron"
        case "dst" | "day_or":
            return rule == "cron" and schedule.get("dialect", shared.get("dialect")) != "robfig"
        case "exclude" | "only":
            return rule != "at"
        case "on_excluded":
            return rule != "at" and any(key in schedule or key in shared for key in ("exclude", "only"))
        case _:
            return False


def _distinct(overlays: list[Mapping[str, Json]]) -> list[Mapping[str, Json]]:
    found: list[Mapping[str, Json]] = []
    for overlay in overlays:
        if overlay not in found:
            found.append(overlay)
    return found


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
