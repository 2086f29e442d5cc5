"""Finds the recorded turn that a conversation continues, and the prompt's token ids: those sampled then, not encoded anew.

A turn is recognised by the messages of its call and the message that was returned: as they were, or, for clients that strip
them, by their texts without outer blanks. Encoding a text again is no substitute: 11 % of second turns would have other ids
than those that were sampled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from taskapp_kit.train.gateway.call_reader import ChatPrompt, TextPrompt
from taskapp_kit.train.rendering.messages import NormalMessage, normal_messages
from taskapp_kit.train.rendering.renderer import Renderer


@dataclass(frozen=True, slots=True)
class PromptIds:
    """A prompt as the sampler gets it.

    parent: the index of the turn that it continues. stripped: that turn was recognised without outer blanks only.
    """

    ids: tuple[int, ...]
    parent: int | None = None
    stripped: bool = False


@dataclass(slots=True)
class Recognition:
    """The conversations of one attempt so far."""

    renderer: Renderer
    _ids: list[tuple[int, ...]] = field(default_factory=list)
    _as_returned: dict[bytes, int] = field(default_factory=dict)
    _stripped: dict[bytes, int] = field(default_factory=dict)
    _texts: dict[str, int] = field(default_factory=dict)

    def prompt(self, prompt: ChatPrompt | TextPrompt) -> PromptIds:
        """Return the ids of a prompt. Raises RequestError for messages that the renderer cannot render."""
        if isinstance(prompt, ChatPrompt):
            return self._of_messages(prompt)
        if isinstance(prompt.given, str):
            return self._of_text(prompt.given)
        fitting = [index for index, ids in enumerate(self._ids) if prompt.given[: len(ids)] == ids]
        return PromptIds(prompt.given, max(fitting, key=lambda index: len(self._ids[index]), default=None))

    def add(
        self,
        prompt: ChatPrompt | TextPrompt,
        prompt_ids: tuple[int, ...],
        sampled_ids: tuple[int, ...],
        returned: dict[str, Any] | str,
    ) -> None:
        """Remember a turn; it has the next index. returned: the message of a chat completion."""
        index = len(self._ids)
        self._ids.append(prompt_ids + sampled_ids)
        if isinstance(returned, dict) and isinstance(prompt, ChatPrompt):
            messages = normal_messages([*prompt.messages, returned])
            self._as_returned[_chain(prompt.tools, messages)[-1]] = index
            self._stripped[_chain(prompt.tools, map(_without_blanks, messages))[-1]] = index
        elif isinstance(prompt, TextPrompt) and isinstance(prompt.given, str):
            # with the stop text, which the client was not sent but writes again if it goes on
            ended = bool(sampled_ids) and sampled_ids[-1] in self.renderer.stop_ids
            text = self.renderer.tokenizer.decode(sampled_ids[: len(sampled_ids) - ended])
            self._texts[f"{prompt.given}{text}"] = index

    def _of_messages(self, prompt: ChatPrompt) -> PromptIds:
        messages = normal_messages(prompt.messages)
        if self._ids:
            as_returned = _chain(prompt.tools, messages)
            stripped = _chain(prompt.tools, map(_without_blanks, messages))
            for length in range(len(messages), 0, -1):
                for known, digests in ((self._as_returned, as_returned), (self._stripped, stripped)):
                    parent = known.get(digests[length - 1])
                    if parent is not None:
                        ids = self.renderer.extend(self._ids[parent], prompt.messages[length:])
                        return PromptIds(ids, parent, stripped=known is self._stripped)
        return PromptIds(self.renderer.prompt(prompt.messages, prompt.tools))

    def _of_text(self, given: str) -> PromptIds:
        known = max((text for text in self._texts if given.startswith(text)), key=len, default=None)
        encode = self.renderer.tokenizer.encode
        if known is None:
            return PromptIds(tuple(encode(given)))
        index = self._texts[known]
        return PromptIds((*self._ids[index], *encode(given[len(known) :])), index)


def _chain(tools: Sequence[dict[str, Any]], messages: Iterable[NormalMessage]) -> list[bytes]:
    """A digest for each message, of the tools and all messages up to it."""
    digest = hashlib.sha256(json.dumps(tools).encode()).digest()
    found = []
    for message in messages:
        calls = [[call.name, call.arguments] for call in message.calls]
        canonical = json.dumps([message.role, message.text, calls], sort_keys=True)
        digest = hashlib.sha256(digest + canonical.encode()).digest()
        found.append(digest)
    return found


def _without_blanks(message: NormalMessage) -> NormalMessage:
    return replace(message, text=message.text.strip())
