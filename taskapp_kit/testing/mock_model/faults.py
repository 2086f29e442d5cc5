"""The faults of the mock model, and the choice of the requests that fail.

Whether a request fails depends only on (seed, digest of its conversation, how often that conversation was sent before): two
runs with the same conversations have the same faults, in any order and process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from taskapp_kit.errors import ConfigError, closest

FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "reset": "the connection is reset: half of the times before the answer, half in the midst of it",
        "reset_early": "the connection is reset before the answer",
        "reset_late": "the connection is reset in the midst of the answer",
        "truncated": "the connection ends before the announced length, or before the end of the stream",
        "hang": "nothing comes until the client goes",
        "slow": "the answer comes in drips, over `slow_seconds`",
        "close": "a good answer, then the connection is closed without having said so",
        "malformed": "200 with JSON that breaks off",
        "content_type": "200 with a web page, as a proxy in between sends it",
        "error_200": "200 with an error object",
        "redirect": "302 to `redirect_to`, or to another path of this server, which counts who follows",
        "empty": "no choices",
        "blank": "a message without words and calls",
        "length": "the answer stops half-way, finish reason `length`",
        "content_filter": "no words, finish reason `content_filter`",
        "refusal": "words in `refusal`, none in `content`",
        "context": "400 with the code `context_length_exceeded`",
        "uneven": "one log-probability fewer than token ids, when both were asked for",
    }
)
"""Every kind of fault besides the statuses 400 to 599, which are named by their number."""

_PARTS = 2**64


@dataclass(frozen=True, slots=True)
class Faults:
    """The shares of requests that fail, by kind of fault.

    Args:
        rate: A kind (see FAULTS, or a status such as "429") to its probability. The probabilities sum to at most 1.
        seed: The seed of the choice. Two runs with the same conversations meet the same faults.
        sequence: The faults that a conversation meets the first, second, … time that it is sent; None is a good answer.
            `rate` applies after the sequence.
        up_to_attempt: `rate` applies to that many first attempts only, so that a client that retries often enough succeeds.
        retry_after_seconds: Sent with 429 and 503; None sends no such header.
        slow_seconds: How long the fault `slow` takes.
        redirect_to: Where the fault `redirect` leads. Defaults to another path of this server.

    Raises:
        ConfigError: A kind does not exist, or the probabilities are invalid.
    """

    rate: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    sequence: Sequence[str | None] = ()
    up_to_attempt: int | None = None
    retry_after_seconds: int | None = 1
    slow_seconds: float = 2.0
    redirect_to: str | None = None

    def __post_init__(self) -> None:
        for kind in (*self.rate, *(name for name in self.sequence if name is not None)):
            known(kind)
        for kind, share in self.rate.items():
            if not 0 <= share <= 1:
                raise ConfigError(f"The fault {kind} has the probability {share}.", hint="Give one from 0 to 1.")
        if sum(self.rate.values()) > 1 + 1e-9:
            raise ConfigError(
                f"The faults' probabilities sum to {sum(self.rate.values()):g}.", hint="Let them sum to at most 1."
            )

    @classmethod
    def parse(cls, text: str, *, seed: int = 0) -> Self:
        """Read faults as the command line writes them: `429=0.02,reset=0.01`.

        Args:
            text: The kinds with their probabilities, separated by commas.
            seed: The seed of the choice.

        Returns:
            The faults.

        Raises:
            ConfigError: The text has another form, or names a kind that does not exist.
        """
        rate: dict[str, float] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            kind, _, share = (piece.strip() for piece in part.partition("="))
            try:
                rate[kind] = float(share)
            except ValueError:
                raise ConfigError(
                    f"The fault {part!r} cannot be read.", hint="Write KIND=PROBABILITY, such as 429=0.02."
                ) from None
        return cls(rate, seed=seed)

    def choose(self, digest: bytes, attempt: int) -> str | None:
        """Return the fault of this request, with `reset` resolved, or None. The first attempt is 0."""
        if attempt < len(self.sequence):
            kind = self.sequence[attempt]
        elif not self.rate or (self.up_to_attempt is not None and attempt >= self.up_to_attempt):
            return None
        else:
            kind = self._drawn(_draw(b"whether", self.seed, digest, attempt))
        if kind == "reset":
            return "reset_early" if _draw(b"when", self.seed, digest, attempt) < 0.5 else "reset_late"
        return kind

    def _drawn(self, chance: float) -> str | None:
        for kind, share in self.rate.items():
            if chance < share:
                return kind
            chance -= share
        return None


def known(kind: str) -> str:
    """Return the kind itself, if there is such a fault. Raises ConfigError, with a suggestion for a misspelt name."""
    if kind in FAULTS or (len(kind) == 3 and kind.isascii() and kind.isdecimal() and "400" <= kind <= "599"):
        return kind
    close = closest(kind, FAULTS)
    meant = f"Did you mean {close!r}?" if close else f"There are statuses from 400 to 599 and {', '.join(FAULTS)}."
    raise ConfigError(f"There is no fault {kind!r}.", hint=meant)


def _draw(purpose: bytes, seed: int, digest: bytes, attempt: int) -> float:
    """Return a number in [0, 1), fixed by its arguments."""
    drawn = hashlib.blake2b(b"%s:%d:%d:%s" % (purpose, seed, attempt, digest), digest_size=8).digest()
    return int.from_bytes(drawn, "big") / _PARTS
