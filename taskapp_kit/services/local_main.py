"""The program of a replica on this machine, `taskapp_kit.services.local_main FD`, which `local_replica.py` starts.

FD is a socket that carries the frames of `rollout/executors/protocol.py`. A job is one operation of `ReplicaHost`, and
the first job loads the class. Each job is an asyncio task on the main thread's event loop, on which asynchronous methods
run directly.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from functools import partial

from taskapp_kit.config import LOG_LEVEL, child_environment, take_parent_logging
from taskapp_kit.logs import configure
from taskapp_kit.rollout.executors.protocol import (
    LAST_SECONDS,
    MAX_THREADS,
    BadFrame,
    PipeReader,
    encode,
    parent_socket,
)
from taskapp_kit.services.replica_host import Answer, ReplicaHost, failure


class CallServer:
    """Receives the service's frames and sends the responses. Create and use it on the event loop."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._host = ReplicaHost()
        self._reader = PipeReader()
        self._tasks: dict[int, asyncio.Task[Answer]] = {}
        self._out: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()

    async def serve(self) -> bool:
        """Serve until the service closes the socket. Return whether all calls had ended at that time."""
        self._loop.add_reader(self._sock.fileno(), self._read)
        self._send(encode({"ready": MAX_THREADS}))
        await self._ended.wait()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_SECONDS)
        return all(task.done() for task in tasks)

    def _read(self) -> None:
        try:
            chunk = self._sock.recv(self._reader.wants)
        except ConnectionError:
            chunk = b""
        if not chunk:
            self._loop.remove_reader(self._sock.fileno())
            self._ended.set()
            return
        for message, blob, _ in self._reader.feed(chunk):
            number = message["job"]
            if "run" in message:
                task = self._tasks[number] = self._loop.create_task(self._host.answer(message["run"], blob))
                task.add_done_callback(partial(self._answered, number))
            elif "stop" in message and (running := self._tasks.get(number)) is not None:
                running.cancel()

    def _answered(self, number: int, task: asyncio.Task[Answer]) -> None:
        del self._tasks[number]
        if task.cancelled():
            self._send(encode({"job": number, "raised": {"error": "CancelledError"}}))
            return
        frame, data = task.result()
        try:
            self._send(encode({"job": number, "done": frame}, data))
        except BadFrame as error:
            self._send(encode({"job": number, "done": failure(error)}))

    def _send(self, pieces: list[bytes]) -> None:
        if not self._out:  # one system call for all responses of this loop iteration
            self._loop.call_soon(self._flush)
        self._out += pieces

    def _flush(self) -> None:
        data, self._out = b"".join(self._out), []
        with suppress(ConnectionError):  # the reader handles the end of the connection
            self._sock.sendall(data)  # blocks only briefly, because the service is always reading


def main(fd: str) -> None:
    """Serve the service's calls until the service ends."""
    sock, _ = parent_socket(int(fd))
    log_format, level = take_parent_logging({LOG_LEVEL: "warning", **child_environment()})
    configure(level, log_format, worker=os.getpid())

    async def serve() -> None:
        if not await CallServer(sock).serve():
            sys.stderr.flush()
            os._exit(1)  # a stuck thread would prevent the interpreter from exiting

    asyncio.run(serve())


if __name__ == "__main__":
    main(*sys.argv[1:2])
