"""The interface of a renderer, and what all families have in common.

A prompt is a list of pieces: texts, and tokens that the model's layout consists of. Texts are encoded with a vocabulary
that has no such tokens, so `<|im_end|>` in a message stays text.

    ids = renderer.prompt(messages, tools)                  # of the first call
    sampled = ...                                           # token ids, with the stop token if one was sampled
    answer = renderer.parse(sampled, tools)                 # the assistant's message
    ids = renderer.answer(message)                          # what would have to be sampled for a message
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
        """Encode text that contains no layout token, whatever it looks like."""
        ...

    def token(self, name: str) -> int | None:
        """Return the id of a layout token such as `<|im_end|>`, None if the vocabulary has none."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids, layout tokens as their names; incomplete UTF-8 becomes U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class LayoutToken:
    """A token of the layout; written as text where the vocabulary does not have it."""

    name: str


REASONING = ("<think>", "</think>")
"""The tokens around an answer's reasoning."""
CALLS = ("<tool_call>", "</tool_call>")
"""The tokens around a call in an answer."""

Part = Sequence[str | LayoutToken]
"""A message, or a piece of one. Its neighbouring texts are encoded together; two parts are encoded apart."""


class Renderer(ABC):
    """Renders conversations of one family of models.

    stop_ids: the tokens that end an answer. default_system: the system message that the model's own template adds where a
    conversation has none; empty for none. no_thinking: what the template writes at the start of an answer that is to have
    no reasoning (`enable_thinking` false), such as an empty block of it; empty for a model that does not know the switch.
    """

    family: str
    """Its name."""
    required: tuple[str, ...]
    """The tokens without which a vocabulary is not of this family."""
    closing: tuple[str, ...]
    """The tokens that end a message; the first is added where an answer was cut before one."""
    stops: tuple[str, ...]
    """Further tokens that end an answer."""
    system_message: re.Pattern[str]
    """Matches the start of a rendered conversation that begins with a system message; group 1 is its text."""

    def __init__(self, tokenizer: TextTokenizer, default_system: str = "", no_thinking: str = "") -> None:
        missing = [name for name in self.required if tokenizer.token(name) is None]
        if missing:
            raise ConfigError(
                f"The tokenizer has no token {', '.join(missing)}; the layout {self.family!r} consists of "
                f"{', '.join(self.required)}.",
                hint="Choose the layout of the model's own chat template.",
            )
        self.tokenizer = tokenizer
        self.default_system = default_system
        self._no_thinking: Part = with_tokens(no_thinking)
        self._closing_ids = _present(tokenizer, self.closing)
        self.stop_ids = self._closing_ids | _present(tokenizer, self.stops)

    @classmethod
    def system_in(cls, rendered: str) -> str:
        """Return the system message that a rendered conversation begins with, "" for none."""
        found = cls.system_message.match(rendered)
        return found[1] if found else ""

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: bool = True,
    ) -> tuple[int, ...]:
        """Return the ids of a conversation, up to where the model answers.

        messages, tools: as in a chat-completions request. thinking: False where the answer is to have no reasoning. Raises
        RequestError for messages that cannot be rendered.
        """
        return self._encode([*self._opening(normal_messages(messages), tools), *self._answer_begins(thinking)])

    def extend(
        self, ids: Sequence[int], messages: Sequence[Mapping[str, Any]], *, thinking: bool = True
    ) -> tuple[int, ...]:
        """Return `ids` and the new messages after them, up to where the model answers.

        ids: a prompt and what was sampled after it. What the layout puts between is added: the token that ends a message,
        if the answer was cut before it, and a newline. Raises RequestError as `prompt`.
        """
        ended = bool(ids) and ids[-1] in self._closing_ids
        return (
            *ids,
            *self._encode(
                [self._after_answer(ended), *self._messages(normal_messages(messages)), *self._answer_begins(thinking)]
            ),
        )

    def answer(self, message: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the ids that a policy samples to answer with this assistant's message, with the token that ends it.

        `reasoning_content` comes first where the vocabulary has the tokens around reasoning; else it is left out. Tokens of
        reasoning and of calls that are written in the content are tokens, too. Raises RequestError as `prompt`.
        """
        (normal,) = normal_messages([message])
        reasoning = reasoning_of(message)
        thoughts = self._reasoning(reasoning) if reasoning else []
        return self._encode([[*thoughts, *self._answer(normal, sampled=True), LayoutToken(self.closing[0])]])

    def not_as_tokens(self, message: Mapping[str, Any]) -> list[str]:
        """Return one phrase for each thing in an assistant's message that `answer` does not write as tokens of this model."""
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
        """Return the assistant's message that was sampled: `role`, `content`, and where there are any `tool_calls`.

        tools: those of the prompt; without any, nothing is a call. call_prefix: the calls' ids are `call_0`, `call_1`, …;
        the calls of one conversation need different ids. Reasoning (`<think>`) becomes `reasoning_content`.
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
        """Where an answer is sampled: its header, and what the policy is not to sample itself."""
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
        """A whole conversation: what the layout puts first, the tools, the messages."""

    @abstractmethod
    def _messages(self, messages: list[NormalMessage]) -> list[Part]:
        """Messages that follow others."""

    @abstractmethod
    def _after_answer(self, ended: bool) -> Part:
        """What stands between an answer and the next message. ended: whether the answer's last token closes it."""

    @abstractmethod
    def _answer_follows(self) -> Part:
        """What stands before an answer."""

    @abstractmethod
    def _answer(self, message: NormalMessage, *, sampled: bool = False) -> Part:
        """An assistant's message without its header and the token that ends it. sampled: as the policy samples it."""

    @abstractmethod
    def _split_calls(self, text: str) -> tuple[str, list[FunctionCall]]:
        """An answer's content and the calls in it. Where a call cannot be read, the whole text is content."""

    def _reasoning(self, text: str) -> Part:
        """An answer's reasoning before its content; [] where the layout has none."""
        return []

    def _split_reasoning(self, text: str) -> tuple[str | None, str]:
        """An answer's reasoning, None if it has none, and the rest."""
        return None, text


def with_tokens(text: str) -> Part:
    """Return a sampled text, with the tokens of reasoning and of calls in it as tokens."""
    return [
        LayoutToken(piece) if piece in REASONING + CALLS else piece
        for piece in re.split(f"({'|'.join(REASONING + CALLS)})", text)
        if piece
    ]


def _present(tokenizer: TextTokenizer, names: Iterable[str]) -> frozenset[int]:
    return frozenset(token for name in names if (token := tokenizer.token(name)) is not None)
