"""A job of ten iterations with the engine `local`, of which the processes are killed by a seeded schedule.

Backend, trainer and task app are real processes on fixed ports. A job has the same id, so the same draws, in every run.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from taskapp_kit.jobs.server.auth import org_of
from taskapp_kit.jobs.server.data_files import JobDatabase
from taskapp_kit.jobs.server.engine import Event
from taskapp_kit.jobs.server.job_requests import read_submission
from taskapp_kit.jobs.server.schema import QUEUED, JobRow
from taskapp_kit.jobs.server.store import JobStore
from taskapp_kit.jobs.server.task_app_access import TaskAppAddresses
from taskapp_kit.serve.uvicorn_server import bind
from taskapp_kit.train.checkpoints.stored import WEIGHTS, latest_checkpoint
from taskapp_kit.train.engine.local_engine import LocalEngine
from tests.jobs.server.exchange import APP_KEY, KEY, a_job, client
from tests.train.engine.local_job import MODEL, job_config
from tests.train.rendering.test_tokenizer import definition
from tests.train.tiny_models import tiny_model
from tests.waiting import until

JOB = "rl_killed"
ITERATIONS = 10
SECONDS = 300.0
"""The longest time without a unit that ends, or for a process to start: machines may be busy."""
TIMED = ("seconds", "tokens_per_second")
"""Points that differ from run to run end so."""


def free_port() -> int:
    held = bind("127.0.0.1", 0)
    port: int = held.getsockname()[1]
    held.close()
    return port


@dataclass
class Program:
    """A process on a fixed port. name: of its log."""

    name: str
    folder: Path
    port: int
    arguments: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    running: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        environ = {
            "SYNTH_API_KEY": KEY,
            "ENVIRONMENT_API_KEY": APP_KEY,
            "OMP_NUM_THREADS": "1",
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder),
            "PYTHONPATH": str(Path(__file__).parents[3]),
            **self.environ,
        }
        command = [sys.executable, "-m", "taskapp_kit", *self.arguments, "--port", str(self.port)]
        with self.log.open("ab") as out:
            self.running = subprocess.Popen(
                command, cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def answers(self) -> bool:
        assert self.running is not None
        assert self.running.poll() is None, self.log.read_text()[-3000:]
        try:
            return httpx.get(f"{self.url}/health", headers={"x-api-key": APP_KEY}, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        if self.running is not None:
            self.running.send_signal(signal.SIGKILL)
            self.running.wait()
            self.running = None


@dataclass
class Ended:
    """How a job ended. points: those that count and are no times. weights: SHA-256 of the last checkpoint's."""

    status: dict[str, Any]
    events: list[dict[str, Any]]
    points: dict[tuple[str, int], float]
    weights: str
    kills: dict[str, int] = field(default_factory=dict)

    def counting(self, kind: str) -> list[int]:
        """The steps of events of this type that are not superseded."""
        return [event["data"]["step"] for event in self.events if event["type"] == kind and not event["superseded_by"]]


def config(**sampler: Any) -> dict[str, Any]:
    return job_config(
        ITERATIONS,
        sampler={"deterministic": True, **sampler},
        evaluation={"instances": 4, "every_n_iters": 5, "seeds": [100, 101, 102, 103]},
        training={"batch_size": 3, "group_size": 4, "async_semaphore_max": 8},
        rollout={"max_concurrent_rollouts": 8},
        checkpoints={"every_n_iters": 1},
    )


def store_job(folder: Path, task_app_url: str, **sampler: Any) -> None:
    """Queue the job, with its id, as the backend would. sampler: further keys of its section."""
    engine, addresses = LocalEngine(folder / "models"), TaskAppAddresses(local=True)
    document = read_submission(a_job(task_app_url, config(**sampler)), JOB, addresses=addresses, engine=engine)
    job = JobRow(
        job_id=JOB, org=org_of(KEY.encode()), created_at=1.0, updated_at=1.0, status=QUEUED, engine=engine.name,
        trainer_id="", model="", idempotency_key=None, fingerprint="f", metrics={}, results={}, total=0, completed=0,
        cancelling=False, final_reward=None, error=None,
    )  # fmt: skip

    async def add() -> None:
        records = JobStore(JobDatabase(folder / "backend.db"))
        await records.add(job, asdict(document), Event("rl.job.created", "The job is queued."))
        await records.close()

    asyncio.run(add())


