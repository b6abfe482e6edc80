"""References to secrets, and keeping what they stand for out of everything that people see.

A secret is never written in a triggers file, a database or a message. What is written is a reference,
`env:NAME` or `file:PATH`; a target resolves it when it starts. Whatever a target says about a call goes
through `Redactor.clean` first.
"""

from __future__ import annotations

import base64
import html
import json
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
    """Takes secrets out of texts: as they are, in base64, and as URLs, JSON and HTML quote them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) >= _SHORTEST_CLEANED:
                encoded = base64.b64encode(secret.encode()).decode()
                forms |= {secret, encoded, encoded.rstrip("=")}
                forms |= {quote(secret, safe=""), html.escape(secret), json.dumps(secret)[1:-1]}
        # The longest first, or a secret that begins with another would be hidden in part.
        self._forms = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._forms))) if forms else None

    def clean(self, text: str, limit: int | None = None, *, cut: bool = False) -> str:
        """`text` without secrets and on one line, at most `limit` characters.

        `cut` says that `text` is the beginning of something longer: where it ends within a secret, that
        part goes too.
        """
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN, text)
            if cut:
                text = self._without_beginning(text.rstrip("\ufffd"))
        text = "".join(char if char.isprintable() else " " for char in text)
        if limit is not None and len(text) > limit:
            return text[: limit - 1] + "…"
        return text

    def _without_beginning(self, text: str) -> str:
        """`text` without the longest end of it that is the beginning of a secret."""
        longest = 0
        for form in self._forms:
            for size in range(min(len(form) - 1, len(text)), longest, -1):
                if text.endswith(form[:size]):
                    longest = size
                    break
        return text[: len(text) - longest] if longest else text
