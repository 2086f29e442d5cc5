"""Reads the error envelope of a response, limits the size of its strings, and removes keys.

`error_response.py` writes the envelope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from taskapp_kit.errors import Boundary, FieldProblem
from taskapp_kit.net.http import HttpResponse
from taskapp_kit.net.redact import LEAST_FRAGMENT, LEAST_IN_IDS, without_key
from taskapp_kit.records.formatting import cut

MAX_MESSAGE = 500
MAX_WORD = 80
MAX_FIELDS = 10


@dataclass(frozen=True, slots=True)
class ErrorMembers:
    """The fields of the kit's error envelope, `{"detail": {"error": {…}}}`. Omitted fields are empty."""

    code: str
    message: str
    hint: str = ""
    boundary: Boundary | None = None
    rollout_id: str = ""
    error_id: str = ""
    fields: tuple[FieldProblem, ...] = ()
    field_lines: str = ""
    """One line, such as `body.env.seed: should be less`, for each field that the message does not mention."""


def error_members(answer: HttpResponse, key: str | None = None) -> ErrorMembers | None:
    """Return the error fields of a response, or None if the response has no error envelope.

    key: every part of this key is removed from all strings.
    """
    body = answer.json_object()
    detail = body.get("detail") if body is not None else None
    error = detail.get("error") if isinstance(detail, Mapping) else None
    # frameworks also send `detail`, with other contents
    if not isinstance(error, Mapping) or not isinstance(error.get("code"), str) or "message" not in error:
        return None

    def word(name: str, least: int = LEAST_FRAGMENT) -> str:
        return sentence(error.get(name), key, least)[:MAX_WORD]

    fields, lines = _fields(error, key)
    return ErrorMembers(
        code=word("code"),
        message=sentence(error.get("message"), key),
        hint=sentence(error.get("hint"), key),
        # a server of another version may send a boundary that this client does not know
        boundary=next((known for known in get_args(Boundary) if known == error.get("boundary")), None),
        rollout_id=word("rollout_id", LEAST_IN_IDS),
        error_id=word("error_id", LEAST_IN_IDS),
        fields=fields,
        field_lines=lines,
    )


def sentence(text: Any, key: str | None = None, least: int = LEAST_FRAGMENT) -> str:
    """Clean a string from a server: one line of limited length, without control characters or parts of the key."""
    if not isinstance(text, str):
        return ""
    # cut first, because a hostile server may send megabytes
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * MAX_MESSAGE]).split())
    line = without_key(line, key, least)
    return cut(line, MAX_MESSAGE)


def ended(text: str) -> str:
    """Return the text with a period at its end, unless it is empty or already ends with a punctuation mark."""
    return text if not text or text.endswith((".", "!", "?", "…")) else f"{text}."


def _fields(error: Mapping[str, Any], key: str | None) -> tuple[tuple[FieldProblem, ...], str]:
    """Return the invalid fields that the error names, and a line for each field that the error's message omits."""
    given, message = error.get("fields"), error.get("message")
    fields, lines = [], ""
    for item in given[:MAX_FIELDS] if isinstance(given, list) else ():
        loc = item.get("loc") if isinstance(item, Mapping) else None
        words = item.get("message") if isinstance(item, Mapping) else None
        if not isinstance(loc, list) or not isinstance(words, str):
            continue
        parts = [part if isinstance(part, int) else str(part)[:MAX_WORD] for part in loc[:12]]
        place = tuple(part if isinstance(part, int) else sentence(part, key) for part in parts)
        fields.append(FieldProblem(place, sentence(words, key)))
        if not (isinstance(message, str) and words in message):
            lines += f"\n  {sentence('.'.join(map(str, parts)), key)}: {fields[-1].message}"
    return tuple(fields), lines
