"""The `local` target: a command, or a Python function, in a process group of its own on this machine.

    create_run ─► row `starting` ─► child started ─► Created
                                        │
                                        ├ exits                    succeeded (0) | failed (code, or signal)
                                        ├ `timeout` is over        TERM to the group, then KILL: failed
                                        └ the server drains        TERM, then KILL: interrupted
    the server is killed                the next start marks it interrupted; it is not run again by itself

A run keeps its place until its process has ended. Its output, stdout and stderr together, is kept up to a
bound and written at most once a second while it runs. What a command leaves in the background is not
waited for. What leaves the process group (`setsid`) is not reached by a time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from horarium.clock import Clock
from horarium.core.instant import rfc3339
from horarium.core.run import FiredRun, Report
from horarium.core.spec import Json, TargetSpec
from horarium.errors import Problem, StoreUnavailable, shown
from horarium.targets.base import FireRequest, LocalRun, LocalRuns, TargetTraits
from horarium.targets.checks import Fields, json_problem, pointer_to
from horarium.targets.embedded import QUICK, STOP_LIMIT, CannotStart, EmbeddedTarget, Execution, NotYet
from horarium.targets.functions import check_function
from horarium.targets.output import BoundedOutput
from horarium.targets.secrets import ENV_REFERENCE

CONFIG_KEYS = ("inherit_env", "kill_after")
ACTION_KEYS = ("run", "python", "shell", "env", "cwd", "stdin", "timeout")

FLUSH_INTERVAL = 1.0
"""Seconds between two writes of a running command's output: what `logs --follow` lags behind."""

DEFAULT_KILL_AFTER = 5.0
"""Seconds between TERM and KILL."""

LONGEST_TIMEOUT = timedelta(days=366)
MAX_PARAMETERS = 120_000
"""Bytes of the parameters as JSON: Linux takes 128 KiB in one environment variable."""

MAX_STDIN = 1_048_576

INHERITED = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP"),
        *("PYTHONPATH", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
    )
)
"""What a child gets of the server's environment, with `LC_*`. The rest holds passwords of the server."""

_SPAWNERS = 4
"""Threads that start children. Starting takes about a millisecond, during which a child's exec is awaited."""

_READ = 65_536
_READS_PER_WAKE = 16
"""Reads before the event loop gets its turn; a command that only prints must not hold it."""

_TEMPORARY = frozenset((errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY))
_START_ATTEMPTS = 20
_START_PAUSE = 0.25
"""Five seconds in all for a machine that is short of processes, memory or files to recover."""

_FOREVER = 86_400.0
"""Seconds; a wait this long is simply begun again."""


