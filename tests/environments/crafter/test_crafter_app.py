"""The declarations: Crafter as agents, trainers and readers of scores meet it, through the service."""

from __future__ import annotations

import asyncio
import io
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from PIL import Image as Picture

from environments.crafter.app import app
from environments.crafter.names import ACHIEVEMENTS, ACTIONS
from environments.crafter.rules import CrafterGame
from environments.crafter.score import DEPTHS, crafter_score, success_rates
from taskapp_kit.errors import RequestError
from taskapp_kit.records.content import images, text_of
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.rollout.service import Service
from taskapp_kit.wire.rollout import RolloutRequest

SEED = 1_000_000
INFO = {"actions", "rewards", "unlocked", "game_step"}


def body(
    policy: str = "noop",
    *,
    seed: int = SEED,
    config: dict[str, Any] | None = None,
    ops: Sequence[Any] = (),
    **policy_config: Any,
) -> dict[str, Any]:
    return {
        "run_id": "test",
        "env": {"env_name": "crafter", "seed": seed, "config": config or {}},
        "policy": {"policy_name": policy, "config": policy_config},
        "ops": list(ops),
        "mode": "eval",
    }


def play(*requests: dict[str, Any]) -> list[Rollout]:
    async def all_of_them() -> list[Rollout]:
        service = Service(app)
        try:
            wanted = [service.rollout(RolloutRequest.model_validate(request)) for request in requests]
            return list(await asyncio.gather(*wanted))
        finally:
            await service.close()

    return asyncio.run(all_of_them())


def interact(*actions: Any) -> dict[str, Any]:
    return {"type": "env", "tool": "interact", "args": {"actions": list(actions)}}


@pytest.fixture(scope="module")
def scripted() -> Rollout:
    """One whole episode in which much happens."""
    return play(body("scripted"))[0]


# The tool


def test_one_tool_takes_one_to_eight_of_the_17_names() -> None:
    spec = app.freeze().environments["crafter"]
    (action,) = spec.actions.values()
    assert action.name == "interact"
    schema = action.tool.parameters
    actions = schema["properties"]["actions"]
    assert schema["required"] == ["actions"]
    assert (actions["type"], actions["minItems"], actions["maxItems"]) == ("array", 1, 8)
    assert actions["items"]["enum"] == list(ACTIONS)
    assert len(set(ACTIONS)) == 17


@pytest.mark.parametrize(
    ("actions", "told"),
    [
        (["noop"] * 9, "at most 8"),
        ([], "at least 1"),
        (["do", "dance"], "actions.1"),
        (["do", 1], "actions.1"),
        ("noop", "a valid list"),
    ],
)
def test_invalid_action_is_answered_counted_and_does_nothing(actions: Any, told: str) -> None:
    refusal = {"type": "env", "tool": "interact", "args": {"actions": actions}}
    rollout = play(body(ops=[refusal, interact("noop")]))[0]
    refused, done = rollout.trajectory.steps
    assert refused.refused == refused.observation
    assert told in str(refused.observation)
    assert refused.reward is None
    assert refused.info == {}
    assert rollout.trajectory.metrics["invalid_actions"] == 1
    assert rollout.trajectory.status == "truncated"
    assert done.info["game_step"] == 1
    assert str(done.observation).startswith("step 1 of 10000, ")


def test_game_steps_are_counted_when_the_last_call_is_refused() -> None:
    rollout = play(body(ops=[interact("noop", "do"), interact("dance")]))[0]
    assert rollout.scorecard.metrics["game_steps"] == 2


def test_a_refused_policy_ends_after_ten_answers_and_refused_actions_at_the_limit_of_calls() -> None:
    refused = play(body("constant", action={"interact": {"actions": ["dance"]}}))[0]
    assert (refused.trajectory.length, refused.trajectory.stop_reason) == (10, "max_refusals")
    assert refused.trajectory.metrics["invalid_actions"] == 10
    rollout = play(body(ops=[interact("dance")] * 10_001))[0]
    assert (rollout.trajectory.length, rollout.trajectory.stop_reason) == (10_000, "max_steps")
    assert rollout.trajectory.metrics["invalid_actions"] == 10_000
    assert rollout.scorecard.metrics["game_steps"] == 0


