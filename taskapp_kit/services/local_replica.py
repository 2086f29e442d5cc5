"""A replica as a child process, with the protocol and process management of rollout workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from taskapp_kit.config import child_environment
from taskapp_kit.errors import BadArgument, CallTimeout, ReplicaDied, ReplicaStartFailed
from taskapp_kit.rollout.executors.child import ChildProcess
from taskapp_kit.rollout.executors.job import JobHung, JobLost, JobRaised, Running
from taskapp_kit.rollout.executors.protocol import MAX_THREADS, BadFrame
from taskapp_kit.services.replicas import Frame, HasEnded, Operation, ReplicaSpec, check_loaded
from taskapp_kit.system.child_python import python_command

GRACE_SECONDS = 1.0
"""Seconds that a call may take to end after its time limit. After that, its process is killed."""
END_SECONDS = 5.0
"""Time limit in seconds for closing instances."""
_GPUS = Path("/proc/driver/nvidia/gpus")


class LocalReplica:
    """See `ReplicaHandle`. Create and use it on the loop of services. The replica's index determines its GPU."""

    def __init__(self, spec: ReplicaSpec, index: int, has_ended: HasEnded) -> None:
        self._spec = spec
        self._index = index
        self._has_ended = has_ended
        self._ending = False
        self._places = asyncio.Semaphore(MAX_THREADS)
        self._child = ChildProcess(exclusive=False, free=lambda child: None, gone=self._gone)
        self._ready = False

    @property
    def place(self) -> str:
        """The process id."""
        return f"pid {self._child.pid}"

    async def start(self) -> None:
        """Start the process and load the class in it."""
        seconds = self._spec.options.start_seconds
        command = python_command("taskapp_kit.services.local_main")
        try:
            await self._child.start(command, self._environment(), seconds)
            frame, _ = await self._do({"operation": "load", **self._spec.frame()}, self._spec.arguments, seconds)
            check_loaded(frame)
        except BaseException as error:
            self.kill()
            if isinstance(error, (JobLost, ReplicaDied, CallTimeout)):
                raise ReplicaStartFailed(f"A replica could not be started: {error}.") from error
            raise
        self._ready = True

    async def call(
        self, operation: Operation, method: str, session: str, data: bytes, seconds: float, ended: Callable[[], None]
    ) -> tuple[Frame, bytes]:
        """Send an operation to the host and return its response."""
        return await self._do({"operation": operation, "method": method, "session": session}, data, seconds, ended)

    async def end(self) -> None:
        """Close the instances and end the process."""
        self._ending = True
        if not self._child.alive:
            return
        with suppress(ReplicaDied, CallTimeout):
            await self._do({"operation": "end"}, b"", END_SECONDS)
        self._child.retire(END_SECONDS)
        await self._child.reaped()

    def kill(self) -> None:
        """Kill the process and its children."""
        self._child.kill("closing", "")

    async def _do(
        self, frame: Frame, data: bytes, seconds: float, ended: Callable[[], None] = lambda: None
    ) -> tuple[Frame, bytes]:
        try:
            await self._places.acquire()
        except BaseException:
            ended()
            raise

        def free() -> None:
            self._places.release()
            ended()

        child = self._child
        try:
            running = self._begun(frame, data, seconds)
        except BaseException:
            free()
            raise
        running.future.add_done_callback(lambda _: free())
        try:
            return await asyncio.shield(running.future)
        except asyncio.CancelledError:
            # `running.stop` would kill the process and lose its state. A synchronous method runs to its end.
            child.send({"job": running.number, "stop": "cancelled"})
            running.future.add_done_callback(partial(self._abandoned_ended, seconds))
            raise
        except JobHung as error:
            self._kill_hung(seconds)
            raise CallTimeout(f"A call did not end within {seconds:g} s, and its process was killed.") from error
        except JobRaised as error:  # only a cancelled call raises this: the host returns failures as responses
            raise CallTimeout(f"A call did not end within {seconds:g} s and was cancelled.") from error
        except JobLost as error:
            raise ReplicaDied(f"The replica ({self.place}) ended during the call: {error.reason}.") from error

    def _begun(self, frame: Frame, data: bytes, seconds: float) -> Running:
        if not self._child.alive:
            raise ReplicaDied(f"The replica ({self.place}) has ended.")
        running = Running(
            frame, data, seconds=seconds, step_seconds=None, grace_seconds=GRACE_SECONDS, on_frame=lambda *_: None
        )
        try:
            self._child.begin(running)
        except BadFrame as error:
            raise BadArgument(f"A call's arguments cannot be sent: {error}.", hint="Pass data in a file.") from None
        running.deadline = running.loop.call_later(seconds, running.stop, "timeout")
        return running

    def _abandoned_ended(self, seconds: float, future: asyncio.Future[tuple[Frame, bytes]]) -> None:
        """Handle the end of a call whose caller was cancelled."""
        if not future.cancelled() and isinstance(future.exception(), JobHung):
            self._kill_hung(seconds)

    def _kill_hung(self, seconds: float) -> None:
        self._child.kill("deadline", f"a call did not end within {seconds:g} s")

    def _gone(self, child: ChildProcess) -> None:
        if self._ready and not self._ending:
            self._ready = False
            self._has_ended(f"{self.place} has ended")

    def _environment(self) -> dict[str, str]:
        environment = {**child_environment(), **self._spec.options.environment}
        gpus = gpu_count()
        if self._spec.options.with_gpus and gpus and "CUDA_VISIBLE_DEVICES" not in environment:
            environment["CUDA_VISIBLE_DEVICES"] = str(self._index % gpus)
        elif not self._spec.options.with_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return environment


def gpu_count() -> int:
    """Return the number of NVIDIA GPUs in this machine."""
    try:
        return len(list(_GPUS.iterdir()))
    except OSError:
        return 0
