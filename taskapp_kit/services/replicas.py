"""How a service runs: its options, the class as another process finds it, a replica on either backend, and its numbers.

`replica_host.py` is what runs in the replica's process.
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
    """How a service runs.

    Attributes:
        num_replicas: Processes, each with an instance of the class.
        with_gpus: Each replica uses a GPU, if there is one.
        backend: `local` or `ray`; None for the setting TASKAPP_SERVICES_BACKEND, else `local`.
        concurrent_calls: Of one instance at once, which interleaves asynchronous methods only.
        call_seconds: The longest time of one call, after which its replica is replaced.
        queue_seconds: The longest time that a call or a session waits for a replica.
        max_waiting: How many calls and sessions may wait.
        start_seconds: The longest time until a replica is ready.
        sessions_per_replica: Of a stateful class, at once.
        environment: Variables of the replicas' process environment, added to those of this process without the server's
            keys.
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
                raise BadArgument(f"{name} is {value!r}; expected a whole number of at least 1.")
        for name in ("call_seconds", "queue_seconds", "start_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise BadArgument(f"{name} is {value!r}; expected a number of seconds above 0.")
        if self.backend is not None and self.backend not in BACKENDS:
            raise BadArgument(f"backend is {self.backend!r}; expected one of {', '.join(BACKENDS)}.")


OPTIONS = tuple(ServiceOptions.__dataclass_fields__)


def changed(options: ServiceOptions, name: str, changes: Mapping[str, Any]) -> ServiceOptions:
    """Return the options with changes. name: the class's. Raises BadArgument for unknown ones."""
    for option in changes:
        if option not in OPTIONS:
            near = closest(option, OPTIONS)
            raise BadArgument(
                f"{name} has no option {option!r}; expected some of procs, {', '.join(OPTIONS)}.",
                hint=f"Did you mean {near!r}?" if near else "",
            )
    return replace(options, **changes)


MAIN, MAIN_OF_REPLICA = "__main__", "__mp_main__"
"""The names under which a script's classes are known: where it was started, and in replicas (as multiprocessing does it)."""


@dataclass(frozen=True, slots=True)
class ClassReference:
    """A class, or a function, as another process finds it. module: its name. file: of a script that Python runs as
    `__main__`, or of an app that was loaded from its path; else "".

    folders: of this process's import path.
    """

    module: str
    name: str
    file: str
    folders: tuple[str, ...]

    @classmethod
    def of(cls, target: Any, what: str = "class") -> ClassReference:
        """what: for messages. Raises BadArgument for a class or function that another process cannot import."""
        module = sys.modules.get(target.__module__)
        found: Any = module
        for part in target.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is not target:
            raise BadArgument(
                f"{target.__qualname__} of {target.__module__} cannot be the {what} of a service: its replicas are other "
                "processes, which have to import it, and it is not in its module under that name.",
                hint="Define it at the top of a file.",
            )
        file = getattr(module, "__file__", None)
        if target.__module__ == MAIN and file is None:
            raise BadArgument(
                f"{target.__qualname__} cannot be the {what} of a service: its replicas are other processes, which have to "
                "import it, and it was typed into this one.",
                hint="Put it into a file, and import it.",
            )
        by_path = file is not None and (target.__module__ == MAIN or loaded_from_file(target.__module__))
        path = str(Path(file).resolve()) if by_path and file else ""
        return cls(target.__module__, target.__qualname__, path, tuple(filter(None, sys.path)))

    def load(self) -> Any:
        """Import the class here. A script is run under another name than `__main__`.

        Raises ServiceError, ImportError, DiscoveryError.
        """
        for folder in reversed(self.folders):
            add_import_folder(folder)
        if self.module == MAIN:
            found: Any = _script(self.file)
        else:
            found = load_file(Path(self.file)) if self.file else importlib.import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part)
        return found


def _script(file: str) -> Any:
    spec = importlib.util.spec_from_file_location(MAIN_OF_REPLICA, file)
    if spec is None or spec.loader is None:
        raise ServiceError(f"{file} cannot be imported; expected a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MAIN_OF_REPLICA] = sys.modules[MAIN] = module
    spec.loader.exec_module(module)
    return module


Operation = Literal["load", "call", "open", "close", "end"]
Frame = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What a replica runs. arguments: of the class's constructor, encoded as (args, kwargs)."""

    reference: ClassReference
    arguments: bytes
    stateful: bool
    options: ServiceOptions

    def frame(self) -> Frame:
        """Return all but the arguments as JSON."""
        return {
            "reference": asdict(self.reference),
            "stateful": self.stateful,
            "concurrent_calls": self.options.concurrent_calls,
        }


def check_loaded(frame: Frame) -> None:
    """Raise ReplicaStartFailed if a host could not load the class, with what was raised there."""
    if (raised := frame.get("raised")) is not None:
        log.error("a replica could not be started\n%s", raised["traceback"])
        raise ReplicaStartFailed(f"A replica could not be started: {raised['type']}: {raised['text']}")


class ReplicaHandle(Protocol):
    """One process with instances of the class, from its start to its end."""

    @property
    def place(self) -> str:
        """Where it runs: `pid 123`, or a node and an actor's id."""
        ...

    async def start(self) -> None:
        """Start the process, and make the instance of a class that is not stateful. Raises ReplicaStartFailed."""
        ...

    async def call(
        self, operation: Operation, method: str, session: str, data: bytes, seconds: float, ended: Callable[[], None]
    ) -> tuple[Frame, bytes]:
        """Have the host do it; return its answer, `{}` and an encoded result, or `{"raised": …}`.

        ended: called once when the host is done with it, which is after the return where the caller was cancelled: a
        synchronous method goes on. Raises ReplicaDied; CallTimeout after `seconds`: an asynchronous method was cancelled
        then, or the process has ended.
        """
        ...

    async def end(self) -> None:
        """Close the instances, and end the process. It may have ended before."""
        ...

    def kill(self) -> None:
        """End the process at once."""
        ...


ReplicaState = Literal["starting", "ready", "ended"]


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """One replica.

    Attributes:
        index: Its number in the service.
        place: Where it runs.
        state: starting, ready or ended.
        in_flight: Calls that run on it now.
        calls: Calls that were sent to it.
        failures: Of these, those that raised or were lost.
        restarts: How often it was restarted.
        sessions: Open now.
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
    """A service since its start.

    Attributes:
        name: The class's name.
        backend: Where its replicas run.
        waiting: Calls and sessions without a replica now.
        retried: Calls that were sent again.
        latency_ms_median: Of the latest calls that returned, queue included; None before the first.
        latency_ms_p99: Of the same calls.
        replicas: One by one.
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
        """The number of replicas that take calls."""
        return sum(each.state == "ready" for each in self.replicas)


HasEnded = Callable[[str], None]
"""Called once when a replica that had started ends by itself, with the reason as a sentence without its full stop."""
