"""`POST /rollout` plays and scores one episode. `/rollouts/{rollout_id}` returns the result or cancels the rollout.

The headers of a request determine whether the result is sent at the end of the rollout, streamed, or fetched later.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

import orjson
from starlette.requests import Request

from taskapp_kit.errors import RequestError, RolloutFailed
from taskapp_kit.net.body import read_json, while_connected
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import EncodedResponse, Headers, json_answer
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import event_history
from taskapp_kit.records.protocols import StoredResult
from taskapp_kit.rollout.response import answer_bytes
from taskapp_kit.rollout.subscribers import SharedRollout, Subscriber
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.errors import error_answer
from taskapp_kit.serve.openapi_models import Ended, Pending
from taskapp_kit.serve.rollout_stream import EventStream, nothing_more
from taskapp_kit.serve.route import RouteContext, RouteSpec, invalid_field, parameter, parsed
from taskapp_kit.wire.rollout import RolloutRequest, RolloutResponse

ROLLOUT_ID = re.compile(r"[0-9a-f]{32}")
REPLAYED = (b"idempotent-replayed", b"true")
RETRY_LATER = (b"retry-after", b"1")
RESUME_SECONDS = 10.0
"""For how many seconds an interrupted stream can be resumed before its rollout counts as abandoned."""
APPLIED = (b"preference-applied", b"respond-async")

EVENT_STREAM = b"text/event-stream"
MAX_WAIT_SECONDS = 300.0
"""The maximum of `Prefer: wait`, in seconds. Longer waits are reduced to the maximum."""

IDEMPOTENCY_KEY = re.compile(rb"[\x21-\x7e]{1,255}")
WAIT = re.compile(r"(?<![^\s,;])wait\s*=\s*\"?(\d{1,6})\"?")
NOT_WANTED = re.compile(rb"q=0(\.0*)?")
EVENT_ID = re.compile(rb"\d{1,9}")
HEADERS = frozenset({b"accept", b"prefer", b"idempotency-key", b"last-event-id", b"traceparent", b"tracestate"})


@dataclass(frozen=True, slots=True)
class RequestPreferences:
    """The parsed headers of a request.

    Attributes:
        respond_async: Whether `Prefer` contains `respond-async` (RFC 7240).
        wait_seconds: The value of `wait` in `Prefer` (RFC 7240), or None if it is missing.
        event_stream: Whether `Accept` contains `text/event-stream`.
        idempotency_key: The value of `Idempotency-Key`, or None if the header is missing.
        first_event: Number of the first event that the client has not received: `Last-Event-ID` plus 1, or 0 if the
            header is missing.
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
        """Return whether the result is sent only as the response to this request, at the end of the rollout."""
        return not (self.respond_async or self.event_stream or self.idempotency_key)


NONE = RequestPreferences()


