"""The model's address in a request: where it is given, which parts may be shown, and the correlation id in its query."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode

from taskapp_kit.errors import FieldProblem, RequestError

INFERENCE_URL = ("body", "policy", "config", "inference_url")
HIDDEN = "(hidden)"
_KEYS = re.compile(r"key|token|secret|passw|auth|credential|signature", re.IGNORECASE)
# The key is in the path, because a path survives every OpenAI client, and headers and queries do not. So an address may
# be shown or stored only without it.
CAPABILITY = re.compile(r"(?<=/r/)[0-9a-f]{1,12}-[0-9a-f]{48}(?![^/?#])")
"""The part of a training gateway's address with which anybody may sample (`train/gateway/gateway_server.py`)."""
SERVED_HERE = "/served-here/v1"
"""The path of a model that a command serves while it runs (`train/serving/`). Its port is another one each time."""
# an evaluation that is resumed has to be the same one, though its model has another port
_SERVED_HERE = re.compile(rf"^http://127\.0\.0\.1:\d+(?={SERVED_HERE})")
CORRELATION_MEMBERS = ("trace_correlation_id", "trace")
"""Members of `policy.config`; the first that is present wins."""
CORRELATION_NAMES = ("cid", "trace_correlation_id", "trace")


GivenUrl = tuple[str, tuple[str, ...]]
"""A model's address as a caller gave it, and its location in the request."""


def given_url(config: Mapping[str, Any], top_level: str | None) -> GivenUrl | None:
    """Returns the address that the caller gave and its location: `policy.config.inference_url`, else the top level's.

    Raises RequestError if it is not a string, whichever policy acts.
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
    """Returns the address that the caller gave, without passwords and keys. Raises RequestError as `given_url`.

    In place of a gateway's capability is the correlation id of `policy.config`, where there is one.
    """
    given = given_url(config, top_level)
    return None if given is None else shown_url(given[0], config)


def shown_url(url: str, config: Mapping[str, Any]) -> str:
    """The address as `inference_url` returns it."""
    return _without_capability(_without_keys(without_userinfo(url)), correlation_id(config, None, None))


def without_userinfo(url: str) -> str:
    """The address without `user:password@`. Accepts any text and never raises, for callers may send anything."""
    # `urlsplit` raises for some of what callers send, and finds no user without a scheme
    mark = "://" if "://" in url else "//" if url.startswith("//") else ""  # "": `user:password@host/v1`, no scheme
    before, slashes, rest = url.partition(mark) if mark else ("", "", url)
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    return before + slashes + rest[:end].rpartition("@")[2] + rest[end:]


def _without_keys(url: str) -> str:
    """The address with `(hidden)` for each query value whose name suggests a key."""
    address, mark, query = url.partition("?")
    query, fragment_mark, fragment = query.partition("#")
    parts = [(part, part.partition("=")[0]) for part in query.split("&")]
    shown = "&".join(f"{name}={HIDDEN}" if _KEYS.search(unquote(name)) else part for part, name in parts)
    return address + mark + shown + fragment_mark + fragment


def _without_capability(url: str, correlation: str | None) -> str:
    return CAPABILITY.sub(HIDDEN if correlation is None else quote(correlation, safe=""), url)


def stored_url(url: str) -> str:
    """The address as it is stored: without userinfo, a gateway's capability, and query, except for `cid`.

    That of a model that a command serves is stored without its port, so that the same evaluation can be resumed.
    """
    bare = _without_capability(without_userinfo(url).partition("#")[0], None)
    bare = _SERVED_HERE.sub("http://127.0.0.1", bare)
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
    """Returns the chat-completions address of an endpoint: `…/v1/chat/completions`, with its query, without a fragment.

    A path ending in `/chat/completions` stays, one ending in `/v1` gets that suffix, any other `/v1/chat/completions`.
    A path that a client appended after the query, `?cid=x/v1/chat/completions`, is moved before it. Accepts any text.
    """
    path, mark, query = url.partition("#")[0].partition("?")
    # clients append the path to whatever base address they are given
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
