"""The attempts of a model call: outcomes, retries, waits, and the limit on concurrent attempts per host.

An attempt is retried after status 429, 408 or 5xx, after a refused or dropped connection, after a truncated, malformed or
empty response, and after a hang. The wait is random, between 0 and a growing bound (full jitter). Other statuses from 400 on
are not retried.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass

from taskapp_kit.errors import Boundary, Failure
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import Clock, SystemClock
from taskapp_kit.wire.chat.conversation import ChatReply, ModelFailed

MOST_ATTEMPTS = 6
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 8.0
# an endpoint may request an hour, in which the rollout would only wait for its deadline
LONGEST_RETRY_AFTER_SECONDS = 30.0

Sleep = Callable[[float], Awaitable[object]]


@dataclass(eq=False)
class AttemptFailed(Exception):
    """One attempt failed.

    kind: a key of KINDS. words: the message, without the beginning "The model at HOST ". excerpt: the endpoint's error
    message, which may still contain keys. retry_after: the delay in seconds that the endpoint requested, or None if it requested
    none. hint: replaces the usual hint for this kind.
    """

    kind: str
    words: str
    _: KW_ONLY
    status: int | None = None
    excerpt: str = ""
    retry_after: float | None = None
    hint: str | None = None

    @property
    def congested(self) -> bool:
        """Whether the failure indicates that the host is overloaded."""
        return KINDS[self.kind].congested

    def to_json(self) -> dict[str, Json]:
        """Return the attempt as recorded in a trajectory."""
        return {"kind": self.kind} if self.status is None else {"kind": self.kind, "status": self.status}


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """A kind of failed attempt. again: whether to retry. congested: whether the failure indicates an overloaded host."""

    code: str
    hint: str
    again: bool = True
    congested: bool = False
    boundary: Boundary = "policy"


_RUNS = "Check that the endpoint is running at that address."
_LESS = "Send fewer requests at once, or ask the provider for a higher limit."
_LOGS = "Check the endpoint's log."

KINDS: Mapping[str, AttemptOutcome] = {
    "unreachable": AttemptOutcome("model_unreachable", _RUNS),
    "untrusted": AttemptOutcome(
        "model_unreachable", "Use a certificate that this machine trusts, or set SSL_CERT_FILE to the CA's file.", False
    ),
    "dropped": AttemptOutcome("model_unreachable", _RUNS),
    "truncated": AttemptOutcome("model_unreachable", _LOGS),
    "hung": AttemptOutcome("model_unreachable", _LOGS, congested=True),
    "request_timeout": AttemptOutcome("model_unreachable", _LOGS, congested=True),
    "rate_limited": AttemptOutcome("model_rate_limited", _LESS, congested=True),
    "overloaded": AttemptOutcome("model_unreachable", _LESS, congested=True),
    "server_error": AttemptOutcome("model_unreachable", _LOGS),
    "malformed": AttemptOutcome("model_malformed", "The endpoint must implement OpenAI's chat completions. " + _LOGS),
    "empty": AttemptOutcome("model_malformed", _LOGS),
    "aborted": AttemptOutcome("model_malformed", _LOGS),
    "error_in_answer": AttemptOutcome("model_malformed", _LOGS),
    "refused": AttemptOutcome("model_refused", "Check the model's name, the key and the sampling parameters.", False),
    "redirected": AttemptOutcome("model_redirected", "Use the address to which the endpoint redirects.", False),
    "overflow": AttemptOutcome(
        "context_overflow",
        "Send fewer turns (policy.config.history), or use a model with a larger context.",
        False,
    ),
    # not retried, because a retry would hide the endpoint's error and cost a second call in each turn
    "token_mismatch": AttemptOutcome("token_mismatch", "Fix the endpoint. The turn cannot be trained on.", False),
    "address_refused": AttemptOutcome("address_refused", "Use a public address.", False),
    "key_refused": AttemptOutcome("key_refused", "Use the key that the model provider issued.", False),
    "out_of_time": AttemptOutcome(
        "deadline", "Increase safety.max_time_s, or use a faster model.", False, boundary="timeout"
    ),
}


def wait_seconds(failed: AttemptFailed, attempt: int, rng: random.Random) -> float:
    """Return how many seconds to wait after an attempt, at least the endpoint's requested delay. attempt: its number, from 1."""
    bound = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** (attempt - 1))
    # from 0, so that calls that failed together are not repeated together
    jitter = rng.uniform(0.0, bound)
    if failed.retry_after is None:
        return jitter
    # with jitter, so that the calls are not all repeated at once
    return min(failed.retry_after, LONGEST_RETRY_AFTER_SECONDS) + jitter / 2


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the delay in seconds that `retry-after-ms` or `Retry-After` (seconds or a date) requests.

    Returns None if both are missing or invalid.

    headers: the response's headers, with names in lower case. now: the current time in unix seconds.
    """
    # first the milliseconds of OpenAI and Azure, which are more precise
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) / unit
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(text).timestamp() - now
            except (ValueError, OverflowError):
                continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    return None


async def persist(
    once: Callable[[int, float], Awaitable[ChatReply]],
    *,
    place: str,
    seconds: float,
    rng: random.Random,
    clock: Clock | None = None,
    sleep: Sleep = asyncio.sleep,
) -> ChatReply:
    """Call `once(attempt, seconds_left)` until it succeeds. Raises ModelFailed after the last failed attempt.

    once: a function that makes one attempt, and returns the reply or raises AttemptFailed. seconds: the limit for all
    attempts and waits. place: the endpoint's name in messages.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + seconds
    left = seconds
    retries: list[dict[str, Json]] = []
    attempt = 0
    while True:
        attempt += 1
        try:
            reply = await once(attempt, left)
        except AttemptFailed as failed:
            retries.append(failed.to_json())
            kind = KINDS[failed.kind]
            if not kind.again or attempt == MOST_ATTEMPTS:
                raise model_failed(failed, place, retries) from None
            wait = wait_seconds(failed, attempt, rng)
            # do not wait until the deadline, because a timeout would hide the error
            if clock.monotonic() + wait >= deadline:
                raise model_failed(failed, place, retries, more=" No time is left for a retry.") from None
            await sleep(wait)
            left = deadline - clock.monotonic()
            if left <= 0:
                raise model_failed(failed, place, retries, more=" No time is left for a retry.") from None
        else:
            reply.attempts = attempt
            reply.retries = retries
            return reply


