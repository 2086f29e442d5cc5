"""How fast the sampler is, as seen by the gateway, and how long one generation may therefore take."""

from __future__ import annotations

from taskapp_kit.records.protocols import Clock, SystemClock

LEAST_SECONDS = 60.0
"""The shortest deadline: an update of the weights may stop the sampler for so long."""
UNMEASURED_SECONDS = 600.0
"""The deadline before anything is measured: a first call may compile, or load weights."""
MOST_SECONDS = 3600.0
SLACK = 4.0
"""A generation may take this many times as long as the speed suggests."""
MEMORY_SECONDS = 60.0
"""Older measurements count less: half after so much time in which the sampler was busy."""


class Pace:
    """Tokens per second while at least one generation is running, those of all attempts together."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._wanted: dict[object, int] = {}
        self._busy_since = 0.0
        self._tokens = 0.0
        self._seconds = 0.0
        self.sampled_tokens = 0
        """Of all generations that have ended."""

    @property
    def tokens_per_second(self) -> float | None:
        """The measured speed; None before the first generation has ended."""
        return self._tokens / self._seconds if self._tokens and self._seconds else None

    @property
    def running(self) -> int:
        """The number of generations under way."""
        return len(self._wanted)

    def started(self, generation: object, max_tokens: int) -> float:
        """Note that a generation starts; return its deadline in seconds, which allows for all those that are running."""
        if not self._wanted:
            self._busy_since = self._clock.monotonic()
        self._wanted[generation] = max_tokens
        speed = self.tokens_per_second
        if speed is None:
            return UNMEASURED_SECONDS
        return min(MOST_SECONDS, LEAST_SECONDS + SLACK * sum(self._wanted.values()) / speed)

    def ended(self, generation: object, tokens: int | None) -> None:
        """Note that a generation ended. tokens: sampled; None if it failed or was cancelled, which measures nothing."""
        del self._wanted[generation]
        if tokens is None:
            return
        self.sampled_tokens += tokens
        now = self._clock.monotonic()
        seconds, self._busy_since = now - self._busy_since, now
        kept = 0.5 ** (seconds / MEMORY_SECONDS)
        self._tokens = self._tokens * kept + tokens
        self._seconds = self._seconds * kept + seconds
