"""A client for OpenEnv servers: a session over a WebSocket, and the description of the environment over HTTP.

Written against openenv 0.10.0 and openenv-core 0.3.0 (huggingface/OpenEnv): `/ws`, `/schema`, `/metadata`. A frame has
the fields `type` and `data`. Responses arrive in order and have no id. After a timeout or an unexpected frame,
responses can no longer be matched to requests, so the connection is closed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from taskapp_kit.client.blocking_portal import run
from taskapp_kit.errors import InvalidAction, KitError
from taskapp_kit.interop.server_episode import MAX_QUOTED, ServerMessage, quoted, status_hint
from taskapp_kit.net.http import AGENT, NoAnswer, Transport, read_json
from taskapp_kit.net.retry import Attempts, Backoff
from taskapp_kit.records.content import Json
from taskapp_kit.records.formatting import cut

MAX_FRAME_BYTES = 100 * 1024 * 1024
CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 1.0
DESCRIBE_SECONDS = 30.0
"""The time limit for each request to `/schema` and `/metadata`. Some servers create an environment to respond."""
BACKOFF = Backoff(first_seconds=0.2, longest_seconds=2.0)
"""The pauses between attempts to open a session while all sessions are in use."""
UNHEARD = logging.Logger("openenv", logging.CRITICAL)
"""A logger for the package websockets. Its default logger would log the headers, including the key, at level DEBUG."""
ANSWERS = {"reset": "observation", "step": "observation", "state": "state"}
CAPACITY, INVALID = "CAPACITY_REACHED", "VALIDATION_ERROR"
ADDRESS = ". It must be the base_url that OpenEnv's own clients use."
"""The text after "Check the URL" in a hint."""


class OpenEnvFailed(KitError):
    """An OpenEnv server did not respond as expected. The rollout fails and has no reward."""


def _failed(url: str, what: str, hint: str = "") -> OpenEnvFailed:
    return OpenEnvFailed(f"The OpenEnv server at {url} {what}.", hint=hint)


class _Full(Exception):
    """All sessions of the server are in use."""


def described(url: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object at a path of the server. Raises OpenEnvFailed for any other response."""

    async def get() -> dict[str, Any]:
        transport = Transport(headers)
        try:
            answer = await transport.send("GET", url + path, seconds=DESCRIBE_SECONDS)
        except NoAnswer as lost:
            raise _failed(url, f"{lost.why} ({path})", "Start the server first.") from None
        finally:
            await transport.aclose()
        body = answer.json_object()
        if answer.status != 200 or body is None:
            what = "something other than a JSON object" if answer.status == 200 else f"HTTP {answer.status}"
            raise _failed(url, f"responded to {path} with {what}", status_hint(answer.status, ADDRESS))
        return body

    return run(get())


