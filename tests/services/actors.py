"""Classes of services for tests. They are in a file of their own, which replicas import."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskapp_kit.services import Actor, endpoint


@dataclass(frozen=True)
class Point:
    """A value that is sent."""

    place: tuple[float, ...]
    name: str = ""


class Counter(Actor):
    """Counts; and does whatever a test wants."""

    def __init__(self, start: int = 0, refuse: str = "") -> None:
        if refuse:
            raise ValueError(refuse)
        self.total = start
        self.version: int | None = None
        self.busy = self.busiest = 0

    @endpoint
    async def add(self, amount: int) -> int:
        self.total += amount
        return self.total

    @endpoint(idempotent=True)
    def echo(self, *values: Any, **named: Any) -> Any:
        return (values, named)

    @endpoint(idempotent=True)
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fail(self, text: str) -> None:
        raise KeyError(text)

    @endpoint
    def leave(self) -> None:
        raise SystemExit(3)

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint(idempotent=True)
    def die_once(self, mark: str) -> int:
        """Kill its process the first time that it is called with this path."""
        try:
            Path(mark).touch(exist_ok=False)
        except FileExistsError:
            return os.getpid()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")

    @endpoint(idempotent=True)
    async def sleep(self, seconds: float) -> int:
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.busy -= 1
        return os.getpid()

    @endpoint
    def block(self, seconds: float) -> int:
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        time.sleep(seconds)
        self.busy -= 1
        return self.busiest

    @endpoint(idempotent=True)
    def most_at_once(self) -> int:
        return self.busiest

    @endpoint(idempotent=True)
    def thread(self) -> int:
        return threading.get_ident()

    @endpoint(on_restart=True)
    def update(self, version: int, fails_in: int = 0) -> int:
        if fails_in == os.getpid():
            raise ValueError("this one cannot")
        self.version = version
        return version

    @endpoint(idempotent=True)
    def current(self) -> int | None:
        return self.version

    @endpoint(idempotent=True)
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint(idempotent=True)
    def unsendable(self) -> object:
        return object()

    @endpoint(idempotent=True)
    def loaded(self) -> list[str]:
        import sys

        return sorted(sys.modules)


class Steps(Actor, stateful=True):
    """An environment, as far as services are concerned: each session counts its own steps."""

    def __init__(self, mark: str = "", refuse: str = "") -> None:
        if refuse:
            raise ValueError(refuse)
        self.mark = mark
        self.steps = 0

    @endpoint
    async def step(self) -> int:
        self.steps += 1
        return self.steps

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint(idempotent=True)
    def pid(self) -> int:
        return os.getpid()

    def close(self) -> None:
        if self.mark:
            Path(self.mark).write_text(str(self.steps))


class NoEndpoint(Actor):
    """It serves nothing."""


class Reserved(Actor):
    """It serves what a service has itself."""

    @endpoint
    def stats(self) -> None: ...


class Heavy(Actor):
    """Its process is set up before there is an instance."""

    ready = False

    @classmethod
    def setup_worker(cls) -> None:
        cls.ready = True

    def __init__(self) -> None:
        self.was_ready = type(self).ready

    @endpoint
    def was(self) -> bool:
        return self.was_ready


class Vanishing(Counter):
    """It can be made once only: by the first process that makes the file."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        Path(mark).touch(exist_ok=False)
