"""The requests that the mock model records for tests: the latest requests, and counts of all requests."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import parse_qs

from taskapp_kit.records.content import Json


@dataclass(slots=True)
class Recorded:
    """A recorded request.

    Attributes:
        method: The HTTP method.
        path: The path after percent-decoding.
        query: The query string.
        headers: Pairs of header name, in lower case, and value. They include credentials, so that tests can check which
            keys were sent. They are not part of the repr.
        body: The parsed body, or its bytes if the request was rejected before parsing.
        at: Time of arrival, in Unix seconds.
        fault: The injected fault, or None if no fault was injected.
        attempt: How often the same conversation was sent before.
        status: HTTP status of the response, or 0 if there was no response.
    """

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: Any
    at: float
    fault: str | None = None
    attempt: int = 0
    status: int = 0

    @property
    def cid(self) -> str | None:
        """The correlation id in the query string, or None if there is none."""
        return parse_qs(self.query).get("cid", [None])[0]

    def header(self, name: str) -> str | None:
        """Return the value of the first header with this name, or None if there is none. The case of the name is ignored."""
        return next((value for key, value in self.headers if key == name.lower()), None)


@dataclass(slots=True)
class RequestCounts:
    """Counts of all requests since the start. `watched` contains a count for each watched string, in order."""

    requests: int = 0
    answers: int = 0
    refused: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    abandoned: int = 0
    redirects_followed: int = 0
    script_errors: int = 0
    streams: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    connections: int = 0
    open_connections: int = 0
    watched: list[int] = field(default_factory=list)


class RequestLog(RequestCounts):
    """The last `keep` requests, and counts of all requests and of the strings in `watch`.

    The server's thread writes the log, and any thread may read it.
    """

    def __init__(self, keep: int, watch: Sequence[str]) -> None:
        super().__init__(watched=[0] * len(watch))
        self.recorded: deque[Recorded] = deque(maxlen=keep)
        self.keep = keep
        self._watch = [text.encode() for text in watch]
        self._started = time.monotonic()

    def look(self, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Count each watched string that appears anywhere in the request."""
        for index, text in enumerate(self._watch):
            if text in target or text in body or any(text in name or text in value for name, value in headers):
                self.watched[index] += 1

    def begun(self) -> None:
        """Count a request as in flight."""
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def stats(self) -> dict[str, Json]:
        """Return the counts as JSON, without the watched strings themselves."""
        return {**asdict(self), "seconds": round(time.monotonic() - self._started, 3)}
