"""The app of the matrix: adder, Crafter and math, and an environment for each kind of failure."""

from __future__ import annotations

import random
import time
from typing import Any

from environments.crafter import app as crafter
from environments.math import app as math
from examples import adder
from taskapp_kit import Blend, InvalidAction, Step, TaskApp, Trajectory, action

app = TaskApp(
    "matrix", version="1.0.0", description="What clients are driven with.", reward=Blend(env=1.0, outcome=1.0)
)
PLAYED = "gold"
"""The policy of the episodes that clients repeat."""

app.environment("adder", splits={"train": range(100)}, max_steps=20)(adder.Adder)
app.environment("crafter", splits={"train": range(1000)}, max_turns=30)(crafter.Crafter)
app.environment("math", splits={"train": range(1000)}, max_turns=4)(math.Math)
app.rubric(weight=3, environment="adder")(adder.reached)
app.rubric(weight=1, environment="adder")(adder.brief)
app.rubric(environment="crafter")(crafter.achievements)
app.rubric(environment="crafter")(crafter.depth)
app.rubric(environment="math")(math.correct)
app.policy(PLAYED, environment="adder")(adder.threes)
app.policy(PLAYED, environment="crafter")(crafter.scripted)
app.policy(PLAYED, environment="math")(math.gold)


class Failing:
    """What the failing environments share: a first observation that nothing else has."""

    def reset(self, seed: int) -> str:
        """Names the environment and the seed."""
        return f"{type(self).__name__.lower()} seed {seed}"


@app.environment("raising", splits={"train": range(100)}, max_turns=4)
class Raising(Failing):
    """Raises."""

    @action
    def go(self) -> Step:
        """Go."""
        raise OSError("sentinel-detail")


@app.environment("judged", splits={"train": range(100)}, max_turns=4)
class Judged(Failing):
    """Is scored by a judge."""

    @action
    def go(self) -> Step:
        """Go."""
        return Step("gone", reward=1.0, terminated=True)


@app.environment("asking", splits={"train": range(100)}, max_turns=4)
class Asking(Failing):
    """Asks a model of its own."""

    def reset(self, seed: int, context: Any) -> str:
        """Names the environment and the seed."""
        self.context = context
        return super().reset(seed)

    @action
    def go(self) -> Step:
        """Go."""
        return Step(self.context.model("user").ask([{"role": "user", "content": "Where to?"}]).text)


@app.environment("hanging", splits={"train": range(100)}, max_turns=4, isolation="process", step_timeout_seconds=0.5)
class Hanging(Failing):
    """Takes longer than a step may."""

    @action
    def go(self) -> Step:
        """Go."""
        time.sleep(60)
        return Step("gone")


@app.environment("refusing", splits={"train": range(100)}, max_refusals=3)
class Refusing(Failing):
    """Refuses every action."""

    @action
    def go(self) -> Step:
        """Go."""
        raise InvalidAction("not this way")


@app.rubric(environment=("raising", "asking", "hanging", "refusing"))
def arrived(trajectory: Trajectory) -> float:
    """Something was done."""
    return float(any(step.refused is None for step in trajectory.steps))


@app.judge(environment="judged")
def kind(answer_text: str) -> str:
    """Was it kind?"""
    return answer_text or "nothing"


for name in ("raising", "judged", "asking", "hanging", "refusing"):

    @app.policy(PLAYED, environment=name)
    def go(observation: str, rng: random.Random) -> dict[str, Any]:
        """Goes."""
        return {"go": {}}
