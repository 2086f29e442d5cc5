"""Removes keys from strings of other programs before the strings are stored, logged or shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

REDACTED = "(key)"
LONG = 20_000
"""From JSON strings longer than this, only complete keys are removed."""
LEAST_FRAGMENT = 6
"""The minimum length of the parts of a key that are removed from a server's messages."""
LEAST_IN_IDS = 12
"""The minimum length of removed parts in text with ids, which often share six characters with a key by chance."""


def without_key(text: str, key: str | None, least: int = LEAST_FRAGMENT) -> str:
    """Replace every part of the key that has at least `least` characters with `(key)`."""
    if not key:
        return text
    if len(key) <= least:
        return text.replace(key, REDACTED)
    block = (least + 1) // 2  # every part of `least` characters contains one of these blocks; most strings contain none
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
        # extend the match while the key continues, so that no rest of the key follows the mark
        while end < len(text) and text[end - least + 1 : end + 1] in shortest:
            end += 1
        parts.append(REDACTED)
        index = end
    return "".join(parts)


def holds_key(text: str, key: str, least: int = LEAST_FRAGMENT) -> bool:
    """Return whether the text contains at least `least` consecutive characters of the key, ignoring white space."""
    # an endpoint or a terminal may insert a line break into the key
    dense = "".join(text.split())
    return any(part in dense for part in _parts(key, min(least, len(key))))


def without_whole(text: str, keys: Iterable[str], mark: str = REDACTED) -> str:
    """Replace every complete key with `mark`.

    In `keys`, a key that contains another key must come before the other key.
    """
    for key in keys:
        text = text.replace(key, mark)
    return text


def without_keys(value: Any, keys: Sequence[str | None]) -> Any:
    """Replace every part of a key that has at least LEAST_IN_IDS characters with `(key)` in a JSON value.

    In the names of an object's members, and in strings longer than LONG, only complete keys are replaced.
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
    """Yield every substring of the key that has this length."""
    return (key[start : start + length] for start in range(len(key) - length + 1))
