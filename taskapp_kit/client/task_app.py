"""The HTTP clients of a task app: `TaskAppClient` and the blocking `SyncTaskAppClient`."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote, urlencode

import orjson

from taskapp_kit.client.blocking_portal import loop_thread, run
from taskapp_kit.client.rollout_call import RolloutCall
from taskapp_kit.client.session import RemoteSession, SyncRemoteSession, exchange
from taskapp_kit.client.task_app_errors import not_json, refusal, unreachable
from taskapp_kit.errors import ConfigError, RequestError, TaskAppError
from taskapp_kit.net.addresses import read_address
from taskapp_kit.net.http import HttpResponse, NoAnswer, Transport, header_key
from taskapp_kit.net.retry import again

if TYPE_CHECKING:
    from taskapp_kit.wire.rollout import RolloutRequest


REQUEST_SECONDS = 60.0
"""Time limit in seconds of a request other than a rollout."""
MAX_KEY = 255
Refuse = Callable[[str], str | None]
"""Receives the IP address of each connection. Returns the reason to reject it, as a sentence, or None."""

Result = TypeVar("Result")


class TaskAppClient:
    """Client of one task app: `async with TaskAppClient(url, key) as client: answer = await client.rollout(request)`.

    Only 303 redirects to the same server are followed. Every method that sends a request raises TaskAppError if the task
    app rejects it, and TaskAppUnreachable if it does not respond.

    Args:
        url: The task app's address.
        api_key: API key, sent as X-API-Key to this address only. None sends no key.
        timeout_seconds: Time limit of a rollout, including retries.
        retries: How often a request that is safe to repeat is repeated.
        hop_seconds: Time limit for the response to one redirect or poll. The POST itself may take as long as the
            rollout, because a server without a gateway responds only when the rollout has ended.
        headers: Additional headers for every request, such as `Modal-Key` and `Modal-Secret`.
        refuse: Function that receives the IP address of each connection and returns the reason to reject the
            connection, or None to accept it.

    Raises:
        ConfigError: The address, the key or the time limit is invalid.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        timeout_seconds: float = 3600.0,
        retries: int = 3,
        hop_seconds: float = 170.0,
        headers: Mapping[str, str] | None = None,
        refuse: Refuse | None = None,
    ) -> None:
        self.url = read_address(url)
        self.timeout_seconds = _seconds(timeout_seconds)
        self.retries = retries
        self.hop_seconds = hop_seconds
        self._key = header_key(api_key, "The task app's key")
        own = {} if self._key is None else {"X-API-Key": self._key}
        guard = None if refuse is None else lambda host, address: refuse(address)
        self._transport = Transport({**(headers or {}), **own}, guard=guard)
        self._rng = random.Random()

    async def health(self) -> dict[str, Any]:
        """Send `GET /health` and return the response. The request is never retried."""
        return await self._object("/health", retries=0)

    async def info(self) -> dict[str, Any]:
        """Send `GET /info` and return the response."""
        return await self._object("/info", retries=self.retries)

    async def task_info(self, seeds: Sequence[int] = (), **query: str) -> Any:
        """Send `GET /task_info` and return the response.

        Args:
            seeds: Seeds of the tasks to describe. If empty, the response describes the task app.
            **query: Additional parameters, such as `environment="adder"`.

        Returns:
            An object for at most one seed, an array for several seeds.
        """
        pairs = [*(("seed", str(seed)) for seed in seeds), *query.items()]
        return await self.get("/task_info" + (f"?{urlencode(pairs)}" if pairs else ""))

    async def get(self, path: str, *, retries: int | None = None, seconds: float = REQUEST_SECONDS) -> Any:
        """Send a GET request and return the decoded JSON of the response.

        Args:
            path: URL-encoded path and query, starting with a slash.
            retries: How often the request is retried. Defaults to the client's `retries`.
            seconds: Time limit of the request.
        """
        shown = path.partition("?")[0]
        answer = await self._get(path, shown, self.retries if retries is None else retries, seconds)
        if answer.status != 200:
            raise refusal(answer, self.url, shown, self._key)
        try:
            return answer.json()
        except ValueError:
            raise not_json(answer, self.url, shown) from None

    async def rollouts(self, **filters: str | float) -> dict[str, Any]:
        """Send `GET /rollouts` and return a page of stored rollouts, newest first. `next_cursor` is None on the last page.

        Args:
            **filters: environment, policy, status, boundary, reward_above, reward_below, run_id, group_id, limit, cursor.
                `key_label` requires an admin key.
        """
        return await self._object("/rollouts" + (f"?{urlencode(filters)}" if filters else ""), retries=self.retries)

    async def rollout_by_id(self, rollout_id: str, *, events: bool = False) -> dict[str, Any]:
        """Send `GET /rollouts/{rollout_id}` and return the response of a rollout that has ended.

        Args:
            rollout_id: Id of the rollout.
            events: Whether to include the rollout's events.

        Raises:
            TaskAppError: The rollout does not exist (`status` 404), failed (`boundary`), or is running (202).
        """
        path = f"/rollouts/{quote(rollout_id, safe='')}"
        try:
            return await self._object(path + ("?events=1" if events else ""), retries=self.retries)
        except TaskAppError as error:
            if error.status != 202:
                raise
            message = f"The rollout {rollout_id} at {self.url} is still running."
            raise TaskAppError(message, status=202, code="running", hint="Call this method again later.") from None

    async def recorded_rollout(self, rollout_id: str) -> dict[str, Any]:
        """Send `GET /rollouts/{rollout_id}?events=1` and return the response of a rollout that was scored or failed.

        The response of a failed rollout is the error envelope, with the events in `trace`.

        Raises:
            TaskAppError: The rollout does not exist or is running.
        """
        path = f"/rollouts/{quote(rollout_id, safe='')}?events=1"
        answer = await self._get(path, path, 0, REQUEST_SECONDS)  # no retries: 502 and 504 mean that the rollout failed
        body = answer.json_object()
        if body is not None and ("trajectories" in body or "trace" in body):
            return body
        if answer.status == 202:
            return await self.rollout_by_id(rollout_id)
        raise refusal(answer, self.url, path.partition("?")[0], self._key)

    async def blob(self, sha256: str) -> bytes | None:
        """Send `GET /blobs/{sha256}` and return the bytes of the PNG image, or None if it does not exist."""
        path = f"/blobs/{quote(sha256, safe='')}"
        answer = await self._get(path, path, self.retries, REQUEST_SECONDS)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise refusal(answer, self.url, path, self._key)
        return answer.body

    async def rollout(
        self,
        request: RolloutRequest | Mapping[str, Any],
        *,
        timeout_seconds: float | None = None,
        idempotency_key: str | None = None,
        submit: bool = False,
        once: bool = False,
    ) -> dict[str, Any]:
        """Run one episode.

        Args:
            request: Body of `POST /rollout`.
            timeout_seconds: Time limit of the rollout. Defaults to the client's time limit.
            idempotency_key: 1 to 255 visible ASCII characters. With a key, the client repeats the POST if the
                connection breaks, and the task app still runs only one episode.
            submit: Whether to request a `202` response and poll for the result, so that no connection has to stay open.
                If the caller gives up, the rollout is cancelled unless it has an idempotency key.
            once: If true, a POST that was sent is never repeated, even with a key, because a task app that was
                restarted in the meantime would run a second episode.

        Returns:
            The response of `POST /rollout`, a JSON object that is not validated further.

        Raises:
            TaskAppError: The task app rejected the request, or the rollout failed. The error has `status`, `code`,
                `boundary` and `rollout_id`.
            JobTimeout: The rollout did not end in time.
            RequestError: The request cannot be encoded as JSON.
            ConfigError: The idempotency key or the time limit is invalid.
        """
        if idempotency_key is not None and not (
            0 < len(idempotency_key) <= MAX_KEY and all("!" <= character <= "~" for character in idempotency_key)
        ):
            raise ConfigError(f"An idempotency key must have 1 to {MAX_KEY} visible ASCII characters, without spaces.")
        call = RolloutCall(
            transport=self._transport,
            url=self.url,
            key=self._key,
            body=_body(request),
            idempotency_key=idempotency_key,
            submit=submit,
            timeout_seconds=self.timeout_seconds if timeout_seconds is None else _seconds(timeout_seconds),
            hop_seconds=self.hop_seconds,
            retries=self.retries,
            rng=self._rng,
            once=once,
        )
        return await call.answer()

    @asynccontextmanager
    async def session(self, env_name: str | None = None, *, run_id: str | None = None) -> AsyncIterator[RemoteSession]:
        """Open a session of an environment, and close it when the `with` block ends.

        Example: `async with client.session("adder") as session: await session.reset(seed=0)`. If the server is full,
        opening the session is retried up to `retries` times.

        Args:
            env_name: Name of the environment. Defaults to the app's first environment.
            run_id: Run id that the server stores with the session's episodes.
        """
        body = {name: value for name, value in (("env_name", env_name), ("run_id", run_id)) if value is not None}
        call = partial(
            exchange, self._transport, self.url, self._key, seconds=self.timeout_seconds, retries=self.retries
        )
        opened = await call("POST", "/sessions", body, repeats=False)
        session = RemoteSession(opened["session_id"], call)
        try:
            yield session
        finally:
            with suppress(TaskAppError):  # the server may be gone, and a session that stays open expires when idle
                await session.close()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _object(self, path: str, *, retries: int) -> dict[str, Any]:
        body = await self.get(path, retries=retries)
        if not isinstance(body, dict):
            raise TaskAppError(
                f"{self.url}{path.partition('?')[0]} returned JSON that is not an object.",
                status=200,
                code="not_json",
                hint="Check whether this is the address of a task app.",
            )
        return body

    async def _get(self, path: str, shown: str, retries: int, seconds: float) -> HttpResponse:
        try:
            return await again(
                lambda: self._transport.send("GET", self.url + path, seconds=seconds), retries=retries, rng=self._rng
            )
        except NoAnswer as lost:
            raise unreachable(lost, self.url, shown) from None


