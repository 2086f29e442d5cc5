"""What `taskapp rollout` does: one rollout at a server, or of an app in this process."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from pydantic import ValidationError

from taskapp_kit.cli.conversation_output import RolloutLines
from taskapp_kit.cli.local_app import failure_shown, local_service, open_app
from taskapp_kit.cli.remote_task_app import Remote, RemoteError
from taskapp_kit.config import Settings
from taskapp_kit.contract.result import Rollout
from taskapp_kit.contract.wire import RolloutRequest, RolloutResponse
from taskapp_kit.errors import RequestError
from taskapp_kit.rollout.response import response_body


def remote(url: str, key: str | None, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The answer of the server at url. seconds: the rollout's deadline. Raises RemoteError, JobTimeout, ConfigError."""
    answer = Remote(url, key).rollout(body, timeout_seconds=seconds + 30.0)
    try:
        RolloutResponse.model_validate(answer)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise RemoteError(
            f"{url} answered with something that is no rollout as taskapp-kit gives it ({field}).",
            hint="Is that the address of a task app served by taskapp-kit?",
        ) from None
    return answer


def local(
    app: str,
    settings: Settings,
    body: dict[str, Any],
    *,
    skip_judges: bool,
    hint: str,
    printed: bool,
    width: int | None,
    full: bool,
) -> dict[str, Any]:
    """The answer of the app, played in this process. printed: each event as it happens; width, full as RolloutLines has.

    hint: why a default policy was chosen; where it cannot play, the error names another way. Raises DiscoveryError,
    DeclarationError, RequestError, RolloutFailed, Unavailable, StoreError.
    """
    found = open_app(app, settings)
    listener = RolloutLines(width=width, full=full).show if printed else None
    request = RolloutRequest.model_validate(body)

    async def played() -> Rollout:
        limits: dict[str, Any] = {
            "max_time_seconds": request.safety.max_time_s,
            "max_calls": settings.max_calls_per_answer,
        }
        async with local_service(found, settings, store=settings.store, skip_judges=skip_judges, **limits) as service:
            return await service.rollout(request, listener=listener)

    try:
        with failure_shown():
            rollout = asyncio.run(played())
    except RequestError as error:
        if error.code == "policy_unavailable" and hint:
            raise RequestError(
                error.message, code=error.code, hint=f"Give another --policy (`taskapp info {app}` lists them)."
            ) from error
        raise
    return response_body(rollout, inline_image_bytes=sys.maxsize)
