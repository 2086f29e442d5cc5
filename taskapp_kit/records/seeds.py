"""Random numbers that are derived from an episode's identity, and lists of seeds such as `1000-1299` or `0-9,20`.

All randomness is derived with SHA-256, so it does not depend on the process, the hash order or earlier episodes.
"""

from __future__ import annotations

import bisect
import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Mapping

from taskapp_kit.errors import ConfigError

SEED_LIMIT = 2**63
"""Seeds are in [0, 2⁶³)."""


def derived_rng(*parts: str | int) -> random.Random:
    """Return a generator whose stream depends only on `parts`, such as `("policy", "crafter", "train", 7, 0)`."""
    # The first part is the purpose, so a policy never shares a stream with the environment.
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest(), "big"))


def size(seeds: range) -> int:
    """Return the number of seeds in a range. `len` fails above 2⁶³ - 1."""
    return (seeds[-1] - seeds[0]) // seeds.step + 1 if seeds else 0


def overlap(splits: Mapping[str, range]) -> tuple[str, str, int] | None:
    """Return two splits that share a seed, and their lowest common seed, or None if all splits are disjoint."""
    names = list(splits)
    for index, one in enumerate(names):
        for two in names[index + 1 :]:
            shared = _shared(splits[one], splits[two])
            if shared is not None:
                return one, two, shared
    return None


def _shared(one: range, two: range) -> int | None:
    """Return the lowest seed that is in both ranges, or None if they are disjoint. Ranges may be long, so do not iterate."""
    if not one or not two:
        return None
    (start, step), (other, stride) = ((min(seeds[0], seeds[-1]), abs(seeds.step)) for seeds in (one, two))
    common = math.gcd(step, stride)
    if (other - start) % common:
        return None
    period = step * stride // common
    jumps = (other - start) // common * pow(step // common, -1, stride // common) % (stride // common)
    first = start + jumps * step  # the first seed in `one` that is congruent to `two`
    low = max(start, other)
    first += -(-max(0, low - first) // period) * period
    return first if first <= min(max(one[0], one[-1]), max(two[0], two[-1])) else None


FIRST_SEEDS = 10
"""How many seeds of a split are played by default."""
EXAMPLE = "Write them as 1000-1299, as 0,5,9, or mixed: 0-9,20,30."


class Seeds:
    """Distinct seeds in ascending order. Objects with the same seeds are equal, even if they were written differently."""

    __slots__ = ("_before", "_ranges")

    def __init__(self, ranges: Iterable[range]) -> None:
        """Create seeds from ranges with step 1. Raises ConfigError if two ranges share a seed, or if all ranges are empty."""
        merged: list[range] = []
        for one in sorted((item for item in ranges if item), key=lambda item: item.start):
            if merged and one.start < merged[-1].stop:
                raise ConfigError(f"--seeds contains seed {one.start} twice.", hint=f"Write each seed once. {EXAMPLE}")
            if merged and one.start == merged[-1].stop:
                merged[-1] = range(merged[-1].start, one.stop)
            else:
                merged.append(one)
        if not merged:
            raise ConfigError("--seeds contains no seeds.", hint=EXAMPLE)
        self._ranges = tuple(merged)
        self._before: list[int] = []
        count = 0
        for one in merged:
            self._before.append(count)
            count += one.stop - one.start

    @classmethod
    def read(cls, text: str) -> Seeds:
        """Parse the value of the option `--seeds`. Raises ConfigError if it is invalid."""
        ranges = []
        for part in text.split(","):
            low, dash, high = (word.strip() for word in part.partition("-"))
            first, last = _seed(low, text), _seed(high if dash else low, text)
            if last < first:
                raise ConfigError(f"--seeds contains {part.strip()}, which ends before it starts.", hint=EXAMPLE)
            ranges.append(range(first, last + 1))
        return cls(ranges)

    @property
    def ranges(self) -> tuple[range, ...]:
        """Return the ranges in ascending order. There is a gap between any two ranges."""
        return self._ranges

    def __len__(self) -> int:
        return self._before[-1] + len(self._ranges[-1])

    def __iter__(self) -> Iterator[int]:
        for one in self._ranges:
            yield from one

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seeds) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(self._ranges)

    def __str__(self) -> str:
        return ",".join(str(one.start) if len(one) == 1 else f"{one.start}-{one.stop - 1}" for one in self._ranges)

    def at(self, index: int) -> int:
        """Return the seed at an index, counted from 0. Raises IndexError if the index is out of range."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        which = bisect.bisect_right(self._before, index) - 1
        return self._ranges[which].start + index - self._before[which]

    def index(self, seed: int) -> int | None:
        """Return the index of a seed, or None if it is not one of these seeds."""
        which = bisect.bisect_right([one.start for one in self._ranges], seed) - 1
        if which < 0 or seed not in self._ranges[which]:
            return None
        return self._before[which] + seed - self._ranges[which].start


def _seed(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < SEED_LIMIT):
        raise ConfigError(f"--seeds {whole[:80]!r} contains {text[:40]!r}, which is not a seed.", hint=EXAMPLE)
    return int(text)
