"""Sends one request to a server of any kind, and describes the response in words, for `checks`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from taskapp_kit.net.envelope import error_members, sentence
from taskapp_kit.net.http import CHECK_PROXY, HttpResponse, NoAnswer, Transport, Trouble

MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_NAME = 80
WHAT_TO_DO = {
    Trouble.PROXY: CHECK_PROXY,
    Trouble.UNKNOWN_HOST: (
        "Check the spelling of the host. A new tunnel or deploy may take a minute until its name is known."
    ),
    Trouble.CERTIFICATE: "Give the host name that the certificate is for; on this machine http:// needs none.",
    Trouble.TLS: "If that server speaks plain HTTP, write http:// instead of https://.",
    Trouble.NOT_HTTP: "Another program listens there, or the address needs https://. Check the port.",
    Trouble.CONNECT_TIMEOUT: "A firewall may stand between. Check host and port.",
    Trouble.TIMEOUT: (
        "It takes connections and does not answer. A cold container may need a minute: try again, then read its log."
    ),
    Trouble.DROPPED: "Something stands there that ends connections. Read its log.",
    Trouble.TRUNCATED: "Something stands there that ends connections. Read its log.",
    Trouble.TOO_LARGE: "That is no answer of such a server. Check host, port and path.",
}
"""For each reason why there is no response; any other one means that nothing listens."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A response, or why there is none. Exactly one of `answer` and `lost` is set."""

    answer: HttpResponse | None = None
    lost: NoAnswer | None = None

    @property
    def status(self) -> int:
        """The HTTP status; 0 without a response."""
        return self.answer.status if self.answer is not None else 0

    @property
    def object(self) -> dict[str, Any] | None:
        """The JSON object of the body; None for anything else."""
        return self.answer.json_object() if self.answer is not None else None

    @property
    def code(self) -> str:
        """The code of an error envelope; "" when there is none."""
        error = error_members(self.answer) if self.answer is not None else None
        return error.code if error is not None else ""

    @property
    def words(self) -> str:
        """The response in words: `404`, `200 with a web page`, `307, a redirect to example.org`; else why there is none."""
        if self.answer is None:
            return self.lost.why if self.lost is not None else "nothing"
        kind = self.answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if 300 <= self.status < 400:
            return f"{self.status}, a redirect{_towards(self.answer)}"
        if kind in ("text/html", "application/xhtml+xml") or self.answer.body.lstrip()[:1] == b"<":
            return f"{self.status} with a web page"
        if self.object is not None:
            return f"{self.status}" if self.status != 200 else "200 with a JSON object"
        return f"{self.status}" if self.status != 200 else "200 with something that is no JSON object"

    def do_without_answer(self, start: str) -> str:
        """Return what to do when there is no response. start: how such a server is started, for when nothing listens."""
        return start if self.lost is None else WHAT_TO_DO.get(self.lost.kind, start)


@dataclass(slots=True)
class Prober:
    """Sends requests to one server. headers: the key, sent where `keyed` says so. seconds: for each request."""

    url: str
    headers: Mapping[str, str]
    seconds: float
    _transport: Transport

    @classmethod
    def at(cls, url: str, headers: Mapping[str, str], seconds: float) -> Prober:
        """Return a prober of a checked address."""
        return cls(url, headers, seconds, Transport({}, MAX_ANSWER_BYTES))

    async def ask(self, path: str, *, verb: str = "GET", body: bytes | None = None, keyed: bool = True) -> ProbeResult:
        """Send one request; redirects are not followed and nothing is repeated."""
        headers = self.headers if keyed else {}
        try:
            return ProbeResult(
                await self._transport.send(verb, self.url + path, body=body, headers=headers, seconds=self.seconds)
            )
        except NoAnswer as lost:
            return ProbeResult(lost=lost)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


def name_of(value: Any, key: str | None) -> str:
    """Return a name that a server gave as one short line without any part of the key; "" when it is no text."""
    return sentence(value, key)[:MAX_NAME] if isinstance(value, str) else ""


def _towards(answer: HttpResponse) -> str:
    """Return the host that a redirect leads to, and nothing else of its address, which may hold anything."""
    try:
        host = urlsplit(answer.headers.get("location", "")).hostname
    except ValueError:
        host = None
    here = urlsplit(answer.url).hostname
    return f" to {sentence(host)[:MAX_NAME]}" if host and host != here else " to another path" if here else ""
