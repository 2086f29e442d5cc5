"""Builds the system prompt and the list of tools for a model.

The system prompt is the environment's (`environment(prompt=)`), else the app's (`TaskApp(system_prompt=)`), else made from
the docstrings and limits. In the modes `text` and `structured` it also lists the actions and says how to write one. It
contains nothing of a task's row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.records.content import Content, Image, Json, images, text_of
from taskapp_kit.records.protocols import Tool
from taskapp_kit.rollout.policy.example_arguments import example_call, example_text
from taskapp_kit.rollout.policy.options import OutputMode
from taskapp_kit.wire.chat.dialect_body import chat_tool


def only_words(tools: Sequence[Tool]) -> bool:
    """True when plain text is the only action: then the rollout is a plain chat, in every mode without a schema."""
    return len(tools) == 1 and tools[0].text


def system_prompt(app: AppSpec, environment: EnvironmentSpec, mode: OutputMode, tools: Sequence[Tool]) -> str:
    """The system prompt of an episode with these tools; see the module's docstring."""
    declared = environment.system_prompt or app.system_prompt
    words = next((tool for tool in tools if tool.text), None)
    parts: list[str]
    if declared is not None:
        parts = [declared]
    else:
        parts = [environment.description, *_rules(mode, tools, words), *_limits(environment, tools)]
    if mode == "text" and not only_words(tools):
        parts += [_catalogue(tools), _text_form(tools, words)]
    elif mode == "structured" and not only_words(tools):
        parts += [_catalogue(tools), _structured_form(tools)]
    return "\n\n".join(part.strip() for part in parts if part.strip())


def tool_schemas(tools: Sequence[Tool]) -> list[dict[str, Json]]:
    """The actions as `tools` of a request, except one that takes plain text."""
    return [
        chat_tool(tool.name, {"type": "object", "properties": {}, **_plain(tool.parameters)}, tool.description)
        for tool in tools
        if not tool.text
    ]


def _rules(mode: OutputMode, tools: Sequence[Tool], words: Tool | None) -> list[str]:
    if only_words(tools):
        return [tools[0].description]
    if mode != "tool_calls":
        return []
    text = "Act by calling the tools. Several calls in one answer are done in the order in which they stand."
    if words is not None:
        text += f" An answer in plain words, without a call, is an action too: {words.description}"
    return [text]


def _limits(environment: EnvironmentSpec, tools: Sequence[Tool]) -> list[str]:
    limits = []
    if only_words(tools) and environment.max_steps is None and environment.max_turns is None:
        return []
    if environment.max_steps is not None:
        limits.append(f"after {environment.max_steps} {'action' if environment.max_steps == 1 else 'actions'}")
    if environment.max_turns is not None:
        limits.append(f"after {environment.max_turns} of your answers")
    return [f"The episode ends at the latest {' or '.join(limits)}."] if limits else []


def _catalogue(tools: Sequence[Tool]) -> str:
    """A list of the actions with their descriptions and the schemas of their arguments."""
    lines = ["The actions are:"]
    for tool in tools:
        description = " ".join(tool.description.split())
        schema = orjson.dumps(_plain(tool.parameters)).decode()
        takes = "takes no arguments" if not tool.parameters.get("properties") else f"arguments: {schema}"
        lines.append(f"- {tool.name}: {description}\n  {takes}")
    return "\n".join(lines)


def _text_form(tools: Sequence[Tool], words: Tool | None) -> str:
    shown = next((tool for tool in tools if not tool.text), tools[0])
    text = (
        "Answer with one action, written as a JSON object, for example:\n"
        f"{example_text(shown)}\n"
        "You may think in words before it; the answer holds one such object and no other."
    )
    if words is not None:
        text += f" An answer without such an object is taken as the action {words.name}, as it stands."
    return text


def _structured_form(tools: Sequence[Tool]) -> str:
    shown = next((tool for tool in tools if not tool.text), tools[0])
    example = orjson.dumps({"action": example_call(shown)}, default=dict).decode()
    return f"Answer with one action as a JSON object that fits the response format, for example:\n{example}"


def _plain(schema: Mapping[str, Any]) -> dict[str, Json]:
    """A copy that can be serialised as JSON: a schema may be a read-only mapping."""
    copied: dict[str, Json] = orjson.loads(orjson.dumps(schema, default=dict))
    return copied


NOTHING = "(nothing to see)"
"""Sent for an observation of None: many endpoints refuse a message without text."""

MessageContent = str | list[dict[str, Json]]
"""A message's content: a text, or a list of parts."""


def words_of(observation: Content, *, pictures: str = "not shown") -> str:
    """The observation as text; a picture becomes its size and the note `pictures`."""
    if type(observation) is list:
        lines = [
            f"[picture {block.width} x {block.height}: {pictures}]" if isinstance(block, Image) else block
            for block in observation
        ]
        return "\n".join(lines) or NOTHING
    return text_of(observation) or NOTHING


def has_pictures(observation: Content) -> bool:
    """True when the observation contains a picture."""
    return next(images(observation), None) is not None


def joined(shown: list[tuple[str | None, Content]]) -> tuple[MessageContent, MessageContent]:
    """Joins observations with pictures, each after its heading if any, into one message's parts: to send, and to record."""
    sent: list[dict[str, Json]] = []
    recorded: list[dict[str, Json]] = []
    for line, observation in shown:
        for block in ([line] if line else []) + (observation if type(observation) is list else [words_of(observation)]):
            if isinstance(block, Image):
                sent.append(_picture(block.data_url()))
                recorded.append(_picture(f"/blobs/{block.hash}"))
            else:
                sent.append({"type": "text", "text": block})
                recorded.append(sent[-1])
    return sent, recorded


def _picture(address: str) -> dict[str, Json]:
    return {"type": "image_url", "image_url": {"url": address}}
