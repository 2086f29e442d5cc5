"""A real task app, asked directly and through a gateway that redirects, drops and delays."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

from taskapp_kit.client import SyncTaskAppClient, TaskAppClient
from taskapp_kit.errors import ConfigError, JobTimeout, RequestError, TaskAppError, TaskAppUnreachable
from taskapp_kit.wire.rollout import RolloutRequest
from tests.client.counting_app import KEY, Counted, a_rollout, counting
from tests.client.gateway import Gateway
from tests.client.listening import drop, listening

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def task_app() -> Iterator[Counted]:
    with counting() as counted:
        yield counted


@pytest.fixture
def played(task_app: Counted) -> Counted:
    task_app.episodes.clear()
    return task_app


def call(
    url: str, use: Callable[[TaskAppClient], Awaitable[Any]], key: str | None = KEY, retries: int = 3, **options: Any
) -> Any:
    """What `use` returns for a client of the task app."""

    async def once() -> Any:
        async with TaskAppClient(url, key, retries=retries, **options) as client:
            return await use(client)

    return asyncio.run(once())


def ask(
    url: str, request: Any, *, key: str | None = KEY, hop_seconds: float = 20.0, retries: int = 3, **more: Any
) -> Any:
    return call(url, lambda client: client.rollout(request, **more), key, retries, hop_seconds=hop_seconds)


@contextmanager
def gateway_of(played: Counted, kind: type[Gateway] = Gateway, **options: Any) -> Iterator[tuple[Gateway, str]]:
    gateway = kind(played.url, **options)
    with listening(gateway.app()) as url:
        yield gateway, url


@pytest.mark.parametrize("submit", [False, True])
@pytest.mark.parametrize("hops", [0, 3, 25, 60])
def test_a_chain_of_redirects_is_followed_to_the_answer(played: Counted, hops: int, submit: bool) -> None:
    direct = ask(played.url, a_rollout(7))
    played.episodes.clear()
    with gateway_of(played, hops=hops, once=True) as (gateway, url):
        answer = ask(url, a_rollout(7), timeout_seconds=9000.0, submit=submit)
    assert answer["digest"] == direct["digest"]
    assert played.episodes == [7]
    assert gateway.posts == 1
    assert gateway.gets == list(range(1, hops + 1))
    assert all(seen == ("GET", KEY, None, b"") for seen in gateway.seen)


def test_a_dropped_hop_is_asked_for_again_and_the_rollout_is_not(played: Counted) -> None:
    with gateway_of(played, hops=4, drops={2: 3, 4: 1}) as (gateway, url):
        answer = ask(url, a_rollout(3, seconds=0.3))
    assert answer["metrics"]["details"]["seed"] == 3
    assert (played.episodes, gateway.posts) == ([3], 1)
    assert gateway.gets.count(2) == 4 and gateway.gets[-1] == 4


def test_a_hop_that_stays_dropped_is_given_up(played: Counted) -> None:
    with gateway_of(played, hops=3, drops={2: 99}) as (gateway, url), pytest.raises(TaskAppUnreachable):
        ask(url, a_rollout(3), retries=1)
    assert gateway.posts == 1


@pytest.mark.parametrize(
    "trouble", [{"slow": {1: 60.0}}, *({"broken": {1: status}} for status in (502, 503, 504, 408))], ids=str
)
def test_a_slow_or_broken_hop_is_asked_for_again(played: Counted, trouble: dict[str, Any]) -> None:
    with gateway_of(played, hops=2, **trouble) as (gateway, url):
        assert ask(url, a_rollout(5), hop_seconds=1.0)["metrics"]["details"]["seed"] == 5
    assert (played.episodes, gateway.posts, gateway.gets) == ([5], 1, [1, 1, 2])


def test_a_long_post_is_not_cut_by_the_time_of_one_hop(played: Counted) -> None:
    assert ask(played.url, a_rollout(6, seconds=1.5), hop_seconds=0.2)["metrics"]["details"]["seed"] == 6
    assert played.episodes == [6]


def test_a_chain_beyond_the_time_of_the_rollout_ends(played: Counted) -> None:
    with gateway_of(played, hops=10**6) as (gateway, url), pytest.raises(TaskAppError) as told:
        ask(url, a_rollout(1), timeout_seconds=300.0)
    assert (told.value.code, gateway.posts, len(gateway.gets)) == ("out_of_hops", 1, 4)


@pytest.mark.parametrize(
    "location",
    ["http://localhost:{port}/rollout?x=1", "https://127.0.0.1:{port}/x", "//evil.invalid/x", "http://u:p@127.0.0.1:{port}/x",
     "http://127.0.0.1:1/x", "http://127.0.0.1:99999999/x", "file:///etc/passwd"],
)  # fmt: skip
def test_the_key_goes_nowhere_else(played: Counted, location: str) -> None:
    with gateway_of(played, hops=1) as (gateway, url):
        gateway.location = location.replace("{port}", url.rpartition(":")[2])
        with pytest.raises(TaskAppError) as told:
            ask(url, a_rollout(1), idempotency_key="k1")
    assert told.value.code == "foreign_redirect"
    assert (gateway.posts, gateway.gets) == (1, [])
    assert "evil" not in str(told.value) and "u:p" not in str(told.value)


def test_a_dropped_post_without_a_key_is_not_sent_again(played: Counted) -> None:
    with gateway_of(played, drop_posts=1) as (gateway, url), pytest.raises(TaskAppUnreachable):
        ask(url, a_rollout(8))
    assert gateway.posts == 1


@pytest.mark.parametrize("submit", [False, True])
def test_a_dropped_post_with_a_key_is_sent_again_and_plays_once(played: Counted, submit: bool) -> None:
    with gateway_of(played, drop_posts=2) as (gateway, url):
        answer = ask(url, a_rollout(9, seconds=0.5), idempotency_key=f"once-{submit}", submit=submit)
    assert answer["metrics"]["details"]["seed"] == 9
    assert (played.episodes, gateway.posts) == ([9], 3)
    assert gateway.asked_for[-1] == "respond-async"  # the line broke: from now on short requests


@pytest.mark.parametrize("status", [408, 504])
def test_a_gateway_that_gave_up_waiting_is_passed_by_submitting(played: Counted, status: int) -> None:
    with gateway_of(played, post_status=status) as (gateway, url):
        answer = ask(url, a_rollout(10, seconds=0.5), idempotency_key=f"slow-{status}")
        with pytest.raises(TaskAppError) as told:
            gateway.posts = 0
            ask(url, a_rollout(11))
    assert told.value.status == status
    assert answer["metrics"]["details"]["seed"] == 10
    assert gateway.asked_for == [None, "respond-async", None]


def test_a_chain_without_end_is_left_by_submitting_with_a_key(played: Counted) -> None:
    class Endless(Gateway):
        async def _hop(self, number: str, hop: int) -> web.StreamResponse:
            self.hops = 10**6 if number == "1" else 0
            return await super()._hop(number, hop)

    with gateway_of(played, Endless) as (gateway, url):
        answer = ask(url, a_rollout(12), timeout_seconds=100.0, idempotency_key="endless")
    assert answer["metrics"]["details"]["seed"] == 12
    assert (played.episodes, gateway.posts, gateway.asked_for) == ([12], 2, [None, "respond-async"])


def test_a_result_that_was_read_once_and_lost_is_had_by_its_key(played: Counted) -> None:
    class Leaky(Gateway):
        async def _hop(self, number: str, hop: int) -> web.StreamResponse:
            answer = await super()._hop(number, hop)
            if number == "1" and hop == self.hops and answer.status == 200:
                raise ConnectionResetError
            return answer

        async def _result(self, request: web.Request) -> web.StreamResponse:
            try:
                return await super()._result(request)
            except ConnectionResetError:
                return drop(request)

    for key in (None, "leaky"):
        with gateway_of(played, Leaky, hops=2, once=True) as (_, url):
            if key is None:
                with pytest.raises(TaskAppError) as told:
                    ask(url, a_rollout(13))
                assert told.value.status == 404
                played.episodes.clear()
            else:
                assert ask(url, a_rollout(13), idempotency_key=key)["metrics"]["details"]["seed"] == 13
    assert played.episodes == [13]


@contextmanager
def scripted(*answers: Any, routes: dict[str, Any] | None = None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A peer whose POST /rollout gives one answer after the other, the last one again and again. routes: other paths."""
    seen: list[dict[str, Any]] = []

    async def post(request: web.Request) -> web.StreamResponse:
        seen.append(dict(request.headers))
        answer = answers[min(len(seen), len(answers)) - 1]
        if callable(answer):
            return await answer(request)
        status, body, *headers = answer
        more = headers[0] if headers else {}
        if isinstance(body, dict | list):
            return web.json_response(body, status=status, headers=more)
        return web.Response(status=status, body=body, headers=more)

    app = web.Application()
    app.router.add_post("/rollout", post)
    for path, handler in (routes or {}).items():
        app.router.add_route("*", path, handler)
    with listening(app) as url:
        yield url, seen


