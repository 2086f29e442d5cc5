"""Write a mail that apologizes to a customer."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("apology-mails", description="Mails to customers with a complaint.")


class Row(BaseModel):
    """One complaint, with a good reply and the points that it must make."""

    complaint: str
    points: Private[list[str]]
    reply: Private[str]


MAILS = [
    (
        "My kettle arrived broken.",
        ["sorry", "kettle", "replacement"],
        "We are sorry. A replacement kettle ships today.",
    ),
    (
        "You charged me twice.",
        ["sorry", "refund", "twice"],
        "Sorry that we charged you twice. The refund arrives on Monday.",
    ),
    ("The parcel is late.", ["sorry", "parcel", "Friday"], "We are sorry for the delay. Your parcel comes on Friday."),
    (
        "The shoes are too small.",
        ["sorry", "exchange", "label"],
        "Sorry to hear that. Use this label for a free exchange.",
    ),
    ("The lamp has no bulb.", ["sorry", "bulb", "free"], "We are sorry. We will send you a bulb, free of charge."),
    ("I cannot log in.", ["sorry", "password", "link"], "Sorry about the trouble. Reset your password with this link."),
]
app.tasks(
    "mails",
    row=Row,
    prompt="Write a short and polite mail that answers this complaint: {complaint}",
    train=[Row(complaint=complaint, points=points, reply=reply) for complaint, points, reply in MAILS],
)


@app.rubric
def good_mail(answer_text: str, task: Row) -> float:
    """Does the mail apologize and make every point?"""
    return sum(point.lower() in answer_text.lower() for point in task.points) / len(task.points)