class OpenEnvSocket:
    """A session, which lasts from `open` to `close`. Every method may raise OpenEnvFailed.

    Args:
        url: The server's URL, with http or https.
        headers: The headers of the request that opens the WebSocket.
        seconds: The time limit for a response.
        open_seconds: How long `open` waits if all sessions are in use.
    """

    def __init__(self, url: str, headers: Mapping[str, str], *, seconds: float, open_seconds: float) -> None:
        self._url = url
        self._headers = headers
        self._seconds, self._open_seconds = seconds, open_seconds
        self._socket: ClientConnection | None = None
        self._connection = ExitStack()

    def open(self, data: Mapping[str, Json] | None) -> dict[str, Json]:
        """Connect, send a reset with `data`, and return the data of the response.

        If `data` is None, request the list of tools instead of a reset.
        """
        attempts = Attempts(BACKOFF, seconds=self._open_seconds)
        while True:
            self._connect()
            try:
                return self.call("step", {"type": "list_tools"}) if data is None else self.call("reset", data)
            except _Full as full:
                self.close()
                pause = attempts.pause()
                if pause is None:
                    raise OpenEnvFailed(
                        f"The OpenEnv server at {self._url} had no free session for {self._open_seconds:g} s: {full}",
                        hint="Run fewer rollouts concurrently, or increase the server's max_concurrent_envs.",
                    ) from None
                time.sleep(pause)

    def call(self, kind: str, data: Mapping[str, Json]) -> dict[str, Json]:
        """Send a frame and return the data of its response.

        Raises InvalidAction if the server rejects a step's action as invalid.
        """
        try:
            frame = self._answer_to({"type": kind} if kind == "state" else {"type": kind, "data": dict(data)}, kind)
        except BaseException:
            self.drop()
            raise
        answer = frame.get("data")
        if frame.get("type") == "error":
            self._raise(kind, answer if isinstance(answer, dict) else {})
        if frame.get("type") != ANSWERS[kind] or not isinstance(answer, dict):
            self.drop()
            sent = cut(str(frame.get("type")), 40)
            raise self._failed(f"responded to {kind!r} with a frame of type {sent!r}; expected {ANSWERS[kind]!r}")
        return answer

    def close(self) -> None:
        """End the session. This method may be called twice."""
        if self._socket is not None:
            with suppress(WebSocketException, OSError):
                self._socket.send(json.dumps({"type": "close"}))
        self.drop()

    def drop(self) -> None:
        """Close the connection without a closing frame."""
        self._socket = None
        with suppress(WebSocketException, OSError):
            self._connection.close()

    def _connect(self) -> None:
        parts = urlsplit(self._url)
        address = parts._replace(scheme="wss" if parts.scheme == "https" else "ws").geturl() + "/ws"
        try:
            self._socket = self._connection.enter_context(
                connect(
                    address,
                    additional_headers=dict(self._headers),
                    user_agent_header=AGENT,
                    open_timeout=CONNECT_SECONDS,
                    close_timeout=CLOSE_SECONDS,
                    max_size=MAX_FRAME_BYTES,
                    logger=UNHEARD,
                    ping_interval=None,  # `seconds` limits each response, and a busy server may not answer pings
                )
            )
        except InvalidStatus as error:
            status = error.response.status_code
            hint = status_hint(status, ADDRESS)
            raise self._failed(f"rejected the connection to /ws with HTTP {status}", hint) from None
        except (WebSocketException, OSError) as error:
            what = "it did not respond in time" if isinstance(error, TimeoutError) else type(error).__name__
            raise OpenEnvFailed(f"The OpenEnv server at {self._url} cannot be reached: {what}.") from error

    def _answer_to(self, frame: dict[str, Any], kind: str) -> dict[str, Any]:
        socket = self._socket
        if socket is None:
            raise OpenEnvFailed(f"The connection to the OpenEnv server at {self._url} is closed.")
        with suppress(ConnectionClosed):  # the server may have sent the reason in a last frame before it closed
            socket.send(json.dumps(frame, allow_nan=False))
        try:
            received = socket.recv(timeout=self._seconds)
            try:
                extra: str | bytes | None = socket.recv(timeout=0)
            except (TimeoutError, ConnectionClosed):
                extra = None
        except TimeoutError:
            raise self._failed(
                f"did not respond to {kind!r} within {self._seconds:g} s, so the connection was closed",
                "Increase seconds= of from_openenv.",
            ) from None
        except (ConnectionClosed, OSError) as error:
            raise self._failed(f"closed the connection before it responded to {kind!r}") from error
        if extra is not None:
            raise self._failed("sent an unexpected frame")
        try:
            answer = read_json(received)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._failed(f"responded to {kind!r} with something other than a JSON object")
        return answer

    def _raise(self, kind: str, error: Mapping[str, Json]) -> None:
        code, message = str(error.get("code")), quoted(str(error.get("message")), self._headers)
        if code == CAPACITY:
            raise _Full(message)
        if code == INVALID and kind == "step":
            raise InvalidAction(f"Nothing was done: {_fields(error) or message}")
        self.drop()
        failed = self._failed(f"responded to {kind!r} with an error ({cut(code, 40)})", "See the log.")
        raise failed from ServerMessage(message)

    def _failed(self, what: str, hint: str = "") -> OpenEnvFailed:
        return _failed(self._url, what, hint)


def _fields(error: Mapping[str, Json]) -> str:
    """Return the fields that the server rejected, such as `message: field required`, or "" if the error lists none."""
    listed = error.get("errors")
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return "; ".join(
        cut(f"{'.'.join(map(str, item.get('loc') or ('action',)))}: {item.get('msg')}", MAX_QUOTED)
        for item in items[:5]
    )
