"""Runs the code blocks of a page of documentation, in order, as a reader would.

A page has one empty folder (with a copy of `examples/`), and its blocks share it:

- ```console   each `$ command` runs in bash with the installed `horarium`; the lines under it are what it
               prints. It must exit 0, unless the next command is `$ echo $?`. `$ command &` runs on while
               the page goes on, `$ kill %1` ends it, and a line `^C` presses Ctrl-C once what stands above
               it was printed.
- ```python    a program of its own; with `>>>` lines, a doctest.
- ```yaml, ```json, ```toml    must parse. `yaml triggers` is also validated as a triggers file.
               The word `flyte` after `console` or `python`: Flyte's SDK is there too, as
               `requirements/flyte-sdk.txt` pins it.
- ```text, ```crontab, ```mermaid, ```http, ```sql   are shown, not run.

`file=NAME` after the language also writes the block to NAME in the page's folder. A block opts out by
an HTML comment above it that gives the reason: `<!-- not run: needs a clean clone -->`.

What is printed is compared line by line. `...` alone on a line stands for any lines, inside a line for
any text. Runs of spaces count as one. Where the command names no instant itself, times, run names and
measured durations are compared by their shape, since they differ each time; where it does, as in
`preview --from 2026-03-29`, they must be equal.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ruamel.yaml import YAML

from tests.environments import environment

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
"""Seconds that one command may take, and that output of a command in the background is waited for."""

SHOWN = {"text", "crontab", "mermaid", "http", "sql"}
PORT = "8090"
"""The port that the pages name; each run takes a free one in its place."""


class DocumentationError(AssertionError):
    """A page says what isn't so. The message begins with file and line."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: where its first line stands (1-based), its language, the words after it, its text."""

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str
    opt_out: str | None = None

    @property
    def file(self) -> str | None:
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)


@dataclass(frozen=True, slots=True)
class Command:
    """One `$ command` of a console block with the lines that it should print."""

    line: int
    text: str
    output: tuple[str, ...]

    @property
    def in_background(self) -> bool:
        return self.text.endswith(" &")


def run_page(page: Path, folder: Path) -> int:
    """Run every block of `page` in `folder`; how many were checked. Raises DocumentationError."""
    if (ROOT / "examples").is_dir():
        shutil.copytree(ROOT / "examples", folder / "examples", dirs_exist_ok=True)
    checked = 0
    session = Session(page, folder)
    try:
        for block in blocks_of(page):
            if block.opt_out is None:
                run_block(block, session)
                checked += block.language not in SHOWN
    finally:
        session.close()
    return checked


def run_block(block: Block, session: Session) -> None:
    if block.file is not None:
        path = session.folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(session.with_own_port(block.text))
    match block.language:
        case "console":
            for command, following in pairs(commands_of(block)):
                session.run(command, shows_status=following is not None and following.text == "echo $?")
        case "python":
            run_python(block, session)
        case "yaml":
            check_data(block, lambda text: list(YAML(typ="safe", pure=True).load_all(text)))
            if "triggers" in block.words:
                path = session.folder / (block.file or f"block-{block.line}.yaml")
                path.write_text(session.with_own_port(block.text))
                session.run(
                    Command(block.line, f"horarium validate {path.name}", ("...",)), shows_status=False
                )
        case "json":
            check_data(block, json.loads)
        case "toml":
            check_data(block, tomllib.loads)
        case language if language in SHOWN:
            pass
        case language:
            raise DocumentationError(
                f"{block.page.name}:{block.line}: got a block of {language or 'no language'!r}: a block is "
                f"run or shown; try: ```console with `$ ` before each command, or ```text"
            )


def check_data(block: Block, parse: Callable[[str], object]) -> None:
    try:
        parse(block.text)
    except Exception as error:
        raise DocumentationError(f"{block.page.name}:{block.line}: not {block.language}: {error}") from error


