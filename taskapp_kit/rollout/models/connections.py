"""Send calls to models over the guarded HTTP stack (`net/http.py`): what may go wrong there, as failed attempts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskapp_kit.net.addresses import AddressPolicy, ParsedUrl
from taskapp_kit.net.http import HttpResponse, NoAnswer, Transport, Trouble
from taskapp_kit.net.retry import ForeignRedirect, OutOfHops, follow, next_address
from taskapp_kit.rollout.models.retry import AttemptFailed, retry_after

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver

IDLE_SECONDS = 30.0
"""How long an idle connection is used again: a call that meets its closing is sent again."""
MAX_ANSWER_BYTES = 32 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
MAX_HOPS = 48
"""Modal answers 303 every 150 s: two hours."""
HOP_SECONDS = 600.0
HEADERS = {"Accept-Encoding": "identity"}

_UNREACHABLE = ("unreachable", "takes no connection")
_ATTEMPTS: Mapping[Trouble, tuple[str, str]] = {
    Trouble.REFUSED: _UNREACHABLE,
    Trouble.CONNECT: _UNREACHABLE,
    Trouble.CONNECT_TIMEOUT: _UNREACHABLE,
    Trouble.UNKNOWN_HOST: ("unreachable", "cannot be found: its name has no address"),
    Trouble.TLS: ("unreachable", "speaks no TLS that can be understood"),
    Trouble.CERTIFICATE: ("untrusted", "has a certificate that is not trusted here"),
    Trouble.TRUNCATED: ("truncated", "cut its answer short"),
    Trouble.NOT_HTTP: ("malformed", "answered with something that is no HTTP"),
    Trouble.UNSENDABLE: ("malformed", "answered with something that is no HTTP"),
    Trouble.TOO_LARGE: ("malformed", f"answered with more than {MAX_ANSWER_BYTES} bytes"),
}
_DROPPED = ("dropped", "dropped the connection before it answered")


@dataclass(slots=True)
class ModelHttpResponse:
    """An HTTP response. retry_after: seconds, where its headers name them."""

    status: int
    body: bytes
    retry_after: float | None = None


class ModelConnections:
    """Connections to models, judged by `rules`; without cookies, proxies and redirects to other servers."""

    def __init__(self, rules: AddressPolicy, resolver: AbstractResolver | None = None) -> None:
        self._rules = rules
        self._transport = Transport(
            HEADERS,
            max_body_bytes=MAX_ANSWER_BYTES,
            max_error_bytes=MAX_ERROR_BYTES,
            guard=rules.refusal,
            resolver=resolver,
            idle_seconds=IDLE_SECONDS,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.aclose()

    async def post(
        self, called: ParsedUrl, body: bytes, key: str | None, now: Callable[[], float]
    ) -> ModelHttpResponse:
        """Return the response to one POST, polled for where it says 303. Raises AttemptFailed; the caller limits the time."""
        headers = None if key is None else {"Authorization": f"Bearer {key}"}
        try:
            answer = await self._transport.send("POST", called.url, body=body, headers=headers, seconds=None)
            if 300 <= answer.status < 400:
                answer = await self._follow(called, answer, headers)
        except NoAnswer as lost:
            raise self._failed(lost, called) from None
        if answer.status == 200:
            return ModelHttpResponse(200, answer.body)
        return ModelHttpResponse(answer.status, answer.body, retry_after(answer.headers, now()))

    async def _follow(self, called: ParsedUrl, answer: HttpResponse, headers: Mapping[str, str] | None) -> HttpResponse:
        status = answer.status
        try:
            answer = await follow(
                self._transport,
                answer,
                hops=MAX_HOPS,
                retries=0,
                hop_seconds=HOP_SECONDS,
                left=lambda: math.inf,
                headers=headers,
            )
            status = answer.status
            if not 300 <= status < 400:
                return answer
            next_address(answer.url, answer.headers.get("location"))
            where = f" to {called.place}"  # a redirect other than a 303, at the same server
        except ForeignRedirect as foreign:
            where = f" to {foreign.place}" if foreign.place else ""
        except OutOfHops:
            raise AttemptFailed(
                "redirected", f"sent its caller on {MAX_HOPS} times without an answer", status=303
            ) from None
        raise AttemptFailed(
            "redirected", f"sent its caller on{where} ({status}), and no call is sent on", status=status
        )

    def _failed(self, lost: NoAnswer, called: ParsedUrl) -> AttemptFailed:
        if lost.kind is Trouble.FORBIDDEN:
            hint = self._rules.hint(called.host, lost.why)
            return AttemptFailed("address_refused", f"is at {lost.why}, which this server does not call", hint=hint)
        kind, words = _ATTEMPTS.get(lost.kind, _DROPPED)
        return AttemptFailed(kind, words, status=lost.status or None)
