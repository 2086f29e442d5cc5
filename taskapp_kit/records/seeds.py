"""An episode's identity, and the random numbers derived from it: (environment, split, seed, config).

All randomness is derived by SHA-256 from that identity: nothing depends on the process, on hash order or on earlier
episodes.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping

SEED_LIMIT = 2**63
"""Seeds lie in [0, 2⁶³)."""


def derived_rng(*parts: str | int) -> random.Random:
    """A generator whose stream is fixed by `parts` alone, e.g. `("policy", "crafter", "train", 7, 0)`."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))


def size(seeds: range) -> int:
    """The number of seeds in a range; `len` fails above 2⁶³ - 1."""
    return (seeds[-1] - seeds[0]) // seeds.step + 1 if seeds else 0


def overlap(splits: Mapping[str, range]) -> tuple[str, str, int] | None:
    """Two splits that share a seed, and the lowest such seed; None when all are disjoint."""
    names = list(splits)
    for index, one in enumerate(names):
        for two in names[index + 1 :]:
            shared = _shared(splits[one], splits[two])
            if shared is not None:
                return one, two, shared
    return None


def _shared(one: range, two: range) -> int | None:
    """The lowest seed in both ranges, computed without iterating: the ranges may be long."""
    if not one or not two:
        return None
    (start, step), (other, stride) = ((min(seeds[0], seeds[-1]), abs(seeds.step)) for seeds in (one, two))
    common = math.gcd(step, stride)
    if (other - start) % common:
        return None
    period = step * stride // common
    jumps = (other - start) // common * pow(step // common, -1, stride // common) % (stride // common)
    first = start + jumps * step  # in `one`, and congruent to `two`
    low = max(start, other)
    first += -(-max(0, low - first) // period) * period
    return first if first <= min(max(one[0], one[-1]), max(two[0], two[-1])) else None
