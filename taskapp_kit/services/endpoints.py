"""`@endpoint`, which marks a method that a service serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from taskapp_kit.errors import BadArgument

F = TypeVar("F", bound=Callable[..., Any])
ATTRIBUTE = "__taskapp_endpoint__"

RESERVED = ("aclose", "close", "name", "options", "session", "start", "stats")
"""Names that endpoints cannot have, because services have attributes with these names. Only a stateful class may have an
endpoint `close`, which closes the session.
"""


@dataclass(frozen=True, slots=True)
class EndpointMark:
    """The options of one `@endpoint`."""

    idempotent: bool = False
    on_restart: bool = False


@overload
def endpoint(function: F, /) -> F: ...
@overload
def endpoint(*, idempotent: bool = False, on_restart: bool = False) -> Callable[[F], F]: ...
def endpoint(
    function: F | None = None, /, *, idempotent: bool = False, on_restart: bool = False
) -> F | Callable[[F], F]:
    """Mark a synchronous or asynchronous method as an endpoint of a service, and return it unchanged.

    Args:
        function: The method.
        idempotent: Whether a call may be executed twice. If so, a call whose replica died is sent to another replica.
        on_restart: Whether the method sets the replica's state, such as the version of its weights. If so, each
            restarted replica repeats the last `fanout` of the method before it serves. A replica on which the method
            fails is restarted.
    """
    mark = EndpointMark(idempotent, on_restart)

    def marked(method: F) -> F:
        setattr(method, ATTRIBUTE, mark)
        return method

    return marked if function is None else marked(function)


def endpoints_of(cls: type, *, stateful: bool) -> dict[str, EndpointMark]:
    """Return a mapping from method name to options for all endpoints of a class, including inherited endpoints.

    Raises:
        BadArgument: The class has no endpoint, or an endpoint has a reserved name.
    """
    endpoints: dict[str, EndpointMark] = {}
    for each in reversed(cls.__mro__):
        for name, value in vars(each).items():
            mark = getattr(value, ATTRIBUTE, None)
            if mark is None:
                endpoints.pop(name, None)  # a subclass overrides the endpoint without marking its method
            else:
                endpoints[name] = mark
    if not endpoints:
        raise BadArgument(f"{cls.__name__} has no endpoint. Mark at least one method with @endpoint.")
    for name in endpoints:
        if name in RESERVED and not (name == "close" and stateful):
            raise BadArgument(f"An endpoint of {cls.__name__} has the reserved name {name!r}. Rename the method.")
    return endpoints
