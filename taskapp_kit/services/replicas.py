"""The options of a service, references to classes, the protocol of replicas, and statistics.

`replica_host.py` is the part that runs in the replica's process.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from taskapp_kit.declare.discovery import load_file, loaded_from_file
from taskapp_kit.errors import BadArgument, ReplicaStartFailed, ServiceError, closest
from taskapp_kit.system.child_python import add_import_folder

log = logging.getLogger("taskapp_kit.services")

Backend = Literal["local", "ray"]
BACKENDS: tuple[Backend, ...] = ("local", "ray")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of a service.

    Attributes:
        num_replicas: Number of processes, each with an instance of the class.
        with_gpus: Whether each replica uses a GPU, if the machine has one.
        backend: `local` or `ray`. Defaults to the environment variable TASKAPP_SERVICES_BACKEND, or `local` if it is
            not set.
        concurrent_calls: Maximum concurrent calls of one instance. Only asynchronous methods run concurrently.
        call_seconds: Time limit of one call. A replica whose call does not end in time is replaced.
        queue_seconds: Time limit for waiting for a replica.
        max_waiting: Maximum number of waiting calls and sessions.
        start_seconds: Time limit for starting a replica.
        sessions_per_replica: Maximum concurrent sessions of a stateful class per replica.
        environment: Additional environment variables of replicas. Replicas inherit this process's variables except the
            server's keys.
    """

    num_replicas: int = 1
    with_gpus: bool = False
    backend: Backend | None = None
    concurrent_calls: int = 1
    call_seconds: float = 600.0
    queue_seconds: float = 600.0
    max_waiting: int = 10_000
    start_seconds: float = 300.0
    sessions_per_replica: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("num_replicas", "concurrent_calls", "max_waiting", "sessions_per_replica"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadArgument(f"`{name}` is {value!r}. Expected an integer of at least 1.")
        for name in ("call_seconds", "queue_seconds", "start_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise BadArgument(f"`{name}` is {value!r}. Expected a number of seconds greater than 0.")
        if self.backend is not None and self.backend not in BACKENDS:
            raise BadArgument(f"`backend` is {self.backend!r}. Expected one of {', '.join(BACKENDS)}.")


OPTIONS = tuple(ServiceOptions.__dataclass_fields__)


def changed(options: ServiceOptions, name: str, changes: Mapping[str, Any]) -> ServiceOptions:
    """Return the options with changes. `name` is the class in messages. Raises BadArgument for an unknown option."""
    for option in changes:
        if option not in OPTIONS:
            near = closest(option, OPTIONS)
            raise BadArgument(
                f"{name} has no option {option!r}. Its options are procs, {', '.join(OPTIONS)}.",
                hint=f"Did you mean {near!r}?" if near else "",
            )
    return replace(options, **changes)


MAIN, MAIN_OF_REPLICA = "__main__", "__mp_main__"
"""The module names of a script in the process that runs it, and in replicas, which use multiprocessing's name."""


@dataclass(frozen=True, slots=True)
class ClassReference:
    """A reference with which another process can load a class or function.

    Attributes:
        module: Name of the module.
        name: Qualified name in the module.
        file: File of a script that Python runs as `__main__`, or of an app that was loaded by path. Otherwise "".
        folders: The import path of the process that created the reference.
    """

    module: str
    name: str
    file: str
    folders: tuple[str, ...]

    @classmethod
    def of(cls, target: Any, what: str = "class") -> ClassReference:
        """Return a reference to a class or function. Raises BadArgument if another process cannot import it."""
        module = sys.modules.get(target.__module__)
        importable: Any = module
        for part in target.__qualname__.split("."):
            importable = getattr(importable, part, None)
        if importable is not target:
            raise BadArgument(
                f"{target.__qualname__} of {target.__module__} cannot be the {what} of a service, because replicas cannot "
                "import it: its module has no attribute with this name.",
                hint="Define it at the top level of a file.",
            )
        file = getattr(module, "__file__", None)
        if target.__module__ == MAIN and file is None:
            raise BadArgument(
                f"{target.__qualname__} cannot be the {what} of a service, because replicas cannot import it: it was defined "
                "interactively.",
                hint="Define it in a file and import it.",
            )
        by_path = file is not None and (target.__module__ == MAIN or loaded_from_file(target.__module__))
        path = str(Path(file).resolve()) if by_path and file else ""
        return cls(target.__module__, target.__qualname__, path, tuple(filter(None, sys.path)))

    def load(self) -> Any:
        """Import the class or function in this process. A script is imported under a name other than `__main__`.

        Raises ServiceError, ImportError or DiscoveryError if the import fails.
        """
        for folder in reversed(self.folders):
            add_import_folder(folder)
        if self.module == MAIN:
            target: Any = _script(self.file)
        else:
            target = load_file(Path(self.file)) if self.file else importlib.import_module(self.module)
        for part in self.name.split("."):
            target = getattr(target, part)
        return target


def _script(file: str) -> Any:
    spec = importlib.util.spec_from_file_location(MAIN_OF_REPLICA, file)
    if spec is None or spec.loader is None:
        raise ServiceError(f"{file} cannot be imported. Expected a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MAIN_OF_REPLICA] = sys.modules[MAIN] = module
    spec.loader.exec_module(module)
    return module


Operation = Literal["load", "call", "open", "close", "end"]
Frame = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What a replica runs. `arguments` are the encoded `(args, kwargs)` for the constructor of the class."""

    reference: ClassReference
    arguments: bytes
    stateful: bool
    options: ServiceOptions

    def frame(self) -> Frame:
        """Return all fields except `arguments` as a JSON object."""
        return {
            "reference": asdict(self.reference),
            "stateful": self.stateful,
            "concurrent_calls": self.options.concurrent_calls,
        }


def check_loaded(frame: Frame) -> None:
    """Raise ReplicaStartFailed with the host's exception if the host could not load the class."""
    if (raised := frame.get("raised")) is not None:
        log.error("a replica could not be started\n%s", raised["traceback"])
        raise ReplicaStartFailed(f"A replica could not be started: {raised['type']}: {raised['text']}")


class ReplicaHandle(Protocol):
    """One process with instances of the class."""

    @property
    def place(self) -> str:
        """Where the replica runs: `pid 123`, or the ids of a node and an actor."""
        ...

    async def start(self) -> None:
        """Start the process and, for a stateless class, create the instance. Raises ReplicaStartFailed if this fails."""
        ...

    async def call(
        self, operation: Operation, method: str, session: str, data: bytes, seconds: float, ended: Callable[[], None]
    ) -> tuple[Frame, bytes]:
        """Send an operation to the host.

        Args:
            operation: The operation.
            method: Name of the method.
            session: Name of the session.
            data: The encoded arguments.
            seconds: Time limit.
            ended: Called once when the host has finished. If the caller is cancelled, this happens later, because a
                synchronous method continues.

        Returns:
            `{}` and the encoded result, or `{"raised": …}` if the method raised an exception.

        Raises:
            ReplicaDied: The process ended.
            CallTimeout: The time limit was exceeded. An asynchronous method was cancelled, or the process was killed.
        """
        ...

    async def end(self) -> None:
        """Close the instances and end the process, if it has not ended yet."""
        ...

    def kill(self) -> None:
        """Kill the process."""
        ...


ReplicaState = Literal["starting", "ready", "ended"]


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """Statistics of one replica.

    Attributes:
        index: The replica's index in the service.
        place: Where the replica runs.
        state: `starting`, `ready` or `ended`.
        in_flight: Number of running calls.
        calls: Number of calls that were sent to the replica.
        failures: Number of these calls that raised an exception or were lost.
        restarts: How often the replica was restarted.
        sessions: Number of open sessions.
    """

    index: int
    place: str
    state: ReplicaState
    in_flight: int
    calls: int
    failures: int
    restarts: int
    sessions: int


@dataclass(frozen=True, slots=True)
class ServiceStats:
    """Statistics of a service since its start.

    Attributes:
        name: Name of the class.
        backend: The backend on which the replicas run.
        waiting: Number of calls and sessions that are waiting for a replica.
        retried: Number of calls that were sent to another replica.
        latency_ms_median: Median latency of the most recent successful calls, including the time in the queue. None
            before the first call.
        latency_ms_p99: 99th percentile of these latencies.
        replicas: Statistics of each replica.
    """

    name: str
    backend: Backend
    waiting: int
    retried: int
    latency_ms_median: float | None
    latency_ms_p99: float | None
    replicas: Sequence[ReplicaStats]

    @property
    def calls(self) -> int:
        """The number of calls that were sent to replicas."""
        return sum(each.calls for each in self.replicas)

    @property
    def ready(self) -> int:
        """The number of replicas that accept calls."""
        return sum(each.state == "ready" for each in self.replicas)


HasEnded = Callable[[str], None]
"""A function that is called once with the reason if a started replica ends unexpectedly. The reason has no period."""
