"""A pretrained model learns to reply with the first of four words, on words that it was never trained on: `make learn`.

It needs the model smollm2-135m-q4 (fetched once) and about four CPU-minutes a seed. Without the marker `train`: too long for
test-train. What the best constant answer scores is 1 of the number of words.
"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra: make learn")
pytest.importorskip("transformers", reason="needs the train extra: make learn")

from tests.train.jobs_by_config import config_of  # noqa: E402
from tests.train.learning_runs import ShufflingLearner, run, shown  # noqa: E402

pytestmark = [pytest.mark.exhaustive, pytest.mark.server, pytest.mark.timeout(7200)]

CONFIG = Path("examples/rl/learn_words.toml")
MODELS = Path(".taskapp/models")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_held_out_words(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    result = shown(run(config_of(CONFIG), f"learn_words-seed-{seed}", MODELS, save=True), capsys)
    assert result.pairs == 100
    assert result.after >= 0.8
    assert result.low > 0


def test_control_shuffled_advantages_teach_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Half as many iterations, after which a run that learns is well above 0.6."""
    torch.set_num_threads(1)
    config = config_of(CONFIG, iterations_per_epoch=6)
    config["evaluation"]["every_n_iters"] = 6
    result = shown(run(config, "learn_words-shuffled-0", MODELS, ShufflingLearner), capsys)
    assert result.after < 0.6
