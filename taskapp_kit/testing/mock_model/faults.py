"""The faults of the mock model, and the choice of the requests that fail.

Whether a request fails depends only on the seed, the conversation's digest and how often the conversation was sent before.
So two runs with the same conversations have the same faults, in any order and process.
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
        "reset": "the connection is reset, half of the time before the response and half of the time during it",
        "reset_early": "the connection is reset before the response",
        "reset_late": "the connection is reset during the response",
        "truncated": "the connection ends before the announced length, or before the end of the stream",
        "hang": "nothing is sent until the client leaves",
        "slow": "the response is sent in small pieces, over `slow_seconds`",
        "close": "a good response, after which the connection is closed without notice",
        "malformed": "200 with incomplete JSON",
        "content_type": "200 with a web page, as a proxy might send it",
        "error_200": "200 with an error object",
        "redirect": "302 to `redirect_to`, or to another path of this server, which counts the clients that follow",
        "empty": "no choices",
        "blank": "a message without text and calls",
        "length": "the reply stops half-way, with finish reason `length`",
        "content_filter": "no text, finish reason `content_filter`",
        "refusal": "text in `refusal`, none in `content`",
        "context": "400 with the code `context_length_exceeded`",
        "uneven": "one log-probability fewer than token ids, if both were requested",
    }
)
"""The kinds of faults. Statuses from 400 to 599 are also faults, named by their number."""

_PARTS = 2**64


@dataclass(frozen=True, slots=True)
class Faults:
    """The shares of requests that fail, by kind of fault.

    Args:
        rate: Probability of each kind (one of FAULTS, or a status such as "429"). The probabilities sum to at most 1.
        seed: Seed of the choice. Two runs with the same conversations have the same faults.
        sequence: Faults of a conversation the first, second, … time that it is sent. None is a good reply. `rate` applies
            after the sequence.
        up_to_attempt: Number of attempts to which `rate` applies, so that a client that retries often enough succeeds.
        retry_after_seconds: Value of the header that is sent with 429 and 503. None omits the header.
        slow_seconds: Duration of the fault `slow`.
        redirect_to: Target of the fault `redirect`. Defaults to another path of this server.

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
                raise ConfigError(f"The fault {kind} has the probability {share}.", hint="Use one from 0 to 1.")
        if sum(self.rate.values()) > 1 + 1e-9:
            raise ConfigError(
                f"The faults' probabilities sum to {sum(self.rate.values()):g}.", hint="Let them sum to at most 1."
            )

    @classmethod
    def parse(cls, text: str, *, seed: int = 0) -> Self:
        """Parse faults in the format of the command line: `429=0.02,reset=0.01`.

        Args:
            text: Kinds with their probabilities, separated by commas.
            seed: Seed of the choice.

        Returns:
            The faults.

        Raises:
            ConfigError: The text is invalid, or names a kind that does not exist.
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
    """Return the kind itself if the fault exists. Raises ConfigError, with a suggestion for a misspelled name."""
    if kind in FAULTS or (len(kind) == 3 and kind.isascii() and kind.isdecimal() and "400" <= kind <= "599"):
        return kind
    close = closest(kind, FAULTS)
    suggestion = f"Did you mean {close!r}?" if close else f"Use a status from 400 to 599, or {', '.join(FAULTS)}."
    raise ConfigError(f"The fault {kind!r} does not exist.", hint=suggestion)


def _draw(purpose: bytes, seed: int, digest: bytes, attempt: int) -> float:
    """Return a number in [0, 1) that depends only on the arguments."""
    drawn = hashlib.blake2b(b"%s:%d:%d:%s" % (purpose, seed, attempt, digest), digest_size=8).digest()
    return int.from_bytes(drawn, "big") / _PARTS
