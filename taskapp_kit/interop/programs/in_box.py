"""A program that runs inside a sandbox: starts the agent and forwards its calls of the policy to a unix socket.

Run as `python -c SOURCE ORDER COMMAND…`. ORDER is JSON: `socket`, the path of the unix socket; `port`, the sandbox's
loopback port that the agent calls; `places`, concurrent connections to the socket; `lost`, the exit status if forwarding
breaks; `variables`, NAME=VALUE for the agent. It ends with the agent's exit status. It does not import the kit and has one
thread, because a sandbox limits its processes.
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
"""Descriptors that are not for connections."""
BACKLOG = 4096
LINGER_SECONDS = 1.0
"""How long a client may continue to send an answered request. Closed immediately, it could lose the response."""


async def forward(source: socket.socket, target: socket.socket | None) -> None:
    """Send what arrives at one socket to the other, or discard it, until the source ends."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await loop.sock_recv(source, CHUNK):
            if target is not None:
                await loop.sock_sendall(target, data)
    if target is not None:
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


async def connect(client: socket.socket, path: str, places: asyncio.Semaphore) -> None:
    """Connect a client with the socket, from its first byte to the end of the response."""
    loop = asyncio.get_running_loop()
    with client, contextlib.suppress(OSError, TimeoutError):
        first = await loop.sock_recv(client, CHUNK)  # a client that sends nothing occupies no place
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
    """Accept as many clients as the descriptors allow; the others wait."""
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
    """Run the command and return its exit status, or 128 plus the number of a signal."""
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
            ended.clear()  # before the next poll, so that no signal is missed
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
