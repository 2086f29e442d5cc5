"""What a page's function receives and returns, and how its query is read."""

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
"""Rollouts that a page of runs, or of one run, looks at: the newest ones."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request that passed the gate. path: the parts that the route's pattern names. form: of a POST.

    base: the viewer's path, without a slash at the end. secure_url: how the API of the same server is reached.
    """

    source: UiSource
    caller: Caller
    base: str
    api_url: str
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)

    def link(self, path: str, **query: Any) -> str:
        """The address of a page, with a query of those members that are not None or empty."""
        return linked(self.base, path, **query)

    def picture(self, sha256: str | None) -> str | None:
        """The address of a picture by its hash; None without one."""
        return None if sha256 is None else self.link(f"blobs/{sha256}.png")

    def text(self, name: str) -> str | None:
        """A member of the query; None when it is absent, empty or too long, or has control characters."""
        value = self.query.get(name, "").strip()
        return value if 0 < len(value) <= MAX_TEXT and not _CONTROL.search(value) else None

    def number(self, name: str) -> float | None:
        """A finite number in the query; None for anything else."""
        try:
            value = float(self.query.get(name, ""))
        except ValueError:
            return None
        return value if value - value == 0.0 else None

    def whole(self, name: str, default: int, *, most: int) -> int:
        """A whole number from 0 in the query, else the default."""
        text = self.query.get(name, "")
        return min(most, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else default

    def rollout_query(self, limit: int) -> RolloutQuery:
        """The filters of the query; one that cannot be read is no filter."""
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
        """The filters that are set, by name, for links that retain them."""
        found = self.rollout_query(1)
        return {name: str(value) for name in FILTERS if (value := getattr(found, name)) is not None}

    def order(self) -> RowOrder:
        """The order of the query, `newest` by default."""
        wanted = self.query.get("order")
        return next((order for order in ORDERS if order == wanted), "newest")


@dataclass(frozen=True, slots=True)
class Page:
    """A page: `data` is its JSON, and with `view` what the template shows. Neither has anything private."""

    template: str
    title: str
    data: dict[str, Any]
    view: dict[str, Any] = field(default_factory=dict)
    section: str = ""


PageFunction = Callable[[PageRequest], Awaitable[Page | EncodedResponse]]


async def read_details(stored: StoredRollout) -> RolloutDetails:
    """The readable form of a rollout, in a thread: a long one takes a while."""
    return await asyncio.to_thread(details_of, stored)


def linked(start: str, path: str, **query: Any) -> str:
    """The address of what is below `start`, with a query of those members that are not None or empty."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{start}/{path}" + (f"?{urlencode(given)}" if given else "")


def not_found(what: str) -> RequestRefused:
    """The refusal of a page about something that does not exist, or that the caller may not see."""
    return RequestRefused(
        "not_found", f"There is no such {what}.", hint="It may have been pruned, or belong to another key."
    )


def redirect(location: str) -> EncodedResponse:
    """A 303: the browser gets that page next."""
    return EncodedResponse(
        303, b"", [(b"location", location.encode("latin-1", "replace")), (b"cache-control", b"no-store")]
    )
