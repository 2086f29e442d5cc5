"""A program that runs inside a sandbox, starts the agent, and forwards the agent's model calls to a Unix socket.

It is run as `python -c SOURCE ORDER COMMAND…`, and exits with the agent's exit status. It does not import the kit, and
has only one thread, because the sandbox limits processes. ORDER is a JSON object with these fields:

- `socket`: the path of the Unix socket
- `port`: the loopback port in the sandbox that the agent calls
- `places`: the maximum number of concurrent connections to the socket
- `lost`: the exit status if forwarding fails
- `variables`: environment variables for the agent, as NAME=VALUE
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import socket
import subprocess
import sys
from typing import Any

CHUNK = 65536
SPARE = 16
"""The number of file descriptors that are reserved for purposes other than connections."""
BACKLOG = 4096
LINGER_SECONDS = 1.0
"""How long a client may continue to send after the response.

If the socket closed immediately, the response could be lost.
"""


async def forward(source: socket.socket, target: socket.socket | None) -> None:
    """Copy data from one socket to another until the source ends. If there is no target, discard the data."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await loop.sock_recv(source, CHUNK):
            if target is not None:
                await loop.sock_sendall(target, data)
    if target is not None:
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


async def connect(client: socket.socket, path: str, places: asyncio.Semaphore) -> None:
    """Forward data between a client and the Unix socket, from the client's first byte to the end of the response."""
    loop = asyncio.get_running_loop()
    with client, contextlib.suppress(OSError, TimeoutError):
        first = await loop.sock_recv(client, CHUNK)  # a client that sends nothing does not occupy a place
        async with places:
            with socket.socket(socket.AF_UNIX) as outside:
                outside.setblocking(False)
                await loop.sock_connect(outside, path)
                await loop.sock_sendall(outside, first)
                asking = asyncio.create_task(forward(client, outside))
                await forward(outside, client)
                asking.cancel()
                await asyncio.wait((asking,))
        async with asyncio.timeout(LINGER_SECONDS):
            await forward(client, None)


async def serve(listener: socket.socket, order: dict[str, Any]) -> None:
    """Accept as many clients as the file descriptors allow. Further clients wait."""
    loop = asyncio.get_running_loop()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    at_once = min(order["places"], max(1, files // 4))
    places, clients = asyncio.Semaphore(at_once), asyncio.Semaphore(max(1, files - at_once - SPARE))
    connected: set[asyncio.Task[None]] = set()
    listener.setblocking(False)
    while True:
        await clients.acquire()
        client, _ = await loop.sock_accept(listener)
        client.setblocking(False)
        task = asyncio.create_task(connect(client, order["socket"], places))
        connected.add(task)
        task.add_done_callback(connected.discard)
        task.add_done_callback(lambda _: clients.release())


async def main() -> int:
    """Run the command and return its exit status, or 128 plus the number of the signal that ended it."""
    order, command = json.loads(sys.argv[1]), sys.argv[2:]
    listener = socket.create_server(("127.0.0.1", order["port"]), backlog=BACKLOG)
    serving = asyncio.create_task(serve(listener, order))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, ended.set)
    if command[0] in ("python", "python3"):
        command[0] = sys.executable
    with subprocess.Popen(["env", *order["variables"], *command]) as program:  # noqa: ASYNC220, S603, S607
        while (code := program.poll()) is None:
            waiting = asyncio.create_task(ended.wait())
            await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                program.kill()
                return int(order["lost"])
            ended.clear()  # installed before the next poll, so that no signal is missed
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
