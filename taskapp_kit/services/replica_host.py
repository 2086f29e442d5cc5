"""The replica's side of a service: imports the class, has its instances, and calls their methods. The same on each backend.

Asynchronous methods run on an event loop of the replica's own; synchronous ones in a thread of their instance. A call's
failure is part of its answer: only the process's end is a failure of the replica.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from taskapp_kit.errors import ServiceError
from taskapp_kit.services.class_reference import ClassReference
from taskapp_kit.services.encoding import decode, encode
from taskapp_kit.services.replicas import Frame, Operation

Answer = tuple[Frame, bytes]


class HostedInstance:
    """One instance of the class, and its thread."""

    def __init__(self, concurrent_calls: int) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="instance")
        self._places = asyncio.Semaphore(concurrent_calls)
        self._object: Any = None

    async def make(self, cls: type[Any], arguments: bytes) -> None:
        """Construct it."""

        def construct() -> Any:
            args, kwargs = decode(arguments, imports=True)
            return cls(*args, **kwargs)

        self._object = await self._in_thread(construct)

    async def call(self, method: str, data: bytes) -> bytes:
        """Return the encoded result of a method. Raises what it raises."""
        args, kwargs = decode(data, imports=True)
        function = getattr(self._object, method)
        async with self._places:
            if inspect.iscoroutinefunction(function):
                return encode(await function(*args, **kwargs))
            return encode(await self._in_thread(lambda: function(*args, **kwargs)))

    async def close(self) -> None:
        """Call its `close`, if it has one, and end the thread."""
        function = getattr(self._object, "close", None)
        try:
            if inspect.iscoroutinefunction(function):
                await function()
            elif function is not None:
                await self._in_thread(function)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


class ReplicaHost:
    """The instances of one replica: one, or one for each session of a stateful class."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._cls: type[Any] = object
        self._arguments = b""
        self._concurrent_calls = 1
        self._instances: dict[str, HostedInstance] = {}
        threading.Thread(target=self._loop.run_forever, name="endpoints", daemon=True).start()

    def submit(self, frame: Frame, data: bytes) -> Future[Answer]:
        """Begin an operation; return the future of its answer. Cancelling it cancels an asynchronous method.

        frame: `operation`, with `method` and `session` ("" for the only instance); for `load` that of `ReplicaSpec`, and
        data are the encoded arguments.
        """
        return asyncio.run_coroutine_threadsafe(self._answer(frame, data), self._loop)

    async def _answer(self, frame: Frame, data: bytes) -> Answer:
        try:
            return {}, await self._result(frame["operation"], frame, data)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # SystemExit of a method is a failure of the call, too
            lines = traceback.format_exception(error)
            raised = {"type": type(error).__qualname__, "text": str(error), "traceback": "".join(lines)}
            return {"raised": raised}, b""

    async def _result(self, operation: Operation, frame: Frame, data: bytes) -> bytes:
        match operation:
            case "load":
                await self._load(frame, data)
            case "call":
                return await self._instance(frame["session"]).call(frame["method"], data)
            case "open":
                await self._make(frame["session"])
            case "close":
                await self._instances.pop(frame["session"]).close()
            case "end":
                instances, self._instances = list(self._instances.values()), {}
                await asyncio.gather(*(instance.close() for instance in instances))
        return encode(None)

    async def _load(self, frame: Frame, data: bytes) -> None:
        self._cls = ClassReference(**frame["reference"]).load()
        self._arguments = data
        self._concurrent_calls = frame["concurrent_calls"]
        setup = getattr(self._cls, "setup_worker", None)
        if setup is not None:
            args, kwargs = decode(data, imports=True) if inspect.signature(setup).parameters else ((), {})
            await asyncio.to_thread(setup, *args, **kwargs)
        if not frame["stateful"]:
            await self._make("")

    async def _make(self, session: str) -> None:
        instance = HostedInstance(self._concurrent_calls)
        await instance.make(self._cls, self._arguments)
        self._instances[session] = instance

    def _instance(self, session: str) -> HostedInstance:
        instance = self._instances.get(session)
        if instance is None:
            raise ServiceError(f"The replica has no session {session!r}: it was closed.")
        return instance
