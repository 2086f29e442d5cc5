"""The interface of renderers, and the code that all renderers share.

A prompt is a list of strings and layout tokens, which are the special tokens of a chat format. Strings are encoded with
a vocabulary without layout tokens, so `<|im_end|>` in a message remains text.

    ids = renderer.prompt(messages, tools)                  # the prompt of the first call
    sampled = ...                                           # token ids, including the stop token if it was sampled
    answer = renderer.parse(sampled, tools)                 # the assistant's message
    ids = renderer.answer(message)                          # the tokens that a policy would sample for a message
    ids = renderer.extend(ids + sampled, new_messages)      # the prompt of the next call, starting with ids + sampled
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from taskapp_kit.errors import ConfigError
from taskapp_kit.train.rendering.messages import FunctionCall, NormalMessage, normal_messages, reasoning_of
from taskapp_kit.wire.chat.dialect_body import chat_call


class TextTokenizer(Protocol):
    """A model's tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Encode text, treating names of layout tokens as ordinary text."""
        ...

    def token(self, name: str) -> int | None:
        """Return the id of a layout token such as `<|im_end|>`, or None if the vocabulary does not contain it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids, with the names of layout tokens. Incomplete UTF-8 becomes U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class LayoutToken:
    """A layout token. If the vocabulary does not contain it, it is written as text."""

    name: str


REASONING = ("<think>", "</think>")
"""The tokens around the reasoning in a reply."""
CALLS = ("<tool_call>", "</tool_call>")
"""The tokens around a call in a reply."""

Part = Sequence[str | LayoutToken]
"""A message or a piece of a message. Adjacent strings in a part are encoded together. Parts are encoded separately."""


class Renderer(ABC):
    """Renders conversations of one family of models. `stop_ids` are the tokens that end a reply.

    Args:
        tokenizer: The model's tokenizer.
        default_system: The system message that the model's template adds to a conversation without a system message, or
            "".
        no_thinking: The template's text at the start of a reply without reasoning (`enable_thinking` false), such as an
            empty block of reasoning. "" means that the model does not support this option.
    """

    family: str
    """The family's name."""
    required: tuple[str, ...]
    """The tokens that a vocabulary of this family must contain."""
    closing: tuple[str, ...]
    """The tokens that end a message. The first token is added to a reply that was cut."""
    stops: tuple[str, ...]
    """Additional tokens that end a reply."""
    system_message: re.Pattern[str]
    """Matches a system message at the start of a rendered conversation. Group 1 is the message's text."""

    def __init__(self, tokenizer: TextTokenizer, default_system: str = "", no_thinking: str = "") -> None:
        missing = [name for name in self.required if tokenizer.token(name) is None]
        if missing:
            raise ConfigError(
                f"The tokenizer has no token {', '.join(missing)}. The chat format {self.family!r} requires "
                f"{', '.join(self.required)}.",
                hint="Choose the chat format of the model's chat template.",
            )
        self.tokenizer = tokenizer
        self.default_system = default_system
        self._no_thinking: Part = with_tokens(no_thinking)
        self._closing_ids = _present(tokenizer, self.closing)
        self.stop_ids = self._closing_ids | _present(tokenizer, self.stops)

    @classmethod
    def system_in(cls, rendered: str) -> str:
        """Return the system message at the start of a rendered conversation, or ""."""
        found = cls.system_message.match(rendered)
        return found[1] if found else ""

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: bool = True,
    ) -> tuple[int, ...]:
        """Return the ids of a conversation up to the model's next reply.

        `messages` and `tools` have the format of a chat-completions request. If `thinking` is False, the reply has no
        reasoning. Raises RequestError if the conversation cannot be rendered.
        """
        return self._encode([*self._opening(normal_messages(messages), tools), *self._answer_begins(thinking)])

    def extend(
        self, ids: Sequence[int], messages: Sequence[Mapping[str, Any]], *, thinking: bool = True
    ) -> tuple[int, ...]:
        """Return `ids`, followed by the new messages up to the model's next reply. Raises RequestError as `prompt` does.

        `ids` are a prompt and the tokens sampled after it. Layout tokens between `ids` and the messages are added, such
        as the end of a reply that was cut.
        """
        ended = bool(ids) and ids[-1] in self._closing_ids
        return (
            *ids,
            *self._encode(
                [self._after_answer(ended), *self._messages(normal_messages(messages)), *self._answer_begins(thinking)]
            ),
        )

    def answer(self, message: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the ids that a policy would sample for this assistant message, including the stop token.

        `reasoning_content` comes first. It is omitted if the vocabulary has no tokens for reasoning. Markers of
        reasoning and tool calls in the content, such as `<think>`, are encoded as layout tokens. Raises RequestError as
        `prompt` does.
        """
        (normal,) = normal_messages([message])
        reasoning = reasoning_of(message)
        thoughts = self._reasoning(reasoning) if reasoning else []
        return self._encode([[*thoughts, *self._answer(normal, sampled=True), LayoutToken(self.closing[0])]])

    def not_as_tokens(self, message: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each part of an assistant's message that `answer` cannot encode as tokens of this model."""
        text = normal_messages([message])[0].text
        layout = [*self.required, *self.closing, *self.stops]
        layout += [name for name in (*REASONING, *CALLS) if self.tokenizer.token(name) is None]
        lost = bool(reasoning_of(message)) and not self._reasoning("x")
        return [
            *(["whose reasoning is left out, because the model has no tokens around it"] if lost else []),
            *(f"with {name}, learned as text and not as a token" for name in dict.fromkeys(layout) if name in text),
        ]

    def parse(
        self, token_ids: Sequence[int], tools: Sequence[Mapping[str, Any]] = (), *, call_prefix: str = "call"
    ) -> dict[str, Any]:
        """Return the sampled assistant message: `role`, `content`, and `tool_calls` and `reasoning_content` if sampled.

        `tools` are the tools of the prompt. If `tools` is empty, no text is parsed as a tool call. The id of each tool
        call starts with `call_prefix`, which must be unique in a conversation.
        """
        stopped = bool(token_ids) and token_ids[-1] in self.stop_ids
        reasoning, text = self._split_reasoning(self.tokenizer.decode(token_ids[: len(token_ids) - stopped]))
        content, calls = self._split_calls(text) if tools else (text, [])
        message: dict[str, Any] = {"role": "assistant", "content": content or None if calls else content}
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                chat_call(f"{call_prefix}_{number}", call.name, call.arguments_json())
                for number, call in enumerate(calls)
            ]
        return message

    def _answer_begins(self, thinking: bool) -> list[Part]:
        """Return the start of a reply: the header and, if `thinking` is False, the text for a reply without reasoning."""
        return [self._answer_follows(), *([] if thinking or not self._no_thinking else [self._no_thinking])]

    def _encode(self, parts: Iterable[Part]) -> tuple[int, ...]:
        ids: list[int] = []
        for part in parts:
            text = ""
            for piece in part:
                token = None if isinstance(piece, str) else self.tokenizer.token(piece.name)
                if token is None:
                    text += piece if isinstance(piece, str) else piece.name
                else:
                    ids += [*self.tokenizer.encode(text), token]
                    text = ""
            ids += self.tokenizer.encode(text)
        return tuple(ids)

    @abstractmethod
    def _opening(self, messages: list[NormalMessage], tools: Sequence[Mapping[str, Any]]) -> list[Part]:
        """Return a conversation from its beginning, with the tools and the messages."""

    @abstractmethod
    def _messages(self, messages: list[NormalMessage]) -> list[Part]:
        """Return messages that follow earlier messages."""

    @abstractmethod
    def _after_answer(self, ended: bool) -> Part:
        """Return the tokens between a reply and the next message. `ended` is whether the reply's last token closes it."""

    @abstractmethod
    def _answer_follows(self) -> Part:
        """Return the header of a reply."""

    @abstractmethod
    def _answer(self, message: NormalMessage, *, sampled: bool = False) -> Part:
        """Return an assistant message without header and end token. If `sampled` is true, format it as a policy samples it."""

    @abstractmethod
    def _split_calls(self, text: str) -> tuple[str, list[FunctionCall]]:
        """Return the content and the tool calls of a reply. If a tool call cannot be parsed, the whole text is content."""

    def _reasoning(self, text: str) -> Part:
        """Return the reasoning that precedes the content of a reply, or [] if the chat format has no reasoning."""
        return []

    def _split_reasoning(self, text: str) -> tuple[str | None, str]:
        """Return the reasoning of a reply (None if it has none) and the rest of the text."""
        return None, text


def with_tokens(text: str) -> Part:
    """Split a sampled string into text and markers of reasoning and tool calls, which become layout tokens."""
    return [
        LayoutToken(piece) if piece in REASONING + CALLS else piece
        for piece in re.split(f"({'|'.join(REASONING + CALLS)})", text)
        if piece
    ]


def _present(tokenizer: TextTokenizer, names: Iterable[str]) -> frozenset[int]:
    return frozenset(token for name in names if (token := tokenizer.token(name)) is not None)
