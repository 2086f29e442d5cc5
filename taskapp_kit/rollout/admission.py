"""Admission of rollouts: so many at once, so many of one key, none for new ones once the server stops."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from taskapp_kit.errors import Failure, Saturated
from taskapp_kit.net.peer import Peer
from taskapp_kit.rollout.in_flight import Caller, InFlightRollout

log = logging.getLogger("taskapp_kit.service")

HUNG_LIMIT = 8
"""So many stuck threads and the server takes nothing new: `/health` says `draining`, somebody has to replace it."""
STOPPING_SECONDS = 5.0
"""How long rollouts that were stopped may take to be kept."""


class AdmissionControl:
    """Who is in flight. Use it on the service's event loop.

    most: rollouts at once. hung: how many threads are stuck now.
    """

    def __init__(self, most: int, hung: Callable[[], int]) -> None:
        self.most = most
        self._hung = hung
        self._taken = 0
        self._of_label: Counter[str | None] = Counter()
        self._unread: dict[str | None, dict[str, set[Peer]]] = {}  # whom answers are sent to: by key label, rollout
        self._under_way: dict[str, InFlightRollout] = {}
        self._closed = False
        self._empty: asyncio.Event | None = None

    @property
    def taken(self) -> int:
        """Rollouts in flight."""
        return self._taken

    @property
    def draining(self) -> bool:
        """Nothing new is taken."""
        return self._closed or self._hung() >= HUNG_LIMIT

    def check_open(self) -> None:
        """Raises Saturated when the server stops."""
        if self._closed:
            raise Saturated("The server is stopping and takes nothing new.", code="draining", retry_after_seconds=5)

    def take(self, caller: Caller) -> None:
        """Takes a place. Raises Saturated: none is free, or the caller's key has all that it may have."""
        self.check_open()
        if self._hung() >= HUNG_LIMIT:
            raise Saturated(
                f"{self._hung()} threads are stuck in environments that do not come back; the server has to be started "
                "anew and takes nothing until then.",
                code="draining",
                retry_after_seconds=30,
            )
        if self._taken >= self.most:
            raise Saturated(f"{self._taken} rollouts are under way, as many as this server takes at once.")
        if caller.max_in_flight is not None and (own := self._own(caller.key_label)) >= caller.max_in_flight:
            raise Saturated(
                f"{own} rollouts of the key {caller.key_label!r} are under way or have answers that are not read yet, "
                "as many as it may have at once.",
                code="key_quota_reached",
            )
        self._taken += 1
        self._of_label[caller.key_label] += 1

    def give_back(self, caller: Caller) -> None:
        """Somebody else may have the place."""
        self._taken -= 1
        self._of_label[caller.key_label] -= 1
        if not self._of_label[caller.key_label]:
            del self._of_label[caller.key_label]
        if not self._taken and self._empty is not None:
            self._empty.set()

    @contextmanager
    def unread(self, key_label: str | None, rollout_id: str, peer: Peer) -> Iterator[None]:
        """While its answer is sent, a rollout counts as under way for the key that reads it: once, however many do.

        It does until one of them has all of it: a caller who comes back after a lost connection need not wait until the
        server notices that loss.
        """
        if not rollout_id:
            yield
            return
        own = self._unread.setdefault(key_label, {})
        readers = own.setdefault(rollout_id, set())
        readers.add(peer)
        try:
            yield
            if not peer.gone:
                readers.clear()
        finally:
            readers.discard(peer)
            if not readers and own.get(rollout_id) is readers:
                del own[rollout_id]
            if not own and self._unread.get(key_label) is own:
                del self._unread[key_label]

    def _own(self, key_label: str | None) -> int:
        unread = self._unread.get(key_label, ())
        return self._of_label[key_label] + sum(rollout_id not in self._under_way for rollout_id in unread)

    def enter(self, course: InFlightRollout) -> None:
        """The rollout begins, in this task."""
        course.task = asyncio.current_task()
        self._under_way[course.rollout_id] = course

    def leave(self, course: InFlightRollout) -> None:
        """It is over."""
        del self._under_way[course.rollout_id]
        self.give_back(course.caller)

    async def drain(self, grace_seconds: float) -> None:
        """Takes nothing new and waits for what runs; what still runs after the grace is cancelled, told and kept so."""
        self._closed = True
        if self._empty is None:
            self._empty = asyncio.Event()
        if not self._taken:
            return
        log.info("draining in_flight=%d grace_seconds=%g", self._taken, grace_seconds)
        if await _within(self._empty, grace_seconds):
            return
        stopped = [course for course in self._under_way.values() if not course.settling and course.stopped is None]
        for course in stopped:
            course.stopped = Failure(
                "cancelled",
                "server_stopping",
                f"the server stopped, and the rollout had not ended within its grace of {grace_seconds:g} s",
                "Send it again.",
                error_id=uuid.uuid4().hex[:12],
            )
            if course.task is not None:
                course.task.cancel()
        log.warning("stopped rollouts=%d grace_seconds=%g", len(stopped), grace_seconds)
        if not await _within(self._empty, STOPPING_SECONDS):
            log.error("still under way in_flight=%d", self._taken)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
