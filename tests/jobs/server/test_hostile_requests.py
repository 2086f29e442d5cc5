"""The backend's door against a real server: every route and every odd key, body, path and number; never a 5xx, nothing told."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from starlette.routing import Route

from taskapp_kit.jobs.server.app import create_backend
from tests.jobs.server.exchange import GatedApp, ScriptedApp, a_config, a_job, backend, client, serving
from tests.waiting import until

pytestmark = pytest.mark.server

KEY = "Vq7ZtWxK-Mjh4/Lp+XnRwYs"
OTHER = "Gz3HvTqN-Bkf8/Dy+UoEiJa"
K, O = KEY.encode(), OTHER.encode()  # noqa: E741
Headers = list[tuple[bytes, bytes]]
ROUTES = sorted(
    (method, route.path.replace("{job_id}", "rl_0123456789abcdef").replace("{trainer_id}", "rollouts"))
    for route in create_backend([KEY]).routes
    if isinstance(route, Route)
    for method in route.methods or ()
)
OPEN = {(method, path) for method in ("GET", "HEAD") for path in ("/", "/health", "/api/health")}
CLOSED = [route for route in ROUTES if route not in OPEN]

BAD: dict[str, Headers] = {
    "nothing": [],
    "empty": [(b"Authorization", b"")],
    "no key": [(b"Authorization", b"Bearer ")],
    "wrong": [(b"Authorization", b"Bearer wrong")],
    "cut": [(b"Authorization", b"Bearer " + K[:-1])],
    "longer": [(b"Authorization", b"Bearer " + K + b"x")],
    "twice in one": [(b"Authorization", b"Bearer " + K + K)],
    "lower": [(b"Authorization", b"Bearer " + K.lower())],
    "quoted": [(b"Authorization", b'Bearer "' + K + b'"')],
    "percent": [(b"Authorization", b"Bearer " + quote(KEY, safe="").encode())],
    "base64": [(b"Authorization", b"Bearer " + base64.b64encode(K))],
    "no scheme": [(b"Authorization", K)],
    "other scheme": [(b"Authorization", b"Token " + K)],
    "basic": [(b"Authorization", b"Basic " + base64.b64encode(b"u:" + K))],
    "bearer twice": [(b"Authorization", b"Bearer Bearer " + K)],
    "two headers": [(b"Authorization", b"Bearer " + K), (b"authorization", b"Bearer wrong")],
    "two right ones": [(b"X-API-Key", K), (b"x-api-KEY", K)],
    "of two callers": [(b"Authorization", b"Bearer " + K), (b"X-API-Key", O)],
    "of two callers in a list": [(b"Authorization", b"Bearer " + K + b"," + O)],
    "seventeenth": [(b"X-API-Key", b",".join([b"w"] * 16 + [K]))],
    "huge": [(b"Authorization", b"Bearer " + b"x" * 30_000)],
    "thousands": [(b"X-API-Key", b"a," * 10_000)],
    "utf-8": [(b"Authorization", "Bearer ключ".encode())],
    "latin-1": [(b"Authorization", b"Bearer \xff\xfe")],
    "no-break space": [(b"Authorization", b"Bearer " + K + b"\xc2\xa0")],
    "cookie": [(b"Cookie", b"Authorization=" + K)],
    "other names": [(b"X_API_Key", K), (b"Api-Key", K), (b"Proxy-Authorization", b"Bearer " + K)],
    "the org": [(b"taskapp_kit.jobs.server.org", b"local"), (b"X-Org", b"local")],
    "method override": [(b"X-HTTP-Method-Override", b"GET"), (b"X-Original-URL", b"/health")],
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with backend(keys=[KEY, OTHER]) as back:
        yield back.url


def raw(url: str, data: bytes) -> bytes:
    """The whole answer to these bytes, on a connection of their own that is closed by then."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.sendall(data)
        got = b""
        while piece := connection.recv(65_536):
            got += piece
        return got


