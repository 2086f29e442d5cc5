"""Malformed bodies against a real server: each is the caller's error, names the field, and runs nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from starlette.types import Message

from taskapp_kit.config import Settings
from taskapp_kit.net.body import read_json
from taskapp_kit.net.error_response import RequestRefused
from tests.serve.load_test import attacked_server, load_test, parsed
from tests.serve.running_server import KEY, RunningServer, error_of, opened, read_answer, refused_fields, request_body

pytestmark = pytest.mark.server

GOOD = request_body()


def text(**changes: Any) -> bytes:
    """The good body with some members replaced; `raw_…` values stand as they are."""
    return json.dumps({**GOOD, **changes}).encode()


def spliced(field: str, raw: str) -> bytes:
    """The good body with one member's value written verbatim."""
    return json.dumps({**GOOD, field: "@@"}).replace('"@@"', raw).encode()


def seeded(raw: str) -> bytes:
    return json.dumps({**GOOD, "env": {"seed": "@@"}}).replace('"@@"', raw).encode()


SEED = ["body", "env", "seed"]
# name: (body, the field that the answer must name, its type)
BAD: dict[str, tuple[bytes, list[str | int], str]] = {
    **{f"{body!r}": (body, ["body"], "not_an_object") for body in (b"null", b"7", b'"x"', b"[]", b"true")},
    **{
        f"{body!r}": (body, ["body"], "json_syntax")
        for body in (b"{", b"}", b"hello", b"{'a':1}", b"{a:1}", b"run_id=x&mode=rl")
    },
    **{f"seed {raw}": (seeded(raw), SEED, "json_syntax") for raw in ("01", "+1", "0x10", ".5", "5.", "-", "1_0")},
    **{f"seed {raw}": (seeded(raw), SEED, "not_finite") for raw in ("NaN", "Infinity", "-NaN")},
    **{f"seed {raw}": (seeded(str(raw)), SEED, "integer_too_large") for raw in (2**63, 2**64, -(2**63) - 1)},
    **{
        f"{name} missing": (orjson.dumps({k: v for k, v in GOOD.items() if k != name}), ["body", name], "missing")
        for name in ("run_id", "env", "policy", "ops", "mode")
    },
    "empty": (b"", ["body"], "empty_body"),
    "spaces": (b"   \n ", ["body"], "empty_body"),
    "cut": (text()[:-9], ["body", "mode"], "json_syntax"),
    "cut in a string": (b'{"run_id": "abc', ["body", "run_id"], "json_syntax"),
    "trailing word": (text() + b"x", ["body"], "trailing_text"),
    "two objects": (text() + text(), ["body"], "trailing_text"),
    "trailing comma": (b'{"a":1,}', ["body"], "json_syntax"),
    "comma in list": (spliced("ops", "[1,]"), ["body", "ops", 1], "json_syntax"),
    "no colon": (b'{"a" 1}', ["body", "a"], "json_syntax"),
    "no value": (b'{"a":}', ["body", "a"], "json_syntax"),
    "no comma": (b'{"a":1 "b":2}', ["body", "a"], "json_syntax"),
    "comment": (b'{"a":1 /* x */}', ["body", "a"], "json_syntax"),
    "byte order mark": (b"\xef\xbb\xbf" + text(), ["body"], "byte_order_mark"),
    "utf-16": (text().decode().encode("utf-16"), ["body"], "json_syntax"),
    "invalid utf-8": (b'{"run_id": "\xff\xfe"}', ["body", "run_id"], "invalid_utf8"),
    "overlong utf-8": (b'{"run_id": "\xc0\xaf"}', ["body", "run_id"], "invalid_utf8"),
    "raw surrogate": (b'{"run_id": "\xed\xa0\x80"}', ["body", "run_id"], "invalid_utf8"),
    "invalid utf-8 name": (b'{"\xff": 1}', ["body"], "invalid_utf8"),
    "lone high surrogate": (spliced("run_id", '"\\ud800"'), ["body", "run_id"], "lone_surrogate"),
    "lone low surrogate": (spliced("run_id", '"a\\udc00b"'), ["body", "run_id"], "lone_surrogate"),
    "reversed pair": (spliced("run_id", '"\\ude00\\ud83d"'), ["body", "run_id"], "lone_surrogate"),
    "surrogate deep": (spliced("env", '{"config":["\\ud800"]}'), ["body", "env", "config", 0], "lone_surrogate"),
    "control character": (b'{"run_id": "a\x01b"}', ["body", "run_id"], "json_syntax"),
    "line end in string": (b'{"run_id": "a\nb"}', ["body", "run_id"], "json_syntax"),
    "bad escape": (spliced("run_id", '"\\x41"'), ["body", "run_id"], "json_syntax"),
    "short escape": (spliced("run_id", '"\\u12"'), ["body", "run_id"], "json_syntax"),
    "-Infinity": (spliced("safety", '{"max_time_s":-Infinity}'), ["body", "safety", "max_time_s"], "not_finite"),
    "1e999": (spliced("safety", '{"max_time_s":1e999}'), ["body", "safety", "max_time_s"], "not_finite"),
    "-1e999": (spliced("safety", '{"max_time_s":-1e999}'), ["body", "safety", "max_time_s"], "not_finite"),
    "10**5000": (seeded("1" + "0" * 5000), ["body", "env", "seed"], "integer_too_large"),
    "huge in config": (spliced("env", '{"config":{"n":[1,99999999999999999999]}}'), ["body", "env", "config", "n", 1],
                       "integer_too_large"),
    "twice": (b'{"mode":"rl","mode":"eval"}', ["body", "mode"], "duplicate_name"),
    "twice, escaped": (b'{"mode":"rl","\\u006dode":"eval"}', ["body", "mode"], "duplicate_name"),
    "twice, deep": (spliced("env", '{"config":[{"x":1,"x":1}]}'), ["body", "env", "config", 0, "x"], "duplicate_name"),
    "twice, hidden by an escaped colon": (b'{"mode":"\\u003a","mode":"\\u003a"}', ["body", "mode"], "duplicate_name"),
    "twice, hidden behind colons": (b'{"a":"::","mode":1,"mode":"\\u003A"}', ["body", "mode"], "duplicate_name"),
    "deep list": (spliced("ops", "[" * 65 + "]" * 65), ["body", "ops", 0, 0, 0], "too_deep"),
    "deep object": (spliced("env", '{"a":' * 65 + "1" + "}" * 65), ["body", "env", "a", "a", "a"], "too_deep"),
    "very deep": (b'{"ops":' + b"[" * 100_000, ["body", "ops", 0, 0, 0], "too_deep"),
    "many values": (b'{"ops":[' + b"[]," * 300_000 + b"[]]}", ["body"], "too_many_values"),
    "run_id number": (text(run_id=5), ["body", "run_id"], "string_type"),
    "run_id empty": (text(run_id=""), ["body", "run_id"], "string_too_short"),
    "run_id long": (text(run_id="x" * 513), ["body", "run_id"], "string_too_long"),
    "env list": (text(env=[]), ["body", "env"], "model_type"),
    "seed string": (seeded('"7"'), ["body", "env", "seed"], "int_type"),
    "seed float": (seeded("7.0"), ["body", "env", "seed"], "int_type"),
    "seed negative": (seeded("-1"), ["body", "env", "seed"], "greater_than_equal"),
    "seed out of range": (seeded("12345"), ["body", "env", "seed"], "seed_out_of_range"),
    "config list": (text(env={"config": []}), ["body", "env", "config"], "dict_type"),
    "ops number": (text(ops=[1]), ["body", "ops", 0], "string_type"),
    "ops too many": (text(ops=["agent"] * 200_001), ["body", "ops"], "too_long"),
    "mode unknown": (text(mode="train"), ["body", "mode"], "literal_error"),
    "max_ops zero": (text(safety={"max_ops": 0}), ["body", "safety", "max_ops"], "greater_than_equal"),
    "max_ops negative": (text(safety={"max_ops": -5}), ["body", "safety", "max_ops"], "greater_than_equal"),
    "max_ops float": (text(safety={"max_ops": 1.5}), ["body", "safety", "max_ops"], "int_type"),
    "max_time zero": (text(safety={"max_time_s": 0}), ["body", "safety", "max_time_s"], "greater_than_equal"),
    "max_time negative": (text(safety={"max_time_s": -1}), ["body", "safety", "max_time_s"], "greater_than_equal"),
    "max_time huge": (text(safety={"max_time_s": 1e30}), ["body", "safety", "max_time_s"], "less_than_equal"),
    "record string": (text(record={"trajectories": "yes"}), ["body", "record", "trajectories"], "bool_type"),
    "record store": (text(record={"store": "no"}), ["body", "record", "store"], "bool_type"),
    "trace format": (text(record={"trace_format": "huge"}), ["body", "record", "trace_format"], "literal_error"),
    "output mode": (text(policy={"output_mode": "speech"}), ["body", "policy", "output_mode"], "literal_error"),
    "reward negative": (text(reward={"env": -1}), ["body", "reward", "env"], "greater_than_equal"),
    "reward unknown": (text(reward={"enviroment": 1}), ["body", "reward"], "value_error"),
    "reward of nothing": (text(reward={"env": 0, "event": 0, "outcome": 0}), ["body", "reward"], "value_error"),
    "mode upper case": (text(mode="RL"), ["body", "mode"], "literal_error"),
    "env_name unknown": (text(env={"env_name": "nosuch"}), ["body", "env", "env_name"], "unknown_environment"),
    "config unknown": (text(env={"config": {"hight": 3}}), ["body", "env", "config", "hight"], "bad_config"),
    "config word": (text(env={"config": {"low": "three"}}), ["body", "env", "config", "low"], "bad_config"),
    "config bool": (text(env={"config": {"low": True}}), ["body", "env", "config", "low"], "bad_config"),
    "split unknown": (text(env={"config": {"split": "trian"}}), ["body", "env", "config", "split"], "unknown_split"),
    "split number": (text(env={"config": {"split": 7}}), ["body", "env", "config", "split"], "bad_split"),
    "index negative": (text(env={"config": {"split": "train", "index": -1}}), ["body", "env", "config", "index"],
                       "bad_index"),
    "index too large": (text(env={"config": {"split": "train", "index": 64}}), ["body", "env", "config", "index"],
                        "seed_out_of_range"),
    "index string": (text(env={"config": {"index": "0"}}), ["body", "env", "config", "index"], "bad_index"),
    "seed and index disagree": (text(env={"seed": 3, "config": {"split": "train", "index": 5}}),
                                ["body", "env", "seed"], "value_error"),
    "seed of another split": (text(env={"seed": 3, "config": {"split": "test"}}), ["body", "env", "seed"],
                              "seed_out_of_range"),
    "no row has these tags": (text(env={"env_name": "quiz", "config": {"tags": ["nope"]}}), ["body", "env", "config"],
                              "no_such_row"),
    "no such row": (text(env={"env_name": "quiz", "seed": 99}), ["body", "env", "seed"], "seed_out_of_range"),
    "policy null": (text(policy=None), ["body", "policy"], "model_type"),
    "policy config list": (text(policy={"config": []}), ["body", "policy", "config"], "dict_type"),
    "policy unknown": (text(policy={"config": {"policy": "onne"}}), ["body", "policy", "config", "policy"],
                       "unknown_policy"),
    "policy a number": (text(policy={"config": {"policy": 1}}), ["body", "policy", "config", "policy"], "unknown_policy"),
    "no policy": (text(policy={}), ["body", "policy", "policy_name"], "unknown_policy"),
    "policy_name unknown": (text(policy={"policy_name": "onne"}), ["body", "policy", "policy_name"], "unknown_policy"),
    "constant of a number": (text(policy={"config": {"policy": "constant", "action": 5}}),
                             ["body", "policy", "config", "action"], "value_error"),
    "replay of nothing": (text(policy={"config": {"policy": "replay"}}), ["body", "policy", "config", "rollout_id"],
                          "value_error"),
    "sample negative": (text(policy={"config": {"policy": "one", "sample": -1}}), ["body", "policy", "config", "sample"],
                        "value_error"),
    "sample string": (text(policy={"config": {"policy": "random", "sample": "x"}}),
                      ["body", "policy", "config", "sample"], "value_error"),
    "structured_config list": (text(policy={"structured_config": []}), ["body", "policy", "structured_config"],
                               "model_type"),
    "ops of null": (text(ops=["agent", None]), ["body", "ops", 1], "string_type"),
    "ops nested": (text(ops=[["agent"]]), ["body", "ops", 0], "string_type"),
    "ops word": (text(ops=["agent", "agnet"]), ["body", "ops", 1], "unknown_op"),
    "ops empty object": (text(ops=[{}]), ["body", "ops", 0], "unknown_op"),
    "ops unknown type": (text(ops=[{"type": "agnet"}]), ["body", "ops", 0], "unknown_op"),
    "ops tool number": (text(ops=[{"type": "env", "tool": 1, "args": {}}]), ["body", "ops", 0], "unknown_op"),
    "return_trace number": (text(record={"return_trace": 1}), ["body", "record", "return_trace"], "bool_type"),
    "max_ops huge": (text(safety={"max_ops": 10**8}), ["body", "safety", "max_ops"], "less_than_equal"),
    "group_id long": (text(group_id="x" * 2000), ["body", "group_id"], "string_too_long"),
    "correlation long": (text(trace_correlation_id="x" * 5000), ["body", "trace_correlation_id"], "string_too_long"),
    "inference_url long": (text(inference_url="https://x.org/" + "x" * 5000), ["body", "inference_url"],
                           "string_too_long"),
}  # fmt: skip


