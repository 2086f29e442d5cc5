"""The tasks of a split, as ORS and OpenEnv 0.10 list them: `splits`, `num_tasks`, `tasks`, `task`, `task_range`.

Read from the server and client of openreward 0.1.167 and ors-sdk 0.1.0 (PyPI), and the server of openenv 0.10.0, whose shapes
are the same. A task is `{"split", "seed"}`, with the public fields of its row in `row`; private fields are never in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.records.content import Json
from taskapp_kit.records.seeds import size
from taskapp_kit.serve.route import parsed
from taskapp_kit.wire.rollout import SPLIT, JsonDict

MOST_TASKS = 10_000
"""Tasks of one answer."""
SPLIT_TYPES = ("train", "validation", "test")
IN_THREAD = 100
"""An answer with more tasks is made in a thread, so that the event loop serves others meanwhile."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SplitName(_Body):
    """Which split."""

    split: StrictStr = Field(json_schema_extra=SPLIT)


class TaskIndex(_Body):
    """One task of a split, counted from 0."""

    split: StrictStr = Field(json_schema_extra=SPLIT)
    index: StrictInt


class TaskRange(_Body):
    """Some tasks of a split, as Python's slices: a negative number counts from the end."""

    split: StrictStr = Field(json_schema_extra=SPLIT)
    start: StrictInt | None = None
    stop: StrictInt | None = None


def splits_of(environment: EnvironmentSpec) -> list[dict[str, Json]]:
    """Return the splits; one whose name is no type of the standard is of type `validation`, as in its own server."""
    return [{"name": name, "type": name if name in SPLIT_TYPES else "validation"} for name in environment.split_names]


async def task_answer(environment: EnvironmentSpec, name: str, body: Mapping[str, Any]) -> dict[str, Json]:
    """Return the answer of `tasks`, `num_tasks`, `task` or `task_range`.

    Raises RequestError (422) for a body that does not fit, RequestRefused (400): there is no such split or index, or the
    answer would have more than MOST_TASKS tasks.
    """
    model, _, _ = TASK_VERBS[name]
    asked = parsed(model, body)
    seeds = _seeds(environment, asked.split)
    if isinstance(asked, TaskIndex):
        return {"task": task_at(environment, asked.split, asked.index), "env_name": environment.name}
    if name == "num_tasks":
        return {"num_tasks": size(seeds)}
    chosen = seeds[asked.start : asked.stop] if isinstance(asked, TaskRange) else seeds
    if (many := size(chosen)) > MOST_TASKS:
        raise RequestRefused(
            "too_many_tasks",
            f"The answer would have {many} tasks of split {asked.split!r}; one answer has at most {MOST_TASKS}.",
            hint="Ask for parts of it with task_range, or for single ones with task.",
        )

    def listed() -> list[dict[str, Json]]:
        return [_task(environment, asked.split, seed) for seed in chosen]

    tasks = await asyncio.to_thread(listed) if many > IN_THREAD and environment.tasks is not None else listed()
    return {"tasks": tasks, "env_name": environment.name}


def task_at(environment: EnvironmentSpec, split: str, index: int) -> dict[str, Json]:
    """Return one task; index counts from 0.

    Raises RequestRefused (400): there is no such split, or no task of this index.
    """
    seeds = _seeds(environment, split)
    if not 0 <= index < size(seeds):
        raise RequestRefused(
            "index_out_of_range",
            f"There is no task {str(index)[:40]} in split {split!r}; it has the tasks 0 to {size(seeds) - 1}.",
        )
    return _task(environment, split, seeds[index])


def check_split(environment: EnvironmentSpec, split: str) -> None:
    """Raise RequestRefused (400) when there is no such split."""
    if split not in environment.split_names:
        raise RequestRefused(
            "unknown_split",
            f"Environment {environment.name!r} has no split {split[:80]!r}.",
            hint=f"It has {', '.join(environment.split_names)}.",
        )


def _seeds(environment: EnvironmentSpec, split: str) -> range:
    check_split(environment, split)
    return environment.seeds_of(split)


def _task(environment: EnvironmentSpec, split: str, seed: int) -> dict[str, Json]:
    task: dict[str, Json] = {"split": split, "seed": seed}
    if environment.tasks is not None:
        task["row"] = environment.tasks.public(environment.tasks.rows(split)[seed])
    return task


class SplitType(BaseModel):
    """A split, and what it is for."""

    name: str
    type: Literal["train", "validation", "test"]


class SplitTask(BaseModel):
    """One task. `row` has the public fields of a row of a data set."""

    split: str
    seed: int
    row: JsonDict = Field(default_factory=dict)


class SplitTasks(BaseModel):
    """Some tasks of a split."""

    tasks: list[SplitTask]
    env_name: str


class OneTask(BaseModel):
    """One task of a split."""

    task: SplitTask
    env_name: str


class NumTasks(BaseModel):
    """How many tasks a split has."""

    num_tasks: int


TASK_VERBS: Final[Mapping[str, tuple[type[SplitName | TaskIndex | TaskRange], type[BaseModel], str]]] = {
    "tasks": (SplitName, SplitTasks, "The tasks of a split"),
    "num_tasks": (SplitName, NumTasks, "The number of tasks of a split"),
    "task": (TaskIndex, OneTask, "One task of a split"),
    "task_range": (TaskRange, SplitTasks, "Some tasks of a split"),
}
"""The routes: each takes its first model as the body of a POST, and answers its second; and that in words."""