def enveloped(code: str, **more: Any) -> dict[str, Any]:
    return {"detail": {"error": {"code": code, "message": f"it is {code}", "hint": "", **more}}}


GOOD = (200, {"metrics": {"mean_return": 1.0}})


CANCELLED = enveloped("server_stopping", boundary="cancelled", rollout_id="a" * 32)
REPEATED: list[tuple[int, Any, bool]] = [
    *(
        (status, enveloped(code), True)
        for status, code in ((503, "saturated"), (503, "draining"), (429, "key_quota_reached"))
    ),
    *((status, b"<html>secret-in-a-page</html>", False) for status in (500, 502, 503, 504)),
    *((status, enveloped("internal_error"), False) for status in (500, 502, 503, 504)),
    (503, CANCELLED, False),
]
"""Status and body of an answer, and whether the request is repeated without a key, too: nothing has run."""


@pytest.mark.parametrize(("status", "body", "always"), REPEATED)
def test_a_request_is_repeated_without_a_key_only_where_nothing_ran(status: int, body: Any, always: bool) -> None:
    with scripted((status, body, {"Retry-After": "0"}), GOOD) as (url, seen):
        assert ask(url, {}, idempotency_key="again") == GOOD[1]
        assert [sent.get("Idempotency-Key") for sent in seen] == ["again", "again"]
        seen.clear()
        if always:
            assert ask(url, {}) == GOOD[1]
            return
        with pytest.raises(TaskAppError) as told:
            ask(url, {})
    assert told.value.status == status and "secret" not in str(told.value)
    assert (told.value.boundary == "cancelled") == (body is CANCELLED)
    assert len(seen) == 1


