"""The chain of 303 answers with which a gateway (Modal's, after 150 s) says that a long request still runs.

Each is followed as a GET without a body, with the same key, at the same server only. A hop that breaks is asked for again;
the request that began it all never is.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from urllib.parse import urljoin, urlsplit

from taskapp_kit.net.envelope import error_members
from taskapp_kit.net.http import HttpResponse, NoAnswer, Transport

log = logging.getLogger("taskapp_kit.client")

GATEWAY_SECONDS = 150.0
"""After so long Modal's gateway answers with the next 303."""
PAUSE_SECONDS = 0.2
GATEWAY_TROUBLE = frozenset({408, 429, 502, 503, 504})


class ForeignRedirect(Exception):
    """A redirect leads to another server: the key belongs to the one that was named."""


class OutOfHops(Exception):
    """The chain is longer than the time that the caller gave."""


def hop_budget(timeout_seconds: float) -> int:
    """How many redirects a request of that length may take."""
    return math.ceil(timeout_seconds / GATEWAY_SECONDS) + 2


def next_address(current: str, location: str | None) -> str:
    """Where a redirect leads. Raises ForeignRedirect, which names no more of it than the reason."""
    if not location:
        raise ForeignRedirect("it names no address")
    try:
        target = urljoin(current, location)
        there, here = urlsplit(target), urlsplit(current)
        same = _origin(there.scheme, there.hostname, there.port) == _origin(here.scheme, here.hostname, here.port)
    except ValueError:
        raise ForeignRedirect("its address cannot be read") from None
    if there.username or there.password or not same:
        raise ForeignRedirect("it leads to another server")
    return target.partition("#")[0]


async def follow(
    transport: Transport,
    answer: HttpResponse,
    *,
    hops: int,
    retries: int,
    hop_seconds: float,
    left: Callable[[], float],
    headers: Mapping[str, str] | None = None,
) -> HttpResponse:
    """The first answer that is no 303.

    hops: redirects that may be followed. retries: how often in a row one result address may be asked for again.
    left: seconds until the caller gives up. Raises NoAnswer, ForeignRedirect, OutOfHops.
    """
    followed = broken = 0
    while answer.status == 303:
        followed += 1
        if followed > hops or left() <= 0:
            raise OutOfHops
        address = next_address(answer.url, answer.headers.get("location"))
        while True:
            trouble: NoAnswer | None = None
            seconds = min(hop_seconds, left())
            if seconds <= 0:
                raise OutOfHops
            try:
                got = await transport.send("GET", address, headers=headers, seconds=seconds)
            except NoAnswer as no_answer:
                trouble = no_answer
            else:
                if got.status not in GATEWAY_TROUBLE or error_members(got) is not None:
                    break
            broken += 1
            if broken > retries or left() <= 0:
                if trouble is None:
                    return got
                raise trouble
            log.info("redirect %d of a rollout broke (%s); asking for it again", followed, trouble or got.status)
            await asyncio.sleep(max(0.0, min(PAUSE_SECONDS * 2 ** (broken - 1), left())))
        answer, broken = got, 0
    return answer


def _origin(scheme: str, host: str | None, port: int | None) -> tuple[str, str, int]:
    return scheme, (host or "").rstrip(".").lower(), port or (443 if scheme == "https" else 80)
