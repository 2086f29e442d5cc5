"""Episodes as the Tinker cookbook's environments, played by its own rollout loop with a renderer of characters.

Needs tinker-cookbook 0.5.8, whose torch and transformers are other ones than ours: skipped elsewhere.
"""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

tinker = pytest.importorskip("tinker", reason="needs an environment with tinker-cookbook")
pytest.importorskip("tinker_cookbook", reason="needs an environment with tinker-cookbook")

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs  # noqa: E402
from tinker_cookbook.renderers import Renderer, ToolCall  # noqa: E402
from tinker_cookbook.renderers.base import ParseTermination  # noqa: E402
from tinker_cookbook.rl.rollout_strategy import MinViableGroup  # noqa: E402
from tinker_cookbook.rl.rollouts import do_group_rollout  # noqa: E402

from taskapp_kit.errors import BadArgument, RolloutFailed, UndefinedReward  # noqa: E402
from taskapp_kit.interop.tinker.episodes import TaskAppDataset, close_services  # noqa: E402

END = 1
APP = '''
from taskapp_kit import Step, TaskApp, action

app = TaskApp("counting", version="1.0.0")


@app.environment("counting", splits={"train": range(8)}, max_steps=5)
class Counting:
    """Add up to the target."""

    def reset(self, seed: int) -> str:
        self.seed, self.total = seed, 0
        return f"Reach {seed}."

    @action
    def add(self, number: int) -> Step:
        """Add a number."""
        self.total += number
        if number == 7:
            raise RuntimeError("the private cellar is flooded")
        return Step(f"Now {self.total}.", reward=1.0, terminated=self.total >= self.seed)
'''


class Characters(Renderer):  # type: ignore[misc]
    """A token for each character; `add 3` calls a tool. What it was asked to render is in `asked`."""

    asked: list[list[dict[str, Any]]] = []

    def __init__(self) -> None:
        super().__init__(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Characters, ()

    def get_stop_sequences(self) -> list[int]:
        return [END]

    def render_message(self, message: Any, ctx: Any) -> Any:
        raise NotImplementedError

    def create_conversation_prefix_with_tools(self, tools: list[Any], system_prompt: str = "") -> list[Any]:
        return [{"role": "system", "content": f"{system_prompt} tools: {[tool['name'] for tool in tools]}"}]

    def build_generation_prompt(self, messages: list[Any], role: str = "assistant", prefill: str | None = None) -> Any:
        self.asked.append(messages)
        text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        return tinker.ModelInput.from_ints([ord(letter) for letter in text])

    def parse_response(self, response: list[int]) -> tuple[Any, Any]:
        text = "".join(map(chr, response)).strip(chr(END))
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if text.startswith("add "):
            arguments = f'{{"number": {text[4:]}}}'
            call = ToolCall(function=ToolCall.FunctionBody(name="add", arguments=arguments), id=None)
            message = {"role": "assistant", "content": "", "tool_calls": [call]}
        return message, ParseTermination.STOP_SEQUENCE


class Says(TokenCompleter):  # type: ignore[misc]
    """Answers in order, from the first again for each prompt without an answer."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def __call__(self, model_input: Any, stop: Any) -> TokensWithLogprobs:
        ids = [*map(ord, self.answers.pop(0)), END]
        return TokensWithLogprobs(tokens=ids, maybe_logprobs=[-1.0] * len(ids))


@pytest.fixture
def dataset(tmp_path: Path) -> TaskAppDataset:
    path = tmp_path / "counting.py"
    path.write_text(APP)
    Characters.asked.clear()
    return TaskAppDataset(str(path), Characters(), groups_per_batch=2, group_size=2)


def played(builder: Any, policy: Any, strategy: Any = None) -> Any:
    async def play() -> Any:
        try:
            return await do_group_rollout(builder, policy, strategy)
        finally:
            await close_services()

    return asyncio.run(play())


def test_cookbook_loop_plays_a_group(dataset: TaskAppDataset) -> None:
    assert len(dataset) == 4
    builder = pickle.loads(pickle.dumps(dataset.get_batch(1)[1]))  # the seed 3
    assert builder.logging_tags() == ["counting"]
    builder.group_size = 1
    group = played(builder, Says("add 1", "add 2"))
    assert group.get_total_rewards() == [2.0]
    (trajectory,) = group.trajectories_G
    assert [one.reward for one in trajectory.transitions] == [0.0, 2.0]
    assert [one.episode_done for one in trajectory.transitions] == [False, True]
    assert trajectory.transitions[-1].metrics["turns"] == 2
    first, second = Characters.asked
    assert "tools: ['add']" in first[0]["content"] and "Reach 3." in first[-1]["content"]
    assert second[: len(first)] == first and isinstance(second[len(first)]["tool_calls"][0], ToolCall)
    assert second[-1]["role"] == "tool" and "Now 1." in second[-1]["content"]


def test_failure_raises_without_a_reward(dataset: TaskAppDataset) -> None:
    builder = dataset.get_batch(1)[1]
    with pytest.raises(RolloutFailed) as failed:
        played(builder, Says("add 7", "add 7"))
    assert "cellar" not in str(failed.value)


def test_the_cookbook_leaves_a_failed_sample_out_of_its_group(dataset: TaskAppDataset) -> None:
    builder = dataset.get_batch(1)[1]
    group = played(builder, Says("add 7", "add 3"), MinViableGroup(min_successful=1, max_retries=0))
    assert group.get_total_rewards() == [1.0]
    assert [error.error_type for error in group.rollout_errors] == ["RolloutFailed"]
    assert "cellar" not in group.rollout_errors[0].error_message


def test_an_env_is_for_one_rollout_and_a_batch_needs_enough_seeds(dataset: TaskAppDataset) -> None:
    async def twice() -> None:
        try:
            (env, _) = await dataset.get_batch(0)[0].make_envs()
            await env.initial_observation()
            with pytest.raises(BadArgument, match="one rollout"):
                await env.initial_observation()
            await env.cancel()  # type: ignore[attr-defined]
        finally:
            await close_services()

    asyncio.run(twice())
    with pytest.raises(BadArgument, match="has 8 seeds"):
        TaskAppDataset(dataset._app, Characters(), groups_per_batch=9, group_size=1)


def test_an_undefined_reward_is_raised(dataset: TaskAppDataset, tmp_path: Path) -> None:
    path = tmp_path / "undefined.py"
    path.write_text(
        APP
        + """

@app.rubric
def rubric(trajectory) -> float | None:
    return None
"""
    )
    builder = TaskAppDataset(str(path), Characters(), groups_per_batch=1, group_size=1).get_batch(3)[0]
    with pytest.raises(UndefinedReward):
        played(builder, Says("add 3"))
