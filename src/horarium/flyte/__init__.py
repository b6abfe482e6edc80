"""Flyte's words and Flyte's wire: what the target, the source and the API all need of it.

`messages` maps what Flyte declares to our words and back, and is pure; `client` makes one Connect call.
Both need the extra `flyte`; this file does not, so that whoever meets Flyte's name first can say so.
"""

from __future__ import annotations

from horarium.errors import InvalidInput, Problem

CONNECTION_KEYS = ("endpoint", "org", "headers", "token", "timeout", "verify", "gzip")
"""The fields that say how Flyte is reached: those of a target of kind `flyte`, and of the source."""

ACTION_KEYS = ("task", "trigger", "task_spec", "inputs", "offloaded_inputs", "run_spec")
"""The words of a deployment on a target of kind `flyte`; `targets/flyte.py` says what they mean."""

INSTALL = "pip install 'horarium[flyte]'"


def extra_missing(pointer: str, got: str, missing: ImportError) -> InvalidInput:
    """What to answer where Flyte is asked for and its packages are not installed."""
    return InvalidInput(
        Problem(pointer, got, f"Flyte's messages are not installed ({missing})", INSTALL, code="extra")
    )
