"""A replica as an actor in a Ray cluster. Requires the extra `ray`.

The program may select the cluster with `ray.init`. Otherwise the first service connects to the cluster at RAY_ADDRESS,
or starts a cluster on this machine if the variable is not set. Ray transports only bytes, which are encoded as for
local replicas. Every node needs the same packages and files, and the class's module at the same path. Ray's restarts
and retries are disabled: the service itself restarts a replica and sets the replica's state before it serves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, TaskCancelledError

from taskapp_kit.config import disable_ray_usage_statistics, server_only_names
from taskapp_kit.errors import CallTimeout, ReplicaDied, ReplicaStartFailed
from taskapp_kit.services.replica_host import Answer, ReplicaHost
from taskapp_kit.services.replicas import Frame, HasEnded, Operation, ReplicaHandle, ReplicaSpec, check_loaded

CALLS_AT_ONCE = 1000
"""Maximum concurrent calls of one actor. The host limits the calls of each instance."""
GRACE_SECONDS = 1.0
"""Seconds that a call may take to end after its time limit. After that, its actor is killed."""
END_SECONDS = 5.0
"""Time limit in seconds for closing instances."""
PROCESSORS = 0.001
"""CPUs that a replica requests: almost none, because there may be more replicas than CPUs, but not 0, because Ray does not
spread actors that request nothing.
"""

_connecting = threading.Lock()


class HostActor:
    """The class of the Ray actor, a `ReplicaHost` with asynchronous methods."""

    def __init__(self) -> None:
        self._host = ReplicaHost()
        self._end = asyncio.Event()

    async def do(self, frame: Frame, data: bytes) -> Answer:
        """Run an operation of the host."""
        return await self._host.answer(frame, data)

    async def until_end(self) -> None:
        """Wait forever. When the actor ends, the waiting caller receives an error with the reason."""
        await self._end.wait()

    async def node(self) -> str:
        """Return the id of the node on which the actor runs."""
        return str(ray.get_runtime_context().get_node_id())


class RayReplica:
    """See `ReplicaHandle`. Create and use it on the loop of services."""

    def __init__(self, spec: ReplicaSpec, has_ended: HasEnded) -> None:
        self._spec = spec
        self._has_ended = has_ended
        self._actor: Any = None
        self._watch: asyncio.Task[None] | None = None
        self._ended = ""
        self._node = ""

    @property
    def place(self) -> str:
        """The ids of the node and the actor, shortened to their first characters."""
        actor = "" if self._actor is None else self._actor._actor_id.hex()[:12]
        return f"node {self._node[:12]}, actor {actor}"

    async def start(self) -> None:
        """Create the actor and load the class in it."""
        options = self._spec.options
        # a cluster started here inherits this process's variables, and Ray can set but not remove variables of an actor
        variables = {**dict.fromkeys(server_only_names(), ""), **options.environment}
        if not options.with_gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ""
        try:
            async with asyncio.timeout(options.start_seconds):
                await asyncio.to_thread(_connect)
                self._actor = (
                    ray.remote(HostActor)
                    .options(
                        max_concurrency=CALLS_AT_ONCE,
                        num_cpus=PROCESSORS,
                        num_gpus=1 if options.with_gpus and ray.cluster_resources().get("GPU") else 0,
                        runtime_env={"env_vars": variables},
                        scheduling_strategy="SPREAD",
                    )
                    .remote()
                )
                self._node = await self._actor.node.remote()
                frame, _ = await self._actor.do.remote(
                    {"operation": "load", **self._spec.frame()}, self._spec.arguments
                )
            check_loaded(frame)
        except (RayError, TimeoutError) as error:
            self.kill()
            why = str(error) or f"the actor was not ready within {options.start_seconds:g} s"
            raise ReplicaStartFailed(f"A replica could not be started on Ray: {why}") from error
        except BaseException:
            self.kill()
            raise
        self._watch = asyncio.ensure_future(self._until_end(self._actor))

    async def call(
        self, operation: Operation, method: str, session: str, data: bytes, seconds: float, ended: Callable[[], None]
    ) -> tuple[Frame, bytes]:
        """Send an operation to the host and return its response."""
        return await self._do({"operation": operation, "method": method, "session": session}, data, seconds, ended)

    async def end(self) -> None:
        """Close the instances and end the actor."""
        if self._watch is not None:
            self._watch.cancel()
        if self._actor is not None and not self._ended:
            with suppress(ReplicaDied, CallTimeout):
                await self._do({"operation": "end"}, b"", END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the actor's process."""
        if self._actor is not None and not self._ended:
            self._ended = "it was killed"
            with suppress(RayError):
                ray.kill(self._actor)

    async def _do(
        self, frame: Frame, data: bytes, seconds: float, ended: Callable[[], None] = lambda: None
    ) -> tuple[Frame, bytes]:
        if self._ended:
            ended()
            raise ReplicaDied(f"The replica ({self.place}) has ended: {self._ended}.")
        call = self._actor.do.remote(frame, data)
        answer = asyncio.ensure_future(_awaited(call))
        answer.add_done_callback(lambda _: ended())
        try:
            done, _ = await asyncio.wait((answer,), timeout=seconds)
            if done:
                return answer.result()
            ray.cancel(call)
            done, _ = await asyncio.wait((answer,), timeout=GRACE_SECONDS)
            if not done:
                self._gone(f"a call did not end within {seconds:g} s")
        except asyncio.CancelledError:
            ray.cancel(call)
            raise
        except TaskCancelledError:
            pass
        except RayActorError as error:
            self._gone("its process died")
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ReplicaDied(f"The replica ({self.place}) ended during the call: {reason}.") from error
        finally:
            answer.add_done_callback(_retrieved)
        raise CallTimeout(f"A call did not end within {seconds:g} s.")

    async def _until_end(self, actor: Any) -> None:
        with suppress(RayError):
            await actor.until_end.remote()
        self._gone("its process died")

    def _gone(self, reason: str) -> None:
        if not self._ended:
            self._ended = reason
            with suppress(RayError):
                ray.kill(self._actor)
            self._has_ended(f"{self.place}: {reason}")


def ray_replicas(spec: ReplicaSpec) -> Callable[[int, HasEnded], ReplicaHandle]:
    """Return a function that creates a replica. The function ignores the index, because Ray chooses the node and the GPU."""
    return lambda index, has_ended: RayReplica(spec, has_ended)


def _connect() -> None:
    with _connecting:
        if not ray.is_initialized():
            disable_ray_usage_statistics()
            ray.init(include_dashboard=False, configure_logging=False)


async def _awaited(call: Any) -> Answer:
    answer: Answer = await call
    return answer


def _retrieved(answer: asyncio.Future[Answer]) -> None:
    if not answer.cancelled():
        answer.exception()  # asyncio logs unretrieved exceptions
