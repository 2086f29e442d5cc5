"""Math: problems with one right answer, such as word problems, sums, equations, roots and integrals, or your own.

reasoning-gym generates the problems offline. README.md in this directory describes the questions, which answers are
right, the reward and the end of an episode.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, field_validator

from taskapp_kit import InvalidAction, Private, Step, TaskApp, Trajectory, action
from taskapp_kit.errors import ConfigError, Unavailable

from . import comparer, generators
from .equality import Reference, Verdict, compare, reference_of
from .generators import OPTIONS, Difficulty, Generator, Problem
from .literals import MAX_ANSWER_CHARACTERS, Unreadable, boxed

ROWS_VARIABLE = "TASKAPP_MATH_ROWS"
"""Environment variable with the path of the operator's problems: a JSONL file, or a directory of JSONL files."""

MAX_TEXT_CHARACTERS = 400_000
"""Maximum length of a text reply, including its reasoning. A longer reply is refused without being parsed."""

MAX_TURNS = 4

app = TaskApp(
    "math",
    version="1.0.0",
    description="Problems with one right answer: word problems, sums, equations, roots, integrals; or your own rows.",
)

Answer = Annotated[str, Field(max_length=MAX_ANSWER_CHARACTERS)]


class Answering:
    """The two ways to submit an answer. Both end the episode without revealing whether the answer was right."""

    @action(noop={"answer": ""}, sample=lambda rng: {"answer": str(rng.randint(0, 100))})
    def submit(self, answer: Answer) -> Step:
        """Hand in your final answer: the answer alone, in one form, without words or units. There is one attempt."""
        return Step(terminated=True, info={"submitted": answer})

    @action(text=True, sample=lambda rng: f"\\boxed{{{rng.randint(0, 100)}}}")
    def say(self, text: str) -> Step:
        r"""Write as much as you like and put your final answer, once, in \boxed{...}: that hands it in."""
        if len(text) > MAX_TEXT_CHARACTERS:
            raise InvalidAction(f"Nothing was handed in: at most {MAX_TEXT_CHARACTERS} characters are read.")
        try:
            answer = boxed(text)
        except Unreadable as error:
            raise InvalidAction(
                f"Nothing was handed in: {error}. Call submit, or write your final answer as \\boxed{{...}}."
            ) from None
        return Step(terminated=True, info={"submitted": answer})


SPLITS = {
    "train": range(1_000_000),
    "validation": range(1_000_000, 1_010_000),
    "test": range(1_010_000, 1_020_000),
}


def load_generators(environment: str) -> None:
    """Load the generators. Raises Unavailable."""
    try:
        generators.load()
    except ImportError as error:
        raise _missing(environment, str(error.name)) from error


@app.environment(
    "math",
    splits=SPLITS,
    max_turns=MAX_TURNS,
    baselines={"noop": 0.01, "constant": 0.05, "random": 0.05},
    tags=("math", "single-turn"),
)
class Math(Answering):
    r"""Solve the problem and hand in its answer, once: call `submit`, or write it in one \boxed{...}."""

    def __init__(self, generator: Generator = "gsm_symbolic", difficulty: Difficulty = "medium") -> None:
        if difficulty not in OPTIONS[generator]:
            raise ValueError(f"generator {generator!r} has the difficulty {', '.join(OPTIONS[generator])} only")
        self.generator, self.difficulty = generator, difficulty

    @classmethod
    def setup_worker(cls) -> None:
        """Load the generators once per process."""
        load_generators("math")

    def reset(self, seed: int) -> str:
        """Return the question. A seed is one problem of the generator and difficulty."""
        return generators.problem(self.generator, self.difficulty, seed).question


@app.environment(
    "sums",
    splits=SPLITS,
    max_steps=1,
    prompt="Reply with the number only.",
    baselines={"noop": 0.0, "constant": 0.0, "random": 0.0},
    tags=("math", "single-turn"),
)
class Sums:
    """A sum or a difference, answered in plain words by the number alone: for models that call no tools."""

    def __init__(
        self, terms: Annotated[int, Field(ge=2, le=12)] = 2, digits: Annotated[int, Field(ge=1, le=8)] = 2
    ) -> None:
        self.terms, self.digits = terms, digits

    @classmethod
    def setup_worker(cls) -> None:
        """Load the generators once per process."""
        load_generators("sums")

    def reset(self, seed: int, split: str) -> str:
        """Return the question. A sum is in one split only."""
        return generators.sum_problem(self.terms, self.digits, seed, split).question

    @action(text=True, noop={"answer": ""}, sample=lambda rng: str(rng.randint(0, 100)))
    def submit(self, answer: str) -> Step:
        """Say the number."""
        return Step(terminated=True, info={"submitted": answer[: MAX_ANSWER_CHARACTERS + 1]})


