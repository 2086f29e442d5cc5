"""Where an API key may be in a request: X-API-Key, Authorization and, for task apps, X-API-Keys."""

from __future__ import annotations

import base64
import binascii

from taskapp_kit.config import MAX_KEY_BYTES
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import Headers

MAX_CANDIDATES = 16
MAX_BASIC_BYTES = 2048
"""Longest base64 text of HTTP Basic that is decoded."""


def candidates(headers: Headers, challenge: Headers | None = None, *, more_schemes: bool = True) -> list[bytes]:
    """Return what in the headers may be a key, each once: at most 16 of at most 512 bytes.

    headers: lower-case names, as ASGI has them. challenge: the header of a refusal. more_schemes: besides X-API-Key and
    Bearer also X-API-Keys and the password of HTTP Basic. Raises RequestRefused for a second X-API-Key or Authorization
    header: two readers of one request must not see two callers.
    """
    found: list[bytes] = []
    seen: set[bytes] = set()
    for name, value in headers:
        if name == b"x-api-key" or name == b"authorization":
            if name in seen:
                raise RequestRefused(
                    "unauthorised",
                    f"The request has two {'X-API-Key' if name == b'x-api-key' else 'Authorization'} headers.",
                    hint="Send one; several keys go into it as a comma list.",
                    headers=challenge,
                )
            seen.add(name)
            found += _authorization(value, more_schemes) if name == b"authorization" else _listed(value)
        elif name == b"x-api-keys" and more_schemes:
            found += _listed(value)
    fitting = [item for item in found[:MAX_CANDIDATES] if 0 < len(item) <= MAX_KEY_BYTES]
    return list(dict.fromkeys(fitting)) if len(fitting) > 1 else fitting


def _listed(value: bytes) -> list[bytes]:
    if b"," not in value:
        return [value.strip(b" \t")]
    return [item.strip(b" \t") for item in value.split(b",", MAX_CANDIDATES)[:MAX_CANDIDATES]]


def _authorization(value: bytes, basic: bool) -> list[bytes]:
    scheme, _, rest = value.strip(b" \t").partition(b" ")
    if scheme.lower() == b"bearer":
        return _listed(rest)
    if basic and scheme.lower() == b"basic" and len(rest) <= MAX_BASIC_BYTES:
        try:
            _, colon, password = base64.b64decode(rest.strip(b" \t"), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return []
        return [password] if colon else []
    return []
