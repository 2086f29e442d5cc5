"""__app_title__: FrozenLake-v1 of Gymnasium, described as text, scored and served."""

from typing import Any

from taskapp_kit import TaskApp, Trajectory
from taskapp_kit.interop.gymnasium import from_gymnasium

app = TaskApp("__app_name__", version="0.1.0", description="Cross a frozen lake without falling into a hole.")

ACTIONS = ["left", "down", "right", "up"]  # names for the values 0 to 3


def describe(square: int, env: Any) -> str:
    """Return the observation as text instead of the number of the player's square.

    `square` is Gymnasium's observation. `env` is the Gymnasium environment, which contains the map.
    """
    rows = ["".join(letter.decode() for letter in row) for row in env.desc]
    row, column = divmod(square, len(rows[0]))
    here = {"S": "the start", "F": "ice", "H": "a hole", "G": "the goal"}[rows[row][column]]
    return f"You are at row {row}, column {column} of this lake, on {here}.\n" + "\n".join(rows)


# from_gymnasium returns a class, which app.environment declares like any other class. Gymnasium's time limit of 100
# steps truncates the episode. max_steps also counts rejected actions, which Gymnasium never receives.
app.environment(
    "__app_name__",
    splits={"train": range(1000), "test": range(1000, 1200)},
    max_steps=120,
    reward_range=(0.0, 1.0),
    baselines={"random": 0.1},  # if random play earns more, the rubric is wrong
)(
    from_gymnasium(
        "FrozenLake-v1",
        actions=ACTIONS,
        describe=describe,
        description=(
            "Take one step on the ice, from S to G and never onto H. The ice is slippery: you go where you meant to "
            "one time in three, else to the left or to the right of it."
        ),
        configurable={"is_slippery": True},  # callers can set it in env.config; other keywords are fixed
    )
)


@app.rubric
def arrived(trajectory: Trajectory) -> float:
    """The goal was reached."""
    return 1.0 if trajectory.total_reward == 1.0 else 0.0


# A metric is recorded, but does not affect the reward.
@app.metric
def squares_seen(trajectory: Trajectory) -> float:
    """How many different squares were stood on."""
    return float(len({trajectory.initial, *(step.observation for step in trajectory.steps)}))


# The best move on each square of the standard 4x4 lake; "." marks a hole or the goal.
BEST = "LUUU L.L. UDL. .RD."


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, str]]:
    """Move so that slipping is harmless: away from the holes rather than towards the goal."""
    words = observation.replace(",", "").split()
    row, column = int(words[words.index("row") + 1]), int(words[words.index("column") + 1])
    letter = BEST.split()[row][column]
    return {"step": {"action": next(name for name in ACTIONS if name[0] == letter.lower())}}
