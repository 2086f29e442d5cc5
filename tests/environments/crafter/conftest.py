"""Stock Crafter with insertion-ordered chunks: the one stock run that can be compared step by step."""

import collections
from typing import Any

import crafter
import pytest
from crafter import engine


class OrderedSet(dict[Any, None]):
    """As much of a set as a world asks of its chunks."""

    def add(self, thing: Any) -> None:
        self[thing] = None

    def remove(self, thing: Any) -> None:
        del self[thing]


class OrderedWorld(engine.World):  # type: ignore[misc]
    """Stock world, ordered chunks."""

    def reset(self, seed: int | None = None) -> None:
        super().reset(seed)
        self._chunks: Any = collections.defaultdict(OrderedSet)


class OrderedEnv(crafter.Env):  # type: ignore[misc]
    """Stock environment on an ordered world; the package itself stays as it is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._world.__class__ = OrderedWorld


@pytest.fixture
def ordered_env() -> type[OrderedEnv]:
    return OrderedEnv
