"""Read request bodies: headers first, then bytes, counted and timed, then strict JSON."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from taskapp_kit.errors import RequestError
from taskapp_kit.net.error_response import ClientGone, RequestRefused
from taskapp_kit.net.json_body import MAX_VALUES, read_object

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

ARRIVAL_SECONDS = 10.0
"""How long a body may take to arrive, in all."""
THREAD_BYTES = 256 * 1024
"""A longer body is parsed in a thread, so that the event loop serves others meanwhile."""
LENGTH_DIGITS = 12
FORM = b"application/x-www-form-urlencoded"
MAX_FORM_FIELDS = 64


async def read_json(
    scope: Scope,
    receive: Receive,
    max_bytes: int,
    arrival_seconds: float = ARRIVAL_SECONDS,
    *,
    max_values: int = MAX_VALUES,
    required: bool = True,
) -> dict[str, Any]:
    """Return the body's JSON object. Raises RequestRefused (408, 413, 415), RequestError (422), ClientGone.

    A Content-Length beyond `max_bytes` is refused before anything is read; a chunked body when the count passes it.
    max_values: the most values in the JSON. required: whether an empty body is refused; else it is an empty object.
    """
    _check_type(scope, b"application/json")
    raw = await read_body(scope, receive, max_bytes, arrival_seconds)
    if not required and not raw.strip():
        return {}
    return await parse_json(raw, max_values)


async def parse_json(raw: bytes, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """Return a body's JSON object. Raises RequestError."""
    if len(raw) > THREAD_BYTES:
        return await asyncio.to_thread(read_object, raw, max_values)
    return read_object(raw, max_values)


async def read_form(scope: Scope, receive: Receive, max_bytes: int) -> dict[str, str]:
    """Return the fields of a form (`application/x-www-form-urlencoded`), of each name the first one.

    Raises RequestRefused (408, 413, 415, 422 for what is not UTF-8), ClientGone.
    """
    _check_type(scope, FORM)
    raw = await read_body(scope, receive, max_bytes)
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS, errors="strict")
    except ValueError:
        raise RequestError("The form cannot be read.", code="invalid_form") from None
    return dict(reversed(pairs))


async def read_body(scope: Scope, receive: Receive, max_bytes: int, arrival_seconds: float = ARRIVAL_SECONDS) -> bytes:
    """Return the body, of any type. Raises RequestRefused (408, 413, 415 for an encoded one), ClientGone."""
    for name, value in scope["headers"]:
        if name == b"content-encoding":
            raise RequestRefused(
                "unsupported_content_encoding",
                "The request body is encoded; compressed bodies are not read.",
                hint="Send the JSON as it is, without Content-Encoding.",
            )
        if name == b"content-length" and (len(value) > LENGTH_DIGITS or not value.isdigit() or int(value) > max_bytes):
            raise _too_large(max_bytes)
    return await _read(receive, max_bytes, arrival_seconds)


def _check_type(scope: Scope, expected: bytes) -> None:
    for name, value in scope["headers"]:
        if name == b"content-type" and value.split(b";", 1)[0].strip().lower() not in (expected, b""):
            raise RequestRefused(
                "unsupported_content_type",
                f"The request's Content-Type is not {'JSON' if expected != FORM else 'that of a form'}.",
                hint=f"Send Content-Type: {expected.decode()}, or none.",
            )


def _too_large(max_bytes: int) -> RequestRefused:
    return RequestRefused(
        "body_too_large",
        f"The request body is longer than {max_bytes} bytes.",
        hint="Send less in one request.",
    )


async def _read(receive: Receive, max_bytes: int, arrival_seconds: float) -> bytes:
    chunks: list[bytes] = []
    length = 0
    try:
        async with asyncio.timeout(arrival_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk = message.get("body", b"")
                length += len(chunk)
                if length > max_bytes:
                    raise _too_large(max_bytes)
                if not message.get("more_body", False):
                    return chunk if not chunks else b"".join([*chunks, chunk])
                if chunk:
                    chunks.append(chunk)
    except TimeoutError:
        raise RequestRefused(
            "body_timeout",
            f"The request body did not arrive within {arrival_seconds:g} s.",
            hint="Send it in one go.",
        ) from None
