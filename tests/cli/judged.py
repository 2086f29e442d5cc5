"""A rubric, and a judge that weighs something; the second environment asks a model itself."""

from typing import Any

from taskapp_kit import Step, TaskApp, action

app = TaskApp("judged", version="1.0.0")
app.tasks(
    "judged", prompt="{question}", train=[{"question": "Why does it rain?"}, {"question": "Why is the sky blue?"}]
)


@app.environment("talk", splits={"train": range(10)})
class Talk:
    """A model opens the talk."""

    def reset(self, context: Any) -> str:
        words = context.model("user").ask([{"role": "user", "content": "Begin."}]).message["content"]
        return f"They say: {words}"

    @action(text=True)
    def say(self, text: str) -> Step:
        """Say something."""
        return Step("Bye.", terminated=True)


@app.rubric(weight=1)
def short(answer_text: str) -> float:
    """Is it short?"""
    return 1.0 if len(answer_text) < 200 else 0.0


@app.judge(weight=1, choices=["rude", "plain", "polite"])
def polite(answer_text: str) -> str:
    """Is the answer polite?"""
    return answer_text
