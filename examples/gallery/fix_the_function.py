"""Code with tests: repair a function, which hidden tests call in the sandbox."""

import json

from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, Trajectory, action
from taskapp_kit.sandbox import Sandbox, SandboxLimits

app = TaskApp("fix-the-function", version="1.0.0", description="Repair a Python function.")


class Row(BaseModel):
    task: str
    code: str
    arguments: Private[list[list]]
    expected: Private[list]
    fixed: Private[str]


ROWS = [
    Row(task="f(words) returns the longest word, the first of several.",
        code="def f(words):\n    return sorted(words, key=len)[-1]",
        arguments=[[["a", "bcd", "ef"]], [["no", "we", "a"]], [["one"]]], expected=["bcd", "no", "one"],
        fixed="def f(words):\n    return max(words, key=len)"),
    Row(task="f(n) returns the sum of the digits of n.", code="def f(n):\n    return sum(str(n))",
        arguments=[[0], [19], [905]], expected=[0, 10, 14], fixed="def f(n):\n    return sum(map(int, str(abs(n))))"),
]  # fmt: skip


@app.environment("fix", tasks={"train": ROWS}, row=Row, max_steps=4, step_timeout_seconds=60)
class Fix:
    """Submit the repaired function. You are told how many hidden tests passed."""

    def reset(self, task: Row) -> str:
        self.task = task
        return f"{task.task}\n\n{task.code}"

    @action(sample=lambda rng: {"code": "def f(x):\n    return x"})
    def submit(self, code: str) -> Step:
        """Submit the whole source of the function. The box never holds an expected result."""
        calls = "\n".join(f"print(json.dumps(f(*{arguments!r})))" for arguments in self.task.arguments)
        with Sandbox(limits=SandboxLimits(wall_seconds=10, cpu_seconds=5, processes=8)) as box:
            lines = box.run_sync(f"import json\n{code}\n{calls}").stdout.splitlines()
        expected = [json.dumps(value) for value in self.task.expected]
        passed = sum(map(str.__eq__, lines, expected)) if len(lines) == len(expected) else 0
        done = passed == len(expected)
        return Step(f"{passed} of {len(expected)} tests passed", reward=float(done), terminated=done)


@app.rubric
def all_tests_pass(trajectory: Trajectory) -> float:
    """Every hidden test passes."""
    return trajectory.total_reward


@app.policy("gold")
def repaired(task: Row) -> dict:
    """The repaired function of the row."""
    return {"submit": {"code": task.fixed}}
