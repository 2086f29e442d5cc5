"""The job client and the command line of the Synth AI SDK, release 0.3.9, run a job on our backend with our task app."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.interop.peer_programs import HERE, ROOT, found_by, free_port, output_of, python_of, server_process

PEER = "synth-ai-0.3.9"
CONFIG = HERE / "rl_config.toml"
LEARNS = ROOT / "examples" / "rl" / "learn_tiny.toml"
LEARNING_SECONDS = 1500
"""A few minutes; more on a busy machine."""
REJECTED = {
    "rl/config.toml": "MissingAlgorithmError",  # the short form
    "rl/clicks_first/sft.toml": "MissingAlgorithmError",  # fine-tuning on this machine, no RL job
    "rl/math_fft_first/sft.toml": "MissingAlgorithmError",
    "rl/learn_clicks.toml": "MissingModelError",  # for `train --local`: no GPUs, models and varieties that it does not know
    "rl/learn_lists.toml": "MissingModelError",
    "rl/learn_tiny.toml": "MissingModelError",
    "rl/learn_tiny_offline.toml": "UnsupportedAlgorithmError",
    "rl/learn_tiny_ppo.toml": "MissingModelError",
    "rl/learn_words.toml": "MissingModelError",
    "rl/math_fft_first/rl.toml": "MissingModelError",
    "rl/record_tiny.toml": "MissingModelError",
}
"""The example configs that release 0.3.9 rejects itself, before any request, and its error; docs/train/jobs.md has the reasons."""
pytestmark = pytest.mark.interop


@dataclass
class Recorded:
    """Passes requests on to the backend and keeps what they were."""

    target: str
    requests: list[tuple[str, str, Any]] = field(default_factory=list)

    async def handle(self, request: Request) -> Response:
        body = await request.body()
        self.requests.append((request.method, request.url.path, json.loads(body) if body else None))
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        client = httpx.AsyncClient(base_url=self.target, timeout=60)
        sent = client.build_request(
            request.method, request.url.path, params=request.query_params, content=body, headers=headers
        )
        answer = await client.send(sent, stream=True)

        async def passed() -> Any:
            try:
                async for part in answer.aiter_raw():
                    yield part
            finally:
                await answer.aclose()
                await client.aclose()

        kept = {name: value for name, value in answer.headers.items() if name in ("content-type", "content-encoding")}
        return StreamingResponse(passed(), status_code=answer.status_code, headers=kept)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self.handle, methods=["GET", "POST", "HEAD"])])


@dataclass
class Running:
    """A backend (behind a recorder) and a task app, and the keys to both."""

    backend: str
    recorded: Recorded
    task_app: str
    backend_key: str
    task_app_key: str
    folder: Path

    def options(self) -> dict[str, Any]:
        """Of a program that calls both."""
        return {
            "logs": self.logs,
            "SYNTH_API_KEY": self.backend_key,
            "ENVIRONMENT_API_KEY": self.task_app_key,
            "BACKEND_BASE_URL": f"{self.backend}/api",
            "TASK_APP_URL": self.task_app,
        }

    def jobs(self, home: Path, configs: list[str], seconds: float = 120) -> dict[str, Any]:
        """What `synth_job.py` found of a job of each config."""
        arguments = [self.backend, self.task_app, str(seconds), *configs]
        found: dict[str, Any] = found_by(
            PEER, "synth_job.py", home, *arguments, seconds=seconds + 360, **self.options()
        )
        return found

    def logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))


@contextmanager
def served(tmp_path: Path, task_app: str, *engine: str) -> Iterator[Running]:
    """engine: further arguments of `taskapp backend serve`."""
    backend_key, task_app_key = secrets.token_hex(16), secrets.token_hex(16)
    ports = [str(free_port()), str(free_port())]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    variables = {"PYTHONPATH": str(ROOT), "SYNTH_API_KEY": backend_key, "ENVIRONMENT_API_KEY": task_app_key}
    variables["TASKAPP_MODEL_ALIASES"] = "Qwen/Qwen3-4B=tiny"
    kit = [sys.executable, "-m", "taskapp_kit"]
    backend = [*kit, "backend", "serve", "--port", ports[0], "--store", "sqlite:///backend.db", *engine]
    app = [*kit, "serve", str(ROOT / "examples" / "rl" / task_app), "--port", ports[1], "--store", "none"]
    recorded = Recorded(urls[0])
    with (
        server_process(backend, urls[0], tmp_path / "backend.log", **variables),
        server_process(app, urls[1], tmp_path / "task_app.log", **variables),
        BackgroundServer(recorded.app()) as proxy,
    ):
        yield Running(proxy.url, recorded, urls[1], backend_key, task_app_key, tmp_path)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with served(tmp_path, "task_app.py") as found:
        yield found


def as_recorded(running: Running) -> dict[str, Any]:
    """The body of POST /rl/jobs that this release is known to send, with the addresses of this run."""
    text = (HERE / "rl_job_body_0.3.9.json").read_text(encoding="utf-8")
    body: dict[str, Any] = json.loads(
        text.replace("TASK_APP", running.task_app).replace("BACKEND", f"{running.backend}/api")
    )
    return body


def only_jobs(recorded: Recorded) -> list[tuple[str, str]]:
    return [(method, path) for method, path, _ in recorded.requests]


def test_their_rljob_completes_a_job_on_our_backend(running: Running, tmp_path: Path) -> None:
    job = running.jobs(tmp_path, [str(CONFIG)])[str(CONFIG)]
    assert job["last"]["status"] == "succeeded"
    assert 0.9 < job["last"]["final_reward"] < 1, "gold hits the target in few steps: 3/4 + 1/4 (1 - steps/20)"
    assert job["last"]["updates_weights"] is False
    asked = only_jobs(running.recorded)
    assert asked[0] == ("POST", "/api/rl/jobs")
    assert set(asked[1:]) == {("GET", f"/api/rl/jobs/{job['job_id']}")}
    assert running.recorded.requests[0][2] == as_recorded(running)
    assert running.backend_key not in running.logs()
    assert running.task_app_key not in running.logs()


def test_their_rljob_runs_every_example_config_that_it_accepts(running: Running, tmp_path: Path) -> None:
    examples = ROOT / "examples"
    paths = [str(path) for path in sorted(examples.rglob("*.toml"))]
    configs = [str(Path(path).relative_to(examples)) for path in paths]
    found = running.jobs(tmp_path, paths)
    outcomes = {
        config: job if "rejected" in job else {"status": job["last"]["status"]}
        for config, job in zip(configs, found.values(), strict=True)
    }
    rejected = {config: {"rejected": error} for config, error in REJECTED.items()}
    assert outcomes == {config: {"status": "succeeded"} for config in configs} | rejected
    posts = [path for method, path, _ in running.recorded.requests if method == "POST"]
    assert posts == ["/api/rl/jobs"] * (len(configs) - len(rejected)), "what the SDK rejects is never sent"


def as_release_0_3_9_has_it(config: str) -> str:
    changes = {
        '"grpo"': '"gspo"',
        "[services]\n": '[services]\ntask_url = "http://127.0.0.1:8001"\n',
        'base = "tiny"': 'base = "Qwen/Qwen3-4B"',
        "[policy]\n": '[policy]\nmodel_name = "Qwen/Qwen3-4B"\ntrainer_mode = "full"\nlabel = "keys"\ntop_p = 1.0\n',
    }
    for old, new in changes.items():
        assert config.count(old) == 1, old
        config = config.replace(old, new)
    demanded = CONFIG.read_text(encoding="utf-8")
    return config + "\n" + demanded[demanded.index("[compute]") : demanded.index("[rollout]")]


@pytest.mark.train
def test_a_model_learns_through_their_rljob(tmp_path: Path) -> None:
    """examples/rl/learn_tiny.toml, as that release takes it: it knows no model tiny, no variety but gspo, and sends top_p = 0.95."""
    pytest.importorskip("torch", reason="needs the train extra: make test-train")
    config = tmp_path / "learn.toml"
    config.write_text(as_release_0_3_9_has_it(LEARNS.read_text(encoding="utf-8")))
    with served(tmp_path, "keys.py", "--engine", "local", "--models", str(tmp_path / "models")) as running:
        last = running.jobs(tmp_path, [str(config)], LEARNING_SECONDS)[str(config)]["last"]
    (tmp_path / "last.json").write_text(json.dumps(last))
    assert (last["status"], last["engine"], last["updates_weights"]) == ("succeeded", "local", True), last["error"]
    evaluations = [each["reward"] for each in last["results"]["evaluations"]]
    assert evaluations[0] < 0.3 and last["final_reward"] > 0.9, evaluations
    assert last["results"]["model"].startswith("rl:tiny:")


def test_their_command_line_completes_a_job_on_our_backend(running: Running, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "rl.toml").write_bytes(CONFIG.read_bytes())
    (home / ".env").write_text(
        f"SYNTH_API_KEY={running.backend_key}\nENVIRONMENT_API_KEY={running.task_app_key}\nTASK_APP_URL={running.task_app}\n"
    )
    program = python_of(PEER).with_name("synth-ai")
    output_of([program, "train", "rl.toml", "--type", "rl", "--env", ".env"], home, **running.options())
    asked = only_jobs(running.recorded)
    assert asked[:2] == [("POST", "/api/rl/verify_task_app"), ("POST", "/api/rl/jobs")], running.logs()
    job = httpx.get(f"{running.backend}/api/rl/jobs", headers={"Authorization": f"Bearer {running.backend_key}"}).json()
    assert [item["status"] for item in job["jobs"]] == ["succeeded"], running.logs()
    assert ("GET", f"/api/rl/jobs/{job['jobs'][0]['job_id']}/events/stream") in asked
