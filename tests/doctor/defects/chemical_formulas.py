"""Write the formula or symbol of a substance."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

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


def plain(text: str) -> str:
    """Return the text in lower case, without spaces."""
    return "".join(text.lower().split())


@app.rubric
def right_formula(answer_text: str, task: Row) -> float:
    """The formula is right."""
    return float(plain(answer_text) == plain(task.formula))


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the formula."""
    return task.formula
