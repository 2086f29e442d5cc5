"""Requests recorded by the mock model for tests: the last ones, and counts of all."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from taskapp_kit.contract.content import Json


@dataclass(slots=True)
class Recorded:
    """One request. body: parsed, or the bytes where it was refused unread. at: unix seconds. fault: which it met, if any.

    headers: names in lower case and values as they came, credentials included, so that a test can say which keys arrived;
    they are left out when the record is printed. attempt: how often the same conversation came before.
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
        """The correlation id in the query."""
        return parse_qs(self.query).get("cid", [None])[0]

    def header(self, name: str) -> str | None:
        """The first header of that name, in any case."""
        return next((value for key, value in self.headers if key == name.lower()), None)


class RequestLog:
    """The last `keep` requests and the counts of all. watched: texts that are looked for in every request, and counted.

    Written on the server's thread; may be read on any.
    """

    def __init__(self, keep: int, watch: Sequence[str]) -> None:
        self.recorded: deque[Recorded] = deque(maxlen=keep)
        self.keep = keep
        self._watch = [text.encode() for text in watch]
        self.watched = [0] * len(self._watch)
        self.started = time.monotonic()
        self.requests = self.answers = self.refused = self.abandoned = self.redirects_followed = self.script_errors = 0
        self.streams = self.prompt_tokens = self.completion_tokens = 0
        self.in_flight = self.most_in_flight = self.connections = self.open_connections = 0
        self.faults: Counter[str] = Counter()

    def look(self, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Counts each watched text that is anywhere in the request."""
        for index, text in enumerate(self._watch):
            if text in target or text in body or any(text in name or text in value for name, value in headers):
                self.watched[index] += 1

    def begun(self) -> None:
        """A request is being answered."""
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def stats(self) -> dict[str, Json]:
        """The counts as JSON; `watched` in the order of the texts, which are not included."""
        return {
            "requests": self.requests,
            "answers": self.answers,
            "refused": self.refused,
            "faults": dict(self.faults),
            "abandoned": self.abandoned,
            "redirects_followed": self.redirects_followed,
            "script_errors": self.script_errors,
            "streams": self.streams,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "in_flight": self.in_flight,
            "most_in_flight": self.most_in_flight,
            "connections": self.connections,
            "open_connections": self.open_connections,
            "watched": list(self.watched),
            "seconds": round(time.monotonic() - self.started, 3),
        }
