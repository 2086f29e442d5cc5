"""The trained models of a folder: named, listed, found by name, removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import BadArgument, CheckpointError
from taskapp_kit.train.checkpoints.facts import KINDS, Kind, TrainedModelName
from taskapp_kit.train.checkpoints.library import remove_trained_model, trained_model, trained_models
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from tests.train.checkpoints.facts import facts, parts

PARTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
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


@given(PARTS, PARTS, PARTS, st.sampled_from(KINDS))
def test_a_name_is_parsed_as_it_was_printed(model: str, job: str, checkpoint: str, kind: Kind) -> None:
    name = TrainedModelName(model, job, checkpoint, kind)
    assert TrainedModelName.parse(str(name)) == name
    assert str(name) == f"{kind}:{model}:{job}:{checkpoint}"
    assert name.folder(Path("models")) == Path("models", kind, model, job, checkpoint)


@given(st.text(), PARTS)
def test_any_base_gives_a_name_or_is_refused(base: str, job: str) -> None:
    try:
        name = TrainedModelName.of(base, job, "checkpoint-1")
    except BadArgument:
        assert not any(letter.isascii() and letter.isalnum() for letter in base)
    else:
        assert TrainedModelName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    ["", "rl", "rl:", "rl:a:b", "rl:a:b:c:d", "ft:a:b", "sft:a:b:c", "RL:a:b:c", "rl:a:b:", "rl::b:c", "rl:a:../b:c", "rl:a:b:.c",
     "rl:a:b:c/d", "rl:a:b:c\n", "rl:a:b:c\0", "rl:a:b:ｃ", "rl:a:b:" + "c" * 129],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadArgument):
        TrainedModelName.parse(text)
