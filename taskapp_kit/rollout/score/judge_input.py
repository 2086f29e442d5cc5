"""Prepares a judge's input against prompt injection: cut, escaped, and placed between unpredictable boundaries.

A policy may have written any of it. Between `<material-NONCE>` and `</material-NONCE>` there is no `<` and no `>`, nor a
character that looks like one, so no text can end the section; the nonce is drawn for each call, after the text was written.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.records.content import Image, Json, Text, plain, without_surrogates

MATERIAL_CHARACTERS = 60_000
"""The limit on characters of material in one prompt; the middle of longer material is replaced by a notice."""
NAME_CHARACTERS = 80

_OPENING = "<＜﹤‹〈⟨❮❬⧼˂ᐸ𝈶〈"
_CLOSING = ">＞﹥›〉⟩❯❭⧽˃ᐳ𝈷〉"
_INVISIBLE = (
    (0x200B, 0x200B), (0x200E, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x00AD, 0x00AD), (0x061C, 0x061C),
    (0x180E, 0x180E), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0xE0000, 0xE01EF),
)  # fmt: skip
"""Dropped: direction marks, tags and selectors, which hide text. Joiners that some scripts need are not removed."""
_TABLE: dict[int, str | None] = {
    **{ord(character): "&lt;" for character in _OPENING},
    **{ord(character): "&gt;" for character in _CLOSING},
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"},  # ESC is shown as ␛
    **dict.fromkeys(range(0x7F, 0xA0), "\ufffd"),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    **{code: None for first, last in _INVISIBLE for code in range(first, last + 1)},
    **dict.fromkeys((0x85, 0x2028, 0x2029), "\n"),
}
_CONTROL_TOKEN = re.compile(r"\[(?=/?[A-Z][A-Z_]+\])")
"""`[INST]` and similar tokens, which some models' templates read as a change of speaker."""

_UNSPEAKABLE = {
    code: "\ufffd" for code in (*range(32), *range(0x7F, 0xA0), *range(0xD800, 0xE000)) if code not in (9, 10)
}

Block = str | Image


@dataclass(frozen=True, slots=True)
class InputSection:
    """One part of the material. name: given where there are several parts."""

    blocks: tuple[Block, ...]
    name: str | None = None


class NotReadable(TypeError):
    """A judge function returned a value of the wrong type; the message says what it may return."""


def sections(value: Any) -> list[InputSection]:
    """A judge function's return value as sections of the material. Raises NotReadable, NotJson."""
    value = valid(value)
    if isinstance(value, (str, Text, Image)):
        return [InputSection((_block(value),))]
    if isinstance(value, (list, tuple)):
        return [InputSection(_blocks(value))]
    if hasattr(value, "model_dump") or hasattr(value, "__dataclass_fields__"):
        value = plain(value, "reading")
    if isinstance(value, Mapping):
        return [InputSection(_blocks(part), str(name)) for name, part in value.items()]
    raise NotReadable(f"returned a {type(value).__name__}, expected a str, a dict, a list of Text and Image, or None")


def valid(value: Any) -> Any:
    """The value with lone surrogates in its strings replaced: a policy may write them, and JSON cannot hold them."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, Text):
        return Text(valid(value.text))
    if isinstance(value, Mapping):
        return {valid(name): valid(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [valid(part) for part in value]
    return value


def _blocks(value: Any) -> tuple[Block, ...]:
    if isinstance(value, (list, tuple)) and any(isinstance(item, (Text, Image)) for item in value):
        return tuple(_block(item) for item in value)
    return (_block(value),)


def _block(value: Any) -> Block:
    if isinstance(value, (str, Image)):
        return value
    if isinstance(value, Text):
        return value.text
    return json.dumps(plain(value, "reading"), ensure_ascii=False)


def escape(text: str) -> str:
    """The text without anything that could end a boundary, change the speaker or hide words.

    Every `<` and `>`, and characters that look like them, become `&lt;` or `&gt;`; control characters become visible
    symbols such as `␛`; invisible characters are removed.
    """
    return _CONTROL_TOKEN.sub("&#91;", text.replace("\r\n", "\n").replace("\r", "\n").translate(_TABLE))


def cleaned(text: str) -> str:
    """A model's text in a form that may be stored and shown: valid Unicode without control characters."""
    return text.translate(_UNSPEAKABLE)


def shortened(text: str, limit: int) -> str:
    """Cuts the text to `limit` characters of its beginning and end, with a notice between them."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    left_out = len(text) - limit
    return f"{text[: limit - tail]}\n[… {left_out} characters are left out here …]\n{text[len(text) - tail :]}"


def fitted(parts: Sequence[InputSection], limit: int = MATERIAL_CHARACTERS) -> list[InputSection]:
    """The parts cut to `limit` characters of text in total: the longest are cut first, to one length."""
    lengths = sorted(len(block) for part in parts for block in part.blocks if isinstance(block, str))
    each, left = limit, limit
    for at, length in enumerate(lengths):
        each = left // (len(lengths) - at)
        if length > each:
            break
        left -= length
        each = max(length, left)
    return [
        InputSection(
            tuple(shortened(block, each) if isinstance(block, str) else block for block in part.blocks), part.name
        )
        for part in parts
    ]


def mapped(parts: Iterable[InputSection], change: Callable[[str], str]) -> list[InputSection]:
    """The parts with `change` applied to each text."""
    return [
        InputSection(
            tuple(change(block) if isinstance(block, str) else block for block in part.blocks),
            None if part.name is None else change(part.name),
        )
        for part in parts
    ]


def draw_nonce(parts: Sequence[InputSection]) -> str:
    """Draws 32 hex digits that do not occur in the material."""
    while True:
        nonce = secrets.token_hex(16)
        if not any(nonce in block for part in parts for block in part.blocks if isinstance(block, str)):
            return nonce


def bounded(parts: Sequence[InputSection], nonce: str) -> list[dict[str, Json]]:
    """The parts as message content, each between boundaries. The first line of a named part is its name."""
    content: list[dict[str, Json]] = []
    words: list[str] = []
    for part in parts:
        words.append(f"<material-{nonce}>")
        if part.name is not None:
            words.append(f"[{escape(' '.join(part.name.split()))[:NAME_CHARACTERS]}]")
        for block in part.blocks:
            if isinstance(block, str):
                words.append(escape(block))
            else:
                content.append({"type": "text", "text": "\n".join(words)})
                content.append({"type": "image_url", "image_url": {"url": block.data_url()}})
                words = []
        words.append(f"</material-{nonce}>")
    content.append({"type": "text", "text": "\n".join(words)})
    return content