class SyncTaskAppClient:
    """A blocking version of TaskAppClient with the same methods and errors. It blocks a running event loop.

    Each call opens and closes its own connections, so threads may share an instance.

    Args:
        url: The task app's address.
        api_key: API key, as for TaskAppClient.
        **options: Other arguments of TaskAppClient.

    Raises:
        ConfigError: The address, the key or the time limit is invalid.
    """

    def __init__(self, url: str, api_key: str | None = None, **options: Any) -> None:
        self.url = TaskAppClient(url, api_key, **options).url
        self._open: Callable[[], TaskAppClient] = lambda: TaskAppClient(url, api_key, **options)

    def health(self) -> dict[str, Any]:
        """See TaskAppClient."""
        return self._do(lambda client: client.health())

    def info(self) -> dict[str, Any]:
        """See TaskAppClient."""
        return self._do(lambda client: client.info())

    def task_info(self, seeds: Sequence[int] = (), **query: str) -> Any:
        """See TaskAppClient."""
        return self._do(lambda client: client.task_info(seeds, **query))

    def get(self, path: str, *, retries: int | None = None, seconds: float = REQUEST_SECONDS) -> Any:
        """See TaskAppClient."""
        return self._do(lambda client: client.get(path, retries=retries, seconds=seconds))

    def rollouts(self, **filters: str | float) -> dict[str, Any]:
        """See TaskAppClient."""
        return self._do(lambda client: client.rollouts(**filters))

    def rollout_by_id(self, rollout_id: str, *, events: bool = False) -> dict[str, Any]:
        """See TaskAppClient."""
        return self._do(lambda client: client.rollout_by_id(rollout_id, events=events))

    def rollout(
        self,
        request: RolloutRequest | Mapping[str, Any],
        *,
        timeout_seconds: float | None = None,
        idempotency_key: str | None = None,
        submit: bool = False,
    ) -> dict[str, Any]:
        """See TaskAppClient."""
        return self._do(
            lambda client: client.rollout(
                request, timeout_seconds=timeout_seconds, idempotency_key=idempotency_key, submit=submit
            )
        )

    @contextmanager
    def session(self, env_name: str | None = None, *, run_id: str | None = None) -> Iterator[SyncRemoteSession]:
        """See TaskAppClient. The session uses separate connections until the `with` block ends."""
        with (
            loop_thread() as thread,
            thread.entered(self._open()) as client,
            thread.entered(client.session(env_name, run_id=run_id)) as session,
        ):
            yield SyncRemoteSession(session, thread)

    def close(self) -> None:
        """Do nothing, because each call closes its own connections."""

    def __enter__(self) -> SyncTaskAppClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, call: Callable[[TaskAppClient], Awaitable[Result]]) -> Result:
        async def once() -> Result:
            async with self._open() as client:
                return await call(client)

        return run(once())


def _seconds(timeout: float) -> float:
    if not 0 < timeout < math.inf:
        raise ConfigError("The timeout of a rollout must be a number of seconds greater than 0.")
    return timeout


def _body(request: RolloutRequest | Mapping[str, Any]) -> bytes:
    if not isinstance(request, Mapping):
        return request.model_dump_json(by_alias=True, exclude_unset=True).encode()
    try:
        return orjson.dumps(dict(request))
    except TypeError as error:
        raise RequestError(f"The rollout request cannot be encoded as JSON: {error}.") from None
