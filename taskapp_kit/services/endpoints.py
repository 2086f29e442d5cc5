"""`@endpoint`: marks a method that a service serves, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from taskapp_kit.errors import BadArgument

F = TypeVar("F", bound=Callable[..., Any])
ATTRIBUTE = "__taskapp_endpoint__"

RESERVED = ("aclose", "close", "name", "options", "session", "start", "stats")
"""Names of a service's own, which its endpoints cannot have. `close` may be an endpoint of a stateful class: it belongs to
the session."""


@dataclass(frozen=True, slots=True)
class EndpointMark:
    """The options given to `@endpoint`."""

    idempotent: bool = False
    on_restart: bool = False


@overload
def endpoint(function: F, /) -> F: ...
@overload
def endpoint(*, idempotent: bool = False, on_restart: bool = False) -> Callable[[F], F]: ...
def endpoint(
    function: F | None = None, /, *, idempotent: bool = False, on_restart: bool = False
) -> F | Callable[[F], F]:
    """Mark a method, asynchronous or not, as one that a service serves; return it unchanged.

    Args:
        function: The method.
        idempotent: It may be done twice, so a call whose replica died is sent once more, to another one.
        on_restart: It sets the replica's state, such as the version of its weights. The last `fanout` of it is repeated on
            each replica that is restarted, before that serves, and a replica on which it fails is restarted.
    """
    mark = EndpointMark(idempotent, on_restart)

    def marked(method: F) -> F:
        setattr(method, ATTRIBUTE, mark)
        return method

    return marked if function is None else marked(function)


def endpoints_of(cls: type, *, stateful: bool) -> dict[str, EndpointMark]:
    """Return the marks of a class's endpoints by name, inherited ones included.

    Raises BadArgument for a class without one, and for a name that a service has for itself.
    """
    found: dict[str, EndpointMark] = {}
    for each in reversed(cls.__mro__):
        for name, value in vars(each).items():
            mark = getattr(value, ATTRIBUTE, None)
            if mark is None:
                found.pop(name, None)  # overridden without a mark
            else:
                found[name] = mark
    if not found:
        raise BadArgument(f"{cls.__name__} has no endpoint; expected at least one method marked with @endpoint.")
    for name in found:
        if name in RESERVED and not (name == "close" and stateful):
            raise BadArgument(f"An endpoint of {cls.__name__} cannot be called {name!r}: each service has that itself.")
    return found
