"""Walk along a beach to a treasure."""

from typing import Literal

from taskapp_kit import Step, TaskApp, action

app = TaskApp("treasure-walks", description="A walk along a beach.")


@app.environment("beach", splits={"train": range(10)}, max_steps=40)
class Beach:
    """A detector shows the distance. A step closer is worth as much as a step back costs, the treasure is worth 1."""

    def reset(self, seed: int) -> str:
        self.offset = (7, -4, 8, -5, 9, -6, 4, -7, 5, -8)[seed % 10]
        return self.view()

    def view(self) -> str:
        return f"{abs(self.offset)} steps to the {'east' if self.offset > 0 else 'west'}"

    @action
    def walk(self, direction: Literal["east", "west"]) -> Step:
        """Walk a step."""
        before = abs(self.offset)
        self.offset += -1 if direction == "east" else 1
        found = self.offset == 0
        reward = 0.1 * (before - abs(self.offset)) + float(found)
        return Step("found" if found else self.view(), reward=reward, terminated=found)


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, str]]:
    """Walk towards the treasure."""
    return {"walk": {"direction": observation.rsplit(maxsplit=1)[-1]}}
