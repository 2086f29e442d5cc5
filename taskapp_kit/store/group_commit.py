"""Group commit: one thread writes all waiting rollouts in one transaction.

While one transaction is flushed to the disk, more rollouts arrive and form the next one. So 16 in flight share one flush,
and a single one does not wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from taskapp_kit.contract.protocols import StoredRollout
from taskapp_kit.errors import StoreError

MOST_AT_ONCE = 128
"""The limit on rollouts in one transaction, so that the first of them does not wait for thousands."""

Outcome = StoreError | None
Job = tuple[StoredRollout, "asyncio.Future[None]"]


class GroupCommit:
    """Runs `commit(rollouts) -> one outcome for each` in a thread of its own. Every waiting caller gets an outcome.

    place: the store's name in messages.
    """

    def __init__(self, commit: Callable[[Sequence[StoredRollout]], Sequence[Outcome]], place: str) -> None:
        self._commit = commit
        self._place = place
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._waiting: set[asyncio.Future[None]] = set()
        self._stopped = False
        # A daemon, so that a program which does not close its store can still end; answered rollouts are on disk.
        self._thread = threading.Thread(target=self._run, name="taskapp-store-writer", daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int | None:
        """The writing thread's identifier, as `threading` gives it."""
        return self._thread.ident

    async def write(self, rollout: StoredRollout) -> None:
        """Returns when `rollout` is committed. A caller cancelled meanwhile does not undo it. Raises StoreError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        self._queue.put((rollout, future))
        # Queue first, then check: a thread that ends sets `_stopped` first and then answers all waiting callers.
        if self._stopped or not self._thread.is_alive():
            self._waiting.discard(future)
            raise self._gone()
        await future

    def stop(self) -> None:
        """Writes the waiting rollouts, then ends the thread. Blocks."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (batch := self._take()) is not None:
                try:
                    outcomes = self._commit([rollout for rollout, _ in batch])
                except Exception as fault:
                    outcomes = [self._unexpected(fault)] * len(batch)
                self._set_results([(future, outcome) for (_, future), outcome in zip(batch, outcomes, strict=True)])
        finally:
            self._stopped = True
            self._set_results([(future, self._gone()) for future in list(self._waiting)])

    def _take(self) -> list[Job] | None:
        """Waits for a job; returns all available ones. None when the thread has to stop."""
        job = self._queue.get()
        if job is None:
            return None
        batch = [job]
        try:
            while len(batch) < MOST_AT_ONCE:
                job = self._queue.get_nowait()
                if job is None:
                    self._queue.put(None)  # read again once this batch is written
                    break
                batch.append(job)
        except Empty:
            pass
        return batch

    def _set_results(self, settled: Sequence[tuple[asyncio.Future[None], Outcome]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Outcome]]] = {}
        for future, outcome in settled:
            by_loop.setdefault(future.get_loop(), []).append((future, outcome))
        for loop, results in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed, so no caller waits there
                loop.call_soon_threadsafe(_resolve, results)
        self._waiting.difference_update(future for future, _ in settled)

    def _gone(self) -> StoreError:
        return StoreError(
            f"the store {self._place} is closed or its writing thread has ended; the rollout was not stored.",
            hint="Restart the server.",
        )

    def _unexpected(self, fault: Exception) -> StoreError:
        error = StoreError(
            f"the store {self._place} could not write: {type(fault).__name__}; the rollout was not stored.",
            hint="This is a bug in taskapp-kit: please report it with the traceback from the log.",
        )
        error.__cause__ = fault
        return error


def _resolve(results: Sequence[tuple[asyncio.Future[None], Outcome]]) -> None:
    for future, outcome in results:
        if future.done():  # its caller was cancelled
            continue
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
