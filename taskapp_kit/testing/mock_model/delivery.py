"""Write plans for a complete reply: as one body, as a stream, or broken by one of the `Faults`."""

from __future__ import annotations

from typing import Literal

import orjson

from taskapp_kit.net.sse import event_frames
from taskapp_kit.records.content import Json
from taskapp_kit.testing.mock_model.chat_request import Refused
from taskapp_kit.testing.mock_model.connection import WritePlan, chunk, head
from taskapp_kit.wire.chat.completion import StreamEvent

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
WEB_PAGE = b"<html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>"
RESET_AFTER_SECONDS = 0.005
"""Time between the first half of a response and the reset, so that the client receives the first half."""
DRIPS = 10
"""Number of pieces of a slow response."""


def json_object(value: Json, delay: float, status: int = 200, *extra: tuple[str, str], bare: bool = False) -> WritePlan:
    """Return a JSON response with `extra` headers. If `bare` is set, the body is omitted, as for HEAD."""
    body = orjson.dumps(value)
    return WritePlan(
        [(delay, head(status, "application/json", len(body), *extra) + (b"" if bare else body))], status=status
    )


def refusal(refused: Refused, delay: float, retry_after_seconds: int | None, *, bare: bool = False) -> WritePlan:
    """Return an error response. 429 and 503 have the header `retry-after` unless `retry_after_seconds` is None."""
    status = refused.status
    kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    with_retry_after = status in (429, 503) and retry_after_seconds is not None
    extra = [("retry-after", str(retry_after_seconds))] if with_retry_after else []
    return json_object(_error(str(refused), kind, refused.param, refused.code), delay, status, *extra, bare=bare)


def unanswered(kind: str, delay: float, *, streamed: bool, location: str) -> WritePlan | None:
    """Return the plan of a fault that replaces the reply, or None for faults that change the reply or its delivery."""
    match kind:
        case "reset_early":
            return WritePlan([(delay, b"")], "reset", 0)
        case "hang":
            return WritePlan([], "hang", 0)
        case "content_type":
            return WritePlan([(delay, head(200, "text/html", len(WEB_PAGE)) + WEB_PAGE)])
        case "redirect":
            return WritePlan([(delay, head(302, "text/plain", 0, ("location", location)))], status=302)
        case "error_200":
            error = _error(
                "The server had an error while processing your request.", "server_error", None, "server_error"
            )
            return stream([("", orjson.dumps(error))], delay, None, 0.0, 0.0) if streamed else json_object(error, delay)
        case _:
            return None


def whole(body: bytes, delay: float, kind: str | None, identity: str, slow_seconds: float) -> WritePlan:
    """Return the plan that sends the reply as one body, possibly broken by the fault `kind`."""
    half = len(body) // 2
    if kind == "malformed":
        body = body[:half]
    first = head(200, "application/json", len(body), ("x-request-id", identity))
    if kind in ("truncated", "reset_late"):
        return _broken(first + body[:half], delay, kind)
    if kind == "slow":
        step = max(1, -(-len(body) // DRIPS))
        drips = [body[at : at + step] for at in range(0, len(body), step)]
        return WritePlan([(delay, first), *((slow_seconds / len(drips), drip) for drip in drips)])
    return WritePlan([(delay, first + body)], _ending(kind))


def stream(
    events: list[StreamEvent], delay: float, kind: str | None, chunk_seconds: float, slow_seconds: float
) -> WritePlan:
    """Return the plan that sends server-sent events every `chunk_seconds`, possibly broken by the fault `kind`."""
    frames = event_frames(events)
    half = len(frames) // 2
    if kind == "malformed":
        frames[half] = frames[0][: len(frames[0]) // 2] + b"\n\n"
    first = head(200, "text/event-stream", None, ("cache-control", "no-cache"))
    if kind in ("truncated", "reset_late"):
        return _broken(first + b"".join(map(chunk, frames[:half])), delay, kind)
    pause = slow_seconds / len(frames) if kind == "slow" else chunk_seconds
    if pause <= 0:
        return WritePlan([(delay, first + b"".join(map(chunk, frames)) + chunk(b""))], _ending(kind))
    paced = ((pause, chunk(sent)) for sent in frames[1:])
    return WritePlan([(delay, first + chunk(frames[0])), *paced, (0.0, chunk(b""))], _ending(kind))


def _broken(sent: bytes, delay: float, kind: str) -> WritePlan:
    if kind == "truncated":
        return WritePlan([(delay, sent)], "close")
    return WritePlan([(delay, sent), (RESET_AFTER_SECONDS, b"")], "reset")


def _ending(kind: str | None) -> Literal["keep", "close"]:
    return "close" if kind == "close" else "keep"


def _error(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Json]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