class LocalTarget(EmbeddedTarget):
    """See the module. `spec.config` was checked by `check_config`."""

    traits = TargetTraits(
        dedupes=True,
        reports_completion=True,
        holds_place=True,
        cancels=True,
        note="a run cut off by a crash of the server is marked interrupted and not repeated",
        names_kept_here=True,
    )

    def __init__(
        self, spec: TargetSpec, runs: LocalRuns, clock: Clock, owner: str, on_free: Callable[[], None]
    ) -> None:
        super().__init__(runs, clock, owner, on_free, spec.max_in_flight or max(4, os.cpu_count() or 1))
        self._inherited = INHERITED | frozenset(spec.config.get("inherit_env", ()))
        self._kill_after: float = spec.config.get("kill_after") or DEFAULT_KILL_AFTER
        self._stop_limit = self._kill_after + STOP_LIMIT
        self._spawner = ThreadPoolExecutor(_SPAWNERS, thread_name_prefix="horarium-spawn")

    async def cancel(self, run: FiredRun) -> Report | None:
        return await self._cancel(run, self.timeout / timedelta(seconds=1) / 2)

    async def close(self) -> None:
        await super().close()
        self._spawner.shutdown(wait=False)

    async def _check(self, request: FireRequest) -> None:
        # In a thread: a PATH on a dead network disk must not hold up the event loop.
        await self._in_thread(functools.partial(_resolve, self._command(request)))

    async def _begin(self, request: FireRequest) -> Execution:
        command = self._command(request)
        for attempt in range(_START_ATTEMPTS):
            try:
                started = await self._in_thread(functools.partial(_start, command))
                break
            except OSError as error:
                if error.errno not in _TEMPORARY or attempt == _START_ATTEMPTS - 1:
                    raise CannotStart(_why_not(command, error)) from error
                await self._clock.wait(self._stopping, _START_PAUSE)
        child = _Child(*started)
        return _Process(child, command.timeout, self._kill_after, self._runs, self._clock, self._stopping)

    def _command(self, request: FireRequest) -> _Command:
        action = request.action
        parameters = json.dumps(request.parameters, separators=(",", ":"))
        if len(parameters) > MAX_PARAMETERS:
            raise CannotStart(
                f"the parameters are {len(parameters):,} bytes of JSON; {MAX_PARAMETERS:,} is the limit"
            )
        env = {
            name: value
            for name, value in os.environ.items()
            if name in self._inherited or name.startswith("LC_")
        }
        for name, value in action.get("env", {}).items():
            reference = ENV_REFERENCE.fullmatch(value)
            if reference is None:
                env[name] = value
            elif reference[1] in os.environ:
                env[name] = os.environ[reference[1]]
            else:
                # As for any secret that is missing: the run stays due until it is there.
                raise NotYet(f"env {name}: {value} is not set in the server's environment")
        env["HORARIUM_RUN_NAME"] = request.run_name
        env["HORARIUM_SCHEDULED_TIME"] = rfc3339(request.scheduled_time)
        env["HORARIUM_TRIGGER"] = str(request.trigger)
        env["HORARIUM_PARAMETERS"] = parameters
        arguments: tuple[str, ...]
        if "python" in action:
            arguments = (sys.executable, "-m", "horarium.targets._child", action["python"])
            # The child finds this very package wherever the server found it, after the user's own modules.
            here = str(Path(__file__).parents[2])
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), here)))
        elif action.get("shell"):
            # As in a crontab: SHELL among the job's own variables decides, the server's own does not.
            arguments = (action.get("env", {}).get("SHELL", "/bin/sh"), "-c", action["run"])
        else:
            run = action["run"]
            arguments = tuple(shlex.split(run)) if isinstance(run, str) else tuple(run)
        return _Command(arguments, env, action.get("cwd"), action.get("stdin"), action.get("timeout"))

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._spawner, call)


@dataclass(frozen=True, slots=True)
class _Command:
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    stdin: str | None
    timeout: float | None


