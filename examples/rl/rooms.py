"""The task in keys.py with more options: several rooms in one episode, levels of difficulty, actions that take time.

taskapp serve examples/rl/rooms.py

The model `tiny` can learn this task, like the task in keys.py. `python examples/rl/loops.py` trains on this task to
compare the loops in docs/train/loops.md with the plain loop.
"""

import asyncio
from typing import Literal

from taskapp_kit import Step, TaskApp, action

KEYS = {"lamp": "c", "door": "b", "bell": "d", "coin": "c", "rope": "a", "book": "d", "drum": "b", "fish": "a"}
STATES = ("wet", "old", "red", "big", "new", "hot", "odd", "far", "shy", "raw", "dim", "low")
THINGS = {"easy": 2, "medium": 4, "hard": 8}
"""Number of different things by difficulty."""
HELD_OUT = 3
"""How many states of each thing appear only in the test split, which contains every state of some thing."""
NEXT_ROOM = 29
"""Offset between the tasks of adjacent rooms. It changes both the thing and the state."""

app = TaskApp("rooms", version="1.0.0", description="Find the key of the thing in each room.")


def tasks(difficulty: str, held_out: bool) -> list[tuple[str, str]]:
    """Return the things with states of one split."""
    return [
        (thing, state)
        for place, state in enumerate(STATES)
        for number, thing in enumerate(list(KEYS)[: THINGS[difficulty]])
        if ((place - HELD_OUT * number) % len(STATES) < HELD_OUT) == held_out
    ]


@app.environment("rooms", splits={"train": range(72), "test": range(72, 96)}, max_steps=8, prompt="Which key?")
class Rooms:
    """Press the key of the thing, in each room."""

    def __init__(
        self, rooms: int = 1, difficulty: Literal["easy", "medium", "hard"] = "hard", seconds: float = 0.0
    ) -> None:
        self.rooms, self.difficulty, self.seconds = rooms, difficulty, seconds

    def reset(self, seed: int) -> str:
        there = tasks(self.difficulty, seed >= 72)
        self.left = [there[(seed + NEXT_ROOM * room) % len(there)] for room in range(self.rooms)]
        return self._shown()

    def _shown(self) -> str:
        thing, state = self.left[0]
        return f"The {thing} is {state}."

    @action(text=True, noop={"key": ""})
    async def press(self, key: str) -> Step:
        """Press a key."""
        await asyncio.sleep(self.seconds)
        thing, _ = self.left.pop(0)
        reward = float(key.strip() == KEYS[thing])
        return Step(self._shown() if self.left else "The end.", reward=reward, terminated=not self.left)
