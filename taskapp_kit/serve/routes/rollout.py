"""`POST /rollout`: one scored episode."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import TypeVar

import pydantic
from starlette.requests import Request

from taskapp_kit.contract.response import response_body
from taskapp_kit.contract.wire import RolloutRequest, RolloutResponse
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.serve.answer import Answer, json_answer
from taskapp_kit.serve.auth import LABEL
from taskapp_kit.serve.body import ClientGone, read_json
from taskapp_kit.serve.errors import invalid_request
from taskapp_kit.serve.routing import Hall, RouteSpec

log = logging.getLogger("taskapp_kit.serve")

WATCH_AFTER_SECONDS = 0.1
"""A rollout shorter than this is not worth a task that watches whether the caller hangs up."""

T = TypeVar("T")


async def rollout(hall: Hall, request: Request) -> Answer:
    """Plays, scores, stores and answers. A failure answers with its boundary and never with a reward."""
    body = await read_json(request.scope, request.receive, hall.settings.max_body_bytes)
    try:
        wanted = RolloutRequest.model_validate(body)
    except pydantic.ValidationError as error:
        raise invalid_request(error, body) from None
    label = request.scope.get(LABEL)
    began = time.perf_counter()
    played = await _while_connected(hall.service.rollout(wanted, key_label=label, written=True), request)
    if played.body is not None:
        answer = Answer(200, played.body)
    else:
        answered = response_body(played)
        RolloutResponse.__pydantic_validator__.validate_python(answered)  # our fault, if it does not: 500
        answer = json_answer(answered)
    if log.isEnabledFor(logging.INFO):
        log.info(
            "rollout rollout_id=%s environment=%s seed=%s steps=%d status=%s reward=%s policy=%s key=%s seconds=%.4f",
            played.rollout_id,
            played.numbers.environment,
            played.numbers.seed,
            played.numbers.length,
            played.numbers.status,
            played.scorecard.reward,
            played.policy,
            label,
            time.perf_counter() - began,
        )
    return answer


async def _while_connected(work: Awaitable[T], request: Request) -> T:
    """Awaits `work`, and cancels it when the caller hangs up; then raises ClientGone."""
    task = asyncio.current_task()
    assert task is not None
    gone = False
    watcher: asyncio.Task[None] | None = None

    async def watch() -> None:
        nonlocal gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    def start() -> None:
        nonlocal watcher
        watcher = asyncio.create_task(watch())

    timer = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, start)
    try:
        done = await work
        if gone:
            task.uncancel()
            raise ClientGone
    except (asyncio.CancelledError, RolloutFailed):
        if gone:
            task.uncancel()
            raise ClientGone from None
        raise
    else:
        return done
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()


ROUTE = RouteSpec(
    "/rollout",
    "POST",
    rollout,
    "Play and score one episode",
    request_model=RolloutRequest,
    response_model=RolloutResponse,
    failures=(408, 413, 415, 422, 500, 502, 504),
)
