"""The chat format of Llama 3 and 3.1: `<|start_header_id|>role<|end_header_id|>`, two newlines, the text, `<|eot_id|>`.

The list of tools precedes the first user message. A tool call is a reply that consists of one JSON object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from taskapp_kit.train.rendering.messages import FunctionCall, NormalMessage, read_call, to_json
from taskapp_kit.train.rendering.renderer import LayoutToken, Part, Renderer, with_tokens

_BEGIN, _END = LayoutToken("<|begin_of_text|>"), LayoutToken("<|eot_id|>")
_HEADER, _HEADER_END = LayoutToken("<|start_header_id|>"), LayoutToken("<|end_header_id|>")
_PYTHON = "<|python_tag|>"

_TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    'answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of argument name '
    "and its value}.Do not use variables.\n\n"
)


class Llama3(Renderer):
    """The renderer for Llama 3. Llama 3.1 adds `default_system` (`Cutting Knowledge Date: …`) before each system message."""

    family = "llama3"
    required = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    closing = ("<|eot_id|>", "<|eom_id|>")
    stops = ("<|end_of_text|>",)
    system_message = re.compile(
        r"<\|begin_of_text\|><\|start_header_id\|>system<\|end_header_id\|>\n\n(.*?)<\|eot_id\|>", re.DOTALL
    )

    def _opening(self, messages: list[NormalMessage], tools: Sequence[Mapping[str, Any]]) -> list[Part]:
        has_system = bool(messages) and messages[0].role == "system"
        system = messages[0].text.strip() if has_system else ""
        rest = messages[1:] if has_system else messages
        environment = "Environment: ipython\n" if tools else ""
        parts: list[Part] = [[_BEGIN]]
        if has_system or environment or self.default_system:
            parts.append(_message("system", f"{environment}{self.default_system}{system}"))
        if tools:
            user_first = rest and rest[0].role == "user"
            first = rest[0].text.strip() if user_first else ""
            parts.append(_message("user", "".join([_TOOLS, *(f"{to_json(tool, 4)}\n\n" for tool in tools), first])))
            rest = rest[1:] if user_first else rest
        return parts + self._messages(rest)

    def _messages(self, messages: list[NormalMessage]) -> list[Part]:
        parts: list[Part] = []
        for message in messages:
            if message.role == "assistant":
                parts += [self._answer_follows(), [*self._answer(message), _END]]
            elif message.role == "tool":
                parts.append(_message("ipython", to_json(message.text)))
            else:
                parts.append(_message(message.role, message.text.strip()))
        return parts

    def _after_answer(self, ended: bool) -> Part:
        return [] if ended else [_END]

    def _answer_follows(self) -> Part:
        return [_HEADER, "assistant", _HEADER_END, "\n\n"]

    def _answer(self, message: NormalMessage, *, sampled: bool = False) -> Part:
        text = message.text.strip()
        calls = [f'{{"name": {to_json(call.name)}, "parameters": {call.arguments_json()}}}' for call in message.calls]
        return [*(with_tokens(text) if sampled else [text]), "; ".join(["", *calls] if text else calls)]

    def _split_calls(self, text: str) -> tuple[str, list[FunctionCall]]:
        call = read_call(text.strip().removeprefix(_PYTHON), "parameters")
        return (text, []) if call is None else ("", [call])


def _message(role: str, text: str) -> Part:
    return [_HEADER, role, _HEADER_END, f"\n\n{text}", _END]
