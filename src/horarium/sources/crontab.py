"""A crontab becomes a triggers file that behaves as cron does.

`import_crontab` is pure on text. What it writes out is what cron does without being told: jobs run under
`/bin/sh` with cron's short PATH, from the home directory, in the host's time zone, with Vixie's rules at
DST changes, and a slot that passed while cron was down is gone (`catch_up: none`). A line that can't be
carried over faithfully is never bent until it fits: it is left out, and named with its line and the reason.

The rules are those of Vixie cron as Debian and cronie have them: crontab(5), and for `%` the translation
that their `do_command.c` documents.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from horarium.core import schedule as schedules
from horarium.core.spec import Json
from horarium.errors import InvalidInput
from horarium.sources.imported import Drop, Entry, Imported, Report, check_schedule, unique_names, written

CRON_PATH = "/usr/bin:/bin"
DEFAULT_SHELL = "/bin/sh"
"""The PATH and SHELL of a job whose crontab sets none."""


def import_crontab(
    text: str,
    path: str,
    *,
    timezone: str,
    system: bool = False,
    home: str | None = None,
    user: str | None = None,
) -> Imported:
    """The triggers file of the crontab `text`.

    `path` names the source (`-` for standard input). `timezone` is the zone of the host whose cron ran it
    (`host_timezone`), `home` the directory that jobs start in. `system` is the form of /etc/crontab, with a
    user before the command; entries of another user than `user` are dropped, because Horarium runs every
    command as itself (None: any user is taken, with a note). Raises `InvalidInput` if `timezone` is no zone.
    """
    schedules.parse({"cron": "0 0 * * *", "timezone": timezone})
    jobs: list[_Job] = []
    report = Report()
    variables: dict[str, str] = {}
    comments: list[str] = []
    for number, raw in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        line = raw.strip(" \t\f\v")
        if not line:
            comments = []
        elif line.startswith("#"):
            comments.append(line.lstrip("#").strip())
        elif (variable := _variable(line)) is not None:
            comments = []
            name, value = variable
            for note in _about_variable(name, value):
                report.note(number, note)
            variables[name] = value
        else:
            try:
                job, said = _job(number, line, dict(variables), timezone, system, home, user)
            except Drop as drop:
                report.drop(number, line, str(drop))
            else:
                jobs.append(replace(job, comments=tuple(comments)))
                for note in said:
                    report.note(number, note)
            comments = []
    return _written(jobs, "crontab" if path == "-" else path, timezone, report)


def host_timezone(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> str | None:
    """The name of the host's zone: `TZ`, where /etc/localtime leads, or /etc/timezone; None if none says."""
    named = (os.environ if environ is None else environ).get("TZ", "").lstrip(":")
    candidates = [named]
    with suppress(OSError):  # a copy, or nothing: the next place may say
        _, found, zone = os.readlink(root / "etc/localtime").partition("zoneinfo/")
        if found:
            candidates.append(zone)
    with suppress(OSError, UnicodeDecodeError):
        candidates.append((root / "etc/timezone").read_text().strip())
    for zone in candidates:
        # A POSIX rule (`CET-1CEST,...`) and a path are no names of a zone.
        name = zone.removeprefix("posix/").removeprefix("right/")
        if name and _is_zone(name):
            return name
    return None


def _is_zone(name: str) -> bool:
    try:
        schedules.parse({"cron": "0 0 * * *", "timezone": name})
    except InvalidInput:
        return False
    return True


# --- reading ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    line: int
    text: str
    cron: str
    command: str
    stdin: str | None
    env: Mapping[str, str]
    shell: str
    cwd: str | None
    timezone: str
    jitter: str | None
    comments: tuple[str, ...] = ()


_VARIABLE = re.compile(
    r"""(?:"(?P<dq>[^"]*)"|'(?P<sq>[^']*)'|(?P<name>[^\s="']+))[ \t]*=[ \t]*"""
    r"""(?:"(?P<dv>[^"]*)"|'(?P<sv>[^']*)'|(?P<value>[^"'].*|))"""
)


