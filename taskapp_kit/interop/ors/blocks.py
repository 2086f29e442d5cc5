"""ORS's blocks: `{"type": "text", "text"}` and `{"type": "image", "data" (base64), "mimeType"}`, each with `detail`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskapp_kit.records.content import Content, Image, Json, text_of

Block = dict[str, Json]
SYSTEM: dict[str, Json] = {"role": "system"}
"""The `detail` of a prompt's blocks that are instructions and not the first observation."""


def observed_blocks(observation: Content) -> list[Block]:
    """Return an observation as blocks; a dict is one block of JSON text."""
    if not isinstance(observation, list):
        return [text_block(text_of(observation))]
    return [image_block(block.data_url()) if isinstance(block, Image) else text_block(block) for block in observation]


def prompt_blocks(messages: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the messages of a first request as one list of blocks."""
    return [
        block
        for message in messages
        for block in _content(message["content"], SYSTEM if message["role"] == "system" else None)
    ]


def role_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Json]]:
    """Return the messages of a first request in ORS's form."""
    return [
        {"role": message["role"], "blocks": _content(message["content"], None), "detail": None} for message in messages
    ]


def text_block(text: str, detail: Json = None) -> Block:
    """Return a block of text."""
    return {"type": "text", "text": text, "detail": detail}


def image_block(data_url: str, detail: Json = None) -> Block:
    """Return a block of an image, which is given as `data:TYPE;base64,DATA`."""
    kind, _, data = data_url.removeprefix("data:").partition(";base64,")
    return {"type": "image", "data": data, "mimeType": kind, "detail": detail}


def _content(content: Any, detail: Json) -> list[Block]:
    """Return the content of a chat message as blocks."""
    if isinstance(content, str):
        return [text_block(content, detail)]
    return [
        text_block(part["text"], detail) if part["type"] == "text" else image_block(part["image_url"]["url"], detail)
        for part in content
    ]
