"""ORS's answers as OpenAPI documents them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from taskapp_kit.wire.rollout import JsonDict


class OrsTool(BaseModel):
    """A tool; `input_schema` is a JSON Schema."""

    name: str
    description: str
    input_schema: JsonDict


class OrsTools(BaseModel):
    """The tools, which are the same for every task."""

    tools: list[OrsTool]
    terminal_tool: None
    supports_score_group: bool
    message_block_types: list[str]


class OrsBlock(BaseModel):
    """A block: of text, or of an image with its `data` in base64."""

    type: Literal["text", "image"]
    text: str = ""
    data: str = ""
    mimeType: str = ""
    detail: JsonDict | None


class OrsMessage(BaseModel):
    """A message of the first request."""

    role: str
    blocks: list[OrsBlock]
    detail: None


class OrsSid(BaseModel):
    """The id of the session."""

    sid: str


class OrsStatus(BaseModel):
    """The session is there."""

    status: Literal["ok"]
