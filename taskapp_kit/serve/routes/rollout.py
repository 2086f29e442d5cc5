"""`POST /rollout`: run and score one episode; answer at its end, stream it, or let it be fetched by its id later."""

from __future__ import annotations

import pydantic
from starlette.requests import Request

from taskapp_kit.net.body import read_json, while_connected
from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.rollout.response import answer_bytes
from taskapp_kit.rollout.subscribers import SharedRollout, Subscriber
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.errors import invalid_request
from taskapp_kit.serve.openapi_models import Pending
from taskapp_kit.serve.request_preferences import RequestPreferences, read_preferences
from taskapp_kit.serve.rollout_stream import EventStream
from taskapp_kit.serve.route import RouteContext, RouteSpec
from taskapp_kit.serve.routes.rollout_by_id import RESUME_SECONDS, location, pending, repeated
from taskapp_kit.wire.rollout import RolloutRequest, RolloutResponse

APPLIED = (b"preference-applied", b"respond-async")


async def rollout(context: RouteContext, request: Request) -> EncodedResponse | EventStream:
    """Plays, scores, stores and answers. A failure answers with its boundary and never with a reward.

    With `Accept: text/event-stream` the events are streamed as they happen, and then the result. With
    `Prefer: respond-async` the answer is 202, and the rollout is fetched from `/rollouts/{rollout_id}`. With an
    `Idempotency-Key` the same request may be sent again: it joins the rollout, or gets what came of it, for 24 hours.
    """
    scope = request.scope
    body = await read_json(scope, request.receive, context.settings.max_body_bytes)
    try:
        wanted = RolloutRequest.model_validate(body)
    except pydantic.ValidationError as error:
        raise invalid_request(error, body) from None
    preferences = read_preferences(scope["headers"])
    caller = caller_of(scope, traceparent=preferences.traceparent, tracestate=preferences.tracestate)
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
    del body, wanted  # many requests may join one rollout, and wait with theirs
    subscriber = shared.subscribe(RESUME_SECONDS if preferences.event_stream else 0.0)
    if preferences.event_stream:
        return await _streamed(shared, subscriber, request, preferences)
    try:
        return await while_connected(_answered(shared, preferences), request.receive)
    finally:
        subscriber.leave()


async def _streamed(
    shared: SharedRollout, subscriber: Subscriber, request: Request, preferences: RequestPreferences
) -> EventStream:
    try:
        await while_connected(shared.admitted(), request.receive)
    except BaseException:
        subscriber.leave()
        raise
    return EventStream(shared, subscriber, first=preferences.first_event, headers=[location(shared)])


async def _answered(shared: SharedRollout, preferences: RequestPreferences) -> EncodedResponse:
    if not preferences.respond_async:
        settled = await shared.result()
        assert settled is not None, "the wait has no limit"
        return repeated(shared, settled)
    await shared.admitted()
    settled = await shared.result(preferences.wait_seconds or 0.0)
    if settled is None:
        answer = pending(shared)
        answer.headers = [*answer.headers, APPLIED]
        return answer
    return repeated(shared, settled)


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
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "Repeating the request with the same key and body joins the rollout or gets what came of it.",
            "schema": {"type": "string", "pattern": "^[\\x21-\\x7e]{1,255}$"},
        },
        {
            "name": "Prefer",
            "in": "header",
            "required": False,
            "description": "`respond-async` answers 202; `respond-async, wait=5` only after 5 s.",
            "schema": {"type": "string"},
        },
        {
            "name": "Last-Event-ID",
            "in": "header",
            "required": False,
            "description": "Of a stream that is taken up again under its Idempotency-Key: the last `id` that arrived.",
            "schema": {"type": "integer", "minimum": 0, "maximum": 999999999},
        },
    ),
)
