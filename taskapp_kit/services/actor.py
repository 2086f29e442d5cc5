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

    Class keywords set the default options of the class's services: `class Policy(Actor, concurrent_calls=64)`. Every
    option except `num_replicas` can be set in this way. With `stateful=True`, each instance belongs to one caller, like
    an environment: calls need a session (`async with service.session()`), and each session constructs its own instance.

    An optional classmethod `setup_worker()` runs once in each replica's process before any instance is created. If it
    has parameters, it receives the constructor's arguments. An optional method `close()` runs when an instance is no
    longer needed. The constructor and the synchronous methods of an instance run one at a time on one thread.
    Asynchronous methods run on the replica's event loop.

    Attributes:
        stateful: Whether each instance belongs to one caller.
        service_options: Default options of the class's services.
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
        """Return this class together with options for a service.

        Args:
            procs: Number of processes per replica. Must be 1.
            **options: The attributes of `ServiceOptions`.

        Raises:
            BadArgument: An option is unknown or has an invalid value.
        """
        if procs != 1:
            raise BadArgument(
                f"`procs` is {procs!r}, but each replica is one process.", hint="For more processes, set num_replicas."
            )
        return ActorClass(cls, changed(cls.service_options, cls.__name__, options))

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the constructor's arguments as replicas receive them.

        A subclass may replace an object that cannot be sent with the object's name. It may also reject invalid
        arguments before a process starts.
        """
        return args, kwargs

    @classmethod
    def as_service(cls, *args: Any, **kwargs: Any) -> ServiceHandle:
        """Return a service of this class with the default options. See `ActorClass.as_service`."""
        return cls.options().as_service(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class ActorClass:
    """An actor class together with the options of its service."""

    cls: type[Actor]
    options: ServiceOptions

    def as_service(self, *args: Any, **kwargs: Any) -> ServiceHandle:
        """Return a service, which starts when it is entered with `async with` or called for the first time.

        Args:
            *args: Positional arguments of the class's constructor. Each replica calls the constructor.
            **kwargs: Keyword arguments of the class's constructor.

        Raises:
            BadArgument: Another process cannot import the class, or an argument cannot be sent.
        """
        args, kwargs = self.cls.sent_arguments(args, kwargs)
        return ServiceHandle(self.cls, self.options, args, kwargs, stateful=self.cls.stateful)
