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
"""Error codes of a rejected new session that may be accepted once other sessions have closed."""

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
    """Make one call of a session and return the JSON object in the response.

    `repeats` states that the server executes the call only once, however often it is received. Such a call is sent
    again if the connection breaks or a gateway fails. Any other call is sent again only if the server has not started
    it: the connection was not established, or no session was free. Redirects from a gateway that does not wait for the
    end of the call are followed for at most `seconds`.

    Raises TaskAppError if the call is rejected or fails, and TaskAppUnreachable if the server does not respond.
    """
    try:
        encoded = orjson.dumps(body) if verb == "POST" else None
    except TypeError as error:
        raise RequestError(f"The request body for {path} cannot be encoded as JSON: {error}.") from None
    attempts = Attempts(Backoff(), retries=retries)
    while True:
        try:
            answer = await _sent(transport, verb, url + path, encoded, seconds, retries)
        except ForeignRedirect as foreign:
            raise not_followed(foreign, url, path) from None
        except OutOfHops:
            raise TaskAppUnreachable(f"{url}{path} returned only redirects for {seconds:g} s.") from None
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
    """Send a request, follow redirects, and return the response.

    Raises NoAnswer if no response arrives, ForeignRedirect if a redirect leaves the server, and OutOfHops after too
    many redirects.
    """
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
    """An open session, created by `TaskAppClient.session`. docs/connect/sessions.md describes the responses.

    Each call has a `request_id`, so that the task app executes the call only once even if it is sent again after the
    connection breaks. Calls must not overlap. Every method raises TaskAppError if the call is rejected or the episode
    fails (with `status`, `code` and the `boundary` of the failure), TaskAppUnreachable if the server does not respond,
    and RequestError if an argument cannot be encoded as JSON.

    Args:
        session_id: The session's id.
        call: Function that makes one HTTP call to the session. It accepts the parameters of `exchange`, starting with
            `verb`.
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
            seed: Seed of the task. Defaults to a random seed.
            split: Split of the seed.
            config: Arguments of the environment's constructor.
            reward: Weights of the reward. Defaults to the app's weights.
            timeout_s: Time limit of the episode.

        Returns:
            An object with the first `observation`, and with `messages`, `tools`, `actions` and `limits`.
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
            An object with `observation`, `reward` (None if undefined), `done` and other fields.
        """
        return await self._call("step", tool=tool, args=args, actions=actions, text=text, timeout_s=timeout_s)

    async def finish(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Truncate and score the episode, and return the result of its last step.

        An episode that has already ended does not change.
        """
        return await self._call("finish", timeout_s=timeout_s)

    async def state(self) -> dict[str, Any]:
        """Return a description of the session. This also restarts the session's idle timeout."""
        return await self._exchange("GET", f"/sessions/{self.session_id}", {}, repeats=True)

    async def close(self) -> None:
        """Close the session. A running episode is cancelled."""
        await self._exchange("DELETE", f"/sessions/{self.session_id}", {}, repeats=False)

    async def _call(self, verb: str, **members: Any) -> dict[str, Any]:
        body = {name: value for name, value in members.items() if value is not None}
        path = f"/sessions/{self.session_id}/{verb}"
        return await self._exchange("POST", path, {**body, "request_id": uuid.uuid4().hex}, repeats=True)


class SyncRemoteSession:
    """A blocking version of RemoteSession with the same methods and errors."""

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
