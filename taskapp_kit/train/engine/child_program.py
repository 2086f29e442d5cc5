"""A child process that calls its parent over a socket: `ChildProgram` in the parent, `ParentCalls` in the child.

A call is a line of JSON, `{"call": n, "name": …, "arguments": {…}}`. The reply is another line, `{"reply": n, "value":
…}`. The parent answers calls concurrently. The child ends with its parent: the kernel kills it on Linux, and it exits
when the socket closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from taskapp_kit.config import child_environment
from taskapp_kit.system.child import OwnedProcess
from taskapp_kit.system.child_python import python_command

LONGEST_LINE = 2**28
"""Maximum size of one call in bytes. The largest calls contain a state with a job's results."""
EXIT_SECONDS = 5.0
"""Seconds that a child may take to exit after it has closed its socket. After that, it is killed."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Environment variables of a child that loads models. They prevent requests to model hubs."""

Answer = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


def encoded(message: Mapping[str, Any]) -> bytes:
    """Encode a message as a line. Raises TypeError or ValueError for values that JSON cannot represent."""
    # The standard library's encoder rejects NaN. The protocol of the rollout executors would replace NaN with null, and its
    # shared memory and spare children do not help one long job.
    return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


class ChildProgram:
    """Runs a module of the kit as a child process inside a `with` block. The end of the block kills the child's processes.

    Args:
        module: The child's program. Its only argument is the file descriptor of the socket.
        cleaned: A function that removes API keys from the child's error output. The result is copied to this process's
            error output.
    """

    def __init__(self, module: str, *, cleaned: Callable[[str], str] = str) -> None:
        self._module, self._cleaned = module, cleaned

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process: OwnedProcess[None] = OwnedProcess(
                    python_command(self._module, str(theirs.fileno())),
                    env={**child_environment(), **OFFLINE},
                    name="taskapp-child",
                    reads="stderr",
                    pass_fds=(theirs.fileno(),),
                    clean=self._cleaned,
                    on_line=_copy,
                )
        except BaseException:
            ours.close()
            raise
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=LONGEST_LINE)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._kill()
        self._writer.close()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    async def answer_calls(self, answer: Answer) -> None:
        """Answer the child's calls until it closes its socket, then wait until it has exited.

        An exception in `answer` is raised here, and the child receives no reply.
        """
        try:
            async with asyncio.TaskGroup() as calls:
                while line := await self._line():
                    message = json.loads(line)
                    calls.create_task(self._answer(answer, message))
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        await asyncio.to_thread(self._process.ended.wait, EXIT_SECONDS)

    async def death(self) -> str:
        """Kill the child if it is running. Return how it ended and its last lines of error output."""
        await self._kill()
        return self._process.end

    async def _line(self) -> bytes:
        try:
            return await self._reader.readline()
        except ConnectionError:
            return b""

    async def _answer(self, answer: Answer, message: Mapping[str, Any]) -> None:
        value = await answer(message["name"], message["arguments"])
        if self._writer.is_closing():  # the child has ended, and uvloop's transports would raise RuntimeError
            return
        with contextlib.suppress(ConnectionError):
            self._writer.write(encoded({"reply": message["call"], "value": value}))
            await self._writer.drain()

    async def _kill(self) -> None:
        await asyncio.shield(asyncio.to_thread(self._process.kill))


def _copy(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in a group, including nested groups."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class ParentCalls:
    """Calls the parent of this process inside a `with` block. `fd` is the file descriptor of the socket.

    When the parent ends, this process exits immediately, because its results could no longer be stored.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Any]] = {}

    async def __aenter__(self) -> Self:
        sock = socket.socket(fileno=self._fd)
        sock.set_inheritable(False)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=sock, limit=LONGEST_LINE)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        self._writer.close()

    async def call(self, name: str, **arguments: Any) -> Any:
        """Make a call and return the parent's reply. Raises TypeError or ValueError for arguments that are not JSON."""
        number = next(self._numbers)
        line = encoded({"call": number, "name": name, "arguments": arguments})
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self._writer.write(line)
        await self._writer.drain()
        return await reply

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                message = json.loads(line)
                reply = self._replies.pop(message["reply"])
                if not reply.done():
                    reply.set_result(message["value"])
        except ConnectionError:
            pass
        os._exit(1)
