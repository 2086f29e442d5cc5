"""Sends `GET /health` to a task app, as the backend of a job does. The response is untrusted.

`client.check_task_app` tests the whole contract with six requests. It would reject applications that an in-process job
can use.
"""

from __future__ import annotations

from collections.abc import Mapping

from taskapp_kit.client.blocking_portal import run
from taskapp_kit.client.checks import ProbeResult
from taskapp_kit.net.http import NoAnswer, Transport

MAX_BYTES = 64 * 1024
ASK_SECONDS = 5.0
REFUSED = (400, 401, 403)
"""The statuses of responses that reject the key. Apps that use Synth's package return 400."""


def key_headers(key: str | None) -> dict[str, str]:
    """Return the header that contains the key, or no headers if `key` is None."""
    return {"X-API-Key": key} if key else {}


def ask_health(
    url: str, headers: Mapping[str, str], *, check_tls: bool = True, seconds: float = ASK_SECONDS
) -> ProbeResult:
    """Send `GET /health`. Return the response, or the reason why no response arrived.

    Blocks the calling thread. Redirects are not followed. `seconds` limits the time without progress; the whole
    exchange may take twice as long.
    """

    async def ask() -> ProbeResult:
        transport = Transport(headers, MAX_BYTES, check_tls=check_tls)
        try:
            return ProbeResult(
                await transport.send("GET", f"{url}/health", seconds=2 * seconds, silence_seconds=seconds)
            )
        except NoAnswer as lost:
            return ProbeResult(lost=lost)
        finally:
            await transport.aclose()

    return run(ask())


def in_words(health: ProbeResult) -> str:
    """Return a short description of the response. It omits the body, which may come from any server."""
    return f"no response, because the server {health.words}" if health.answer is None else f"HTTP {health.status}"


def health_fields(health: ProbeResult) -> frozenset[str] | None:
    """Return the field names in the JSON object of a healthy response, or None for other responses."""
    return frozenset(health.object) if health.status == 200 and health.object is not None else None
