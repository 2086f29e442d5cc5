"""Whether the store keeps what it is given. While the last write to it failed, nothing new is played.

A rollout costs minutes and model calls, and one that cannot be kept is not answered. So after a write that failed new
rollouts are refused before they are played, and the write itself is tried again, alone, every PROBE_SECONDS: a full disk
takes a small probe and still refuses a rollout. A rollout whose first answer was `store_failed` may so be kept later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from taskapp_kit.contract.content import Json
from taskapp_kit.contract.protocols import Clock
from taskapp_kit.errors import Saturated, StoreError, StoreRefusal

log = logging.getLogger("taskapp_kit.store")

PROBE_SECONDS = 2.0
"""Between the end of one attempt to write again and the beginning of the next; also what `Retry-After` says."""

T = TypeVar("T")
Write = Callable[[], Awaitable[Any]]


class StoreState:
    """The state of one store, as its writes show it. Use it on one event loop; call `close` before the store's."""

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
        """For `/health`: failing; since when, in unix seconds, else null; how many writes failed since the start."""
        return {"failing": self.failing, "since": self._failing_since, "failures": self._failures}

    def check(self) -> None:
        """Raises Saturated while the last write failed."""
        if self.failing:
            raise Saturated(
                "The store cannot keep rollouts now, so nothing was played; the server's log says why.",
                code="store_failing",
                retry_after_seconds=round(PROBE_SECONDS),
            )

    async def write(self, write: Callable[[], Awaitable[T]], *, again: Write | None = None) -> T:
        """The result of `write`. After a StoreError, `again` (by default `write`) is tried until it succeeds.

        A StoreRefusal concerns one rollout and says nothing against the store. Raises what `write` raises.
        """
        try:
            result = await write()
        except StoreRefusal:
            raise
        except StoreError as error:
            self._failed(error, again or write)
            raise
        self._succeeded()
        return result

    async def close(self) -> None:
        """Ends the attempts to write again."""
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
            except StoreRefusal:  # the store answers: it is the rollout that it does not take
                pass
            except StoreError as error:
                self._failures += 1
                log.debug("store still failing: %s", error)
                continue
            except Exception:  # a plugin's own fault
                self._failures += 1
                log.exception("store still failing")
                continue
            self._succeeded()
            return
