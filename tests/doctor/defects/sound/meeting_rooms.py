"""Book a meeting room that is free."""

import random
from typing import Annotated, Literal

from pydantic import Field

from taskapp_kit import InvalidAction, Step, TaskApp, Trajectory, action

app = TaskApp("meeting-rooms", description="Bookings of meeting rooms.")


@app.environment("rooms", splits={"train": range(10)}, max_steps=3)
class Rooms:
    """One room is free at one hour."""

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.free = (rng.choice(["north", "south"]), rng.randint(9, 17))
        return f"All rooms are taken, except room {self.free[0]} at {self.free[1]}"

    @action
    def book(self, room: Literal["north", "south"], hour: Annotated[int, Field(ge=9, le=17)]) -> Step:
        """Book a room for an hour."""
        if (room, hour) != self.free:
            raise InvalidAction(f"Room {room} is taken at {hour}.")
        return Step(f"Room {room} is yours at {hour}.", terminated=True)

    @action(noop={})
    def leave(self) -> Step:
        """Leave without a room."""
        return Step("bye", terminated=True)


@app.rubric
def room_was_booked(trajectory: Trajectory) -> float:
    """A room was booked."""
    return float(any(not step.refused for step in trajectory.actions("book")))


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, str | int]]:
    """Book the free room."""
    words = observation.split()
    return {"book": {"room": words[-3], "hour": int(words[-1])}}
