"""One function call as Python text: the name and the arguments are compared after parsing.

Source: https://gorilla.cs.berkeley.edu/blogs/8_berkeley_function_calling_leaderboard.html
"""

import ast
from typing import Any

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("bfcl-call")
FUNCTIONS = "get_weather(city: str, days: int = 1), convert(amount: float, source: str, target: str), find_area(base: int, height: int)"


class Row(BaseModel):
    """One request, the function to call, and the values that each argument may have."""

    request: str
    function: Private[str]
    accepted: Private[dict[str, list[Any]]]


REQUESTS = [
    ("What will the weather be in Oslo tomorrow?", "get_weather", {"city": ["Oslo", "Oslo, Norway"], "days": [1, None]}),
    ("Show me three days of weather for Lima.", "get_weather", {"city": ["Lima", "Lima, Peru"], "days": [3]}),
    ("How many euros are 20 dollars?", "convert", {"amount": [20], "source": ["USD"], "target": ["EUR"]}),
    ("Convert 5.5 pounds sterling to yen.", "convert", {"amount": [5.5], "source": ["GBP"], "target": ["JPY"]}),
    ("What is the area of a triangle with base 4 and height 9?", "find_area", {"base": [4], "height": [9]}),
    ("A triangle is 7 wide and 3 high. How large is it?", "find_area", {"base": [7], "height": [3]}),
]  # fmt: skip
app.tasks("requests", row=Row, prompt=f"Functions: {FUNCTIONS}\n{{request}} Reply with one call, for example f(x=1).",
          train=[Row(request=request, function=name, accepted=accepted) for request, name, accepted in REQUESTS])  # fmt: skip


@app.rubric
def matches(answer_text: str, task: Row) -> float:
    """The call has the right name, and an accepted value for each argument; None among the values: it may be left out."""
    try:
        call = ast.parse(answer_text.strip(), mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        given = {item.arg: ast.literal_eval(item.value) for item in call.keywords}
    except (SyntaxError, ValueError, AssertionError, RecursionError):
        return 0.0
    known = set(given) <= set(task.accepted) and ast.unparse(call.func) == task.function
    return float(known and all(given.get(name) in values for name, values in task.accepted.items()))


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the call with the first accepted values."""
    values = {name: accepted[0] for name, accepted in task.accepted.items()}
    return f"{task.function}({', '.join(f'{name}={value!r}' for name, value in values.items())})"
