"""Sources of stored rollouts: the interface (`RolloutSource`), and a service's own rollouts (`RolloutReader`)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from taskapp_kit.errors import ConfigError, Failure, StoreError, Unavailable
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import fold, from_json
from taskapp_kit.records.protocols import (
    Annotation,
    QueryableStore,
    RolloutQuery,
    RolloutRow,
    RowOrder,
    Store,
    StoredResult,
    StoredRollout,
)
from taskapp_kit.records.trajectory import Trajectory
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.rollout.response import response_of_row

MOST = 2**62
"""No limit on rows."""
# without a store, the client fetches the images of a response right after the response
IMAGE_MEMORY_BYTES = 64 * 1024 * 1024
"""Without a store, referenced images are cached up to this size. The oldest are dropped first."""


class RolloutSource(ABC):
    """A source of stored rollouts. Use it on one event loop, and close it.

    place: the directory, store or address, without keys. config: the `config.json` of a directory, or {} for other sources.
    """

    place: str = ""
    config: Mapping[str, Any] = {}

    @abstractmethod
    def rows(
        self, query: RolloutQuery | None = None, order: RowOrder | None = None, *, limit: int | None = None
    ) -> AsyncIterator[RolloutRow]:
        """Yield the rollouts that match the query. `query.limit` and `query.before` are ignored.

        `query.policy` is the name of a policy or of a model.

        order: None uses the source's default, which is by seed in a directory and newest first elsewhere. limit: the
        maximum number of rows, or None for all. Raises StoreError, TaskAppError or Unavailable if the source fails.
        """

    @abstractmethod
    async def load(self, rollout_id: str) -> StoredRollout:
        """Return the whole rollout. Only local sources include the private column. Raises ConfigError for an unknown id."""

    @abstractmethod
    async def blob(self, sha256: str) -> bytes | None:
        """Return an image's PNG bytes, or None."""

    @abstractmethod
    async def close(self) -> None:
        """Close the store or the connections."""

    @property
    def annotates(self) -> bool:
        """Whether human scores of these rollouts can be stored."""
        return False

    async def annotate(self, annotations: Sequence[Annotation]) -> None:
        """Store human scores. Raises Unavailable if `annotates` is False, and StoreError if the write fails."""
        raise Unavailable(f"Human scores cannot be stored in {self.place}.")

    async def annotations(self, rollout_id: str | None = None) -> list[Annotation]:
        """Return the human scores of one rollout, or of all rollouts by default. Raises StoreError if the store fails."""
        return []

    def score_store(self) -> QueryableStore:
        """Return the store for new scores of these rollouts. Raises Unavailable if they cannot be stored."""
        raise Unavailable(
            f"New scores cannot be stored because {self.place} is not a store of complete rollouts.",
            hint="Pass the store of these rollouts (sqlite:///PATH, postgresql://…).",
        )


def no_such_rollout(rollout_id: str, place: str) -> ConfigError:
    """Return the error for an id that the source does not contain."""
    return ConfigError(
        f"{place} has no rollout {rollout_id[:80]!r}.",
        hint="`taskapp show` without an id lists the rollouts.",
    )


class RolloutReader:
    """The stored rollouts of a service's app, filtered by what each caller may see. store: None if nothing is stored."""

    def __init__(self, app: str, store: Store | None) -> None:
        self.app = app
        self.store = store
        self._images = ImageCache()

    def may_see(self, caller: Caller, stored: StoredRollout) -> bool:
        """Return whether the rollout belongs to this app and the caller may see it."""
        return stored.app == self.app and caller.may_see(stored.key_label)

    async def load(self, rollout_id: str, caller: Caller) -> StoredRollout | None:
        """Return a whole rollout, or None if the caller may not see such a rollout. Raises StoreError if the store fails."""
        stored = None if self.store is None else await self.store.load(rollout_id)
        return stored if stored is not None and self.may_see(caller, stored) else None

    async def query(self, query: RolloutQuery, caller: Caller) -> list[RolloutRow]:
        """Return the matching rollouts that the caller may see, newest first. Raises Unavailable if the store cannot list."""
        if self.store is None:
            message = "Rollouts cannot be listed because this server has no store."
            raise Unavailable(message, hint="Start the server with --store PATH.")
        if not isinstance(self.store, QueryableStore):
            message = "This server's store cannot list rollouts because it has no `query` method."
            raise Unavailable(message, hint="Fetch rollouts by id, or use one of taskapp-kit's stores.")
        visible = self._visible(query, caller)
        return [] if visible is None else await self.store.query(visible)

    async def rows(self, query: RolloutQuery, order: RowOrder, caller: Caller) -> list[RolloutRow]:
        """Return the same rollouts as `query`, in the given order, with scores. Raises Unavailable if the store cannot list."""
        if self.store is None or not isinstance(self.store, QueryableStore):
            message = "Rollouts cannot be shown because this server has no store that can list them."
            raise Unavailable(message, hint="Start the server with --store PATH.")
        visible = self._visible(query, caller)
        return [] if visible is None else await self.store.listed(visible, order)

    def _visible(self, query: RolloutQuery, caller: Caller) -> RolloutQuery | None:
        """Restrict the query to this app and to the caller's rollouts. Return None if the caller may see none of them."""
        key_label = query.key_label if caller.admin else caller.key_label
        # a query without a label matches every label
        if key_label is None and not caller.admin:
            return None
        return replace(query, app=self.app, key_label=key_label)

    async def blob(self, sha256: str) -> bytes | None:
        """Return an image's PNG bytes by SHA-256 (hex), or None if the image is not stored or was dropped."""
        shown = self._images.get(sha256)
        return shown if shown is not None or self.store is None else await self.store.blob(sha256)

    def show_images(self, images: dict[str, bytes]) -> None:
        """Cache PNG bytes by hash, so that `blob` returns images before they are stored. The oldest images are dropped."""
        self._images.add(images)

    def of(self, caller: Caller) -> RolloutSource:
        """Return a source with the rollouts that this caller may see."""
        return _CallersRollouts(self, caller)


