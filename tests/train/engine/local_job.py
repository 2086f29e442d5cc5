"""A backend with the engine `local`, its jobs, and a task app that a model with random weights can learn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.jobs.server.schema import ENDED
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.train.engine.local_engine import LocalEngine
from tests.jobs.server.exchange import APP_KEY, Backend, a_config, backend
from tests.waiting import until

MODEL = "random"
JOB_SECONDS = 280.0
"""Most of it is the import of torch, on a busy machine."""

app = TaskApp("letters", version="1")


@app.environment("one", splits={"train": range(100), "test": range(100, 200)}, max_steps=1)
class One:
    """One letter."""

    def reset(self, seed: int) -> str:
        return f"{seed % 4}?"

    @action(text=True, noop={"text": "A"})
    def say(self, text: str) -> Step:
        """Say it."""
        return Step("", reward=float(text[:1] >= "@" and text[:1] <= "\x7f"), terminated=True)


@contextmanager
def task_app() -> Iterator[str]:
    settings = Settings(environment_api_key=APP_KEY, max_concurrent=64)
    with BackgroundServer(build(app, settings, exposure="local")) as server:
        yield server.url


@contextmanager
def local_backend(models: Path, **options: Any) -> Iterator[Backend]:
    engine = LocalEngine(models, options.pop("aliases", {}), **options.pop("engine", {}))
    with backend(engine=engine, **options) as back:
        yield back


def finished(back: Backend, job_id: str, status: str = "succeeded", seconds: float = JOB_SECONDS) -> dict[str, Any]:
    until(lambda: back.status(job_id)["status"] in ENDED, seconds)
    ended = back.status(job_id)
    assert ended["status"] == status, ended["error"]
    return ended


def event_data(back: Backend, job_id: str, kind: str) -> dict[str, Any]:
    data: dict[str, Any] = next(event["data"] for event in back.events(job_id) if event["type"] == kind)
    return data


def curve(back: Backend, job_id: str, name: str) -> list[float]:
    points = back.http.get(f"/rl/jobs/{job_id}/metrics").json()["points"]
    return [point["value"] for point in points if point["name"] == name]


def assert_learned_with_its_sampler(back: Backend, job_id: str) -> None:
    """Three updates, from answers whose log-probabilities are the trainer's."""
    assert curve(back, job_id, "version") == [1.0, 2.0, 3.0]
    differences = curve(back, job_id, "log_prob_mismatch")
    assert len(differences) == 3
    assert max(differences) < 1e-4


def job_config(
    iterations: int = 3, *, model: str = MODEL, label: str = "letters", **sections: dict[str, Any]
) -> dict[str, Any]:
    """A job of iterations of 4 groups of 8 rollouts of one turn, with evaluations before the first and after the last."""
    changes: dict[str, Any] = {
        "model": {"base": model, "trainer_mode": "full", "label": label},
        "rollout": {"env_name": "one", "policy_name": "policy", "max_turns": 1, "max_concurrent_rollouts": 32},
        "policy": {"max_tokens": 2, "temperature": 1.0},
        "training": {
            "iterations_per_epoch": iterations,
            "max_turns": 1,
            "batch_size": 4,
            "group_size": 8,
            "learning_rate": 1e-2,
            "async_semaphore_max": 32,
        },
        "evaluation": {"instances": 8, "every_n_iters": iterations, "seeds": list(range(100, 108))},
    }
    for name, section in sections.items():
        changes[name] = {**changes.get(name, {}), **section}
    config = a_config(**changes)
    config["algorithm"]["variety"] = "grpo"
    return config
