"""Where the work of a run says that it has begun, and may wait to be let go; by a socket from elsewhere."""

from __future__ import annotations

import json
import socketserver
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PATIENCE = 20.0


class Recorder:
    """`began` is called by the work, from any thread; `seen` and `let_go` by a test."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seen: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
        self._free: set[str] = set()

    def began(self, name: str, parameters: Mapping[str, Any]) -> None:
        with self._changed:
            self._seen[name].append(parameters)
            self._changed.notify_all()

    def wait_to_go(self, name: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: name in self._free, PATIENCE)

    def seen(self, name: str) -> Sequence[Mapping[str, Any]]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._seen[name], PATIENCE):
                raise TimeoutError(f"{name} did not begin within {PATIENCE:g} s")
            return tuple(self._seen[name])

    def let_go(self, name: str) -> None:
        with self._changed:
            self._free.add(name)
            self._changed.notify_all()


PROGRAM = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as there:
    there.connect(sys.argv[1])
    name, parameters = os.environ["HORARIUM_RUN_NAME"], json.loads(os.environ["HORARIUM_PARAMETERS"])
    said = {"name": name, "parameters": parameters, "hold": sys.argv[2] == "hold"}
    there.sendall(json.dumps(said).encode() + b"\\n")
    there.recv(1)
sys.exit("the ledger is closed" if sys.argv[2] == "fail" else 0)
"""
"""The work of a run in a process of its own: `python -c PROGRAM SOCKET quick|hold|fail`."""


class SocketServer(socketserver.ThreadingUnixStreamServer):
    """Takes what `PROGRAM` says."""

    daemon_threads = True

    def __init__(self, path: Path, recorder: Recorder) -> None:
        self.path = str(path)
        self.recorder = recorder
        super().__init__(self.path, _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(socketserver.StreamRequestHandler):
    server: SocketServer

    def handle(self) -> None:
        said = json.loads(self.rfile.readline())
        self.server.recorder.began(said["name"], said["parameters"])
        if said["hold"]:
            self.server.recorder.wait_to_go(said["name"])