def _variable(line: str) -> tuple[str, str] | None:
    """Name and value if the line sets a variable: `NAME = value`, either side may be quoted."""
    found = _VARIABLE.fullmatch(line)
    if found is None:
        return None
    name = next(found[group] for group in ("dq", "sq", "name") if found[group] is not None)
    value = next(found[group] for group in ("dv", "sv", "value") if found[group] is not None)
    return (name, value) if name else None


def _about_variable(name: str, value: str) -> list[str]:
    match name:
        case "MAILTO" if value:
            return [f"cron mailed output to {value}; Horarium keeps it with the run (horarium runs logs)"]
        case "TZ":
            return [
                "TZ is the commands' zone; when they run is decided by CRON_TZ or the host's zone, as in cron"
            ]
        case "LOGNAME" | "USER":
            return [f"cron ignores {name} here; so does the import"]
    return []


_NICKNAMES = {
    "@annually": "@yearly",
    "@yearly": "@yearly",
    "@monthly": "@monthly",
    "@weekly": "@weekly",
    "@daily": "@daily",
    "@midnight": "@daily",
    "@hourly": "@hourly",
    "@every_minute": "* * * * *",
}
_FIELDS = re.compile(r"(\S+)[ \t]+(\S+)[ \t]+(\S+)[ \t]+(\S+)[ \t]+(\S+)(?:[ \t]+(.*))?")
_RANDOM = re.compile(r"(\d*)~(\d*)")
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_SCHEDULING = {"CRON_TZ", "RANDOM_DELAY", "LOGNAME", "USER"}
"""Variables that tell cron something and are not passed on to jobs."""


def _job(
    number: int,
    line: str,
    variables: dict[str, str],
    timezone: str,
    system: bool,
    home: str | None,
    user: str | None,
) -> tuple[_Job, list[str]]:
    notes: list[str] = []
    rest = line
    if re.match(r"-[\d*]", rest):
        notes.append("a leading - tells cronie to log nothing; Horarium keeps every run")
        rest = rest[1:]
    if rest.startswith("@"):
        nickname, rest = _first_word(rest)
        cron = _nickname(nickname)
    else:
        found = _FIELDS.fullmatch(rest)
        if found is None:
            raise Drop("neither a variable nor five fields and a command")
        fields = [found[index] for index in range(1, 6)]
        for field in fields:
            _only_crons_words(field)
        cron = " ".join(_random(field, bounds, notes) for field, bounds in zip(fields, _BOUNDS, strict=True))
        rest = found[6] or ""
    rest = rest.lstrip(" \t")
    if system:
        rest = _without_user(rest, user, notes)
    command, stdin = _split_percent(rest)
    if not command.strip():
        raise Drop("there is no command")
    zone = variables.get("CRON_TZ") or timezone  # set to nothing, cronie goes back to the host's
    check_schedule({"cron": cron, "timezone": zone, "dst": "vixie"}, seed=str(number))
    env = {"SHELL": DEFAULT_SHELL, "PATH": CRON_PATH}
    if home is not None:
        env["HOME"] = home
    env |= {name: value for name, value in variables.items() if name not in _SCHEDULING}
    job = _Job(
        number,
        line,
        cron,
        command,
        stdin,
        env,
        env["SHELL"] or DEFAULT_SHELL,
        env.get("HOME") or None,
        zone,
        _delay(variables.get("RANDOM_DELAY"), notes),
    )
    _check_text(job)
    return job, notes


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMES = frozenset((*_MONTHS, "sun", "mon", "tue", "wed", "thu", "fri", "sat"))


def _only_crons_words(field: str) -> None:
    """What cron refuses never ran, so it must not begin to run here because Horarium knows the form."""
    for word in re.findall(r"[A-Za-z]+|[^0-9A-Za-z*,/~-]", field):
        if word.lower() not in _NAMES:
            raise Drop(
                f"{word!r} in {field!r} is no word of cron's, so cron refuses the line; if it is meant as "
                "Horarium has it, add the trigger by hand"
            )


