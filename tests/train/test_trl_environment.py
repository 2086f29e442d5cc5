"""TRL's own GRPOTrainer plays a task app through `environment_factory`, and the model `tiny` changes its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

pytest.importorskip("trl", reason="needs trl: make test-train")
datasets = pytest.importorskip("datasets", reason="needs trl: make test-train")

from trl.chat_template_utils import qwen3_chat_template  # noqa: E402

from taskapp_kit.errors import BadArgument  # noqa: E402
from taskapp_kit.interop.trl.environment import FAILED, OVER, environment_factory  # noqa: E402
from tests.train.trl_trainer import TINY, grpo_trainer, tiny_tokenizer, train  # noqa: E402

pytestmark = pytest.mark.train

APP = Path(__file__).with_name("walking.py")
GROUP = 8
CALLS = [
    f'<tool_call>\n{{"name": "go", "arguments": {{"way": "{way}"}}}}\n</tool_call>' for way in ("left", "right", "up")
]


def test_grpo_trains_on_episodes_and_masks_failures(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = qwen3_chat_template  # TRL knows its tool calls, each of which is one token here
    tokenizer.add_tokens(CALLS)
    model = transformers.AutoModelForCausalLM.from_pretrained(str(TINY), dtype="float32")
    model.resize_token_embeddings(len(tokenizer))
    chosen = {*tokenizer.convert_tokens_to_ids(CALLS), tokenizer.eos_token_id}
    settings = {
        "num_generations": GROUP,
        "per_device_train_batch_size": 2 * GROUP,
        "max_completion_length": 800,
        "temperature": 100.0,  # each of the four tokens about as often
        "generation_kwargs": {"suppress_tokens": [token for token in range(len(tokenizer)) if token not in chosen]},
        "max_steps": 1,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    trainer = grpo_trainer(
        tmp_path,
        datasets.Dataset.from_list([{"seed": seed} for seed in range(2)]),
        settings,
        model=model,
        processing_class=tokenizer,
        environment_factory=environment_factory(APP),
    )
    rewards, advantages = train(trainer)
    assert len(rewards) == 2 * GROUP
    called = ["".join(str(message) for message in item) for item in trainer._logs["completion"]]
    failed = [FAILED in text for text in called]
    assert 0 < sum(failed) < len(failed)
    for reward, advantage, without in zip(rewards, advantages, failed, strict=True):
        assert reward is None or not without, "TRL leaves out of a completion what is too long, so not the reverse"
        assert advantage == 0.0 or reward is not None, "nothing is learned from an episode that failed"
    assert len({reward for reward in rewards if reward is not None}) > 1, "episodes differ"
    assert not any("sentinel" in text for text in called)


def test_what_the_model_is_shown(tmp_path: Path) -> None:
    make = environment_factory(APP)
    env, other = make(), make()
    assert type(env) is type(other) and type(env).__name__ == "walk"
    shown = env.reset(seed=0)
    assert shown is not None and shown.endswith("at 0") and "Walk to the right." in shown
    assert env.reset(seed=0, prompt=[{"role": "user", "content": "at 0"}]) is None, "the prompt shows it"
    assert env.reset(seed=0, prompt=[{"role": "user", "content": "Play."}]) == "at 0"
    assert env.get_reward() == 0.0, "left where it began: truncated and scored"
    env.reset(seed=2)
    assert env.go(way="right") == "at 1"
    assert "way: input should be 'left' or 'right'" in env.go(way="up")
    assert env.go(way="left").endswith(OVER) and env.go(way="left") == OVER
    assert env.get_reward() == env.get_reward() == 1.0
    env.reset(seed=1)
    assert env.go(way="right") == env.go(way="right") == FAILED
    assert env.get_reward() is None, "a failure is never a reward"
    assert env.reset(seed=0) == shown, "and the next rollout plays"
    with pytest.raises(BadArgument, match="seed"):
        env.reset(prompt=[])
    schema = transformers.utils.get_json_schema(env.go)["function"]
    assert schema["description"] == "Take a step."
    assert schema["parameters"]["properties"]["way"]["enum"] == ["left", "right"]
