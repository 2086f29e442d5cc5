"""A Gymnasium environment: CartPole-v1, described as text."""

import random
from typing import Any

from taskapp_kit import TaskApp, Trajectory
from taskapp_kit.interop.gymnasium import from_gymnasium

app = TaskApp("balance", version="1.0.0", description="Keep a pole upright on a cart.")
STEPS = 50


def describe(state: Any, env: Any) -> str:
    """Return the four numbers as a sentence, rounded, so that a model and a policy read the same."""
    position, speed, angle, turning = (round(float(number), 2) for number in state)
    return f"cart at {position}, moving {speed}; pole at {angle} rad, turning {turning} rad per second"


app.environment("balance", splits={"train": range(1000), "test": range(1000, 1100)}, max_steps=STEPS)(
    from_gymnasium(
        "CartPole-v1",
        actions=["left", "right"],
        describe=describe,
        description="Push the cart for one moment. Positive angles lean to the right; the pole falls at 0.21 rad.",
    )
)


@app.rubric
def upright(trajectory: Trajectory) -> float:
    """The share of the fifty moments in which the pole stayed upright."""
    return trajectory.total_reward / STEPS


@app.policy("gold")
def push(observation: str, rng: random.Random) -> dict:
    """Push to the side to which the pole leans and turns."""
    angle, turning = observation.split("pole at ")[1].removesuffix(" rad per second").split(" rad, turning ")
    return {"step": {"action": "right" if float(angle) + float(turning) > 0 else "left"}}
