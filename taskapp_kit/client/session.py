"""A session of a task app over HTTP: `TaskAppClient.session`, and `SyncTaskAppClient.session`, which blocks."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from taskapp_kit.client.blocking_portal import LoopThread
from taskapp_kit.client.task_app_errors import not_followed, not_json, refusal, unreachable
from taskapp_kit.errors import RequestError, TaskAppUnreachable
from taskapp_kit.net.envelope import error_members
from taskapp_kit.net.http import HttpResponse, NoAnswer, Transport
from taskapp_kit.net.retry import (
    GATEWAY_TROUBLE,
    MAY_PASS,
    Attempts,
    Backoff,
    ForeignRedirect,
    OutOfHops,
    follow,
    hop_budget,
)

FULL = frozenset({"saturated", "key_quota_reached"})
"""Refusals of a new session that pass when others close theirs."""

Exchange = Callable[..., Awaitable[dict[str, Any]]]


async def exchange(
    transport: Transport,
    url: str,
    key: str | None,
    verb: str,
    path: str,
    body: Mapping[str, Any],
    *,
    seconds: float,
    retries: int,
    repeats: bool,
) -> dict[str, Any]:
    """Make one call of a session and return the answer's JSON object. Raises TaskAppError, TaskAppUnreachable.

    repeats: the call is done once however often it is sent, so it is sent again when the connection broke or a gateway
    failed. Without that, only where nothing was done: no connection, or no place for a session. The redirects of a gateway
    to which the call takes too long are followed, until `seconds` have passed.
    """
    try:
        encoded = orjson.dumps(body) if verb == "POST" else None
    except TypeError as error:
        raise RequestError(f"The body of {path} cannot be encoded as JSON: {error}.") from None
    attempts = Attempts(Backoff(), retries=retries)
    while True:
        try:
            answer = await _sent(transport, verb, url + path, encoded, seconds, retries)
        except ForeignRedirect as foreign:
            raise not_followed(foreign, url, path) from None
        except OutOfHops:
            raise TaskAppUnreachable(f"{url}{path} redirected for {seconds:g} s without an answer.") from None
        except NoAnswer as lost:
            if not repeats or lost.kind not in MAY_PASS or (pause := attempts.pause()) is None:
                raise unreachable(lost, url, path) from None
        else:
            if answer.status == 200:
                found = answer.json_object()
                if found is None:
                    raise not_json(answer, url, path)
                return found
            members = error_members(answer, key)
            full = members is not None and members.code in FULL
            gateway = members is None and answer.status in GATEWAY_TROUBLE and repeats
            if not (full or gateway) or (pause := attempts.pause(answer.retry_after)) is None:
                raise refusal(answer, url, path, key)
        await asyncio.sleep(pause)


async def _sent(
    transport: Transport, verb: str, address: str, body: bytes | None, seconds: float, retries: int
) -> HttpResponse:
    """Return the response, at the end of a gateway's redirects. Raises NoAnswer, ForeignRedirect, OutOfHops."""
    end = time.monotonic() + seconds
    answer = await transport.send(verb, address, body=body, seconds=seconds)
    if answer.status != 303:
        return answer
    return await follow(
        transport,
        answer,
        hops=hop_budget(seconds),
        retries=retries,
        hop_seconds=seconds,
        left=lambda: end - time.monotonic(),
    )


class RemoteSession:
    """One open session; `TaskAppClient.session` opens and closes it. Answers are the JSON objects of docs/connect/sessions.md.

    Each call has its own `request_id`, so it is sent again when the connection broke: the task app does it once. One call
    at a time. Every method raises TaskAppError (`status`, `code`, and `boundary` of an episode that failed),
    TaskAppUnreachable, RequestError.

    Args:
        session_id: As the task app named it.
        call: Makes one call, as `exchange` from its `verb` on.
    """

    def __init__(self, session_id: str, call: Exchange) -> None:
        self.session_id = session_id
        self._exchange = call

    async def reset(
        self,
        seed: int | None = None,
        *,
        split: str | None = None,
        config: Mapping[str, Any] | None = None,
        reward: Mapping[str, float] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Begin an episode.

        Args:
            seed: Of the task; None draws one.
            split: The seed's split.
            config: Arguments of the environment's constructor.
            reward: Weights in place of the app's.
            timeout_s: Time limit of the episode.

        Returns:
            Its first `observation`, `messages`, `tools`, `actions`, `limits`.
        """
        return await self._call("reset", seed=seed, split=split, config=config, reward=reward, timeout_s=timeout_s)

    async def step(
        self,
        tool: str | None = None,
        args: Any = None,
        *,
        actions: Sequence[Mapping[str, Any]] | None = None,
        text: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Make one decision: `tool` with `args`, or several `actions`, or `text`.

        Args:
            tool: The action's name.
            args: Its arguments.
            actions: Several actions, `tool` and `args` each.
            text: A model's words, from which the actions are read.
            timeout_s: Time limit of the step.

        Returns:
            `observation`, `reward` (None: undefined), `done`, and more.
        """
        return await self._call("step", tool=tool, args=args, actions=actions, text=text, timeout_s=timeout_s)

    async def finish(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """End the episode now, truncated and scored; of one that is over, return its last step again."""
        return await self._call("finish", timeout_s=timeout_s)

    async def state(self) -> dict[str, Any]:
        """Describe the session. It counts as used, so it does not expire."""
        return await self._exchange("GET", f"/sessions/{self.session_id}", {}, repeats=True)

    async def close(self) -> None:
        """Close the session; an episode under way ends as cancelled."""
        await self._exchange("DELETE", f"/sessions/{self.session_id}", {}, repeats=False)

    async def _call(self, verb: str, **members: Any) -> dict[str, Any]:
        body = {name: value for name, value in members.items() if value is not None}
        path = f"/sessions/{self.session_id}/{verb}"
        return await self._exchange("POST", path, {**body, "request_id": uuid.uuid4().hex}, repeats=True)


class SyncRemoteSession:
    """A blocking RemoteSession with the same methods and errors."""

    def __init__(self, session: RemoteSession, thread: LoopThread) -> None:
        self.session_id = session.session_id
        self._session = session
        self._thread = thread

    def reset(self, seed: int | None = None, **options: Any) -> dict[str, Any]:
        """See RemoteSession."""
        return self._thread.call(partial(self._session.reset, seed, **options))

    def step(self, tool: str | None = None, args: Any = None, **options: Any) -> dict[str, Any]:
        """See RemoteSession."""
        return self._thread.call(partial(self._session.step, tool, args, **options))

    def finish(self, **options: Any) -> dict[str, Any]:
        """See RemoteSession."""
        return self._thread.call(partial(self._session.finish, **options))

    def state(self) -> dict[str, Any]:
        """See RemoteSession."""
        return self._thread.call(self._session.state)

    def close(self) -> None:
        """See RemoteSession."""
        self._thread.call(self._session.close)
