"""An agent loop of the author's, with calls before a step, words of its own, early ends and failures."""

import json
import random
from typing import Any, Literal

from taskapp_kit import Step, TaskApp, Trajectory, action

app = TaskApp("looped", version="0.0.1", system_prompt="Count.")


@app.environment("looped", splits={"train": range(500)}, max_steps=12)
class Looped:
    """Reach the target exactly."""

    def reset(self, seed: int) -> str:
        self.target, self.total = random.Random(seed).randint(5, 15), 0
        return f"target {self.target}, total 0"

    @action
    def add(self, amount: Literal[1, 2, 3]) -> Step:
        """Add `amount` to the total."""
        self.total += amount
        return Step(
            f"target {self.target}, total {self.total}",
            reward=float(self.total == self.target),
            terminated=self.total >= self.target,
        )


@app.rubric
def near(trajectory: Trajectory) -> float:
    """Share of the way."""
    seen = [step.observation for step in trajectory.steps if step.refused is None]
    target, total = (int(part.split()[1]) for part in (seen or [trajectory.initial])[-1].split(", "))
    return min(1.0, total / target)


@app.rollout
async def play_on(env: Any, model: Any, task: Any) -> None:
    """Asks for a plan first, then plays by calls; words end it early, and the word `raise` breaks it."""
    messages = [{"role": "user", "content": "Plan. " + env.observation}]
    plan = await model.chat(messages)
    messages += [{"role": "assistant", "content": plan.message.get("content") or "…"}]
    messages += [{"role": "user", "content": env.observation}]
    while not env.done:
        reply = await model.chat(messages, tools=env.tools, temperature=0.5)
        messages.append(reply.message)
        calls = reply.message.get("tool_calls") or []
        if not calls:
            if "raise" in (reply.message.get("content") or ""):
                raise RuntimeError("secret words of the author")
            return
        for call in calls:
            step = await env.step(call["function"]["name"], json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(step.observation)})
            if env.done:
                break
