"""How a service runs: `ServiceOptions`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from taskapp_kit.errors import BadArgument, closest

Backend = Literal["local", "ray"]
BACKENDS: tuple[Backend, ...] = ("local", "ray")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How a service runs.

    num_replicas: processes, each with an instance of the class. with_gpus: each replica uses a GPU, if there is one.
    backend: None for the setting TASKAPP_SERVICES_BACKEND, else `local`. concurrent_calls: of one instance at once, which
    interleaves asynchronous methods only. call_seconds: the longest time of one call, after which its replica is replaced.
    queue_seconds: the longest time that a call or a session waits for a replica; max_waiting: how many may wait.
    start_seconds: until a replica is ready. sessions_per_replica: of a stateful class, at once. environment: variables of
    the replicas' process environment, beside those of this process without the server's keys.
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
