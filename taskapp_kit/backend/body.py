"""Request bodies: bounded, timed, and JSON objects that two readers cannot understand differently."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from taskapp_kit.backend.response import BackendRequestRefused
from taskapp_kit.contract.content import INT_LIMIT, MAX_DEPTH
from taskapp_kit.errors import FieldProblem, RequestError

MAX_BYTES = 1024 * 1024
ARRIVAL_SECONDS = 10.0
MAX_VALUES = 200_000
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


async def read_object(request: Request, *, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The body's JSON object; an absent body is an empty one. Raises BackendRequestRefused, RequestError."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in ("", "application/json"):
        raise BackendRequestRefused(
            "unsupported_content_type", "The request's Content-Type is not JSON.", hint="Send application/json."
        )
    if "content-encoding" in request.headers:
        raise BackendRequestRefused(
            "unsupported_content_encoding", "Compressed bodies are not read.", hint="Send the JSON as it is."
        )
    told = request.headers.get("content-length", "0")
    if not (told.isascii() and told.isdigit()) or len(told) > 12 or int(told) > max_bytes:
        raise _too_large(max_bytes)
    raw = bytearray()
    try:
        async with asyncio.timeout(ARRIVAL_SECONDS):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > max_bytes:
                    raise _too_large(max_bytes)
    except TimeoutError:
        raise BackendRequestRefused(
            "body_timeout",
            f"The request body did not arrive within {ARRIVAL_SECONDS:g} s.",
        ) from None
    except ClientDisconnect:
        raise BackendRequestRefused("body_timeout", "The caller hung up.") from None
    return parse_object(bytes(raw))


def parse_object(raw: bytes) -> dict[str, Any]:
    """The object of this text. Raises RequestError (code `invalid_json`).

    Refused: not an object, invalid UTF-8, a name twice in one object, NaN, Infinity, integers beyond 64 bits, lone
    surrogates, nesting beyond 64, more than 200 000 values.
    """
    if not raw.strip():
        return {}
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > MAX_VALUES:
        _refuse(f"holds more than {MAX_VALUES} values")
    if _deeper_than(raw, MAX_DEPTH):
        _refuse(f"is nested more than {MAX_DEPTH} deep")
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=lambda _: _refuse("holds NaN or Infinity"),
            parse_int=_whole,
            parse_float=_number,
        )
    except (UnicodeDecodeError, json.JSONDecodeError):
        _refuse("is no JSON in UTF-8")
    if not isinstance(value, dict):
        _refuse("is no JSON object")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        _refuse("holds half a surrogate pair")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        _refuse("has a name twice in one object")
    return made


def _whole(text: str) -> int:
    if len(text) > 20 or not -INT_LIMIT <= int(text) < INT_LIMIT:
        _refuse("holds an integer beyond 64 bits")
    return int(text)


def _number(text: str) -> float:
    value = float(text) if len(text) <= 400 else float("inf")
    if value in (float("inf"), float("-inf")):
        _refuse("holds a number that is too large")
    return value


def _deeper_than(raw: bytes, limit: int) -> bool:
    """Counts brackets outside of strings, so that the parser never recurses deeper."""
    depth = 0
    for found in _BRACKETS.finditer(raw):
        letter = found[0]
        if letter in (b"[", b"{"):
            depth += 1
            if depth > limit:
                return True
        elif letter in (b"]", b"}"):
            depth -= 1
    return False


def _too_large(max_bytes: int) -> BackendRequestRefused:
    return BackendRequestRefused("body_too_large", f"The request body is longer than {max_bytes} bytes.")


def _refuse(found: str) -> NoReturn:
    raise RequestError(
        f"The request body {found}.",
        fields=(FieldProblem(("body",), found, "invalid_json"),),
        code="invalid_json",
        hint="Send one JSON object in UTF-8.",
    )