@pytest.mark.ci
def test_a_full_server_is_waited_for_as_long_as_there_is_time() -> None:
    with scripted(*[(503, enveloped("saturated"), {"Retry-After": "0"})] * 5, GOOD) as (url, seen):
        assert ask(url, {}, retries=0, timeout_seconds=60.0)
        seen.clear()
        with pytest.raises((TaskAppError, JobTimeout)):
            ask(url, {}, retries=0, timeout_seconds=0.3)  # told by the server, or no longer asked


def test_failed_rollout_raises_and_is_not_repeated(played: Counted) -> None:
    with pytest.raises(TaskAppError) as told:
        ask(played.url, a_rollout(14, breaks=True), idempotency_key="breaks")
    error = told.value
    assert (error.status, error.code, error.boundary) == (500, "environment_raised", "environment")
    assert len(error.rollout_id) == 32
    assert error.rollout_id in str(error) and "error id" in str(error)
    assert played.episodes == [14]


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        ((200, b"not json"), 200, "not_json"),
        ((200, b"[1]"), 200, "not_json"),
        ((200, b""), 200, "not_json"),
        ((204, b""), 204, ""),
        ((302, b"", {"Location": "/x"}), 302, ""),
        ((307, b"", {"Location": "/rollout"}), 307, ""),
        ((303, b""), 303, "foreign_redirect"),
        ((400, enveloped("unauthorised", allowed_first15=["sk-other-secret"])), 400, "unauthorised"),
        ((401, b"{}"), 401, "unauthorised"),
        ((422, {"detail": [{"loc": ["body"], "input": KEY}]}), 422, ""),
        ((202, b"{}"), 202, ""),
    ],
)
def test_unexpected_responses_raise_readable_errors(answer: Any, status: int, code: str) -> None:
    with scripted(answer) as (url, seen), pytest.raises(TaskAppError) as told:
        ask(url, {})
    assert (told.value.status, told.value.code) == (status, code)
    assert len(seen) == 1
    assert KEY not in str(told.value) and "sk-other" not in str(told.value)


