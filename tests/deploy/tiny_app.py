"""A task app of one action that pays 1, for tests of how an app is served."""

from __future__ import annotations

from taskapp_kit import Step, TaskApp, action

app = TaskApp("tiny", version="1")


@app.environment("tiny", splits={"train": range(4)})
class Tiny:
    """Tiny."""

    def reset(self, seed: int) -> str:
        """Begins."""
        return "go"

    @action
    def go(self) -> Step:
        """Go."""
        return Step("gone", reward=1.0, terminated=True)
