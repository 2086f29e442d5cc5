"""The class whose service is measured, and the same functions for a bare process pool."""

from __future__ import annotations

import os
import time

from taskapp_kit.services import Actor, endpoint

SHORT_SECONDS = 0.005


class Measured(Actor):
    """Two methods: one that does nothing, and one that waits."""

    @endpoint(idempotent=True)
    async def trivial(self, number: int) -> int:
        return trivial(number)

    @endpoint(idempotent=True)
    def short(self, number: int) -> int:
        return short(number)

    @endpoint
    def once(self, number: int) -> int:
        """As `short`, and not safe to repeat."""
        return short(number)

    @endpoint
    async def pid(self) -> int:
        return os.getpid()


def trivial(number: int) -> int:
    return number


def short(number: int) -> int:
    time.sleep(SHORT_SECONDS)
    return number