def read_preferences(headers: Headers) -> RequestPreferences:
    """Parse headers with lower-case names, as ASGI passes them. Raises RequestError for an invalid header."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in HEADERS:
            # otherwise two keys would be joined to a third key, which no client would ever repeat
            if name == b"idempotency-key" and name in found:
                raise _refused("Idempotency-Key", "was sent twice. Send it only once.")
            found[name] = found[name] + b"," + value if name in found else value
    if not found:
        return NONE
    # strict, because a repeated request would not match a silently changed key and would play a second rollout
    key = found.get(b"idempotency-key")
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        raise _refused("Idempotency-Key", "must be 1 to 255 visible ASCII characters.")
    last = found.get(b"last-event-id")
    if last is not None and not EVENT_ID.fullmatch(last):
        raise _refused("Last-Event-ID", "must be an integer, the `id` of the last event that the client received.")
    preferences = found.get(b"prefer", b"").decode("latin-1").lower()
    wait = WAIT.search(preferences)
    return RequestPreferences(
        respond_async="respond-async" in re.split(r"[\s,;]+", preferences),
        # preferences are optional (RFC 7240), so invalid preferences are ignored
        wait_seconds=min(float(wait[1]), MAX_WAIT_SECONDS) if wait else None,
        event_stream=_accepts_events(found.get(b"accept", b"")),
        idempotency_key=None if key is None else key.decode("ascii"),
        first_event=0 if last is None else int(last) + 1,
        traceparent=_ascii(found.get(b"traceparent")),
        tracestate=_ascii(found.get(b"tracestate")),
    )


def _accepts_events(accept: bytes) -> bool:
    # nearly every request ends here
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
    return invalid_field(("header", header), f"The header {header} {problem}", code="invalid_header")


# -- POST /rollout ---------------------------------------------------------------------------------------------------


async def rollout(context: RouteContext, request: Request) -> EncodedResponse | EventStream:
    """Play, score and store one episode.

    If the rollout fails, the response contains the part that failed in `boundary`, and no reward.

    With `Accept: text/event-stream`, the response streams the events as they happen, followed by the result. With
    `Prefer: respond-async`, the response is 202, and the client fetches the result from `/rollouts/{rollout_id}`. With
    an `Idempotency-Key`, the request can be repeated for 24 hours. A repeated request joins the running rollout or
    receives its result.
    """
    scope = request.scope
    body = await read_json(scope, request.receive, context.settings.max_body_bytes)
    wanted = parsed(RolloutRequest, body)
    preferences = read_preferences(scope["headers"])
    caller = caller_of(scope, traceparent=preferences.traceparent, tracestate=preferences.tracestate)
    # the rollout of a plain request ends with the request; other requests share a task that outlives them
    if preferences.plain:
        played = await while_connected(context.service.rollout(wanted, caller=caller, written=True), request.receive)
        return EncodedResponse(200, answer_bytes(played), rollout_id=played.rollout_id)
    shared = context.shared_rollouts.start(
        wanted,
        body=body,
        caller=caller,
        idempotency_key=preferences.idempotency_key,
        detached=preferences.respond_async,
        followed=preferences.event_stream,
    )
    del body, wanted  # many requests may join a rollout and wait, so their bodies are freed
    # a proxy may interrupt a stream, which can be resumed, unlike a plain response
    subscriber = shared.subscribe(RESUME_SECONDS if preferences.event_stream else 0.0)
    if preferences.event_stream:
        return await _streamed(shared, subscriber, request, preferences)
    try:
        return await while_connected(_answered(shared, preferences, request), request.receive)
    finally:
        subscriber.leave()


async def _streamed(
    shared: SharedRollout, subscriber: Subscriber, request: Request, preferences: RequestPreferences
) -> EventStream:
    try:
        # errors before the first event are HTTP statuses, because the status of a stream is 200
        await while_connected(shared.admitted(), request.receive)
    except BaseException:
        subscriber.leave()
        raise
    return EventStream(shared, subscriber, first=preferences.first_event, headers=[location(shared, request)])


async def _answered(shared: SharedRollout, preferences: RequestPreferences, request: Request) -> EncodedResponse:
    if not preferences.respond_async:
        settled = await shared.result()
        assert settled is not None, "result() without a time limit waits for the end"
        return repeated(shared, settled)
    await shared.admitted()
    settled = await shared.result(preferences.wait_seconds or 0.0)
    if settled is None:
        answer = pending(shared, request)
        answer.headers = [*answer.headers, APPLIED]
        return answer
    return repeated(shared, settled)


# -- /rollouts/{rollout_id} ------------------------------------------------------------------------------------------


def location(shared: SharedRollout, request: Request) -> tuple[bytes, bytes]:
    """Return the `Location` header of a rollout."""
    # if this application is mounted, its paths start with the prefix of the mount
    return b"location", f"{request.scope.get('root_path', '')}/rollouts/{shared.rollout_id}".encode()


def pending(shared: SharedRollout, request: Request) -> EncodedResponse:
    """Return the 202 response for a running rollout."""
    body = {
        "rollout_id": shared.rollout_id,
        "status": "running",
        "created_at": shared.created_at,
        "events": len(shared.event_buffer.lines),
        "url": location(shared, request)[1].decode(),
    }
    return json_answer(body, 202, [location(shared, request), RETRY_LATER])


def answer_of(shared: SharedRollout, settled: StoredResult) -> EncodedResponse:
    """Return the response of `POST /rollout`: the result, or the error envelope of the failure."""
    if settled.failure is not None:
        return error_answer(RolloutFailed(settled.failure, rollout_id=settled.rollout_id))
    assert settled.answer is not None, "a result contains either an answer or a failure"
    return EncodedResponse(200, settled.answer, rollout_id=settled.rollout_id, shared=shared)


def repeated(shared: SharedRollout, settled: StoredResult) -> EncodedResponse:
    """Return the response to a request that joined the rollout.

    If the rollout had already ended, the response contains the header `Idempotent-Replayed`.
    """
    answer = answer_of(shared, settled)
    if shared.replayed:
        answer.headers = [*answer.headers, REPLAYED]
    return answer


async def rollout_by_id(context: RouteContext, request: Request) -> EncodedResponse | EventStream:
    """Return the result or the failure of a rollout, as `POST /rollout` does, or 202 while the rollout is running.

    For 24 hours, the result of a rollout that was repeated, streamed or requested asynchronously is returned unchanged.
    All other results are built from the store: they equal the response of `POST /rollout` with `record.trajectories`,
    except that fields that are not stored are null. With `?events=1`, the response also contains the events and the
    stored calls of judges and auxiliary models. Only an admin's key can access rollouts of other labels; for other keys,
    the response is 404.

    `Prefer: wait=20` waits up to 20 s for the end of the rollout. With `Accept: text/event-stream`, the response
    streams the events after `Last-Event-ID`, followed by the result.
    """
    preferences = read_preferences(request.scope["headers"])
    events = _events_asked(request)
    shared = await _found(context, request, with_events=preferences.event_stream or events)
    if preferences.event_stream:
        # otherwise a browser's EventSource would reconnect to a complete stream forever
        if shared.over and preferences.first_event > len(shared.event_buffer.lines):
            return nothing_more()
        return EventStream(
            shared, shared.subscribe(RESUME_SECONDS), first=preferences.first_event, headers=[location(shared, request)]
        )
    settled = await shared.result(preferences.wait_seconds or 0.0)
    if settled is None:
        return pending(shared, request)
    answer = answer_of(shared, settled)
    if events:
        answer.body = await _with_events(context, shared, answer.body)
    return answer


def _events_asked(request: Request) -> bool:
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    # strict, because the response to a misspelled `?event=1` would silently lack the events
    if any(name != "events" for name, _ in pairs) or len(pairs) > 1 or (pairs and pairs[0][1] not in ("0", "1")):
        raise invalid_field(("query", "events"), "must be 0 or 1, without other parameters", code="invalid_query")
    return bool(pairs) and pairs[0][1] == "1"


async def _with_events(context: RouteContext, shared: SharedRollout, body: bytes) -> bytes:
    """Return the body of a response with the rollout's events.

    Concurrent requests for a finished result share one body.
    """
    lines, over = list(shared.event_buffer.lines), shared.ended_result
    if over is None:
        return await asyncio.to_thread(_joined, body, lines, await context.shared_rollouts.model_calls(shared))
    # many clients may request a large rollout at the same time, and a body may contain megabytes of events
    async with over.loading:
        if over.with_events is None:
            over.with_events = await asyncio.to_thread(
                _joined, body, lines, await context.shared_rollouts.model_calls(shared)
            )
        return over.with_events


def _joined(body: bytes, lines: list[bytes], calls: dict[str, Json]) -> bytes:
    """Return the body with the events in `trace`, as `record.return_trace` does.

    For a failure, `trace` is next to the error.

    `calls` contains `judge_calls` and `auxiliary_calls` if there are any. They are also added to `trace`.
    """
    members = orjson.loads(body)
    trace = members["trajectories"][0]["trace"] if "trajectories" in members else members.setdefault("trace", {})
    trace["event_history"] = event_history(orjson.loads(line) for line in lines)
    trace.update(calls)
    return orjson.dumps(members)


async def cancel_rollout(context: RouteContext, request: Request) -> EncodedResponse:
    """Cancel a running rollout, and store the part that was played.

    Only an admin's key can cancel rollouts of other labels; for other keys, the response is 404.
    """
    shared = await _found(context, request, with_events=False)
    if not shared.over and not shared.is_local:
        raise RequestRefused(
            "rollout_elsewhere",
            "The rollout is running on another server, which uses the same store.",
            hint="Send the request to the server that is running the rollout.",
        )
    if not shared.over:
        shared.cancel()
        await shared.ended()
        if shared.cancelled:
            return json_answer({"rollout_id": shared.rollout_id, "status": "cancelled"})
    return json_answer({"rollout_id": shared.rollout_id, "status": "ended"})


async def _found(context: RouteContext, request: Request, *, with_events: bool) -> SharedRollout:
    name = request.path_params["rollout_id"]
    caller = caller_of(request.scope)
    shared = (
        await context.shared_rollouts.find(name, caller, with_events=with_events)
        if ROLLOUT_ID.fullmatch(name)
        else None
    )
    if shared is None:
        raise RequestRefused(
            "not_found",
            "The rollout was not found.",
            hint="A key can fetch the stored rollouts of its label. If the server has no store, only rollouts that "
            "were requested with Prefer: respond-async, with an Idempotency-Key or as a stream are available, for 24 hours.",
        )
    return shared


PARAMETERS = (
    {"name": "rollout_id", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"}},
)
GET = RouteSpec(
    "/rollouts/{rollout_id}",
    "GET",
    rollout_by_id,
    "Return the result of a rollout",
    response_model=RolloutResponse,
    streams=True,
    accepted_model=Pending,
    failures=(404, 422, 500, 502, 504),
    parameters=(
        *PARAMETERS,
        parameter(
            "events",
            "query",
            "1 adds the events and the calls of judges and auxiliary models.",
            type="string",
            enum=["0", "1"],
        ),
        parameter("Prefer", "header", "`wait=20` waits up to 20 s for the end of the rollout.", type="string"),
        parameter(
            "Last-Event-ID",
            "header",
            "The `id` of the last event that the client received, for a stream.",
            type="integer",
            minimum=0,
            maximum=999999999,
        ),
    ),
)
DELETE = RouteSpec(
    "/rollouts/{rollout_id}",
    "DELETE",
    cancel_rollout,
    "Cancel a rollout",
    response_model=Ended,
    failures=(404, 409, 500),
    parameters=PARAMETERS,
)
ROUTE = RouteSpec(
    "/rollout",
    "POST",
    rollout,
    "Play and score one episode",
    request_model=RolloutRequest,
    response_model=RolloutResponse,
    streams=True,
    accepted_model=Pending,
    failures=(408, 409, 413, 415, 422, 429, 500, 502, 504),
    parameters=(
        parameter(
            "Idempotency-Key",
            "header",
            "A repeated request with the same key and body joins the rollout or returns its result.",
            type="string",
            pattern="^[\\x21-\\x7e]{1,255}$",
        ),
        parameter("Prefer", "header", "`respond-async` returns 202; `respond-async, wait=5` after 5 s.", type="string"),
        parameter(
            "Last-Event-ID",
            "header",
            "The `id` of the last event that the client received, to resume a stream with its Idempotency-Key.",
            type="integer",
            minimum=0,
            maximum=999999999,
        ),
    ),
)