def _nickname(nickname: str) -> str:
    lower = nickname.lower()
    if lower == "@reboot":
        raise Drop("@reboot is an event, not a time: start it from the host's init system")
    if lower in _NICKNAMES:
        return _NICKNAMES[lower]
    raise Drop(f"{nickname} is none of {', '.join(sorted(_NICKNAMES))}")


def _random(text: str, bounds: tuple[int, int], notes: list[str]) -> str:
    """`a~b` of cronie and OpenBSD, a number drawn when cron starts, as `H`, one drawn once for ever."""
    if "~" not in text:
        return text
    low, high = bounds
    parts: list[str] = []
    for part in text.split(","):
        found = _RANDOM.fullmatch(part)
        if "~" in part and found is None:
            raise Drop(f"{part} mixes ~ with something else")
        if found is None:
            parts.append(part)
            continue
        first, last = int(found[1] or low), int(found[2] or high)
        parts.append("H" if (first, last) == bounds else f"H({first}-{last})")
    written = ",".join(parts)
    notes.append(f"{text} is a random number at each start of cron; {written} is one that stays")
    return written


def _without_user(rest: str, user: str | None, notes: list[str]) -> str:
    who, command = _first_word(rest)
    if not command:
        raise Drop("the system form has a user before the command; is this a user's crontab?")
    if user is None:
        notes.append(f"cron ran it as {who}; Horarium runs it as itself")
    elif who != user:
        raise Drop(f"it runs as {who}, and Horarium runs commands as itself ({user}): import it under {who}")
    return command


def _first_word(text: str) -> tuple[str, str]:
    word, *rest = re.split(r"[ \t]+", text, maxsplit=1)
    return word, rest[0] if rest else ""


def _split_percent(text: str) -> tuple[str, str | None]:
    r"""Command and input: the first bare `%` ends the command, others are newlines, `\%` is `%`."""
    command: list[str] = []
    escaped = False
    for at, character in enumerate(text):
        if escaped:
            if character == "%":
                command.pop()
            command.append(character)
            escaped = False
        elif character == "%":
            return "".join(command), _stdin(text[at + 1 :])
        else:
            command.append(character)
            escaped = character == "\\"
    return "".join(command), None


def _stdin(text: str) -> str | None:
    out: list[str] = []
    escaped = False
    for character in text:
        if escaped and character != "%":
            out.append("\\")
        written = "\n" if character == "%" and not escaped else character
        escaped = written == "\\"
        if not escaped:
            out.append(written)
    if escaped:
        out.append("\\")
    if out and out[-1] != "\n":
        out.append("\n")
    return "".join(out) or None


def _delay(minutes: str | None, notes: list[str]) -> str | None:
    if minutes is None or not minutes.strip():
        return None
    if not re.fullmatch(r"\d{1,4}", minutes.strip()):
        notes.append(f"RANDOM_DELAY={minutes} is no number of minutes, and is left out")
        return None
    return f"{int(minutes)}m" if int(minutes) else None


def _check_text(job: _Job) -> None:
    for name, value in job.env.items():
        if re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*", value):
            raise Drop(f"{name}={value} reads like a reference to a variable of Horarium's own")
        if name.startswith("HORARIUM_"):
            raise Drop(f"{name}: names that begin with HORARIUM_ are Horarium's own")
    for text in (job.command, job.stdin or "", *job.env, *job.env.values(), job.cwd or ""):
        if "\0" in text:
            raise Drop("it holds a NUL character")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise Drop("it holds bytes that are not UTF-8")


# --- naming -------------------------------------------------------------------------------------------

