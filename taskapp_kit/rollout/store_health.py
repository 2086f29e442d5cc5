"""Tracks whether writes to the store succeed. While the last write failed, new rollouts are refused.

A rollout costs minutes and model calls, and one that cannot be stored gets no answer. So after a failed write new rollouts
are refused before they are played, and the same write is retried, alone, every PROBE_SECONDS: a smaller probe may succeed
on a full disk where a rollout fails. A rollout that was answered with `store_failed` may therefore be stored later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from taskapp_kit.errors import Saturated, StoreError, StoreRefusal
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import Clock

log = logging.getLogger("taskapp_kit.store")

PROBE_SECONDS = 2.0
"""The pause between two attempts to write again; also the value of `Retry-After`."""

T = TypeVar("T")
Write = Callable[[], Awaitable[Any]]


class StoreState:
    """The state of one store by the results of its writes. Use it on one event loop; call `close` before the store's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing_since: float | None = None
        self._failures = 0
        self._again: Write | None = None
        self._probing: asyncio.Task[None] | None = None

    @property
    def failing(self) -> bool:
        """Whether the last write failed."""
        return self._failing_since is not None

    def to_json(self) -> dict[str, Json]:
        """For `/health`: failing; since when, in unix seconds, else null; the number of failed writes since the start."""
        return {"failing": self.failing, "since": self._failing_since, "failures": self._failures}

    def check(self) -> None:
        """Raises Saturated while the last write failed."""
        if self.failing:
            raise Saturated(
                "The store cannot store rollouts now, so nothing was played; the server's log says why.",
                code="store_failing",
                retry_after_seconds=round(PROBE_SECONDS),
            )

    async def write(self, write: Callable[[], Awaitable[T]], *, again: Write | None = None) -> T:
        """Calls `write` and returns its result. After a StoreError, `again` (by default `write`) is retried in the background.

        A StoreRefusal concerns one rollout and does not mean that the store fails. Raises what `write` raises.
        """
        try:
            result = await write()
        # The rollout is at fault and not the store, so others are still played.
        except StoreRefusal:
            raise
        except StoreError as error:
            self._failed(error, again or write)
            raise
        self._succeeded()
        return result

    async def close(self) -> None:
        """Stops the attempts to write again."""
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.cancel()
            with suppress(asyncio.CancelledError):
                await probing

    def _failed(self, error: StoreError, again: Write) -> None:
        self._failures += 1
        self._again = again
        if not self.failing:
            self._failing_since = self._clock.now()
            log.error("store failing, new rollouts are refused until a write succeeds: %s", error)
        # Written again by the server itself: while it refuses rollouts, none would find out that the store works.
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe(), name="taskapp-store-probe")

    def _succeeded(self) -> None:
        if self.failing:
            log.warning("store works again failed_writes=%d", self._failures)
        self._failing_since = self._again = None

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            if self._again is None:
                return
            try:
                await self._again()
            except StoreRefusal:  # the store works; it refuses this rollout only
                pass
            except StoreError as error:
                self._failures += 1
                log.debug("store still failing: %s", error)
                continue
            except Exception:  # an error of a store plugin
                self._failures += 1
                log.exception("store still failing")
                continue
            self._succeeded()
            return
