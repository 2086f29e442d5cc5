"""TRL's own GRPOTrainer with `rollout_func`: episodes of several turns, sampled with the model `tiny` that it trains."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

datasets = pytest.importorskip("datasets", reason="needs trl: make test-train")

from taskapp_kit import Step, TaskApp, action  # noqa: E402
from taskapp_kit.errors import BadArgument  # noqa: E402
from taskapp_kit.train.trl_rollouts import TrlRollouts, episode_prompt, episode_reward, rollout_func  # noqa: E402
from tests.train.trl_trainer import grpo_trainer, train  # noqa: E402
from tests.train.update.rows import log_probs_of  # noqa: E402

pytestmark = pytest.mark.train

GROUP = 4
SECRET = "the cellar is flooded"
BROKEN = 2
"""A seed whose episodes fail in their second turn, and which pays all of them before."""

app = TaskApp("letters", version="1.0.0")


@app.environment("letters", splits={"train": range(4)}, max_steps=2, prompt="Say a letter.")
class Letters:
    """Two letters; what each pays depends on its bytes."""

    def reset(self, seed: int) -> str:
        self.seed, self.turn = seed, 0
        return f"Round {seed}."

    @action(text=True)
    def say(self, letter: str) -> Step:
        """Say it."""
        self.turn += 1
        if self.seed == BROKEN and self.turn == 2:
            raise RuntimeError(SECRET)
        return Step(f"Heard, turn {self.turn}.", reward=sum(letter.encode()) % 5 / 8, terminated=self.turn == 2)


def rows() -> Any:
    named = [{"environment": "letters", "split": "train", "seed": seed, "config": "{}"} for seed in range(4)]
    return datasets.Dataset.from_list([{**row, "output_mode": "text"} for row in named]).map(episode_prompt)


def trainer_with(rollouts: Any, out: Path) -> Any:
    settings = {
        "num_generations": GROUP,
        "per_device_train_batch_size": 4 * GROUP,
        "max_completion_length": 4,
        "max_steps": 2,
    }
    return grpo_trainer(out, rows(), settings, rollout_func=rollouts, reward_funcs=episode_reward)


def test_grpo_learns_from_episodes_and_a_failed_one_has_no_influence(tmp_path: Path) -> None:
    rollouts = rollout_func(app)
    assert isinstance(rollouts, TrlRollouts)
    batches: list[dict[str, list[Any]]] = []
    asked: list[Any] = []

    def recorded(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        asked.append(prompts)
        batches.append(rollouts(prompts, trainer))
        return batches[-1]

    trainer = trainer_with(recorded, tmp_path)
    try:
        rewards, advantages = train(trainer)
    finally:
        rollouts.close()
    tokenizer = trainer.processing_class
    for prompts, batch in zip(asked, batches, strict=True):
        for at, prompt in enumerate(prompts):
            ids, mask = batch["completion_ids"][at], batch["env_mask"][at]
            assert len(ids) == len(mask) == len(batch["logprobs"][at])
            if f'"seed": {BROKEN}' in prompt:
                assert batch["episode_reward"][at] is None and mask == [0]
                continue
            assert batch["episode_reward"][at] * 8 in range(9)
            assert 2 <= sum(mask) <= 8 and mask[0] == 1 and 0 in mask
            read = tokenizer.decode([token for token, said in zip(ids, mask, strict=True) if not said])
            assert "Heard, turn 1." in read, "what the environment answers is there, and is not trained on"
            assert "Round" in tokenizer.decode(batch["prompt_ids"][at])
            assert all(
                math.isfinite(value) and (value < 0 if said else value == 0.0)
                for value, said in zip(batch["logprobs"][at], mask, strict=True)
            )
            assert SECRET not in tokenizer.decode(ids)
    failed = [advantage for reward, advantage in zip(rewards, advantages, strict=True) if reward is None]
    assert len(failed) >= GROUP and set(failed) == {0.0}


def test_its_log_probabilities_are_the_models(tmp_path: Path) -> None:
    rollouts = rollout_func(app)
    trainer = trainer_with(rollouts, tmp_path)
    trainer.model.train()
    try:
        batch = rollouts([rows()[0]["prompt"]], trainer)
    finally:
        rollouts.close()  # type: ignore[attr-defined]
    assert trainer.model.training, "left as it was"
    (prompt,), (ids,), (mask,), (log_probs,) = (
        batch[name] for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs")
    )
    own = log_probs_of(trainer.model.eval(), prompt + ids, 1.0)[len(prompt) :]
    assert [value for value, said in zip(own, mask, strict=True) if said] == pytest.approx(
        [value for value, said in zip(log_probs, mask, strict=True) if said], abs=1e-4
    )


def test_a_prompt_that_names_no_episode_is_refused(tmp_path: Path) -> None:
    rollouts = rollout_func(app)
    with pytest.raises(BadArgument, match="does not identify an episode"):
        rollouts([[{"role": "user", "content": "Hello"}]], trainer_with(rollouts, tmp_path))
    with pytest.raises(BadArgument, match="no seed"):
        episode_prompt({"prompt": "x"})
