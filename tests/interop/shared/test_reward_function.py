"""An app's reward as TRL and verl call it: equal to a rollout's, and never 0 for a failure."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.errors import BadArgument, ConfigError, RequestError, RolloutFailed, UndefinedReward
from taskapp_kit.interop.reward_function import RewardFunction, to_reward_function
from taskapp_kit.testing import MockModel, bad, judge, play

HERE = Path(__file__).parent
ASKING = str(HERE / "asking_apps.py")
ADDER = str(HERE.parents[2] / "examples" / "adder.py")


@pytest.fixture(scope="module")
def reward() -> Iterator[RewardFunction]:
    with closing(to_reward_function(ASKING)) as found:
        yield found


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


def test_trl_call_returns_a_reward_per_completion(reward: RewardFunction) -> None:
    logged: list[tuple[str, float]] = []
    rewards = reward(
        prompts=[[]] * 4,
        completions=[said("two"), said("three"), "four-only-here", said("")],
        completion_ids=[[1]] * 4,
        seed=[0, 0, 1, 1],
        environment=["asking"] * 4,
        split=["train"] * 4,
        config=["{}"] * 4,
        trainer_state=None,
        log_metric=lambda *given: logged.append(given),
    )
    assert rewards == [1.0, 0.0, 1.0, 0.0]
    assert reward.__name__ == "asking" and logged == [("asking/failed", 0.0)]


def test_failure_and_undefined_reward_return_none(reward: RewardFunction, caplog: pytest.LogCaptureFixture) -> None:
    logged: list[tuple[str, float]] = []
    words = ["fine", "a long answer", "raise", "unscorable", "undefined"]
    rewards = reward(
        completions=words,
        seed=[0, 1, 2, 3, 0],
        environment=["raising"] * 5,
        log_metric=lambda *given: logged.append(given),
    )
    assert rewards == [1.0, 0.0, None, None, None] and logged == [("asking/failed", 0.6)]
    codes = [
        record.message.split("(")[1].split(")")[0]
        for record in caplog.records
        if record.name.endswith("reward_function")
    ]
    assert codes == ["environment_raised", "criterion_failed", "reward_undefined"]


def test_verl_call_returns_the_reward_or_raises(reward: RewardFunction) -> None:
    def score(text: str, **extra: Any) -> float:
        return reward.compute_score(
            data_source="asking/x",
            solution_str=text,
            ground_truth="",
            extra_info={"index": 0, "num_turns": None, **extra},
        )

    assert score("two", seed=0, environment="asking", split="train", config="{}", output_mode="tool_calls") == 1.0
    assert score("longer", seed=0, environment="raising") == 0.0
    with pytest.raises(RolloutFailed) as raised:
        score("raise", seed=0, environment="raising")
    assert raised.value.failure.code == "environment_raised"
    with pytest.raises(UndefinedReward):
        score("undefined", seed=0, environment="raising")


def test_environment_with_several_turns_is_rejected(reward: RewardFunction) -> None:
    with pytest.raises(ConfigError, match="'adder' may have any number of turns"):
        to_reward_function(ADDER)
    with pytest.raises(ConfigError, match="'counting' may have 5 turns"):
        reward(completions=["x"], seed=[0], environment=["counting"])


def test_first_answer_option_scores_only_the_first_answer() -> None:
    with closing(to_reward_function(ADDER, first_answer=True)) as first:
        seed = 3
        answers = ['{"add": {"amount": 1}}', '{"add": {"amount": 3}}', "nothing"]
        rewards = first(completions=answers, seed=[seed] * 3, output_mode=["text"] * 3)
        same = [
            play(ADDER, seed=seed, policy="constant", action={"add": {"amount": amount}}, ops=1).reward
            for amount in (1, 3)
        ]
        assert rewards[:2] == same
        assert rewards[2] == 0.0, "an answer that is refused is played and scored, and no failure"


def test_tool_call_in_the_message_becomes_the_action() -> None:
    with closing(to_reward_function(ASKING, first_answer=True)) as first:
        call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": json.dumps({"amount": 3})}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        assert first(completions=[[message]], seed=[5], environment=["counting"]) == [3.0]


def test_rows_without_an_episode_and_invalid_answers_are_rejected(reward: RewardFunction) -> None:
    with pytest.raises(BadArgument, match="column `seed`"):
        reward(completions=["x"])
    with pytest.raises(BadArgument, match="extra_info"):
        reward.compute_score(solution_str="x", extra_info={"index": 3})
    with pytest.raises(BadArgument, match="neither a string nor a list"):
        reward(completions=[[{"role": "user", "content": "x"}]], seed=[0])
    with pytest.raises(RequestError, match="Seed 9"):
        reward(completions=["x"], seed=[9])
    with pytest.raises(RequestError, match="'askin'"):
        reward(completions=["x"], seed=[0], environment=["askin"])


def test_reward_function_is_pickled_by_the_path_of_its_app(reward: RewardFunction) -> None:
    with closing(pickle.loads(pickle.dumps(reward))) as copy:
        assert copy(completions=["two"], seed=[0]) == [1.0]
    with pytest.raises(BadArgument, match="path or name"):
        pickle.dumps(to_reward_function(reward._app))


def test_closed_reward_function_starts_again(reward: RewardFunction) -> None:
    reward.close()
    assert reward(completions=["two"], seed=[0]) == [1.0]


@pytest.mark.server
def test_judge_without_a_verdict_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    app = HERE.parent / "verifiers_app.py"
    monkeypatch.setenv("TASKAPP_JUDGE_MODEL", "m")
    for answer, expected in ((bad(), [None]), (judge(0.5), [0.5])):
        with MockModel(answer) as model:
            monkeypatch.setenv("TASKAPP_JUDGE_URL", model.url)
            with closing(to_reward_function(app)) as reward:
                assert reward(completions=["a kind word"], seed=[0], environment=["judged"]) == expected
