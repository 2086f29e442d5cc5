"""A model's address in a request: the field that contains it, the secret parts, and the correlation id in the query."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode

from taskapp_kit.errors import FieldProblem, RequestError

INFERENCE_URL = ("body", "policy", "config", "inference_url")
HIDDEN = "(hidden)"
_KEYS = re.compile(r"key|token|secret|passw|auth|credential|signature", re.IGNORECASE)
# A gateway's key is in the path, because OpenAI clients preserve paths, but not headers and queries. Such an address
# must only be shown or stored without the key.
CAPABILITY = re.compile(r"(?<=/r/)[0-9a-f]{1,12}-[0-9a-f]{48}(?![^/?#])")
"""The secret part of a training gateway's address, which authorizes sampling (`train/gateway/gateway_server.py`)."""
SERVED_HERE = "/served-here/v1"
"""The path of a model that a command serves while the command runs (`train/serving/`). The port differs each time."""
# addresses are stored without the port, because a resumed evaluation uses a new port
_SERVED_HERE = re.compile(rf"^http://127\.0\.0\.1:\d+(?={SERVED_HERE})")
_HERE = re.compile(rf"http://127\.0\.0\.1(?::\d+)?{SERVED_HERE}")
CORRELATION_MEMBERS = ("trace_correlation_id", "trace")
"""Fields of `policy.config` with a correlation id. The first field that is present is used."""
CORRELATION_NAMES = ("cid", "trace_correlation_id", "trace")


GivenUrl = tuple[str, tuple[str, ...]]
"""A model's address as the caller sent it, and the path of its field in the request."""


def given_url(config: Mapping[str, Any], top_level: str | None) -> GivenUrl | None:
    """Return the address in the request and the path of its field, or None if the request has no address.

    `policy.config.inference_url` takes precedence over the top-level `inference_url`. Raises RequestError if the
    address is not a string, even if the policy does not use it.
    """
    for given, loc in ((config.get("inference_url"), INFERENCE_URL), (top_level, ("body", "inference_url"))):
        if given is None or given == "":
            continue
        if not isinstance(given, str):
            found = f"is a {type(given).__name__}; expected a string, http://HOST/… or https://HOST/…"
            message = f"{'.'.join(loc[1:])} {found}."
            raise RequestError(message, fields=(FieldProblem(loc, message, "type_error"),))
        return given, loc
    return None


def inference_url(config: Mapping[str, Any], top_level: str | None) -> str | None:
    """Return the address in the request without passwords and API keys, or None if the request has no address.

    If `policy.config` has a correlation id, the id replaces the secret part of a gateway's address. Raises RequestError
    if the address is not a string.
    """
    given = given_url(config, top_level)
    return None if given is None else shown_url(given[0], config)


def where(url: str) -> str:
    """Return where a model is, as a phrase: `at https://…`, or `on this machine` if a running command serves it."""
    return "on this machine" if _HERE.fullmatch(url) else f"at {url}"


def shown_url(url: str, config: Mapping[str, Any]) -> str:
    """Return the address without passwords and API keys."""
    return _without_capability(_without_keys(without_userinfo(url)), correlation_id(config, None, None))


def without_userinfo(url: str) -> str:
    """Return the address without `user:password@`. Never raises, because callers may send any string."""
    # not `urlsplit`, which raises for some strings and does not find a user if the scheme is missing
    mark = "://" if "://" in url else "//" if url.startswith("//") else ""  # "" for `user:password@host/v1`
    before, slashes, rest = url.partition(mark) if mark else ("", "", url)
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    return before + slashes + rest[:end].rpartition("@")[2] + rest[end:]


def _without_keys(url: str) -> str:
    """Replace each query value whose name suggests an API key with `(hidden)`."""
    address, mark, query = url.partition("?")
    query, fragment_mark, fragment = query.partition("#")
    parts = [(part, part.partition("=")[0]) for part in query.split("&")]
    shown = "&".join(f"{name}={HIDDEN}" if _KEYS.search(unquote(name)) else part for part, name in parts)
    return address + mark + shown + fragment_mark + fragment


def _without_capability(url: str, correlation: str | None) -> str:
    return CAPABILITY.sub(HIDDEN if correlation is None else quote(correlation, safe=""), url)


def stored_url(url: str) -> str:
    """Return the address for storage: without user, password and a gateway's secret part, with `cid` as the only query field.

    The address of a model that a command serves is stored without the port, so that the evaluation can be resumed.
    """
    bare = _without_capability(without_userinfo(url).partition("#")[0], None)
    bare = _SERVED_HERE.sub("http://127.0.0.1", bare)
    address, _, query = bare.partition("?")
    cid = parse_qs(query).get("cid")
    return f"{address}?{urlencode({'cid': cid[0]})}" if cid else address


def correlation_id(config: Mapping[str, Any], url: str | None, top_level: str | None) -> str | None:
    """Return the trace's id from `policy.config`, the query of `url` or the top level, in this order, or None."""
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
    """Return the chat completions address of an endpoint, with the query but without the fragment.

    A path that ends in `/chat/completions` is unchanged. `/chat/completions` is appended to a path that ends in `/v1`,
    and `/v1/chat/completions` to any other path. A path that a client appended to the query
    (`?cid=x/v1/chat/completions`) is moved before the query. Accepts any string.
    """
    path, mark, query = url.partition("#")[0].partition("?")
    # clients append the path to the base address, even after its query
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
