"""A task app for the model `tiny`: each thing has a key, regardless of its state, which only trial and error reveals.

taskapp serve examples/rl/keys.py
taskapp train --local --config examples/rl/learn_tiny.toml

A policy reads a sentence such as "The lamp is wet." and answers with a key from a to h, four of which are used. A
random answer is right in 1 of 8 cases, the best constant answer in 1 of 4.

The seed is the combination of thing and state. The 72 seeds of the split `train` contain every thing and every state.
The 24 seeds of `test` are combinations that are not in `train`.
"""

from taskapp_kit import Step, TaskApp, action

KEYS = {"lamp": "c", "door": "b", "bell": "d", "coin": "c", "rope": "a", "book": "d", "drum": "b", "fish": "a"}
STATES = ("wet", "old", "red", "big", "new", "hot", "odd", "far", "shy", "raw", "dim", "low")
HELD_OUT = 3
"""How many states of each thing appear only in the test split, which contains every state of some thing."""

app = TaskApp("keys", version="1.0.0", description="Find the key of each thing.")


def combinations() -> list[tuple[str, str]]:
    """Return things with states, first for the training seeds, then for the test seeds."""
    train, test = [], []
    for number, thing in enumerate(KEYS):
        for place, state in enumerate(STATES):
            held_out = (place - HELD_OUT * number) % len(STATES) < HELD_OUT
            (test if held_out else train).append((thing, state))
    return train + test


COMBINATIONS = combinations()


@app.environment(
    "keys", splits={"train": range(72), "test": range(72, 96)}, max_steps=1, reward_range=(0, 1), prompt="Which key?"
)
class Keys:
    """Press the key of the thing."""

    def reset(self, seed: int) -> str:
        self.thing, state = COMBINATIONS[seed % len(COMBINATIONS)]
        return f"The {self.thing} is {state}."

    @action(text=True, noop={"key": ""})
    def press(self, key: str) -> Step:
        """Press a key."""
        right = key.strip() == KEYS[self.thing]
        return Step("Right." if right else "Wrong.", reward=float(right), terminated=True)
