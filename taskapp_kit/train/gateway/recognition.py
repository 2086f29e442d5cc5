"""Finds the recorded turn that a conversation continues, and builds the prompt with the token ids sampled in that turn.

A turn is recognized by the messages of its call and the returned message. They must be unchanged or, because some
clients strip text, equal without outer whitespace. Encoding the text again would change the token ids of 11 % of second
turns.

`Speakers` separates the policy's calls from calls for another model at the same address, such as a user simulator. Task
apps of this kit call other models at other addresses. If a task app uses the attempt's address for a user simulator,
the simulator's replies would be trained with the policy's reward, and the simulated user would learn to make the task
easy.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from taskapp_kit.train.gateway.call_reader import ChatPrompt, GatewayCall, TextPrompt
from taskapp_kit.train.rendering.messages import NormalMessage, normal_messages
from taskapp_kit.train.rendering.renderer import Renderer

Opening = bytes
"""A digest of a conversation's system message and tools."""


class SpokenTurn(NamedTuple):
    """Facts that show which model a turn belongs to: the model name in the call, and digests of its start and reply."""

    model: str | None
    opening: Opening
    answer: bytes


@dataclass(slots=True)
class Speakers:
    """The model calls of one attempt, by turn index. `policy` is the model name in the rollout's policy config."""

    policy: str
    _turns: list[SpokenTurn] = field(default_factory=list)
    """One tuple per turn, because another thread may read the list while a turn is added."""
    _heard: set[tuple[Opening, bytes]] = field(default_factory=set)

    def add(self, call: GatewayCall, answer: str) -> None:
        """Add a turn with the next index. `answer` is the returned text."""
        opening = _opening(call)
        self._turns.append(SpokenTurn(call.model, opening, _text_digest(answer)))
        self._heard.update((opening, _text_digest(text)) for text in _said(call))

    def auxiliary(self) -> frozenset[int]:
        """Return the turns whose calls name another model. If no call uses the policy's name, return no turns."""
        models = [turn.model for turn in self._turns]
        if self.policy not in models:
            return frozenset()
        return frozenset(at for at, model in enumerate(models) if model not in (None, self.policy))

    def suspected(self) -> int:
        """Return how many turns probably belong to another model, or 0 if the model names already show which turns do.

        Such a turn has a different system message or different tools than the first call, and its reply appears as a
        user message in a conversation that begins like the first call.
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
    """Return the user messages since the last reply. Earlier messages were new in an earlier call."""
    messages: list[str] = []
    for message in reversed(call.prompt.messages if isinstance(call.prompt, ChatPrompt) else ()):
        if message.get("role") == "assistant":
            break
        content = message.get("content")
        if message.get("role") == "user" and isinstance(content, str):
            messages.append(content)
    return messages


def _text_digest(text: str) -> bytes:
    return hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).digest()


EMPTY = _text_digest("")


@dataclass(frozen=True, slots=True)
class Prefix:
    """Two digests of a conversation up to some message: of the unchanged text, and of text without outer whitespace."""

    as_it_was: bytes
    stripped: bytes

    def then(self, message: NormalMessage) -> Prefix:
        """Return the prefix that also contains the next message."""
        same = message.text == message.text.strip() and self.stripped == self.as_it_was
        as_it_was = _digest(self.as_it_was, message, message.text)
        return Prefix(as_it_was, as_it_was if same else _digest(self.stripped, message, message.text.strip()))


@dataclass(frozen=True, slots=True)
class PromptIds:
    """The token ids of a prompt.

    Attributes:
        ids: The token ids.
        parent: The index of the turn that the prompt continues, or None if it continues no turn.
        stripped: Whether the parent was recognized only after removing outer whitespace.
        prefix: The digests of the conversation, for `Recognition.add`.
    """

    ids: tuple[int, ...]
    parent: int | None = None
    stripped: bool = False
    prefix: Prefix | None = None


@dataclass(slots=True)
class Recognition:
    """The conversations in one attempt so far."""

    renderer: Renderer
    _ids: list[tuple[int, ...]] = field(default_factory=list)
    _as_returned: dict[bytes, int] = field(default_factory=dict)
    _stripped: dict[bytes, int] = field(default_factory=dict)
    _texts: dict[str, int] = field(default_factory=dict)

    def prompt(self, prompt: ChatPrompt | TextPrompt) -> PromptIds:
        """Return the token ids of a prompt. Raises RequestError for messages that the renderer cannot render."""
        if isinstance(prompt, ChatPrompt):
            return self._of_messages(prompt)
        if isinstance(prompt.given, str):
            return self._of_text(prompt.given)
        fitting = [index for index, ids in enumerate(self._ids) if prompt.given[: len(ids)] == ids]
        return PromptIds(prompt.given, max(fitting, key=lambda index: len(self._ids[index]), default=None))

    def add(
        self,
        prompt: ChatPrompt | TextPrompt,
        found: PromptIds,
        sampled_ids: tuple[int, ...],
        returned: dict[str, Any] | str,
    ) -> None:
        """Add a turn with the next index.

        `found` is the result of `prompt`. `returned` is the message of a chat completion, or the text of a completion.
        """
        index = len(self._ids)
        self._ids.append(found.ids + sampled_ids)
        if isinstance(returned, dict) and found.prefix is not None:
            whole = found.prefix.then(*normal_messages([returned]))
            self._as_returned[whole.as_it_was] = index
            self._stripped[whole.stripped] = index
        elif isinstance(prompt, TextPrompt) and isinstance(prompt.given, str):
            # with the stop string, which the client did not receive but adds when it continues
            ended = bool(sampled_ids) and sampled_ids[-1] in self.renderer.stop_ids
            text = self.renderer.tokenizer.decode(sampled_ids[: len(sampled_ids) - ended])
            self._texts[f"{prompt.given}{text}"] = index

    def _of_messages(self, prompt: ChatPrompt) -> PromptIds:
        prefixes = _prefixes(prompt)
        whole = prefixes[-1]
        for length in range(len(prefixes), 0, -1) if self._ids else ():
            prefix = prefixes[length - 1]
            exact = self._as_returned.get(prefix.as_it_was)
            parent = self._stripped.get(prefix.stripped) if exact is None else exact
            if parent is not None:
                ids = self.renderer.extend(self._ids[parent], prompt.messages[length:], thinking=prompt.thinking)
                return PromptIds(ids, parent, stripped=exact is None, prefix=whole)
        return PromptIds(self.renderer.prompt(prompt.messages, prompt.tools, thinking=prompt.thinking), prefix=whole)

    def _of_text(self, given: str) -> PromptIds:
        before = max((text for text in self._texts if given.startswith(text)), key=len, default=None)
        encode = self.renderer.tokenizer.encode
        if before is None:
            return PromptIds(tuple(encode(given)))
        index = self._texts[before]
        return PromptIds((*self._ids[index], *encode(given[len(before) :])), index)


def _prefixes(prompt: ChatPrompt) -> list[Prefix]:
    """Return the prefixes up to each message. All prefixes depend on the tools, which precede the messages."""
    tools = hashlib.sha256(json.dumps(prompt.tools).encode()).digest()
    prefixes = itertools.accumulate(normal_messages(prompt.messages), Prefix.then, initial=Prefix(tools, tools))
    return list(prefixes)[1:]


def _digest(before: bytes, message: NormalMessage, text: str) -> bytes:
    calls = [[call.name, call.arguments] for call in message.calls]
    canonical = json.dumps([message.role, text, calls], sort_keys=True)
    return hashlib.sha256(before + canonical.encode()).digest()
