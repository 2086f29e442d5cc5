"""Messages of a chat, as other libraries hold them, as an observation."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from taskapp_kit.records.content import Image, Json, Text

PNG = "data:image/png;base64,"


class UnknownContent(ValueError):
    """A message holds something that no observation can."""


def block_of(part: Json) -> Text | Image | None:
    """Return a part of a message's content, text or a PNG as a data URL; None for anything else."""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return Text(part["text"])
    picture = part.get("image_url") if isinstance(part, dict) else None
    address = picture.get("url") if isinstance(picture, dict) else None
    if isinstance(address, str) and address.startswith(PNG):
        return Image(base64.b64decode(address[len(PNG) :]))
    return None


def observation_of(messages: Sequence[Any]) -> str | list[Text | Image]:
    """Return messages, dicts or pydantic models, as text with blank lines between; with pictures, as a list.

    Each has its role before it where one of them is the assistant's, as in examples of a conversation. Raises
    UnknownContent.
    """
    plain = [item if isinstance(item, dict) else item.model_dump(mode="json") for item in messages]
    labelled = any(item.get("role") == "assistant" for item in plain)
    blocks: list[Text | Image] = []
    for item in plain:
        content = item.get("content")
        parts = [{"text": content}] if isinstance(content, str) else content or []
        label = f"[{item.get('role')}] " if labelled else ""
        for part in parts:
            block = block_of(part)
            if block is None:
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise UnknownContent(f"a message has a part of type {kind!r}; an observation has text and PNG pictures")
            if isinstance(block, Text):
                block = Text(label + block.text)
                label = ""
            blocks.append(block)
    if any(isinstance(block, Image) for block in blocks):
        return blocks
    return "\n\n".join(block.text for block in blocks if isinstance(block, Text))
