"""Tells the policy's calls from those of another model at the same address, such as a user simulator.

A task app calls auxiliary models at addresses of their own. Where one of a foreign task app is called at the attempt's, its
answers would be trained on with the policy's reward: the simulated user would learn to make the task easy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from taskapp_kit.train.gateway.call_reader import ChatPrompt, GatewayCall

Opening = bytes
"""A digest of the system message and the tools with which a conversation begins."""


class SpokenTurn(NamedTuple):
    """What tells who spoke. model: that the call named. answer: its digest."""

    model: str | None
    opening: Opening
    answer: bytes


@dataclass(slots=True)
class Speakers:
    """The calls of one attempt, by index of their turns. policy: the model's name that the policy's client was given."""

    policy: str
    _turns: list[SpokenTurn] = field(default_factory=list)
    """Each turn whole: another thread may read them while one is added."""
    _heard: set[tuple[Opening, bytes]] = field(default_factory=set)

    def add(self, call: GatewayCall, answer: str) -> None:
        """Note a turn; it has the next index. answer: the text that was returned."""
        opening = _opening(call)
        self._turns.append(SpokenTurn(call.model, opening, _digest(answer)))
        self._heard.update((opening, _digest(text)) for text in _said(call))

    def auxiliary(self) -> frozenset[int]:
        """Return the turns whose calls name another model, where those of the policy name the one that they were given."""
        models = [turn.model for turn in self._turns]
        if self.policy not in models:
            return frozenset()
        return frozenset(at for at, model in enumerate(models) if model not in (None, self.policy))

    def suspected(self) -> int:
        """Return the number of turns that are probably not the policy's, where names do not tell them apart.

        They begin with another system message or other tools than the first call, and their answer is what a user says in
        a conversation that begins as the first call does.
        """
        if not self._turns or self.auxiliary():
            return 0
        first = self._turns[0].opening
        return sum(
            turn.opening != first and turn.answer != EMPTY and (first, turn.answer) in self._heard
            for turn in self._turns
        )


def _opening(call: GatewayCall) -> Opening:
    if not isinstance(call.prompt, ChatPrompt):
        return b""
    first = call.prompt.messages[0]
    system = first.get("content") if first.get("role") in ("system", "developer") else None
    return hashlib.sha256(orjson.dumps([system, call.prompt.tools])).digest()


def _said(call: GatewayCall) -> Sequence[str]:
    """The texts of the user since the last answer: earlier ones were new in an earlier call."""
    texts: list[str] = []
    for message in reversed(call.prompt.messages if isinstance(call.prompt, ChatPrompt) else ()):
        if message.get("role") == "assistant":
            break
        content = message.get("content")
        if message.get("role") == "user" and isinstance(content, str):
            texts.append(content)
    return texts


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).digest()


EMPTY = _digest("")
