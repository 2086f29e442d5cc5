"""The key check against a real server: what gets in, what does not, and what a refusal tells (nothing)."""

from __future__ import annotations

import base64
import json
import logging
import socket
from collections.abc import Iterator

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.net.auth import MAX_CANDIDATES, candidates
from tests.serve.load_test import GROWTH_BYTES, GROWTH_OBJECTS, SECOND, attacked_server, load_test, parsed
from tests.serve.running_server import KEY, RunningServer, error_of, opened, read_answer, request_body

pytestmark = pytest.mark.server

Headers = list[tuple[bytes, bytes]]
K = KEY.encode()


def basic(user: str, password: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{user}:{password}".encode())


GOOD: dict[str, Headers] = {
    "x-api-key": [(b"X-API-Key", K)],
    "lower case name": [(b"x-api-key", K)],
    "upper case name": [(b"X-API-KEY", K)],
    "alias": [(b"X-API-Key", SECOND.encode())],
    "spaces around": [(b"X-API-Key", b"  " + K + b" \t")],
    "comma list": [(b"X-API-Key", b"wrong, " + K + b",other")],
    "empty items": [(b"X-API-Key", b",," + K)],
    "x-api-keys": [(b"X-API-Keys", K)],
    "x-api-keys list": [(b"X-API-Keys", b"a,b," + K)],
    "bearer": [(b"Authorization", b"Bearer " + K)],
    "bearer lower": [(b"Authorization", b"bearer " + K)],
    "bearer upper": [(b"Authorization", b"BEARER " + K)],
    "bearer list": [(b"Authorization", b"Bearer wrong," + K)],
    "bearer spaces": [(b"Authorization", b"Bearer   " + K)],
    "basic": [(b"Authorization", basic("anybody", KEY))],
    "basic without name": [(b"Authorization", basic("", KEY))],
    "a wrong one beside": [(b"X-API-Key", b"wrong"), (b"Authorization", b"Bearer " + K)],
    "the Synth client": [(b"X-API-Key", K), (b"Authorization", b"Bearer " + K), (b"X-API-Keys", K)],
    "a huge one beside": [(b"X-API-Key", b"x" * 5000 + b"," + K)],
    "sixteenth of sixteen": [(b"X-API-Key", b",".join([b"wrong%d" % n for n in range(15)] + [K]))],
}

BAD: dict[str, Headers] = {
    "nothing": [],
    "empty": [(b"X-API-Key", b"")],
    "spaces": [(b"X-API-Key", b"   ")],
    "commas": [(b"X-API-Key", b",,,,,")],
    "wrong": [(b"X-API-Key", b"wrong")],
    "prefix": [(b"X-API-Key", K[:-1])],
    "half": [(b"X-API-Key", K[: len(K) // 2])],
    "one letter": [(b"X-API-Key", K[:1])],
    "suffix": [(b"X-API-Key", K[1:])],
    "longer": [(b"X-API-Key", K + b"x")],
    "twice in one": [(b"X-API-Key", K + K)],
    "upper": [(b"X-API-Key", K.upper())],
    "lower": [(b"X-API-Key", K.lower())],
    "swapped": [(b"X-API-Key", K.swapcase())],
    "reversed": [(b"X-API-Key", K[::-1])],
    "quoted": [(b"X-API-Key", b'"' + K + b'"')],
    "single quoted": [(b"X-API-Key", b"'" + K + b"'")],
    "space inside": [(b"X-API-Key", K[:5] + b" " + K[5:])],
    "comma inside": [(b"X-API-Key", K[:5] + b"," + K[5:])],
    "semicolon list": [(b"X-API-Key", b"wrong;" + K)],
    "space list": [(b"X-API-Key", b"wrong " + K)],
    "percent": [(b"X-API-Key", b"%54" + K[1:])],
    "base64": [(b"X-API-Key", base64.b64encode(K))],
    "hex": [(b"X-API-Key", K.hex().encode())],
    "full width": [(b"X-API-Key", "".join(chr(ord(c) + 0xFEE0) for c in KEY).encode())],
    "utf-8": [(b"X-API-Key", "ключ".encode())],
    "latin-1": [(b"X-API-Key", b"cl\xe9")],
    "invalid utf-8": [(b"X-API-Key", b"\xff\xfe\xfa")],
    "zero width": [(b"X-API-Key", K + b"\xe2\x80\x8b")],
    "no-break space": [(b"X-API-Key", K + b"\xc2\xa0")],
    "byte order mark": [(b"X-API-Key", b"\xef\xbb\xbf" + K)],
    "bearer in x-api-key": [(b"X-API-Key", b"Bearer " + K)],
    "long": [(b"X-API-Key", b"x" * 513)],
    "long with the key in front": [(b"X-API-Key", K + b"x" * 600)],
    "very long": [(b"X-API-Key", b"x" * 30_000)],
    "thousands": [(b"X-API-Key", b"a," * 10_000)],
    "seventeenth": [(b"X-API-Key", b",".join([b"wrong%d" % n for n in range(16)] + [K]))],
    "seventeenth over headers": [(b"X-API-Keys", b",".join([b"w"] * 16)), (b"Authorization", b"Bearer " + K)],
    "two x-api-key": [(b"X-API-Key", K), (b"X-API-Key", K)],
    "two, first right": [(b"X-API-Key", K), (b"X-API-Key", b"wrong")],
    "two, second right": [(b"X-API-Key", b"wrong"), (b"X-API-Key", K)],
    "two in other case": [(b"X-API-Key", K), (b"x-api-KEY", b"wrong")],
    "two authorization": [(b"Authorization", b"Bearer " + K), (b"Authorization", b"Bearer wrong")],
    "underscores": [(b"X_API_Key", K)],
    "api-key": [(b"Api-Key", K)],
    "x-apikey": [(b"X-ApiKey", K)],
    "x-api-token": [(b"X-Api-Token", K)],
    "cookie": [(b"Cookie", b"X-API-Key=" + K)],
    "proxy-authorization": [(b"Proxy-Authorization", b"Bearer " + K)],
    "forwarded": [(b"X-Forwarded-For", b"127.0.0.1"), (b"X-Real-IP", b"127.0.0.1")],
    "original url": [(b"X-Original-URL", b"/"), (b"X-Rewrite-URL", b"/")],
    "method override": [(b"X-HTTP-Method-Override", b"HEAD")],
    "host": [(b"X-Forwarded-Host", b"localhost")],
    "referer": [(b"Referer", b"http://127.0.0.1/?key=" + K)],
    "user-agent": [(b"User-Agent", K)],
    "no scheme": [(b"Authorization", K)],
    "no space": [(b"Authorization", b"Bearer" + K)],
    "bearer alone": [(b"Authorization", b"Bearer")],
    "bearer empty": [(b"Authorization", b"Bearer ")],
    "bearer twice": [(b"Authorization", b"Bearer Bearer " + K)],
    "bearer colon": [(b"Authorization", b"Bearer: " + K)],
    "token": [(b"Authorization", b"Token " + K)],
    "apikey": [(b"Authorization", b"ApiKey " + K)],
    "digest": [(b"Authorization", b'Digest username="' + K + b'"')],
    "basic, not base64": [(b"Authorization", b"Basic " + K)],
    "basic, key as name": [(b"Authorization", basic(KEY, ""))],
    "basic, wrong": [(b"Authorization", basic("user", "wrong"))],
    "basic, no colon": [(b"Authorization", b"Basic " + base64.b64encode(K))],
    "basic, key in front": [(b"Authorization", basic("user", KEY + "x"))],
    "basic, list": [(b"Authorization", basic("user", f"wrong,{KEY}"))],
    "basic, cut": [(b"Authorization", basic("user", KEY)[:-3])],
    "basic, huge": [(b"Authorization", b"Basic " + b"QUFB" * 5000)],
    "digest of the key": [(b"X-API-Key", b"sha256:" + b"0" * 64)],
    "star": [(b"X-API-Key", b"*")],
    "null": [(b"X-API-Key", b"null")],
    "none": [(b"X-API-Key", b"None")],
    "true": [(b"X-API-Key", b"true")],
    "sql": [(b"X-API-Key", b"' OR '1'='1")],
    "format": [(b"X-API-Key", b"%s%n{0}${jndi:x}")],
    "json": [(b"X-API-Key", json.dumps([KEY]).encode())],
}


PATHS = (
    "/health", "/info", "/task_info", "/rollout", "/done", "/docs", "/openapi.json", "/blobs/" + "0" * 64, "/debug/env",
    "/nothing", "//", "/./", "/%2e/", "/%2F", "/health/", "/../", "/..%2f", "/;/", "/favicon.ico", "/redoc",
    "/health%00", "/HEALTH", f"/health?api_key={KEY}", f"/rollout?X-API-Key={KEY}", f"/{KEY}", "/health#/", "*",
)  # fmt: skip
OPEN_PATHS = ("/", "/?x=/", f"/?key={KEY}")
"""`/` is open for GET and HEAD, whatever its query."""
VERBS = ("GET", "HEAD", "POST", "OPTIONS")
OTHER_VERBS = ("PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "QUERY", "PROPFIND", "PURGE")


def message(verb: bytes, path: bytes, headers: Headers, body: bytes = b"") -> bytes:
    lines = [verb + b" " + path + b" HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body)]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def begun(*headers: bytes, body: bytes = b"") -> bytes:
    """The head of a rollout without a key, and as much of its body as is given."""
    return b"\r\n".join([b"POST /rollout HTTP/1.1", b"Host: x", *headers]) + b"\r\n\r\n" + body


def one_letter_off(key: str, place: int) -> bytes:
    """What a caller tries who finds a key out letter by letter, by the time of the answers."""
    return f"{key[:place]}{'x' if key[place] != 'x' else 'y'}{key[place + 1 :]}".encode()


ROLLOUT = json.dumps(request_body()).encode()
HALF_SENT = {
    "nothing of it": begun(b"Content-Length: 1000000"),
    "a part of it": begun(b"Content-Length: 1000000", body=ROLLOUT),
    "a wrong key, a part of it": begun(b"X-API-Key: wrong", b"Content-Length: 1000000", body=ROLLOUT),
    "the end of the key in the body": begun(b"X-API-Key: " + K[:-9], b"Content-Length: 50", body=K[-9:]),
    "chunked, no chunk": begun(b"Transfer-Encoding: chunked"),
    "chunked, one chunk": begun(b"Transfer-Encoding: chunked", body=b"%x\r\n%s\r\n" % (len(ROLLOUT), ROLLOUT)),
    "chunked, half a chunk": begun(b"Transfer-Encoding: chunked", body=b"ffff\r\n" + ROLLOUT),
    "chunked, the key as trailer": begun(
        b"Transfer-Encoding: chunked", b"Trailer: X-API-Key", body=b"0\r\nX-API-Key: " + K + b"\r\n\r\n"
    ),
    "waiting for 100 Continue": begun(b"Expect: 100-continue", b"Content-Length: 1000000"),
    "longer than any body may be": begun(b"Content-Length: 99999999999"),
    "compressed": begun(b"Content-Encoding: gzip", b"Content-Length: 1000", body=b"\x1f\x8b"),
}
ATTACKS: dict[str, bytes] = {
    **{
        f"key: {name}": message(b"POST", b"/rollout", [*headers, (b"Content-Type", b"application/json")], ROLLOUT)
        for name, headers in BAD.items()
    },
    **{
        f"right but for letter {place}": message(b"GET", b"/health", [(b"X-API-Key", one_letter_off(KEY, place))])
        for place in range(len(KEY))
    },
    **{
        f"the first {length} letters of the second": message(
            b"GET", b"/health", [(b"Authorization", b"Bearer " + SECOND[:length].encode())]
        )
        for length in range(1, len(SECOND))
    },
    **{f"{verb} {path}": message(verb.encode(), path.encode(), []) for verb in VERBS for path in PATHS},
    **{
        f"{verb} {path}": message(verb.encode(), path.encode(), [])
        for verb in ("POST", "OPTIONS")
        for path in OPEN_PATHS
    },
    **{f"{verb} /": message(verb.encode(), b"/", []) for verb in OTHER_VERBS},
    **{f"{verb} /rollout": message(verb.encode(), b"/rollout", [], ROLLOUT) for verb in OTHER_VERBS},
    "without a version": b"GET /health\r\n\r\n",
    **{f"half-sent: {name}": data for name, data in HALF_SENT.items()},
}


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    """A server for the attacks of this file."""
    with attacked_server() as found:
        yield found


@pytest.mark.parametrize("name", GOOD)
def test_valid_key_is_accepted(running: RunningServer, name: str) -> None:
    assert running.raw(message(b"GET", b"/health", GOOD[name])).startswith(b"HTTP/1.1 200")


def test_attack_list_has_not_shrunk() -> None:
    assert len(ATTACKS) >= 150 and len(set(ATTACKS.values())) == len(ATTACKS)


def test_invalid_key_is_rejected_without_side_effects(running: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with load_test(running, caplog) as attack:
        for name, data in ATTACKS.items():
            response = parsed(attack.send(data))
            assert response.status_code == 401, name
            assert "bearer" in response.headers["www-authenticate"].lower(), name
            if name.startswith("HEAD "):
                assert response.content == b"", name
            else:
                assert error_of(response)["code"] == "unauthorised", name


@pytest.mark.parametrize(
    "data",
    [message(b"BREW", b"/", []), b"GET /health HTTP/9.9\r\n\r\n", K + b"\r\n\r\n",
     b"GET /health HTTP/1.1\r\nX-API-Key " + K + b"\r\n\r\n", b"GET / HTTP/1.1\r\n" + K + b"\0: x\r\n\r\n",
     b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + K],
)  # fmt: skip
def test_invalid_http_returns_400_before_the_key_check(
    running: RunningServer, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with load_test(running, caplog) as attack:
        assert attack.send(data, seconds=2).startswith(b"HTTP/1.1 400 ")


def test_unfinished_request_head_gets_no_answer(running: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with load_test(running, caplog) as attack:
        assert attack.send(b"GET /health HTTP/1.1\r\nX-API-Key: " + K[:-1], end=True) == b""


@pytest.mark.parametrize("verb", ["GET", "HEAD"])
@pytest.mark.parametrize("path", OPEN_PATHS)
def test_root_route_does_not_echo_the_request(
    running: RunningServer, verb: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with load_test(running, caplog) as attack:
        assert attack.send(message(verb.encode(), path.encode(), [])).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("breach", ["answer", "log", "traceback", "rollout", "memory", "objects", "silence", "lockout"])
def test_load_test_detects_a_leak(running: RunningServer, breach: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each thing that `load_test` looks for, done on purpose."""
    log = logging.getLogger("taskapp_kit.serve")
    held: object = None
    words = {
        "answer": "an answer shows", "log": "the log shows", "traceback": "the log shows", "rollout": "a rollout began",
        "memory": "grew by .* bytes", "objects": "grew by .* objects", "silence": "asked the server nothing", "lockout": "unauthorised",
    }  # fmt: skip
    locked_out = RunningServer(running.server, running.service)
    locked_out.client = locked_out.stranger
    with (
        pytest.raises(AssertionError, match=words[breach]),
        load_test(locked_out if breach == "lockout" else running, caplog) as attack,
    ):
        if breach != "silence":
            attack.send(message(b"GET", b"/health", []))
        if breach == "answer":
            attack.note(b"HTTP/1.1 401 " + SECOND[-6:].encode())
        elif breach == "log":
            log.debug("who came: %s", KEY[7:13])
        elif breach == "traceback":
            try:
                raise ValueError(KEY)
            except ValueError:
                log.exception("it broke")
        elif breach == "rollout":
            assert running.client.post("/rollout", json=request_body()).status_code == 200
        elif breach == "memory":
            held = b"x" * (2 * GROWTH_BYTES + 100_000)  # twice: earlier tests may free some of theirs now
        elif breach == "objects":
            held = [object() for _ in range(2 * GROWTH_OBJECTS + 1000)]
    del held


def test_root_route_needs_no_key_and_reveals_little(running: RunningServer) -> None:
    response = running.stranger.get("/")
    assert response.json() == {"status": "ok", "service": "yard"}
    assert "server" not in response.headers
    head = running.stranger.head("/")
    assert head.status_code == 200 and head.headers["content-length"] == str(len('{"status":"ok"}'))


def test_rejected_caller_may_retry_on_the_same_connection(running: RunningServer) -> None:
    with socket.create_connection((running.server.host, running.server.port), timeout=5) as connection:
        connection.sendall(message(b"POST", b"/rollout", [(b"X-API-Key", b"wrong")], b"x" * 1_000))
        assert read_answer(connection).startswith(b"HTTP/1.1 401")
        connection.sendall(message(b"GET", b"/health", [(b"X-API-Key", K)]))
        assert read_answer(connection).startswith(b"HTTP/1.1 200")


def test_without_a_configured_key_only_the_root_route_answers() -> None:
    with opened(Settings()) as closed:
        assert closed.stranger.get("/").status_code == 200
        for response in (closed.client.get("/health"), closed.stranger.post("/rollout", json=request_body())):
            assert response.status_code == 503
            assert error_of(response)["code"] == "missing_environment_api_key"


def test_key_candidates_are_limited_in_number_and_length() -> None:
    many = candidates([(b"x-api-key", b",".join(b"k%d" % n for n in range(1000)))])
    assert isinstance(many, list) and len(many) == MAX_CANDIDATES
    assert candidates([(b"x-api-key", b"x" * 513)]) == []
    assert candidates([(b"x-api-key", b"x" * 512)]) == [b"x" * 512]
    assert candidates([(b"x-api-key", b"a"), (b"x-api-keys", b"a"), (b"authorization", b"Bearer a")]) == [b"a"]
