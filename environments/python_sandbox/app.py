"""python_sandbox: an agent writes a function, and hidden tests determine the reward.

README.md in this directory describes observations, actions, rewards and the end of an episode, and why a submission
cannot fake its reward.
"""

from __future__ import annotations

import random
from typing import Annotated, Any, ClassVar

from pydantic import Field

from taskapp_kit import Step, TaskApp, Trajectory, action
from taskapp_kit.errors import SandboxError, SandboxTooWeak
from taskapp_kit.grading.code import RIGHT
from taskapp_kit.sandbox import RunResult, Sandbox

from .boxes import Boxes
from .rows import CodeTask
from .verdict import judge
from .words import run_text, task_text

app = TaskApp(
    "python_sandbox",
    version="1.0.0",
    description="Write a Python function; hidden tests decide, in a sandbox that holds no answers.",
)

MAX_CODE_CHARACTERS = 50_000
Code = Annotated[str, Field(max_length=MAX_CODE_CHARACTERS)]
TRIES = ("print(1 + 1)", "import sys\nprint(sys.version_info[:2])", "open('note.txt', 'a').write('x')", "1 / 0")


def random_run(rng: random.Random) -> dict[str, str]:
    """Return a small program that does not solve the task."""
    return {"code": rng.choice(TRIES)}


def random_submission(rng: random.Random) -> dict[str, str]:
    """Return a submission that does not solve the task."""
    return {"code": rng.choice(("", "pass", "def solve(*arguments):\n    return None\n"))}


@app.environment(
    "python_sandbox",
    tasks={"train": "train.jsonl", "test": "test.jsonl"},
    row=CodeTask,
    max_steps=20,
    step_timeout_seconds=180,  # a run takes at most 10 s, all tests 15 s; the rest is for waiting
    baselines={"noop": 0.0, "random": 0.0},
    tags=("code", "multi-turn", "sandbox"),
)
class PythonSandbox:
    """You write one Python function. Hidden tests call it and compare what it returns.

    Try things out with `run` as often as you like; `submit` ends the episode. Only the standard library is there, no
    network, and a test may take 2 seconds.
    """

    boxes: ClassVar[Boxes] = Boxes()

    @classmethod
    def setup_worker(cls) -> None:
        """Open a box. Raises SandboxTooWeak if this machine cannot confine a policy's code."""
        cls.boxes.level  # noqa: B018 (reading it opens the box)

    def reset(self, task: CodeTask) -> str:
        """Return the task with its signature and examples."""
        self.task = task
        self.box: Sandbox | None = None
        self.outcomes: list[str] | None = None
        self.level_sent = False
        examples = [(example.args, example.result) for example in task.examples]
        return task_text(task.statement, task.signature, task.entry, examples, task.checker is not None)

    @action(noop={"code": ""}, sample=random_run)
    def run(self, code: Code) -> Step:
        """Run Python code as a program of its own and read what it prints. Files that it leaves stay for later runs."""
        result, root, replaced = self._ran(code)
        text = run_text(
            exit_code=result.exit_code,
            signal=result.signal,
            killed_for=result.killed_for,
            stdout=result.stdout,
            stderr=result.stderr,
            root=root,
        )
        if replaced:
            text = f"What earlier runs left could not be used; this is a new working directory.\n{text}"
        return Step(text, info=self._level_once())

    @action(sample=random_submission)
    def submit(self, code: Code) -> Step:
        """Submit the whole source of your function. This ends the episode; hidden tests decide."""
        self.close()  # every process of the policy is dead before the judge's box opens
        cases = [(case.args, case.expected) for case in self.task.hidden_tests]
        answers = self.boxes.answers(code, self.task.entry, [arguments for arguments, _ in cases])
        self.outcomes = judge(cases, answers, self.task.checker)
        return Step("submitted", terminated=True, info=self._level_once())

    def final_state(self) -> dict[str, Any]:
        """Return the end state, for rubrics only: an outcome for each hidden test, None without a submission."""
        return {"outcomes": self.outcomes, "sandbox_level": self.boxes.level}

    def close(self) -> None:
        """Kill the policy's processes and remove its files."""
        box, self.box = self.box, None
        if box is not None:
            box.close()

    def _ran(self, code: str) -> tuple[RunResult, str, bool]:
        """Return the result, the box's working directory, and whether an unusable box had to be replaced."""
        if self.box is not None:
            try:
                return self.boxes.run(self.box, code), self.box.root, False
            except SandboxTooWeak:
                raise
            except SandboxError:  # e.g. a directory replaced a file; our own errors also occur in a new box
                self.close()
                replaced = True
        else:
            replaced = False
        self.box = self.boxes.open_policy()
        return self.boxes.run(self.box, code), self.box.root, replaced

    def _level_once(self) -> dict[str, int]:
        if self.level_sent:
            return {}
        self.level_sent = True
        return {"sandbox_level": self.boxes.level}


def outcomes(trajectory: Trajectory) -> list[str]:
    """Return the outcome of each hidden test; empty without a submission."""
    return trajectory.final_state["outcomes"] or []


@app.rubric(weight=1.0)
def passed(trajectory: Trajectory) -> float:
    """The function was submitted and passes every hidden test."""
    found = outcomes(trajectory)
    return float(bool(found) and all(word == RIGHT for word in found))


@app.rubric(weight=0.0)
def share(trajectory: Trajectory) -> float:
    """Share of the hidden tests that the submitted function passes."""
    found = outcomes(trajectory)
    return found.count(RIGHT) / len(found) if found else 0.0


@app.metric
def sandbox(trajectory: Trajectory) -> dict[str, float]:
    """Level of the sandbox (4 remote, 3 bubblewrap, 2 Landlock), 1 or 0 for a submission, and the number of runs."""
    return {
        "sandbox_level": float(trajectory.final_state["sandbox_level"]),
        "submitted": float(trajectory.final_state["outcomes"] is not None),
        "runs": float(len(trajectory.actions("run"))),
    }


@app.policy("gold")
def reference(task: CodeTask) -> dict[str, dict[str, str]]:
    """Submits the reference solution."""
    return {"submit": {"code": task.reference}}
