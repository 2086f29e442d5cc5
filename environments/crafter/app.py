"""Crafter: survive, gather, craft and explore in a small open world; 22 achievements.

The game is from the `crafter` package by Danijar Hafner, "Benchmarking the Spectrum of Agent Capabilities" (2021).
README.md in this directory describes observations, actions, rewards and the end of an episode.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean, median
from typing import Annotated, Any

from pydantic import Field

from taskapp_kit import Blend, Image, PlayedStep, RolloutSummary, Step, TaskApp, Text, Trajectory, action
from taskapp_kit.errors import Unavailable

from . import published
from .names import ACHIEVEMENTS, ACTIONS, DEFAULT_LENGTH, KEYS, MAX_ACTIONS_PER_CALL, ActionName
from .score import crafter_score, ladder, success_rates, unlocked_share
from .scripted import scripted

app = TaskApp(
    "crafter",
    version="1.0.0",
    description="Survive, gather, craft and explore in a small open world; 22 achievements.",
    reward=Blend(env=1.0),
)

Actions = Annotated[list[ActionName], Field(min_length=1, max_length=MAX_ACTIONS_PER_CALL)]


@app.environment(
    "crafter",
    splits={"train": range(1_000_000), "test": range(1_000_000, 1_010_000)},
    max_steps="length",  # a valid call plays at least one game step, so only refused calls can reach this limit
    reward_range=(-1.0, MAX_ACTIONS_PER_CALL + 1.0),  # at most 1.0 per action, and 0.9 for health
    tags=("survival", "multi-turn", "images"),
)
class Crafter:
    """You play Crafter. Stay alive and unlock as many of the 22 achievements as you can, each one once.

    You see the 9 by 7 cells around you, your vitals and what you carry. `do` acts on the cell that you face: it
    gathers, drinks, eats and fights. A move turns you first; it walks only onto grass, sand or a path. Tables,
    furnaces and tools need what they are made of, and tools need a table (iron tools a furnace too) within one cell
    of you.
    """

    def __init__(
        self,
        length: Annotated[int, Field(ge=1, le=DEFAULT_LENGTH)] = DEFAULT_LENGTH,
        image: bool = False,
        image_size: Annotated[int, Field(ge=18, le=1024)] = 144,
    ) -> None:
        self.length = length
        self.image = image
        self.image_size = image_size

    @classmethod
    def setup_worker(cls) -> None:
        """Load the game once per process, and compiles its world generation."""
        _rules().warm_up()

    def reset(self, seed: int, context: Any = None) -> str | list[Text | Image]:
        """Create the world of the seed. Without a context (plain Python, no server) images are rendered."""
        self.draw = self.image and (context is None or context.wants_images)
        self.game = _rules().CrafterGame(seed, length=self.length)
        return self._see()

    @action(noop={"actions": ["noop"]}, keys={key: {"actions": [name]} for key, name in KEYS.items()})
    def interact(self, actions: Actions) -> Step:
        """Do 1 to 8 actions in order. Doing stops when the episode ends; your reward is the sum over what was done."""
        done = self.game.interact(actions)
        return Step(
            observation=self._see(),
            reward=done.reward,
            terminated=done.terminated,
            truncated=done.truncated,
            info={
                "actions": list(done.actions),
                "rewards": list(done.rewards),
                "unlocked": list(done.unlocked),
                "game_step": done.step,
            },
        )

    def _see(self) -> str | list[Text | Image]:
        text: str = self.game.observe()
        return [Text(text), Image(self.game.render(self.image_size))] if self.draw else text


def _rules() -> Any:
    """Return the game itself, loaded at first use, because its packages are an extra."""
    try:
        from . import rules
    except ImportError as error:
        raise Unavailable(
            f"environment 'crafter' needs the package {error.name}, which is not installed here; install the extra "
            "that has it: pip install 'taskapp-kit[crafter]'."
        ) from error
    return rules


def unlocked(trajectory: Trajectory) -> list[str]:
    """Return the achievements of an episode, in the order in which they were unlocked."""
    return [name for step in trajectory.steps for name in step.info.get("unlocked", ())]


@app.rubric(of="events", weight=1.0)
def first_unlock(step: PlayedStep) -> float:
    """An achievement was unlocked for the first time in the episode; one point each."""
    return float(len(step.info.get("unlocked", ())))


@app.rubric(weight=1.0)
def achievements(trajectory: Trajectory) -> float:
    """Share of the 22 achievements that were unlocked."""
    return unlocked_share(unlocked(trajectory))


@app.rubric(weight=1.0)
def depth(trajectory: Trajectory) -> float:
    """How far up the ladder of tools: each achievement weighs the length of the chain of others that it needs."""
    return ladder(unlocked(trajectory))


@app.metric
def progress(trajectory: Trajectory) -> dict[str, float]:
    """Game steps, unique achievements, and 1 or 0 for each achievement by name."""
    names = set(unlocked(trajectory))
    game_steps = sum(len(step.info.get("actions", ())) for step in trajectory.steps)  # a refused call has none
    return {
        "game_steps": float(game_steps),
        "unique_achievements": float(len(names)),
        **{f"achievement/{name}": float(name in names) for name in ACHIEVEMENTS},
    }


@app.aggregate(name="crafter", published={f"random agent, {published.EPISODES} episodes": published.RANDOM_AGENT})
def paper_score(rollouts: Sequence[RolloutSummary]) -> dict[str, float]:
    """The Crafter score (percent), mean return, length in game steps, and each achievement's success rate (percent)."""
    if not rollouts:
        return {}
    rates = success_rates([name for name in ACHIEVEMENTS if item.metrics[f"achievement/{name}"]] for item in rollouts)
    lengths = [item.metrics["game_steps"] for item in rollouts]
    return {
        "score_percent": crafter_score(rates),
        "mean_reward": fmean(item.total_reward for item in rollouts),
        "mean_length": fmean(lengths),
        "median_length": median(lengths),
        "mean_achievements": fmean(item.metrics["unique_achievements"] for item in rollouts),
        **{f"success_percent/{name}": rate for name, rate in rates.items()},
    }


app.policy("scripted")(scripted)


@app.policy("random")
def published_random(rng: random.Random) -> dict[str, dict[str, list[str]]]:
    """One uniformly drawn game action a call: the random agent of the paper."""
    return {"interact": {"actions": [ACTIONS[rng.randrange(len(ACTIONS))]]}}
