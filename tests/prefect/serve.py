"""Runs in Prefect's own environment: a server of it on a loopback port, which says when it is there.

`serve.py PORT`: the port to listen on, 0 for any. Its first line on standard output is `ready PORT`; it ends
with SIGTERM, or with its standard input, so that it never outlives the tests that started it.
"""

from __future__ import annotations

import asyncio
import socket
import sys


async def main(port: int) -> None:
    import uvicorn
    from prefect.server.api.server import create_app

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print("ready", listener.getsockname()[1], flush=True)

    # Idle connections are kept for a minute. Ours go after 4 s, a second before uvicorn's 5; on a machine
    # that is slower than that second the server would close one that a call is just being written to.
    config = uvicorn.Config(
        create_app(), log_level="warning", timeout_graceful_shutdown=1, timeout_keep_alive=60
    )
    server = Server(config)

    async def until_alone() -> None:
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True

    alone = asyncio.create_task(until_alone())
    await server.serve(sockets=[listener])
    alone.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
