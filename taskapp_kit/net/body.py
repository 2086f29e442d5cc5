"""Reads request bodies with limits on size and time, parses strict JSON, and notices when the client disconnects.

JSON that two parsers could interpret differently is rejected, and the error names the location. A valid body is parsed
once in C, walked once, and its colons are counted. If one of these steps finds something suspicious, a slower
parser, which tracks its location, reads the body again. It either names the invalid field or accepts the body.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from json.decoder import scanstring  # type: ignore[attr-defined]  # the C implementation, which handles every escape
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import orjson

from taskapp_kit.errors import FieldProblem, KitError, RequestError
from taskapp_kit.net.error_response import ClientGone, RequestRefused, short_part
from taskapp_kit.records.content import INT_LIMIT, MAX_DEPTH, has_surrogate

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

T = TypeVar("T")
Place = tuple[str | int, ...]

ARRIVAL_SECONDS = 10.0
"""The time within which the whole body must arrive."""
THREAD_BYTES = 256 * 1024
"""Longer bodies are parsed in a thread, so that they do not block the event loop."""
LENGTH_DIGITS = 12
FORM = b"application/x-www-form-urlencoded"
MAX_FORM_FIELDS = 64
WATCH_AFTER_SECONDS = 0.1
"""The asyncio task that watches for disconnects is started after this time."""
MAX_VALUES = 500_000
"""The maximum number of values in a body. 4 MB of `[],[],…` would become 100 MB of Python lists."""


async def read_json(
    scope: Scope,
    receive: Receive,
    max_bytes: int,
    arrival_seconds: float = ARRIVAL_SECONDS,
    *,
    max_values: int = MAX_VALUES,
    required: bool = True,
) -> dict[str, Any]:
    """Read a request's JSON object.

    A Content-Length above `max_bytes` is rejected before the body is read. A chunked body is rejected when it exceeds
    the limit.

    Args:
        scope: The ASGI scope of the request.
        receive: The ASGI function that receives the body.
        max_bytes: The maximum size of the body.
        arrival_seconds: The time within which the whole body must arrive.
        max_values: The maximum number of values in the JSON.
        required: Whether an empty body is rejected. If False, an empty body is read as {}.

    Raises:
        RequestRefused: The body is late (408), too large (413), or has an unsupported type or encoding (415).
        RequestError: The body is not a valid JSON object (422).
        ClientGone: The client disconnected.
    """
    _check_type(scope, b"application/json")
    raw = await read_body(scope, receive, max_bytes, arrival_seconds)
    if not required and not raw.strip():
        return {}
    return await parse_json(raw, max_values)


async def parse_json(raw: bytes, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """Parse a body that must be a JSON object. Raises RequestError if it is invalid."""
    if len(raw) > THREAD_BYTES:
        return await asyncio.to_thread(read_object, raw, max_values)
    return read_object(raw, max_values)


async def read_form(scope: Scope, receive: Receive, max_bytes: int) -> dict[str, str]:
    """Read a form (`application/x-www-form-urlencoded`). Of several fields with the same name, the first is returned.

    Raises RequestError (422) if the form is not valid UTF-8, and RequestRefused and ClientGone as `read_json` does.
    """
    _check_type(scope, FORM)
    raw = await read_body(scope, receive, max_bytes)
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS, errors="strict")
    except ValueError:
        raise RequestError("The form cannot be decoded. Send URL-encoded UTF-8.", code="invalid_form") from None
    return dict(reversed(pairs))


async def read_body(scope: Scope, receive: Receive, max_bytes: int, arrival_seconds: float = ARRIVAL_SECONDS) -> bytes:
    """Read a body of any type.

    Raises RequestRefused if the body is late (408), too large (413) or compressed (415), and ClientGone if the client
    disconnects.
    """
    for name, value in scope["headers"]:
        # a few compressed bytes may expand to gigabytes
        if name == b"content-encoding":
            raise RequestRefused(
                "unsupported_content_encoding",
                "The request has a Content-Encoding, but compressed bodies are not supported.",
                hint="Send plain JSON, without Content-Encoding.",
            )
        # limit the digits first, because `int` raises for a number with thousands of digits
        if name == b"content-length" and (len(value) > LENGTH_DIGITS or not value.isdigit() or int(value) > max_bytes):
            raise _too_large(max_bytes)
    return await _read(receive, max_bytes, arrival_seconds)


def _check_type(scope: Scope, expected: bytes) -> None:
    for name, value in scope["headers"]:
        if name == b"content-type" and value.split(b";", 1)[0].strip().lower() not in (expected, b""):
            raise RequestRefused(
                "unsupported_content_type",
                f"The request's Content-Type is not {'JSON' if expected != FORM else 'a form'}.",
                hint=f"Send Content-Type: {expected.decode()}, or omit the header.",
            )


def _too_large(max_bytes: int) -> RequestRefused:
    return RequestRefused(
        "body_too_large",
        f"The request body has more than {max_bytes} bytes.",
        hint="Send a smaller request.",
    )


async def _read(receive: Receive, max_bytes: int, arrival_seconds: float) -> bytes:
    chunks: list[bytes] = []
    length = 0
    try:
        async with asyncio.timeout(arrival_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk = message.get("body", b"")
                length += len(chunk)
                if length > max_bytes:
                    raise _too_large(max_bytes)
                if not message.get("more_body", False):
                    # most bodies arrive in a single chunk, which need not be copied
                    return chunk if not chunks else b"".join([*chunks, chunk])
                if chunk:
                    chunks.append(chunk)
    except TimeoutError:
        raise RequestRefused(
            "body_timeout",
            f"The request body did not arrive within {arrival_seconds:g} s.",
            hint="Send the whole body without pauses.",
        ) from None


_FLOAT_SUSPECT = float(INT_LIMIT)
"""The C parser converts an integer beyond 64 bits to a float of at least this size."""
_SUSPECT = -(2**40)
"""A count so low that the sum of all counts stays negative."""
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SPACE = re.compile(r"[ \t\n\r]*")
_FOREIGN = re.compile(r"-?(?:NaN|Infinity|nan|inf)\b")


def read_object(raw: bytes, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """Parse a body that must be a JSON object. Raises RequestError (code `invalid_json`), which names the location.

    These are rejected: a body that is empty, not an object or not UTF-8; text after the object; nesting deeper than 64;
    a name that occurs twice in an object; NaN, Infinity, numbers that overflow a double, and integers outside [-2⁶³,
    2⁶³); lone surrogates; more than `max_values` values.
    """
    # checked before parsing, because the parsed lists may use 25 times as much memory as the body
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > max_values:
        raise _refused((), f"has more than {max_values} values", "too_many_values", "Send fewer values in one request.")
    try:
        # the standard library's parser with `object_pairs_hook` takes 1.4 times as long for a rollout request and 3
        # times as long for a list of integers (measured 2026-11-22), and cannot name the field of a syntax error
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = _LocatingParser(raw).document()
    else:
        # an escaped colon could compensate for the colon of a dropped duplicate name
        if _colons(value, 1) != raw.count(b":") or b"\\u003" in raw:
            value = _LocatingParser(raw).document()
    if not isinstance(value, dict):
        raise _refused((), "must be a JSON object", "not_an_object", "Send an object, {…}.")
    return value


def _refused(place: Place, found: str, kind: str, hint: str = "") -> RequestError:
    loc: Place = ("body", *place)
    shown = ".".join(str(short_part(part)) for part in loc)
    return RequestError(
        f"The request body cannot be parsed: {shown} {found}.",
        fields=(FieldProblem(loc, found, kind),),
        code="invalid_json",
        hint=hint or "Send one JSON object in UTF-8.",
    )


def _colons(value: Any, depth: int) -> int:
    """Return how many colons the JSON text of a parsed value contains, if no name occurs twice in an object.

    If the text contains more colons, the parser dropped a repeated name. The result is negative if the value is too
    deep, or contains a number that may be out of range.
    """
    kind = type(value)
    if kind is str:
        return value.count(":") if ":" in value else 0
    if kind is int:
        # the C parser also accepts unsigned 64-bit integers
        return 0 if value < INT_LIMIT else _SUSPECT
    if kind is float:
        return 0 if -_FLOAT_SUSPECT < value < _FLOAT_SUSPECT else _SUSPECT
    if kind is dict:
        if depth > MAX_DEPTH:
            return _SUSPECT
        total = len(value)
        for name, item in value.items():
            if ":" in name:
                total += name.count(":")
            if item is not None and item is not True and item is not False:
                total += _colons(item, depth + 1)
        return total
    if kind is list:
        if depth > MAX_DEPTH:
            return _SUSPECT
        total = 0
        for item in value:
            total += _colons(item, depth + 1)
        return total
    return 0


class _LocatingParser:
    """A JSON parser that tracks the path of the current field. MAX_DEPTH limits its recursion."""

    def __init__(self, raw: bytes) -> None:
        self.text = raw.decode("utf-8", "surrogateescape")

    def document(self) -> Any:
        """Return the value of the whole document."""
        if self.text.startswith("\ufeff"):
            raise _refused((), "begins with a byte order mark", "byte_order_mark", "Send UTF-8 without a BOM.")
        start = self._space(0)
        if start == len(self.text):
            raise _refused((), "is empty", "empty_body", "Send a JSON object.")
        value, end = self._value(start, (), 1)
        end = self._space(end)
        if end != len(self.text):
            raise _refused((), f"has additional text after the JSON value (at character {end})", "trailing_text")
        return value

    def _space(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def _value(self, at: int, place: Place, depth: int) -> tuple[Any, int]:
        letter = self.text[at : at + 1]
        if letter in ("{", "["):
            if depth > MAX_DEPTH:
                raise _refused(place[:4], f"is nested more than {MAX_DEPTH} levels deep", "too_deep")
            return (self._object if letter == "{" else self._list)(at + 1, place, depth)
        if letter == '"':
            return self._string(at, place)
        for word, value in (("true", True), ("false", False), ("null", None)):
            if self.text.startswith(word, at):
                return value, at + len(word)
        return self._number(at, place)

    def _object(self, at: int, place: Place, depth: int) -> tuple[dict[str, Any], int]:
        result: dict[str, Any] = {}
        at = self._space(at)
        if self.text[at : at + 1] == "}":
            return result, at + 1
        while True:
            if self.text[at : at + 1] != '"':
                raise self._syntax(at, place, "a name in double quotes")
            name, at = self._string(at, place)
            inner = (*place, name)
            if name in result:
                raise _refused(inner, "occurs twice in the same object", "duplicate_name", "Send each field once.")
            at = self._space(at)
            if self.text[at : at + 1] != ":":
                raise self._syntax(at, inner, "a colon")
            result[name], at = self._value(self._space(at + 1), inner, depth + 1)
            at = self._space(at)
            letter = self.text[at : at + 1]
            if letter == "}":
                return result, at + 1
            if letter != ",":
                raise self._syntax(at, inner, "a comma or }")
            at = self._space(at + 1)

    def _list(self, at: int, place: Place, depth: int) -> tuple[list[Any], int]:
        result: list[Any] = []
        at = self._space(at)
        if self.text[at : at + 1] == "]":
            return result, at + 1
        while True:
            inner = (*place, len(result))
            value, at = self._value(at, inner, depth + 1)
            result.append(value)
            at = self._space(at)
            letter = self.text[at : at + 1]
            if letter == "]":
                return result, at + 1
            if letter != ",":
                raise self._syntax(at, inner, "a comma or ]")
            at = self._space(at + 1)

    def _string(self, at: int, place: Place) -> tuple[str, int]:
        try:
            value, end = scanstring(self.text, at + 1, True)
        except ValueError as error:
            raise self._syntax(
                getattr(error, "pos", at), place, "a string without control characters or bad escapes"
            ) from None
        # invalid UTF-8 was decoded to lone surrogates, so the same check finds both errors
        if has_surrogate(value):
            escaped = "\\u" in self.text[at:end]
            found = "contains a lone surrogate" if escaped else "is not valid UTF-8"
            raise _refused(place, found, "lone_surrogate" if escaped else "invalid_utf8")
        return value, end

    def _number(self, at: int, place: Place) -> tuple[int | float, int]:
        foreign = _FOREIGN.match(self.text, at)
        if foreign:
            raise _refused(place, f"is {foreign[0]}, which is not JSON", "not_finite", "Send a finite number or null.")
        match = _NUMBER.match(self.text, at)
        if not match:
            raise self._syntax(at, place, "a value")
        if match[1] is None and match[2] is None:
            # checked before calling `int`, which takes quadratic time for long numbers
            if len(match[0]) > 20 or not -INT_LIMIT <= int(match[0]) < INT_LIMIT:
                raise _refused(place, "is an integer beyond 64 bits", "integer_too_large", "Send it as a string.")
            return int(match[0]), match.end()
        number = float(match[0])
        if number - number != 0.0:
            raise _refused(place, "is a number too large for a double", "not_finite", "Send a finite number or null.")
        return number, match.end()

    def _syntax(self, at: int, place: Place, wanted: str) -> RequestError:
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        end = " (the end of the body)" if at >= len(self.text) else ""
        found = f"is invalid at line {line}, column {column}{end}: expected {wanted}"
        return _refused(place, found, "json_syntax")


async def while_connected(work: Awaitable[T], receive: Receive) -> T:
    """Await `work`. If the client disconnects, cancel `work` and raise ClientGone.

    Call this only after the whole body was received.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = False
    watcher: asyncio.Task[None] | None = None

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    def start() -> None:
        nonlocal watcher
        watcher = asyncio.create_task(watch())

    timer = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, start)
    try:
        done = await work
    # cancelled work may convert the cancellation to one of the kit's errors
    except (asyncio.CancelledError, KitError):
        if not gone:
            raise
    else:
        if not gone:
            return done
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()
    # otherwise an enclosing timeout would mistake this cancellation for its own and swallow it
    task.uncancel()
    raise ClientGone
