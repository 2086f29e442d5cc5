"""What an author can declare, an environment for each: shapes of observations, refusals, ends, pictures, failures."""

import asyncio
import os
import random
import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from taskapp_kit import Blend, Image, InvalidAction, PlayedStep, Private, Step, TaskApp, Text, Trajectory, action

app = TaskApp("features", version="1.2.0", description="One of each.", reward=Blend(env=0.25, event=0.5, outcome=1.0))


@app.environment("visit", splits={"train": range(500), "test": range(500, 600)}, max_steps=6, tags=["clinic"])
class Visit:
    """Book a free hour.

    Only some hours are free:
      - they are listed;
      - leaving is allowed.
    """

    def __init__(self, hours: Annotated[int, Field(ge=1, le=8)] = 3, closed_days: int = 0):
        if closed_days > 6:
            raise ValueError("closed_days is at most 6")
        self.hours = hours

    async def reset(self, context: Any, split: str) -> dict[str, Any]:
        self.free = sorted(context.rng.sample(range(9, 17), self.hours))
        self.booked: list[int] = []
        return {"free": list(self.free), "patient": context.rng.choice(("Ana", "Bén", "Eva\n")), "split": split}

    def actions(self) -> list[str]:
        return ["book", "leave", "wait"] if self.hours < 8 else ["book", "leave"]

    @action
    def book(self, hour: Annotated[int, Field(ge=9, le=16)], urgent: bool | None = None) -> Step:
        """Book an hour."""
        self.booked.append(hour)
        free = hour in self.free
        return Step(
            {"booked": hour, "share": hour / 7},
            reward=1 / 3 if free else -0.1,
            terminated=free,
            info={"urgent": urgent, "distance": min(abs(hour - other) for other in self.free) * 1e-7},
            metrics={"bookings": 1, "late": hour / 16},
        )

    @action(noop={})
    async def wait(self) -> Step:
        """Wait for a moment."""
        await asyncio.sleep(0)
        return Step({"waiting": True}, reward=None)

    @action
    def leave(self) -> Step:
        """Go without booking."""
        return Step("bye", terminated=True)

    def final_state(self) -> dict[str, Any]:
        return {"booked": self.booked, "free": self.free}


@app.rubric(weight=2, environment="visit")
def free_hour(trajectory: Trajectory) -> float:
    """The hour that was booked was free."""
    state = trajectory.final_state
    return float(bool(state["booked"]) and state["booked"][-1] in state["free"])


@app.rubric(weight=0.5, scale=(-10, 10), environment="visit")
def early(trajectory: Trajectory, config: dict[str, Any]) -> float | None:
    """It is early in the day; does not apply without a booking."""
    booked = trajectory.final_state["booked"]
    return 10 - booked[-1] * 1.1 - config.get("closed_days", 0) if booked else None


@app.rubric(of="events", weight=0.1)
def accepted(step: PlayedStep) -> float | None:
    """Steps that were accepted; one that was refused does not apply."""
    return None if step.refused else 1.0


@app.metric
def tools_used(trajectory: Trajectory) -> dict[str, float]:
    """How many different tools, and how many steps."""
    return {"tools_used": float(len({step.tool for step in trajectory.steps})), "steps_seen": trajectory.length}


WORDS = ("moss", "fern", "reed", "pine")


@app.environment("words", splits={"train": range(500)}, max_turns=8, max_refusals=3, prompt="Guess a word.\nBe brief.")
class Word:
    """Guess a word of four letters."""

    def reset(self, seed: int) -> str:
        self.word = random.Random(seed).choice(WORDS)
        return "four letters"

    @action(sample=lambda rng: {"word": rng.choice((*WORDS, "tree"))}, noop={"word": "moss"})
    def guess(self, word: str) -> Step:
        """Guess."""
        if word == "quit":
            raise InvalidAction("That ends it.", end=True)
        if word not in WORDS:
            raise InvalidAction(f"{word} is not in the word list")
        return Step("yes" if word == self.word else "no", reward=float(word == self.word), terminated=word == self.word)

    @action(text=True, sample=lambda rng: "a hint, please")
    def say(self, text: str) -> str:
        """Say something."""
        return f"you said {len(text.split())} words"


class Place(BaseModel):
    """Where to draw: nested arguments."""

    x: Annotated[int, Field(ge=0, le=3)]
    y: Annotated[int, Field(ge=0, le=3)]


class Pixels:
    """As numpy would give them: height, width, 3."""

    dtype = "uint8"

    def __init__(self, cells: list[tuple[int, int]]) -> None:
        self.shape = (4, 4, 3)
        self.data = bytes(200 if (x, y) in cells else 30 * c for y in range(4) for x in range(4) for c in range(3))

    def copy(self) -> "Pixels":
        return self

    def tobytes(self) -> bytes:
        return self.data


@app.environment("gallery", splits={"train": range(500)}, max_steps=5)
class Gallery:
    """Draw four squares."""

    def __init__(self, image: bool = False) -> None:
        self.image = image

    def reset(self, seed: int) -> Any:
        self.cells = [divmod(seed % 16, 4)]
        return self.view("an empty wall")

    def view(self, words: str) -> Any:
        return [Text(words), Image(Pixels(self.cells)), Text("that was all")] if self.image else [Text(words)]

    @action
    def draw(
        self, places: Annotated[list[Place], Field(min_length=1, max_length=3)], ink: Literal["a", "b"] = "a"
    ) -> Step:
        """Draw squares."""
        self.cells += [(place.x, place.y) for place in places]
        return Step(self.view(f"{len(set(self.cells))} squares in {ink}"), reward=0.1 * len(places))

    @action
    def step_back(self, far: float | int | None = None) -> Step:
        """Look from afar; the wall is truncated after that."""
        return Step(self.view(f"from {far!r}"), truncated=True)


