"""References to secrets, and keeping what they stand for out of everything that people see.

A secret is never written in a triggers file, a database or a message. What is written is a reference,
`env:NAME` or `file:PATH`; a target resolves it when it starts. Whatever a target says about a call goes
through `Redactor.clean` first.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from horarium.errors import HorariumError, InvalidInput, Problem

HIDDEN = "(hidden)"
"""What a message shows in place of a value that may be secret."""

REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+")
ENV_REFERENCE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")

_MAX_BYTES = 65_536
"""A secret longer than this is a wrong path, not a key."""

_SHORTEST_CLEANED = 4
"""Replacing a shorter text everywhere would garble messages and hide nothing that can't be guessed."""


class SecretMissing(HorariumError):
    """A reference leads nowhere. The message names the reference and the fix, never a value."""


def check_reference(value: object, pointer: str, what: str, example: str) -> str:
    """`value` if it is a reference; raises `InvalidInput`, without the value, if it is not."""
    if isinstance(value, str) and REFERENCE.fullmatch(value):
        return value
    raise InvalidInput(
        Problem(
            pointer,
            HIDDEN,
            f"{what} is secret, so it is a reference (env:NAME or file:PATH), never the value itself",
            f"put the value into the server's environment and write env:{example}, "
            f"or into a file that only the server reads and write file:/run/secrets/{example.lower()}",
            code="secret",
        )
    )


def resolve(reference: str, env: Mapping[str, str] | None = None) -> str:
    """What a reference stands for; of a file, its text without the line break at the end.

    Raises `SecretMissing`. `env` is the server's environment unless given.
    """
    scheme, _, rest = reference.partition(":")
    if scheme == "env":
        value = (os.environ if env is None else env).get(rest)
        if not value:
            raise SecretMissing(f"{reference}: the variable is not set; set it and restart the server")
        return value
    try:
        with Path(rest).open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise SecretMissing(f"{reference}: {why}; put the secret there, readable by the server") from error
    if len(raw) > _MAX_BYTES:
        raise SecretMissing(f"{reference}: the file is larger than {_MAX_BYTES} bytes; is it the right one?")
    try:
        value = raw.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise SecretMissing(f"{reference}: the file is not UTF-8 text") from error
    if not value:
        raise SecretMissing(f"{reference}: the file is empty")
    return value


class Redactor:
    """Takes secrets out of texts: as they are, in base64, and as a URL quotes them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) >= _SHORTEST_CLEANED:
                encoded = base64.b64encode(secret.encode()).decode()
                forms |= {secret, quote(secret, safe=""), encoded, encoded.rstrip("=")}
        self._pattern = (
            re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))
            if forms
            else None
        )
        self._longest = max((len(form) for form in forms), default=0)

    def clean(self, text: str, limit: int | None = None, *, cut_before: bool = False) -> str:
        """`text` without secrets, at most `limit` characters.

        `cut_before` says that `text` is itself the beginning of something longer: its end is dropped, since
        half a secret there would not be recognised.
        """
        if cut_before and self._longest:
            text = text[: max(0, len(text) - self._longest)]
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN, text)
        if limit is not None and len(text) > limit:
            return text[: limit - 1] + "…"
        return text
