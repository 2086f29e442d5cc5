"""The faults of the mock model, and the selection of the requests that fail.

Whether a request fails depends only on the seed, the digest of the conversation, and how often the conversation was
sent before. Two runs with the same conversations therefore have the same faults, in any order and in any process.
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
        "reset": "the connection is reset, in half of the cases before the response and otherwise during the response",
        "reset_early": "the connection is reset before the response",
        "reset_late": "the connection is reset during the response",
        "truncated": "the connection is closed before the announced length or before the end of the stream",
        "hang": "nothing is sent until the client disconnects",
        "slow": "the response is sent in small pieces, over `slow_seconds`",
        "close": "the response is complete, but then the connection is closed without notice",
        "malformed": "200 with incomplete JSON",
        "content_type": "200 with a web page, as from a proxy",
        "error_200": "200 with an error object",
        "redirect": "302 to `redirect_to`, or to another path of this server, which counts the requests to it",
        "empty": "no choices",
        "blank": "a message without text and tool calls",
        "length": "the reply is cut in half, with finish reason `length`",
        "content_filter": "no text, with finish reason `content_filter`",
        "refusal": "text in `refusal`, and no text in `content`",
        "context": "400 with the code `context_length_exceeded`",
        "uneven": "one fewer log-probability than token ids, if the request requires both",
    }
)
"""The kinds of faults. HTTP statuses from 400 to 599, such as "429", are also faults."""

_PARTS = 2**64


@dataclass(frozen=True, slots=True)
class Faults:
    """The probabilities of faults, by kind.

    Args:
        rate: Probability of each kind, which is one of FAULTS or a status such as "429". The sum must be at most 1.
        seed: Seed of the selection. Two runs with the same conversations have the same faults.
        sequence: Faults for the first, second and further times that the same conversation is sent. An
            element None means a complete reply. After the sequence, `rate` applies.
        up_to_attempt: `rate` applies only to the first attempts of a conversation, up to this number, so that a client
            that retries often enough succeeds.
        retry_after_seconds: Value of the header `retry-after` with 429 and 503, or None to omit the header.
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
                raise ConfigError(f"The probability of the fault {kind} is {share}.", hint="Use a number from 0 to 1.")
        if sum(self.rate.values()) > 1 + 1e-9:
            raise ConfigError(
                f"The sum of the probabilities is {sum(self.rate.values()):g}.", hint="Reduce the sum to at most 1."
            )

    @classmethod
    def parse(cls, text: str, *, seed: int = 0) -> Self:
        """Parse faults in the format of the command line: `429=0.02,reset=0.01`.

        Args:
            text: Kinds with their probabilities, separated by commas.
            seed: Seed of the selection.

        Raises:
            ConfigError: The string is invalid, or a kind does not exist.
        """
        rate: dict[str, float] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            kind, _, share = (piece.strip() for piece in part.partition("="))
            try:
                rate[kind] = float(share)
            except ValueError:
                raise ConfigError(
                    f"The fault {part!r} cannot be parsed.", hint="Write KIND=PROBABILITY, such as 429=0.02."
                ) from None
        return cls(rate, seed=seed)

    def choose(self, digest: bytes, attempt: int) -> str | None:
        """Return the fault for a request, or None if the request does not fail. The first attempt is 0.

        For `reset`, the result is `reset_early` or `reset_late`.
        """
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
    """Return the kind unchanged if it exists. Raises ConfigError, with a suggestion, if it does not."""
    if kind in FAULTS or (len(kind) == 3 and kind.isascii() and kind.isdecimal() and "400" <= kind <= "599"):
        return kind
    close = closest(kind, FAULTS)
    suggestion = f"Did you mean {close!r}?" if close else f"Use a status from 400 to 599, or {', '.join(FAULTS)}."
    raise ConfigError(f"The fault {kind!r} does not exist.", hint=suggestion)


def _draw(purpose: bytes, seed: int, digest: bytes, attempt: int) -> float:
    """Return a number in [0, 1) that depends only on the arguments."""
    drawn = hashlib.blake2b(b"%s:%d:%d:%s" % (purpose, seed, attempt, digest), digest_size=8).digest()
    return int.from_bytes(drawn, "big") / _PARTS
