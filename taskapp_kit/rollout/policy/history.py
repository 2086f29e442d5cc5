"""How much of an episode the model reads again in each turn: all of it, the last turns, or what a token budget holds.

The system prompt and the first observation are always shown. What may be left out are whole exchanges, the oldest first:
an answer of the model with everything that was said to it afterwards, so a tool call never stands without its result.

`full` alone keeps the token prefix: each prompt begins with the prompt and the answer before it, so an engine's prefix
cache holds, and a trainer can join the turns to one sequence of tokens. A window of turns breaks it in each turn once
turns are left out; a token budget breaks it in each turn that leaves out more than the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from taskapp_kit.contract.content import Json
from taskapp_kit.errors import FieldProblem, RequestError

CHARACTERS_PER_TOKEN = 4.0
"""The estimate before an endpoint has counted anything."""
MESSAGE_CHARACTERS = 16
"""What a chat template writes around a message."""
PICTURE_CHARACTERS = 4000
"""What a picture counts, about a thousand tokens: its bytes say nothing of its tokens."""
LEARNED = (0.02, 4.0)
"""Tokens per character are believed between these: an endpoint may count anything."""


class TokenCounter(Protocol):
    """Says how many tokens so many characters of a conversation are. One object for each rollout."""

    def tokens(self, characters: int) -> float:
        """The tokens of so many characters."""
        ...

    def learn(self, characters: int, tokens: float) -> None:
        """An endpoint counted the tokens of a prompt of so many characters."""
        ...


class EstimatedTokens:
    """Characters divided by 4 at first, then by what the endpoint's own count of the last prompt came to."""

    def __init__(self) -> None:
        self._per_character = 1 / CHARACTERS_PER_TOKEN

    def tokens(self, characters: int) -> float:
        """The estimate."""
        return characters * self._per_character

    def learn(self, characters: int, tokens: float) -> None:
        """Believes the endpoint, within reason."""
        if characters > 0 and LEARNED[0] <= tokens / characters <= LEARNED[1]:
            self._per_character = tokens / characters


class History(Protocol):
    """Which exchanges are shown again. keeps_prefix: each prompt begins with the one before."""

    @property
    def keeps_prefix(self) -> bool:
        """True when nothing is ever left out."""
        ...

    def first(self, opening: int, exchanges: Sequence[int], counter: TokenCounter) -> int:
        """The index of the oldest exchange that is shown; `opening` and `exchanges` are their characters."""
        ...


@dataclass(frozen=True, slots=True)
class FullHistory:
    """Everything, always."""

    keeps_prefix = True

    def first(self, opening: int, exchanges: Sequence[int], counter: TokenCounter) -> int:
        """0."""
        return 0


@dataclass(frozen=True, slots=True)
class LastTurns:
    """The last `turns` exchanges, at least 1."""

    turns: int
    keeps_prefix = False

    def first(self, opening: int, exchanges: Sequence[int], counter: TokenCounter) -> int:
        """All but the last `turns` are left out."""
        return max(0, len(exchanges) - self.turns)


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """As many of the last exchanges as `tokens` hold beside the opening and the tools; the last one in any case."""

    budget: int
    keeps_prefix = False

    def first(self, opening: int, exchanges: Sequence[int], counter: TokenCounter) -> int:
        """Counted from the newest backwards."""
        at, characters = len(exchanges), opening
        while at > 0:
            characters += exchanges[at - 1]
            if at < len(exchanges) and counter.tokens(characters) > self.budget:
                break
            at -= 1
        return at


def read_history(given: Json) -> History:
    """`policy.config.history`: "full" (also when absent), {"turns": N} or {"tokens": N}. Raises RequestError."""
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
    """About how many characters a message is in the model's prompt; a picture counts as a thousand tokens do."""
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
