"""`Actor`, the base class of services. `@endpoint` marks the methods that a service serves.

    class Counter(Actor):
        def __init__(self, start: int = 0) -> None:
            self.total = start

        @endpoint
        async def add(self, amount: int) -> int:
            self.total += amount
            return self.total

    counter = Counter.options(num_replicas=4).as_service(start=3)

The class also works without a service: `await Counter().add(2)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from taskapp_kit.errors import BadArgument
from taskapp_kit.services.replicas import ServiceOptions, changed
from taskapp_kit.services.service import ServiceHandle


class Actor:
    """Base class of services. A service serves the methods marked with `@endpoint`.

    Class keywords set default options of services, except `num_replicas`: `class Policy(Actor, concurrent_calls=64)`. With
    `stateful=True`, an instance belongs to one caller, like an environment: calls need a session (`async with
    service.session()`), and each session constructs its own instance.

    An optional classmethod `setup_worker()` runs once in each replica's process before any instance is created. If it has
    parameters, it gets the constructor's arguments. An optional method `close()` runs at the end of an instance. Synchronous
    methods of an instance, including the constructor, run one at a time on one thread; asynchronous methods run on the
    replica's event loop.

    Attributes:
        stateful: Whether an instance belongs to one caller.
        service_options: Default options of its services.
    """

    stateful: ClassVar[bool] = False
    service_options: ClassVar[ServiceOptions] = ServiceOptions()

    def __init_subclass__(cls, *, stateful: bool | None = None, **defaults: Any) -> None:
        super().__init_subclass__()
        if stateful is not None:
            cls.stateful = stateful
        cls.service_options = changed(cls.service_options, cls.__name__, defaults)

    @classmethod
    def options(cls, *, procs: int = 1, **options: Any) -> ActorClass:
        """Return the class with options for a service.

        Args:
            procs: Number of processes per replica. Must be 1.
            **options: Options that `ServiceOptions` describes.

        Raises:
            BadArgument: An option is unknown or has an invalid value.
        """
        if procs != 1:
            raise BadArgument(
                f"procs is {procs!r}, but a replica is always one process.", hint="Use num_replicas for more processes."
            )
        return ActorClass(cls, changed(cls.service_options, cls.__name__, options))

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the constructor's arguments in the form in which replicas receive them.

        A subclass may replace objects that cannot be sent by their names, and reject invalid ones before a process starts.
        """
        return args, kwargs

    @classmethod
    def as_service(cls, *args: Any, **kwargs: Any) -> ServiceHandle:
        """Return a service of this class with its default options; see `ActorClass.as_service`."""
        return cls.options().as_service(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class ActorClass:
    """A class and the options of its service."""

    cls: type[Actor]
    options: ServiceOptions

    def as_service(self, *args: Any, **kwargs: Any) -> ServiceHandle:
        """Return the service. `async with`, or its first call, starts it.

        Args:
            *args: Positional arguments of the class's constructor, which each replica calls.
            **kwargs: Keyword arguments of the class's constructor.

        Raises:
            BadArgument: Another process cannot import the class, or an argument cannot be sent.
        """
        args, kwargs = self.cls.sent_arguments(args, kwargs)
        return ServiceHandle(self.cls, self.options, args, kwargs, stateful=self.cls.stateful)
