"""Selects the renderer for a model's vocabulary, and compares the renderer with the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from taskapp_kit.errors import ConfigError
from taskapp_kit.train.rendering.chatml import ChatMl
from taskapp_kit.train.rendering.llama3 import Llama3
from taskapp_kit.train.rendering.messages import to_json
from taskapp_kit.train.rendering.renderer import Renderer, TextTokenizer

FAMILIES: tuple[type[Renderer], ...] = (ChatMl, Llama3)

_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}
_SYSTEM = {"role": "system", "content": "Be brief."}
_USER = {"role": "user", "content": "Hello."}
_ANSWER = {"role": "assistant", "content": "Yes."}
_CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"far": True}}}],
}
_RESULT = {"role": "tool", "content": "a tree"}
PROBES: Mapping[str, tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]] = {
    "one message": ([_USER], []),
    "a system message": ([_SYSTEM, _USER], []),
    "several turns": ([_USER, _ANSWER, _USER, _ANSWER, _USER], []),
    "tools": ([_SYSTEM, _USER], [_TOOL]),
    "tool calls": ([_SYSTEM, _USER, _CALLING, _RESULT], [_TOOL]),
}
"""Conversations with tools that are used to compare a renderer with a template."""


def renderer_for(tokenizer: TextTokenizer, template: str | None = None) -> Renderer:
    """Return the renderer whose chat format the tokenizer supports.

    If the model's chat template is given, the renderer uses the template's default system message and its text for
    replies without reasoning. Raises ConfigError if the tokenizer supports no format, or if the template cannot be
    rendered.
    """
    for family in FAMILIES:
        if all(tokenizer.token(name) is not None for name in family.required):
            if not template:
                return family(tokenizer)
            thinking, without = (_rendered(template, [_USER], [], thinking=each) for each in (True, False))
            no_thinking = without.removeprefix(thinking) if without.startswith(thinking) else ""
            return family(tokenizer, family.system_in(thinking), no_thinking)
    families = [f"{family.family} ({', '.join(family.required)})" for family in FAMILIES]
    raise ConfigError(
        f"The tokenizer's vocabulary lacks the tokens of every supported chat format: {', '.join(families)}.",
        hint="Choose a model that uses one of these chat formats.",
    )


def differences(renderer: Renderer, template: str) -> list[str]:
    """Return the names of the PROBES that the model's template renders differently, or not at all.

    If a policy is served with a different chat format than it was trained with, part of its improvement is lost.
    """
    return [name for name, (messages, tools) in PROBES.items() if not _agree(renderer, template, messages, tools)]


def _agree(
    renderer: Renderer, template: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> bool:
    try:
        theirs = _rendered(template, messages, tools)
    except ConfigError:
        return False
    return renderer.tokenizer.decode(renderer.prompt(messages, tools)) == theirs


def _rendered(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    thinking: bool = True,
) -> str:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(template).render(
            {
                "messages": messages,
                "tools": tools or None,
                "add_generation_prompt": True,
                **({} if thinking else {"enable_thinking": False}),
                "bos_token": Llama3.required[0],
            }
        )
    except Exception as error:  # the code in a template may raise any exception
        raise ConfigError(f"The model's chat template cannot be rendered: {error}.") from None


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
