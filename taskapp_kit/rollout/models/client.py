"""HttpModelClient, which calls OpenAI-compatible chat completions endpoints. A process has one client.

It uses guarded connections (`ModelConnections`, over `net/http.py`), keys (`model_settings`), retries and limits on
concurrent calls to a host (`attempts`), the parsing of responses (`response`), and the response cache (`cache`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson

from taskapp_kit.config import Settings
from taskapp_kit.errors import Failure
from taskapp_kit.net.addresses import AddressPolicy, Exposure, NotAnAddress, ParsedUrl, read_url
from taskapp_kit.net.http import HttpResponse, NoAnswer, Transport, Trouble
from taskapp_kit.net.redact import without_keys
from taskapp_kit.net.retry import ForeignRedirect, OutOfHops, follow, next_address
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import Clock, SystemClock
from taskapp_kit.rollout.models.attempts import (
    AttemptFailed,
    ConcurrencyLimiter,
    HostLimiter,
    Sleep,
    persist,
    retry_after,
)
from taskapp_kit.rollout.models.cache import ResponseCache
from taskapp_kit.rollout.models.model_settings import LEAST_HIDDEN, Credentials, ModelNames, Price
from taskapp_kit.rollout.models.response import read_reply, read_reward_reply
from taskapp_kit.wire.chat.conversation import ChatReply, Endpoint, ModelFailed
from taskapp_kit.wire.inference_url import stored_url

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver

log = logging.getLogger("taskapp_kit.policy")

ATTEMPT_SECONDS = 600.0
"""The time limit of one attempt. If the call has more time, it may retry."""
MOST_REMEMBERED = 4096
IDLE_SECONDS = 30.0
"""How long an idle connection can be reused. If the server closes it during a call, the call is sent again."""
MAX_ANSWER_BYTES = 32 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
MAX_HOPS = 48
"""The limit on redirects. Modal sends a 303 every 150 s, so this allows two hours."""
HOP_SECONDS = 600.0
# the event loop would have to decompress responses while other rollouts wait
HEADERS = {"Accept-Encoding": "identity"}

_UNREACHABLE = ("unreachable", "does not accept connections")
_ATTEMPTS: Mapping[Trouble, tuple[str, str]] = {
    Trouble.REFUSED: _UNREACHABLE,
    Trouble.CONNECT: _UNREACHABLE,
    Trouble.CONNECT_TIMEOUT: _UNREACHABLE,
    Trouble.UNKNOWN_HOST: ("unreachable", "cannot be found, because its host name does not resolve"),
    Trouble.TLS: ("unreachable", "failed the TLS handshake"),
    Trouble.CERTIFICATE: ("untrusted", "has a certificate that this machine does not trust"),
    Trouble.TRUNCATED: ("truncated", "sent an incomplete response"),
    Trouble.NOT_HTTP: ("malformed", "sent a response that is not HTTP"),
    Trouble.UNSENDABLE: ("malformed", "sent a response that is not HTTP"),
    Trouble.TOO_LARGE: ("malformed", f"sent more than {MAX_ANSWER_BYTES} bytes"),
}
_DROPPED = ("dropped", "closed the connection before it sent a response")


class ModelConnections:
    """Connections to models at addresses that `rules` allow, without cookies, proxies or redirects to other servers."""

    def __init__(self, rules: AddressPolicy, resolver: AbstractResolver | None = None) -> None:
        self._rules = rules
        self._transport = Transport(
            HEADERS,
            max_body_bytes=MAX_ANSWER_BYTES,
            max_error_bytes=MAX_ERROR_BYTES,
            guard=rules.refusal,
            resolver=resolver,
            idle_seconds=IDLE_SECONDS,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.aclose()

    async def post(self, called: ParsedUrl, body: bytes, key: str | None) -> HttpResponse:
        """Send one POST and follow 303 redirects. Raises AttemptFailed if no response arrives. The caller limits the time."""
        headers = None if key is None else {"Authorization": f"Bearer {key}"}
        try:
            answer = await self._transport.send("POST", called.url, body=body, headers=headers, seconds=None)
            if 300 <= answer.status < 400:
                answer = await self._follow(called, answer, headers)
        except NoAnswer as lost:
            raise self._failed(lost, called) from None
        return answer

    async def _follow(self, called: ParsedUrl, answer: HttpResponse, headers: Mapping[str, str] | None) -> HttpResponse:
        status = answer.status
        try:
            answer = await follow(
                self._transport,
                answer,
                hops=MAX_HOPS,
                # `persist` retries the whole call
                retries=0,
                hop_seconds=HOP_SECONDS,
                left=lambda: math.inf,
                headers=headers,
            )
            status = answer.status
            if not 300 <= status < 400:
                return answer
            next_address(answer.url, answer.headers.get("location"))
            where = f" to {called.place}"  # a redirect other than 303 to the same server
        except ForeignRedirect as foreign:
            where = f" to {foreign.place}" if foreign.place else ""
        except OutOfHops:
            raise AttemptFailed("redirected", f"redirected {MAX_HOPS} times without a response", status=303) from None
        raise AttemptFailed(
            "redirected", f"redirected{where} ({status}), which this server does not follow", status=status
        )

    def _failed(self, lost: NoAnswer, called: ParsedUrl) -> AttemptFailed:
        if lost.kind is Trouble.FORBIDDEN:
            hint = self._rules.hint(called.host, lost.why)
            return AttemptFailed("address_refused", f"is at {lost.why}, which this server must not call", hint=hint)
        kind, words = _ATTEMPTS.get(lost.kind, _DROPPED)
        return AttemptFailed(kind, words, status=lost.status or None)


@dataclass(frozen=True, slots=True)
class ResolvedEndpoint:
    """A checked address. own_key: the key configured for this address, or None if there is no such key."""

    called: ParsedUrl
    own_key: str | None
    host_key: str


class HttpModelClient:
    """Calls models over HTTP. Connections are opened at the first call, on the current event loop.

    exposure, settings: the server's exposure and settings. is_server_key: a function that recognizes API keys of
    this server, including keys that are not in the settings. model_names: the models with prices. throttle: the limits
    on concurrency, or None for new limits. resolver, clock, sleep, rng: replaceable in tests. attempt_seconds: the time
    limit of one attempt. Raises ConfigError if `inference_allow` or `inference_keys_for` is invalid.
    """

    def __init__(
        self,
        exposure: Exposure,
        settings: Settings,
        clock: Clock | None = None,
        *,
        is_server_key: Callable[[str], bool] | None = None,
        model_names: ModelNames | None = None,
        throttle: ConcurrencyLimiter | None = None,
        resolver: AbstractResolver | None = None,
        sleep: Sleep = asyncio.sleep,
        rng: random.Random | None = None,
        attempt_seconds: float = ATTEMPT_SECONDS,
    ) -> None:
        self.rules = AddressPolicy(exposure, settings.inference_allow)
        self.keys = Credentials(settings, is_server_key=is_server_key)
        self.cache = ResponseCache(settings.cache) if settings.cache is not None else None
        self.throttle = throttle or ConcurrencyLimiter()
        self.names = model_names or ModelNames()
        self._clock = clock or SystemClock()
        self._resolver, self._sleep = resolver, sleep
        self._rng = rng or random.Random()
        self._attempt_seconds = attempt_seconds
        self._resolved: dict[str, ResolvedEndpoint] = {}
        self._connections: ModelConnections | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def chat(
        self, endpoint: Endpoint, body: dict[str, Json], *, seconds: float, names_path: bool = False
    ) -> ChatReply:
        """Request a completion. Raises ModelFailed if none arrives in `seconds`.

        names_path: whether error messages contain the path of the endpoint's URL.
        """
        scalar = body.get("kind") == "reward_model"  # a field for this client, not for the endpoint
        sent = {member: part for member, part in body.items() if member != "kind"} if scalar else body
        read = read_reward_reply if scalar else read_reply
        resolved = self._resolved.get(endpoint.url) or self._resolve(endpoint.url)
        key = endpoint.key if endpoint.key is not None else resolved.own_key
        shown = stored_url(resolved.called.url).partition("?")[0] if names_path else ""
        # a path may contain the key, so messages then only show the host
        place = self.keys.excerpt(shown, key) or resolved.called.place
        if key is not None:
            self._check_key(key, place)
        price = self.names.price(endpoint.url, endpoint.model)
        cached, name = self.cache if endpoint.cache else None, ""
        if cached is not None:
            name = cached.key(resolved.called.url, endpoint.model, body, endpoint.sample)
            # a disk may be slow, and all rollouts share this event loop
            found = await asyncio.to_thread(cached.load, name)
            if found is not None:
                return _without_key(found, key, place)
        try:
            content = orjson.dumps(sent if endpoint.model is None else {"model": endpoint.model, **sent})
        except TypeError:  # a lone surrogate, or a number beyond 64 bits
            raise _failed(
                "request_not_json",
                f"The request to the model at {place} cannot be encoded: it contains a lone surrogate or a number over 64 bits.",
                "Check the environment's observations and the sampling parameters.",
            ) from None
        connections, host = self._open(), self.throttle.host(resolved.host_key)

        hung = 0

        async def once(_: int, left: float) -> ChatReply:
            nonlocal hung
            try:
                reply = await self._attempt(connections, host, resolved, content, key, hung, left, read)
                return _without_key(reply, key, place)
            except AttemptFailed as failed:
                hung += failed.kind == "hung"
                # before the reply is in a message, a trajectory or a log
                failed.excerpt = self.keys.excerpt(failed.excerpt, key)
                raise

        reply = await persist(once, place=place, seconds=seconds, rng=self._rng, clock=self._clock, sleep=self._sleep)
        reply.cost = _cost(reply, price)
        if cached is not None:
            await asyncio.to_thread(cached.save, name, reply)
        return reply

    async def close(self) -> None:
        """Close all connections. A later call opens new connections."""
        connections, self._connections = self._connections, None
        if connections is not None:
            await connections.close()

    # addresses and keys

    def _check_key(self, key: str, place: str) -> None:
        if self.keys.is_own_key(key):
            why = "is one of this server's own API keys"
        elif not (key.isascii() and key.isprintable()):
            why = "contains characters that are not allowed in a key"
        else:
            return
        raise _failed(
            "key_refused", f"The key for the model at {place} {why} and was not sent.", "Use the model provider's key."
        )

    def _resolve(self, url: str) -> ResolvedEndpoint:
        """Check an address and cache the result. Raises ModelFailed for an address that must not be called."""
        try:
            called = read_url(url)
        except NotAnAddress as wrong:
            raise _failed("invalid_address", f"The model's address {wrong}.", "Use an http(s) address.") from None
        why = self.rules.refusal_of(called)
        # checked again, because a judge's address comes from the settings, which no planner checks
        if why is not None:
            raise _failed(
                "address_refused",
                f"The model at {called.place} is at {why}, which this server must not call.",
                self.rules.hint(called.host, why),
            )
        if self.keys.address_has_own_key(url):
            raise _failed(
                "key_refused",
                "The model was not called because its address contains an API key of this server.",
                "Remove the key from the address.",
            )
        resolved = ResolvedEndpoint(called, self.keys.own_key(called), f"{called.scheme}://{called.place}")
        if len(self._resolved) >= MOST_REMEMBERED:  # bounded, because the query may differ in each rollout
            self._resolved.clear()
        self._resolved[url] = resolved
        return resolved

    def _open(self) -> ModelConnections:
        loop = asyncio.get_running_loop()
        if self._connections is None or self._loop is not loop:
            if self._loop is not None:  # calls that waited on another loop no longer exist
                self.throttle = self.throttle.fresh()
            self._connections, self._loop = ModelConnections(self.rules, self._resolver), loop
        return self._connections

    # one attempt

    async def _attempt(
        self, connections: ModelConnections, host: HostLimiter, resolved: ResolvedEndpoint, content: bytes, key: str | None,
        hung: int, left: float, read: Callable[[int, bytes, float | None], ChatReply],
    ) -> ChatReply:  # fmt: skip
        """Make one attempt and return the reply. Raises AttemptFailed if no valid reply arrives.

        hung: how many attempts of this call have hung so far. left: the remaining seconds, including the wait for a free
        slot. read: a function that converts a response's status, body and retry delay to a reply.
        """
        clock = self._clock
        queued = clock.monotonic()
        try:
            epoch = await host.enter(left)
        except TimeoutError:
            raise AttemptFailed("out_of_time", "was not called, because too many calls were running") from None
        began = clock.monotonic()
        left -= began - queued
        hang_timeout = host.hang_timeout()
        # doubled after each hung attempt, so that a slow response can succeed
        limit = min(left, self._attempt_seconds, left if hang_timeout is None else hang_timeout * 2**hung)
        congested, seconds = False, None
        try:
            async with asyncio.timeout(limit):
                answer = await connections.post(resolved.called, content, key)
            wait = None if answer.status == 200 else retry_after(answer.headers, clock.now())
            reply = read(answer.status, answer.body, wait)
            reply.seconds = seconds = clock.monotonic() - began
        except TimeoutError:
            # a host that does not respond counts as overloaded
            congested = True
            if limit == left:
                raise AttemptFailed("out_of_time", f"sent no response within the remaining {limit:.1f} s") from None
            raise AttemptFailed("hung", f"sent no response within {limit:.0f} s") from None
        except AttemptFailed as failed:
            congested = failed.congested
            raise
        else:
            return reply
        finally:
            host.leave(epoch, congested=congested, seconds=seconds)


def _cost(reply: ChatReply, price: Price | None) -> float | None:
    """Return the cost in US dollars: by the price in `models.toml`, or else `usage.cost` (OpenRouter), or else None."""
    return price.cost(reply.usage) if price is not None and reply.usage else reply.usage.get("cost")


def _without_key(reply: ChatReply, key: str | None, place: str) -> ChatReply:
    """Return the reply without the key that was sent to the endpoint, in case the model repeats the key.

    The token ids are then also removed, because they would reveal the key and no longer match the text. A key with fewer than
    LEAST_HIDDEN characters, such as EMPTY, is not removed, because a model may write it as a word.
    """
    if key is None or len(key) < LEAST_HIDDEN:
        return reply
    answer = {
        "message": reply.message,
        "finish_reason": reply.finish_reason,
        "model": reply.model,
        "usage": reply.usage,
        "policy_version": reply.policy_version,
    }
    cleaned = without_keys(answer, (key,))
    if cleaned == answer:
        return reply
    log.warning("the model at %s repeated its API key; the key was removed from the reply", place)
    return replace(reply, **cleaned, token_ids=None, logprobs=None, prompt_token_ids=None)


def _failed(code: str, message: str, hint: str) -> ModelFailed:
    return ModelFailed(Failure("policy", code, message, hint=hint))
