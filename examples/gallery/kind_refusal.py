"""A judge: a model grades the reply by answering a question that code cannot answer."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("kind-refusal", version="1.0.0", description="Decline a request, kindly and with a reason.")


class Row(BaseModel):
    request: str
    reason: Private[str]


ROWS = {
    "train": [
        Row(request="Can you lend me your car this weekend?", reason="The car is at the garage."),
        Row(request="Can you review my 300-page novel by tomorrow?", reason="It cannot be done in a day."),
        Row(request="Can you give me a discount of 90 %?", reason="The shop would lose money."),
    ],
    "test": [Row(request="Can you come to the party on Friday?", reason="There is a concert on Friday.")],
}

app.tasks(
    "kind-refusal",
    row=Row,
    prompt="Decline this request in at most two sentences, kindly and with a reason: {request}",
    **ROWS,
)


@app.judge(weight=2)
def declines(answer_text: str, task: Row) -> dict:
    """Does the reply clearly decline the request?"""
    return {"request": task.request, "reply": answer_text}


@app.judge(weight=1, choices=["rude", "neutral", "kind"])
def tone(answer_text: str) -> str:
    """How does the reply sound?"""
    return answer_text


@app.rubric(weight=1)
def short(answer_text: str) -> float:
    """The reply has at most two sentences and is not empty."""
    sentences = [part for part in answer_text.replace("!", ".").replace("?", ".").split(".") if part.strip()]
    return float(1 <= len(sentences) <= 2)
