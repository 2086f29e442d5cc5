"""One rollout on a task app, including the handling of connection failures.

A rollout costs money and counts as an episode, so the POST is normally sent once. It is sent again only if this cannot
run a second episode: the server rejected it before running anything, the connection was not established, or the caller
passed an `Idempotency-Key`. Redirects are followed with GET, and only to the same server, because the key belongs to
that server.

If the caller gives up after the server has accepted the rollout (202), the rollout is cancelled, because nobody would
fetch its result. A rollout with an idempotency key continues instead, because another caller may be waiting for the
result, or this caller may repeat the request.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.client.task_app_errors import not_followed, not_json, refusal, unreachable
from taskapp_kit.errors import JobTimeout, TaskAppError
from taskapp_kit.net.envelope import ErrorMembers, error_members
from taskapp_kit.net.http import HttpResponse, NoAnswer, Transport, Trouble
from taskapp_kit.net.retry import (
    GATEWAY_TROUBLE,
    Attempts,
    Backoff,
    ForeignRedirect,
    OutOfHops,
    follow,
    hop_budget,
    next_address,
)

log = logging.getLogger("taskapp_kit.client")

PATH = "/rollout"
WAIT_SECONDS = 20
"""Seconds for which each poll asks the server to wait for the end of the rollout (`Prefer: wait`)."""
POLL_PATIENCE = 4
"""Factor by which polls are retried more often than other requests. Polls are safe to repeat."""
CANCEL_SECONDS = 5.0
BACKOFF = Backoff(longest_seconds=10.0)
FULL_SERVER = Backoff(longest_seconds=5.0, growth=1.5)
"""The pauses are short, because a full server may accept a request at any moment."""
NOT_RUN = frozenset({"saturated", "key_quota_reached"})
NOT_NOW = frozenset({"draining", "store_failing"})
"""Error codes of rejections that may last, so the number of attempts is limited. Nothing ran on the server."""
ROLLOUT_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class _Repeat(Exception):
    """The POST may be repeated after `retry_after` seconds. If `counts`, it counts toward the limit on attempts."""

    def __init__(self, error: Exception, *, counts: bool = True, retry_after: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.counts = counts
        self.retry_after = retry_after


class _TooLong(Exception):
    """The caller's time limit has passed."""


