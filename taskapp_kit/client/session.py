"""Sessions of a task app over HTTP, for `TaskAppClient.session` and the blocking `SyncTaskAppClient.session`."""

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
"""Codes of rejected new sessions, which may be accepted when other sessions have closed."""

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
    """Make one call of a session and return the response's JSON object. Raises TaskAppError, TaskAppUnreachable.

    If `repeats` is set, the server executes the call only once, so it is sent again if the connection breaks or a gateway
    fails. Otherwise it is sent again only if nothing was done, because there was no connection or no free session.
    Redirects of a gateway that answers before the call ends are followed for at most `seconds`.
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
            raise TaskAppUnreachable(f"{url}{path} redirected for {seconds:g} s without a result.") from None
        except NoAnswer as lost:
            if not repeats or lost.kind not in MAY_PASS or (pause := attempts.pause()) is None:
                raise unreachable(lost, url, path) from None
        else:
            if answer.status == 200:
                result = answer.json_object()
                if result is None:
                    raise not_json(answer, url, path)
                return result
            members = error_members(answer, key)
            full = members is not None and members.code in FULL
            gateway = members is None and answer.status in GATEWAY_TROUBLE and repeats
            if not (full or gateway) or (pause := attempts.pause(answer.retry_after)) is None:
                raise refusal(answer, url, path, key)
        await asyncio.sleep(pause)


async def _sent(
    transport: Transport, verb: str, address: str, body: bytes | None, seconds: float, retries: int
) -> HttpResponse:
    """Return the response after following a gateway's redirects. Raises NoAnswer, ForeignRedirect, OutOfHops."""
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
    """An open session, which `TaskAppClient.session` opens and closes. docs/connect/sessions.md describes its responses.

    Each call has a `request_id`, with which the task app executes it only once, so it is sent again if the connection
    breaks. Calls must not overlap. Every method raises TaskAppError (with `status`, `code`, and the `boundary` of a failed
    episode), TaskAppUnreachable and RequestError.

    Args:
        session_id: Id of the session.
        call: Function that makes one call, with the parameters of `exchange` from `verb` on.
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
        """Start an episode.

        Args:
            seed: Seed of the task. None draws one.
            split: Split of the seed.
            config: Arguments of the environment's constructor.
            reward: Weights of the reward. Defaults to the app's weights.
            timeout_s: Time limit of the episode.

        Returns:
            The first `observation`, with `messages`, `tools`, `actions` and `limits`.
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
        """Take one step with a `tool` and its `args`, with several `actions`, or with `text`.

        Args:
            tool: Name of the action.
            args: Arguments of the action.
            actions: Several actions, each with `tool` and `args`.
            text: A model's reply, from which the task app parses the actions.
            timeout_s: Time limit of the step.

        Returns:
            `observation`, `reward` (None if undefined), `done`, and more.
        """
        return await self._call("step", tool=tool, args=args, actions=actions, text=text, timeout_s=timeout_s)

    async def finish(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Truncate and score the episode. If it has already ended, return its last step again."""
        return await self._call("finish", timeout_s=timeout_s)

    async def state(self) -> dict[str, Any]:
        """Describe the session. This also resets its idle time."""
        return await self._exchange("GET", f"/sessions/{self.session_id}", {}, repeats=True)

    async def close(self) -> None:
        """Close the session. A running episode is cancelled."""
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
