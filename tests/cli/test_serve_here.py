"""`eval --model`: models of this machine are served by real processes until the command ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the train extra: make test-train")
pytest.importorskip("transformers", reason="needs the train extra: make test-train")

from taskapp_kit.train.checkpoints.writer import CheckpointPart, CheckpointWriter
from taskapp_kit.train.models.sources import described_by, find_model
from tests.cli.conftest import Run
from tests.train.checkpoints.facts import facts

pytestmark = [pytest.mark.train, pytest.mark.server]

KEYS = Path(__file__).parents[2] / "examples" / "rl" / "keys.py"
TRAINED = "rl:tiny:job_1:checkpoint-1"


def test_base_and_trained_model_play_the_same_seeds(run: Run, tmp_path: Path) -> None:
    models, out = tmp_path / "models", tmp_path / "out"
    source = find_model("tiny", models)
    weights = CheckpointPart.of((source.folder / "model.safetensors").read_bytes())
    with CheckpointWriter(models / "rl" / "tiny" / "job_1") as writer:
        writer.save(facts(1, origin=source.origin), {**described_by(source), "model.safetensors": weights})
    done = run(
        "eval", str(KEYS), "--model", "Qwen/Qwen3-0.6B", "--model", TRAINED, "--seeds", "72-75", "--output-mode", "text",
        "--policy-config", '{"temperature": 0, "max_tokens": 8}', "--out", str(out), "--json",
        TASKAPP_MODELS=str(models), TASKAPP_MODEL_ALIASES="Qwen/Qwen3-0.6B=tiny", status=0)  # fmt: skip
    assert "Qwen/Qwen3-0.6B is an alias of tiny." in done.stderr
    summary = json.loads(done.stdout)
    assert (summary["rollouts"]["done"], summary["rollouts"]["failed"]) == (8, 0)
    base, trained = (summary["by_policy"][name] for name in ("Qwen/Qwen3-0.6B", TRAINED))
    assert base["reward"] == trained["reward"], "the weights are equal, and the most probable token is taken"
    asked = json.loads((out / "config.json").read_text())["asked"]
    assert {policy["inference_url"] for policy in asked["policies"].values()} == {"http://127.0.0.1/served-here/v1"}
    assert "api_key" not in (out / "config.json").read_text()
