"""The part of a service that runs in the replica on every backend: loads the class, creates instances, calls methods.

Asynchronous methods run on the replica's event loop, and synchronous methods run on their instance's thread. If a call
fails, the response contains the failure. Only the end of the process is a failure of the replica.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from taskapp_kit.errors import ServiceError
from taskapp_kit.services.encoding import decode, encode
from taskapp_kit.services.replicas import ClassReference, Frame, Operation

Answer = tuple[Frame, bytes]
Result = TypeVar("Result")

TEXT_LENGTH = 16_000
"""Maximum length in characters of an exception's message, and of its traceback."""


class HostedInstance:
    """One instance of the class, and the instance's thread."""

    def __init__(self, concurrent_calls: int) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="instance")
        self._places = asyncio.Semaphore(concurrent_calls)
        self._object: Any = None

    async def make(self, cls: type[Any], arguments: bytes) -> None:
        """Construct the instance."""

        def construct() -> Any:
            args, kwargs = decode(arguments, imports=True)
            return cls(*args, **kwargs)

        self._object = await self._in_thread(construct)

    async def call(self, method: str, data: bytes) -> bytes:
        """Call a method and return its encoded result. Raises the method's exceptions."""
        args, kwargs = decode(data, imports=True)
        function = getattr(self._object, method)
        async with self._places:
            if inspect.iscoroutinefunction(function):
                return encode(await function(*args, **kwargs))
            return await self._in_thread(lambda: encode(function(*args, **kwargs)))

    async def close(self) -> None:
        """Call the instance's `close`, if it exists, and end the thread."""
        function = getattr(self._object, "close", None)
        try:
            if inspect.iscoroutinefunction(function):
                await function()
            elif function is not None:
                await self._in_thread(function)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        """Run `work` on the thread. If cancelled, wait until `work` has ended if it has started, because threads cannot stop."""

        def outcome() -> tuple[Result, None] | tuple[None, BaseException]:
            try:
                return work(), None
            except BaseException as error:  # a future cannot store StopIteration
                return None, error

        running = self._thread.submit(outcome)
        ended = asyncio.wrap_future(running)
        try:
            result = await asyncio.shield(ended)
        except asyncio.CancelledError:
            running.cancel()
            while not ended.done():  # even if it is cancelled repeatedly
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((ended,))
            raise
        if result[1] is not None:
            raise result[1]
        return result[0]


class ReplicaHost:
    """The replica's instance, or one instance for each session if the class is stateful. Use it on one event loop."""

    def __init__(self) -> None:
        self._cls: type[Any] = object
        self._arguments = b""
        self._concurrent_calls = 1
        self._instances: dict[str, HostedInstance] = {}

    async def answer(self, frame: Frame, data: bytes) -> Answer:
        """Run an operation and return its result or failure. Cancelling this call cancels an asynchronous method.

        Args:
            frame: An object with `operation`, `method` and `session`, which is "" for a stateless class. For `load`,
                the frame of `ReplicaSpec`.
            data: The encoded arguments.
        """
        try:
            return {}, await self._result(frame["operation"], frame, data)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return failure(error), b""  # the method itself raised it
        except BaseException as error:  # a method that raises SystemExit also only fails the call
            return failure(error), b""

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
            raise ServiceError(f"The session {session!r} of the replica was closed.")
        return instance


def failure(error: BaseException) -> Frame:
    """Return the response for an exception, even if its `__str__` raises."""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be read)"
    lines = traceback.format_exception(error)
    return {
        "raised": {
            "type": type(error).__qualname__,
            "text": text[:TEXT_LENGTH],
            "traceback": "".join(lines)[-TEXT_LENGTH:],
        }
    }
