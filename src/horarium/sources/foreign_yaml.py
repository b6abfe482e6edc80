"""YAML that was written for other tools: with anchors, merge keys and several documents, and with lines.

Triggers files are read strictly (`document.py`). What other tools take is wider: they read YAML 1.1, in
which `yes` is true and `<<` merges. This module reads it as they do, and never makes anything but plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import Node
from ruamel.yaml.resolver import VersionedResolver

from horarium.errors import InvalidInput, Problem
from horarium.sources.document import MAX_BYTES


def documents(text: str, *, hint: str = "") -> list[Any]:
    """The documents of `text`: mappings and lists that know their lines, and scalars; no empty ones.

    Raises `InvalidInput` where it is no YAML, with `hint` as what to try.
    """
    if len(text) > MAX_BYTES:
        raise InvalidInput(
            Problem(
                "", f"{len(text):,} characters", f"a file has at most {MAX_BYTES:,}", "split it", code="size"
            )
        )
    reader = YAML(typ="rt", pure=True)
    reader.Resolver, reader.Constructor = _Resolver, _Constructor
    try:
        return [document for document in reader.load_all(text) if document is not None]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise InvalidInput(_no_yaml(error.problem or str(error), line, hint)) from error
    except (YAMLError, ValueError, OverflowError, RecursionError, TypeError) as error:
        # ruamel fails in other ways too on some texts; it is the file that is at fault.
        raise InvalidInput(_no_yaml(str(error) or type(error).__name__, 1, hint)) from error


def line_of(container: Any, key: str | int | None = None) -> int:
    """The line (1-based) of `key` in a mapping or list that was read here, or of the container itself."""
    if isinstance(container, CommentedMap | CommentedSeq):
        if key is not None:
            at = (container.lc.data or {}).get(key)
            if at is not None:
                return int(at[0]) + 1
        return int(container.lc.line or 0) + 1
    return 1


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one: for optional parts of documents."""
    return value if isinstance(value, Mapping) else {}


class _Resolver(VersionedResolver):
    """YAML 1.1 in every document: ruamel's `version` holds for the first alone."""

    @property
    def processing_version(self) -> tuple[int, int]:
        return (1, 1)


class _Constructor(RoundTripConstructor):
    """Times stay text, as they were written; tags of Python or of other programs make nothing."""

    def construct_timestamp_text(self, node: Node) -> str:
        return str(node.value)

    def construct_scalar(self, node: Any) -> Any:
        # JSON writes a character beyond U+FFFF as two escapes, which YAML reads one by one.
        found = super().construct_scalar(node)
        if isinstance(found, str) and any("\ud800" <= character <= "\udbff" for character in found):
            return found.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return found


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", _Constructor.construct_timestamp_text)


def _no_yaml(why: str, line: int, hint: str) -> Problem:
    return Problem("", "the file", f"this is not YAML ({why})", hint, code="syntax", line=line)
