"""The request headers that choose how a rollout is answered, and under which key it may be repeated."""

from __future__ import annotations

import re
from dataclasses import dataclass

from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.net.response import Headers

EVENT_STREAM = b"text/event-stream"
MAX_WAIT_SECONDS = 300.0
"""Maximum for `Prefer: wait`; longer ones are reduced to it."""

IDEMPOTENCY_KEY = re.compile(rb"[\x21-\x7e]{1,255}")
WAIT = re.compile(r"(?<![^\s,;])wait\s*=\s*\"?(\d{1,6})\"?")
NOT_WANTED = re.compile(rb"q=0(\.0*)?")
EVENT_ID = re.compile(rb"\d{1,9}")
HEADERS = frozenset({b"accept", b"prefer", b"idempotency-key", b"last-event-id", b"traceparent", b"tracestate"})


@dataclass(frozen=True, slots=True)
class RequestPreferences:
    """The parsed headers of a request.

    respond_async, wait_seconds: `Prefer` (RFC 7240). event_stream: `Accept` names it. first_event: number of the first
    event that the client lacks (`Last-Event-ID` plus 1).
    """

    respond_async: bool = False
    wait_seconds: float | None = None
    event_stream: bool = False
    idempotency_key: str | None = None
    first_event: int = 0
    traceparent: str | None = None
    tracestate: str | None = None

    @property
    def plain(self) -> bool:
        """Whether the response is sent at the end of the rollout, to this request alone."""
        return not (self.respond_async or self.event_stream or self.idempotency_key)


NONE = RequestPreferences()


def read_preferences(headers: Headers) -> RequestPreferences:
    """Parse headers with lower-case names, as ASGI gives them. Raises RequestError naming the header."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in HEADERS:
            if name == b"idempotency-key" and name in found:
                raise _refused("Idempotency-Key", "was sent twice; send one.")
            found[name] = found[name] + b"," + value if name in found else value
    if not found:
        return NONE
    key = found.get(b"idempotency-key")
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        raise _refused("Idempotency-Key", "should be 1 to 255 visible ASCII characters.")
    last = found.get(b"last-event-id")
    if last is not None and not EVENT_ID.fullmatch(last):
        raise _refused("Last-Event-ID", "should be the `id` of the last event received, a whole number.")
    preferences = found.get(b"prefer", b"").decode("latin-1").lower()
    wait = WAIT.search(preferences)
    return RequestPreferences(
        respond_async="respond-async" in re.split(r"[\s,;]+", preferences),
        wait_seconds=min(float(wait[1]), MAX_WAIT_SECONDS) if wait else None,
        event_stream=_accepts_events(found.get(b"accept", b"")),
        idempotency_key=None if key is None else key.decode("ascii"),
        first_event=0 if last is None else int(last) + 1,
        traceparent=_ascii(found.get(b"traceparent")),
        tracestate=_ascii(found.get(b"tracestate")),
    )


def _accepts_events(accept: bytes) -> bool:
    if EVENT_STREAM not in accept.lower():
        return False
    for item in accept.lower().split(b","):
        media, _, options = item.partition(b";")
        if media.strip() == EVENT_STREAM:
            return NOT_WANTED.fullmatch(options.replace(b" ", b"")) is None
    return False


def _ascii(value: bytes | None) -> str | None:
    return value.decode("ascii") if value is not None and len(value) <= 512 and value.isascii() else None


def _refused(header: str, problem: str) -> RequestError:
    message = f"The header {header} {problem}"
    return RequestError(message, fields=(FieldProblem(("header", header), message),), code="invalid_header")
