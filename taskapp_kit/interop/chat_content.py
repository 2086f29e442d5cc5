"""Conversion of other libraries' chat messages to observations."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from taskapp_kit.records.content import Image, Json, Text

PNG = "data:image/png;base64,"


class UnknownContent(ValueError):
    """A message contains something that an observation cannot."""


def block_of(part: Json) -> Text | Image | None:
    """Return a text part or a PNG data URL of a message as a block, or None for anything else."""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return Text(part["text"])
    image = part.get("image_url") if isinstance(part, dict) else None
    address = image.get("url") if isinstance(image, dict) else None
    if isinstance(address, str) and address.startswith(PNG):
        return Image(base64.b64decode(address[len(PNG) :]))
    return None


def observation_of(messages: Sequence[Any]) -> str | list[Text | Image]:
    """Return messages (dicts or pydantic models) as text, separated by blank lines, or as a list if there are images.

    If an assistant's message is among them, as in example conversations, each begins with its role. Raises UnknownContent.
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
