"""Measures the sampler's speed, and computes the deadlines of generations from it."""

from __future__ import annotations

from taskapp_kit.records.protocols import Clock, SystemClock

LEAST_SECONDS = 60.0
"""The shortest deadline in seconds. An update of the weights may block the sampler for this long."""
UNMEASURED_SECONDS = 600.0
"""The deadline in seconds before the first measurement. The first call may compile or load weights."""
MOST_SECONDS = 3600.0
SLACK = 4.0
"""A generation may take this many times as long as the measured speed suggests."""
MEMORY_SECONDS = 60.0
"""The half-life of a measurement, in seconds during which the sampler is busy."""


class Pace:
    """Measures the tokens per second of all attempts together, while at least one generation is running."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._max_tokens: dict[object, int] = {}
        self._busy_since = 0.0
        self._tokens = 0.0
        self._seconds = 0.0
        self.sampled_tokens = 0
        """Number of tokens of all generations that have ended."""

    @property
    def tokens_per_second(self) -> float | None:
        """The measured speed, or None before the first generation has ended."""
        return self._tokens / self._seconds if self._tokens and self._seconds else None

    @property
    def running(self) -> int:
        """The number of running generations."""
        return len(self._max_tokens)

    def started(self, generation: object, max_tokens: int) -> float:
        """Record the start of a generation and return its deadline in seconds, which accounts for all running generations."""
        if not self._max_tokens:
            self._busy_since = self._clock.monotonic()
        self._max_tokens[generation] = max_tokens
        speed = self.tokens_per_second
        if speed is None:
            return UNMEASURED_SECONDS
        return min(MOST_SECONDS, LEAST_SECONDS + SLACK * sum(self._max_tokens.values()) / speed)

    def ended(self, generation: object, tokens: int | None) -> None:
        """Record the end of a generation. `tokens` is the number of sampled tokens, or None if it failed or was cancelled."""
        del self._max_tokens[generation]
        if tokens is None:
            return
        self.sampled_tokens += tokens
        now = self._clock.monotonic()
        seconds, self._busy_since = now - self._busy_since, now
        kept = 0.5 ** (seconds / MEMORY_SECONDS)
        self._tokens = self._tokens * kept + tokens
        self._seconds = self._seconds * kept + seconds
