"""Who gets into the viewer of a real server: keys, sessions, hosts, origins. Nothing else is open but the login."""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
import json
import re
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from taskapp_kit.config import Settings
from taskapp_kit.serve import key_file
from taskapp_kit.serve.auth import Keys
from taskapp_kit.store import open_store
from taskapp_kit.viewer import viewer
from taskapp_kit.viewer.session import MAX_SESSIONS, SESSION_SECONDS, TRIES_AT_ONCE, Sessions
from taskapp_kit.viewer.viewer import PAGES, Viewer
from tests.serve.load_test import SECOND, LoadTest, attacked_server, load_test, parsed
from tests.serve.running_server import ALIAS, KEY, RunningServer, error_of, opened, request_body
from tests.serve.test_auth import ATTACKS, HALF_SENT
from tests.waiting import until

pytestmark = [pytest.mark.server, pytest.mark.process]

ID, HASH = "a" * 32, "b" * 64
ROUTES = sorted(
    {
        "/ui/" + re.sub(r"\(\?P<\w+>\[[^]]+\]\{(?:1,)?(\d+)\}\)", lambda found: "a" * int(found[1]), pattern).replace("(?:runs)?", "runs") + more
        for _, pattern, _ in PAGES
        for more in ("", ".json")
    }
    | {"/ui", "/ui/", "/ui/logout", "/ui/report", "/ui/static/ui.js", "/ui/static/style.css", "/ui/nothing", "/ui/..%2f", "/ui//"}
)  # fmt: skip


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with attacked_server(ui=True) as found:
        yield found


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('gate')}/rollouts.db")
    with opened(exposure="local", store=store) as found:
        yield found


def log_in(running: RunningServer, key: str = KEY, **more: str) -> httpx.Client:
    """A browser that is logged in: it has the cookie and nothing else."""
    client = httpx.Client(base_url=running.url, timeout=20, headers={"Origin": running.url})
    answer = client.post("/ui/login", data={"key": key, **more})
    assert answer.status_code == 200, answer.text
    return client


def redirected(data: bytes, path: str, host: str) -> bytes:
    """An attack of tests/serve/test_auth.py, on another path of another host."""
    line, _, rest = data.partition(b"\r\n")
    verb = line.split(b" ")[0]
    return b"%s %s HTTP/1.1\r\n%s" % (verb, path.encode(), rest.replace(b"Host: x", b"Host: " + host.encode(), 1))


def test_every_pattern_is_among_the_routes_that_are_attacked() -> None:
    for _, pattern, _ in PAGES:
        assert [route for route in ROUTES if re.fullmatch(pattern, route.removeprefix("/ui/"))], pattern
    assert len(ATTACKS) >= 250


def refused(attack: LoadTest, name: str, route: str) -> None:
    answer = parsed(attack.send(redirected(ATTACKS[name], route, attack.running.url.removeprefix("http://"))))
    assert answer.status_code == 401, (name, route, answer.status_code, answer.text[:200])
    assert "set-cookie" not in answer.headers
    if not ATTACKS[name].startswith(b"HEAD"):
        assert error_of(answer)["code"] == "unauthorised", (name, route)


