"""The one thread that writes, and group commit: whatever waits is written in one transaction.

While one transaction is being flushed to the disk, more rollouts arrive; they make the next one. So 16 in flight share
one flush, and a single one waits for nobody.
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
"""Rollouts in one transaction at most, so that the first of them need not wait for thousands."""

Outcome = StoreError | None
Job = tuple[StoredRollout, "asyncio.Future[None]"]


class GroupCommit:
    """Runs `commit(rollouts) -> one outcome for each` in a thread of its own. Nobody who waits for it is left hanging.

    `place` is how sentences call the store.
    """

    def __init__(self, commit: Callable[[Sequence[StoredRollout]], Sequence[Outcome]], place: str) -> None:
        self._commit = commit
        self._place = place
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._waiting: set[asyncio.Future[None]] = set()
        self._stopped = False
        # A daemon: a program that forgets to close its store can still end, and what was answered is on disk.
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
        # First in the queue, then the look: a thread that ends says so first and then sees to everyone who waits.
        if self._stopped or not self._thread.is_alive():
            self._waiting.discard(future)
            raise self._gone()
        await future

    def stop(self) -> None:
        """Writes what is waiting, then ends the thread. Blocks."""
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
        """Waits for a job; answers with all that are there by then. None when the writer is to stop."""
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

    def _set_results(self, told: Sequence[tuple[asyncio.Future[None], Outcome]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], Outcome]]] = {}
        for future, outcome in told:
            by_loop.setdefault(future.get_loop(), []).append((future, outcome))
        for loop, results in by_loop.items():
            with suppress(RuntimeError):  # of a loop that is closed: nobody waits there any more
                loop.call_soon_threadsafe(_resolve, results)
        self._waiting.difference_update(future for future, _ in told)

    def _gone(self) -> StoreError:
        return StoreError(
            f"the store {self._place} is closed or its writing thread has ended; the rollout was not kept.",
            hint="Restart the server.",
        )

    def _unexpected(self, fault: Exception) -> StoreError:
        error = StoreError(
            f"the store {self._place} could not write: {type(fault).__name__}; the rollout was not kept.",
            hint="This is a fault of taskapp-kit: please report it with the traceback from the log.",
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