def model_failed(failed: AttemptFailed, place: str, retries: list[dict[str, Json]], *, more: str = "") -> ModelFailed:
    """Return the failure of a model call after these attempts. failed: the last attempt."""
    kind = KINDS[failed.kind]
    excerpt = f": {failed.excerpt.rstrip('. ')}" if failed.excerpt else ""
    tries = f" The model was called {len(retries)} times." if len(retries) > 1 else ""
    metadata = {"endpoint": place, "attempts": ", ".join(_in_words(each) for each in retries)}
    if failed.status is not None:
        metadata["status"] = str(failed.status)
    failure = Failure(
        kind.boundary,
        kind.code,
        f"The model at {place} {failed.words}{excerpt}.{tries}{more}",
        hint=kind.hint if failed.hint is None else failed.hint,
        metadata=metadata,
    )
    return ModelFailed(failure, overflow=failed.kind == "overflow")


def _in_words(attempt: dict[str, Json]) -> str:
    return f"{attempt['kind']} {attempt['status']}" if "status" in attempt else str(attempt["kind"])


# Endpoints do not report how many concurrent calls they accept, so the limit is adjusted like TCP's window.
FIRST_LIMIT = 64
LEAST_LIMIT, MOST_LIMIT = 1, 4096
STEP = 4
# with fewer responses, a single failure would be a large share
FEWEST_ANSWERS = 8
CONGESTED_SHARE = 0.1
MOST_HOSTS = 1024

ANSWERS_FOR_HANG_TIMEOUT = 128
LEAST_HANG_TIMEOUT_SECONDS = 10.0
HANG_FACTOR = 8.0


