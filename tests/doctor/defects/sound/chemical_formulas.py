"""Write the formula or symbol of a substance."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("chemical-formulas", description="Formulas and symbols of substances.")


class Row(BaseModel):
    """One substance."""

    substance: str
    formula: Private[str]


FORMULAS = {
    "cobalt": "Co", "carbon monoxide": "CO", "hafnium": "Hf", "hydrogen fluoride": "HF", "nobelium": "No",
    "nitric oxide": "NO", "tin": "Sn", "osmium": "Os",
}  # fmt: skip
app.tasks(
    "formulas",
    row=Row,
    prompt="Write the symbol or formula of {substance}, and only that. Upper and lower case matter.",
    train=[Row(substance=name, formula=formula) for name, formula in FORMULAS.items()],
)


@app.rubric
def right_formula(answer_text: str, task: Row) -> Grade:
    """The formula is right."""
    return equal_text(answer_text, task.formula, ignore_case=False)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the formula."""
    return task.formula
