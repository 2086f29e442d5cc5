"""The trained models of a folder: listed, found by name, removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskapp_kit.errors import BadArgument, CheckpointError
from taskapp_kit.train.checkpoints.facts import TrainedModelName
from taskapp_kit.train.checkpoints.library import remove_trained_model, trained_model, trained_models
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from tests.train.checkpoints.facts import facts, parts

FIRST = TrainedModelName("tests-tiny", "job_1", "checkpoint-1")
SECOND = TrainedModelName("tests-tiny", "job_1", "checkpoint-2")


def save(models: Path, iteration: int, job: str = "job_1") -> None:
    with CheckpointWriter(models / "rl" / "tests-tiny" / job) as writer:
        writer.save(facts(iteration, score=0.5, job=job), parts())


def test_models_are_listed_with_what_they_say_of_themselves(tmp_path: Path) -> None:
    assert trained_models(tmp_path) == []
    save(tmp_path, 1)
    save(tmp_path, 2)
    save(tmp_path, 1, "job_2")
    found = trained_models(tmp_path)
    assert [str(model.name) for model in found] == [
        "rl:tests-tiny:job_1:checkpoint-1",
        "rl:tests-tiny:job_1:checkpoint-2",
        "rl:tests-tiny:job_2:checkpoint-1",
    ]
    assert (found[1].facts.position.iteration, found[1].resumable, found[1].adapter) == (2, True, False)
    assert found[0].size == sum(file.stat().st_size for file in found[0].path.iterdir())


def test_a_model_is_found_by_its_name_and_checked(tmp_path: Path) -> None:
    save(tmp_path, 1)
    assert trained_model(tmp_path, FIRST).facts.job == "job_1"
    with pytest.raises(CheckpointError, match="no trained model"):
        trained_model(tmp_path, SECOND)
    (FIRST.folder(tmp_path) / "model.safetensors").write_bytes(b"others ")
    with pytest.raises(CheckpointError, match="SHA-256"):
        trained_model(tmp_path, FIRST)
    for name in ("rl:..:job_1:checkpoint-1", "rl:tests-tiny:job_1:../../x", "rl:a:b", "tiny"):
        with pytest.raises(BadArgument):
            TrainedModelName.parse(name)


def test_removing_one_leaves_the_others_and_no_empty_folders(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert remove_trained_model(tmp_path, FIRST) > 0
    assert [model.name for model in trained_models(tmp_path)] == [SECOND]
    with pytest.raises(CheckpointError, match="no trained model"):
        remove_trained_model(tmp_path, FIRST)
    with (
        CheckpointWriter(tmp_path / "rl" / "tests-tiny" / "job_1"),
        pytest.raises(CheckpointError, match="Another process"),
    ):
        remove_trained_model(tmp_path, SECOND)
    remove_trained_model(tmp_path, SECOND)
    assert not any((tmp_path / "rl").iterdir())