class HostLimiter:
    """Limits the concurrent attempts at one host. Call `enter` and `leave` around each attempt, on one event loop.

    signs: the number of signs of congestion so far.
    """

    def __init__(
        self, first_limit: float = FIRST_LIMIT, least_hang_timeout_seconds: float = LEAST_HANG_TIMEOUT_SECONDS
    ) -> None:
        self.limit = float(first_limit)
        self._least_hang_timeout_seconds = least_hang_timeout_seconds
        self.in_flight = 0
        self.signs = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._doubling = True
        self._epoch = 0
        self._answers = self._signs = 0
        self._full = False
        self._slowest = self._slowest_before = 0.0
        self._timed = 0
        self._has_hang_timeout = False

    @property
    def idle(self) -> bool:
        """Whether no attempt is in flight or waiting."""
        return self.in_flight == 0 and not self._waiting

    async def enter(self, seconds: float) -> int:
        """Wait for a free slot, and return the argument for `leave`. Raises TimeoutError if no slot is free within `seconds`."""
        # waiting calls come first, even if a slot has just become free
        if self.in_flight < int(self.limit) and not self._waiting:
            self.in_flight += 1
            return self._epoch
        self._full = True
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        try:
            async with asyncio.timeout(seconds):
                await slot
        except BaseException:
            if slot.done() and not slot.cancelled():  # a slot was granted at the moment of the timeout
                self.in_flight -= 1
                self._wake_waiters()
            else:
                slot.cancel()
            raise
        return self._epoch

    def leave(self, epoch: int, *, congested: bool = False, seconds: float | None = None) -> None:
        """Free the slot. epoch: the result of `enter`. seconds: the duration of a successful attempt, or None if it failed."""
        if self.in_flight >= int(self.limit):
            self._full = True
        self.in_flight -= 1
        self.signs += congested
        if seconds is not None:
            self._time(seconds)
        # ignore attempts that began before the last reduction, because they did not test the current limit
        if epoch == self._epoch:
            self._answers += 1
            self._signs += congested
            if self._answers >= max(FEWEST_ANSWERS, self.limit):
                self._adjust()
        self._wake_waiters()

    def _adjust(self) -> None:
        share = self._signs / self._answers
        if share >= CONGESTED_SHARE:
            self.limit = max(LEAST_LIMIT, self.limit * (1 - share / 2))
            self._doubling = False
            self._epoch += 1
        # do not raise a limit that was never reached
        elif self._full:
            self.limit = min(MOST_LIMIT, self.limit * 2 if self._doubling else self.limit + STEP)
        # each limit is judged by the responses under this limit
        self._answers = self._signs = 0
        self._full = False

    def _wake_waiters(self) -> None:
        while self._waiting and self.in_flight < int(self.limit):
            slot = self._waiting.popleft()
            if not slot.done():
                self.in_flight += 1
                slot.set_result(None)

    def hang_timeout(self) -> float | None:
        """The seconds after which an attempt counts as hung, or None while there are too few responses.

        The timeout is a multiple of the slowest recent response. Callers double it after each hung attempt, so that a slow
        response causes another attempt but no failure.
        """
        if not self._has_hang_timeout:
            return None
        return max(self._least_hang_timeout_seconds, HANG_FACTOR * max(self._slowest, self._slowest_before))

    def _time(self, seconds: float) -> None:
        self._slowest = max(self._slowest, seconds)
        self._timed += 1
        if self._timed >= ANSWERS_FOR_HANG_TIMEOUT:
            # two windows, because with one window the slowest response would soon be forgotten
            self._slowest_before, self._slowest, self._timed, self._has_hang_timeout = self._slowest, 0.0, 0, True


class ConcurrencyLimiter:
    """The `HostLimiter` of each host."""

    def __init__(
        self, first_limit: float = FIRST_LIMIT, least_hang_timeout_seconds: float = LEAST_HANG_TIMEOUT_SECONDS
    ) -> None:
        self._hosts: dict[str, HostLimiter] = {}
        self._first_limit, self._least_hang_timeout_seconds = first_limit, least_hang_timeout_seconds

    def fresh(self) -> ConcurrencyLimiter:
        """Return a new ConcurrencyLimiter with the same settings, for another event loop."""
        return ConcurrencyLimiter(self._first_limit, self._least_hang_timeout_seconds)

    @property
    def signs(self) -> int:
        """The number of signs of congestion at all hosts so far."""
        return sum(host.signs for host in self._hosts.values())

    def host(self, place: str) -> HostLimiter:
        """Return the limiter of a host. place: `scheme://host` or `scheme://host:port`."""
        found = self._hosts.get(place)
        if found is None:
            if len(self._hosts) >= MOST_HOSTS:  # callers choose the hosts, so their number must be limited
                self._hosts = {name: host for name, host in self._hosts.items() if not host.idle}
            found = self._hosts[place] = HostLimiter(self._first_limit, self._least_hang_timeout_seconds)
        return found
