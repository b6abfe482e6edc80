"""The kept part of an output of any length: its beginning, its end, and how much is missing between.

The beginning says what a command set out to do, the end why it stopped. 32 KiB of each keeps a row small
enough for a list of runs and large enough for a traceback.
"""

from __future__ import annotations

HEAD = 32_768
TAIL = 32_768


class BoundedOutput:
    """Takes bytes as they come; holds at most `HEAD` + 2 × `TAIL` of them."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        """All bytes that were written, kept or not."""

    def write(self, data: bytes) -> None:
        self.total += len(data)
        room = HEAD - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail += data[-TAIL:]
        # Cut only at twice the size, so that a byte is moved at most twice however small the writes are.
        if len(self._tail) > 2 * TAIL:
            del self._tail[:-TAIL]

    def kept(self) -> bytes:
        """What is kept, with a line that says how many bytes were left out, if any were."""
        tail = self._tail[-TAIL:]
        dropped = self.total - len(self._head) - len(tail)
        if dropped <= 0:
            return bytes(self._head + tail)
        return bytes(self._head) + f"\n... {dropped} bytes left out ...\n".encode() + bytes(tail)
