"""The job client and the command line of the Synth AI SDK, release 0.3.9, run a job on our backend with our task app."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
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
from tests.interop.peers import Peer, PeerUnavailable, peer

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("synth_job.py")
CONFIG = Path(__file__).with_name("rl_config.toml")
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
"""The example configs that release 0.3.9 rejects itself, before any request, and its error; docs/jobs.md has the reasons."""
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

    def environ(self, home: Path) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "SYNTH_API_KEY": self.backend_key,
            "ENVIRONMENT_API_KEY": self.task_app_key,
            "BACKEND_BASE_URL": f"{self.backend}/api",
            "TASK_APP_URL": self.task_app,
            "SYNTH_DISABLE_LOGGING": "1",
        }

    def logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))


def wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError:
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"{url} did not come up: {log.read_text()[-4000:]}")


@contextmanager
def served(tmp_path: Path, task_app: str, *engine: str) -> Iterator[Running]:
    """engine: further arguments of `taskapp backend serve`."""
    from tests.interop.test_synth_ai import free_port

    backend_key, task_app_key = secrets.token_hex(16), secrets.token_hex(16)
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environ |= {"SYNTH_API_KEY": backend_key, "ENVIRONMENT_API_KEY": task_app_key}
    environ["TASKAPP_MODEL_ALIASES"] = "Qwen/Qwen3-4B=tiny"
    commands = [
        ["backend", "serve", "--port", str(ports[0]), "--store", "sqlite:///backend.db", *engine],
        ["serve", str(ROOT / "examples" / "rl" / task_app), "--port", str(ports[1]), "--store", "none"],
    ]
    processes, logs = [], [tmp_path / "backend.log", tmp_path / "task_app.log"]
    for command, log in zip(commands, logs, strict=True):
        with log.open("wb") as out:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "taskapp_kit", *command],
                    cwd=tmp_path,
                    env=environ,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        for url, process, log in zip(urls, processes, logs, strict=True):
            wait_until_up(url, process, log)
        recorded = Recorded(urls[0])
        with BackgroundServer(recorded.app()) as proxy:
            yield Running(proxy.url, recorded, urls[1], backend_key, task_app_key, tmp_path)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with served(tmp_path, "task_app.py") as found:
        yield found


@pytest.fixture(scope="module")
def synth() -> Peer:
    """The peer's environment; a test that cannot have it fails, it is never skipped."""
    try:
        return peer("synth-ai-0.3.9")
    except PeerUnavailable as error:
        pytest.fail(str(error), pytrace=False)


def as_recorded(running: Running) -> dict[str, Any]:
    """The body of POST /rl/jobs that this release is known to send, with the addresses of this run."""
    text = (Path(__file__).with_name("rl_job_body_0.3.9.json")).read_text(encoding="utf-8")
    body: dict[str, Any] = json.loads(
        text.replace("TASK_APP", running.task_app).replace("BACKEND", f"{running.backend}/api")
    )
    return body


def only_jobs(recorded: Recorded) -> list[tuple[str, str]]:
    return [(method, path) for method, path, _ in recorded.requests]


def test_their_rljob_completes_a_job_on_our_backend(synth: Peer, running: Running, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [str(synth.python), str(SCRIPT), str(CONFIG), running.backend, running.task_app],
        env=running.environ(home),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.startswith("{"), f"{done.stderr[-4000:]}\n{running.logs()[-4000:]}"
    found = json.loads(done.stdout)
    assert found["peer"] == "synth-ai 0.3.9"
    assert found["last"]["status"] == "succeeded"
    assert 0.9 < found["last"]["final_reward"] < 1, "gold hits the target in few steps: 3/4 + 1/4 (1 - steps/20)"
    assert found["last"]["updates_weights"] is False
    asked = only_jobs(running.recorded)
    assert asked[0] == ("POST", "/api/rl/jobs")
    assert set(asked[1:]) == {("GET", f"/api/rl/jobs/{found['job_id']}")}
    assert running.recorded.requests[0][2] == as_recorded(running)
    assert running.backend_key not in running.logs()
    assert running.task_app_key not in running.logs()


def test_their_rljob_runs_every_example_config_that_it_accepts(synth: Peer, running: Running, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    examples = ROOT / "examples"
    configs = [str(path.relative_to(examples)) for path in sorted(examples.rglob("*.toml"))]
    done = subprocess.run(
        [
            str(synth.python),
            str(Path(__file__).with_name("synth_configs.py")),
            running.backend,
            running.task_app,
            *configs,
        ],
        env=running.environ(home),
        cwd=examples,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.stdout.startswith("{"), f"{done.stderr[-4000:]}\n{running.logs()[-4000:]}"
    rejected = {config: {"rejected": error} for config, error in REJECTED.items()}
    assert json.loads(done.stdout) == {config: {"status": "succeeded"} for config in configs} | rejected
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
def test_a_model_learns_through_their_rljob(synth: Peer, tmp_path: Path) -> None:
    """examples/rl/learn_tiny.toml, as that release takes it: it knows no model tiny, no variety but gspo, and sends top_p = 0.95."""
    pytest.importorskip("torch", reason="needs the train extra: make test-train")
    home = tmp_path / "home"
    home.mkdir()
    config = home / "learn.toml"
    config.write_text(as_release_0_3_9_has_it(LEARNS.read_text(encoding="utf-8")))
    with served(tmp_path, "keys.py", "--engine", "local", "--models", str(tmp_path / "models")) as running:
        done = subprocess.run(
            [str(synth.python), str(SCRIPT), str(config), running.backend, running.task_app, str(LEARNING_SECONDS)],
            env=running.environ(home),
            cwd=home,
            capture_output=True,
            text=True,
            timeout=LEARNING_SECONDS + 60,
            check=False,
        )
        assert done.stdout.startswith("{"), f"{done.stderr[-4000:]}\n{running.logs()[-4000:]}"
    last = json.loads(done.stdout)["last"]
    (tmp_path / "last.json").write_text(json.dumps(last))
    assert (last["status"], last["engine"], last["updates_weights"]) == ("succeeded", "local", True), last["error"]
    evaluations = [each["reward"] for each in last["results"]["evaluations"]]
    assert evaluations[0] < 0.3 and last["final_reward"] > 0.9, evaluations
    assert last["results"]["model"].startswith("rl:tiny:")


def test_their_command_line_completes_a_job_on_our_backend(synth: Peer, running: Running, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "rl.toml").write_bytes(CONFIG.read_bytes())
    (home / ".env").write_text(
        f"SYNTH_API_KEY={running.backend_key}\nENVIRONMENT_API_KEY={running.task_app_key}\nTASK_APP_URL={running.task_app}\n"
    )
    done = subprocess.run(
        [str(synth.python.parent / "synth-ai"), "train", "rl.toml", "--type", "rl", "--env", ".env"],
        env=running.environ(home),
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    shown = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n{running.logs()[-4000:]}"
    assert done.returncode == 0, shown
    asked = only_jobs(running.recorded)
    assert asked[:2] == [("POST", "/api/rl/verify_task_app"), ("POST", "/api/rl/jobs")], shown
    job = httpx.get(f"{running.backend}/api/rl/jobs", headers={"Authorization": f"Bearer {running.backend_key}"}).json()
    assert [item["status"] for item in job["jobs"]] == ["succeeded"], shown
    assert ("GET", f"/api/rl/jobs/{job['jobs'][0]['job_id']}/events/stream") in asked
