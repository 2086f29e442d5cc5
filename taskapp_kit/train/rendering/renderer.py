"""The interface and the common part of renderers.

A prompt is a list of pieces: strings, and tokens of the model's layout. Strings are encoded with a vocabulary without layout
tokens, so `<|im_end|>` in a message remains text.

    ids = renderer.prompt(messages, tools)                  # of the first call
    sampled = ...                                           # token ids, including the stop token if one was sampled
    answer = renderer.parse(sampled, tools)                 # the assistant's message
    ids = renderer.answer(message)                          # the tokens that a policy would sample for a message
    ids = renderer.extend(ids + sampled, new_messages)      # of the next call: begins with ids + sampled
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
        """Return the id of a layout token such as `<|im_end|>`, None if the vocabulary does not have it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids, with the names of layout tokens. Incomplete UTF-8 becomes U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class LayoutToken:
    """A token of the layout. It is written as text if the vocabulary does not have it."""

    name: str


REASONING = ("<think>", "</think>")
"""The tokens around an answer's reasoning."""
CALLS = ("<tool_call>", "</tool_call>")
"""The tokens around a call in an answer."""

Part = Sequence[str | LayoutToken]
"""A message, or a piece of a message. Adjacent strings of a part are encoded together, different parts separately."""


class Renderer(ABC):
    """Renders conversations of one family of models. `stop_ids` are the tokens that end an answer.

    default_system: the system message that the model's template adds to a conversation without one, "" for none.
    no_thinking: the template's text at the start of an answer without reasoning (`enable_thinking` false), such as an empty
    block of reasoning; "" if the model does not support this option.
    """

    family: str
    """The family's name."""
    required: tuple[str, ...]
    """The tokens that a vocabulary of this family must have."""
    closing: tuple[str, ...]
    """The tokens that end a message. The first one is added to an answer that was cut."""
    stops: tuple[str, ...]
    """Additional tokens that end an answer."""
    system_message: re.Pattern[str]
    """Matches a system message at the start of a rendered conversation. Group 1 is its text."""

    def __init__(self, tokenizer: TextTokenizer, default_system: str = "", no_thinking: str = "") -> None:
        missing = [name for name in self.required if tokenizer.token(name) is None]
        if missing:
            raise ConfigError(
                f"The tokenizer has no token {', '.join(missing)}; the layout {self.family!r} needs "
                f"{', '.join(self.required)}.",
                hint="Choose the layout of the model's chat template.",
            )
        self.tokenizer = tokenizer
        self.default_system = default_system
        self._no_thinking: Part = with_tokens(no_thinking)
        self._closing_ids = _present(tokenizer, self.closing)
        self.stop_ids = self._closing_ids | _present(tokenizer, self.stops)

    @classmethod
    def system_in(cls, rendered: str) -> str:
        """Return the system message at the start of a rendered conversation, "" without one."""
        found = cls.system_message.match(rendered)
        return found[1] if found else ""

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: bool = True,
    ) -> tuple[int, ...]:
        """Return the ids of a conversation up to the model's answer. Raises RequestError if it cannot be rendered.

        messages, tools: as in a chat-completions request. thinking: False for an answer without reasoning.
        """
        return self._encode([*self._opening(normal_messages(messages), tools), *self._answer_begins(thinking)])

    def extend(
        self, ids: Sequence[int], messages: Sequence[Mapping[str, Any]], *, thinking: bool = True
    ) -> tuple[int, ...]:
        """Return `ids` and the new messages up to the model's answer. Raises RequestError as `prompt`.

        ids: a prompt and the tokens sampled after it. The layout's tokens between them and the messages are added, such as
        the end of a cut answer.
        """
        ended = bool(ids) and ids[-1] in self._closing_ids
        return (
            *ids,
            *self._encode(
                [self._after_answer(ended), *self._messages(normal_messages(messages)), *self._answer_begins(thinking)]
            ),
        )

    def answer(self, message: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the ids that a policy samples for this assistant's message, including the stop token.

        `reasoning_content` comes first, or is left out if the vocabulary has no tokens for reasoning. Marks of reasoning and
        calls in the content are also encoded as tokens. Raises RequestError as `prompt`.
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
        """Return the sampled assistant message, with `role`, `content`, and, if any, `tool_calls` and `reasoning_content`.

        tools: the tools of the prompt; without any, nothing is parsed as a call. call_prefix: the prefix of the calls' ids,
        which must be unique in a conversation.
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
        """Return the start of an answer: its header, and the text for an answer without reasoning."""
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
        """Return a whole conversation: the layout's start, the tools, the messages."""

    @abstractmethod
    def _messages(self, messages: list[NormalMessage]) -> list[Part]:
        """Return messages that follow others."""

    @abstractmethod
    def _after_answer(self, ended: bool) -> Part:
        """Return the tokens between an answer and the next message. ended: whether the answer's last token closes it."""

    @abstractmethod
    def _answer_follows(self) -> Part:
        """Return the header of an answer."""

    @abstractmethod
    def _answer(self, message: NormalMessage, *, sampled: bool = False) -> Part:
        """Return an assistant's message without header and end token. sampled: in the form that the policy samples."""

    @abstractmethod
    def _split_calls(self, text: str) -> tuple[str, list[FunctionCall]]:
        """Return an answer's content and calls. If a call cannot be read, the whole text is content."""

    def _reasoning(self, text: str) -> Part:
        """Return an answer's reasoning as it precedes the content, [] if the layout has none."""
        return []

    def _split_reasoning(self, text: str) -> tuple[str | None, str]:
        """Return an answer's reasoning, None without any, and the rest."""
        return None, text


def with_tokens(text: str) -> Part:
    """Return a sampled string with its marks of reasoning and calls as tokens."""
    return [
        LayoutToken(piece) if piece in REASONING + CALLS else piece
        for piece in re.split(f"({'|'.join(REASONING + CALLS)})", text)
        if piece
    ]


def _present(tokenizer: TextTokenizer, names: Iterable[str]) -> frozenset[int]:
    return frozenset(token for name in names if (token := tokenizer.token(name)) is not None)