def test_endless_response_is_cut_off(played: Counted) -> None:
    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(1000):
            await response.write(b"x" * (1 << 20))
        return response

    async def limited(client: TaskAppClient) -> None:
        client._transport.max_body_bytes = 2 << 20
        await client.rollout({}, idempotency_key="k")

    with scripted(flood) as (url, seen), pytest.raises(TaskAppError):
        call(url, limited)
    assert len(seen) == 1


def test_truncated_response_raises() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"metrics": ')
        return drop(request)

    with scripted(cut, GOOD) as (url, seen):
        with pytest.raises(TaskAppUnreachable):
            ask(url, {})
        seen.clear()
        assert ask(url, {}, idempotency_key="k")["metrics"]


def test_invalid_fields_are_reported_once() -> None:
    fields = [
        {"loc": ["body", "env", "seed"], "message": "should be less", "type": "t"},
        {"loc": ["body", "ops"], "message": "holds no agent", "type": "t"},
        {"loc": "odd"},
        7,
    ]
    error = {"code": "invalid_request", "message": "It does not fit: ops holds no agent.", "fields": fields}
    with scripted((422, {"detail": {"error": error}})) as (url, _), pytest.raises(TaskAppError) as told:
        ask(url, {})
    assert "body.env.seed: should be less" in str(told.value)
    assert str(told.value).count("holds no agent") == 1


@pytest.mark.ci
def test_more_rollouts_than_places_are_all_played_in_the_end() -> None:
    async def many(client: TaskAppClient) -> list[Any]:
        return await asyncio.gather(*(client.rollout(a_rollout(seed, seconds=0.05)) for seed in range(20)))

    with counting(max_concurrent=2) as counted:
        assert len(call(counted.url, many, retries=0)) == 20
    assert sorted(counted.episodes) == list(range(20))


def test_submit_to_a_server_that_does_not_know_it() -> None:
    with scripted(GOOD) as (url, seen):
        assert ask(url, {}, submit=True) == GOOD[1]
    assert seen[0]["Prefer"] == "respond-async"


def test_a_submitted_rollout_that_takes_too_long_is_cancelled(played: Counted) -> None:
    with pytest.raises(TimeoutError, match="was cancelled"):
        ask(played.url, a_rollout(21, seconds=2.5), submit=True, timeout_seconds=0.5)


