"""Flyte's words and Flyte's wire: what the target, the source and the API all need of it.

`messages` maps what Flyte declares to our words and back, and is pure; `client` makes one Connect call.
Both need the extra `flyte`; this file does not, so that whoever meets Flyte's name first can say so.
"""

from __future__ import annotations

from horarium.errors import InvalidInput, Problem

INSTALL = "pip install 'horarium[flyte]'"


def extra_missing(pointer: str, got: str, missing: ImportError) -> InvalidInput:
    """What to answer where Flyte is asked for and its packages are not installed."""
    return InvalidInput(
        Problem(pointer, got, f"Flyte's messages are not installed ({missing})", INSTALL, code="extra")
    )
