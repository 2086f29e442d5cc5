"""The tasks of a split for the routes of ORS and OpenEnv 0.10: `splits`, `num_tasks`, `tasks`, `task`, `task_range`.

The formats follow the servers and clients of openreward 0.1.167, ors-sdk 0.1.0 (both on PyPI) and openenv 0.10.0. A
task has the fields `split` and `seed`, and `row` with the public fields of its row. Private fields are never sent.
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
"""The maximum number of tasks in a response."""
SPLIT_TYPES = ("train", "validation", "test")
IN_THREAD = 100
"""Responses with more tasks are created in a thread, so that they do not block the event loop."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SplitName(_Body):
    """The name of a split."""

    split: StrictStr = Field(json_schema_extra=SPLIT)


class TaskIndex(_Body):
    """A task of a split. Indices begin at 0."""

    split: StrictStr = Field(json_schema_extra=SPLIT)
    index: StrictInt


class TaskRange(_Body):
    """A range of a split's tasks, as in Python's slices: negative numbers count from the end."""

    split: StrictStr = Field(json_schema_extra=SPLIT)
    start: StrictInt | None = None
    stop: StrictInt | None = None


def splits_of(environment: EnvironmentSpec) -> list[dict[str, Json]]:
    """Return the name and the type of each split.

    As in ORS's own server, a split whose name is not a standard type has the type `validation`.
    """
    return [{"name": name, "type": name if name in SPLIT_TYPES else "validation"} for name in environment.split_names]


async def task_answer(environment: EnvironmentSpec, name: str, body: Mapping[str, Any]) -> dict[str, Json]:
    """Return the response of `tasks`, `num_tasks`, `task` or `task_range`.

    name: the name of the route. Raises RequestError (422) for an invalid body, and RequestRefused (400) for an unknown
    split or index or for more than MOST_TASKS tasks.
    """
    model, _, _ = TASK_VERBS[name]
    selection = parsed(model, body)
    seeds = _seeds(environment, selection.split)
    if isinstance(selection, TaskIndex):
        return {"task": task_at(environment, selection.split, selection.index), "env_name": environment.name}
    if name == "num_tasks":
        return {"num_tasks": size(seeds)}
    chosen = seeds[selection.start : selection.stop] if isinstance(selection, TaskRange) else seeds
    if (count := size(chosen)) > MOST_TASKS:
        raise RequestRefused(
            "too_many_tasks",
            f"The response would have {count} tasks of split {selection.split!r}; the maximum is {MOST_TASKS}.",
            hint="Request fewer tasks with task_range, or single tasks with task.",
        )

    def listed() -> list[dict[str, Json]]:
        return [_task(environment, selection.split, seed) for seed in chosen]

    tasks = await asyncio.to_thread(listed) if count > IN_THREAD and environment.tasks is not None else listed()
    return {"tasks": tasks, "env_name": environment.name}


def task_at(environment: EnvironmentSpec, split: str, index: int) -> dict[str, Json]:
    """Return the task at an index, from 0. Raises RequestRefused (400) for an unknown split or index."""
    seeds = _seeds(environment, split)
    if not 0 <= index < size(seeds):
        raise RequestRefused(
            "index_out_of_range",
            f"Split {split!r} has no task {str(index)[:40]}; its tasks are 0 to {size(seeds) - 1}.",
        )
    return _task(environment, split, seeds[index])


def check_split(environment: EnvironmentSpec, split: str) -> None:
    """Raise RequestRefused (400) if the environment does not have the split."""
    if split not in environment.split_names:
        raise RequestRefused(
            "unknown_split",
            f"Environment {environment.name!r} has no split {split[:80]!r}.",
            hint=f"Choose one of these splits: {', '.join(environment.split_names)}.",
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
    """A split and its type."""

    name: str
    type: Literal["train", "validation", "test"]


class SplitTask(BaseModel):
    """A task. `row` contains the public fields of a row in a data set."""

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
    """The number of tasks in a split."""

    num_tasks: int


TASK_VERBS: Final[Mapping[str, tuple[type[SplitName | TaskIndex | TaskRange], type[BaseModel], str]]] = {
    "tasks": (SplitName, SplitTasks, "The tasks of a split"),
    "num_tasks": (SplitName, NumTasks, "The number of tasks of a split"),
    "task": (TaskIndex, OneTask, "One task of a split"),
    "task_range": (TaskRange, SplitTasks, "Some tasks of a split"),
}
"""The request model, the response model and the summary of each route."""
