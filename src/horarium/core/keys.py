"""Keys of triggers and deployments, run names, and the hashes that spread load.

`run_name` is Flyte's, so that a trigger that moves here keeps the names of its runs. It has 64 bits and
an ambiguous join, so two slots can share one; `long_run_name` is what the second of them gets.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from horarium.core.instant import from_seconds, to_seconds
from horarium.errors import InvalidInput, Problem, shown

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
"""What a project, domain, deployment, trigger or target may be called: 1 to 100 characters."""

KEY_PART = re.compile(r"(?! )(?=[^/]*[^\W_])[^/]{1,255}(?<! )")
"""What a part of a key may be where a source names it; no name here has a '/' in it."""

_FNV64_OFFSET = 0xCBF29CE484222325
_FNV64_PRIME = 0x100000001B3
_U64 = 0xFFFFFFFFFFFFFFFF


def check_name(value: object, pointer: str) -> str:
    """`value` if it is a name; raises `InvalidInput` with the rule if it is not."""
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise InvalidInput(
        Problem(
            pointer,
            shown(value),
            "a name has 1 to 100 letters, digits, '.', '_' or '-', with a letter or digit at both ends",
            "quote it if YAML reads it as a number or a truth value" if not isinstance(value, str) else "",
            code="name",
        )
    )


def check_key_part(value: object, pointer: str) -> str:
    """`value` if it can be part of a key; raises `InvalidInput` with the rule if it can't.

    What is made here has a name by `check_name`; a source may have other rules for its own.
    """
    if isinstance(value, str) and KEY_PART.fullmatch(value) and value.isprintable():
        return value
    raise InvalidInput(
        Problem(
            pointer,
            shown(value),
            "a part of a key has 1 to 255 printable characters, a letter or digit among them, no '/', and no "
            "space at its ends",
            code="name",
        )
    )


@dataclass(frozen=True, slots=True, order=True)
class DeploymentKey:
    """`project/domain/name`."""

    project: str
    domain: str
    name: str

    def __str__(self) -> str:
        return f"{self.project}/{self.domain}/{self.name}"


@dataclass(frozen=True, slots=True, order=True)
class TriggerKey:
    """`project/domain/deployment/name`, the identity of a trigger for ever."""

    project: str
    domain: str
    deployment: str
    name: str

    @property
    def deployment_key(self) -> DeploymentKey:
        return DeploymentKey(self.project, self.domain, self.deployment)

    def __str__(self) -> str:
        return f"{self.project}/{self.domain}/{self.deployment}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> TriggerKey:
        """The key that a person typed: `deployment`, `deployment/name`, or all four parts.

        Project and domain are `default` and the name is `default` where they are left out. Raises
        `InvalidInput`.
        """
        parts = text.strip("/").split("/")
        if len(parts) == 1:
            parts = ["default", "default", parts[0], "default"]
        elif len(parts) == 2:
            parts = ["default", "default", *parts]
        elif len(parts) != 4:
            raise InvalidInput(
                Problem(
                    "/trigger",
                    shown(text),
                    "a trigger is 'deployment', 'deployment/name' or 'project/domain/deployment/name'",
                    code="key",
                )
            )
        return cls(*(check_key_part(part, "/trigger") for part in parts))


def fnv1_64(data: bytes, value: int = _FNV64_OFFSET) -> int:
    """The 64-bit FNV-1 hash (multiply, then xor; not FNV-1a), continued from `value`."""
    for byte in data:
        value = ((value * _FNV64_PRIME) & _U64) ^ byte
    return value


def run_name(key: TriggerKey, scheduled_time: datetime, *, task: str | None = None) -> str:
    """Flyte's name for a slot: `r` and the unpadded lowercase hex of a 64-bit FNV-1.

    `task` is the deployment's name over there where it differs from ours. `scheduled_time` is aware UTC.
    """
    return RunNamer(key, task=task)(to_seconds(scheduled_time))


class RunNamer:
    """`run_name` for many slots of one trigger: the key's part of the hash is computed once."""

    __slots__ = ("_day", "_of_day", "_prefix")

    def __init__(self, key: TriggerKey, *, task: str | None = None) -> None:
        deployment = _deployment_prefix(key.project, key.domain, task or key.deployment)
        self._prefix = fnv1_64(f"{key.name}:".encode(), deployment)
        self._day: int | None = None
        self._of_day = 0

    def __call__(self, scheduled_seconds: int) -> str:
        """The name of the slot at `scheduled_seconds` since the epoch."""
        day, second = divmod(scheduled_seconds, 86_400)
        if day != self._day:
            self._day, self._of_day = day, fnv1_64(_date_text(day), self._prefix)
        value = self._of_day
        # The loop of `fnv1_64`, once more: a call for each name costs as much as the eight bytes.
        for byte in _time_text(second):
            value = ((value * _FNV64_PRIME) & _U64) ^ byte
        return f"r{value:x}"


@lru_cache(maxsize=16_384)
def _deployment_prefix(project: str, domain: str, task: str) -> int:
    return fnv1_64(f"{project}:{domain}:{task}:".encode())


@lru_cache(maxsize=1_024)
def _date_text(day: int) -> bytes:
    at = from_seconds(day * 86_400)
    return f"{at.year}:{at.month}:{at.day}:".encode()


@lru_cache(maxsize=4_096)
def _time_text(second: int) -> bytes:
    minutes, second = divmod(second, 60)
    return b"%d:%d:%d" % (*divmod(minutes, 60), second)


def _digest(parts: tuple[str, ...], size: int) -> bytes:
    joined = b"".join(len(raw).to_bytes(4, "big") + raw for raw in (part.encode() for part in parts))
    return hashlib.blake2b(joined, digest_size=size).digest()


def _base32(digest: bytes) -> str:
    return base64.b32encode(digest).decode().rstrip("=").lower()


def long_run_name(key: TriggerKey, scheduled_time: datetime) -> str:
    """The name of a slot whose `run_name` another run has: `r` + base32 of 128 bits, 27 characters."""
    parts = (key.project, key.domain, key.deployment, key.name, scheduled_time.isoformat())
    return "r" + _base32(_digest(parts, 16))


def manual_run_name(key: TriggerKey, request_key: str) -> str:
    """The name of a manual run: `m` + base32 of 128 bits over the trigger and the request key."""
    parts = ("manual", key.project, key.domain, key.deployment, key.name, request_key)
    return "m" + _base32(_digest(parts, 16))


def jitter(seed: str, scheduled_seconds: int, width: timedelta) -> timedelta:
    """A delay in `[0, width)` at millisecond steps, the same for a slot for ever.

    `seed` is the trigger's hash seed, which a rename does not change.
    """
    milliseconds = int(width / timedelta(milliseconds=1))
    if milliseconds <= 0:
        return timedelta()
    draw = int.from_bytes(_digest(("jitter", seed, str(scheduled_seconds)), 8), "big")
    return timedelta(milliseconds=draw % milliseconds)


def spread(seed: str, field: str, low: int, high: int) -> int:
    """The value of `H` in a cron field: fixed for a seed, uniform over `low..high`."""
    draw = int.from_bytes(_digest(("H", seed, field), 8), "big")
    return low + draw % (high - low + 1)
