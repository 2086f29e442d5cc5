"""A real backend and a task app that does as it is told, both on threads of the test."""

from __future__ import annotations

import asyncio
import base64
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from taskapp_kit.jobs.server.app import create_backend
from taskapp_kit.jobs.server.engine import JobDocument, JobOutcome, Ledger
from taskapp_kit.jobs.server.schema import QUEUED, JobRow
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.waiting import until

KEY = "sk-sentinel-of-the-organisation"
OTHER_KEY = "sk-sentinel-of-somebody-else"
APP_KEY = "sentinel-key-of-the-task-app"
WAIT_SECONDS = 60.0
NUMBERS = itertools.count()

Answer = tuple[int, Any]


def episode(reward: float | None = 1.0, **more: Any) -> Answer:
    metrics = {
        "episode_returns": [reward or 0.0],
        "mean_return": reward or 0.0,
        "num_steps": 1,
        **more.pop("metrics", {}),
    }
    return 200, {"run_id": "r", "trajectories": [], "metrics": metrics, "reward": reward, "status": "terminated",
                 "rollout_id": f"ro_{next(NUMBERS)}", **more}  # fmt: skip


def failure(boundary: str = "environment", code: str = "environment_raised", status: int = 500) -> Answer:
    error = {"code": code, "message": "It broke.", "hint": "", "boundary": boundary, "rollout_id": "ro-broken"}
    return status, {"detail": {"error": error}}


