"""The model's address in a request: where it stands, what of it may be told, and the correlation id in its query."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode

from taskapp_kit.errors import FieldProblem, RequestError

INFERENCE_URL = ("body", "policy", "config", "inference_url")
HIDDEN = "(hidden)"
_KEYS = re.compile(r"key|token|secret|passw|auth|credential|signature", re.IGNORECASE)
CORRELATION_MEMBERS = ("trace_correlation_id", "trace")
"""Of `policy.config`, the first that is there."""
CORRELATION_NAMES = ("cid", "trace_correlation_id", "trace")


def given_url(config: Mapping[str, Any], top_level: str | None) -> tuple[str, tuple[str, ...]] | None:
    """(the address that the caller gave, where it stands): `policy.config.inference_url`, else the top level's.

    Raises RequestError for one that is no text, whichever policy acts.
    """
    for given, loc in ((config.get("inference_url"), INFERENCE_URL), (top_level, ("body", "inference_url"))):
        if given is None or given == "":
            continue
        if not isinstance(given, str):
            found = f"is a {type(given).__name__}; expected text, http://HOST/… or https://HOST/…"
            message = f"{'.'.join(loc[1:])} {found}."
            raise RequestError(message, fields=(FieldProblem(loc, message, "type_error"),))
        return given, loc
    return None


def inference_url(config: Mapping[str, Any], top_level: str | None) -> str | None:
    """The address that the caller gave, with no password in it. Raises RequestError as `given_url`."""
    given = given_url(config, top_level)
    return None if given is None else _without_keys(without_userinfo(given[0]))


def without_userinfo(url: str) -> str:
    """The address without `user:password@`. Takes any text, for a caller may write anything: it never raises."""
    mark = "://" if "://" in url else "//" if url.startswith("//") else ""  # "": `user:password@host/v1`, no scheme
    before, slashes, rest = url.partition(mark) if mark else ("", "", url)
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    return before + slashes + rest[:end].rpartition("@")[2] + rest[end:]


def _without_keys(url: str) -> str:
    """The address with `(hidden)` for what its query says under a name in which keys are put."""
    address, mark, query = url.partition("?")
    query, fragment_mark, fragment = query.partition("#")
    parts = [(part, part.partition("=")[0]) for part in query.split("&")]
    told = "&".join(f"{name}={HIDDEN}" if _KEYS.search(unquote(name)) else part for part, name in parts)
    return address + mark + told + fragment_mark + fragment


def stored_url(url: str) -> str:
    """The address as a store keeps it: without userinfo and query, but for `cid`."""
    bare = without_userinfo(url).partition("#")[0]
    address, _, query = bare.partition("?")
    cid = parse_qs(query).get("cid")
    return f"{address}?{urlencode({'cid': cid[0]})}" if cid else address


def correlation_id(config: Mapping[str, Any], url: str | None, top_level: str | None) -> str | None:
    """The trace's id: `policy.config.trace_correlation_id`, `.trace`, then the address's query, then the top level's."""
    for name in CORRELATION_MEMBERS:
        value = config.get(name)
        if isinstance(value, str) and value:
            return value
    if url is not None:
        query = parse_qs(url.partition("#")[0].partition("?")[2])
        for name in CORRELATION_NAMES:
            if query.get(name):
                return query[name][0]
    return top_level


def complete_url(url: str) -> str:
    """The address of chat completions at this endpoint: `…/v1/chat/completions`, the query kept, a fragment dropped.

    A path that ends in `/chat/completions` stays, one that ends in `/v1` gets that, any other gets `/v1/chat/completions`.
    What somebody appended to the query, `?cid=x/v1/chat/completions`, goes where it belongs. Takes any text.
    """
    path, mark, query = url.partition("#")[0].partition("?")
    for wrong in ("/v1/chat/completions", "/chat/completions"):
        if query.endswith(wrong):
            query = query.removesuffix(wrong)
            break
    path = path.rstrip("/")
    if path.endswith("/chat"):
        path += "/completions"
    elif path.endswith("/v1"):
        path += "/chat/completions"
    elif not path.endswith("/chat/completions"):
        path += "/v1/chat/completions"
    return path + mark + query
