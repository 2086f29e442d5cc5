"""Gymnasium's environments: a subclass with an action of its own, and spaces of several kinds."""

from taskapp_kit import TaskApp, action
from taskapp_kit.interop.gymnasium import from_gymnasium

app = TaskApp("walk", version="1.0.0")


@app.environment("walk", splits={"train": range(500)}, max_steps=12)
class Helpful(from_gymnasium("CliffWalking-v1")):  # type: ignore[misc]
    """Walk along the cliff; you may ask where you are."""

    @action
    def where(self) -> str:
        """Say row and column."""
        return "row {}, column {}".format(*divmod(int(self.env.unwrapped.s), 12))


app.environment("cartpole", splits={"train": range(500)}, max_steps=60)(from_gymnasium("CartPole-v1", noop=0))
app.environment("cards", splits={"train": range(500)})(
    from_gymnasium("Blackjack-v1", actions=["stick", "hit"], configurable={"natural": False, "sab": False})
)
app.environment("car", splits={"train": range(500)}, max_steps=15)(from_gymnasium("MountainCarContinuous-v0"))
