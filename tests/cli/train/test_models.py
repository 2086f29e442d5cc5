"""`taskapp models`: trained models listed, taken elsewhere, brought back, removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from tests.cli.conftest import Run
from tests.train.checkpoints.facts import facts, parts

NAME = "rl:tests-tiny:job_1:checkpoint-2"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    with CheckpointWriter(folder / "rl" / "tests-tiny" / "job_1") as writer:
        writer.save(facts(1, score=0.25), parts(b"one"))
        writer.save(facts(2, score=0.75), parts(b"two"))
    return folder


def test_list_shows_every_model(run: Run, models: Path, tmp_path: Path) -> None:
    found = json.loads(run("models", "list", "--models", str(models), "--json").stdout)
    assert [model["name"] for model in found["models"]] == ["rl:tests-tiny:job_1:checkpoint-1", NAME]
    last = found["models"][-1]
    assert (last["base"], last["licence"], last["iteration"], last["score"]) == ("tests/tiny", "Apache-2.0", 2, 0.75)
    assert last["resumable"] and not last["adapter"]
    shown = run("models", "list", "--models", str(models), status=0)
    assert NAME in shown.output and "0.75" in shown.output
    none = run("models", "list", "--models", str(tmp_path / "absent"), status=0)
    assert "No trained models" in none.stderr


def test_a_model_goes_to_another_folder_and_is_the_same(run: Run, models: Path, tmp_path: Path) -> None:
    archive, other = tmp_path / "lever.tar.gz", tmp_path / "other"
    written = run("models", "export", NAME, str(archive), "--models", str(models), "--json")
    assert json.loads(written.stdout)["size_bytes"] == archive.stat().st_size
    imported = run("models", "import", str(archive), "--models", str(other))
    assert imported.stdout.strip() == NAME
    folder = other / "rl" / "tests-tiny" / "job_1" / "checkpoint-2"
    assert (folder / "model.safetensors").read_bytes() == b"two"
    assert not (folder / "optimizer.safetensors").exists()
    assert not json.loads(run("models", "list", "--models", str(other), "--json").stdout)["models"][0]["resumable"]
    again = run("models", "import", str(archive), "--models", str(other), status=1)
    assert "already exists" in again.stderr
    archive.write_bytes(archive.read_bytes()[:300])
    assert run("models", "import", str(archive), "--models", str(tmp_path / "third")).exit_code == 1
    assert not (tmp_path / "third" / "rl" / "tests-tiny").exists()


def test_rm_removes_what_is_named(run: Run, models: Path) -> None:
    assert (
        "Removed rl:tests-tiny:job_1:checkpoint-1"
        in run("models", "rm", "rl:tests-tiny:job_1:checkpoint-1", "--models", str(models)).output
    )
    removed = json.loads(run("models", "rm", NAME, "--models", str(models), "--json").stdout)
    assert removed["removed"][0]["name"] == NAME
    assert json.loads(run("models", "list", "--models", str(models), "--json").stdout)["models"] == []


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("export", "rl:tests-tiny:job_1:checkpoint-9", "x.tar"), 1, "no trained model"),
        (("export", "tiny", "x.tar"), 2, "rl:MODEL:JOB:CHECKPOINT"),
        (("export", NAME, "x.tar", "--merge"), 1, "is not an adapter"),
        (("rm", "rl:tests-tiny:job_1:../job_1"), 2, "part of a trained model's name"),
        (("rm", NAME, "rl:x"), 2, "rl:MODEL:JOB:CHECKPOINT"),
        (("import", "absent.tar"), 2, "absent.tar"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    run: Run, models: Path, arguments: tuple[str, ...], status: int, words: str
) -> None:
    done = run("models", *arguments, "--models", str(models))
    assert done.exit_code == status and words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert (models / "rl" / "tests-tiny" / "job_1" / "checkpoint-2").is_dir()