@pytest.mark.ci
def test_rollout_with_a_key_continues_and_the_error_names_its_address(played: Counted) -> None:
    """Somebody else may have asked with that key and be waiting, and this caller may come again."""
    slow = a_rollout(22, seconds=2.5)
    with pytest.raises(JobTimeout, match="/rollouts/[0-9a-f]{32}"):
        ask(played.url, slow, submit=True, timeout_seconds=0.5, idempotency_key="again")
    assert ask(played.url, slow, submit=True, idempotency_key="again")["metrics"]["details"]["seed"] == 22
    assert played.episodes == [22]


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("end", ["cancelled", "lost"])
def test_abandoned_rollout_is_cancelled_unless_it_has_a_key(end: str, key: str | None) -> None:
    asked: list[str] = []
    polled = threading.Event()

    async def place(request: web.Request) -> web.StreamResponse:
        asked.append(request.method)
        polled.set()
        if request.method == "DELETE":
            return web.json_response({"status": "cancelled"})
        if end == "lost":
            return drop(request)
        await asyncio.sleep(60)
        return web.Response()

    async def leave(client: TaskAppClient) -> None:
        task = asyncio.create_task(client.rollout({}, submit=True, idempotency_key=key))
        if end == "cancelled":
            await asyncio.to_thread(polled.wait, 30)
            task.cancel()
        with pytest.raises(asyncio.CancelledError if end == "cancelled" else TaskAppUnreachable):
            await task

    with scripted((202, {"rollout_id": "ab"}), (500, enveloped("broken")), routes={"/rollouts/ab": place}) as (url, _):
        call(url, leave, retries=0)
    assert asked.count("DELETE") == (key is None), asked


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_invalid_timeout_is_rejected(seconds: float) -> None:
    with pytest.raises(ConfigError):
        TaskAppClient("http://127.0.0.1:1", timeout_seconds=seconds)
    with pytest.raises(ConfigError):
        ask("http://127.0.0.1:1", {}, timeout_seconds=seconds)


def test_polls_survive_drops_and_gateways() -> None:
    polled: list[str | None] = []

    async def poll(request: web.Request) -> web.StreamResponse:
        polled.append(request.headers.get("Prefer"))
        if len(polled) == 1:
            return drop(request)
        if len(polled) == 2:
            return web.Response(status=502)
        if len(polled) == 3:
            return web.json_response({"status": "running"}, status=202, headers={"Retry-After": "0"})
        return web.json_response(GOOD[1])

    with scripted((202, {"status": "running"}, {"Location": "/jobs/1?a=b"}), routes={"/jobs/1": poll}) as (url, seen):
        assert ask(url, {}, submit=True) == GOOD[1]
    assert len(seen) == 1
    assert len(polled) >= 4 and all(str(prefer).startswith("wait=") for prefer in polled)


def test_a_place_at_another_server_is_not_asked() -> None:
    with (
        scripted((202, {}, {"Location": "http://evil.invalid/jobs/1"})) as (url, _),
        pytest.raises(TaskAppError) as told,
    ):
        ask(url, {}, submit=True)
    assert told.value.code == "foreign_redirect"


def test_forgotten_rollout_is_played_again_only_with_a_key() -> None:
    async def gone(request: web.Request) -> web.StreamResponse:
        return web.json_response(enveloped("not_found"), status=404)

    for key in (None, "k"):
        with scripted((202, {"rollout_id": "ab"}), GOOD, routes={"/rollouts/ab": gone}) as (url, _):
            if key is None:
                with pytest.raises(TaskAppError, match="not_found"):
                    ask(url, {}, submit=True)
            else:
                assert ask(url, {}, submit=True, idempotency_key=key) == GOOD[1]


def test_the_other_routes(played: Counted) -> None:
    async def look(client: TaskAppClient) -> None:
        assert (await client.health())["healthy"] is True
        assert (await client.info())["service"]
        assert "taskset" in await client.task_info()
        assert (await client.task_info([3]))["task"]
        assert len(await client.task_info([3, 4], environment="counting")) == 2
        with pytest.raises(TaskAppError) as told:
            await client.task_info([5000])
        assert (told.value.status, told.value.code) == (422, "seed_out_of_range")

    call(played.url + "/", look)


def test_a_rollout_request_may_be_the_model_of_the_wire(played: Counted) -> None:
    request = RolloutRequest.model_validate(a_rollout(30))
    assert ask(played.url, request)["digest"] == ask(played.url, a_rollout(30))["digest"]


