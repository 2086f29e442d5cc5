"""A replica as its service sees it, on either backend; `replica_host.py` is what runs in the replica's process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from taskapp_kit.services.class_reference import ClassReference
from taskapp_kit.services.options import ServiceOptions

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


HasEnded = Callable[[str], None]
"""Called once when a replica that had started ends by itself, with the reason as a sentence without its full stop."""
