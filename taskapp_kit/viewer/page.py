"""The request that a page function receives, and the page that the function returns."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args
from urllib.parse import urlencode

from taskapp_kit.errors import Boundary
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.records.protocols import RolloutQuery, RowOrder, StoredRollout
from taskapp_kit.records.trajectory import Status
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.rollout.details import RolloutDetails, details_of
from taskapp_kit.viewer.source import UiSource

ORDERS = get_args(RowOrder)
STATUSES, BOUNDARIES = get_args(Status)[1:], get_args(Boundary)
FILTERS = ("environment", "policy", "status", "boundary", "run_id", "group_id", "reward_above", "reward_below")
MAX_TEXT = 512
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NEWEST = 5000
"""How many of the newest rollouts the pages of runs read."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request that passed the gate.

    Attributes:
        source: The source of the pages' data.
        caller: Who sent the request.
        base: The viewer's path, without a trailing slash.
        api_url: The address of the server's API.
        path: The values of the named groups in the route's pattern.
        query: The query's fields.
        form: The form fields of a POST request.
    """

    source: UiSource
    caller: Caller
    base: str
    api_url: str
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)

    def link(self, path: str, **query: Any) -> str:
        """Return the address of a page. Query fields that are None or empty are omitted."""
        return linked(self.base, path, **query)

    def picture(self, sha256: str | None) -> str | None:
        """Return the address of an image by its hash, or None if the hash is None."""
        return None if sha256 is None else self.link(f"blobs/{sha256}.png")

    def text(self, name: str) -> str | None:
        """Return a field of the query, or None if it is absent, empty or too long, or contains control characters."""
        value = self.query.get(name, "").strip()
        return value if 0 < len(value) <= MAX_TEXT and not _CONTROL.search(value) else None

    def number(self, name: str) -> float | None:
        """Return a number from the query, or None if it is absent or not finite."""
        try:
            value = float(self.query.get(name, ""))
        except ValueError:
            return None
        return value if value - value == 0.0 else None

    def whole(self, name: str, default: int, *, most: int) -> int:
        """Return a non-negative integer from the query, at most `most`, or the default if it is absent or invalid."""
        text = self.query.get(name, "")
        return min(most, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else default

    def rollout_query(self, limit: int) -> RolloutQuery:
        """Return the filters in the query. Invalid filters are ignored."""
        status, boundary = self.text("status"), self.text("boundary")
        return RolloutQuery(
            environment=self.text("environment"),
            policy=self.text("policy"),
            status=status if status in STATUSES else None,
            boundary=boundary if boundary in BOUNDARIES else None,
            run_id=self.text("run_id"),
            group_id=self.text("group_id"),
            reward_above=self.number("reward_above"),
            reward_below=self.number("reward_below"),
            limit=limit,
        )

    def filters(self) -> dict[str, str]:
        """Return the filters that are set, by name, for links with the same filters."""
        found = self.rollout_query(1)
        return {name: str(value) for name in FILTERS if (value := getattr(found, name)) is not None}

    def order(self) -> RowOrder:
        """Return the order in the query. The default is `newest`."""
        wanted = self.query.get("order")
        return next((order for order in ORDERS if order == wanted), "newest")


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `data` is the page's JSON. The template uses `data` and `view`. Neither contains private data."""

    template: str
    title: str
    data: dict[str, Any]
    view: dict[str, Any] = field(default_factory=dict)
    section: str = ""


PageFunction = Callable[[PageRequest], Awaitable[Page | EncodedResponse]]


async def read_details(stored: StoredRollout) -> RolloutDetails:
    """Return the details of a rollout. They are computed in a thread, because a long rollout takes some time."""
    return await asyncio.to_thread(details_of, stored)


def linked(start: str, path: str, **query: Any) -> str:
    """Return the address of a path below `start`. Query fields that are None or empty are omitted."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{start}/{path}" + (f"?{urlencode(given)}" if given else "")


def not_found(what: str) -> RequestRefused:
    """Return the error for an object that does not exist or that the caller may not see. what: The kind of object."""
    return RequestRefused(
        "not_found", f"This {what} was not found.", hint="It may have been pruned, or it may belong to another key."
    )


def redirect(location: str) -> EncodedResponse:
    """Return a 303 response that redirects to this location."""
    return EncodedResponse(
        303, b"", [(b"location", location.encode("latin-1", "replace")), (b"cache-control", b"no-store")]
    )
