"""The reward of each turn at the gateway, from a task app's answer, for `credit = "turn"`.

A task app of this kit returns its events: which steps followed which call of the model. Of others only the steps are
known, so there each call has to be one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taskapp_kit.jobs.server.rewards import LARGEST
from taskapp_kit.train.turns import RecordedTurn

SAME = 1e-6
"""Difference, relative to a reward above 1, up to which it is the sum of the steps' rewards."""


class NoTurnRewards(ValueError):
    """The answer does not say what reward each turn got; the text gives the reason."""


def turn_rewards(
    answer: Mapping[str, Any], turns: Sequence[RecordedTurn], reward: float, weight: float | None
) -> tuple[float, ...]:
    """Return one reward for each turn; without a discount they add up to `reward`.

    A turn's is that of the steps that followed it. What the episode's reward has beside them, such as a judge's score, is
    the last turn's. Turns that the policy's client did not get, and those of other models, get 0.0. weight: of the steps'
    rewards in `reward`; None where only the task app knows, which is 1 if they add up. Raises NoTurnRewards.
    """
    trajectories = answer.get("trajectories")
    first = trajectories[0] if isinstance(trajectories, list) and trajectories else None
    if not isinstance(first, Mapping):
        raise NoTurnRewards("the answer has no trajectory")
    found = list(_of_events(first) or _of_steps(first))
    used = [index for index, turn in enumerate(turns) if turn.delivered and not turn.auxiliary]
    # Calls are matched by their number, in the order that both sides have: clients may change texts. Where an SDK drew a
    # second sample the numbers differ, and the rollout gets no credit per turn.
    if len(found) != len(used) or not used:
        raise NoTurnRewards(f"the answer has rewards of {len(found)} calls, and {len(used)} were answered")
    total = sum(found)
    if weight is None and abs(total - reward) > SAME * max(1.0, abs(reward)):
        raise NoTurnRewards(
            f"the rewards of the steps add up to {total:g}, and the episode's is {reward:g}: [judge.reward_blend] env has to "
            "say how much they count in it"
        )
    factor = 1.0 if weight is None else weight
    rewards = [0.0] * len(turns)
    for index, value in zip(used, found, strict=True):
        rewards[index] = factor * value
    rewards[used[-1]] += reward - factor * total
    return tuple(rewards)


def _of_events(trajectory: Mapping[str, Any]) -> list[float]:
    """The reward of each call, from the events; [] where there are none."""
    trace = trajectory.get("trace")
    events = trace.get("event_history") if isinstance(trace, Mapping) else None
    rewards: list[float] = []
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, Mapping):
            raise NoTurnRewards("an event of the answer is no object")
        if event.get("kind") == "answered" and not event.get("scripted"):
            rewards += [0.0] * _calls(event.get("answer"))
        elif event.get("kind") == "stepped" and rewards:
            step = event.get("step")
            rewards[-1] += _number(step.get("reward") if isinstance(step, Mapping) else None)
    return rewards


def _calls(answer: Any) -> int:
    """How often the model was called for one answer: an author's loop may call it several times before a step."""
    details = answer.get("details") if isinstance(answer, Mapping) else None
    earlier = details.get("earlier_calls") if isinstance(details, Mapping) else None
    return 1 + (len(earlier) if isinstance(earlier, list) else 0)


def _of_steps(trajectory: Mapping[str, Any]) -> Iterator[float]:
    steps = trajectory.get("steps")
    for step in steps if isinstance(steps, list) else ():
        yield _number(step.get("reward") if isinstance(step, Mapping) else None)


def _number(value: Any) -> float:
    """A step's reward; none adds nothing."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
        raise NoTurnRewards("the reward of a step is no number from -1e100 to 1e100")
    return float(value)
