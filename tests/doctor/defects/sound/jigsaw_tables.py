"""Put the pieces of a puzzle into their slots."""

import random
from typing import Annotated

from pydantic import Field

from taskapp_kit import InvalidAction, Step, TaskApp, action

app = TaskApp("jigsaw-tables", description="A puzzle of four pieces.")
Number = Annotated[int, Field(ge=0, le=3)]


@app.environment("jigsaw", splits={"train": range(8)}, max_steps=24)
class Jigsaw:
    """Each piece shows the slot into which it fits."""

    def reset(self, seed: int) -> dict[str, list[int]]:
        self.slots = random.Random(seed).sample(range(4), 4)
        self.placed: dict[int, int] = {}
        return {"slot_of_piece": list(self.slots), "placed": []}

    def view(self) -> dict[str, list[int]]:
        return {"slot_of_piece": list(self.slots), "placed": sorted(self.placed.values())}

    @action
    def place(self, piece: Number, slot: Number) -> Step:
        """Put a piece into an empty slot."""
        if slot in self.placed or piece in self.placed.values():
            raise InvalidAction("The slot or the piece is taken.")
        self.placed[slot] = piece
        finished = all(self.placed.get(place) == number for number, place in enumerate(self.slots))
        return Step(self.view(), reward=0.25 * (self.slots[piece] == slot), terminated=finished)

    @action
    def remove(self, slot: Number) -> Step:
        """Take the piece out of a slot."""
        if slot not in self.placed:
            raise InvalidAction("The slot is empty.")
        piece = self.placed.pop(slot)
        return Step(self.view(), reward=-0.25 * (self.slots[piece] == slot))


@app.policy("gold")
def gold(observation: dict[str, list[int]]) -> dict[str, dict[str, int]]:
    """Place the next piece."""
    piece = min({0, 1, 2, 3} - set(observation["placed"]))
    return {"place": {"piece": piece, "slot": observation["slot_of_piece"][piece]}}
