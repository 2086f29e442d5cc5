"""Who an episode is, and where its random numbers come from: (environment, split, seed, config).

All randomness is derived by SHA-256 from that identity: nothing depends on the process, on hash order or on what was
played before.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping

SEED_LIMIT = 2**63
"""Seeds lie in [0, 2⁶³)."""


def derived_rng(*parts: str | int) -> random.Random:
    """A generator whose stream is fixed by `parts` alone, e.g. `("policy", "crafter", "train", 7, 0)`."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))


def size(seeds: range) -> int:
    """How many seeds a range holds; `len` stops at 2⁶³ - 1."""
    return (seeds[-1] - seeds[0]) // seeds.step + 1 if seeds else 0


def overlap(splits: Mapping[str, range]) -> tuple[str, str, int] | None:
    """Two splits that share a seed, and the seed; None when all are disjoint. No range is listed beyond the smaller one."""
    names = list(splits)
    for index, one in enumerate(names):
        for two in names[index + 1 :]:
            shared = _shared(splits[one], splits[two])
            if shared is not None:
                return one, two, shared
    return None


def _shared(one: range, two: range) -> int | None:
    if abs(one.step) == abs(two.step) == 1:
        low = max(min(one[0], one[-1]), min(two[0], two[-1]))
        high = min(max(one[0], one[-1]), max(two[0], two[-1]))
        return low if low <= high else None
    small, large = sorted((one, two), key=size)
    return next((seed for seed in small if seed in large), None)
