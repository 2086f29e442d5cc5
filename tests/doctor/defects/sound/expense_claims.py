"""File an expense claim for a business trip."""

import random
from typing import Annotated

from pydantic import Field

from taskapp_kit import Step, TaskApp, action

app = TaskApp("expense-claims", description="Claims for business trips.")


@app.environment("claim", splits={"train": range(10)}, max_steps=6)
class Claim:
    """File the sum of the receipts. A claim ends the visit."""

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.receipts = [rng.randint(5, 90) for _ in range(3)]
        return f"receipts: {' '.join(map(str, self.receipts))}"

    @action(sample=lambda rng: {"amount": rng.randint(15, 270)})
    def file(self, amount: Annotated[int, Field(ge=0, le=1000)]) -> Step:
        """File a claim for an amount in dollars."""
        right = amount == sum(self.receipts)
        return Step("filed: accepted" if right else "filed: rejected", reward=float(right), terminated=True)

    @action(noop={})
    def log_out(self) -> Step:
        """Log out without a claim, which ends the visit."""
        return Step("bye", terminated=True)


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, int]]:
    """File the sum."""
    return {"file": {"amount": sum(int(word) for word in observation.split()[1:])}}