@dataclass(slots=True)
class RolloutCall:
    """One call of `POST /rollout`, with its retries and polls.

    Attributes:
        url: The task app's address.
        key: The task app's API key.
        submit: Whether to request a 202 response and poll for the result.
        timeout_seconds: Total time limit, including pauses and retries.
        hop_seconds: Time limit for the response to one redirect or poll.
        once: If true, the POST is never repeated after the rollout may have started.
    """

    transport: Transport
    url: str
    key: str | None = field(repr=False)
    body: bytes
    idempotency_key: str | None
    submit: bool
    timeout_seconds: float
    hop_seconds: float
    retries: int
    rng: random.Random
    once: bool = False
    _end: float = 0.0
    _running: str = ""
    """The address of the accepted rollout, while it may still be running."""

    async def answer(self) -> dict[str, Any]:
        """Run the rollout and return the body of the response.

        Raises TaskAppError if it is rejected or fails, TaskAppUnreachable if the server does not respond, and
        JobTimeout if the time limit has passed.
        """
        self._end = time.monotonic() + self.timeout_seconds
        try:
            return await self._answer()
        except _TooLong:
            cancelled = await self._cancel()
            raise self._too_long(cancelled=cancelled) from None
        except (Exception, asyncio.CancelledError):
            await self._cancel()
            raise

    async def _answer(self) -> dict[str, Any]:
        attempts = Attempts(BACKOFF, retries=self.retries, seconds=self._left(), rng=self.rng)
        at_full_server = Attempts(FULL_SERVER, seconds=self._left(), rng=self.rng)
        while True:
            try:
                return await self._once()
            except _Repeat as repeat:
                pause = (attempts if repeat.counts else at_full_server).pause(repeat.retry_after)
                if pause is None:
                    raise repeat.error from None
                log.info("sending the rollout to %s again in %.1f s: %s", self.url, pause, repeat)
                await asyncio.sleep(pause)

    async def _once(self) -> dict[str, Any]:
        fetched = False
        try:
            answer = await self.transport.send(
                "POST", self.url + PATH, body=self.body, headers=self._headers(), seconds=max(0.001, self._left())
            )
            if answer.status == 303:
                fetched = True
                answer = await self._follow(answer)
            if answer.status == 202:
                fetched = True
                answer = await self._poll(answer)
        except NoAnswer as lost:
            raise self._lost(lost) from None
        except ForeignRedirect as foreign:
            raise not_followed(foreign, self.url, PATH) from None
        except OutOfHops:
            raise self._out_of_hops() from None
        if answer.status != 200:
            raise self._refused(answer, fetched=fetched)
        body = answer.json_object()
        if body is None:
            raise not_json(answer, self.url, PATH)
        return body

    def _headers(self) -> dict[str, str]:
        headers = {} if self.idempotency_key is None else {"Idempotency-Key": self.idempotency_key}
        return {**headers, "Prefer": "respond-async"} if self.submit else headers

    def _left(self) -> float:
        return self._end - time.monotonic()

    async def _follow(self, answer: HttpResponse, headers: dict[str, str] | None = None) -> HttpResponse:
        return await follow(
            self.transport,
            answer,
            hops=hop_budget(self.timeout_seconds),
            retries=self.retries,
            hop_seconds=self.hop_seconds,
            left=self._left,
            headers=headers,
        )

    async def _poll(self, accepted: HttpResponse) -> HttpResponse:
        """Poll until the rollout ends, and return the final response.

        Raises NoAnswer if the server does not respond, ForeignRedirect if a redirect leaves the server, OutOfHops after
        too many redirects, and _TooLong if the time limit has passed.
        """
        self._running = address = self._result_url(accepted)
        attempts = Attempts(BACKOFF, retries=self.retries * POLL_PATIENCE, rng=self.rng)
        while True:
            seconds = self._left()
            if seconds <= 0:
                raise _TooLong
            headers = {"Prefer": f"wait={max(1, min(WAIT_SECONDS, int(seconds)))}"}
            sent_at = time.monotonic()
            try:
                got = await self.transport.send("GET", address, headers=headers, seconds=min(self.hop_seconds, seconds))
                got = await self._follow(got, headers)
            except NoAnswer:
                pause = attempts.pause()
                if self._left() <= 0:
                    raise _TooLong from None
                if pause is None:
                    raise
            else:
                if got.status == 202:
                    attempts.reset()
                    pause = 0.0 if time.monotonic() - sent_at > 1.0 else (got.retry_after or 1.0)
                elif got.status not in GATEWAY_TROUBLE or error_members(got) is not None:
                    self._running = ""
                    return got
                elif (pause := attempts.pause()) is None:
                    return got
            await asyncio.sleep(max(0.0, min(pause, BACKOFF.longest_seconds, self._left())))

    def _result_url(self, accepted: HttpResponse) -> str:
        """Return the address of an accepted rollout, from the 202 response."""
        body = accepted.json_object() or {}
        name = body.get("rollout_id")
        if isinstance(name, str) and ROLLOUT_ID.fullmatch(name):
            return f"{self.url}/rollouts/{name}"
        if not accepted.headers.get("location"):
            raise TaskAppError(
                f"{self.url}{PATH} accepted the rollout (202) but returned no valid address for its result.",
                status=202,
            )
        return next_address(accepted.url, accepted.headers["location"])

    async def _cancel(self) -> bool:
        """Cancel a submitted rollout whose caller gave up. Return whether it was cancelled."""
        if not self._running or self.idempotency_key is not None:
            return False
        try:
            return (await self.transport.send("DELETE", self._running, seconds=CANCEL_SECONDS)).status == 200
        except NoAnswer:
            return False

    # failures

    def _lost(self, lost: NoAnswer) -> Exception:
        if lost.kind is Trouble.TIMEOUT and self._left() <= 0:
            return _TooLong()
        error = unreachable(lost, self.url, PATH, may_run=lost.sent, repeatable=self.idempotency_key is not None)
        if self.once and (lost.sent or self._running):
            return error
        if not lost.sent:
            return _Repeat(error) if lost.kind is Trouble.REFUSED else error
        if self.idempotency_key is None or lost.kind is Trouble.TOO_LARGE:
            return error
        self.submit = True  # a long request may break again, so send a short request and poll
        return _Repeat(error)

    def _out_of_hops(self) -> Exception:
        if self._left() <= 0:
            return _TooLong()
        error = TaskAppError(
            f"{self.url}{PATH} redirected more than {hop_budget(self.timeout_seconds)} times, the limit for a "
            f"rollout of {self.timeout_seconds:g} s.",
            status=303,
            code="out_of_hops",
            hint="Increase the timeout, or pass an idempotency key.",
        )
        if self.idempotency_key is None:
            return error
        self.submit = True
        return _Repeat(error)

    def _refused(self, answer: HttpResponse, *, fetched: bool) -> Exception:
        members = error_members(answer)
        error = refusal(answer, self.url, PATH, self.key)
        if members is not None and not members.boundary and answer.status in (429, 503) and members.code in NOT_RUN:
            return _Repeat(error, counts=False, retry_after=answer.retry_after)
        if members is not None and not members.boundary and answer.status == 503 and members.code in NOT_NOW:
            return _Repeat(error, retry_after=answer.retry_after)
        if self.idempotency_key is None or not _worth_another(answer, members, fetched=fetched):
            return error
        if members is None and answer.status in (408, 504):
            self.submit = True
        return _Repeat(error, retry_after=answer.retry_after)

    def _too_long(self, *, cancelled: bool) -> JobTimeout:
        where = f" Its result will be at {self._running}." if self._running else ""
        end = " The rollout was cancelled." if cancelled else where
        return JobTimeout(
            f"The rollout at {self.url} did not end within {self.timeout_seconds:g} s.{end}",
            hint="Increase the timeout, or shorten the rollout with safety.max_time_s.",
        )


def _worth_another(answer: HttpResponse, members: ErrorMembers | None, *, fetched: bool) -> bool:
    """Return whether repeating the request with its idempotency key may have a different result."""
    if fetched and answer.status in (404, 410):  # the result is gone, but a POST with the key may return it
        return True
    if members is None:
        return answer.status in (408, 429) or answer.status >= 500
    if members.boundary:  # the rollout failed, and a repetition returns the same failure unless it was cancelled
        return members.boundary == "cancelled"
    return answer.status >= 500 and members.code != "missing_environment_api_key"