_SETTING_UP = frozenset(
    {".", "[", "cd", "exit", "export", "set", "sleep", "source", "test", "true", "umask", "ulimit"}
)
"""Commands that come before the one that a job is about."""
# fmt: off
_WRAPPERS = frozenset({
    "bash", "chronic", "command", "dash", "do", "env", "exec", "if", "ionice", "java", "ksh", "nice", "node",
    "nohup", "perl", "php", "python", "python2", "python3", "ruby", "setsid", "sh", "stdbuf", "sudo", "then",
    "time", "zsh",
})
# fmt: on
"""Words that say how, not what."""
_WITH_ARGUMENT = frozenset({"flock", "timeout"})
"""Wrappers whose first argument belongs to them."""


def _names(jobs: list[_Job]) -> list[str]:
    """A name for each job: from its command, so that it stays when other lines come and go."""
    return unique_names(
        (_slug(job.command), "\0".join((job.cron, job.timezone, job.command, job.stdin or "")))
        for job in jobs
    )


def _slug(command: str) -> str:
    """What the command runs, in a word or two: the first that is no wrapper, and a subcommand after it."""
    for part in re.split(r"&&|\|\||[;|(){}&]", command):
        words = part.split()
        if words and words[0] not in _SETTING_UP and (picked := _picked(words)):
            return picked
    return "job"


def _picked(words: list[str]) -> str:
    picked: list[str] = []
    argument = False
    for word in words:
        base = os.path.basename(word.strip("'\"").rstrip("/"))
        if picked:
            if re.fullmatch(r"[A-Za-z][\w:-]{2,}", word):
                picked.append(word)
            break
        if word.startswith(("-", "$")) or "=" in word or not re.search(r"[A-Za-z]", base):
            if argument and not word.startswith("-"):
                argument = False
        elif argument:
            argument = False
        elif base in _WITH_ARGUMENT:
            argument = True
        elif base not in _WRAPPERS and not re.fullmatch(r"python3\.\d+", base):
            picked.append(re.sub(r"\.(sh|py|pl|php|rb|js|jar|bash)$", "", base))
    return re.sub(r"[^a-z0-9]+", "-", "-".join(picked).lower())[:40].strip("-")


# --- writing ------------------------------------------------------------------------------------------


def _written(jobs: list[_Job], source: str, timezone: str, report: Report) -> Imported:
    shared_env = _shared([job.env for job in jobs])
    cwds = {job.cwd for job in jobs}
    shared_cwd = cwds.pop() if len(cwds) == 1 else None
    defaults: dict[str, Json] = {
        "timezone": timezone,
        "catch_up": "none",
        "dst": "vixie",
        "shell": True,
    }
    if shared_cwd is not None:
        defaults["cwd"] = shared_cwd
    if shared_env:
        defaults["env"] = {**shared_env}
    entries: list[Entry] = []
    for job, name in zip(jobs, _names(jobs), strict=True):
        # As cron starts it: the shell of the crontab, -c, the command.
        run: Json = job.command if job.shell == DEFAULT_SHELL else [job.shell, "-c", job.command]
        words: dict[str, Json] = {"run": run, "cron": job.cron}
        if job.stdin is not None:
            words["stdin"] = job.stdin
        if job.timezone != timezone:
            words["timezone"] = job.timezone
        if job.jitter is not None:
            words["jitter"] = job.jitter
        if job.cwd is not None and job.cwd != shared_cwd:
            words["cwd"] = job.cwd
        own = {key: value for key, value in job.env.items() if shared_env.get(key) != value}
        if own:
            words["env"] = {**own}
        entries.append(Entry(name, job.line, words, job.comments))
    return written(
        f"Imported from the crontab {source}: behaves as cron does.",
        source,
        entries,
        report,
        defaults=defaults,
    )


def _shared(environments: list[Mapping[str, str]]) -> dict[str, str]:
    """The variables that every job has with one value."""
    counts: Counter[tuple[str, str]] = Counter(item for env in environments for item in env.items())
    return {name: value for (name, value), count in counts.items() if count == len(environments)}
