"""A client for ORS servers: a session over HTTP, and the descriptions of the environments.

Written against openreward 0.1.167 and ors-sdk 0.1.0 (PyPI). All paths except `/create_session`, `/create` and `/delete`
begin with the environment's name, because both servers redirect paths without the name.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from taskapp_kit.client.blocking_portal import DaemonLoop
from taskapp_kit.errors import KitError
from taskapp_kit.interop.server_episode import MAX_QUOTED, ServerMessage, quoted, status_hint
from taskapp_kit.net.http import HttpResponse, NoAnswer, Transport, read_json
from taskapp_kit.net.retry import Attempts, Backoff
from taskapp_kit.net.sse import FrameTooLarge, SseReader
from taskapp_kit.records.content import Json

MAX_BODY_BYTES = 100 * 1024 * 1024
DESCRIBE_SECONDS = 30.0
"""The time limit for each request for a description."""
CLOSE_SECONDS = 5.0
BACKOFF = Backoff(first_seconds=0.25)
"""The pauses between requests to a server that is not ready."""
NOT_READY = (429, 503)


class OrsFailed(KitError):
    """An ORS server did not respond as expected. The rollout fails and has no reward."""


class OrsConnection:
    """Connections to a server, with at most one session. Methods block the calling thread and may raise OrsFailed.

    Args:
        url: The server's URL, without a trailing slash.
        headers: The headers of each request.
        seconds: The time limit for a call.
        open_seconds: How long `open` waits for a server that is full or starting.
    """

    def __init__(self, url: str, headers: Mapping[str, str], *, seconds: float, open_seconds: float) -> None:
        self._url = url
        self._headers = headers
        self._seconds, self._open_seconds = seconds, open_seconds
        self._transport = Transport(headers, max_body_bytes=MAX_BODY_BYTES)
        self._sid: str | None = None
        self._environment = ""

    def ask(self, path: str, body: Mapping[str, Json] | None = None) -> Any:
        """Send a request that needs no session, and return the JSON of the response.

        If `body` is None, the method is GET.
        """
        return self._read(self._sent(path, body, DESCRIBE_SECONDS), path)

    def open(self, environment: str, split: str, index: int) -> list[dict[str, Json]]:
        """Begin an episode with the task `index` of a split, and return the blocks of the task's prompt."""
        task = self.ask(f"/{quote(environment)}/task", {"split": split, "index": index})
        if not isinstance(task, dict) or not isinstance(task.get("task"), dict):
            raise self._failed("responded to /task without a task")
        frames = self._frames(self._sent("/create_session", {}, DESCRIBE_SECONDS), "/create_session")
        self._sid = next((data for kind, data in frames if kind == "task_id"), None)
        if not self._sid:
            raise self._failed("responded to /create_session without an id")
        self._environment = environment
        self._ready("/create", {"env_name": environment, "task_spec": task["task"]})
        blocks = self._ready(f"/{quote(environment)}/prompt", None)
        if not isinstance(blocks, list):
            raise self._failed("sent a prompt that is not a list of blocks")
        return blocks

    def call(self, tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
        """Call a tool. Return `{"ok", "output"}`, or `{"ok", "error", "reason"}` if the server rejects the call."""
        if self._sid is None:
            raise self._failed("has no open session")
        path = f"/{quote(self._environment)}/call"
        pieces = []
        for kind, data in self._frames(self._sent(path, {"name": tool, "input": dict(arguments)}, self._seconds), path):
            if kind == "error":
                raise self._failed(
                    f"could not run {tool!r}", "The log contains the server's message."
                ) from ServerMessage(quoted(data, self._headers))
            if kind in ("chunk", "end"):
                pieces.append(data)
            if kind == "end":
                result = _parsed("".join(pieces))
                if not isinstance(result, dict) or not isinstance(result.get("ok"), bool):
                    raise self._failed(f"responded to {tool!r} with something other than a tool result")
                return result
        raise self._failed(f"closed the stream before it sent the result of {tool!r}")

    def close(self) -> None:
        """End the session. This method may be called twice."""
        sid, self._sid = self._sid, None
        with suppress(OrsFailed):
            for path in ("/delete", "/delete_session") if sid is not None else ():
                self._sent(path, {}, CLOSE_SECONDS, sid)
        _loop().run(self._transport.aclose())

    def _ready(self, path: str, body: Mapping[str, Json] | None) -> Any:
        """Send a request and return the JSON of the response.

        The request is repeated while the server is full or the episode has not begun.
        """
        attempts = Attempts(BACKOFF, seconds=self._open_seconds)
        while True:
            answer = self._sent(path, body, max(0.1, min(self._seconds, attempts.left)))
            if answer.status not in NOT_READY:
                return self._read(answer, path)
            pause = attempts.pause(answer.retry_after)
            if pause is None:
                raise self._failed(
                    f"was not ready within {self._open_seconds:g} s ({path}: HTTP {answer.status})",
                    "Run fewer rollouts concurrently, or increase open_seconds= of from_ors.",
                )
            time.sleep(pause)

    def _sent(self, path: str, body: Mapping[str, Json] | None, seconds: float, sid: str | None = None) -> HttpResponse:
        sid = sid or self._sid
        headers = {} if sid is None else {"X-Session-ID": sid}
        encoded = None
        if body is not None:
            encoded, headers = (
                json.dumps(body, allow_nan=False).encode(),
                {**headers, "Content-Type": "application/json"},
            )
        verb = "GET" if body is None else "POST"
        try:
            return _loop().run(
                self._transport.send(verb, self._url + path, body=encoded, headers=headers, seconds=seconds)
            )
        except NoAnswer as lost:
            raise self._failed(f"{lost.why} ({path})") from None

    def _read(self, answer: HttpResponse, path: str) -> Any:
        if answer.status != 200:
            raise self._refused(answer, path)
        try:
            return answer.json()
        except ValueError:
            raise self._failed(f"responded to {path} with something other than JSON") from None

    def _frames(self, answer: HttpResponse, path: str) -> list[tuple[str, str]]:
        if answer.status != 200:
            raise self._refused(answer, path)
        try:
            frames = SseReader(max_bytes=MAX_BODY_BYTES).feed(answer.body)
        except FrameTooLarge:
            raise self._failed(f"sent an event that is too large ({path})") from None
        return [(frame.event, frame.data) for frame in frames]

    def _refused(self, answer: HttpResponse, path: str) -> OrsFailed:
        hint = status_hint(answer.status, ", which must not contain a path, and environment=.")
        failed = self._failed(f"responded to {path} with HTTP {answer.status}", hint)
        failed.__cause__ = ServerMessage(
            quoted(answer.body[: 4 * MAX_QUOTED].decode("utf-8", "replace"), self._headers)
        )
        return failed

    def _failed(self, what: str, hint: str = "") -> OrsFailed:
        return OrsFailed(f"The ORS server at {self._url} {what}.", hint=hint)


def _parsed(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        return None


_making = threading.Lock()


def _loop() -> DaemonLoop:
    """Return the event loop that all connections in this process share."""
    with _making:
        return _made_loop()


@functools.cache
def _made_loop() -> DaemonLoop:
    return DaemonLoop("taskapp-ors")
