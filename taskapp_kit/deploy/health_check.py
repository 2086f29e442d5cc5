"""`GET /health` of a task app, asked as a job's backend would, and read with care: whoever answers may be anybody.

One blocking question from a thread without a loop, with the proxies of the environment and, when wished, an unchecked
certificate: what `client.check_task_app` asks and how (six questions about the whole contract) would refuse applications
that an in-process job can use.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 64 * 1024
ASK_SECONDS = 5.0
REFUSED = (400, 401, 403)
"""How a key is refused: 400 is what apps built on Synth's package say."""


@dataclass(frozen=True, slots=True)
class HealthResponse:
    """status: the HTTP status. code: `error.code` of a refusal, "" when it has none. fields: the names in a JSON object
    of an answer that is well, None for anything else.
    """

    status: int
    code: str = ""
    fields: frozenset[str] | None = None


def key_headers(key: str | None) -> dict[str, str]:
    """The header that carries the key."""
    return {"X-API-Key": key} if key else {}


def ask_health(
    url: str, headers: Mapping[str, str], *, local: bool, check_tls: bool = True, seconds: float = ASK_SECONDS
) -> HealthResponse | str:
    """The answer, or in words why there is none. local: no proxy of the environment is used. Follows no redirect.

    seconds: for each step of the exchange; a body that drips gets twice that in all.
    """
    import httpx

    begun = time.monotonic()
    try:
        with (
            httpx.Client(trust_env=not local, verify=check_tls, timeout=seconds) as client,
            client.stream("GET", f"{url}/health", headers=dict(headers)) as response,
        ):
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MOST_BYTES:
                    return HealthResponse(response.status_code)
                if time.monotonic() - begun > 2 * seconds:
                    return f"no whole answer within {2 * seconds:.2g} s"
            return _read(response.status_code, bytes(body))
    except httpx.TimeoutException:
        return f"no answer within {seconds:.2g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"no answer ({type(error).__name__})"


def _read(status: int, body: bytes) -> HealthResponse:
    try:
        said: Any = json.loads(body)
    except (ValueError, RecursionError):
        return HealthResponse(status)
    if not isinstance(said, dict):
        return HealthResponse(status)
    if status == 200:
        return HealthResponse(status, fields=frozenset(map(str, said)))
    for name in ("detail", "error"):
        said = said.get(name) if isinstance(said, dict) else None
    code = said.get("code") if isinstance(said, dict) else None
    # nothing else of a body that somebody else wrote, which may hold parts of keys
    return HealthResponse(status, code if isinstance(code, str) and re.fullmatch(r"[a-z][a-z0-9_]{0,63}", code) else "")