def run_python(block: Block, session: Session) -> None:
    is_doctest = re.search("^>>> ", block.text, re.MULTILINE)
    # doctest reads a program for its docstrings, and any other file as one.
    path = session.folder / f"block-{block.line}.{'txt' if is_doctest else 'py'}"
    # Empty lines above, so that a traceback names the page's own line.
    path.write_text("\n" * (block.line - 1) + session.with_own_port(block.text))
    options = ["-m", "doctest", "-o", "ELLIPSIS", "-o", "NORMALIZE_WHITESPACE"] if is_doctest else []
    interpreter = str(environment("flyte-sdk")) if "flyte" in block.words else sys.executable
    done = subprocess.run(
        [interpreter, *options, path.name],
        cwd=session.folder,
        env=session.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode != 0:
        raise DocumentationError(f"{block.page.name}:{block.line}: python failed\n{done.stdout}{done.stderr}")


# --- reading a page ---------------------------------------------------------------------------------------

FENCE = re.compile(r"^(?P<indent> {0,3})(?P<fence>`{3,})(?P<info>[^`]*)$")
OPT_OUT = re.compile(r"<!--\s*not run\s*(?::\s*(?P<reason>.*?))?\s*-->")


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of `page`. An opt-out without a reason is refused."""
    lines = page.read_text().splitlines()
    above = ""
    number = 0
    while number < len(lines):
        line = lines[number]
        opening = FENCE.match(line)
        if opening is None:
            above = line if line.strip() else above
            number += 1
            continue
        closing = re.compile(rf"^ {{0,3}}{opening['fence']}`*\s*$")
        end = next((i for i in range(number + 1, len(lines)) if closing.match(lines[i])), None)
        if end is None:
            raise DocumentationError(f"{page.name}:{number + 1}: a block that is never closed")
        opt_out = OPT_OUT.search(above)
        if opt_out is not None and not opt_out["reason"]:
            raise DocumentationError(f"{page.name}:{number}: 'not run' needs a reason: <!-- not run: why -->")
        language, *words = opening["info"].split() or [""]
        inside = [text.removeprefix(opening["indent"]) for text in lines[number + 1 : end]]
        yield Block(
            page=page,
            line=number + 2,
            language=language,
            words=tuple(words),
            text="".join(f"{text}\n" for text in inside),
            opt_out=opt_out["reason"] if opt_out else None,
        )
        above = ""
        number = end + 1


def commands_of(block: Block) -> list[Command]:
    """The `$ ` lines of a console block, `\\` at a line's end carrying on, with what follows each."""
    commands: list[Command] = []
    lines = block.text.splitlines()
    number = 0
    while number < len(lines):
        if not lines[number].startswith("$ "):
            raise DocumentationError(
                f"{block.page.name}:{block.line + number}: got {lines[number]!r}: "
                "a console block begins with `$ `"
            )
        began = number
        text = lines[number].removeprefix("$ ")
        while text.endswith("\\") and number + 1 < len(lines):
            number += 1
            text = f"{text}\n{lines[number].removeprefix('> ')}"
        number += 1
        output = []
        while number < len(lines) and not lines[number].startswith("$ "):
            output.append(lines[number])
            number += 1
        while output and not output[-1].strip():
            output.pop()
        commands.append(Command(block.line + began, text, tuple(output)))
    return commands


def pairs(commands: list[Command]) -> Iterator[tuple[Command, Command | None]]:
    yield from zip(commands, [*commands[1:], None], strict=True)


# --- running commands -------------------------------------------------------------------------------------


@dataclass
class Session:
    """A reader at a terminal: a folder, an environment that `cd` and `export` change, jobs."""

    page: Path
    folder: Path
    jobs: list[Job] = field(default_factory=list)
    """What runs in the background, as `%1`, `%2` ... name it; `started` has the others too."""
    started: list[Job] = field(default_factory=list)
    port: str = field(default_factory=lambda: str(free_port()))

    def __post_init__(self) -> None:
        state = self.folder / ".state"
        state.write_text("")
        self.state = shlex.quote(str(state))
        self.environment = {
            # The interpreter's own folder first: `horarium` is the one that these tests are for.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "TERM": "dumb",
            "PYTHONUNBUFFERED": "1",
            "HORARIUM_PORT": self.port,
            "FLYTE_DISABLE_TELEMETRY": "true",
        }
        if any("flyte" in block.words for block in blocks_of(self.page)):
            # Behind all others: of what is in both, ours is the one that is meant.
            self.environment["PATH"] += f"{os.pathsep}{environment('flyte-sdk').parent}"

    def run(self, command: Command, *, shows_status: bool) -> None:
        """Run `command` and compare what it prints. Raises DocumentationError."""
        if kill := re.fullmatch(r"kill(?: -(\w+))? %(\d+)", command.text):
            self.kill(command, kill[1] or "TERM", int(kill[2]))
            return
        text = self.with_own_port(command.text.removesuffix(" &"))
        if command.in_background:
            job = self.start(command, f". {self.state}\nexec {text}")
            self.jobs.append(job)
            self.expect(command, job, command.output, to_end=False)
        elif "^C" in command.output:
            job = self.start(command, f". {self.state}\nexec {text}")
            before = command.output[: command.output.index("^C")]
            self.expect(command, job, before, to_end=False)
            job.signal(signal.SIGINT)
            rest = tuple(line for line in command.output if line != "^C")
            self.expect(command, job, rest, to_end=True)
            self.expect_status(command, job, allowed={0, 130, -signal.SIGINT})
        else:
            job = self.start(command, f". {self.state}\n{text}\n{remember(self.state)}")
            self.expect(command, job, command.output, to_end=True)
            if not shows_status:
                self.expect_status(command, job, allowed={0})

    def start(self, command: Command, script: str) -> Job:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        job = Job(process)
        self.started.append(job)
        return job

    def with_own_port(self, text: str) -> str:
        """`text` for this run: where the page says 8090, the free port that was taken for it."""
        return text.replace(PORT, self.port)

    def kill(self, command: Command, name: str, number: int) -> None:
        if not 1 <= number <= len(self.jobs):
            raise DocumentationError(f"{self.page.name}:{command.line}: there is no job %{number}")
        job = self.jobs[number - 1]
        wanted = signal.Signals(int(name)) if name.isdigit() else signal.Signals[f"SIG{name}"]
        seen = len(job.printed())
        job.signal(wanted)
        # What the job prints as it ends stands under the `kill`.
        self.expect(command, job, command.output or ("...",), to_end=True, skip=seen)

    def expect(
        self, command: Command, job: Job, output: tuple[str, ...], *, to_end: bool, skip: int = 0
    ) -> None:
        exact = names_an_instant(command.text)
        pattern = pattern_of(output, exact=exact, to_end=to_end)

        def actual() -> str:
            return comparable("\n".join(job.printed()[skip:]).replace(self.port, PORT), exact=exact)

        if to_end:
            in_time = job.wait_for_end()
            good = in_time and pattern.fullmatch(actual()) is not None
        else:
            in_time = job.wait_until(lambda: job.ended or pattern.match(actual()) is not None)
            good = pattern.match(actual()) is not None
        if not good:
            why = "" if in_time else f"after {PATIENCE:.0f} s it still ran\n"
            raise DocumentationError(
                f"{self.page.name}:{command.line}: $ {command.text}\n{why}"
                "--- the page says\n"
                + "\n".join(output)
                + "\n--- it printed\n"
                + "\n".join(job.printed()[skip:])
            )

    def expect_status(self, command: Command, job: Job, *, allowed: set[int]) -> None:
        status = job.process.wait(PATIENCE)
        if status not in allowed:
            raise DocumentationError(
                f"{self.page.name}:{command.line}: $ {command.text}\nexit code {status}; "
                "if the page means it, show it by `$ echo $?` below\n" + "\n".join(job.printed())
            )

    def close(self) -> None:
        for job in self.started:
            job.signal(signal.SIGKILL)
            job.wait_for_end()


def remember(state: str) -> str:
    """Shell lines that keep the folder, the exports and `$?` for the next command."""
    return (
        "status=$?\n"
        f"{{ export -p | grep -v -e ' OLDPWD' -e ' SHLVL'; printf 'cd %q\\n' \"$PWD\"\n"
        f'echo "(exit $status)"; }} >{state}\n'
        "exit $status"
    )


class Job:
    """A process and what it has printed so far, which can be waited for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.ended = False
        self._lines: list[str] = []
        self._news = threading.Condition()
        assert process.stdout is not None
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._news:
                    self._lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        self.process.wait()
        with self._news:
            self.ended = True
            self._news.notify_all()

    def printed(self) -> list[str]:
        with self._news:
            return list(self._lines)

    def wait_until(self, condition: Callable[[], object]) -> bool:
        """Wait until `condition()` holds, looked at whenever something is printed; False after PATIENCE."""
        with self._news:
            return self._news.wait_for(lambda: bool(condition()), PATIENCE)

    def wait_for_end(self) -> bool:
        return self.wait_until(lambda: self.ended)

    def signal(self, number: signal.Signals) -> None:
        """To the whole group, as a terminal does."""
        if not self.ended:
            os.killpg(self.process.pid, number)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


# --- comparing --------------------------------------------------------------------------------------------

INSTANT = re.compile(r"\d{4}-\d\d-\d\d")
SHAPES = [
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "<date>"),
    (re.compile(r"\b\d\d:\d\d(:\d\d(\.\d+)?)?Z?\b"), "<clock>"),
    (re.compile(r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b"), "<day>"),
    (re.compile(r"\b\d+(\.\d+)? (ms|µs|s)\b"), "<seconds>"),
    (re.compile(r"\b[rm](?=[a-z]*\d)[0-9a-z]{8,29}\b"), "<run>"),
    (re.compile(r"\bpid[ =]\d+"), "<pid>"),
]


def names_an_instant(command: str) -> bool:
    """Whether the command itself names an instant, so that what it prints is the same every time."""
    return INSTANT.search(command) is not None


def comparable(text: str, *, exact: bool) -> str:
    """`text` as it is compared: spaces and table rules in one width, what differs each time by its shape."""
    lines = []
    for line in text.splitlines():
        plain = re.sub(r"\s+", " ", re.sub(r"([─━═-])\1{2,}", r"\1\1\1", line)).rstrip()
        if not exact:
            for shape, name in SHAPES:
                plain = shape.sub(name, plain)
        lines.append(plain)
    return "".join(f"{line}\n" for line in lines).strip("\n") + "\n"


def pattern_of(output: tuple[str, ...], *, exact: bool, to_end: bool) -> re.Pattern[str]:
    """What `comparable` text must match; not `to_end`: how it must begin."""
    pattern = ""
    for line in comparable("\n".join(output), exact=exact).splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part) for part in line.split("...")) + r"\n"
    if not output:
        pattern = r"\n?"
    return re.compile(pattern if to_end else f"(?:{pattern})")
