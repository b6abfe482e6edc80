"""Offloaded inputs whose reference is their content.

Flyte's SDK uploads a trigger's inputs before it deploys the trigger, and then names them by what the upload
answered. What we answer is a `data:` URI that holds the inputs themselves: nothing is kept between the two
calls, so no restart and no other replica can lose it. A deploy puts the inputs back into the trigger. An
address of another kind is another system's, and is passed on as it is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from flyteidl2.common.run_pb2 import OffloadedInputData
from flyteidl2.task.common_pb2 import Inputs
from google.protobuf.message import DecodeError

from horarium.errors import InvalidInput, Problem, shown

PREFIX = "data:application/x-flyte-inputs;base64,"
MAX_INPUTS = 256 * 1024
"""Bytes of one trigger's inputs: they are part of every revision, and are sent with every run."""


def check_size(inputs: Inputs) -> bytes:
    """The inputs' bytes. Raises `ConnectError` for too many."""
    raw: bytes = inputs.SerializeToString(deterministic=True)
    if len(raw) > MAX_INPUTS:
        raise ConnectError(
            Code.RESOURCE_EXHAUSTED,
            f"/inputs: {len(raw):,} bytes: a trigger's inputs have at most {MAX_INPUTS:,}; keep large ones "
            "in storage and give their address (flyte.io.File, flyte.io.Dir)",
        )
    return raw


def offload(inputs: Inputs) -> OffloadedInputData:
    """The reference to inputs. Raises `ConnectError` for inputs that are too large."""
    raw = check_size(inputs)
    return OffloadedInputData(uri=PREFIX + base64.b64encode(raw).decode(), inputs_hash=_hash(raw))


def restored(offloaded: OffloadedInputData, pointer: str) -> Inputs | None:
    """The inputs that a reference of ours holds; None for another system's. Raises `InvalidInput`."""
    if not offloaded.uri.startswith(PREFIX):
        return None
    try:
        raw = base64.b64decode(offloaded.uri.removeprefix(PREFIX), validate=True)
        inputs = Inputs.FromString(raw)
    except (binascii.Error, ValueError, DecodeError):
        raise _mangled(offloaded.uri, pointer) from None
    if offloaded.inputs_hash != _hash(raw):
        raise _mangled(offloaded.uri, pointer)
    check_size(inputs)
    return inputs


def _hash(raw: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).decode().rstrip("=")


def _mangled(uri: str, pointer: str) -> InvalidInput:
    return InvalidInput(
        Problem(
            f"{pointer}/uri",
            shown(uri, 80),
            "this is not what UploadInputs answered",
            "upload them again",
            "uri",
        )
    )
