"""Keys taken out of what others said, before it is stored, logged or shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LONG = 20_000
LEAST_FRAGMENT = 6
"""A part of a key of this length or longer is taken out of a server's sentence."""
LEAST_IN_IDS = 12
"""The same where ids and digests stand: a key of hexadecimal digits shares six in a row with many of them by chance."""


def without_key(text: str, key: str | None, least: int = LEAST_FRAGMENT) -> str:
    """The text with every part of the key that has at least so many characters taken out."""
    if not key:
        return text
    if len(key) <= least:
        return text.replace(key, "(key)")
    block = (least + 1) // 2  # every part of `least` characters holds one of these whole: most texts hold none
    if not any(key[start : start + block] in text for start in range(0, len(key) - block + 1, block)):
        return text
    shortest = {key[start : start + least] for start in range(len(key) - least + 1)}
    parts: list[str] = []
    index = 0
    while index < len(text):
        if text[index : index + least] not in shortest:
            parts.append(text[index])
            index += 1
            continue
        end = index + least
        while end < len(text) and text[end - least + 1 : end + 1] in shortest:
            end += 1
        parts.append("(key)")
        index = end
    return "".join(parts)


def without_keys(value: Any, keys: Sequence[str | None]) -> Any:
    """JSON with every part of the keys that has at least LEAST_IN_IDS characters taken out of its texts.

    Out of names and of texts beyond LONG they are taken as wholes.
    """
    if isinstance(value, str):
        for key in filter(None, keys):
            value = value.replace(key, "(key)") if len(value) > LONG else without_key(value, key, LEAST_IN_IDS)
        return value
    if isinstance(value, Mapping):
        names = {name: name for name in value}
        for key in filter(None, keys):
            names = {name: shown.replace(key, "(key)") for name, shown in names.items()}
        return {shown: without_keys(value[name], keys) for name, shown in names.items()}
    if isinstance(value, list):
        return [without_keys(item, keys) for item in value]
    return value
