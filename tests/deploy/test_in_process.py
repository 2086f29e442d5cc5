"""A task app inside the program that uses it: start, errors, and clean-up."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from taskapp_kit import TaskApp
from taskapp_kit.deploy.local.in_process import InProcessTaskApp
from taskapp_kit.deploy.tunnel.tunnel_settings import Timing
from taskapp_kit.errors import BadArgument, ConfigError, DeclarationError, DiscoveryError, TaskAppError, TunnelError
from taskapp_kit.net.response import json_answer
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.deploy.tiny_app import Tiny, app
from tests.deploy.tunnel_peers import ADDRESS, BOX, QUIET, FakeCloudflared, free_port, gone
from tests.programs import printed
from tests.waiting import until

pytestmark = pytest.mark.server

KEY = "sentinel-key-in-process"
BODY = {"run_id": "r", "env": {"seed": 1}, "policy": {"config": {"policy": "random"}}, "ops": [], "mode": "rl"}


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test on a separate event loop."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Unset this machine's variables; afterwards require that every thread has ended."""
    for name in ("ENVIRONMENT_API_KEY", "BACKEND_BASE_URL", "PROD_BACKEND_URL", "SYNTH_TASK_APP_URL", "TASKAPP_STORE"):
        monkeypatch.delenv(name, raising=False)
    before = set(threading.enumerate())  # another file's server may go on in this process
    yield
    until(lambda: not ours("taskapp-", before), what="the end of the task app's threads")


def ours(name: str, before: set[threading.Thread]) -> list[str]:
    """The threads of that name that were not there before."""
    return [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith(name)]


def here(**given: Any) -> InProcessTaskApp:
    """A task app for a backend on this machine, on a free port."""
    return InProcessTaskApp(**{"app": app, "port": 0, "tunnel_mode": "local", **given})


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def asked(task_app: InProcessTaskApp, path: str = "/health", key: str | None = None) -> int:
    headers = {"X-API-Key": key or task_app.api_key or ""}
    return httpx.get(f"{task_app.local_url}{path}", headers=headers).status_code