def _as_text(value: Any) -> Any:
    """Answer may be numbers in a file; GSM8K's end in `#### 72` after the solution."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    return value.rpartition("####")[2].strip() if isinstance(value, str) else value


class Row(BaseModel):
    """One line of the operator's file. Other members are ignored."""

    question: str = Field(min_length=1)
    answer: Private[Annotated[str, BeforeValidator(_as_text)]]
    difficulty: str = ""
    tags: list[str] = []

    @field_validator("answer")
    @classmethod
    def _means_something(cls, answer: str) -> str:
        reference_of(answer)
        return answer


class Rows(Answering):
    r"""Solve the problem and hand in its answer, once: call `submit`, or write it in one \boxed{...}."""

    @classmethod
    def setup_worker(cls) -> None:
        """Start the process that compares expressions, which loads in the background."""
        if importlib.util.find_spec("sympy") is None:
            raise _missing("rows", "sympy")
        comparer.shared().warm_up()

    def reset(self, task: Row) -> str:
        """Return the question of the row."""
        return task.question


def rows_in(path: Path) -> dict[str, Path]:
    """Return the splits of the operator's problems. Raises ConfigError."""
    if not path.is_dir():
        return {"train": path}
    files = {name: path / f"{name}.jsonl" for name in ("train", "validation", "test")}
    files = {name: file for name, file in files.items() if file.is_file()}
    if not files:
        raise ConfigError(
            f"{ROWS_VARIABLE} names the directory {path}, which does not contain train.jsonl, validation.jsonl or test.jsonl.",
            hint="Set it to a JSONL file, or add one of these three files.",
        )
    return files


if os.environ.get(ROWS_VARIABLE):
    app.environment(
        "rows",
        tasks=rows_in(Path(os.environ[ROWS_VARIABLE]).resolve()),
        row=Row,
        max_turns=MAX_TURNS,
        tags=("math", "single-turn"),
    )(Rows)


def _missing(environment: str, package: str) -> Unavailable:
    return Unavailable(
        f"environment {environment!r} needs the package {package}, which is not installed here; install the extra "
        "that has it: pip install 'taskapp-kit[math]'."
    )


def _problem(trajectory: Trajectory, config: dict[str, Any]) -> Problem:
    """Return the problem of an episode, generated again from its identity: the record does not contain it."""
    if trajectory.environment == "sums":
        given = config.get("terms", 2), config.get("digits", 2)
        return generators.sum_problem(*given, trajectory.seed, trajectory.split)
    return generators.problem(
        config.get("generator", "gsm_symbolic"), config.get("difficulty", "medium"), trajectory.seed
    )


def submitted(trajectory: Trajectory) -> str | None:
    """Return the submitted answer, or None."""
    return next((step.info["submitted"] for step in trajectory.steps if "submitted" in step.info), None)


def verdict(trajectory: Trajectory, config: dict[str, Any], task: Row | None) -> Verdict | None:
    """Return the verdict on the submitted answer, or None without an answer. Raises comparer.ComparisonFailed."""
    answer = submitted(trajectory)
    if answer is None:
        return None
    return _compared(reference_of(task.answer) if task is not None else _problem(trajectory, config).reference, answer)


@functools.lru_cache(maxsize=512)
def _compared(reference: Reference, answer: str) -> Verdict:
    return compare(reference, answer, comparer.shared().ask)


@app.rubric
def correct(trajectory: Trajectory, config: dict[str, Any], task: Row | None) -> float:
    """The answer that was handed in is right. Nothing handed in is not right."""
    found = verdict(trajectory, config, task)
    return float(found is not None and found.correct)


@app.metric
def handing_in(trajectory: Trajectory, config: dict[str, Any], task: Row | None) -> dict[str, float]:
    """1 or 0: an answer was handed in; it could be read. And how many times words without an answer were refused."""
    found = verdict(trajectory, config, task)
    return {
        "handed_in": float(found is not None),
        "readable": float(found is not None and found.readable),
        "refusals": float(sum(step.refused is not None for step in trajectory.steps)),
    }


@app.policy("gold")
def gold(observation: str, task: Row | None) -> dict[str, dict[str, str]]:
    """Hands in the right answer."""
    answer = task.answer if task is not None else generators.recalled(observation).answer
    return {"submit": {"answer": answer}}
