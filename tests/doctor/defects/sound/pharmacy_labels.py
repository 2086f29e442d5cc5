"""Copy the medicine from a prescription."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("pharmacy-labels", description="Medicines in prescriptions.")


class Row(BaseModel):
    """One prescription."""

    prescription: str
    medicine: Private[str]


PRESCRIPTIONS = {
    "once a day with breakfast, predniSONE 5 mg": "prednisone", "hydrOXYzine 25 mg at night": "hydroxyzine",
    "celeBREX 100 mg twice a day": "celebrex", "two tablets of cloNIDine": "clonidine",
    "metFORMIN 500 mg with dinner": "metformin", "one tablet of losarTAN in the morning": "losartan",
}  # fmt: skip
app.tasks(
    "labels",
    row=Row,
    prompt="Write the name of the medicine in this prescription in lower case, and only the name: {prescription}",
    train=[Row(prescription=text, medicine=medicine) for text, medicine in PRESCRIPTIONS.items()],
)


@app.rubric
def right_medicine(answer_text: str, task: Row) -> Grade:
    """The name is right."""
    return equal_text(answer_text, task.medicine)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the name."""
    return task.medicine
