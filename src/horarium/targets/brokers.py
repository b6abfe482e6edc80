"""What targets have in common that hand runs to workers through Redis or a broker (`docket`, `celery`).

Such an engine forgets a name once its work is done, or never knew names. So the names that were sent are kept
in Redis beside it, and one that was sent is never sent again:

    (nothing) ──claim──► sending ──the engine has it──► sent ──► AlreadyExists from now on
                            │
                            └ the answer was lost, or we died: who comes after that call's deadline looks
                              whether the engine has a record of it, and sends it again if not

A name that is only `sending` stops nobody for longer than a call takes. A run may be sent twice after a crash
in just that gap, where the engine can't tell, and is never lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from horarium.clock import Clock
from horarium.core.run import FiredRun, Report, Result
from horarium.core.spec import TargetSpec
from horarium.errors import InvalidInput, Problem, shown
from horarium.targets.base import (
    AlreadyExists,
    Answer,
    Created,
    FireRequest,
    Refused,
    Unavailable,
)
from horarium.targets.calling import CallingTarget
from horarium.targets.checks import Fields
from horarium.targets.connection import LONGEST_TIMEOUT
from horarium.targets.secrets import HIDDEN, REFERENCE, Redactor, SecretMissing, resolve

if TYPE_CHECKING:
    from redis.asyncio import Redis

REDIS = ("redis", "rediss", "unix")
"""How an address of a Redis begins: plain, over TLS, a socket's path."""

DEFAULT_TIMEOUT = timedelta(seconds=10)

DEFAULT_REMEMBER = timedelta(days=7)
"""Longer than the 72 hours for which a run is tried again."""
LONGEST_REMEMBER = timedelta(days=366)

DEFAULT_MAX_IN_FLIGHT = 32

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXCERPT = 300
_CANCEL_LOOKS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds between looks whether a run that was told to end has ended; then the caller asks again."""


class Known(Enum):
    """What is kept of a name when a call begins."""

    NEW = "new"
    UNCERTAIN = "uncertain"
    SENT = "sent"


class OtherRun(Exception):
    """The name belongs to a run of another trigger."""


class UnderWay(Exception):
    """Another attempt at the same run may be at work, until `until` (milliseconds since 1970)."""

    def __init__(self, until: int) -> None:
        super().__init__("another attempt at this run is under way")
        self.until = until


_CLAIM = """
local found = redis.call('GET', KEYS[1])
local run_key, now = ARGV[1], tonumber(ARGV[2])
if found then
    local state, until_ms, of = string.match(found, '^(%a+) (%d+) (.*)$')
    if state ~= 'sending' or of ~= run_key or tonumber(until_ms) > now then return found end
end
redis.call('SET', KEYS[1], 'sending ' .. ARGV[3] .. ' ' .. run_key, 'PX', ARGV[4])
return found
"""
"""One step, so that two attempts at once don't both send."""


class SentNames:
    """The names that were sent, in Redis, for `keep` long.

    `prefix` + name → `sending UNTIL KEY` or `sent 0 KEY`: UNTIL is when the attempt that wrote it is over,
    in milliseconds since 1970.
    """

    def __init__(self, redis: Redis, prefix: str, keep: timedelta) -> None:
        self._redis = redis
        self._prefix = prefix
        self._keep = keep
        self._claim = redis.register_script(_CLAIM)

    async def claim(self, request: FireRequest, now: datetime) -> Known:
        """Note that the run is about to be sent; what was known before. Raises `OtherRun`, `UnderWay`."""
        keep = self._keep // timedelta(milliseconds=1)
        arguments: list[str | int] = [
            request.run_key,
            _milliseconds(now),
            _milliseconds(request.deadline),
            keep,
        ]
        found = await self._claim(keys=[self._prefix + request.run_name], args=arguments)
        if found is None:
            return Known.NEW
        state, until, run_key = found.decode().split(" ", 2)
        if run_key != request.run_key:
            raise OtherRun(f"run {run_key} has this name over there already")
        if state == Known.SENT.value:
            return Known.SENT
        if int(until) > _milliseconds(now):
            raise UnderWay(int(until))
        return Known.UNCERTAIN

    async def mark_sent(self, request: FireRequest) -> None:
        """The engine has it."""
        await self._redis.set(self._prefix + request.run_name, f"sent 0 {request.run_key}", px=self._keep)

    async def give_up(self, request: FireRequest) -> None:
        """This attempt is over, and may have sent it."""
        await self._redis.set(self._prefix + request.run_name, f"sending 0 {request.run_key}", px=self._keep)

    async def kept(self, names: Sequence[str]) -> set[str]:
        """Those of `names` that something is kept of."""
        values = await self._redis.mget([self._prefix + name for name in names])
        return {name for name, value in zip(names, values, strict=True) if value is not None}


