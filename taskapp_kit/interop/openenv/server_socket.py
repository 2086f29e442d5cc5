"""One session of an OpenEnv server, over its WebSocket; and what the server says of its environment, over HTTP.

Written against openenv 0.10.0 and openenv-core 0.3.0 (huggingface/OpenEnv): `/ws`, `/schema`, `/metadata`. Frames are
{"type", "data"}, answered in their order and without an id. So after a time-out, or a frame that nothing requested, it is no
longer known which answer belongs to which request, and the connection is closed.
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
from taskapp_kit.records.words import cut

MAX_FRAME_BYTES = 100 * 1024 * 1024
CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 1.0
DESCRIBE_SECONDS = 30.0
"""For `/schema` and `/metadata`, each; some servers make an environment to answer them."""
BACKOFF = Backoff(first_seconds=0.2, longest_seconds=2.0)
"""Between two attempts to open a session where all are in use."""
UNHEARD = logging.Logger("openenv", logging.CRITICAL)
"""For websockets, whose own logger writes the request's headers, and so the key, at level DEBUG."""
ANSWERS = {"reset": "observation", "step": "observation", "state": "state"}
CAPACITY, INVALID = "CAPACITY_REACHED", "VALIDATION_ERROR"
ADDRESS = ": it is the one that OpenEnv's own clients take as base_url."
"""What the URL has to be, behind "Check the URL"."""


class OpenEnvFailed(KitError):
    """An OpenEnv server did not do what it was asked for. It is a failure of the rollout, never a reward."""


def _failed(url: str, what: str, hint: str = "") -> OpenEnvFailed:
    return OpenEnvFailed(f"The OpenEnv server at {url} {what}.", hint=hint)


class _Full(Exception):
    """Every session of the server is in use."""


def described(url: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object at a path of the server. Raises OpenEnvFailed."""

    async def get() -> dict[str, Any]:
        transport = Transport(headers)
        try:
            answer = await transport.send("GET", url + path, seconds=DESCRIBE_SECONDS)
        except NoAnswer as lost:
            raise _failed(url, f"{lost.why} ({path})", "Start it first.") from None
        finally:
            await transport.aclose()
        found = answer.json_object()
        if answer.status != 200 or found is None:
            what = "something that is no JSON object" if answer.status == 200 else f"HTTP {answer.status}"
            raise _failed(url, f"answered {path} with {what}", status_hint(answer.status, ADDRESS))
        return found

    return run(get())


class OpenEnvSocket:
    """A session: it begins with `open`, which resets, and ends with `close`. Every method raises OpenEnvFailed.

    url: the server's, http or https. headers: what the connection's request carries. seconds: the longest time that one
    answer may take. open_seconds: how long `open` waits for a session while all are in use.
    """

    def __init__(self, url: str, headers: Mapping[str, str], *, seconds: float, open_seconds: float) -> None:
        self._url = url
        self._headers = headers
        self._seconds, self._open_seconds = seconds, open_seconds
        self._socket: ClientConnection | None = None
        self._connection = ExitStack()

    def open(self, data: Mapping[str, Json] | None) -> dict[str, Json]:
        """Connect and reset; return the answer. None for data: list the tools instead, which needs no episode."""
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
                        hint="Play fewer rollouts at once, or raise its max_concurrent_envs.",
                    ) from None
                time.sleep(pause)

    def call(self, kind: str, data: Mapping[str, Json]) -> dict[str, Json]:
        """Send a frame and return the data of its answer.

        Raises InvalidAction where the server finds that a step's action does not fit its model.
        """
        try:
            frame = self._answer_to({"type": kind} if kind == "state" else {"type": kind, "data": dict(data)}, kind)
        except BaseException:
            self.drop()
            raise
        found = frame.get("data")
        if frame.get("type") == "error":
            self._raise(kind, found if isinstance(found, dict) else {})
        if frame.get("type") != ANSWERS[kind] or not isinstance(found, dict):
            self.drop()
            sent = cut(str(frame.get("type")), 40)
            raise self._failed(f"answered {kind!r} with a frame of type {sent!r}; expected {ANSWERS[kind]!r}")
        return found

    def close(self) -> None:
        """End the session. May be called twice."""
        if self._socket is not None:
            with suppress(WebSocketException, OSError):
                self._socket.send(json.dumps({"type": "close"}))
        self.drop()

    def drop(self) -> None:
        """Close the connection without a word."""
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
                    ping_interval=None,  # `seconds` limits each answer; a server that computes may answer no ping
                )
            )
        except InvalidStatus as error:
            status = error.response.status_code
            hint = status_hint(status, ADDRESS)
            raise self._failed(f"refused the connection to /ws with HTTP {status}", hint) from None
        except (WebSocketException, OSError) as error:
            what = "did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__
            raise OpenEnvFailed(f"No connection to the OpenEnv server at {self._url}: {what}.") from error

    def _answer_to(self, frame: dict[str, Any], kind: str) -> dict[str, Any]:
        socket = self._socket
        if socket is None:
            raise OpenEnvFailed(f"The connection to the OpenEnv server at {self._url} is closed.")
        with suppress(ConnectionClosed):  # it may have closed with a last frame, which says why
            socket.send(json.dumps(frame, allow_nan=False))
        try:
            received = socket.recv(timeout=self._seconds)
            try:
                extra: str | bytes | None = socket.recv(timeout=0)
            except (TimeoutError, ConnectionClosed):
                extra = None
        except TimeoutError:
            raise self._failed(
                f"did not answer {kind!r} within {self._seconds:g} s; its answers carry no id, so the connection was closed",
                "Give from_openenv more seconds=.",
            ) from None
        except (ConnectionClosed, OSError) as error:
            raise self._failed(f"closed the connection before it answered {kind!r}") from error
        if extra is not None:
            raise self._failed("sent a frame that nothing requested")
        try:
            answer = read_json(received)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._failed(f"answered {kind!r} with something that is no JSON object")
        return answer

    def _raise(self, kind: str, error: Mapping[str, Json]) -> None:
        code, message = str(error.get("code")), quoted(str(error.get("message")), self._headers)
        if code == CAPACITY:
            raise _Full(message)
        if code == INVALID and kind == "step":
            raise InvalidAction(f"Nothing was done: {_fields(error) or message}")
        self.drop()
        failed = self._failed(f"answered {kind!r} with an error ({cut(code, 40)})", "The log has its message.")
        raise failed from ServerMessage(message)

    def _failed(self, what: str, hint: str = "") -> OpenEnvFailed:
        return _failed(self._url, what, hint)


def _fields(error: Mapping[str, Json]) -> str:
    """What the server's model finds wrong: `message: field required`."""
    listed = error.get("errors")
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return "; ".join(
        cut(f"{'.'.join(map(str, item.get('loc') or ('action',)))}: {item.get('msg')}", MAX_QUOTED)
        for item in items[:5]
    )