def answering(status: int, body: Any) -> Any:
    """An application that says the same to everybody."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await json_answer(body, status)(scope, receive, send)

    return answer


# open and closed


def test_with_block_plays_a_rollout() -> None:
    with here() as task_app:
        assert task_app.url == task_app.local_url == f"http://127.0.0.1:{task_app.port}"
        assert repr(task_app) == f"<InProcessTaskApp at {task_app.url}>"
        played = httpx.post(f"{task_app.url}/rollout", headers={"X-API-Key": task_app.api_key or ""}, json=BODY)
        assert played.json()["metrics"]["mean_return"] == 1.0
        port = task_app.port
    assert is_free(port)
    with pytest.raises(ConfigError, match=r"\burl\b"):
        _ = task_app.url
    with pytest.raises(ConfigError, match="local_url"):
        _ = task_app.local_url


@in_a_loop
async def test_blocking_with_block_works_inside_a_running_loop() -> None:
    with here() as task_app:
        assert asked(task_app) == 200


def test_it_starts_on_another_thread() -> None:
    found: list[Any] = []

    def elsewhere() -> None:
        with here() as task_app:
            found.append(asked(task_app))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(60)
    assert found == [200]


def test_it_starts_again_but_not_twice_concurrently() -> None:
    task_app = here()
    for _ in range(2):
        with task_app:
            assert asked(task_app) == 200
            with pytest.raises(BadArgument, match="InProcessTaskApp"):
                task_app.start()
            assert asked(task_app) == 200
    task_app.stop()


@pytest.mark.process
def test_import_neither_changes_signal_handlers_nor_loads_a_server() -> None:
    code = (
        "import signal, sys; before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)];"
        "import taskapp_kit.deploy.local.in_process, taskapp_kit.deploy.local.in_process_job;"
        "assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)];"
        "print([m for m in ('fastapi', 'uvicorn', 'httpx', 'aiohttp', 'nacl') if m in sys.modules])"
    )
    assert printed(code) == "[]\n"


def test_running_leaves_signal_handlers_unchanged() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with here():
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_stopping_closes_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKAPP_STORE", f"sqlite:///{tmp_path / 'rollouts.db'}")
    for _ in range(2):
        with here() as task_app:
            headers = {"X-API-Key": task_app.api_key or ""}
            assert httpx.post(f"{task_app.url}/rollout", headers=headers, json=BODY).status_code == 200
    with sqlite3.connect(tmp_path / "rollouts.db") as kept:
        assert kept.execute("select count(*) from rollouts").fetchone() == (2,)
    kept.close()
    if sys.platform == "linux":
        opened = [link.resolve() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        assert not [path for path in opened if path.is_relative_to(tmp_path)]


# the key


def test_key_of_the_environment_is_used_and_not_minted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
    with here() as task_app:
        assert (task_app.api_key, task_app.key_was_minted, asked(task_app)) == (KEY, False, 200)


def test_api_key_argument_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", "another-key")
    with here(api_key=KEY) as task_app:
        assert (task_app.api_key, asked(task_app), asked(task_app, key="another-key")) == (KEY, 200, 401)


@pytest.mark.process
def test_minted_key_is_new_each_time_and_not_shared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    task_app = here()
    keys = set()
    for _ in range(2):
        with task_app:
            assert task_app.api_key is not None and task_app.key_was_minted
            assert len(task_app.api_key) == 64
            keys.add(task_app.api_key)
            assert task_app.api_key not in repr(task_app) + repr(vars(task_app)["_server"])
            ran = subprocess.run(["printenv"], capture_output=True, text=True, check=True)
            assert "ENVIRONMENT_API_KEY" not in ran.stdout
    assert len(keys) == 2
    assert not any(key in caplog.text for key in keys)


@pytest.mark.parametrize("key", ["", "two,keys", " padded", "line\nend", "x" * 513])
def test_invalid_key_is_rejected(key: str) -> None:
    with pytest.raises(BadArgument, match="api_key") as raised:
        here(api_key=key)
    assert not key.strip() or key not in str(raised.value)


# the port


def test_taken_port_is_skipped_for_the_next_free_one() -> None:
    with BackgroundServer(answering(200, {"mine": True})) as other:
        with InProcessTaskApp(app=app, port=other.port, tunnel_mode="local") as task_app:
            assert other.port < task_app.port < other.port + 100
            assert asked(task_app) == 200
        assert httpx.get(other.url).json() == {"mine": True}


@pytest.mark.parametrize(
    "given",
    [{"tunnel_mode": "local", "auto_find_port": False}, {"preconfigured_url": "https://task-app.example.org"}],
    ids=["without a search", "behind a public address"],
)
def test_taken_port_is_an_error(given: dict[str, Any]) -> None:
    with BackgroundServer(answering(200, {"mine": True})) as other:
        task_app = InProcessTaskApp(app=app, port=other.port, **given)
        with pytest.raises(ConfigError, match=rf"Port {other.port} .*auto_find_port"), task_app:
            raise AssertionError
        assert httpx.get(other.url).json() == {"mine": True}


# what is wrong with the app


@pytest.mark.parametrize(
    "given",
    [
        {"port": 80},
        {"port": 70_000},
        {"port": "8114"},
        {"host": "192.168.0.1"},
        {"health_check_timeout": 0},
        {"app": None},
        {"tunnel_mode": "fast"},
    ],
)
def test_invalid_argument_is_a_value_error_immediately(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))) as raised:
        here(**given)
    assert isinstance(raised.value, ConfigError)


def test_missing_file_is_reported_immediately(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nix\.py"):
        here(app=None, task_app_path=tmp_path / "nix.py")


def fails(kind: type[Exception], words: str, **given: Any) -> None:
    """Starting raises this soon, and the port is free again."""
    port, begun = free_port(), time.monotonic()
    with pytest.raises(kind, match=words) as raised, here(port=port, **given):
        raise AssertionError("it opened")
    assert time.monotonic() - begun < 25, "said long before the time for health is over"
    assert KEY not in str(raised.value)
    assert is_free(port)


def test_failing_import_reports_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken_app.py"
    file.write_text("import not_there_at_all\n")
    fails(DiscoveryError, r"broken_app.py:1: .*not_there_at_all", app=None, task_app_path=file)


@asynccontextmanager
async def lost(_: Any) -> AsyncIterator[None]:
    raise LookupError("the data is not there")
    yield


MISSING = {"detail": {"error": {"code": "missing_environment_api_key", "message": "x"}}}
LEAKY = {"detail": {"error": {"code": "unauthorised", "allowed_first15": [KEY]}}}


@pytest.mark.parametrize(
    ("failing", "kind", "words"),
    [
        (TaskApp("empty", version="1"), DeclarationError, "'empty'"),
        (Starlette(lifespan=lost), TaskAppError, "LookupError: the data is not there"),
        (answering(503, MISSING), TaskAppError, "Set ENVIRONMENT_API_KEY before"),
        (answering(400, LEAKY), TaskAppError, r"\bkey\b.*\(HTTP 400\)"),
        (answering(401, LEAKY), TaskAppError, r"\bkey\b.*\(HTTP 401\)"),
        (answering(404, {}), TaskAppError, "GET /health .*HTTP 404"),
    ],
)
def test_app_that_cannot_serve_reports_the_cause_immediately(failing: Any, kind: type[Exception], words: str) -> None:
    fails(kind, words, app=failing)


def test_failing_worker_setup_reports_its_exception() -> None:
    broken = TaskApp("broken", version="1")

    @broken.environment("broken", splits={"train": range(2)})
    class Broken(Tiny):
        """Its data is missing."""

        @classmethod
        def setup_worker(cls) -> None:
            raise LookupError("the data is not there")

    fails(Exception, "LookupError.*the data is not there", app=broken)


def test_endless_startup_is_stopped_at_the_timeout() -> None:
    ended = threading.Event()

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()
        yield

    fails(TaskAppError, r"0\.5 s", app=Starlette(lifespan=lifespan), health_check_timeout=0.5)
    assert ended.is_set()


@pytest.mark.ci
def test_app_that_stays_unhealthy_reports_its_last_response() -> None:
    fails(TaskAppError, r"\b3 s\. .*HTTP 500", app=answering(500, {}), health_check_timeout=3)


def test_app_that_becomes_healthy_is_awaited() -> None:
    begun = time.monotonic()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await json_answer({}, 200 if time.monotonic() - begun > 1 else 502)(scope, receive, send)

    with here(app=slow) as task_app:
        assert task_app.api_key is None
        assert task_app.key_was_minted is False


def test_foreign_app_reads_its_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
    with here(app=app.asgi()) as task_app:  # made before, with the key of the environment
        assert (task_app.api_key, asked(task_app)) == (KEY, 200)


@pytest.mark.ci
def test_slowly_dripping_response_times_out() -> None:
    async def drips(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(200):
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
                await asyncio.sleep(0.1)

    begun = time.monotonic()
    fails(TaskAppError, r"0\.5 s\. ", app=drips, health_check_timeout=0.5)
    assert time.monotonic() - begun < 15


def test_missing_host_is_reported_without_a_port_search() -> None:
    from taskapp_kit.deploy.local.local_server import take_port

    with pytest.raises(ConfigError, match=r"Port 8114 on 192\.0\.2\.1 .*assign"):
        take_port("192.0.2.1", 8114, search=True)


# exposure


@pytest.mark.parametrize(("given", "docs"), [({}, 200), ({"host": "0.0.0.0"}, 401), ({"host": "localhost"}, 200)])
def test_only_a_loopback_host_is_local(given: dict[str, Any], docs: int) -> None:
    with here(**given) as task_app:
        assert httpx.get(f"{task_app.local_url}/docs").status_code == docs


@pytest.mark.process
def test_app_behind_a_tunnel_is_public(tmp_path: Path) -> None:
    fake = FakeCloudflared(tmp_path, BOX)
    with here(tunnel_mode="quick", cloudflared=fake.path, skip_tunnel_verification=True) as task_app:
        assert (task_app.url, task_app.tunnel_mode) == (ADDRESS, "quick")
        assert fake.calls()[0]["argv"][-1] == task_app.local_url
        assert httpx.get(f"{task_app.local_url}/docs").status_code == 401
    assert gone(fake.calls()[0]["pid"])


def test_preconfigured_address_is_tested_and_reported() -> None:
    port = free_port()
    url = f"http://localhost:{port}"
    with here(port=port, tunnel_mode="auto", preconfigured_url=url) as task_app:
        assert (task_app.url, task_app.tunnel_mode) == (url, "preconfigured")
        assert httpx.get(f"{task_app.local_url}/docs").status_code == 401


@pytest.mark.process
def test_failing_tunnel_closes_everything(tmp_path: Path) -> None:
    fake = FakeCloudflared(tmp_path, QUIET)
    timing = Timing(attempts=1, address_seconds=0.5)
    fails(TunnelError, "cloudflared .*address", tunnel_mode="quick", cloudflared=fake.path, timing=timing)
    assert all(gone(call["pid"]) for call in fake.calls())


def test_loopback_backend_needs_no_tunnel() -> None:
    with here(tunnel_mode="auto", backend_url="http://127.0.0.1:8500/api", cloudflared="nix-da") as task_app:
        assert task_app.url == task_app.local_url
    with pytest.raises(TunnelError, match="known.*nix-da"):
        here(tunnel_mode="auto", cloudflared="nix-da")


# callbacks, and how it ends


def test_callbacks_run_while_everything_is_open() -> None:
    told: list[Any] = []
    with here(on_start=lambda it: told.append(asked(it)), on_stop=lambda it: told.append(asked(it))):
        assert told == [200]
    assert told == [200, 200]


@in_a_loop
async def test_callbacks_may_be_async() -> None:
    told: list[str] = []

    async def tell(task_app: InProcessTaskApp) -> None:
        await asyncio.sleep(0)
        told.append(task_app.url)

    async with here(on_start=tell, on_stop=tell) as task_app:
        url = task_app.url
    assert told == [url, url]
    with pytest.raises(BadArgument, match="on_start .*`async with`"), here(on_start=tell):
        raise AssertionError


def broken(_: InProcessTaskApp) -> None:
    raise LookupError("the callback broke")


def test_failing_on_start_closes_everything_and_propagates() -> None:
    called: list[InProcessTaskApp] = []
    fails(LookupError, "the callback broke", on_start=broken, on_stop=called.append)
    assert not called


def test_failing_on_stop_propagates_unless_the_block_raised(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(LookupError, match="the callback broke"), here(on_stop=broken):
        pass
    with pytest.raises(ZeroDivisionError), here(on_stop=broken):
        raise ZeroDivisionError
    assert "on_stop failed, after the block had raised ZeroDivisionError" in caplog.text


@in_a_loop
async def test_failing_on_stop_in_async_block_propagates_unless_the_block_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(LookupError, match="the callback broke"):
        async with here(on_start=broken):
            raise AssertionError
    with pytest.raises(ZeroDivisionError):
        async with here(on_stop=broken):
            raise ZeroDivisionError
    assert "on_stop failed" in caplog.text


@pytest.mark.process
@in_a_loop
async def test_cancelled_start_closes_everything(tmp_path: Path) -> None:
    fake, port = FakeCloudflared(tmp_path, QUIET), free_port()

    async def enter() -> None:
        async with here(port=port, tunnel_mode="quick", cloudflared=fake.path, timing=Timing(address_seconds=600)):
            raise AssertionError

    task = asyncio.create_task(enter())
    while not fake.calls():
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    assert is_free(port)
    assert all(gone(call["pid"]) for call in fake.calls())


@in_a_loop
async def test_repeatedly_cancelled_start_closes_everything(tmp_path: Path) -> None:
    """As by nested timeouts: what the thread still opens must be closed after it, not beside it."""
    opening, go_on = threading.Event(), threading.Event()
    before = set(threading.enumerate())

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        opening.set()
        await asyncio.to_thread(go_on.wait)
        yield

    task_app = here(app=Starlette(lifespan=lifespan))
    task = asyncio.create_task(task_app.start_async())
    while not opening.is_set():
        await asyncio.sleep(0.01)
    for _ in range(5):
        task.cancel()
        await asyncio.sleep(0.01)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    assert ours("taskapp-", before) == []


def test_ctrl_c_while_closing_ends_it_immediately() -> None:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        await asyncio.sleep(600)

    before = set(threading.enumerate())
    starlette = Starlette(lifespan=lifespan)
    starlette.mount("/", answering(200, {}))
    begun = time.monotonic()
    task_app = here(app=starlette)
    with pytest.raises(KeyboardInterrupt), task_app:
        port = task_app.port
    assert time.monotonic() - begun < 25
    assert is_free(port)
    task_app.start()  # and it can be opened again
    with pytest.raises(KeyboardInterrupt):
        task_app.stop()
    assert not ours("taskapp-server", before)


@in_a_loop
async def test_five_concurrent_apps_get_different_ports() -> None:
    port = free_port()
    many = [here(port=port) for _ in range(5)]
    await asyncio.gather(*(one.start_async() for one in many))
    try:
        assert len({one.port for one in many}) == 5
        assert {asked(one) for one in many} == {200}
        assert {asked(one, key=other.api_key) for one, other in pairwise(many)} == {401}
    finally:
        await asyncio.gather(*(one.stop_async() for one in many))
    with here(port=port) as outer, here(port=port) as inner:
        assert outer.port != inner.port


@pytest.mark.ci
def test_repeated_start_and_stop_leaves_nothing() -> None:
    def held() -> tuple[int, int]:
        return threading.active_count(), sum(1 for _ in Path("/proc/self/fd").iterdir())

    one = here()
    before = held()
    for _ in range(6):
        with one:
            pass
    assert held() == before


@in_a_loop
async def test_event_loop_runs_during_start_and_stop() -> None:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        await asyncio.sleep(0.5)
        yield
        await asyncio.sleep(0.5)

    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    turning = asyncio.create_task(turn())
    inner = answering(200, {})
    starlette = Starlette(lifespan=lifespan)
    starlette.mount("/", inner)
    async with here(app=starlette):
        started = turns
    turning.cancel()
    assert started > 5
    assert turns - started > 5
