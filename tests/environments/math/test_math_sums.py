"""The environment `sums`: a number in plain words, a short prompt, and no sum in two splits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.machine import MATH, REASONING_GYM

if not REASONING_GYM:
    pytest.skip(MATH, allow_module_level=True)

from taskapp_kit import RequestError
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.testing import ChatRequest, MockModel
from tests.rollouts import one_model_rollout
from tests.rollouts import play as played

pytestmark = pytest.mark.server

SPLITS = {"train": 0, "validation": 1_000_000, "test": 1_010_000}


def play(policy: str = "gold", **given: Any) -> Rollout:
    return played(find_app("math"), policy, env_name="sums", **given)


def question(rollout: Rollout) -> str:
    return str(rollout.trajectory.initial)


def test_a_sum_is_in_one_split_only_and_the_same_each_time() -> None:
    drawn = {split: [play(seed=seed) for seed in range(first, first + 40)] for split, first in SPLITS.items()}
    asked = {split: {question(one) for one in rollouts} for split, rollouts in drawn.items()}
    assert (
        not asked["train"] & asked["test"] | asked["train"] & asked["validation"] | asked["test"] & asked["validation"]
    )
    assert all(len(each) > 30 for each in asked.values())
    assert all(one.scorecard.reward == 1.0 for rollouts in drawn.values() for one in rollouts)
    assert question(play(seed=1_010_000)) == question(drawn["test"][0])


@pytest.mark.parametrize(
    ("config", "terms", "digits"), [({}, 2, 2), ({"terms": 12, "digits": 1}, 12, 1), ({"digits": 8}, 2, 8)]
)
def test_terms_and_digits_are_as_configured(config: dict[str, int], terms: int, digits: int) -> None:
    rollout = play(seed=7, config=config)
    numbers = question(rollout).partition(": ")[2].removesuffix(" =").replace(" - ", " + ").split(" + ")
    assert [len(number) for number in numbers] == [digits] * terms
    assert rollout.scorecard.reward == 1.0
    assert play("constant", seed=7, config=config, action="no idea").scorecard.reward == 0.0


@pytest.mark.parametrize(
    "config", [{"terms": 1}, {"terms": 13}, {"digits": 0}, {"digits": 9}, {"digits": "two"}, {"generator": "chain_sum"}]
)
def test_other_configurations_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        play(seed=0, config=config)


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("{}", 1.0),
        (" {}.\n", 1.0),
        ("\\boxed{{{}}}", 1.0),
        ("It is {}", 0.0),
        ("{} or 1", 0.0),
        ("", 0.0),
        ("1" * 5000, 0.0),
    ],
)
def test_the_model_reads_a_short_prompt_and_replies_with_the_number(said: str, reward: float) -> None:
    right = str(play(seed=3).trajectory.steps[0].args["answer"])
    asked: list[ChatRequest] = []

    def answer(request: ChatRequest) -> str:
        asked.append(request)
        return said.format(right)

    with MockModel(answer) as model:
        rollout = one_model_rollout(find_app("math"), model.url, env_name="sums", seed=3)
    assert rollout.scorecard.reward == reward
    assert (rollout.trajectory.status, rollout.trajectory.length) == ("terminated" if said else "truncated", 1)
    (request,) = asked
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert sum(len(message["content"]) for message in request.messages) < 120 and not request.tools
