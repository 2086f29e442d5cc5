"""A backend with the engine `local` runs jobs in trainer processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from taskapp_kit.errors import JobError
from taskapp_kit.jobs.server.engine import JobDocument
from taskapp_kit.jobs.server.task_app_access import TaskAppHandover
from taskapp_kit.train.engine.local_engine import LocalEngine
from taskapp_kit.train.engine.trainer_calls import TrainerOrder
from taskapp_kit.train.engine.training_run import vllm_sampler
from taskapp_kit.train.gateway.gateway_options import GatewayOptions
from taskapp_kit.train.job_settings import training_settings
from taskapp_kit.train.sampler.vllm.place import VllmPlace
from tests.jobs.server.exchange import Backend
from tests.train.engine.local_job import (
    JOB_SECONDS,
    MODEL,
    assert_learned_with_its_sampler,
    curve,
    event_data,
    finished,
    job_config,
    local_backend,
    task_app,
)
from tests.train.rendering.test_tokenizer import definition
from tests.train.sampler.vllm_stand_in import environment, log_of
from tests.train.tiny_models import tiny_model
from tests.waiting import until

VOCABULARY, CONTEXT = 341, 512
pytestmark = [pytest.mark.train, pytest.mark.server, pytest.mark.process]


def add_model(models: Path, name: str = MODEL) -> None:
    folder = models / "base" / name
    tiny_model(spread=0.05, vocab_size=VOCABULARY, max_position_embeddings=CONTEXT).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(definition())


def test_a_job_trains_a_model_in_a_child(tmp_path: Path) -> None:
    add_model(tmp_path)
    with task_app() as url, local_backend(tmp_path, aliases={"Qwen/Qwen3-0.6B": MODEL}) as back:
        job_id = back.submit(url, job_config(3, model="Qwen/Qwen3-0.6B"))
        status = finished(back, job_id)
        assert (status["engine"], status["updates_weights"]) == ("local", True)
        assert status["progress"] == {"completed": 112, "total": 112, "unit": "rollouts"}
        results = status["results"]
        assert results["model"] == results["best"] == f"rl:random:{job_id}:checkpoint-3"
        assert results["base_model"]["requested"] == "Qwen/Qwen3-0.6B"
        assert [each["iteration"] for each in results["iterations"]] == [1, 2, 3]
        assert [each["iteration"] for each in results["evaluations"]] == [0, 3]
        events = {event["type"]: event["message"] for event in back.events(job_id)}
        assert "Qwen/Qwen3-0.6B is an alias of random." in events["rl.model.loaded"]
        assert "[compute]" in events["rl.config.unused"]
        assert "rl.gateway.reached" in events
        assert curve(back, job_id, "version") == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_a_job_samples_with_vllm(tmp_path: Path, mode: str) -> None:
    add_model(tmp_path)
    folder = environment(tmp_path / "env")
    with task_app() as url, local_backend(tmp_path, engine={"vllm": VllmPlace.of(str(folder))}) as back:
        config = job_config(3, sampler={"engine": "vllm"}, vllm={"max_model_len": 400})
        config["model"]["trainer_mode"] = mode
        job_id = back.submit(url, config)
        finished(back, job_id)
        assert event_data(back, job_id, "rl.sampler.started")["context_tokens"] == 400
        assert_learned_with_its_sampler(back, job_id)
    first, *changes = log_of(folder)
    assert first["environ"]["VLLM_NO_USAGE_STATS"] == "1"
    kind = "reloaded" if mode == "full" else "loaded"
    assert sum(kind in each for each in changes) == 3
    assert "ENVIRONMENT_API_KEY" not in str(first)


@contextmanager
def long_job(folder: Path) -> Iterator[tuple[Backend, str, psutil.Process]]:
    """A backend with a job that learns from answers of a vLLM, and the process of that."""
    add_model(folder)
    vllm = environment(folder / "env")
    with task_app() as url, local_backend(folder, engine={"vllm": VllmPlace.of(str(vllm))}) as back:
        job_id = back.submit(url, job_config(500, sampler={"engine": "vllm"}))
        until(lambda: curve(back, job_id, "version"), JOB_SECONDS)
        yield back, job_id, psutil.Process(log_of(vllm)[0]["pid"])


def test_vllm_ends_with_a_job_that_is_cancelled(tmp_path: Path) -> None:
    with long_job(tmp_path) as (back, job_id, vllm):
        back.http.post(f"/rl/jobs/{job_id}/cancel").raise_for_status()
        until(lambda: not vllm.is_running(), what="the end of vLLM")


def test_a_job_whose_vllm_is_killed_fails_at_once(tmp_path: Path) -> None:
    with long_job(tmp_path) as (back, job_id, vllm):
        vllm.kill()
        status = finished(back, job_id, "failed", seconds=60)
    assert "The vLLM that this job started has ended" in status["error"]


def test_vllm_is_refused_where_there_is_none_and_whole_weights_at_a_server(tmp_path: Path) -> None:
    def problems(place: VllmPlace | None, mode: str) -> str:
        config = job_config(1, sampler={"engine": "vllm"})
        config["model"]["trainer_mode"] = mode
        return " ".join(
            LocalEngine(tmp_path, vllm=place).problems(JobDocument("rl_1", "http://127.0.0.1:1", config)).values()
        )

    assert "Set TASKAPP_VLLM" in problems(None, "full")
    server = VllmPlace(url="http://127.0.0.1:8000")
    assert problems(server, "lora") == problems(VllmPlace(environment="/env"), "full") == ""
    assert '[model] trainer_mode: found "full"; expected "lora", because a running vLLM server' in problems(
        server, "full"
    )


@pytest.mark.parametrize(
    ("place", "found"), [(None, "without TASKAPP_VLLM"), (VllmPlace(url="http://127.0.0.1:8000"), 'found "full"')]
)
def test_a_job_does_not_go_on_where_the_backend_has_another_vllm(
    tmp_path: Path, place: VllmPlace | None, found: str
) -> None:
    job = JobDocument("rl_1", "http://127.0.0.1:1", job_config(1, sampler={"engine": "vllm"}))
    settings = training_settings(job)
    handover = TaskAppHandover(job.task_app_url, "key", ["key"], 0, True, ())
    order = TrainerOrder(job, handover, tmp_path, {}, False, GatewayOptions(), place, 2, {"done": 1})
    with pytest.raises(JobError, match=found):
        vllm_sampler(order, settings, cast(Any, None), cast(Any, None))
