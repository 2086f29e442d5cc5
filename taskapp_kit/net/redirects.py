"""Follow the chain of 303 responses with which a gateway (Modal's, after 150 s) says that a long request still runs.

Each is followed as a GET without a body, with the same key, at the same server only. A hop that breaks may be sent again; the
first request never is.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from urllib.parse import urljoin

from taskapp_kit.net.addresses import NotAnAddress, read_url
from taskapp_kit.net.envelope import error_members
from taskapp_kit.net.http import HttpResponse, NoAnswer, Transport
from taskapp_kit.net.retry import GATEWAY_TROUBLE, Attempts, Backoff

log = logging.getLogger("taskapp_kit.client")

GATEWAY_SECONDS = 150.0
"""After so long Modal's gateway answers with the next 303."""


class ForeignRedirect(Exception):
    """A redirect leads to another server, or nowhere: the key belongs to the server that was named.

    place: `host` or `host:port` of that server, "" when it cannot be read.
    """

    def __init__(self, why: str, place: str = "") -> None:
        super().__init__(why)
        self.place = place


class OutOfHops(Exception):
    """The chain is longer than the time that the caller gave."""


def hop_budget(timeout_seconds: float) -> int:
    """Return how many redirects a request of that length may take."""
    return math.ceil(timeout_seconds / GATEWAY_SECONDS) + 2


def next_address(current: str, location: str | None) -> str:
    """Return where a redirect leads. Raises ForeignRedirect, whose text is the reason alone."""
    if not location:
        raise ForeignRedirect("it names no address")
    try:
        target, here = read_url(urljoin(current, location)), read_url(current)
    except (NotAnAddress, ValueError):  # urljoin raises ValueError
        raise ForeignRedirect("its address cannot be read") from None
    if not target.same_origin(here):
        raise ForeignRedirect("it leads to another server", target.place)
    return target.url


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
    """Return the first response that is not a 303.

    hops: redirects that may be followed. retries: how often in a row one address may be asked again. hop_seconds: for each
    request. left: seconds until the caller gives up. Raises NoAnswer, ForeignRedirect, OutOfHops.
    """
    followed = 0
    while answer.status == 303:
        followed += 1
        attempts = Attempts(Backoff(), retries=retries)
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
            pause = attempts.pause()
            if pause is None or left() <= 0:
                if trouble is None:
                    return got
                raise trouble
            log.info("redirect %d of a request broke (%s); asking for it again", followed, trouble or got.status)
            await asyncio.sleep(max(0.0, min(pause, left())))
        answer = got
    return answer