# Rewards and ends


def test_rewards_of_a_call_are_listed_and_summed(scripted: Rollout) -> None:
    steps = scripted.trajectory.steps
    game_step = 0
    for step in steps:
        asked = step.args["actions"]
        done = step.info["actions"]
        assert done == asked[: len(done)]
        assert len(done) == len(asked) or step is steps[-1]
        assert len(step.info["rewards"]) == len(done)
        assert step.reward == pytest.approx(math.fsum(step.info["rewards"]))
        game_step += len(done)
        assert step.info["game_step"] == game_step
    assert any(len(step.info["actions"]) > 1 for step in steps)
    assert scripted.scorecard.metrics["game_steps"] == game_step


def test_length_truncates_in_the_middle_of_a_call_and_nothing_steps_after_it() -> None:
    program = [interact("noop", "noop"), interact(*["noop"] * 8), interact("do"), interact("dance")]
    rollout = play(body(config={"length": 5}, ops=program))[0]
    trajectory = rollout.trajectory
    assert trajectory.length == 2
    last = trajectory.steps[-1]
    assert (last.truncated, last.terminated) == (True, False)
    assert (trajectory.status, trajectory.stop_reason) == ("truncated", "environment")
    assert last.info["actions"] == ["noop"] * 3
    assert str(last.observation).startswith("step 5 of 5, ")
    assert rollout.scorecard.metrics["game_steps"] == 5


def test_rewards_of_whole_episodes_stay_in_the_declared_range(scripted: Rollout) -> None:
    bounds = app.freeze().environments["crafter"].reward_range
    assert bounds is not None
    assert all(bounds[0] < step.reward < bounds[1] for step in scripted.trajectory.steps if step.reward is not None)


# What is seen


@pytest.mark.parametrize(("config", "side"), [({}, 144), ({"image_size": 18}, 18), ({"image_size": 200}, 200)])
def test_pictures_come_with_the_words_at_the_size_asked_for(config: dict[str, Any], side: int) -> None:
    rollout = play(body(config={"image": True, "length": 2, **config}))[0]
    for seen in (rollout.trajectory.initial, *(step.observation for step in rollout.trajectory.steps)):
        words, _ = seen
        (picture,) = images(seen)
        assert words.startswith("step ")
        assert Picture.open(io.BytesIO(picture.png)).size == (side, side)


def test_no_image_is_drawn_without_a_request() -> None:
    rollout = play(body(config={"image": True, "length": 2}, images=False))[0]
    assert not list(images(rollout.trajectory.initial))
    assert all(not list(images(step.observation)) for step in rollout.trajectory.steps)


@pytest.mark.parametrize("policy", ["random", "scripted"])
def test_pictures_change_nothing(policy: str) -> None:
    configs: list[dict[str, Any]] = [
        {},
        {"image": True},
        {"image": True, "image_size": 64},
        {"image": True, "image_size": 33},
    ]
    plain, *pictured = play(*(body(policy, config=config) for config in configs))
    assert plain.trajectory.length > 50
    words = [text_of(step.observation) for step in plain.trajectory.steps]
    for rollout in pictured:
        assert rollout.digest == plain.digest
        assert [text_of(step.observation) for step in rollout.trajectory.steps] == words
    assert play(body(policy, seed=SEED + 1))[0].digest != plain.digest


def test_info_has_neither_the_map_nor_the_position(scripted: Rollout) -> None:
    for step in scripted.trajectory.steps:
        assert set(step.info) == INFO
        assert all(type(value) is int or len(value) <= 22 for value in step.info.values())
        assert all(isinstance(part, str) for name in ("actions", "unlocked") for part in step.info[name])
        assert all(isinstance(part, float) for part in step.info["rewards"])


