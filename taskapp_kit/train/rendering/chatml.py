"""ChatML, the chat format of Qwen, SmolLM2 and others: `<|im_start|>role`, a newline, the text, `<|im_end|>`, a newline.

As in Qwen's templates, the system message lists the tools, and `<tool_call>` blocks contain tool calls. SmolLM2's
template ignores tools, but this renderer also lists them for SmolLM2.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from taskapp_kit.train.rendering.messages import FunctionCall, NormalMessage, read_call, to_json
from taskapp_kit.train.rendering.renderer import CALLS, REASONING, LayoutToken, Part, Renderer, with_tokens

_START, _END = LayoutToken("<|im_start|>"), LayoutToken("<|im_end|>")
_CALL, _CALL_END = map(LayoutToken, CALLS)
_RESULT, _RESULT_END = LayoutToken("<tool_response>"), LayoutToken("</tool_response>")
_THINK, _THINK_END = REASONING

_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_HOW_TO_CALL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within ",
    _CALL,
    _CALL_END,
    " XML tags:\n",
    _CALL,
    '\n{"name": <function-name>, "arguments": <args-json-object>}\n',
    _CALL_END,
)
_CALLS = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class ChatMl(Renderer):
    """ChatML with Qwen's list of tools. Reasoning in earlier replies is only rendered if it was sampled."""

    family = "chatml"
    required = ("<|im_start|>", "<|im_end|>")
    closing = ("<|im_end|>",)
    stops = ("<|endoftext|>",)
    system_message = re.compile(r"<\|im_start\|>system\n(.*?)<\|im_end\|>", re.DOTALL)

    def _opening(self, messages: list[NormalMessage], tools: Sequence[Mapping[str, Any]]) -> list[Part]:
        own = messages[0].text if messages and messages[0].role == "system" else None
        system = self.default_system if own is None else own
        rest = messages if own is None else messages[1:]
        parts: list[Part] = []
        if tools:
            block = [f"\n{to_json(tool)}" for tool in tools]
            parts.append(_message("system", [f"{system}\n\n" if system else "", _TOOLS, *block, *_HOW_TO_CALL]))
        elif system or own is not None:
            parts.append(_message("system", [system]))
        return parts + self._messages(rest)

    def _messages(self, messages: list[NormalMessage]) -> list[Part]:
        parts: list[Part] = []
        for role, group in itertools.groupby(messages, key=lambda message: message.role):
            if role == "tool":  # one message contains the results of parallel calls
                parts.append(_message("user", _results(group)))
            elif role == "assistant":
                for message in group:
                    parts += [self._answer_follows(), [*self._answer(message), _END, "\n"]]
            else:
                parts += [_message(role, [message.text]) for message in group]
        return parts

    def _after_answer(self, ended: bool) -> Part:
        return ["\n"] if ended else [_END, "\n"]

    def _answer_follows(self) -> Part:
        return [_START, "assistant\n"]

    def _answer(self, message: NormalMessage, *, sampled: bool = False) -> Part:
        parts: list[str | LayoutToken] = [*(with_tokens(message.text) if sampled else [message.text])]
        for number, call in enumerate(message.calls):
            parts += ["\n" if message.text or number else "", _CALL]
            parts += [f'\n{{"name": {to_json(call.name)}, "arguments": {call.arguments_json()}}}\n', _CALL_END]
        return parts

    def _reasoning(self, text: str) -> Part:
        if self.tokenizer.token(_THINK) is None:
            return []
        return [LayoutToken(_THINK), f"\n{text}\n", LayoutToken(_THINK_END), "\n\n"]

    def _split_calls(self, text: str) -> tuple[str, list[FunctionCall]]:
        found = [read_call(block, "arguments") for block in _CALLS.findall(text)]
        calls = [call for call in found if call is not None]
        return (_CALLS.sub("", text).strip(), calls) if calls and len(calls) == len(found) else (text, [])

    def _split_reasoning(self, text: str) -> tuple[str | None, str]:
        if self.tokenizer.token(_THINK) is None or not (_THINK_END in text or text.lstrip().startswith(_THINK)):
            return None, text
        reasoning, _, rest = text.partition(_THINK_END)
        return reasoning.strip().removeprefix(_THINK).strip("\n"), rest.lstrip("\n")


def _message(role: str, pieces: Iterable[str | LayoutToken]) -> Part:
    return [_START, f"{role}\n", *pieces, _END, "\n"]


def _results(messages: Iterable[NormalMessage]) -> Iterable[str | LayoutToken]:
    for number, message in enumerate(messages):
        yield "\n" if number else ""
        yield _RESULT
        yield f"\n{message.text}\n"
        yield _RESULT_END
