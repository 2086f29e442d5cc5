"""What a server says when it refuses or breaks, read from its answer: bounded, cleaned, never its raw body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from taskapp_kit.client.transport import Answer
from taskapp_kit.errors import Boundary

MAX_MESSAGE = 500
MAX_WORD = 80
MAX_FIELDS = 10
LONG = 20_000
LEAST_FRAGMENT = 6
"""A part of our key of this length or longer is taken out of a server's sentence."""
LEAST_IN_IDS = 12
"""The same where ids and digests stand: a key of hexadecimal digits shares six in a row with many of them by chance."""


@dataclass(frozen=True, slots=True)
class Told:
    """The members of our error envelope, `{"detail": {"error": {…}}}`; empty where the server gave none."""

    code: str
    message: str
    hint: str = ""
    boundary: Boundary | None = None
    rollout_id: str = ""
    error_id: str = ""
    fields: tuple[str, ...] = ()


def told_by(answer: Answer, key: str | None = None) -> Told | None:
    """The envelope of an answer; None when there is none. key: never comes back, nor a part of it."""
    body = answer.json_object()
    detail = body.get("detail") if body is not None else None
    error = detail.get("error") if isinstance(detail, Mapping) else None
    if not isinstance(error, Mapping) or not isinstance(error.get("code"), str) or "message" not in error:
        return None

    def word(name: str, least: int = LEAST_FRAGMENT) -> str:
        return sentence(error.get(name), key, least)[:MAX_WORD]

    return Told(
        code=word("code"),
        message=sentence(error.get("message"), key),
        hint=sentence(error.get("hint"), key),
        boundary=next((known for known in get_args(Boundary) if known == error.get("boundary")), None),
        rollout_id=word("rollout_id", LEAST_IN_IDS),
        error_id=word("error_id", LEAST_IN_IDS),
        fields=_fields(error, key),
    )


def sentence(text: Any, key: str | None = None, least: int = LEAST_FRAGMENT) -> str:
    """A server's words in one bounded line, without control characters and without any part of the key."""
    if not isinstance(text, str):
        return ""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * MAX_MESSAGE]).split())
    line = without_key(line, key, least)
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def without_key(text: str, key: str | None, least: int = LEAST_FRAGMENT) -> str:
    """The text with every part of the key that has at least so many characters taken out."""
    if not key:
        return text
    if len(key) <= least:
        return text.replace(key, "(key)")
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
    """JSON of a server for people to read, with the keys taken out of its texts (out of very long ones and names as wholes)."""
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


def ended(text: str) -> str:
    """The text with a full stop."""
    return text if not text or text.endswith((".", "!", "?", "…")) else f"{text}."


def _fields(error: Mapping[str, Any], key: str | None) -> tuple[str, ...]:
    """`body.env.seed: should be less`, one for each wrong field but those whose sentence the message has already."""
    given, message = error.get("fields"), error.get("message")
    lines = []
    for item in given[:MAX_FIELDS] if isinstance(given, list) else ():
        loc = item.get("loc") if isinstance(item, Mapping) else None
        words = item.get("message") if isinstance(item, Mapping) else None
        if not isinstance(loc, list) or not isinstance(words, str) or (isinstance(message, str) and words in message):
            continue
        place = sentence(".".join(str(part)[:MAX_WORD] for part in loc[:12]), key)
        lines.append(f"{place}: {sentence(words, key)}")
    return tuple(lines)