def post(body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    lines = [b"POST /rollout HTTP/1.1", b"Host: x", b"X-API-Key: " + KEY.encode()]
    if length is None or length >= 0:
        lines.append(b"Content-Length: %d" % (len(body) if length is None else length))
    return b"\r\n".join([*lines, *headers]) + b"\r\n\r\n" + body


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    """A server for the attacks of this file."""
    with attacked_server() as found:
        yield found


def test_malformed_body_list_has_not_shrunk() -> None:
    assert len(BAD) >= 110 and len({body for body, _, _ in BAD.values()}) == len(BAD)


UNPLANNED = "replay of nothing"
"""The service looks for the rollout to replay before it plans."""
SERVED = (UNPLANNED, "empty", "cut", "invalid utf-8", "seed NaN", "10**5000", "very deep", "many values", "env missing",
          "seed string", "config unknown")  # fmt: skip
"""One of each kind."""


def test_malformed_body_error_names_the_field(running: RunningServer) -> None:
    for name, (body, field, kind) in BAD.items():
        found = refused_fields(running, body)
        assert (field, kind) in found or name == UNPLANNED, (name, found)


@pytest.mark.parametrize("name", SERVED)
def test_malformed_body_returns_422(running: RunningServer, name: str, caplog: pytest.LogCaptureFixture) -> None:
    body, field, kind = BAD[name]
    with load_test(running, caplog) as attack:
        answer = attack.send(post(body, b"Content-Type: application/json"))
    response = parsed(answer)
    assert response.status_code == 422, response.text[:300]
    fields = error_of(response)["fields"]
    assert isinstance(fields, list)
    assert (field, kind) in [(item["loc"], item["type"]) for item in fields], fields
    assert len(response.content) < 3000


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/json;a=b", None]
)
def test_json_content_type_or_none_is_accepted(running: RunningServer, kind: str | None) -> None:
    headers = [] if kind is None else [b"Content-Type: " + kind.encode()]
    assert running.raw(post(text(), *headers)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml",
     "application/jsonp", "application/json-seq", "text/json", "json", "application/json, text/plain", "*/*"],
)  # fmt: skip
def test_another_content_type_is_415(running: RunningServer, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with load_test(running, caplog) as attack:
        attack.refused(post(text(), b"Content-Type: " + kind.encode()), 415, "unsupported_content_type")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "identity", "gzip, gzip", "", "x"])
