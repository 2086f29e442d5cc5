"""`GET /health` of a task app, sent as a job's backend would send it. Anybody may answer, so the response is read with care.

One blocking request, which stops the loop of its thread if there is one. The six requests of `client.check_task_app` about
the whole contract would refuse applications that an in-process job can use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taskapp_kit.client.blocking_portal import run
from taskapp_kit.net.http import HttpResponse, NoAnswer, Transport, Trouble

MAX_BYTES = 64 * 1024
ASK_SECONDS = 5.0
REFUSED = (400, 401, 403)
"""The statuses of a refused key; apps built on Synth's package answer 400."""


@dataclass(frozen=True, slots=True)
class HealthResponse:
    """status: the HTTP status. code: `error.code` of a refusal, "" when it has none. fields: the names in the JSON object
    of a 200, None for anything else.
    """

    status: int
    code: str = ""
    fields: frozenset[str] | None = None


def key_headers(key: str | None) -> dict[str, str]:
    """Return the header that carries the key."""
    return {"X-API-Key": key} if key else {}


def ask_health(
    url: str, headers: Mapping[str, str], *, check_tls: bool = True, seconds: float = ASK_SECONDS
) -> HealthResponse | str:
    """Return the response, or a sentence why there is none. Follows no redirect.

    seconds: for each step of the exchange; a body that drips gets twice that in all.
    """

    async def ask() -> HttpResponse:
        transport = Transport(headers, MAX_BYTES, check_tls=check_tls)
        try:
            return await transport.send("GET", f"{url}/health", seconds=2 * seconds, silence_seconds=seconds)
        finally:
            await transport.aclose()

    try:
        return _read(run(ask()))
    except NoAnswer as lost:
        if lost.kind is Trouble.TOO_LARGE:
            return HealthResponse(lost.status)
        return f"no answer: it {lost.why}"


def _read(answer: HttpResponse) -> HealthResponse:
    body = answer.json_object()
    if body is None:
        return HealthResponse(answer.status)
    if answer.status == 200:
        return HealthResponse(answer.status, fields=frozenset(body))
    error: Any = body
    for name in ("detail", "error"):
        error = error.get(name) if isinstance(error, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    # nothing else of the body, which may come from any server and may contain parts of keys
    if isinstance(code, str) and re.fullmatch(r"[a-z][a-z0-9_]{0,63}", code):
        return HealthResponse(answer.status, code)
    return HealthResponse(answer.status)