class _Child:
    """A started process: its output as it comes, and a signal when it has ended. Lives in the event loop."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: int) -> None:
        self.process = process
        self.output = BoundedOutput()
        self.news = asyncio.Event()
        """Set when output came after `fresh` was taken back, and when the process has ended."""
        self.fresh = False
        self.ended = False
        self._pipe: int | None = pipe
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pipe, self._readable)
        self._pidfd: int | None = None
        self._watch()

    def signal_group(self, number: int) -> None:
        """Signal every process of the group. Only while the child is not reaped, so its number is its own."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def reap(self) -> int:
        """The exit code of the ended process (minus the signal that killed it); takes the last output."""
        code = self.process.wait()
        # As much as a pipe can hold: a process left in the background may write for ever.
        for _ in range(_READS_PER_WAKE):
            if not self._read():
                break
        self._close_pipe()
        return code

    def _watch(self) -> None:
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(self.process.pid)
                self._loop.add_reader(self._pidfd, self._exited)
                return
        # Not Linux: a thread waits, without reaping, so that the process group keeps its number.
        waiter = asyncio.ensure_future(asyncio.to_thread(_wait_unreaped, self.process.pid))
        waiter.add_done_callback(lambda _: self._exited())

    def _exited(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self.ended = True
        self.news.set()

    def _readable(self) -> None:
        for _ in range(_READS_PER_WAKE):
            if not self._read():
                return

    def _read(self) -> bool:
        """Take what is in the pipe. False when there is nothing more now, or at all."""
        if self._pipe is None:
            return False
        try:
            data = os.read(self._pipe, _READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close_pipe()
            return False
        self.output.write(data)
        if not self.fresh:
            self.fresh = True
            self.news.set()
        return True

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None


class _Process(Execution):
    def __init__(
        self,
        child: _Child,
        timeout: float | None,
        kill_after: float,
        runs: LocalRuns,
        clock: Clock,
        stopping: asyncio.Event,
    ) -> None:
        self.pid: int = child.process.pid
        self._child = child
        self._timeout = timeout
        self._kill_after = kill_after
        self._runs = runs
        self._clock = clock
        self._stopping = stopping
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._child.news.set()

    async def follow(self, row: LocalRun) -> LocalRun:
        child, clock = self._child, self._clock
        row = replace(row, pid=self.pid)
        stop = asyncio.ensure_future(self._stopping.wait())
        stop.add_done_callback(lambda _: child.news.set())
        begun = flushed = clock.monotonic()
        kill_at: float | None = None
        killed = False
        reason = ""
        written = False
        try:
            while not child.ended:
                now = clock.monotonic()
                if not written and now - begun >= QUICK:
                    await _attempt(self._runs.local_running(row.run_name, self.pid))
                    written = True
                    continue
                if child.fresh and now - flushed >= FLUSH_INTERVAL and written:
                    child.fresh = False
                    output = child.output
                    await _attempt(self._runs.local_output(row.run_name, output.kept(), output.total))
                    flushed = clock.monotonic()
                    continue
                if kill_at is None:
                    if self._stopping.is_set():
                        reason = "interrupted"
                    elif self._cancelled:
                        reason = "cancelled"
                    elif self._timeout is not None and now - begun >= self._timeout:
                        reason = "timeout"
                    if reason:
                        child.signal_group(signal.SIGTERM)
                        kill_at = now + self._kill_after
                elif now >= kill_at and not killed:
                    child.signal_group(signal.SIGKILL)
                    killed = True
                # Nothing is awaited since `child.ended` was read, so no end can be wiped away here.
                child.news.clear()
                await clock.wait(
                    child.news,
                    min(
                        _FOREVER if written else begun + QUICK - now,
                        flushed + FLUSH_INTERVAL - now if child.fresh and written else _FOREVER,
                        _FOREVER if self._timeout is None or reason else begun + self._timeout - now,
                        _FOREVER if kill_at is None or killed else kill_at - now,
                    ),
                )
        finally:
            stop.cancel()
        if reason:
            # The leader went; what of its group did not follow goes now, while its number can't be reused.
            child.signal_group(signal.SIGKILL)
        code = child.reap()
        return self._ended(row, code, reason)

    def _ended(self, row: LocalRun, code: int, reason: str) -> LocalRun:
        match reason:
            case "timeout":
                state, detail = "failed", f"timed out after {self._timeout:g} s"
            case "interrupted":
                state, detail = "interrupted", "stopped with the server"
            case "cancelled":
                state, detail = "cancelled", "a later run replaced it"
            case _:
                state, detail = ("succeeded", "") if code == 0 else ("failed", _ending(code))
        output = self._child.output
        return replace(
            row,
            state=state,
            ended_at=self._clock.now(),
            exit_code=code,
            output=output.kept(),
            output_total=output.total,
            detail=detail,
        )


def check_config(config: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """The normalised config. Raises `InvalidInput`.

    Fields: `inherit_env` (more names of the server's environment that commands get), `kill_after` (seconds
    between TERM and KILL; 5 s).
    """
    fields = Fields(config, pointer, "a local target", CONFIG_KEYS)
    checked: dict[str, Any] = {}
    if fields.has("inherit_env"):
        names = fields.raw("inherit_env")
        if not isinstance(names, list) or not all(
            isinstance(name, str) and _is_variable(name) for name in names
        ):
            fields.problem("inherit_env", "inherit_env is a list of names of variables", "[DATABASE_URL]")
        else:
            checked["inherit_env"] = sorted(set(names))
    if fields.has("kill_after"):
        checked["kill_after"] = fields.seconds("kill_after", timedelta(minutes=5))
    fields.raise_problems()
    return checked


def check_action(action: Mapping[str, Any], parameters: Mapping[str, Json], pointer: str) -> dict[str, Any]:
    """The normalised action. Raises `InvalidInput`.

    Fields: `run` (text, split by the rules of a shell but without one, or a list of arguments) or `python`
    (`module:function`, called with the parameters by name); `shell` (true: `run` is a line for /bin/sh),
    `env`, `cwd`, `stdin`, `timeout`.
    """
    fields = Fields(action, pointer, "a deployment of a local target", ACTION_KEYS)
    checked: dict[str, Any] = {}
    if fields.has("run") == fields.has("python"):
        fields.problems.append(
            Problem(
                pointer,
                "both" if fields.has("run") else "neither",
                "a deployment of a local target has either run or python",
                "run: ./backup.sh, or python: package.module:function",
            )
        )
    shell = fields.flag("shell")
    if shell and fields.has("python"):
        fields.problem("shell", "shell goes with run, not with python", "leave it out")
    elif shell:
        checked["shell"] = True
    if fields.has("run"):
        checked["run"] = _check_run(fields, bool(shell))
    _check_env(fields, checked)
    cwd = fields.text("cwd")
    if cwd is not None:
        checked["cwd"] = cwd
    stdin = fields.text("stdin", empty=True)
    if stdin is not None:
        if len(stdin.encode("utf-8", "replace")) > MAX_STDIN:
            fields.problems.append(
                Problem(fields.at("stdin"), f"{len(stdin):,} characters", "stdin has at most 1 MiB", "a file")
            )
        checked["stdin"] = stdin
    if fields.has("timeout"):
        checked["timeout"] = fields.seconds("timeout", LONGEST_TIMEOUT)
    _check_parameters(fields, parameters)
    python = fields.text("python")
    if python is not None:
        fields.check(
            check_function, python, parameters, fields.at("python"), pointer_to(pointer, "parameters"), cwd
        )
        checked["python"] = python
    fields.raise_problems()
    return checked


def _check_run(fields: Fields, shell: bool) -> str | list[str]:
    run = fields.raw("run")
    if isinstance(run, str):
        if not run.strip():
            fields.problem("run", "run is not empty", "./backup.sh /srv")
        elif "\0" in run:
            fields.problem("run", "run has no NUL character")
        elif not shell:
            try:
                if not shlex.split(run):
                    fields.problem("run", "run is a command", "a comment alone does nothing")
            except ValueError as error:
                fields.problem(
                    "run", f"run is split as a shell splits it: {str(error).lower()}", "close the quote"
                )
        return run
    if isinstance(run, list) and shell:
        fields.problem("run", "with shell: true, run is one line of text", "leave shell out for a list")
    elif not isinstance(run, list) or not run or not all(isinstance(item, str) for item in run):
        fields.problem("run", "run is text, or a list of texts: a command and its arguments", "[date, '-u']")
    elif not run[0] or any("\0" in item for item in run):
        fields.problem("run", "a command is not empty, and no argument has a NUL character")
    return run  # type: ignore[no-any-return]  # a list of str, or there is a problem above


def _check_env(fields: Fields, checked: dict[str, Any]) -> None:
    env = fields.mapping("env")
    kept: dict[str, str] = {}
    for name, value in env.items():
        where = pointer_to(fields.at("env"), name)
        if not isinstance(name, str) or not _is_variable(name):
            fields.problems.append(
                Problem(where, shown(name), "a variable's name has no '=' and is not empty", "MY_VARIABLE")
            )
        elif name.startswith("HORARIUM_"):
            fields.problems.append(
                Problem(
                    where, shown(name), "names that begin with HORARIUM_ are Horarium's own", "another name"
                )
            )
        elif isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
            fields.problems.append(
                Problem(where, shown(value), "a variable's value is text or a number", "quote it")
            )
        else:
            kept[name] = str(value)
    if kept:
        checked["env"] = kept


def _check_parameters(fields: Fields, parameters: Mapping[str, Json]) -> None:
    where = pointer_to(fields.pointer, "parameters")
    why = json_problem(parameters)
    if why is not None:
        fields.problems.append(Problem(where, "a value", f"parameters are JSON: {why}"))
    elif (size := len(json.dumps(parameters, separators=(",", ":")))) > MAX_PARAMETERS:
        fields.problems.append(
            Problem(
                where,
                f"{size:,} bytes",
                f"parameters of a local run have at most {MAX_PARAMETERS:,} bytes as JSON",
                "a file, and its path as a parameter",
            )
        )


def _is_variable(name: str) -> bool:
    return bool(name) and "=" not in name and "\0" not in name


def _resolve(command: _Command) -> None:
    """Raise `CannotStart` if there is surely no such command or directory."""
    cwd = command.cwd
    if cwd is not None and not os.path.isdir(cwd):
        raise CannotStart(f"cwd {cwd!r} is no directory on the server")
    name = command.arguments[0]
    if "/" in name:
        path = os.path.join(cwd or "", name)
        candidates = [path]
    else:
        # An empty part of PATH means the present directory, as in execvp.
        candidates = [
            os.path.join(cwd or "", part, name)
            for part in command.env.get("PATH", os.defpath).split(os.pathsep)
        ]
    found = [path for path in candidates if os.path.isfile(path)]
    if not found:
        where = "" if "/" in name else f" in PATH ({command.env.get('PATH', os.defpath)})"
        raise CannotStart(f"command not found: {name!r}{where}")
    if not any(os.access(path, os.X_OK) for path in found):
        raise CannotStart(f"not executable: {found[0]!r}; try: chmod +x")


def _start(command: _Command) -> tuple[subprocess.Popen[bytes], int]:
    """Start the child in a session of its own; the process, and the end of its output to read from."""
    with contextlib.ExitStack() as stack:
        stdin: Any = subprocess.DEVNULL
        if command.stdin is not None:
            # A file, not a pipe: of any size, and nobody has to feed it.
            stdin = stack.enter_context(tempfile.TemporaryFile())
            stdin.write(command.stdin.encode("utf-8", "surrogateescape"))
            stdin.seek(0)
        reading, writing = os.pipe()
        stack.callback(os.close, writing)
        try:
            os.set_blocking(reading, False)
            process = subprocess.Popen(
                command.arguments,
                env=command.env,
                cwd=command.cwd,
                stdin=stdin,
                stdout=writing,
                stderr=writing,
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        return process, reading


async def _attempt(write: Coroutine[Any, Any, None]) -> None:
    """Progress may miss the database for a while; only the end must get there."""
    with contextlib.suppress(StoreUnavailable):
        await write


def _wait_unreaped(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _why_not(command: _Command, error: OSError) -> str:
    name = command.arguments[0]
    match error.errno:
        case errno.E2BIG:
            return "the arguments and the environment are larger than the system takes"
        case errno.ENOEXEC:
            return f"not executable: {name!r} is no program; try: a first line such as #!/bin/sh"
        case errno.ENOENT:
            return f"command not found: {name!r}, or the interpreter in its first line"
        case _:
            return f"{name!r} can't be started: {error.strerror or error}"


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
