"""Declares what a service runs: `Actor`, the base of its class, and `@endpoint`, which marks the methods that it serves.

    class Counter(Actor):
        def __init__(self, start: int = 0) -> None:
            self.total = start

        @endpoint
        async def add(self, amount: int) -> int:
            self.total += amount
            return self.total

    counter = Counter.options(num_replicas=4).as_service(start=3)

The class stays an ordinary one: `await Counter().add(2)` needs no service.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from taskapp_kit.errors import BadArgument
from taskapp_kit.services.replicas import ServiceOptions, changed
from taskapp_kit.services.service import ServiceHandle


class Actor:
    """The base of a service's class. Its methods marked with `@endpoint` are served.

    Class keywords set what its services have by default: `class Policy(Actor, concurrent_calls=64)` takes any of the
    options but `num_replicas`. With `stateful=True` an instance belongs to one caller, as an environment does: calls need a
    session (`async with service.session()`), and each session has its own instance, constructed when it is opened.

    A classmethod `setup_worker()`, if there is one, runs once in each replica's process, before any instance is made; one
    that has parameters gets the constructor's arguments. A method `close()` runs at the end of an instance. An instance's
    synchronous methods, its constructor included, run one at a time in one thread; its asynchronous ones on the replica's
    event loop.

    Attributes:
        stateful: Whether an instance belongs to one caller.
        service_options: The options of its services by default.
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
            procs: Processes of one replica; 1 is the only number that there is.
            **options: `ServiceOptions` describes each.

        Raises:
            BadArgument: An option is unknown, or has no valid value.
        """
        if procs != 1:
            raise BadArgument(
                f"procs is {procs!r}; expected 1: a replica is one process. Set num_replicas for more of them."
            )
        return ActorClass(cls, changed(cls.service_options, cls.__name__, options))

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the constructor's arguments as replicas get them. A subclass may put names in place of objects that
        cannot be sent, and refuse wrong ones before a process starts."""
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
        """Return the service; `async with`, or its first call, starts it.

        Args:
            *args: Of the class's constructor, in each replica.
            **kwargs: Of the class's constructor.

        Raises:
            BadArgument: Another process cannot import the class, or an argument cannot be sent.
        """
        args, kwargs = self.cls.sent_arguments(args, kwargs)
        return ServiceHandle(self.cls, self.options, args, kwargs, stateful=self.cls.stateful)
