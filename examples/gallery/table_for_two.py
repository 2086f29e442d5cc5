"""A simulated user: a guest who wants a table. A model plays the guest, or a script if no model is configured."""

import random
from typing import Any, Literal

from taskapp_kit import Step, TaskApp, Trajectory, Unavailable, action

app = TaskApp("table-for-two", version="1.0.0", description="Find out what a guest wants, and book it.")


@app.environment("booking", splits={"train": range(500), "test": range(500, 550)}, max_steps=8, models=("user",))
class Booking:
    """You take bookings for a restaurant. Ask the guest for the hour and the number of people, then book."""

    def reset(self, seed: int, context: Any) -> str:
        rng = random.Random(seed)
        self.hour, self.people = rng.randint(17, 22), rng.randint(2, 8)
        self.model = context.model("user")
        persona = f"You call a restaurant: you want a table for {self.people} people at {self.hour}:00. Be brief."
        self.messages = [{"role": "system", "content": persona}]
        return f"Guest: {self.guest('Good evening, how can I help you?')}"

    def guest(self, question: str) -> str:
        """Return the guest's reply. The script replies if no model is configured. If a model fails, so does the rollout."""
        if self.model is not None:
            self.messages.append({"role": "user", "content": question})
            try:
                self.messages.append(self.model.ask(self.messages, temperature=0).message)
            except Unavailable:
                self.model = None
            else:
                return str(self.messages[-1]["content"])
        wanted = [f"{self.hour} o'clock"] * ("hour" in question or "time" in question)
        return " and ".join(wanted + [f"{self.people} people"] * ("people" in question)) or "I would like a table."

    @action(noop={"question": "Hello?"}, sample=lambda rng: {"question": "What time?"})
    def ask(self, question: str) -> str:
        """Ask the guest something."""
        return f"Guest: {self.guest(question)}"

    @action
    def book(self, hour: Literal[17, 18, 19, 20, 21, 22], people: Literal[2, 3, 4, 5, 6, 7, 8]) -> Step:
        """Book a table. This ends the call."""
        right = (hour, people) == (self.hour, self.people)
        return Step("Guest: Thank you, goodbye.", reward=float(right), terminated=True)


@app.rubric
def booked_as_wanted(trajectory: Trajectory) -> float:
    """The hour and the number of people are what the guest wanted."""
    return trajectory.total_reward


@app.policy("gold")
def clerk(observation: str, rng: random.Random) -> dict:
    """Ask for both at once, then book."""
    numbers = [int(word) for word in observation.split() if word.isdigit()]
    if len(numbers) < 2:
        return {"ask": {"question": "At what time, and for how many people?"}}
    return {"book": {"hour": numbers[0], "people": numbers[1]}}