def test_any_content_encoding_is_415(running: RunningServer, coding: str, caplog: pytest.LogCaptureFixture) -> None:
    with load_test(running, caplog) as attack:
        attack.refused(post(text(), b"Content-Encoding: " + coding.encode()), 415, "unsupported_content_encoding")


def test_content_length_beyond_the_limit_is_rejected_immediately(
    running: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        load_test(running, caplog) as attack,
        socket.create_connection((running.server.host, running.server.port), timeout=5) as connection,
    ):
        connection.sendall(post(b"{", length=5_000_000))
        answer = attack.note(read_answer(connection))  # the rest of the body never comes
    assert answer.startswith(b"HTTP/1.1 413") and b"body_too_large" in answer


def test_chunked_body_beyond_the_limit_is_rejected(running: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with load_test(running, caplog) as attack:
        attack.refused(post(chunk * 80, b"Transfer-Encoding: chunked", length=-1), 413, "body_too_large")


def test_body_of_exactly_the_limit_is_accepted() -> None:
    with opened(Settings(environment_api_key=KEY, max_body_bytes=2000)) as small:
        body = text().ljust(2000)
        assert small.client.post("/rollout", content=body).status_code == 200
        refused = small.client.post("/rollout", content=body + b" ")
        assert refused.status_code == 413 and error_of(refused)["code"] == "body_too_large"


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"0x10", b"99999999999999999999999", b"5, 5", b"5 5", b"+5"])
def test_invalid_content_length_never_reaches_a_route(
    running: RunningServer, length: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with load_test(running, caplog) as attack:
        answer = attack.send(post(text(), b"Content-Length: " + length, length=-1), seconds=2)
    assert answer.split(b" ", 2)[1] in (b"400", b"413")


def test_chunked_body_is_accepted(running: RunningServer) -> None:
    whole = text()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (whole[:7], whole[7:100], whole[100:]))
    answer = running.raw(post(chunks + b"0\r\n\r\n", b"Transfer-Encoding: chunked", length=-1))
    assert answer.startswith(b"HTTP/1.1 200")