def message(verb: str, path: str, headers: Headers, body: bytes = b"", length: bool = True) -> bytes:
    lines = [f"{verb} {path} HTTP/1.1".encode(), b"Host: localhost", b"Connection: close"]
    lines += [b"Content-Length: %d" % len(body)] if length else []
    return b"\r\n".join([*lines, *(name + b": " + value for name, value in headers), b"", body])


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer.split()[1])


def error_in(answer: bytes) -> dict[str, Any]:
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["detail"]["error"]
    assert set(error) >= {"code", "message", "hint"}
    return dict(error)


def is_quiet(text: bytes | str, *keys: str) -> None:
    text = text if isinstance(text, str) else text.decode("latin-1")
    for key in keys or (KEY, OTHER):
        for start in range(len(key) - 5):
            assert key[start : start + 6] not in text


def test_no_route_opens_to_an_odd_key(server: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every odd key at one route, and two of them at every route: the key is checked before a route is chosen."""
    routes = [*CLOSED, ("GET", "/api/nothing"), ("POST", "/api/health")]
    tried = [*((BAD[name], CLOSED[0]) for name in BAD), *itertools.product((BAD["wrong"], BAD["two headers"]), routes)]
    with caplog.at_level(logging.DEBUG):
        for (headers, (verb, path)), body in itertools.product(tried, (b"", b"{" * 5000)):
            answer = raw(server, message(verb, path, headers, body))
            assert status_of(answer) == 401, (verb, path, headers)
            assert b"www-authenticate: bearer" in answer.lower()
            if verb != "HEAD":
                assert error_in(answer)["code"] == "unauthorised"
            is_quiet(answer)
    is_quiet(caplog.text)


def test_the_open_routes_say_nothing_more_to_a_wrong_key(server: str) -> None:
    for verb, path in sorted(OPEN):
        for headers in BAD.values():
            answer = raw(server, message(verb, path, headers))
            assert status_of(answer) == 200
            assert b"engine" not in answer
            is_quiet(answer)
    assert raw(server, message("GET", "/health", [])).endswith(b'{"status":"ok","healthy":true}')


def test_each_way_of_sending_the_key_opens(server: str) -> None:
    for headers in (
        [(b"Authorization", b"Bearer " + K)],
        [(b"authorization", b"bearer   " + K)],
        [(b"Authorization", b"Bearer wrong, " + K)],
        [(b"X-API-Key", K)],
        [(b"X-API-Key", K), (b"Authorization", b"Bearer " + K)],
    ):
        assert status_of(raw(server, message("GET", "/api/rl/jobs", headers))) == 200


GOOD: Headers = [(b"Authorization", b"Bearer " + K)]
JSON = (b"Content-Type", b"application/json")
BODIES: dict[str, tuple[bytes, Headers]] = {
    "empty": (b"", []),
    "no json": (b"{", [JSON]),
    "a list": (b"[{}]", [JSON]),
    "a number": (b"1", [JSON]),
    "null": (b"null", [JSON]),
    "nan": (b'{"name": NaN}', [JSON]),
    "infinity": (b'{"endpoint_base_url": -Infinity}', [JSON]),
    "1e999": (b'{"data": 1e999}', [JSON]),
    "beyond 64 bits": (b'{"data": 99999999999999999999}', [JSON]),
    "digits": (b'{"data": ' + b"1" * 100_000 + b"}", [JSON]),
    "name twice": (b'{"data": {}, "data": {"x": 1}}', [JSON]),
    "surrogate": (b'{"model": "\\ud800"}', [JSON]),
    "surrogate name": (b'{"\\udfff": 1}', [JSON]),
    "nul": (b'{"model": "a\\u0000b", "endpoint_base_url": "http://h\\u0000.example"}', [JSON]),
    "invalid utf-8": (b'{"model": "\xff"}', [JSON]),
    "utf-16": ('{"model": "x"}'.encode("utf-16"), [JSON]),
    "byte order mark": (b'\xef\xbb\xbf{"model": "x"}', [JSON]),
    "deep lists": (b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", [JSON]),
    "deep objects": (b'{"config": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}", [JSON]),
    "brackets in a text": (b'{"model": "' + b"[{" * 5000 + b'"}', [JSON]),
    "backslashes": (b'{"model": "' + b"\\" * 99_999, [JSON]),
    "quotes": (b'"' * 500_000, [JSON]),
    "many values": (b'{"config": [' + b"0," * 300_000 + b"0]}", [JSON]),
    "many names": (b"{" + b",".join(b'"a%d":1' % n for n in range(60_000)) + b"}", [JSON]),
    "too long": (b'{"model": "' + b"x" * (1 << 20) + b'"}', [JSON]),
    "gzip": (b"\x1f\x8b", [JSON, (b"Content-Encoding", b"gzip")]),
    "identity": (b"{}", [JSON, (b"Content-Encoding", b"identity")]),
    "form": (b"a=1", [(b"Content-Type", b"application/x-www-form-urlencoded")]),
    "multipart": (b"--x", [(b"Content-Type", b"multipart/form-data; boundary=x")]),
    "odd charset": (b"{}", [(b"Content-Type", b"application/json; charset=\xff")]),
    "another job": (b'{"job_type": "sft"}', [JSON]),
    "wrong types": (json.dumps({"job_type": ["rl"], "data": [], "tags": 1, "metadata": "x", "compute": True,
                                "name": {}, "ciphertext_b64": [1], "endpoint_base_url": {"a": 1}}).encode(), [JSON]),
    "wrong inside": (json.dumps({"data": {"endpoint_base_url": "http://127.0.0.1:9", "config": {"training": 7,
                                "rollout": [], "model": "x", "algorithm": None}, "trainer": "big", "model": 5}}).encode(), [JSON]),
    "huge numbers": (json.dumps({"model": "m", "endpoint_base_url": "http://127.0.0.1:9", "trainer":
                                {"batch_size": 2**62, "group_size": 10**18}}).encode(), [JSON]),
    "no key": (json.dumps({"name": "ENVIRONMENT_API_KEY", "ciphertext_b64": "A" * 12_000}).encode(), [JSON]),
    "odd base64": (json.dumps({"name": "ENVIRONMENT_API_KEY", "ciphertext_b64": "ä\u2028="}).encode(), [JSON]),
    "odd name of a key": (json.dumps({"name": "a key", "ciphertext_b64": "AAAA"}).encode(), [JSON]),
    "no ciphertext": (json.dumps({"name": "ENVIRONMENT_API_KEY"}).encode(), [JSON]),
    "long ciphertext": (json.dumps({"name": "ENVIRONMENT_API_KEY", "ciphertext_b64": "A" * 20_000}).encode(), [JSON]),
}  # fmt: skip
MAKES_JOBS = ("/api/rl/jobs", "/api/learning/jobs", "/api/orchestration/jobs")
BODIES_READ = (*MAKES_JOBS, "/api/rl/verify_task_app", "/api/v1/env-keys")


def test_a_malformed_body_is_refused_by_every_route_that_reads_one(server: str) -> None:
    """Every body at the route that makes jobs, with its length and in chunks; some at the other routes."""
    places = [(name, BODIES_READ[0], length) for name in BODIES for length in (True, False)]
    places += [
        (name, path, True) for name in ("empty", "deep lists", "wrong types", "gzip") for path in BODIES_READ[1:]
    ]
    keys = ("no key", "odd base64", "odd name of a key", "no ciphertext", "long ciphertext")
    places += [(name, "/api/v1/env-keys", True) for name in keys]
    for name, path, length in places:
        body, headers = BODIES[name]
        sent = body if length else b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        more = [] if length else [(b"Transfer-Encoding", b"chunked")]
        try:
            answer = raw(server, message("POST", path, [*GOOD, *headers, *more], sent, length))
        except (ConnectionResetError, BrokenPipeError):
            assert name == "too long"  # it was answered before all was sent
            continue
        assert status_of(answer) in (413, 415, 422), (name, path, answer[:300])
        error_in(answer)


@pytest.mark.parametrize(("verb", "path"), [route for route in CLOSED if route[1] not in BODIES_READ])
def test_the_other_routes_do_not_care_for_a_body(server: str, verb: str, path: str) -> None:
    for name in ("deep lists", "nan", "gzip", "too long"):
        body, headers = BODIES[name]
        with suppress(ConnectionResetError, BrokenPipeError):  # answered without reading it
            assert status_of(raw(server, message(verb, path, [*GOOD, *headers], body))) in (200, 404, 501)


@pytest.mark.parametrize(
    "length", [b"-1", b"1e3", b"0x10", b"+5", b"\xb2", b"9" * 30, b"5, 5", b" ", b"5\r\nContent-Length: 6"]
)
def test_odd_lengths_are_refused(server: str, length: bytes) -> None:
    answer = raw(server, message("POST", "/api/rl/jobs", [*GOOD, JSON, (b"Content-Length", length)], b"{}", False))
    assert status_of(answer) in (400, 413, 422)


NAMES = [
    "..", ".", "...", "%2e%2e", "%2F", "..%2f..%2fhealth", "%00", "x%00", "%ff", "%u0041", "rl_%0d%0aX: y", " ", "%20", "*", "~",
    "'", "' OR 1=1 --", "%25", "x" * 65, "x" * 5000, "%F0%9F%8E%B2", "rl_0123456789ABCDEF", "rl_0123456789abcde_", "null", "-",
    "{job_id}", "__proto__", ";x", "x;y", "x?y", "x#y", "//", "\\..\\", "x/", "x//events",
]  # fmt: skip


def test_no_odd_name_is_a_job_or_a_trainer(server: str) -> None:
    """Every name in one path, and two in every path."""
    tails = ("", "/events", "/events/stream", "/metrics", "/timeline", "/cancel")
    places = [(name, "rl", "") for name in NAMES]
    places += [
        (name, *place)
        for name in ("..%2f..%2fhealth", "x;y")
        for place in itertools.product(("rl", "orchestration"), tails)
    ]
    for name, family, tail in places:
        verb = "POST" if tail == "/cancel" else "GET"
        answer = raw(server, message(verb, f"/api/{family}/jobs/{name.replace(' ', '%20')}{tail}", GOOD))
        assert status_of(answer) in (404, 405), (name, family, tail, answer[:200])
        error_in(answer)
    for name in NAMES:
        answer = raw(server, message("GET", f"/api/rl/services/{name.replace(' ', '%20')}", GOOD))
        assert status_of(answer) == 404, name
    assert status_of(raw(server, message("DELETE", "/api/rl/jobs", GOOD))) == 405
    assert error_in(raw(server, message("GET", "/api/rl/nothing", GOOD)))["code"] == "not_found"


NUMBERS = ["-2", "-99999999999999999999", "9" * 19, "9" * 5000, "1.5", "1e3", "0x1", "nan", "inf", "true", "null", "1,2", "1 2",
           "٣", "²", "%00", "%ff", "+", "--1", "1_000"]  # fmt: skip


@pytest.fixture(scope="module")
def filled() -> Iterator[tuple[Any, str]]:
    with serving(ScriptedApp().app()) as url, backend(keys=[KEY, OTHER]) as back, client(back.url, KEY) as http:
        job_id = http.post("/rl/jobs", json=a_job(url, a_config(training={"iterations_per_epoch": 3}))).json()["job_id"]
        until(lambda: http.get(f"/rl/jobs/{job_id}").json()["status"] == "succeeded")
        yield http, job_id


def test_numbers_out_of_range_are_refused(filled: tuple[Any, str]) -> None:
    http, job_id = filled
    places = [(number, "events", "since_seq") for number in NUMBERS]
    places += [
        (number, *place)
        for number in ("-2", "1.5", "٣")
        for place in (
            ("events", "limit"),
            ("events/stream", "since_seq"),
            ("metrics", "after_step"),
            ("metrics", "limit"),
        )
    ]
    for number, path, name in places:
        answer = http.get(f"/rl/jobs/{job_id}/{path}?{name}={quote(number, safe='%')}")
        assert answer.status_code == 422, (number, path, name, answer.text[:200])
    for number in NUMBERS:
        assert http.get(f"/rl/jobs?limit={quote(number, safe='%')}").status_code == 422, number
        resumed = http.get(f"/rl/jobs/{job_id}/events/stream", headers={"Last-Event-ID": number.encode()})
        assert resumed.status_code == 200, number


def test_numbers_at_the_edges_are_taken(filled: tuple[Any, str]) -> None:
    http, job_id = filled
    assert len(http.get(f"/rl/jobs/{job_id}/events?since_seq=-1").json()["events"]) == 6
    assert http.get(f"/rl/jobs/{job_id}/events?since_seq=999999999999999999").json()["events"] == []
    assert len(http.get(f"/rl/jobs/{job_id}/events?limit=999999999999999999").json()["events"]) == 6
    assert http.get(f"/rl/jobs/{job_id}/events?limit=0").status_code == 422
    assert http.get(f"/rl/jobs/{job_id}/metrics?after_step=999999999999999999").json() == {"points": []}
    assert http.get("/rl/jobs?limit=1&after=nobody").json() == {"jobs": [], "has_more": False}
    for query in ("model=%00", "model=%ff", "model=" + "x" * 5000, "after=%ed%a0%80", "status=running", "x=y&x=z"):
        assert http.get(f"/rl/jobs?{query}").status_code == 200


@pytest.mark.parametrize("key", [b"", b" ", b"a b", b"x" * 256, b"\xff", "schlüssel".encode(), b"a\tb", b"\x7f"])
def test_odd_idempotency_keys_are_refused(server: str, key: bytes) -> None:
    body = json.dumps(a_job("http://127.0.0.1:9")).encode()
    answer = raw(server, message("POST", "/api/rl/jobs", [*GOOD, JSON, (b"Idempotency-Key", key)], body))
    assert status_of(answer) in (400, 422)
    twice: Headers = [(b"Idempotency-Key", b"a"), (b"Idempotency-Key", b"b")]
    answer = raw(server, message("POST", "/api/rl/jobs", [*GOOD, JSON, *twice], body))
    assert status_of(answer) == 422


def test_one_key_neither_sees_nor_ends_what_is_anothers() -> None:
    app = GatedApp()
    with (
        serving(app.app()) as url,
        backend(keys=[KEY, OTHER]) as back,
        client(back.url, KEY) as mine,
        client(back.url, OTHER) as theirs,
    ):
        made = mine.post("/rl/jobs", json=a_job(url), headers={"Idempotency-Key": "same"})
        job_id = made.json()["job_id"]
        until(lambda: app.in_flight == 4)
        for family in ("rl", "learning", "orchestration"):
            base = f"/{family}/jobs/{job_id}"
            for path in ("", "/events", "/events/stream", "/metrics", "/timeline"):
                assert theirs.get(base + path).status_code == 404
            for path in ("/cancel", "/start"):
                assert theirs.post(base + path).status_code == 404
            assert theirs.get(f"/{family}/jobs").json()["jobs"] == []
        assert theirs.get(f"/rl/jobs?after={job_id}").json()["jobs"] == []
        again = theirs.post("/rl/jobs", json=a_job(url), headers={"Idempotency-Key": "same"})
        assert again.status_code == 201
        assert again.json()["job_id"] != job_id
        other_body = {**a_job(url), "tags": {"a": "b"}}
        assert theirs.post("/rl/jobs", json=other_body, headers={"Idempotency-Key": "same"}).status_code == 409
        assert mine.get(f"/rl/jobs/{job_id}").json()["status"] == "running"
        app.gate.open()
        until(lambda: mine.get(f"/rl/jobs/{job_id}").json()["status"] == "succeeded")
        assert [job["job_id"] for job in mine.get("/rl/jobs").json()["jobs"]] == [job_id]


def test_the_host_that_a_caller_names_goes_nowhere_but_back_to_it(server: str) -> None:
    for host in (b"evil.example", b"[::1", b"a b", b"x" * 5000, b"h\xff", b"", b"h:99999", b"h/../x", b"u@h"):
        data = b"GET /api/rl/services/rollouts HTTP/1.1\r\nConnection: close\r\nHost: " + host
        answer = raw(server, data + b"\r\nAuthorization: Bearer " + K + b"\r\n\r\n")
        assert status_of(answer) in (400, 421), answer[:200]
        assert b"location:" not in answer.lower()