@pytest.mark.parametrize("key", [None, "", "not-the-key"])
def test_a_key_that_is_refused_is_not_shown(played: Counted, key: str | None) -> None:
    with pytest.raises(TaskAppError) as told:
        ask(played.url, a_rollout(1), key=key)
    assert (told.value.status, told.value.code) == (401, "unauthorised")
    assert "not-the-key" not in str(told.value) + repr(told.value)


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:80", "ftp://a", "http://", "http://u:secret@h", "http://h/?secret=1", "http://h:x", "http://["],
)
def test_an_address_that_cannot_be_used(url: str) -> None:
    with pytest.raises(ConfigError) as told:
        TaskAppClient(url)
    assert "secret" not in str(told.value)


def test_a_key_that_no_header_carries() -> None:
    with pytest.raises(ConfigError) as told:
        TaskAppClient("http://127.0.0.1:9", "schlüssel\n\x00")
    assert "schl" not in str(told.value)
    for key in ("", "a b", "é", "x" * 256, "a\n"):
        with pytest.raises(ConfigError):
            ask("http://127.0.0.1:9", {}, idempotency_key=key)


def test_request_that_is_not_json_is_rejected() -> None:
    with pytest.raises(RequestError):
        ask("http://127.0.0.1:9", {"a": object()})


def test_further_headers_go_along() -> None:
    with scripted(GOOD) as (url, seen):
        call(url, lambda client: client.rollout({}), headers={"Modal-Key": "wk-1"})
    assert (seen[0]["Modal-Key"], seen[0]["X-API-Key"]) == ("wk-1", KEY)
    assert "Authorization" not in seen[0] and seen[0]["User-Agent"].startswith("taskapp-kit/")


def test_the_blocking_client_also_inside_a_loop(played: Counted) -> None:
    client = SyncTaskAppClient(played.url, KEY)

    async def main() -> Any:
        return client.rollout(a_rollout(40))

    with client:
        assert client.health()["healthy"] is True
        assert client.info() and client.task_info([1]) and client.get("/info")
        assert asyncio.run(main())["digest"] == client.rollout(a_rollout(40))["digest"]
    with pytest.raises(TaskAppError):
        client.get("/nowhere")
    assert KEY not in repr(client) + repr(vars(client))


def test_who_stops_waiting_hangs_up(played: Counted) -> None:
    """The server hears that the caller has gone: the episode is not played on."""
    arrived, gone = threading.Event(), threading.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        arrived.set()
        try:
            await asyncio.sleep(60)
        finally:
            gone.set()
        return web.Response()

    async def leave(client: TaskAppClient) -> None:
        task = asyncio.create_task(client.rollout({}))
        await asyncio.to_thread(arrived.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with scripted(hang) as (url, _):
        call(url, leave)
        assert gone.wait(30)


def test_a_rollout_that_takes_too_long_is_a_timeout() -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    with scripted(hang) as (url, seen):
        for key in (None, "k"):
            with pytest.raises(JobTimeout):
                ask(url, {}, timeout_seconds=0.3, idempotency_key=key)
    assert len(seen) == 2


def test_no_log_holds_the_key(played: Counted, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with gateway_of(played, hops=2, drops={1: 1}, drop_posts=1) as (_, url):
        ask(url, a_rollout(50), idempotency_key="logged")
    assert "again" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_an_address_may_be_refused_where_it_is_connected_to(played: Counted, name: str) -> None:
    asked: list[str] = []

    def refuse(address: str) -> str:
        asked.append(address)
        return f"{address} is a loopback address."

    with pytest.raises(TaskAppUnreachable):
        url = played.url.replace("127.0.0.1", name)
        call(url, lambda client: client.rollout(a_rollout(1), idempotency_key="k"), refuse=refuse)
    assert "127.0.0.1" in asked and played.episodes == []