def test_disconnecting_during_the_body_leaves_nothing_behind(
    running: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with load_test(running, caplog) as attack:
        for _ in range(20):
            with socket.create_connection((running.server.host, running.server.port), timeout=5) as connection:
                connection.sendall(post(text()[:20], length=500))
        attack.note(running.client.get("/health").content)
        assert running.client.get("/health").json()["in_flight"] == 0


def _read(messages: list[Message], seconds: float) -> dict[str, Any]:
    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        await asyncio.Event().wait()  # the caller sends nothing more
        raise AssertionError

    async def main() -> dict[str, Any]:
        reading = read_json({"type": "http", "headers": []}, receive, 1000, arrival_seconds=seconds)
        return await asyncio.wait_for(reading, 20)

    return asyncio.run(main())


def test_slow_body_returns_408() -> None:
    first: Message = {"type": "http.request", "body": b'{"a":', "more_body": True}
    with pytest.raises(RequestRefused) as caught:
        _read([first], 0.05)
    assert caught.value.code == "body_timeout"
    last: Message = {"type": "http.request", "body": b"1}", "more_body": False}
    assert _read([dict(first), dict(last)], 5.0) == {"a": 1}


def test_long_body_does_not_block_other_requests(running: RunningServer) -> None:
    """A body beyond 256 kB is parsed in a thread, and arrives whole."""
    body = text(ops=["agent", "env"] * 40_000, policy={"config": {"policy": "one"}})
    assert len(body) > 300_000
    response = running.client.post("/rollout", content=body)
    assert response.status_code == 200 and response.json()["metrics"]["num_steps"] > 0
