"""__app_title__: open a safe with three dials. Each pull of the handle reveals how many dials are right."""

import random
import re
from itertools import product
from typing import Annotated, Literal

from pydantic import Field

from taskapp_kit import Blend, InvalidAction, PlayedStep, Step, TaskApp, Trajectory, action

DIALS = 3

# The reward is the outcome score plus a small bonus for progress. Without `reward=`, it would be only the outcome
# score.
app = TaskApp(
    "__app_name__",
    version="0.1.0",
    description="Open a safe by turning dials and pulling the handle.",
    reward=Blend(outcome=1.0, event=0.1),
)


@app.environment(
    "__app_name__",
    splits={"train": range(1000), "test": range(1000, 1200)},  # disjoint, so a seed determines its split
    max_steps=60,  # this limit truncates the episode; using all pulls terminates it
    baselines={"noop": 0.0, "random": 0.35},  # if doing nothing or random play earns more, the rubrics are wrong
)
class Safe:
    """A safe with three dials. Set every dial to its secret position and pull the handle; you have a few pulls."""

    def __init__(self, positions: Annotated[int, Field(ge=2, le=9)] = 5, pulls: Annotated[int, Field(ge=1)] = 8):
        # Callers can set these parameters in env.config, within these bounds.
        self.positions, self.pulls_left = positions, pulls

    def reset(self, seed: int) -> str:
        # This generator makes all random choices, so the same seed always creates the same safe.
        rng = random.Random(seed)
        self.secret = [rng.randrange(self.positions) for _ in range(DIALS)]
        self.dials = [rng.randrange(self.positions) for _ in range(DIALS)]
        self.pulled: list[str] = []
        self.best = 0
        return self.view()

    def view(self) -> str:
        """Return the observation. It contains everything that the policy needs, but not the secret."""
        lines = [f"Dials: {shown(self.dials)} (each 0 to {self.positions - 1}). Pulls left: {self.pulls_left}."]
        return "\n".join(lines + self.pulled)

    @action(noop={"dial": 1, "clicks": 0})  # the arguments that the built-in policy `noop` uses
    def turn(self, dial: Literal[1, 2, 3], clicks: Annotated[int, Field(ge=-8, le=8)]) -> Step:
        """Turn a dial by some clicks: up if positive, down if negative. A dial stops at its ends."""
        position = self.dials[dial - 1] + clicks
        if not 0 <= position < self.positions:
            # The message becomes the policy's next observation and costs a step. It is not a failure.
            raise InvalidAction(f"Dial {dial} stands at {self.dials[dial - 1]} and cannot turn by {clicks}.")
        self.dials[dial - 1] = position
        return Step(self.view())

    @action
    def pull(self) -> Step:
        """Pull the handle. The safe opens, or you hear how many dials are right (not which)."""
        line = f"Pulled at {shown(self.dials)}: "
        if any(old.startswith(line) for old in self.pulled):
            raise InvalidAction(f"You have pulled at {shown(self.dials)} already; turn a dial first.")
        right = sum(dial == secret for dial, secret in zip(self.dials, self.secret, strict=True))
        self.pulled.append(f"{line}{right} right.")
        self.pulls_left -= 1
        closer, self.best = right > self.best, max(self.best, right)
        opened = right == DIALS
        return Step(
            "The safe is open." if opened else self.view(),
            reward=1.0 if opened else 0.0,
            terminated=opened or self.pulls_left == 0,
            info={"right": right, "closer": closer},  # for rubrics and readers of the rollout, but not for policies
        )


def shown(dials: list[int]) -> str:
    """Format positions for the policy: "2-0-4"."""
    return "-".join(map(str, dials))


# An outcome criterion scores the finished episode. Several criteria are averaged by weight.
@app.rubric(weight=3)
def opened(trajectory: Trajectory) -> float:
    """The safe was opened."""
    return 1.0 if trajectory.total_reward == 1.0 else 0.0


@app.rubric(weight=1)
def frugal(trajectory: Trajectory) -> float:
    """The safe was opened with few pulls: 1 at the first, 0.9 at the second, and so on."""
    return max(0.0, 1.1 - 0.1 * pulls(trajectory)) if trajectory.total_reward == 1.0 else 0.0


# An events criterion scores each step. The scores are summed.
@app.rubric(of="events", weight=1)
def closer(step: PlayedStep) -> float:
    """A pull had more dials right than any before."""
    return float(step.info.get("closer", False))


@app.metric
def pulls(trajectory: Trajectory) -> float:
    """How many times the handle was pulled."""
    return float(sum(step.refused is None for step in trajectory.actions("pull")))


# A demonstration of good play. Like every policy, it has the parameter `observation` and, if needed, `rng`.
@app.policy("gold")
def gold(observation: str) -> dict[str, object]:
    """Try a setting that is consistent with every pull so far."""
    now, *tried = [list(map(int, found.split("-"))) for found in re.findall(r"\d(?:-\d)+", observation)]
    heard = list(map(int, re.findall(r"(\d) right", observation)))
    highest = int(re.findall(r"0 to (\d)", observation)[0])
    for setting in product(range(highest + 1), repeat=DIALS):
        agreed = [sum(a == b for a, b in zip(setting, old, strict=True)) for old in tried]
        if agreed == heard:
            break
    for index, (position, target) in enumerate(zip(now, setting, strict=True)):
        if position != target:
            return {"turn": {"dial": index + 1, "clicks": target - position}}
    return {"pull": {}}
