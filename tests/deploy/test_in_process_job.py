"""The first RL guide in one call, against a scripted backend that really plays a rollout at the task app."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from taskapp_kit.deploy.local.in_process_job import InProcessJobResult, run_in_process_job, run_in_process_job_async
from taskapp_kit.errors import BadArgument, JobConfigError, JobTimeout, TaskAppError, TunnelError
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.deploy.tunnel_peers import free_port
from tests.waiting import until

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
SYNTH_KEY = "sentinel-key-of-the-backend"
BODY = {"run_id": "r", "env": {"seed": 1}, "policy": {"config": {"policy": "random"}}, "ops": [], "mode": "rl"}


class Backend:
    """Takes one job, plays one rollout for it, and then says `ending`; "" never ends."""

    def __init__(self, ending: str = "succeeded") -> None:
        from nacl.public import PrivateKey

        self.ending = ending
        self.private = PrivateKey.generate()
        self.key = os.environ.get("ENVIRONMENT_API_KEY", "")
        self.uploads = 0
        self.looks = 0
        self.jobs: list[dict[str, Any]] = []
        self.cancelled = False
        self.reward: float | None = None
        base = "/api/rl/jobs"
        self.app = Starlette(
            routes=[
                Route(base, self.create, methods=["POST"]),
                Route(base + "/{job_id}", self.look),
                Route(base + "/{job_id}/cancel", self.cancel, methods=["POST"]),
                Route("/api/v1/crypto/public-key", self.public_key),
                Route("/api/v1/env-keys", self.take_key, methods=["POST"]),
            ]
        )

    async def create(self, request: Request) -> Response:
        assert request.headers["authorization"] == f"Bearer {SYNTH_KEY}"
        self.jobs.append(await request.json())
        return JSONResponse({"job_id": "rl_test", "status": "queued"}, 201)

    async def look(self, request: Request) -> Response:
        self.looks += 1
        if self.looks == 2 and self.ending:
            url = self.jobs[0]["data"]["endpoint_base_url"]
            async with httpx.AsyncClient(trust_env=False) as client:
                answer = await client.post(f"{url}/rollout", headers={"X-API-Key": self.key}, json=BODY)
            self.reward = answer.json()["metrics"]["mean_return"] if answer.status_code == 200 else None
        if self.cancelled or self.looks < 3 or not self.ending:
            status = "cancelled" if self.cancelled else "running"
            progress = {"completed": self.looks, "total": 3}
            return JSONResponse({"job_id": "rl_test", "status": status, "progress": progress, "metrics": {}})
        metrics = {"reward": self.reward}
        told = {"job_id": "rl_test", "status": self.ending, "final_reward": self.reward, "metrics": metrics}
        return JSONResponse(told)

    async def cancel(self, request: Request) -> Response:
        self.cancelled = True
        return JSONResponse({"job_id": "rl_test", "status": "cancelled"})

    async def public_key(self, request: Request) -> Response:
        public = base64.b64encode(bytes(self.private.public_key)).decode()
        return JSONResponse({"public_key": public, "alg": "libsodium.sealedbox.v1"})

    async def take_key(self, request: Request) -> Response:
        from nacl.public import SealedBox

        said = await request.json()
        assert said["name"] == "ENVIRONMENT_API_KEY"
        self.key = SealedBox(self.private).decrypt(base64.b64decode(said["ciphertext_b64"])).decode()
        self.uploads += 1
        return JSONResponse({"stored": True, "id": "k1", "name": said["name"], "updated_at": "2025-01-01T00:00:00Z"})


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("ENVIRONMENT_API_KEY", "BACKEND_BASE_URL", "PROD_BACKEND_URL", "SYNTH_TASK_APP_URL", "TASK_APP_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SYNTH_API_KEY", SYNTH_KEY)
    before = set(threading.enumerate())  # another file's server may go on in this process
    yield
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("taskapp-")]


@pytest.fixture
def files() -> dict[str, Path]:
    return {
        "config_path": ROOT / "examples/rl_in_process_config.toml",
        "task_app_path": ROOT / "tests/deploy/tiny_app.py",
    }


def asked(files: dict[str, Path], url: str, **options: Any) -> dict[str, Any]:
    return {**files, "backend_url": url, "port": 0, "interval": 0.01, **options}


def run_job(files: dict[str, Path], server: BackgroundServer, **options: Any) -> InProcessJobResult:
    return run_in_process_job(**asked(files, server.url, **options))


def test_the_whole_guide_in_one_call(files: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    backend, told = Backend(), []
    with BackgroundServer(backend.app) as server:
        result = run_job(
            files,
            server,
            job_type="rl",
            port=free_port(),
            overrides={"training": {"num_epochs": 5}},
            timeout=60,
            on_status=lambda status: told.append(status["status"]),
        )
    assert isinstance(result, InProcessJobResult)
    assert result.succeeded
    assert (result.job_id, result.status, result.final_reward, result.metrics) == (
        "rl_test", "succeeded", 1.0, {"reward": 1.0},
    )  # fmt: skip
    (job,) = backend.jobs
    assert job["data"]["endpoint_base_url"] == result.task_app_url
    assert job["data"]["config"]["training"]["num_epochs"] == 5
    assert job["data"]["config"]["services"]["task_url"] == result.task_app_url
    assert told == ["running", "running", "succeeded"]
    assert (backend.uploads, len(backend.key)) == (1, 64)
    assert backend.key not in caplog.text + repr(result)
    assert SYNTH_KEY not in caplog.text
    with pytest.raises(httpx.ConnectError):
        httpx.get(result.task_app_url)


def test_a_key_that_the_backend_may_know_is_not_uploaded_unasked(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", "a-key-that-both-know")
    for wish, uploads in ((None, 0), (True, 1), (False, 0)):
        backend = Backend()
        with BackgroundServer(backend.app) as server:
            result = run_job(files, server, upload_key=wish)
        assert (result.final_reward, backend.uploads) == (1.0, uploads)


def test_a_minted_key_stays_here_when_that_is_asked_for(
    files: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    backend = Backend("failed")
    with BackgroundServer(backend.app) as server:
        result = run_job(files, server, upload_key=False)
    assert (backend.uploads, result.succeeded, result.status, result.final_reward) == (0, False, "failed", None)
    assert "is not uploaded, so the backend does not have the key" in caplog.text


def test_a_made_key_goes_to_no_backend_elsewhere_unasked(files: dict[str, Path]) -> None:
    with pytest.raises(BadArgument, match=r"ENVIRONMENT_API_KEY.*upload_key=True"):
        run_in_process_job(**asked(files, "https://backend.invalid", tunnel_mode="local"))


def test_in_a_running_loop_and_its_async_twin(files: dict[str, Path]) -> None:
    told: list[str] = []

    async def on_status(status: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        told.append(status["status"])

    async def both() -> None:
        for call in (run_in_process_job_async, run_in_process_job):
            backend = Backend("completed")
            with BackgroundServer(backend.app) as server:
                result: Any = call(**asked(files, server.url, on_status=on_status))  # type: ignore[operator]
                result = await result if asyncio.iscoroutine(result) else result
            assert (result.status, result.succeeded, result.final_reward) == ("completed", True, 1.0)

    asyncio.run(both())
    assert told == ["running", "running", "completed"] * 2


def test_what_is_wrong_is_said_before_anything_is_started(files: dict[str, Path], tmp_path: Path) -> None:
    port = free_port()
    given: dict[str, Any] = {**files, "port": port, "backend_url": "http://127.0.0.1:1"}
    (tmp_path / "bad.toml").write_text("[algorithm]\n")
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"job_type": "sft"}, BadArgument, "job_type 'sft'"),
        ({"config_path": tmp_path / "nix.toml"}, FileNotFoundError, "nix.toml"),
        ({"config_path": tmp_path / "bad.toml"}, JobConfigError, "model"),
        ({"overrides": {"training": {"num_epochs": "many"}}}, JobConfigError, "num_epochs"),
        ({"task_app_path": tmp_path / "nix.py"}, FileNotFoundError, "nix.py"),
        ({"task_app_path": None}, BadArgument, "task_app_path"),
        ({"backend_url": None}, JobConfigError, "BACKEND_BASE_URL"),
        ({"backend_url": "https://backend.example.org", "cloudflared": "nix-da"}, TunnelError, "another machine"),
        ({"colour": "blue"}, TypeError, "colour"),
    ]
    for change, kind, words in wrong:
        with pytest.raises(kind, match=re.escape(words)):
            run_in_process_job(**{**given, **change})


def test_a_task_app_that_does_not_start_submits_nothing(files: dict[str, Path]) -> None:
    async def lost(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await Response(status_code=404)(scope, receive, send)

    backend = Backend()
    with (
        BackgroundServer(backend.app) as server,
        pytest.raises(TaskAppError, match="GET /health .*HTTP 404"),
    ):
        run_in_process_job(config_path=files["config_path"], app=lost, backend_url=server.url, port=0)
    assert not backend.jobs


def test_a_job_that_takes_too_long_is_left_and_that_is_said(
    files: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    backend = Backend("")
    with BackgroundServer(backend.app) as server, pytest.raises(JobTimeout) as raised:
        run_job(files, server, timeout=0.5, cancel_on_interrupt=True)
    assert isinstance(raised.value, TimeoutError)
    (note,) = raised.value.__notes__
    assert note == f"Job rl_test at {server.url} is still running. Its task app is closed, so its rollouts will fail."
    assert note in caplog.text
    assert not backend.cancelled


def test_a_call_that_is_cancelled_while_the_job_is_submitted_says_that_it_may_run(files: dict[str, Path]) -> None:
    arrived = threading.Event()

    async def create(request: Request) -> Response:
        arrived.set()
        await asyncio.sleep(600)
        return JSONResponse({})

    app = Starlette(routes=[Route("/api/rl/jobs", create, methods=["POST"])])

    async def use(url: str) -> None:
        given = asked(files, url, task_app_api_key="a-key-of-mine", cancel_on_interrupt=True)
        call = asyncio.create_task(run_in_process_job_async(**given))
        assert await asyncio.to_thread(arrived.wait, 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await call
        assert "with an unknown id" in raised.value.__notes__[0]

    with BackgroundServer(app, grace_seconds=0) as server:
        asyncio.run(use(server.url))


@pytest.mark.parametrize("cancel", [False, True])
def test_a_cancelled_call_cancels_the_job_when_that_is_asked_for(files: dict[str, Path], cancel: bool) -> None:
    backend = Backend("")

    async def cancelled() -> None:
        given = asked(files, server.url, cancel_on_interrupt=cancel)
        task = asyncio.create_task(run_in_process_job_async(**given))
        while backend.looks < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with BackgroundServer(backend.app) as server:
        asyncio.run(cancelled())
    assert backend.cancelled is cancel


PROGRAM = """
import sys
from taskapp_kit.deploy.local.in_process_job import run_in_process_job
url, config, app, cancel = sys.argv[1:]
run_in_process_job(
    config_path=config, task_app_path=app, backend_url=url, port=0, interval=0.05, cancel_on_interrupt=cancel == "cancel"
)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("wish", "words"),
    [pytest.param("leave", "is still running", marks=pytest.mark.exhaustive), ("cancel", "is being cancelled")],
)
def test_ctrl_c_says_what_became_of_the_job(files: dict[str, Path], wish: str, words: str) -> None:
    backend = Backend("")
    with BackgroundServer(backend.app) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, server.url, *map(str, files.values()), wish],
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "SYNTH_API_KEY": SYNTH_KEY},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 — a shell's child ignores it
        )
        try:
            until(lambda: backend.looks >= 2 or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            _, complaint = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
    assert process.returncode in (-signal.SIGINT, 130)
    told = [line for line in complaint.splitlines() if line.strip()]
    assert "KeyboardInterrupt" in told[-2]
    assert told[-1].startswith(f"Job rl_test at {server.url} {words}")
    assert backend.cancelled is (wish == "cancel")
