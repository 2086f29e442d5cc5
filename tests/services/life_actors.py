"""Classes of services whose calls, openings and ends go wrong. In a file of their own, which replicas import."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from taskapp_kit.services import Actor, endpoint


class Slow(Actor):
    """Takes its time."""

    @endpoint(idempotent=True)
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def block(self, seconds: float, mark: str = "") -> int:
        time.sleep(seconds)
        if mark:
            Path(mark).touch()
        return os.getpid()

    @endpoint
    async def stubborn(self, seconds: float) -> None:
        """Go on although it is cancelled."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                await asyncio.sleep(end - time.monotonic())
            except asyncio.CancelledError:
                continue

    @endpoint
    def stop_iteration(self) -> None:
        raise StopIteration

    @endpoint
    async def cancel_itself(self) -> None:
        raise asyncio.CancelledError

    @endpoint
    def unspeakable(self) -> None:
        raise Unspeakable

    @endpoint
    def echo_bytes(self, count: int) -> bytes:
        return bytes(count)


class Unspeakable(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError


class Versioned(Actor):
    """Has a version, and refuses some: all replicas, or the one whose process is named."""

    def __init__(self) -> None:
        self.version = 0

    @endpoint(on_restart=True)
    def update(self, version: int, dies_once: str = "") -> int:
        if version < 0:
            raise ValueError("a version below 0")
        if dies_once and Path(dies_once).exists():
            Path(dies_once).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        self.version = version
        return version

    @endpoint(idempotent=True)
    def current(self) -> int:
        return self.version

    @endpoint(idempotent=True)
    def pid(self) -> int:
        return os.getpid()


class Opened(Actor, stateful=True):
    """Takes a while to be made, and says when it was closed."""

    def __init__(self, seconds: float, mark: str) -> None:
        time.sleep(seconds)
        self.mark = Path(mark)
        self.mark.with_suffix(".opened").touch()

    @endpoint
    def hello(self) -> str:
        return "hello"

    def close(self) -> None:
        self.mark.with_suffix(".closed").touch()
