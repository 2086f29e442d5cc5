"""A store that does no more than the protocol asks for."""

from __future__ import annotations

import orjson

from taskapp_kit.errors import StoreError
from taskapp_kit.records.protocols import Clock, StoredRollout


class PlainStore:
    """A store of rollouts in memory, which may be full."""

    def __init__(self) -> None:
        self.rollouts: dict[str, StoredRollout] = {}
        self.blobs: dict[str, bytes] = {}
        self.closed = False
        self.full = False

    async def save(self, rollout: StoredRollout) -> None:
        if self.full:
            raise StoreError("the store is full.")
        orjson.dumps(list(rollout.events))
        self.rollouts[rollout.rollout_id] = rollout
        self.blobs.update(rollout.blobs)

    async def load(self, rollout_id: str) -> StoredRollout | None:
        return self.rollouts.get(rollout_id)

    async def blob(self, sha256: str) -> bytes | None:
        return self.blobs.get(sha256)

    async def recent(self, limit: int = 50, *, environment: str | None = None) -> list[StoredRollout]:
        return list(self.rollouts.values())[-limit:]

    def coordinator(self, clock: Clock) -> None:
        return None

    async def close(self) -> None:
        self.closed = True

    def last(self) -> StoredRollout:
        return list(self.rollouts.values())[-1]