# Scores


def test_scores_and_metrics_of_an_episode_counted_by_hand(scripted: Rollout) -> None:
    game = CrafterGame(SEED)
    for step in scripted.trajectory.steps:
        for action in step.info["actions"]:
            game.step(action)
    assert game.over
    done = {name for name, count in game.achievements.items() if count}
    assert len(done) >= 6
    card = scripted.scorecard
    scores = {item.name: item.score for item in card.criteria}
    assert scores["first_unlock"] == card.events_score == len(done)
    assert scores["achievements"] == pytest.approx(len(done) / 22)
    assert scores["depth"] == pytest.approx(sum(DEPTHS[name] for name in done) / 76)
    assert card.outcome_score == pytest.approx((len(done) / 22 + sum(DEPTHS[name] for name in done) / 76) / 2)
    assert card.reward == scripted.trajectory.total_reward
    assert card.metrics["unique_achievements"] == len(done)
    assert card.metrics["game_steps"] == game.steps
    assert {name for name in ACHIEVEMENTS if card.metrics[f"achievement/{name}"] == 1.0} == done
    assert {name for name in ACHIEVEMENTS if card.metrics[f"achievement/{name}"] == 0.0} == set(ACHIEVEMENTS) - done
    assert f"achievements {len(done)} of 22: " in str(scripted.trajectory.steps[-1].observation)


def test_the_aggregate_is_the_papers_score() -> None:
    rollouts = play(*(body(policy, seed=SEED + n) for policy in ("random", "scripted") for n in range(3)))
    unlocked = [[name for step in one.trajectory.steps for name in step.info["unlocked"]] for one in rollouts]
    rates = success_rates(unlocked)
    told = Service(app).aggregate([one.row() for one in rollouts])["crafter"]
    lengths = [sum(len(step.info["actions"]) for step in one.trajectory.steps) for one in rollouts]
    assert told == {
        "score_percent": crafter_score(rates),
        "mean_reward": pytest.approx(sum(one.trajectory.total_reward for one in rollouts) / 6),
        "mean_length": pytest.approx(sum(lengths) / 6),
        "median_length": sum(sorted(lengths)[2:4]) / 2,
        "mean_achievements": pytest.approx(sum(map(len, unlocked)) / 6),
        **{f"success_percent/{name}": rate for name, rate in rates.items()},
    }
    assert len(set(rates.values())) > 2
    assert Service(app).aggregate([]) == {"crafter": {}}
    (spec,) = app.freeze().aggregates
    ((heading, figures),) = spec.published.items()
    assert heading == "random agent, 29784 episodes"
    assert list(figures) == list(told)


# Policies


def test_random_draws_one_game_action_a_call_uniformly() -> None:
    rollouts = play(*(body("random", seed=SEED + n) for n in range(20)))
    rng = derived_rng("policy", "crafter", "test", SEED, 0)
    drawn = [step.args["actions"] for step in rollouts[0].trajectory.steps]
    assert drawn == [[ACTIONS[rng.randrange(17)]] for _ in drawn]
    counts = Counter(step.args["actions"][0] for one in rollouts for step in one.trajectory.steps)
    total = sum(counts.values())
    assert set(counts) == set(ACTIONS)
    # chi-squared with 16 degrees of freedom; 39.3 is its 99.9 % point, and the draws are fixed
    assert sum((counts[name] - total / 17) ** 2 / (total / 17) for name in ACTIONS) < 39.3


def test_samples_of_one_seed_are_other_episodes_in_the_same_world() -> None:
    one, two = play(body("random"), body("random", sample=1))
    assert one.trajectory.initial == two.trajectory.initial
    assert one.digest != two.digest


def test_a_seed_outside_both_splits_is_refused() -> None:
    with pytest.raises(RequestError, match="train 0 .*999999; test 1000000 .*1009999"):
        play(body(seed=1_010_000))
