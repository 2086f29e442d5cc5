"""Cook a soup at a camp fire."""

from typing import Literal

from taskapp_kit import InvalidAction, Step, TaskApp, action

app = TaskApp("camp-kitchens", description="Cooking in four stages.")
STAGES = ("gather wood", "boil water", "cook soup", "serve")
Stage = Literal["gather wood", "boil water", "cook soup", "serve"]
PLACES = ("lake", "river", "glacier", "spring", "creek", "pond", "well", "bay")


@app.environment("kitchen", splits={"train": range(8)}, max_steps=16)
class Kitchen:
    """Each stage needs the one before it, and earns a quarter once."""

    def reset(self, seed: int) -> str:
        self.reached = 0
        return f"You are at a {PLACES[seed % len(PLACES)]} and want soup."

    @action
    def do(self, stage: Stage) -> Step:
        """Do a stage of the work."""
        position = STAGES.index(stage)
        if position > self.reached:
            raise InvalidAction(f"before you {stage}, you must {STAGES[position - 1]}")
        first, self.reached = position == self.reached, max(self.reached, position + 1)
        return Step(f"done: {stage}", reward=0.25 * first, terminated=stage == "serve")


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, str]]:
    """Do the next stage."""
    done = observation.removeprefix("done: ")
    return {"do": {"stage": STAGES[STAGES.index(done) + 1] if done in STAGES else STAGES[0]}}
