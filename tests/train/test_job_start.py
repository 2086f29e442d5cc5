"""What is said of a job before it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.errors import ConfigError, JobError
from taskapp_kit.jobs.server.engine import JobDocument
from taskapp_kit.train.checkpoints.facts import ModelOrigin
from taskapp_kit.train.config_keys import unused_keys
from taskapp_kit.train.job_settings import TrainingSettings, training_settings
from taskapp_kit.train.job_start import JobNeeds, ModelSizes, job_needs, measured_needs, model_sizes, start_events
from taskapp_kit.train.models.sources import ModelSource
from taskapp_kit.train.update.memory import ModelShape

SMOLLM2 = ModelSizes(
    ModelShape(layers=30, hidden=576, intermediate=1536, query=576, key_value=192, vocabulary=49152), 134_515_008, 8192
)
CONFIG: dict[str, Any] = {
    "model": {"base": "smollm2-135m-q4", "label": "my-run"},
    "policy": {"max_tokens": 8},
    "training": {"batch_size": 4, "group_size": 8, "log_interval": 1},
    "compute": {"gpu_type": "H100", "gpu_count": 2},
}
GB = 10**9


def read(**changes: Any) -> tuple[TrainingSettings, JobDocument]:
    job = JobDocument("rl_1", "http://127.0.0.1:1", CONFIG | changes)
    return training_settings(job), job


def needs(memory: int | None = 16 * GB, disk: int = 100 * GB, **changes: Any) -> JobNeeds:
    settings, _ = read(**changes)
    return job_needs(settings, SMOLLM2, memory=memory, disk=disk)


def test_the_sentence_has_what_is_needed_and_what_there_is() -> None:
    found = needs()
    assert found.problem is None
    for value in ("5.0 GB", "16.0 GB", "264 tokens", "6.5 GB", "100.0 GB"):
        assert value in found.sentence
    assert "available" not in needs(memory=None).sentence


def test_too_little_disk_is_a_problem_and_an_adapter_needs_less() -> None:
    found = needs(disk=GB).problem
    assert found is not None and "6.5 GB" in found
    assert needs(disk=GB, model={"base": "m", "trainer_mode": "lora"}).problem is None


def test_more_turns_longer_answers_and_a_reference_need_more() -> None:
    least = needs().estimate.total
    assert needs(training={"batch_size": 4, "group_size": 8, "beta": 0.1}).estimate.total > least
    longer = needs(policy={"max_tokens": 300})
    turns = needs(policy={"max_tokens": 300}, rollout={"max_turns": 20})
    assert (longer.row_tokens, turns.row_tokens) == (556, 1024)
    assert turns.estimate.total > longer.estimate.total > least
    assert needs(sampler={"deterministic": True}).estimate.working <= needs().estimate.working


def test_replicas_of_the_sampler_need_more_and_those_on_ray_are_not_compared_with_this_machine() -> None:
    one, two = (needs(sampler={"engine": "services", "replicas": count}).estimate for count in (1, 2))
    assert needs().estimate.total < one.total < two.total
    assert two.sampler - one.sampler == one.weights
    assert needs(memory=2 * GB, sampler={"engine": "services"}).problem is not None
    on_ray = needs(memory=2 * GB, sampler={"engine": "services", "replicas": 2, "backend": "ray"})
    assert (on_ray.problem, on_ray.memory, on_ray.estimate) == (None, None, two)


def test_the_events_say_how_the_job_learns_and_what_is_not_used() -> None:
    settings, job = read()
    event, unused = start_events(settings, needs(), unused_keys(job, settings.plan))
    assert needs().sentence in event.message
    assert event.data["clip"] == [3e-4, 4e-4] and event.data["memory_needed"] > 4 * GB
    json.dumps(event.data)
    assert unused.data["keys"] == ["[training] log_interval", "[compute]"]
    lora, _ = read(model={"base": "m", "trainer_mode": "lora"}, checkpoints={"every_n_iters": 5}, compute={})
    (event,) = start_events(lora, needs(), [])
    assert event.message.startswith("LoRA of rank 16 on 7 layers of m with gspo,")
    assert "after every 5 iterations." in event.message


def source(folder: Path, base: ModelSource | None = None) -> ModelSource:
    return ModelSource("m", "m", folder, ModelOrigin("m", "Apache-2.0", ""), base=base)


def write_model(folder: Path, *, header: bytes | None = None, **config: Any) -> ModelSource:
    sizes = {
        "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 20, "max_position_embeddings": 64,
    } | config  # fmt: skip
    (folder / "config.json").write_text(json.dumps({name: value for name, value in sizes.items() if value}))
    tensors = {"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [20, 8], "data_offsets": [0, 640]}}
    made = json.dumps(tensors).encode() if header is None else header
    (folder / "model.safetensors").write_bytes(len(made).to_bytes(8, "little") + made)
    return source(folder)


def test_sizes_are_read_without_torch(tmp_path: Path) -> None:
    base = write_model(tmp_path)
    found = model_sizes(source(tmp_path / "adapter", base))
    assert found == model_sizes(base) == ModelSizes(ModelShape(2, 8, 16, 8, 4, 20), 160, 64)


@pytest.mark.parametrize(
    "damage",
    [*({"header": header} for header in (b"{", b"[]", b'{"a": 1}', b"{}")), {"hidden_size": None}, {"vocab_size": "x"}],
)
def test_a_model_whose_sizes_cannot_be_read_is_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    damaged = write_model(tmp_path, **damage)
    with pytest.raises(ConfigError):
        model_sizes(damaged)
    with pytest.raises(ConfigError, match="cannot be read"):
        model_sizes(source(tmp_path / "missing"))


def test_what_this_machine_has_is_measured_before_the_job_runs(tmp_path: Path) -> None:
    settings, _ = read()
    base, folder = write_model(tmp_path), tmp_path / "rl" / "m" / "job"
    found = measured_needs(settings, base, folder)
    assert found.memory is not None and found.memory > 0 and found.disk > 0 and not folder.exists()
    (folder / "checkpoint-1").mkdir(parents=True)
    (folder / "checkpoint-1" / "model.safetensors").write_bytes(bytes(10_000))
    large = {"a": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 0]}}
    with pytest.raises(JobError, match=r"needs about [0-9.]+ GB of memory with full training, but only"):
        measured_needs(settings, write_model(tmp_path, header=json.dumps(large).encode()), folder)
