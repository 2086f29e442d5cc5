"""Refund the order that a customer complains about."""

import random
from typing import Any

from taskapp_kit import Step, TaskApp, Trajectory, action

app = TaskApp("order-refunds", description="Refunds in a web shop.")
GOODS = ["kettle", "lamp", "chair", "mirror", "clock"]


@app.environment("shop", splits={"train": range(12)}, max_steps=4)
class Shop:
    """Find the order of the broken product, and refund it."""

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        orders = {f"A{number}": product for number, product in zip(rng.sample(range(100, 999), 5), GOODS, strict=True)}
        self.order, product = rng.choice(sorted(orders.items()))
        listed = ", ".join(f"{order} {product}" for order, product in orders.items())
        return f"My {product} is broken. Orders: {listed}"

    @action(sample=lambda rng: {"order": f"A{rng.randint(100, 999)}", "note": "broken"})
    def refund(self, order: str, note: str = "") -> Step:
        """Refund an order. The note is for the accountants."""
        return Step("The refund was sent.", terminated=True)

    def final_state(self) -> dict[str, Any]:
        return {"order": self.order}


@app.rubric
def refunded(trajectory: Trajectory) -> float:
    """The right order was refunded."""
    return float([step.args["order"] for step in trajectory.actions("refund")] == [trajectory.final_state["order"]])


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, str]]:
    """Refund the order of the broken product."""
    product, listed = observation.split()[1], observation.split("Orders: ")[1].split(", ")
    return {"refund": {"order": next(line.split()[0] for line in listed if line.endswith(product))}}
