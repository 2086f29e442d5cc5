"""Converts other libraries' chat messages to observations."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from taskapp_kit.records.content import Image, Json, Text

PNG = "data:image/png;base64,"


class UnknownContent(ValueError):
    """A message contains something that an observation cannot contain."""


def block_of(part: Json) -> Text | Image | None:
    """Convert a part of a message to a block, or return None if it is neither text nor a PNG data URL."""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return Text(part["text"])
    image = part.get("image_url") if isinstance(part, dict) else None
    address = image.get("url") if isinstance(image, dict) else None
    if isinstance(address, str) and address.startswith(PNG):
        return Image(base64.b64decode(address[len(PNG) :]))
    return None


def observation_of(messages: Sequence[Any]) -> str | list[Text | Image]:
    """Convert messages to text, separated by blank lines, or to a list of blocks if there are images.

    If there is an assistant message, as in example conversations, the text of each message begins with the role.

    messages: dicts or pydantic models. Raises UnknownContent for parts other than text and PNG images.
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
                raise UnknownContent(f"a message has a part of type {kind!r}; expected text or a PNG image")
            if isinstance(block, Text):
                block = Text(label + block.text)
                label = ""
            blocks.append(block)
    if any(isinstance(block, Image) for block in blocks):
        return blocks
    return "\n\n".join(block.text for block in blocks if isinstance(block, Text))
