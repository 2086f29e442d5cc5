"""A bounded cache of worlds in memory, so that a group of rollouts with the same seed generates the world once."""

import threading
from collections import OrderedDict
from concurrent.futures import Future

from .terrain import Blueprint, generate

Key = tuple[int, int, tuple[int, int]]


class WorldCache:
    """Blueprints by (seed, episode, area), the least recently used dropped first; safe between threads.

    A blueprint takes about 8 KB. Threads that request one world at the same time wait for one generation.
    A generation that fails raises in every waiting thread, and is not cached.
    """

    def __init__(self, max_worlds: int = 512) -> None:
        """Raise ValueError unless `max_worlds` is at least 1."""
        if max_worlds < 1:
            raise ValueError(f"a world cache holds at least one world; max_worlds was {max_worlds}")
        self.max_worlds = max_worlds
        self.generated = 0
        self._lock = threading.Lock()
        self._worlds: OrderedDict[Key, Future[Blueprint]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._worlds)

    def get(self, seed: int, episode: int, area: tuple[int, int]) -> Blueprint:
        """Return the blueprint of that world, generated if it is not cached."""
        key = (seed, episode, area)
        with self._lock:
            future = self._worlds.get(key)
            mine = future is None
            if future is None:
                future = self._worlds[key] = Future()
                self.generated += 1
                if len(self._worlds) > self.max_worlds:
                    self._worlds.popitem(last=False)
            else:
                self._worlds.move_to_end(key)
        if mine:
            try:
                future.set_result(generate(seed, episode, area))
            except BaseException as error:
                with self._lock:
                    if self._worlds.get(key) is future:
                        del self._worlds[key]
                future.set_exception(error)
                raise
        return future.result()


WORLDS = WorldCache()
"""The cache of this process. Episodes can share it, because a world depends only on its key."""
