"""`/rollouts/{rollout_id}`: the result of a rollout that is in flight, has an idempotency record, or is stored."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import parse_qsl

import orjson
from starlette.requests import Request

from taskapp_kit.errors import FieldProblem, RequestError, RolloutFailed
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import event_history
from taskapp_kit.records.protocols import StoredResult
from taskapp_kit.rollout.subscribers import SharedRollout
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.errors import error_answer
from taskapp_kit.serve.openapi_models import Ended, Pending
from taskapp_kit.serve.request_preferences import read_preferences
from taskapp_kit.serve.rollout_stream import EventStream, nothing_more
from taskapp_kit.serve.route import RouteContext, RouteSpec
from taskapp_kit.wire.rollout import RolloutResponse

ROLLOUT_ID = re.compile(r"[0-9a-f]{32}")
REPLAYED = (b"idempotent-replayed", b"true")
RETRY_LATER = (b"retry-after", b"1")
RESUME_SECONDS = 10.0
"""How long a stream that was cut may be resumed before its rollout counts as abandoned."""


def location(shared: SharedRollout) -> tuple[bytes, bytes]:
    """Return the `Location` header of a rollout."""
    return b"location", f"/rollouts/{shared.rollout_id}".encode()


def pending(shared: SharedRollout) -> EncodedResponse:
    """Return the 202 of a rollout that is in flight."""
    body = {
        "rollout_id": shared.rollout_id,
        "status": "running",
        "created_at": shared.created_at,
        "events": len(shared.event_buffer.lines),
        "url": f"/rollouts/{shared.rollout_id}",
    }
    return json_answer(body, 202, [location(shared), RETRY_LATER])


def answer_of(shared: SharedRollout, settled: StoredResult) -> EncodedResponse:
    """Return the response of `POST /rollout`, or the envelope of its failure."""
    if settled.failure is not None:
        return error_answer(RolloutFailed(settled.failure, rollout_id=settled.rollout_id))
    assert settled.answer is not None, "an answer or a failure"
    return EncodedResponse(200, settled.answer, rollout_id=settled.rollout_id, shared=shared)


def repeated(shared: SharedRollout, settled: StoredResult) -> EncodedResponse:
    """Return that response for the caller that started the rollout; it is marked if the rollout had ended before."""
    answer = answer_of(shared, settled)
    if shared.replayed:
        answer.headers = [*answer.headers, REPLAYED]
    return answer


async def rollout_by_id(context: RouteContext, request: Request) -> EncodedResponse | EventStream:
    """The answer of `POST /rollout`, or its failure; 202 while it is under way.

    Of a rollout that was repeated, streamed or fetched later it is the very answer, for 24 hours. After that, and of
    every other stored rollout, it is made from the store, as with `record.trajectories`; members that the store lacks
    are null. `?events=1` adds the events and, from the store, the calls of judges and of models that the environment asked.
    A rollout of another key label is not found, unless the key is an admin's.

    `Prefer: wait=20` waits up to 20 s for the end. With `Accept: text/event-stream` the events come as a stream, from
    the one after `Last-Event-ID` on, and then the result.
    """
    preferences = read_preferences(request.scope["headers"])
    events = _events_asked(request)
    shared = await _found(context, request, with_events=preferences.event_stream or events)
    if preferences.event_stream:
        if shared.over and preferences.first_event > len(shared.event_buffer.lines):
            return nothing_more()
        return EventStream(
            shared, shared.subscribe(RESUME_SECONDS), first=preferences.first_event, headers=[location(shared)]
        )
    settled = await shared.result(preferences.wait_seconds or 0.0)
    if settled is None:
        return pending(shared)
    answer = answer_of(shared, settled)
    if events:
        answer.body = await _with_events(context, shared, answer.body)
    return answer


def _events_asked(request: Request) -> bool:
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    if any(name != "events" for name, _ in pairs) or len(pairs) > 1 or (pairs and pairs[0][1] not in ("0", "1")):
        message = "GET /rollouts/{rollout_id} takes one query parameter: events, which is 0 or 1."
        raise RequestError(message, fields=(FieldProblem(("query", "events"), message),), code="invalid_query")
    return bool(pairs) and pairs[0][1] == "1"


async def _with_events(context: RouteContext, shared: SharedRollout, body: bytes) -> bytes:
    """Return the response with its events; built once for all requests that read a finished result at the same time."""
    lines, over = list(shared.event_buffer.lines), shared.ended_result
    if over is None:
        return await asyncio.to_thread(_joined, body, lines, await context.shared_rollouts.model_calls(shared))
    async with over.loading:
        if over.with_events is None:
            over.with_events = await asyncio.to_thread(
                _joined, body, lines, await context.shared_rollouts.model_calls(shared)
            )
        return over.with_events


def _joined(body: bytes, lines: list[bytes], calls: dict[str, Json]) -> bytes:
    """Insert the events where `record.return_trace` puts them; for a failure, in a `trace` beside the error.

    calls: `judge_calls` and `auxiliary_calls`, each where there were any; inserted beside the events.
    """
    members = orjson.loads(body)
    trace = members["trajectories"][0]["trace"] if "trajectories" in members else members.setdefault("trace", {})
    trace["event_history"] = event_history(orjson.loads(line) for line in lines)
    trace.update(calls)
    return orjson.dumps(members)


async def cancel_rollout(context: RouteContext, request: Request) -> EncodedResponse:
    """Cancels it if it is still under way; what was played is kept. One of another key label is not found."""
    shared = await _found(context, request, with_events=False)
    if not shared.over and not shared.is_local:
        raise RequestRefused(
            "rollout_elsewhere",
            "The rollout is played by another server of the same store.",
            hint="Ask the server that took it.",
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
            "There is no such rollout.",
            hint="Found are rollouts that this key asked for: stored ones, and without a store, for 24 h, those asked for "
            "with Prefer: respond-async, an Idempotency-Key or as a stream.",
        )
    return shared


PARAMETERS = (
    {"name": "rollout_id", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"}},
)
GET = RouteSpec(
    "/rollouts/{rollout_id}",
    "GET",
    rollout_by_id,
    "What came of a rollout",
    response_model=RolloutResponse,
    streams=True,
    accepted_model=Pending,
    failures=(404, 422, 500, 502, 504),
    parameters=(
        *PARAMETERS,
        {
            "name": "events",
            "in": "query",
            "required": False,
            "description": "1 adds the events, and the calls of judges and of models that the environment asked.",
            "schema": {"type": "string", "enum": ["0", "1"]},
        },
        {
            "name": "Prefer",
            "in": "header",
            "required": False,
            "description": "`wait=20` waits up to 20 s for the end.",
            "schema": {"type": "string"},
        },
        {
            "name": "Last-Event-ID",
            "in": "header",
            "required": False,
            "description": "Of a stream: the `id` of the last event that arrived.",
            "schema": {"type": "integer", "minimum": 0, "maximum": 999999999},
        },
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