class _CallersRollouts(RolloutSource):
    """The rollouts of a service that one caller may see. The source is closed with the service."""

    def __init__(self, stored: RolloutReader, caller: Caller) -> None:
        self.place = stored.app
        self._stored = stored
        self._caller = caller
        store = stored.store
        self._annotated = store if store is not None and isinstance(store, QueryableStore) else None

    async def rows(
        self, query: RolloutQuery | None = None, order: RowOrder | None = None, *, limit: int | None = None
    ) -> AsyncIterator[RolloutRow]:
        """Implement `RolloutSource.rows`."""
        # the viewer limits its pages, so read the whole list in the requested order
        bounded = replace(query or RolloutQuery(), before=None, limit=MOST if limit is None else limit)
        for row in await self._stored.rows(bounded, order or "newest", self._caller):
            yield row

    async def load(self, rollout_id: str) -> StoredRollout:
        """Implement `RolloutSource.load`."""
        stored = await self._stored.load(rollout_id, self._caller)
        if stored is None:
            raise no_such_rollout(rollout_id, self.place)
        return stored

    async def blob(self, sha256: str) -> bytes | None:
        """Implement `RolloutSource.blob`."""
        return await self._stored.blob(sha256)

    async def close(self) -> None:
        """Do nothing, because the service closes its store."""

    @property
    def annotates(self) -> bool:
        """Implement `RolloutSource.annotates`."""
        return self._annotated is not None

    async def annotate(self, annotations: Sequence[Annotation]) -> None:
        """Implement `RolloutSource.annotate`."""
        if self._annotated is None:
            await super().annotate(annotations)
        else:
            await self._annotated.annotate(annotations)

    async def annotations(self, rollout_id: str | None = None) -> list[Annotation]:
        """Implement `RolloutSource.annotations`."""
        caller = self._caller
        if self._annotated is None or (caller.key_label is None and not caller.admin):
            return []
        label = None if caller.admin else caller.key_label
        return await self._annotated.annotations(rollout_id=rollout_id, app=self._stored.app, key_label=label)


class ImageCache:
    """Images by hash, up to `limit_bytes`, which are served as `/blobs/{hash}` if the service has no store."""

    def __init__(self, limit_bytes: int = IMAGE_MEMORY_BYTES) -> None:
        self._limit = limit_bytes
        self._images: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def add(self, images: dict[str, bytes]) -> None:
        """Add images, and drop the oldest images if the cache exceeds its limit."""
        for name, png in images.items():
            if name not in self._images:
                self._images[name] = png
                self._bytes += len(png)
        while self._bytes > self._limit:
            _, dropped = self._images.popitem(last=False)
            self._bytes -= len(dropped)

    def get(self, sha256: str) -> bytes | None:
        """Return an image's PNG bytes, or None if the image is not in the cache or was dropped."""
        return self._images.get(sha256)


class ImageSource(Protocol):
    """A source of images: a store, or a source of stored rollouts."""

    async def blob(self, sha256: str) -> bytes | None:
        """Return an image's PNG bytes, or None."""
        ...


async def settled_from(images: ImageSource, stored: StoredRollout) -> StoredResult:
    """Return the failure of a stored rollout, or its response with the trajectory.

    Fields of the response that are not stored are null. Private columns are not read. Raises StoreError if the rollout
    cannot be decoded.
    """
    if stored.failure is not None:
        return StoredResult(stored.rollout_id, failure=Failure(**stored.failure))
    blobs = await images_of(images, stored)
    try:
        return StoredResult(stored.rollout_id, answer=await asyncio.to_thread(response_of_row, stored, blobs))
    except (ValueError, KeyError, TypeError) as fault:
        raise StoreError(
            f"The stored rollout {stored.rollout_id!r} cannot be decoded: {type(fault).__name__}.",
            hint="The store is damaged. Restore it from a backup.",
        ) from fault


async def load_trajectory(images: ImageSource, stored: StoredRollout) -> Trajectory:
    """Return the trajectory of a stored rollout, with images and the private final state."""
    blobs = await images_of(images, stored)
    trajectory = fold(from_json(event, blobs) for event in stored.events)
    trajectory.final_state = stored.private.get("final_state")
    return trajectory


async def images_of(images: ImageSource, stored: StoredRollout) -> dict[str, bytes]:
    """Return the PNG bytes, by hash, of the images in a stored rollout. Missing images are omitted."""
    hashes = sorted({name for event in stored.events for name in _hashes(event)})
    return {name: png for name in hashes if (png := await images.blob(name)) is not None}


def _hashes(event: Mapping[str, Json]) -> list[str]:
    step = event.get("step")
    observation = (step if isinstance(step, dict) else event).get("observation")
    return [block["image"] for block in observation if isinstance(block, dict)] if isinstance(observation, list) else []
