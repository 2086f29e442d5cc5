"""Computes the reward of each turn at the gateway from a task app's response, for `credit = "turn"`.

A task app of this kit returns events, which show the steps after each model call. Other task apps only return steps, so
each model call must correspond to one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taskapp_kit.jobs.server.rewards import LARGEST
from taskapp_kit.train.turns import RecordedTurn

SAME = 1e-6
"""The accepted difference between an episode's reward and the sum of its steps' rewards, relative for rewards above 1."""


class NoTurnRewards(ValueError):
    """The response does not contain the reward of each turn. The message states the reason."""


def turn_rewards(
    answer: Mapping[str, Any], turns: Sequence[RecordedTurn], reward: float, weight: float | None
) -> tuple[float, ...]:
    """Return one reward for each turn. The sum of the rewards is `reward`.

    The reward of a turn is the reward of the steps that follow it. The rest of the episode's reward, such as a judge's
    score, is added to the last turn. Undelivered turns and turns of other models have the reward 0.0.

    Args:
        answer: The task app's response.
        turns: The recorded turns.
        reward: The episode's reward.
        weight: The factor of the steps' rewards in `reward`. If it is None (unknown), the steps' rewards must add up to
            `reward`.

    Raises:
        NoTurnRewards: The response does not contain the reward of each turn.
    """
    trajectories = answer.get("trajectories")
    first = trajectories[0] if isinstance(trajectories, list) and trajectories else None
    if not isinstance(first, Mapping):
        raise NoTurnRewards("the response has no trajectory")
    values = list(_of_events(first) or _of_steps(first))
    used = [index for index, turn in enumerate(turns) if turn.delivered and not turn.auxiliary]
    # Calls are matched by their order, because clients may change their text. If an SDK requested a second sample, the
    # numbers of calls differ, and the rollout has no credit per turn.
    if len(values) != len(used) or not used:
        raise NoTurnRewards(f"the response has rewards for {len(values)} model calls, but the policy made {len(used)}")
    total = sum(values)
    if weight is None and abs(total - reward) > SAME * max(1.0, abs(reward)):
        raise NoTurnRewards(
            f"the rewards of the steps add up to {total:g}, but the episode's reward is {reward:g}. Set their weight in "
            "[judge.reward_blend] env"
        )
    factor = 1.0 if weight is None else weight
    rewards = [0.0] * len(turns)
    for index, value in zip(used, values, strict=True):
        rewards[index] = factor * value
    rewards[used[-1]] += reward - factor * total
    return tuple(rewards)


def _of_events(trajectory: Mapping[str, Any]) -> list[float]:
    """Return the reward of each model call according to the events, or [] if the response contains no events."""
    trace = trajectory.get("trace")
    events = trace.get("event_history") if isinstance(trace, Mapping) else None
    rewards: list[float] = []
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, Mapping):
            raise NoTurnRewards("an event in the response is not a JSON object")
        if event.get("kind") == "answered" and not event.get("scripted"):
            rewards += [0.0] * _calls(event.get("answer"))
        elif event.get("kind") == "stepped" and rewards:
            step = event.get("step")
            rewards[-1] += _number(step.get("reward") if isinstance(step, Mapping) else None)
    return rewards


def _calls(answer: Any) -> int:
    """Return the number of model calls for one turn. An author's rollout function may make several calls per turn."""
    details = answer.get("details") if isinstance(answer, Mapping) else None
    earlier = details.get("earlier_calls") if isinstance(details, Mapping) else None
    return 1 + (len(earlier) if isinstance(earlier, list) else 0)


def _of_steps(trajectory: Mapping[str, Any]) -> Iterator[float]:
    steps = trajectory.get("steps")
    for step in steps if isinstance(steps, list) else ():
        yield _number(step.get("reward") if isinstance(step, Mapping) else None)


def _number(value: Any) -> float:
    """Return a step's reward, which is 0.0 for null."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
        raise NoTurnRewards("the reward of a step is not a number from -1e100 to 1e100")
    return float(value)
