"""The key check against a real server: what gets in, what does not, and what a refusal tells (nothing)."""

from __future__ import annotations

import base64
import json
import logging
import socket
import time
from pathlib import Path

import httpx
import pytest
from front_door import ALIAS, KEY, RESETS, Door, error_of, fragments, opened, read_answer, request_body

from taskapp_kit.config import Settings
from taskapp_kit.serve.auth import MAX_CANDIDATES, candidates

Headers = list[tuple[bytes, bytes]]
K = KEY.encode()


def basic(user: str, password: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{user}:{password}".encode())


GOOD: dict[str, Headers] = {
    "x-api-key": [(b"X-API-Key", K)],
    "lower case name": [(b"x-api-key", K)],
    "upper case name": [(b"X-API-KEY", K)],
    "alias": [(b"X-API-Key", ALIAS.encode())],
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


def message(verb: bytes, path: bytes, headers: Headers, body: bytes = b"") -> bytes:
    lines = [verb + b" " + path + b" HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body)]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def parse(answer: bytes) -> httpx.Response:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    headers = [tuple(part.strip() for part in line.split(b":", 1)) for line in lines[1:]]
    return httpx.Response(int(lines[0].split()[1]), headers=headers, content=body)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", GOOD)
def test_a_right_key_opens(door: Door, name: str) -> None:
    assert door.raw(message(b"GET", b"/health", GOOD[name])).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("name", BAD)
def test_anything_else_does_not(door: Door, name: str, caplog: pytest.LogCaptureFixture) -> None:
    before = RESETS[0]
    body = json.dumps(request_body()).encode()
    with caplog.at_level(logging.DEBUG):
        answer = door.raw(message(b"POST", b"/rollout", [*BAD[name], (b"Content-Type", b"application/json")], body))
    response = parse(answer)
    assert response.status_code == 401
    assert "bearer" in response.headers["www-authenticate"].lower()
    assert error_of(response)["code"] == "unauthorised"
    assert not fragments(answer, KEY, ALIAS)
    assert not fragments("".join(record.getMessage() for record in caplog.records), KEY, ALIAS)
    assert RESETS[0] == before


@pytest.mark.parametrize(
    "path",
    ["/health", "/info", "/task_info", "/rollout", "/done", "/docs", "/openapi.json", "/blobs/" + "0" * 64,
     "/debug/env",
     "/nothing", "//", "/./", "/%2e/", "/%2F", "/?x=/", "/health/", "/../", "/..%2f", "/;/", "/favicon.ico", "/redoc",
     "/health%00", "/HEALTH", f"/?key={KEY}", f"/health?api_key={KEY}", f"/rollout?X-API-Key={KEY}", "/health#/", "*"],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["GET", "HEAD", "POST", "OPTIONS"])
def test_no_path_or_verb_goes_round(door: Door, verb: str, path: str) -> None:
    answer = door.raw(message(verb.encode(), path.encode(), []))
    open_here = path.split("?", maxsplit=1)[0] == "/" and verb in ("GET", "HEAD")
    status = int(answer.split(b" ", 2)[1])
    assert status == 200 if open_here else status in (400, 401)
    assert not fragments(answer, KEY, ALIAS)


@pytest.mark.parametrize("verb", ["PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "QUERY", "BREW"])
def test_other_verbs_need_the_key_too(door: Door, verb: str) -> None:
    answer = door.raw(message(verb.encode(), b"/", []))
    assert answer.split(b" ", 2)[1] in (b"400", b"401")


def test_the_open_route_needs_no_key_and_says_little(door: Door) -> None:
    response = door.stranger.get("/")
    assert response.json() == {"status": "ok", "service": "yard"}
    assert "server" not in response.headers
    head = door.stranger.head("/")
    assert head.status_code == 200 and head.headers["content-length"] == str(len('{"status":"ok"}'))


def test_the_key_is_checked_before_a_byte_of_the_body(door: Door) -> None:
    half = (
        message(b"POST", b"/rollout", [])[:-4].replace(b"Content-Length: 0", b"Content-Length: 1000000") + b"\r\n\r\n"
    )
    began = time.monotonic()
    assert door.raw(half).startswith(b"HTTP/1.1 401")
    assert door.raw(half.replace(b"Content-Length: 1000000", b"Transfer-Encoding: chunked")).startswith(b"HTTP/1.1 401")
    expecting = half.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue")
    assert door.raw(expecting).startswith(b"HTTP/1.1 401"), "no 100 Continue for a stranger"
    assert time.monotonic() - began < 3


def test_a_refused_caller_may_try_again_on_the_same_connection(door: Door) -> None:
    with socket.create_connection((door.server.host, door.server.port), timeout=5) as connection:
        connection.sendall(message(b"POST", b"/rollout", [(b"X-API-Key", b"wrong")], b"x" * 100_000))
        assert read_answer(connection).startswith(b"HTTP/1.1 401")
        connection.sendall(message(b"GET", b"/health", [(b"X-API-Key", K)]))
        assert read_answer(connection).startswith(b"HTTP/1.1 200")


def test_without_a_configured_key_nothing_but_the_open_route_answers() -> None:
    with opened(Settings()) as closed:
        assert closed.stranger.get("/").status_code == 200
        for response in (closed.client.get("/health"), closed.stranger.post("/rollout", json=request_body())):
            assert response.status_code == 503
            assert error_of(response)["code"] == "missing_environment_api_key"


@pytest.mark.parametrize("kind", ["dev_environment_api_key", "environment_api_key"])
def test_each_setting_opens_alone(kind: str) -> None:
    with opened(Settings(**{kind: KEY})) as one:  # type: ignore[arg-type]
        assert one.client.get("/health").status_code == 200
        assert one.stranger.get("/health").status_code == 401


def test_a_key_outside_ascii_opens_in_either_spelling() -> None:
    with opened(Settings(environment_api_key="clé-éééé")) as one:
        for encoding in ("utf-8", "latin-1"):
            key = "clé-éééé".encode(encoding)
            assert one.raw(message(b"GET", b"/health", [(b"X-API-Key", key)])).startswith(b"HTTP/1.1 200")
        assert one.raw(message(b"GET", b"/health", [(b"X-API-Key", b"cle-eeee")])).startswith(b"HTTP/1.1 401")


def test_the_key_file_turns_over_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("first-key-000000\n")
    with opened(Settings(keys_file=file)) as one:

        def status(key: str) -> int:
            return one.stranger.get("/health", headers={"X-API-Key": key}).status_code

        assert (status("first-key-000000"), status("next-key-1111111")) == (200, 401)
        file.write_text("# rotation\nfirst-key-000000\nlater next-key-1111111\n")
        _until(lambda: status("next-key-1111111") == 200)
        assert status("first-key-000000") == 200
        file.write_text("later next-key-1111111\n")
        _until(lambda: status("first-key-000000") == 401)
        assert status("next-key-1111111") == 200
        file.unlink()
        _until(lambda: status("next-key-1111111") == 503)


def _until(condition: object, seconds: float = 6.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.1)


def test_a_websocket_needs_the_key(door: Door) -> None:
    upgrade: Headers = [
        (b"Connection", b"Upgrade"),
        (b"Upgrade", b"websocket"),
        (b"Sec-WebSocket-Version", b"13"),
        (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
    ]
    assert door.raw(message(b"GET", b"/rollout", upgrade)).split(b" ", 2)[1] in (b"401", b"403")


def test_candidates_are_bounded_in_number_and_length() -> None:
    many = candidates([(b"x-api-key", b",".join(b"k%d" % n for n in range(1000)))])
    assert isinstance(many, list) and len(many) == MAX_CANDIDATES
    assert candidates([(b"x-api-key", b"x" * 513)]) == []
    assert candidates([(b"x-api-key", b"x" * 512)]) == [b"x" * 512]
    assert candidates([(b"x-api-key", b"a"), (b"x-api-keys", b"a"), (b"authorization", b"Bearer a")]) == [b"a"]


def test_the_wrong_key_takes_as_long_wherever_it_differs() -> None:
    """A property of the comparison: digests of equal length are compared, so no byte of the key can steer the time."""
    from taskapp_kit.serve.keys import Keys

    keys = Keys([("a", KEY), ("b", ALIAS)])
    assert keys.match([K]) == "a" and keys.match([b"no", ALIAS.encode()]) == "b" and keys.match([K[:-1]]) is None
    assert not fragments(repr(keys) + repr(vars(keys)), KEY, ALIAS)
