"""Policies for how much of an episode each prompt contains: everything, the last turns, or a token budget.

The system prompt and the first observation are always included. Whole exchanges are left out, the oldest first. An
exchange is an answer of the model with all messages that follow it, so a tool call is never sent without its result.

Only `full` preserves the token prefix: each prompt begins with the previous prompt and its answer, so an engine's prefix
cache stays valid, and a trainer can join the turns into one sequence of tokens. A window of turns breaks the prefix in each
turn once turns are left out; a token budget breaks it in each turn that leaves out more than the previous one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.records.content import Json

CHARACTERS_PER_TOKEN = 4.0
"""The estimate until an endpoint has reported a token count."""
MESSAGE_CHARACTERS = 16
"""The overhead of a chat template for each message."""
PICTURE_CHARACTERS = 4000
"""The estimate for a picture, about a thousand tokens; its size in bytes does not predict its tokens."""
LEARNED = (0.02, 4.0)
"""The plausible range of tokens per character; an endpoint's count outside it is ignored."""


class TokenCounter(Protocol):
    """Estimates the tokens of a conversation from its characters. One object for each rollout."""

    def tokens(self, characters: int) -> float:
        """The estimated number of tokens."""
        ...

    def learn(self, characters: int, tokens: float) -> None:
        """Takes into account the endpoint's token count of a prompt with this many characters."""
        ...


class EstimatedTokens:
    """Divides characters by 4 at first, then by the ratio in the endpoint's own count of the last prompt."""

    def __init__(self) -> None:
        self._per_character = 1 / CHARACTERS_PER_TOKEN

    def tokens(self, characters: int) -> float:
        """The estimate."""
        return characters * self._per_character

    def learn(self, characters: int, tokens: float) -> None:
        """Adopts the endpoint's ratio if it is plausible."""
        if characters > 0 and LEARNED[0] <= tokens / characters <= LEARNED[1]:
            self._per_character = tokens / characters


class History(Protocol):
    """Selects the exchanges that a prompt contains. keeps_prefix: each prompt begins with the previous one."""

    @property
    def keeps_prefix(self) -> bool:
        """True when no exchange is ever left out."""
        ...

    def first(self, opening: int, exchanges: Sequence[int], counter: TokenCounter) -> int:
        """The index of the oldest exchange in the prompt. opening, exchanges: their sizes in characters."""
        ...


@dataclass(frozen=True, slots=True)
class FullHistory:
    """Every exchange."""

    keeps_prefix = True

    def first(self, opening: int, exchanges: Sequence[int], counter: TokenCounter) -> int:
        """Always 0."""
        return 0


@dataclass(frozen=True, slots=True)
class LastTurns:
    """The last `turns` exchanges, at least 1."""

    turns: int
    keeps_prefix = False

    def first(self, opening: int, exchanges: Sequence[int], counter: TokenCounter) -> int:
        """Leaves out all but the last `turns`."""
        return max(0, len(exchanges) - self.turns)


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """As many of the last exchanges as fit in `budget` tokens with the opening and the tools; always the last one."""

    budget: int
    keeps_prefix = False

    def first(self, opening: int, exchanges: Sequence[int], counter: TokenCounter) -> int:
        """Adds exchanges from the newest backwards until the budget is spent."""
        at, characters = len(exchanges), opening
        while at > 0:
            characters += exchanges[at - 1]
            if at < len(exchanges) and counter.tokens(characters) > self.budget:
                break
            at -= 1
        return at


def read_history(given: Json) -> History:
    """Reads `policy.config.history`: "full" (also when absent), {"turns": N} or {"tokens": N}. Raises RequestError."""
    if given is None or given == "full":
        return FullHistory()
    if isinstance(given, Mapping) and len(given) == 1:
        (word, value), *_ = given.items()
        if type(value) is int and 1 <= value < 2**63:
            if word == "turns":
                return LastTurns(value)
            if word == "tokens":
                return TokenBudget(value)
    message = (
        f'policy.config.history is {str(given)[:80]!r}; expected "full", {{"turns": N}} or {{"tokens": N}} with a whole '
        "number N from 1."
    )
    raise RequestError(message, fields=(FieldProblem(("body", "policy", "config", "history"), message),))


def characters_of(message: Mapping[str, Any]) -> int:
    """The approximate size of a message in the prompt, in characters; a picture counts as about a thousand tokens."""
    return MESSAGE_CHARACTERS + _characters(message)


def _characters(value: Any) -> int:
    kind = type(value)
    if kind is str:
        return len(value)
    if kind is dict or isinstance(value, Mapping):
        if value.get("type") == "image_url":
            return PICTURE_CHARACTERS
        return sum(_characters(part) for name, part in value.items() if name not in ("role", "type"))
    if isinstance(value, list):
        return sum(map(_characters, value))
    return 4
