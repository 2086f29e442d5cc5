"""The handle of a service, which any event loop and any thread can use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from taskapp_kit.config import process_variable
from taskapp_kit.errors import BadArgument, ServiceError, Unavailable, closest
from taskapp_kit.services.dispatcher import Dispatcher, ReplicaSession
from taskapp_kit.services.encoding import decode, encode_arguments
from taskapp_kit.services.endpoints import endpoints_of
from taskapp_kit.services.local_replica import LocalReplica, gpu_count
from taskapp_kit.services.loop import on_services_loop, wait_on_services_loop
from taskapp_kit.services.replicas import (
    BACKENDS,
    Backend,
    ClassReference,
    HasEnded,
    ReplicaHandle,
    ReplicaSpec,
    ServiceOptions,
    ServiceStats,
)

log = logging.getLogger("taskapp_kit.services")

BACKEND_VARIABLE = "TASKAPP_SERVICES_BACKEND"


class ServiceEndpoint:
    """One method of a service or of a session."""

    def __init__(self, name: str, dispatch: Dispatcher, session: ReplicaSession | None = None) -> None:
        self.name = name
        self._dispatch = dispatch
        self._session = session

    async def route(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method on the least loaded replica, or on the session's replica, and return its result.

        Raises:
            EndpointRaised: The method raised an exception.
            ReplicaDied: The replica ended during the call. For an idempotent method, the call on another replica also
                failed.
            CallTimeout: The call took longer than `call_seconds`.
            Saturated: No replica was free within `queue_seconds`, or too many calls were waiting.
            ReplicaStartFailed: The replicas cannot be started.
            BadArgument: An argument cannot be sent.
        """
        data = encode_arguments(args, kwargs)
        return decode(await on_services_loop(self._dispatch.route(self.name, data, self._session)))

    def route_sync(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method as `route` does, and block until it returns. Do not use this inside a running event loop."""
        data = encode_arguments(args, kwargs)
        return decode(wait_on_services_loop(self._dispatch.route(self.name, data, self._session)))

    async def fanout(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call the method on all replicas concurrently, and return the results in the order of the replicas.

        The result of a failed call is None.

        Raises:
            ServiceError: The call failed on all replicas. The first failure is raised.
        """
        data = encode_arguments(args, kwargs)
        results = await on_services_loop(self._dispatch.fanout(self.name, data, self._session))
        return [None if result is None else decode(result) for result in results]


class ServiceSession:
    """A session of a service: `async with service.session() as session: await session.step.route(action)`."""

    def __init__(self, dispatch: Dispatcher) -> None:
        self._dispatch = dispatch
        self._opened: ReplicaSession | None = None

    async def __aenter__(self) -> Self:
        self._opened = await on_services_loop(self._dispatch.open_session())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened = self._opened
        if opened is not None:
            try:
                await on_services_loop(opened.aclose())
            except ServiceError:
                if error is None:  # the exception of the block is more informative
                    raise

    def __getattr__(self, name: str) -> ServiceEndpoint:
        _check_endpoint(name, self._dispatch)
        if self._opened is None:
            raise ServiceError("This session is not open.", hint="Write: async with service.session() as session:")
        return ServiceEndpoint(name, self._dispatch, self._opened)


class ServiceHandle:
    """A class on several replicas, created by `Actor.as_service`. Endpoints are attributes: `service.step.route(…)`.

    `async with service:` starts all replicas, and ends them when the block ends. Without it, the first call starts the
    replicas, and they run until `aclose` is called or this process ends.
    """

    def __init__(
        self,
        cls: type[Any],
        options: ServiceOptions,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        stateful: bool = False,
    ) -> None:
        endpoints = endpoints_of(cls, stateful=stateful)
        backend = options.backend or _default_backend()
        if options.with_gpus and backend == "local" and not gpu_count():
            log.warning("%s was started with with_gpus, but this machine has no GPU, so it uses the CPU", cls.__name__)
        spec = ReplicaSpec(
            ClassReference.of(cls), encode_arguments(args, kwargs or {}), stateful, replace(options, backend=backend)
        )
        self._dispatch = Dispatcher(cls.__name__, backend, spec, endpoints, _maker(backend, spec))

    @property
    def name(self) -> str:
        """The class's name."""
        return self._dispatch.name

    async def start(self) -> Self:
        """Start all replicas and wait until they are ready.

        Raises:
            ReplicaStartFailed: A replica cannot be started. All replicas are stopped.
        """
        await on_services_loop(self._dispatch.start())
        return self

    async def aclose(self) -> None:
        """End all replicas. Running and waiting calls fail. Calling this method again does nothing."""
        await on_services_loop(self._dispatch.aclose())

    def session(self) -> ServiceSession:
        """Return a session for `async with`, whose calls go to one replica and, for a stateful class, to one instance.

        Opening the session raises Saturated if no replica is free in time.
        """
        return ServiceSession(self._dispatch)

    def stats(self) -> ServiceStats:
        """Return statistics of the service and its replicas."""
        return self._dispatch.stats()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        wait_on_services_loop(self._dispatch.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wait_on_services_loop(self._dispatch.aclose())

    def __repr__(self) -> str:
        return f"<service {self.name}, {len(self._dispatch.slots)} replicas on {self._dispatch.backend}>"

    def __getattr__(self, name: str) -> ServiceEndpoint:
        _check_endpoint(name, self._dispatch)
        return ServiceEndpoint(name, self._dispatch)


def _check_endpoint(name: str, dispatch: Dispatcher) -> None:
    """Raise AttributeError if the name is not an endpoint."""
    if name.startswith("__") or name not in dispatch.endpoints:
        near = closest(name, dispatch.endpoints)
        raise AttributeError(
            f"{dispatch.name} has no endpoint {name!r}. Its endpoints are {', '.join(dispatch.endpoints)}."
            + (f" Did you mean {near!r}?" if near else "")
        )


def _default_backend() -> Backend:
    name = (process_variable(BACKEND_VARIABLE) or "local").lower()
    for backend in BACKENDS:
        if name == backend:
            return backend
    raise BadArgument(f"{BACKEND_VARIABLE} is {name!r}. Expected one of {', '.join(BACKENDS)}.")


def _maker(backend: Backend, spec: ReplicaSpec) -> Callable[[int, HasEnded], ReplicaHandle]:
    """Return a function that creates a replica from its index. Raises Unavailable if `ray` is not installed."""
    if backend == "local":
        return lambda index, has_ended: LocalReplica(spec, index, has_ended)
    try:
        from taskapp_kit.services.ray_replica import ray_replicas
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "ray":
            raise
        raise Unavailable(
            "The services backend `ray` requires the package ray, which is not installed.",
            hint="Run: pip install 'taskapp-kit[ray]'",
        ) from error
    return ray_replicas(spec)