def test_every_attack_on_the_key_is_refused_at_a_route(
    running: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with load_test(running, caplog) as attack:
        for name, data in ATTACKS.items():
            if data.count(b" ") >= 2 and name != "without a version":
                refused(attack, name, "/ui/rollouts.json")


def test_an_attack_on_the_key_is_refused_at_every_route(
    running: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with load_test(running, caplog) as attack:
        for route in ROUTES:
            for name in ("key: nothing", "key: longer", "GET /health"):
                refused(attack, name, route)


def test_no_page_is_mounted_outside_the_gate() -> None:
    """The access check is asked once, before any page is chosen; so one route with every attack stands for all."""
    answer = ast.parse(textwrap.dedent(inspect.getsource(Viewer._answer)))
    calls = sorted((node.lineno, ast.unparse(node.func)) for node in ast.walk(answer) if isinstance(node, ast.Call))
    names = [name for _, name in calls]
    assert names.index("self._gate.check_site") < names.index("self._login") < names.index("self._gate.caller")
    before = set(names[: names.index("self._gate.caller")])
    assert before == {"self._gate.check_site", "_split", "self._login"}, "only the login answers without a key"
    for page in ("_page(", "_static(", "_report("):
        uses = re.findall(rf"(?:def|return|self\.|await)\s*(?:self\.)?{re.escape(page)}", inspect.getsource(viewer))
        assert len(uses) == 2, f"{page} has another caller than Viewer._answer: {uses}"


def test_invalid_key_never_logs_in(running: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    host = running.url.removeprefix("http://")
    with load_test(running, caplog) as attack:
        for name, data in ATTACKS.items():
            if data.startswith(b"POST") or data in HALF_SENT.values() or name == "without a version":
                continue
            answer = parsed(attack.send(redirected(data, "/ui/login", host)))
            assert answer.status_code in (200, 405), (name, answer.status_code)
            assert "set-cookie" not in answer.headers


VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ORIGINS = ("http://evil.example", "null", "https://127.0.0.1", "http://localhost:1", "file://", "http://x@127.0.0.1")
CHECKED = ("/ui/login", "/ui/", "/ui/rollouts.json", "/ui/annotate")


def test_another_origin_is_refused_for_every_verb(running: RunningServer) -> None:
    """Every verb with every origin; every route with each verb and each origin."""
    for (row, verb), (column, origin) in itertools.product(enumerate(VERBS), enumerate(ORIGINS)):
        route = CHECKED[(row + column) % len(CHECKED)]
        for headers in ({}, {"X-API-Key": KEY}):
            answer = running.stranger.request(verb, route, headers={"Origin": origin, **headers})
            assert answer.status_code == 403, (verb, route, origin, answer.text)
            assert not [name for name in answer.headers if name.startswith("access-control")]


def test_other_hosts_are_refused_and_configured_ones_accepted() -> None:
    with opened(Settings(environment_api_key=KEY, ui=True, ui_hosts=("ui.example",))) as found:
        for host, code in (("ui.example", "unavailable"), ("127.0.0.1.evil.example", "host_not_allowed")):
            for headers in ({}, {"X-API-Key": KEY}) if code == "host_not_allowed" else ({"X-API-Key": KEY},):
                answer = found.stranger.get("/ui/runs.json", headers={"Host": host, **headers})
                assert error_of(answer)["code"] == code, "there is no store"


@pytest.mark.parametrize(
    ("site", "mode", "verb", "status"),
    [("same-origin", "cors", "GET", 200), ("none", "navigate", "GET", 200), ("cross-site", "navigate", "GET", 200),
     ("cross-site", "no-cors", "GET", 403), ("same-site", "no-cors", "GET", 403), ("same-site", "cors", "GET", 403),
     ("cross-site", "navigate", "POST", 403), ("same-site", "navigate", "POST", 403)],
)  # fmt: skip
def test_what_another_site_embeds_or_posts_is_refused(
    local: RunningServer, site: str, mode: str, verb: str, status: int
) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    assert local.client.request(verb, "/ui/runs.json", headers=headers).status_code == status


def test_a_login_gives_a_cookie_for_these_pages_only(local: RunningServer) -> None:
    answer = local.stranger.post("/ui/login", data={"key": KEY})
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch(r"taskapp_ui_\d+=[\w-]{43}; Path=/ui; Max-Age=43200; HttpOnly; SameSite=Strict", cookie), cookie
    assert KEY not in answer.text + str(answer.headers)
    browser = log_in(local)
    assert browser.get("/ui/rollouts").status_code == 200
    pair = cookie.partition(";")[0]
    for route in ("/health", "/rollouts", "/metrics", "/info"):
        assert local.stranger.get(route, headers={"Cookie": pair}).status_code == 401
    assert local.stranger.get("/ui/runs.json", headers={"Cookie": pair}).status_code == 200
    for other in ("taskapp_ui=", "taskapp_ui_1=", "x="):
        wrong = {"Cookie": other + pair.partition("=")[2]}
        assert local.stranger.get("/ui/runs.json", headers=wrong).status_code == 401


def test_over_tls_the_cookie_is_secure(local: RunningServer) -> None:
    secure = {"Origin": local.url.replace("http://", "https://")}
    assert "; Secure" in local.stranger.post("/ui/login", data={"key": KEY}, headers=secure).headers["set-cookie"]


def test_a_change_with_the_cookie_needs_an_origin_and_with_a_key_does_not(local: RunningServer) -> None:
    browser = log_in(local)
    del browser.headers["Origin"]
    assert browser.post("/ui/annotate", data={"rollout_id": ID}).status_code == 403
    assert local.client.post("/ui/annotate", data={"rollout_id": ID}).status_code == 404


def test_a_login_takes_no_session_from_the_browser_and_ends_the_one_before(local: RunningServer) -> None:
    name = f"taskapp_ui_{local.server.port}"
    planted = {"Cookie": f"{name}={'x' * 43}"}
    first = local.stranger.post("/ui/login", data={"key": KEY}, headers=planted).headers["set-cookie"].partition(";")[0]
    assert "xxx" not in first and local.stranger.get("/ui/runs.json", headers=planted).status_code == 401
    assert local.stranger.get("/ui/runs.json", headers={"Cookie": first}).status_code == 200
    assert local.stranger.post("/ui/login", data={"key": "wrong"}, headers={"Cookie": first}).status_code == 401
    assert local.stranger.get("/ui/runs.json", headers={"Cookie": first}).status_code == 200, (
        "a failed login ends nothing"
    )
    local.stranger.post("/ui/login", data={"key": KEY}, headers={"Cookie": first})
    assert local.stranger.get("/ui/runs.json", headers={"Cookie": first}).status_code == 401


def test_logging_out_ends_the_session(local: RunningServer) -> None:
    browser = log_in(local)
    pair = dict(browser.cookies)
    answer = browser.post("/ui/logout")
    assert answer.status_code == 303 and "Max-Age=0" in answer.headers["set-cookie"]
    assert httpx.get(f"{local.url}/ui/runs.json", cookies=pair).status_code == 401


def test_a_session_dies_with_its_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    key_file.add(file, "alice", "alice-key-7a1d")
    key_file.add(file, "bob", "bob-key-88e2")
    store = open_store(f"sqlite:///{tmp_path}/rollouts.db")
    with opened(Settings(keys_file=file, ui=True), store=store) as found:
        alice, bob = log_in(found, "alice-key-7a1d"), log_in(found, "bob-key-88e2")
        assert alice.get("/ui/runs.json").status_code == bob.get("/ui/runs.json").status_code == 200
        key_file.remove(file, "alice")
        until(lambda: alice.get("/ui/runs.json").status_code == 401, 10)
        assert bob.get("/ui/runs.json").status_code == 200


def test_a_long_login_is_refused_unread(local: RunningServer) -> None:
    answer = local.stranger.post("/ui/login", data={"key": "x" * 5000})
    assert answer.status_code == 413
    chunked = local.stranger.post(
        "/ui/login", content=iter([b"key=" + b"x" * 5000]), headers={"Content-Type": "application/x-www-form-urlencoded"}
    )  # fmt: skip
    assert chunked.status_code == 413
    assert local.stranger.post("/ui/login", json={"key": KEY}).status_code == 415


WRONG = ("", "wrong", KEY[:-1], KEY + "x", KEY.upper(), f"{KEY},{ALIAS}", "null")


def test_a_wrong_login_gives_no_session() -> None:
    sessions = Sessions(Keys([("environment", KEY), ("second", ALIAS)]), failed_seconds=0.0)
    for given in WRONG:
        assert asyncio.run(sessions.log_in(given)) is None, given
    assert asyncio.run(sessions.log_in(KEY))


def test_a_wrong_login_gives_no_cookie_and_repeats_nothing(local: RunningServer) -> None:
    answer = local.stranger.post("/ui/login", data={"key": KEY + "x"})
    assert answer.status_code == 401 and "set-cookie" not in answer.headers
    assert KEY not in answer.text


def test_failed_logins_take_a_while_and_few_are_tried_at_once(local: RunningServer) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(12) as pool:
        tries = [
            pool.submit(httpx.post, f"{local.url}/ui/login", data={"key": f"guess{n}"}, timeout=30) for n in range(12)
        ]
        statuses = sorted(one.result().status_code for one in tries)
    assert statuses.count(401) >= TRIES_AT_ONCE and statuses.count(429) >= 1
    assert time.monotonic() - began >= 1.0
    assert log_in(local).get("/ui/").status_code == 200


def test_a_one_time_code_works_once() -> None:
    sessions = Sessions(Keys([("environment", KEY)]), failed_seconds=0.0)
    code = sessions.one_time_code()
    assert code is not None

    async def use() -> tuple[str | None, str | None, str | None]:
        return await sessions.log_in(str(code)), await sessions.log_in(str(code)), await sessions.log_in("other")

    first, second, third = asyncio.run(use())
    assert first is not None and second is None and third is None
    holder = sessions.holder(first)
    assert holder is not None and holder.admin and holder.label == "environment"
    assert Sessions(Keys()).one_time_code() is None


def test_sessions_end_after_their_time_and_are_not_collected_for_ever() -> None:
    class Hands:
        time = 0.0

        def now(self) -> float:
            return self.time

        monotonic = now

    clock = Hands()
    sessions = Sessions(Keys([("environment", KEY)]), clock, failed_seconds=0.0)
    first = asyncio.run(sessions.log_in(KEY))
    assert first is not None and sessions.holder(first)
    clock.time = SESSION_SECONDS + 1
    assert sessions.holder(first) is None
    many = [asyncio.run(sessions.log_in(KEY)) for _ in range(MAX_SESSIONS + 1)]
    assert sessions.holder(str(many[0])) is None and sessions.holder(str(many[-1]))


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example", "/\\evil", "rollouts/../../x", "javascript:alert(1)", "x\r\ny"]
)
def test_a_login_leads_to_pages_of_the_viewer_only(local: RunningServer, wanted: str) -> None:
    page = local.stranger.get("/ui/login", params={"next": wanted}).text
    assert 'name="next" value=""' in page
    page = local.stranger.post("/ui/login", data={"key": KEY, "next": wanted}).text
    assert 'content="0;url=/ui/"' in page
    good = local.stranger.post("/ui/login", data={"key": KEY, "next": f"rollouts/{ID}"}).text
    assert f'content="0;url=/ui/rollouts/{ID}"' in good


@pytest.mark.parametrize(
    ("exposure", "ui", "there"),
    [("public", None, False), ("public", True, True), ("local", None, True), ("local", False, False)],
)
def test_where_the_viewer_is(exposure: str, ui: bool | None, there: bool) -> None:
    with opened(Settings(environment_api_key=KEY, ui=ui), exposure=exposure) as found:
        for route in ("/ui", "/ui/", "/ui/login", "/ui/static/ui.js"):
            answer = found.client.get(route)
            assert (answer.status_code == 404) != there, route
        assert found.stranger.get("/ui/login").status_code == (200 if there else 401)
        assert found.stranger.get("/uix").status_code == 401, "no other route is open"


def test_other_sites_that_may_call_the_api_may_not_read_the_viewer() -> None:
    settings = Settings(environment_api_key=KEY, ui=True, cors_origins=("https://good.example",))
    with opened(settings) as found:
        origin = {"Origin": "https://good.example"}
        assert "access-control-allow-origin" in found.client.get("/health", headers=origin).headers
        answer = found.client.get("/ui/runs.json", headers=origin)
        assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers
        preflight = {**origin, "Access-Control-Request-Method": "GET"}
        assert found.stranger.options("/ui/", headers=preflight).status_code == 403


def test_without_a_configured_key_no_page_answers() -> None:
    with opened(Settings(ui=True)) as found:
        assert found.client.get("/ui/").status_code == 503
        assert found.stranger.post("/ui/login", data={"key": ""}).status_code == 401


def test_headers_of_every_page(local: RunningServer) -> None:
    made = local.client.post("/rollout", json=request_body()).json()["rollout_id"]
    for route in ("", "login", "rollouts", f"rollouts/{made}", "live", "annotate", "nothing"):
        answer = local.client.get(f"/ui/{route}", headers={"Accept": "text/html"})
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        assert "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert not re.search(r"<script(?! src=\"/ui/static/ui\.js\?v=\w+\" defer></script>)", answer.text)
        assert not re.search(r"\son\w+=|\sstyle=|javascript:", answer.text)


def test_a_browser_without_a_login_gets_a_page_and_a_program_json(local: RunningServer) -> None:
    page = httpx.get(f"{local.url}/ui/rollouts?status=failed", headers={"Accept": "text/html"})
    assert page.status_code == 401 and "/ui/login?next=rollouts%3Fstatus%3Dfailed" in page.text
    assert page.headers["www-authenticate"] == 'Bearer realm="taskapp"', "Basic would open a window of the browser"
    assert json.loads(httpx.get(f"{local.url}/ui/rollouts").text)["detail"]["error"]["code"] == "unauthorised"
    assert SECOND not in page.text
