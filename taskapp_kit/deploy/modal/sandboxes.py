"""Machines for boxes of level 4. Each machine is a Modal Sandbox without network, Secrets, Volumes or the kit's files.

    import taskapp_kit.sandbox.remote
    taskapp_kit.sandbox.remote.use(ModalMachines())

`container.serve` executes these lines for apps that use `taskapp_kit.sandbox`, because neither bubblewrap nor Landlock
is reliable in a Modal container. The image of a Sandbox is a slim Debian with Python. The image of the app is never
used, because it contains the hidden tests of environments.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
import threading
import urllib.parse
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from taskapp_kit.client.blocking_portal import run
from taskapp_kit.errors import SandboxError
from taskapp_kit.sandbox.limits import MB, SandboxLimits
from taskapp_kit.sandbox.remote import CommandResult

log = logging.getLogger("taskapp_kit.deploy")

T = TypeVar("T")

LIFE_SECONDS = 3600
"""The lifetime of a box, after which Modal ends it. This limits the cost of boxes that remain when a server crashes."""
IDLE_SECONDS = 600
"""The idle time after which Modal ends a box."""
OPEN_SECONDS = 90.0
"""How many seconds a machine may take to start."""
CLOSE_SECONDS = 15.0
CORES = (0.5, 2.0)
"""The reserved and the maximum number of cores of a machine."""
SPARE_MB = 512
"""Memory of a machine for the system and the kit's program, in addition to the memory limit of a box."""
_SEND_BYTES = 512 * 1024


class ModalMachines:
    """Boxes in Modal Sandboxes; see `sandbox.remote.Machines`.

    Args:
        app: The Modal app to which the Sandboxes belong. Defaults to the container's app.
        client: A `modal.Client`. Defaults to the client of the process.
        server_url: The address of Modal's control plane. Defaults to the address in Modal's configuration.
    """

    name = "Modal Sandbox"

    def __init__(self, *, app: Any = None, client: Any = None, server_url: str | None = None) -> None:
        self._app = app
        self._client = client
        self._server_url = server_url

    def open(self, limits: SandboxLimits) -> ModalMachine:
        """Create a Sandbox.

        Raises:
            SandboxError: The Sandbox could not be created. The message contains the type of Modal's error, never its
                text.
        """
        import modal

        most = math.ceil(limits.memory_bytes / MB) + math.ceil(limits.file_bytes / MB) + SPARE_MB
        version = f"{sys.version_info.major}.{sys.version_info.minor}"

        async def create() -> Any:
            return await modal.Sandbox.create.aio(
                "sleep",
                "infinity",
                app=self._app,
                client=self._client,
                image=modal.Image.debian_slim(python_version=version),
                timeout=LIFE_SECONDS,
                idle_timeout=IDLE_SECONDS,
                cpu=CORES,
                memory=(min(most, SPARE_MB), most),
                block_network=True,
            )

        return ModalMachine(_done(create, OPEN_SECONDS, "could not be created"))

    def reachable(self) -> tuple[str, int] | None:
        """Return the address of Modal's control plane, to which this process connects, or None if it is unknown."""
        if self._server_url is None:
            from modal.config import config

            self._server_url = str(config.get("server_url"))
        address = urllib.parse.urlsplit(self._server_url.split(",")[0])
        if not address.hostname:
            return None
        return address.hostname, address.port or (443 if address.scheme == "https" else 80)


class ModalMachine:
    """A Modal Sandbox; see `sandbox.remote.Machine`."""

    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox
        self._first = OPEN_SECONDS  # the first command waits for the Sandbox to start
        self._closing = threading.Lock()
        self._closed = False

    def call(self, argv: Sequence[str], stdin: bytes, *, seconds: float, most_bytes: int) -> CommandResult:
        """Run a command; see `Machine.call`."""
        if self._closed:
            raise SandboxError("The machine of this box is closed.")
        first, self._first = self._first, 0.0

        async def work() -> CommandResult:
            process = await self._sandbox.exec.aio(*argv, timeout=math.ceil(seconds + first), text=False)
            output = bytearray()

            async def send() -> None:
                for start in range(0, len(stdin), _SEND_BYTES):
                    process.stdin.write(stdin[start : start + _SEND_BYTES])
                    await process.stdin.drain.aio()
                process.stdin.write_eof()
                await process.stdin.drain.aio()

            async def receive() -> None:
                async for piece in process.stdout:
                    output.extend(piece)
                    if len(output) > most_bytes:
                        raise SandboxError("A remote box sent more output than was requested.")

            sending = asyncio.ensure_future(send())
            try:
                await receive()
                await sending
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            return CommandResult(await process.wait.aio(), bytes(output))

        return _done(work, seconds + first, "did not answer")

    def close(self) -> None:
        """End the Sandbox. If that fails, Modal ends it after LIFE_SECONDS or IDLE_SECONDS."""
        with self._closing:
            if self._closed:
                return
            self._closed = True

        async def terminate() -> None:
            await self._sandbox.terminate.aio()
            with contextlib.suppress(Exception):
                await self._sandbox.detach.aio()

        try:
            _done(terminate, CLOSE_SECONDS, "could not be ended")
        except SandboxError as error:
            log.warning("%s Modal will end the Sandbox after a while.", error)


def _done(work: Callable[[], Coroutine[Any, Any, T]], seconds: float, what: str) -> T:
    async def bounded() -> T:
        try:
            async with asyncio.timeout(seconds):
                return await work()
        except SandboxError:
            raise
        except Exception as error:  # Modal's client also raises exceptions of its gRPC library
            raise SandboxError(
                f"A Modal Sandbox {what}: {type(error).__name__}.", hint="Check the Modal app's Sandboxes and limits."
            ) from error

    return run(bounded())
