"""The model's address in a request: where it stands, what of it may be told, and the correlation id in its query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

CORRELATION_NAMES = ("cid", "trace_correlation_id", "trace")


def inference_url(config: Mapping[str, Any], top_level: str | None) -> str | None:
    """The address that the caller gave, with no password in it: `policy.config.inference_url`, else the top level's."""
    given = config.get("inference_url", top_level)
    return without_userinfo(given) if isinstance(given, str) and given else None


def without_userinfo(url: str) -> str:
    """The address without `user:password@`."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[1]))


def stored_url(url: str) -> str:
    """The address as a store keeps it: without userinfo and query, but for `cid`."""
    parts = urlsplit(without_userinfo(url))
    cid = parse_qs(parts.query).get("cid")
    return urlunsplit(parts._replace(query=urlencode({"cid": cid[0]}) if cid else "", fragment=""))


def correlation_id(config: Mapping[str, Any], url: str | None, top_level: str | None) -> str | None:
    """The trace's id: `policy.config.trace_correlation_id`, `.trace`, then the address's query, then the top level's."""
    for name in ("trace_correlation_id", "trace"):
        value = config.get(name)
        if isinstance(value, str) and value:
            return value
    if url is not None:
        query = parse_qs(urlsplit(url).query)
        for name in CORRELATION_NAMES:
            if query.get(name):
                return query[name][0]
    return top_level
