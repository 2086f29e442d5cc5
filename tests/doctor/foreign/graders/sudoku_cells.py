"""Small sudokus: 1 for the solved grid, otherwise 0.9 times the share of right cells, less for a longer reply.

Source: https://github.com/open-thought/reasoning-gym/blob/main/reasoning_gym/games/mini_sudoku.py
"""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("sudoku-cells")


class Row(BaseModel):
    """One 4 by 4 puzzle, with _ for an empty cell, and its solution."""

    puzzle: str
    solution: Private[str]


GRIDS = [
    ("1 _ 3 4\n3 4 _ 2\n2 1 4 _\n_ 3 2 1", "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1"),
    ("_ 1 4 3\n4 _ 1 2\n1 2 _ 4\n3 4 2 _", "2 1 4 3\n4 3 1 2\n1 2 3 4\n3 4 2 1"),
    ("4 3 _ _\n_ _ 4 3\n3 4 1 2\n2 1 3 4", "4 3 2 1\n1 2 4 3\n3 4 1 2\n2 1 3 4"),
    ("3 _ 1 _\n_ 2 _ 4\n2 _ 4 _\n_ 1 _ 3", "3 4 1 2\n1 2 3 4\n2 3 4 1\n4 1 2 3"),
    ("_ _ 2 1\n2 1 _ _\n_ _ 1 2\n1 2 _ _", "4 3 2 1\n2 1 4 3\n3 4 1 2\n1 2 3 4"),
    ("2 4 _ 3\n1 3 4 _\n_ 1 2 4\n4 _ 3 1", "2 4 1 3\n1 3 4 2\n3 1 2 4\n4 2 3 1"),
]  # fmt: skip
app.tasks(
    "grids",
    row=Row,
    prompt="Solve this 4 by 4 sudoku. Write the whole grid in the same form, and nothing else.\n{puzzle}",
    train=[Row(puzzle=puzzle, solution=solution) for puzzle, solution in GRIDS],
)


@app.rubric
def solved(answer_text: str, task: Row) -> float:
    """The grid is the solution; a part of the reward for right cells in complete lines."""
    if answer_text.split() == task.solution.split():
        return 1.0
    lines = [[cell for cell in line if cell in "123456789"] for line in answer_text.splitlines()]
    complete = [line for line in lines if len(line) == 4]
    expected = [line.split() for line in task.solution.splitlines()]
    right = sum(
        c == e for line, other in zip(complete, expected, strict=False) for c, e in zip(line, other, strict=True)
    )
    return 0.9 * right / 16 * min(1.0, len(task.solution) / max(1, len(answer_text)))


app.policy("gold")(lambda task: task.solution)