@dataclass
class ScriptedApp:
    """A task app. play: what a rollout's body is answered with; seeds: as /task_info tells them.

    requests: (Idempotency-Key, body) of every POST; most: the highest number in flight; dropped: POSTs whose caller went.
    """

    play: Callable[[dict[str, Any]], Answer | Awaitable[Answer]] = lambda body: episode()
    info: dict[str, Any] = field(
        default_factory=lambda: {
            "taskset": {"splits": ["train", "test"], "default_split": "train", "kind": "seeds",
                        "seeds": {"train": [0, 1000], "test": [1000, 1100]}},
            "inference": {"policies": ["scripted", "random"]},
        }
    )  # fmt: skip
    key: str | None = APP_KEY
    requests: list[tuple[str | None, dict[str, Any]]] = field(default_factory=list)
    in_flight: int = 0
    most: int = 0
    dropped: int = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/task_info", self._task_info),
                Route("/rollout", self._rollout, methods=["POST"]),
            ]
        )

    def _refused(self, request: Request) -> Response | None:
        if self.key is None or request.headers.get("x-api-key") == self.key:
            return None
        return JSONResponse({"detail": {"error": {"code": "unauthorised", "message": "no"}}}, 401)

    async def _health(self, request: Request) -> Response:
        return self._refused(request) or JSONResponse({"healthy": True})

    async def _task_info(self, request: Request) -> Response:
        return self._refused(request) or JSONResponse(self.info)

    async def _rollout(self, request: Request) -> Response:
        refused = self._refused(request)
        if refused is not None:
            return refused
        body = await request.json()
        self.requests.append((request.headers.get("idempotency-key"), body))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            playing = asyncio.ensure_future(self._played(body))
            gone = asyncio.ensure_future(_until_gone(request))
            await asyncio.wait((playing, gone), return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if not playing.done():
                self.dropped += 1
                playing.cancel()
                return Response(status_code=499)
            status, answer = playing.result()
            if isinstance(answer, dict) and answer.get("run_id") == "r":
                answer = {**answer, "run_id": body["run_id"]}
            return answer if isinstance(answer, Response) else JSONResponse(answer, status)
        finally:
            self.in_flight -= 1

    async def _played(self, body: dict[str, Any]) -> Answer:
        made = self.play(body)
        return made if isinstance(made, tuple) else await made


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass
class Backend:
    """A backend under test. `http` has the key and the address with `/api`."""

    url: str
    http: httpx.Client
    state: Any

    def submit(self, app_url: str, config: dict[str, Any] | None = None, **headers: str) -> str:
        answer = self.http.post("/rl/jobs", json=a_job(app_url, config), headers=headers)
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["job_id"])

    def status(self, job_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/rl/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def ended(self, job_id: str) -> dict[str, Any]:
        return ended(self.http, job_id)

    def events(self, job_id: str, since_seq: int = 0) -> list[dict[str, Any]]:
        return list(self.http.get(f"/rl/jobs/{job_id}/events?limit=1000&since_seq={since_seq}").json()["events"])


def ended(http: httpx.Client, job_id: str) -> dict[str, Any]:
    """The last status of a job that comes to an end."""

    def last_status() -> dict[str, Any] | None:
        status: dict[str, Any] = http.get(f"/rl/jobs/{job_id}").json()
        return status if status["status"] in ("succeeded", "failed", "cancelled") else None

    status = until(last_status, WAIT_SECONDS)
    assert status is not None
    return status


@contextmanager
def serving(app: Any) -> Iterator[str]:
    with BackgroundServer(app) as server:
        yield server.url


@contextmanager
def backend(**options: Any) -> Iterator[Backend]:
    """A backend in memory unless `store` says otherwise."""
    app = create_backend(options.pop("keys", [KEY, OTHER_KEY]), **{"environment_api_key": APP_KEY, **options})
    with serving(app) as url, client(url) as http:
        yield Backend(url, http, app.state)


def played(
    app: ScriptedApp, config: dict[str, Any] | None = None, **options: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The last status and the events of a job."""
    with serving(app.app()) as url, backend(**options) as back:
        job_id = back.submit(url, config)
        return back.ended(job_id), back.events(job_id)


def client(url: str, key: str | None = KEY) -> httpx.Client:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=f"{url}/api", headers=headers, timeout=WAIT_SECONDS, trust_env=False)


def a_config(**sections: dict[str, Any]) -> dict[str, Any]:
    """An RL config that every validator takes; `sections` are merged into it."""
    topology = {"type": "single_node_split", "gpus_for_vllm": 1, "gpus_for_training": 1, "gpus_for_ref": 0,
                "tensor_parallel": 1, "reference_placement": "none"}  # fmt: skip
    made: dict[str, Any] = {
        "algorithm": {"type": "online", "method": "policy_gradient", "variety": "gspo"},
        "services": {"task_url": "http://127.0.0.1:8401"},
        "model": {"base": "Qwen/Qwen3-4B", "trainer_mode": "full", "label": "check"},
        "compute": {"gpu_type": "H100", "gpu_count": 2, "topology": topology},
        "vllm": {"tensor_parallel_size": 1},
        "rollout": {"env_name": "counter", "policy_name": "scripted", "max_turns": 3, "episodes_per_batch": 2,
                    "max_concurrent_rollouts": 4, "ops": ["agent", "env"]},
        "training": {"num_epochs": 1, "iterations_per_epoch": 1, "max_turns": 3, "batch_size": 2, "group_size": 2,
                     "learning_rate": 1e-5, "log_interval": 1, "weight_sync_interval": 1},
    }  # fmt: skip
    for name, section in sections.items():
        made[name] = {**made.get(name, {}), **section}
    return made


def a_job(app_url: str, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """The body that the clients of release 0.3.9 send."""
    config = a_config() if config is None else config
    return {
        "job_type": "rl",
        "compute": config.get("compute", {}),
        "data": {"endpoint_base_url": app_url, "config": config, "base_model": "Qwen/Qwen3-4B"},
        "tags": {"source": "train-cli"},
        "metadata": {"backend_base_url": "http://127.0.0.1:8500/api"},
    }


def job_row(job_id: str = "rl_1", org: str = "org", **more: object) -> JobRow:
    values = {"status": QUEUED, "engine": "rollouts", "trainer_id": "", "model": "", "idempotency_key": None, **more}
    return JobRow(job_id, org, 1.0, 1.0, fingerprint="f", **values)  # type: ignore[arg-type]


class Gate:
    def __init__(self) -> None:
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        while not self._open.is_set():
            await asyncio.sleep(0.005)


class GatedApp(ScriptedApp):
    def __init__(self) -> None:
        super().__init__(play=self._wait)
        self.gate = Gate()

    async def _wait(self, _: dict[str, Any]) -> Answer:
        await self.gate.passed()
        return episode()


class ScriptedEngine:
    """An engine that accepts every job and does what `play` does with its ledger."""

    name = description = "scripted"
    updates_weights = True
    restarts = False
    most_jobs: int | None = None

    def __init__(self, play: Callable[[Ledger], Awaitable[float | None]] | None = None) -> None:
        self._play = play

    def problems(self, job: JobDocument) -> dict[Any, str]:
        return {}

    async def missing(self, job: JobDocument, task_app: Any) -> list[str]:
        return []

    async def run(self, job: JobDocument, task_app: Any, ledger: Ledger, state: Mapping[str, Any]) -> JobOutcome:
        assert self._play is not None
        return JobOutcome(await self._play(ledger))


class BackendProcess:
    """`taskapp backend serve` in a folder, with its output in out.txt and err.txt there."""

    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        self.folder = folder
        self._command = [sys.executable, "-m", "taskapp_kit", "backend", "serve", *arguments]
        self._environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONUNBUFFERED": "1", **environ}
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def out(self) -> str:
        return (self.folder / "out.txt").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err.txt").read_text()

    @property
    def url(self) -> str:
        return self.out.split("at ", 1)[1].split()[0]

    def start(self) -> None:
        with (self.folder / "out.txt").open("wb") as out, (self.folder / "err.txt").open("ab") as err:
            self._running = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
            )
        until(lambda: "Ctrl-C" in self.out or self._running is None or self._running.poll() is not None)
        assert "Ctrl-C" in self.out, self.err

    def end(self, number: int = signal.SIGTERM) -> int:
        """Return the exit status; 0 for one that has ended before."""
        running, self._running = self._running, None
        if running is None:
            return 0
        running.send_signal(number)
        return running.wait(30)


def seal(public_key: str, token: bytes) -> str:
    """Return the token as an upload has it, sealed for a backend's public key."""
    from nacl.public import PublicKey, SealedBox  # of an extra, which others who import this module do not have

    return base64.b64encode(SealedBox(PublicKey(base64.b64decode(public_key))).encrypt(token)).decode()