@app.environment("counter", splits={"train": range(500)}, max_steps="length", reward_range=(-1.0, 1.0))
class Counter:
    """Count up; there is one action, declared by `step`."""

    def __init__(self, length: Annotated[int, Field(ge=1, le=50)] = 7) -> None:
        self.count = 0

    def reset(self, seed: int) -> str:
        return f"begin at {seed % 3}"

    def step(self, action: Annotated[int, Field(ge=-2, le=2)]) -> Step:
        """Add to the count."""
        self.count += action
        return Step(str(self.count), reward=action / 2)


@app.environment("endless", splits={"train": range(500)})
class Endless:
    """Nothing ends here but by the default limit."""

    def reset(self) -> str:
        return "here we are"

    @action(noop={})
    def stay(self) -> str:
        """Stay."""
        return "still here"


FAILURES = (
    "none", "reset_raises", "reset_step", "step_raises", "observation_nan", "reward_nan", "reward_range", "shared",
    "flag", "info", "final_state", "criterion", "measure", "close", "scale", "hang", "policy",
)  # fmt: skip


@app.environment("failing", splits={"train": range(500)}, max_steps=4, reward_range=(0.0, 1.0))
class Failing:
    """Breaks where `where` says, at its second step unless it is elsewhere."""

    def __init__(self, where: Literal[FAILURES] = "none") -> None:  # type: ignore[valid-type]
        self.where, self.steps = where, 0
        self.same: dict[str, Any] = {"same": "object"}

    def reset(self, seed: int) -> Any:
        if self.where == "reset_raises":
            raise RuntimeError("secret words of the author")
        return Step("a step") if self.where == "reset_step" else f"ready {seed}"

    @action(noop={})
    async def go(self) -> Any:
        """Go on."""
        self.steps += 1
        if self.steps == 2:
            if self.where == "step_raises":
                raise RuntimeError("secret words of the author")
            if self.where == "hang":
                await asyncio.sleep(600)
            broken = {
                "observation_nan": {"result": float("nan")},
                "reward_nan": Step("", reward=float("nan")),
                "reward_range": Step("", reward=2.0),
                "flag": Step("", terminated="yes"),  # type: ignore[arg-type]
                "info": Step("", info={"object": object()}),
            }
            if self.where in broken:
                return broken[self.where]
        return self.same if self.where == "shared" else f"step {self.steps}"

    def final_state(self) -> Any:
        return {"object": object()} if self.where == "final_state" else {"where": self.where}

    def close(self) -> None:
        if self.where == "close":
            raise RuntimeError("secret words of the author")


@app.rubric(environment="failing")
def done(trajectory: Trajectory) -> float:
    """Raises, or leaves its scale, where it is to."""
    where = trajectory.final_state["where"]
    if where == "criterion":
        raise RuntimeError("secret words of the author")
    return 7.0 if where == "scale" else trajectory.length / 4


@app.rubric(weight=0, environment="failing")
def measured(trajectory: Trajectory) -> float:
    """A criterion that only measures may break."""
    if trajectory.final_state["where"] == "measure":
        raise RuntimeError("secret words of the author")
    return 1.0


@app.environment(
    "apart", splits={"train": range(500)}, max_steps=3, isolation="process", step_timeout_seconds=2, max_refusals=None
)
class Apart:
    """In a process of its own, which may exit or hang."""

    def __init__(self, where: Literal["none", "exit", "hang"] = "none") -> None:
        self.where = where

    def reset(self, seed: int) -> str:
        return f"apart {seed}"

    @action(noop={})
    def go(self) -> Step:
        """Go on."""
        if self.where == "exit":
            os._exit(3)
        if self.where == "hang":
            time.sleep(60)
        return Step("gone", reward=0.5)


class Row(BaseModel):
    """A question; the answer is private."""

    question: str
    answer: Private[str]
    difficulty: str = "easy"
    tags: list[str] = []


ROWS = [
    Row(question=f"{a} x {b}?", answer=str(a * b), difficulty="hard" if a * b > 30 else "easy", tags=[f"by{b}"])
    for a in range(2, 9)
    for b in range(2, 9)
]
app.tasks(
    "sums", row=Row, prompt="{question} A number only.", max_turns=3, rows=ROWS, train=range(40), test=range(40, 49)
)


@app.rubric(weight=3, required=True, environment="sums")
def right(answer_text: str, task: Row) -> float:
    """The number is right."""
    return float(answer_text.strip() == task.answer)


@app.rubric(weight=1, environment="sums")
def brief(answer_text: str) -> float:
    """Few letters were written."""
    return max(0.0, 1 - len(answer_text) / 40)


@app.policy("gold")
def gold(task: Row | None, observation: Any) -> Any:
    """Knows the answer of a row; elsewhere plays a fixed first action."""
    if task is not None:
        return task.answer
    if isinstance(observation, dict) and "free" in observation:
        return {"book": {"hour": observation["free"][0]}}
    raise RuntimeError("secret words of the author")


@app.policy("wild")
def wild(observation: Any, rng: random.Random) -> Any:
    """Words, a call, several calls, or what nobody can do."""
    return rng.choice(
        (
            "some words",
            {"guess": {"word": rng.choice(WORDS)}},
            [{"go": {}}, {"guess": {"word": "fern"}}, {"guess": {"word": "tree"}}],
            {"nothing_like_it": {"x": rng.random()}},
            {"book": {"hour": str(rng.randint(9, 16))}},
        )
    )