def run(
    folder: Path, kills: Sequence[str] = (), seed: int = 0, environ: Mapping[str, str] = {}, **sampler: Any
) -> Ended:
    """Run the job to its end. kills: "backend", "trainer", "task app", or of services "sampler" and "update", one in each
    part of the job's rollouts, at a moment that follows from the seed. Only kills while the job runs are counted.
    environ: of the backend. sampler: further keys of that section."""
    folder.mkdir()
    base = folder / "models" / "base" / MODEL
    tiny_model(spread=0.05, vocab_size=341, max_position_embeddings=512).save_pretrained(base)
    (base / "tokenizer.json").write_text(definition())
    app = Program(
        "app", folder, free_port(), ["serve", str(Path(__file__).with_name("killed_app.py")), "--store", "none"]
    )
    arguments = ["backend", "serve", "--engine", "local", "--models", "models", "--store", "backend.db"]
    backend = Program("backend", folder, free_port(), arguments, environ)
    rng, done = random.Random(seed), dict.fromkeys(kills, 0)
    store_job(folder, app.url, **sampler)
    try:
        for program in (app, backend):
            program.start()
            until(program.answers, SECONDS)
        with client(backend.url) as http:
            for number, kind in enumerate(kills):
                _played(http, (number + rng.random()) / len(kills))
                if _status(http)["status"] == "running":
                    done[kind] += _kill(kind, backend, app, http)
            until(lambda: _status(http)["status"] in ("succeeded", "failed", "cancelled"), 2 * SECONDS)
            status = _status(http)
            events = http.get(f"/rl/jobs/{JOB}/events?limit=1000").json()["events"]
            points = http.get(f"/rl/jobs/{JOB}/metrics?after_step=-1&limit=1000").json()["points"]
    finally:
        backend.kill()
        app.kill()
    values = {(each["name"], each["step"]): each["value"] for each in points if not each["name"].endswith(TIMED)}
    last = latest_checkpoint(folder / "models" / "rl" / "random" / JOB)
    weights = last.files[WEIGHTS].sha256 if last is not None else ""
    return Ended(status, events, values, weights, done)


def _status(http: httpx.Client) -> dict[str, Any]:
    status: dict[str, Any] = http.get(f"/rl/jobs/{JOB}").json()
    return status


def _played(http: httpx.Client, share: float) -> None:
    """Wait until this share of the rollouts has been played, or the job has ended."""

    def played() -> bool:
        status = _status(http)
        progress = status["progress"]
        waiting = not progress["total"] or progress["completed"] < share * progress["total"]
        return not waiting or status["status"] not in ("queued", "running")

    until(played, SECONDS)


def _kill(kind: str, backend: Program, app: Program, http: httpx.Client) -> int:
    """Kill it and, but for the job's own processes, start it again; return 0 where there was none."""
    if kind in ("trainer", "sampler", "update"):
        if kind == "trainer":
            pid = int(re.findall(r"trainer started job_id=\S+ pid=(\d+)", backend.log.read_text())[-1])
        else:
            events = http.get(f"/rl/jobs/{JOB}/events?limit=1000").json()["events"]
            started = [event["data"] for event in events if event["type"] == "rl.services.started"][-1]
            pid = started["update"]["pid"] if kind == "update" else started["replicas"][0]["pid"]
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return 0
        return 1
    program = backend if kind == "backend" else app
    program.kill()
    program.start()
    until(program.answers, SECONDS)
    return 1


def differences(one: Ended, other: Ended) -> dict[tuple[str, int], tuple[float | None, float | None]]:
    names = one.points.keys() | other.points.keys()
    return {
        name: (one.points.get(name), other.points.get(name))
        for name in sorted(names)
        if one.points.get(name) != other.points.get(name)
    }


def check(found: Ended, whole: Ended) -> None:
    assert found.status["status"] == "succeeded", found.status["error"]
    assert found.status["progress"]["completed"] == found.status["progress"]["total"]
    assert found.counting("rl.train.step") == [*range(1, ITERATIONS + 1)]
    assert found.counting("rl.eval.summary") == [0, 5, 10]
    assert differences(found, whole) == {}
    assert found.weights == whole.weights != ""
    assert found.status["results"]["rollouts"] == whole.status["results"]["rollouts"]