class BrokerTarget(CallingTarget):
    """See the module. `redis_word` is the field of the config that says where names are kept.

    A kind adds how it connects, sends, looks up and stops a run.
    """

    def __init__(self, spec: TargetSpec, clock: Clock, redis_word: str) -> None:
        timeout = timedelta(seconds=spec.config.get("timeout") or DEFAULT_TIMEOUT.total_seconds())
        super().__init__(clock, timeout, spec.max_in_flight or DEFAULT_MAX_IN_FLIGHT)
        self._config = spec.config
        self._redis_word = redis_word
        self._keep = timedelta(seconds=spec.config.get("remember") or DEFAULT_REMEMBER.total_seconds())
        self._redactor = Redactor()
        self._redis: Redis
        self._names: SentNames

    async def start(self) -> None:
        """Resolve secrets and open clients; no connection is made yet. Raises `SecretMissing`."""
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        url = resolved(self._config[self._redis_word], REDIS)
        self._redactor = Redactor(secrets_of(url))
        seconds = self._timeout.total_seconds()
        # One more attempt: a connection of the pool may have died since it was used.
        self._redis = Redis.from_url(
            url, socket_timeout=seconds, socket_connect_timeout=seconds / 2, retry=Retry(NoBackoff(), 1)
        )
        self._names = SentNames(self._redis, await self._connect(url), self._keep)

    async def _create(self, request: FireRequest) -> Answer:
        call = _Call()
        try:
            left = request.deadline - self._clock.now()
            async with asyncio.timeout(max(0.0, left.total_seconds())):
                return await self._send_once(request, call)
        except OtherRun as error:
            return Refused(str(error))
        except UnderWay as error:
            return Unavailable(str(error), datetime.fromtimestamp(error.until / 1000, UTC), unknown=True)
        except TimeoutError:
            return Unavailable("no answer in time", unknown=call.begun)
        except Exception as error:  # whatever the engine's client raises
            return Unavailable(self._why(error), unknown=call.begun)

    async def status(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                return await self._look(runs)
        except Exception as error:
            raise ConnectionError(self._why(error)) from None  # what it is chained to may show an address

    async def cancel(self, run: FiredRun) -> Report | None:
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                (report,) = await self._look([run])
                if report.result is not Result.RUNNING:
                    return report
                await self._stop(run)
                for wait in _CANCEL_LOOKS:
                    (report,) = await self._look([run])
                    if report.result is not Result.RUNNING:
                        return report
                    await self._clock.wait(self._stopping, wait)
                return None
        except Exception as error:
            raise ConnectionError(self._why(error)) from None

    async def _disconnect(self) -> None:
        await self._hang_up()
        await self._redis.aclose()

    @abstractmethod
    async def _connect(self, redis_url: str) -> str:
        """Open the engine's client; the prefix under which names are kept."""

    @abstractmethod
    async def _hang_up(self) -> None:
        """Close the engine's client."""

    @abstractmethod
    async def _send(self, request: FireRequest) -> Answer:
        """Hand the run over. `Created`, `AlreadyExists`, or why the engine said no; else it raises."""

    @abstractmethod
    async def _has(self, run_name: str) -> bool:
        """Whether the engine has a record of a run of that name."""

    @abstractmethod
    async def _look(self, runs: Sequence[FiredRun]) -> Sequence[Report]:
        """A report of each run, in order."""

    @abstractmethod
    async def _stop(self, run: FiredRun) -> None:
        """Ask the engine to end a run."""

    async def _send_once(self, request: FireRequest, call: _Call) -> Answer:
        known = await self._names.claim(request, self._clock.now())
        if known is Known.SENT:
            return AlreadyExists(request.run_name)
        call.begun = True
        try:
            there = known is Known.UNCERTAIN and await self._has(request.run_name)
            answer: Answer = AlreadyExists(request.run_name) if there else await self._send(request)
        except Exception:
            # Not where it was cancelled: a thread may still send, and nobody else does until the deadline.
            await self._note(self._names.give_up(request))
            raise
        sent = isinstance(answer, Created | AlreadyExists)
        await self._note(self._names.mark_sent(request) if sent else self._names.give_up(request))
        return answer

    async def _note(self, note: Awaitable[None]) -> None:
        """What can't be noted now is found out by the next attempt, if there is one."""
        with contextlib.suppress(Exception):
            await note

    def _why(self, error: BaseException) -> str:
        return self._redactor.clean(f"{type(error).__name__}: {error}", _EXCERPT)


class _Call:
    """Whether a call has gone so far that the run may be there."""

    begun = False


def check_shared(fields: Fields, checked: dict[str, Any]) -> None:
    """Reads `timeout` and `remember`."""
    if fields.has("timeout"):
        checked["timeout"] = fields.seconds("timeout", LONGEST_TIMEOUT)
    if fields.has("remember"):
        checked["remember"] = fields.seconds("remember", LONGEST_REMEMBER)


def check_address(
    fields: Fields, word: str, schemes: Sequence[str], checked: dict[str, Any], example: str
) -> None:
    """Reads a required field that holds an address without a password, or a reference to one."""
    rule = f"{word} says where it is: an address, or a reference such as env:{_variable(word)}"
    value = fields.required(word, rule, example)
    if value is None:
        return
    if not REFERENCE.fullmatch(value):
        wrong = address_problem(value, schemes)
        if wrong is not None:
            got = HIDDEN if "@" in value else shown(value)
            fields.problems.append(Problem(fields.at(word), got, wrong, example, code="url"))
        elif "@" in urlsplit(value).netloc or "password=" in value:
            fields.problems.append(
                Problem(
                    fields.at(word),
                    HIDDEN,
                    f"{word} holds no user and no password, which are secret",
                    f"put the whole address into the server's environment and write env:{_variable(word)}",
                    code="secret",
                )
            )
    checked[word] = value


def _variable(word: str) -> str:
    return "REDIS_URL" if word == "url" else f"{word.upper()}_URL"


def address_problem(url: str, schemes: Sequence[str]) -> str | None:
    """Why `url` is no address with one of these schemes, or None."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "an address can be read (RFC 3986)"
    if parts.scheme not in schemes:
        return f"an address begins with {', '.join(f'{scheme}://' for scheme in schemes)}"
    if re.search(r"[\x00-\x20\x7f]", url):
        return "an address has no spaces and no control characters"
    if not (parts.hostname or parts.path.strip("/")):
        return "an address names a host, or the path of a socket"
    return None


def resolved(address: str, schemes: Sequence[str]) -> str:
    """The address that a checked field stands for. Raises `SecretMissing`, without the address."""
    if not REFERENCE.fullmatch(address):
        return address
    url = resolve(address)
    wrong = address_problem(url, schemes)
    if wrong is not None:
        raise SecretMissing(f"{address}: {wrong}")
    return url


def secrets_of(url: str) -> list[str]:
    """What of an address must not be shown."""
    parts = urlsplit(url)
    return [url, *(item for item in (parts.password, parts.netloc.rpartition("@")[0]) if item)]


def check_task(fields: Fields, checked: dict[str, Any], example: str) -> None:
    """Reads the required field `task_name`: the name that the workers know a task by."""
    rule = "a deployment says which task of the workers runs"
    checked["task_name"] = fields.required("task_name", rule, example)


def require(extra: str, modules: Sequence[str], pointer: str) -> None:
    """Raises `InvalidInput`, with the pip command, unless all `modules` of an extra are installed."""
    missing = [module for module in modules if not _installed(module)]
    if missing:
        raise InvalidInput(
            Problem(
                pointer,
                extra,
                f"the client of {extra} is not installed (no module {', '.join(missing)})",
                f"pip install 'horarium[{extra}]'",
                code="extra",
            )
        )


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _milliseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(milliseconds=1)


def instant(text: str | None, otherwise: Callable[[], datetime]) -> datetime:
    """The instant that an engine wrote down, which names no zone when it means UTC."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return otherwise()
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
