"""What protobuf's JSON reader lets pass: `[]`, and other values that are empty, where a message belongs.

It takes them for a message that says nothing, so a mistake would be read as a request for everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor

_OWN_FORM = "google.protobuf."
"""Messages of this package have a form of their own in JSON: a time is a text, a list value a list."""


def no_message(service: str, method: str, body: bytes) -> tuple[str, Any] | None:
    """The first place of a call's JSON where a message belongs and no object stands: pointer and value.

    `service` is its full name. None where there is none, and where the body is no JSON: its reader says so.
    """
    try:
        calls = descriptor_pool.Default().FindServiceByName(service).methods_by_name
        return next(_wrong(json.loads(body), calls[method].input_type, ""), None)
    except (KeyError, ValueError, RecursionError):
        return None


def _wrong(value: Any, kind: Descriptor, pointer: str) -> Iterator[tuple[str, Any]]:
    if value is None or kind.full_name.startswith(_OWN_FORM):
        return
    if not isinstance(value, dict):
        yield pointer, value
        return
    fields = {name: field for field in kind.fields for name in (field.name, field.json_name)}
    for name, item in value.items():
        field = fields.get(name)
        if field is not None and field.message_type is not None:
            yield from _wrong_field(item, field, f"{pointer}/{name}")


def _wrong_field(value: Any, field: FieldDescriptor, pointer: str) -> Iterator[tuple[str, Any]]:
    kind = field.message_type
    if kind.GetOptions().map_entry:
        item = kind.fields_by_name["value"]
        if isinstance(value, dict) and item.message_type is not None:
            for key, one in value.items():
                yield from _wrong(one, item.message_type, f"{pointer}/{key}")
    elif not field.is_repeated:
        yield from _wrong(value, kind, pointer)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _wrong(one, kind, f"{pointer}/{index}")
