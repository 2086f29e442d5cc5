"""Removal of keys from foreign text, before it is stored, logged or shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

REDACTED = "(key)"
LONG = 20_000
"""Only whole keys are removed from longer strings in JSON."""
LEAST_FRAGMENT = 6
"""Parts of a key of at least this length are removed from a server's sentence."""
LEAST_IN_IDS = 12
"""The same for text with ids and digests, with which a hexadecimal key often shares six characters in a row by chance."""


def without_key(text: str, key: str | None, least: int = LEAST_FRAGMENT) -> str:
    """Return the text with `(key)` instead of every part of the key of at least `least` characters."""
    if not key:
        return text
    if len(key) <= least:
        return text.replace(key, REDACTED)
    block = (least + 1) // 2  # every part of `least` characters contains one of these blocks, but most texts do not
    if not any(key[start : start + block] in text for start in range(0, len(key) - block + 1, block)):
        return text
    shortest = set(_parts(key, least))
    parts: list[str] = []
    index = 0
    while index < len(text):
        if text[index : index + least] not in shortest:
            parts.append(text[index])
            index += 1
            continue
        end = index + least
        # as long as the key continues, because no part of it may remain after the mark
        while end < len(text) and text[end - least + 1 : end + 1] in shortest:
            end += 1
        parts.append(REDACTED)
        index = end
    return "".join(parts)


def holds_key(text: str, key: str, least: int = LEAST_FRAGMENT) -> bool:
    """Return whether the text contains a part of the key of at least `least` characters, even across words."""
    # an endpoint or a terminal may insert a line break into the key
    dense = "".join(text.split())
    return any(part in dense for part in _parts(key, min(least, len(key))))


def without_whole(text: str, keys: Iterable[str], mark: str = REDACTED) -> str:
    """Return the text with `mark` instead of every whole key; a key that contains another key must come first."""
    for key in keys:
        text = text.replace(key, mark)
    return text


def without_keys(value: Any, keys: Sequence[str | None]) -> Any:
    """Return JSON with `(key)` for every part of the keys that has at least LEAST_IN_IDS characters.

    Names, and strings longer than LONG, are only searched for whole keys.
    """
    if isinstance(value, str):
        if len(value) > LONG:
            return without_whole(value, filter(None, keys))
        for key in keys:
            value = without_key(value, key, LEAST_IN_IDS)
        return value
    if isinstance(value, Mapping):
        return {without_whole(name, filter(None, keys)): without_keys(part, keys) for name, part in value.items()}
    if isinstance(value, list):
        return [without_keys(item, keys) for item in value]
    return value


def _parts(key: str, length: int) -> Iterator[str]:
    """Yield every part of the key of this length."""
    return (key[start : start + length] for start in range(len(key) - length + 1))
