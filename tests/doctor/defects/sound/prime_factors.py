"""Factor a number into primes."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number, same_items

app = TaskApp("prime-factors", description="Prime factors of small numbers.")


class Row(BaseModel):
    """One number."""

    number: int
    factors: Private[list[int]]


def factored(number: int) -> Row:
    """Return the row of a number."""
    factors, rest, divisor = [], number, 2
    while rest > 1:
        if rest % divisor:
            divisor += 1
        else:
            factors.append(divisor)
            rest //= divisor
    return Row(number=number, factors=factors)


app.tasks(
    "factors",
    row=Row,
    prompt="Write {number} as a product of primes. List every factor, separated by commas, as often as it appears.",
    train=[factored(number) for number in (12, 18, 40, 45, 63, 72, 98, 100)],
)


@app.rubric
def right_factors(answer_text: str, task: Row) -> Grade:
    """The factors are right."""
    return same_items(answer_text, [str(factor) for factor in task.factors], item=number)


@app.policy("gold")
def gold(task: Row) -> str:
    """List the factors."""
    return ", ".join(str(factor) for factor in task.factors)
