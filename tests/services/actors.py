"""Classes of services for tests. They are in a file of their own, which replicas import."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskapp_kit.services import Actor, endpoint


@dataclass(frozen=True)
class Point:
    """A value that is sent."""

    place: tuple[float, ...]
    name: str = ""


class NoTextError(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError


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
    def block(self, seconds: float, mark: str = "") -> int:
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        time.sleep(seconds)
        self.busy -= 1
        if mark:
            Path(mark).touch()
        return self.busiest

    @endpoint
    async def stubborn(self, seconds: float) -> None:
        """Go on although it is cancelled."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(end - time.monotonic())

    @endpoint
    async def raise_odd(self, kind: str) -> None:
        raise {"StopIteration": StopIteration, "Cancelled": asyncio.CancelledError, "NoText": NoTextError}[kind]

    @endpoint(idempotent=True)
    def most_at_once(self) -> int:
        return self.busiest

    @endpoint(idempotent=True)
    def thread(self) -> int:
        return threading.get_ident()

    @endpoint(on_restart=True)
    def update(self, version: int, fails_in: int = 0, dies_once: str = "") -> int:
        """fails_in: a process. dies_once: a file whose first reader is killed."""
        if version < 0 or fails_in == os.getpid():
            raise ValueError("this one cannot")
        if dies_once and Path(dies_once).exists():
            Path(dies_once).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
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

    @endpoint
    def echo_bytes(self, count: int) -> bytes:
        return bytes(count)

    @endpoint(idempotent=True)
    def loaded(self) -> list[str]:
        return sorted(sys.modules)


class Steps(Actor, stateful=True):
    """An environment, as far as services are concerned: each session counts its own steps."""

    def __init__(self, mark: str = "", refuse: str = "", seconds: float = 0.0) -> None:
        if refuse:
            raise ValueError(refuse)
        time.sleep(seconds)
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


class Heavy(Counter):
    """Its process is set up before there is an instance."""

    ready = False

    @classmethod
    def setup_worker(cls) -> None:
        cls.ready = True

    def __init__(self) -> None:
        super().__init__()
        self.was_ready = type(self).ready

    @endpoint
    def was(self) -> bool:
        return self.was_ready


class Vanishing(Counter):
    """It can be made once only: by the first process that makes the file."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        Path(mark).touch(exist_ok=False)
