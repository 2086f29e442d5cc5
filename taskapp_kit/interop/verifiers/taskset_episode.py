"""An episode of a task of verifiers' second API (`verifiers.v1`): one prompt, one answer, and the task's own rewards.

Written against verifiers 0.4.0. If the agent of a plain taskset has no tools, an episode is one prompt and one answer,
because verifiers' harnesses end after the first answer without a tool call. The answer is recorded in a trace as in
verifiers, and `Task.score` scores the trace. An exception in a reward function is therefore verifiers' TaskError. Tasks
that need a container, a runtime, tool servers, several agents or a user simulation are rejected with the reason.
"""

from __future__ import annotations

import inspect
import itertools
import math
import threading
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from verifiers.v1 import graph
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.envs.single_agent import SingleAgentEnv
from verifiers.v1.errors import TaskError
from verifiers.v1.state import state_cls
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, Response, SystemMessage, UserMessage
from verifiers.v1.utils.loaders import environment_class, taskset_class, taskset_config_type

from taskapp_kit.interop.chat_content import observation_of
from taskapp_kit.interop.class_parts import ClassParts
from taskapp_kit.interop.verifiers.episode import PAID_BY_NAME, VerifiersEnvironment, VerifiersFailed
from taskapp_kit.records.trajectory import Step

ENDLESS = range(1000)
"""The number of seeds for an unbounded taskset."""
HOOKS = ("setup", "finalize", "stage_verifier")
"""The methods of a task that need the task's runtime."""


class Tasks:
    """The tasks of a taskset by index, read on demand."""

    def __init__(self, taskset: Any) -> None:
        self._source: Iterator[Any] = iter(taskset)
        self._read: list[Any] = []
        self._lock = threading.Lock()

    def __getitem__(self, index: int) -> Any:
        with self._lock:
            self._read.extend(itertools.islice(self._source, max(0, index + 1 - len(self._read))))
            return self._read[index]

    def count(self) -> int:
        """Return the number of tasks."""
        with self._lock:
            self._read.extend(self._source)
            return len(self._read)


def members_of(parts: ClassParts, module: str, arguments: dict[str, Any], rewarded: bool) -> dict[str, Any]:
    """Return the attributes that the class adds to `VerifiersEnvironment`.

    Raises DeclarationError if the taskset cannot be played.
    """
    cls = taskset_class(module)
    taskset = cls(taskset_config_type(module)(id=module, **arguments))
    env = environment_class(module)
    tasks = Tasks(taskset)
    first = tasks[0]
    unsupported = [
        *([f"its own Env ({env.__name__})"] if env is not SingleAgentEnv else []),
        *(["tool servers"] if cls.toolsets(taskset.config) or type(first).toolsets(first.config) else []),
        *(["a container"] if first.NEEDS_CONTAINER or first.data.image else []),
        *([f"a runtime for {name}" for name in HOOKS if getattr(type(first), name) is not getattr(vf.Task, name)]),
        *([f"a runtime for {item.__name__}" for item in _signals(first) if _needs_runtime(item)]),
        *(["a user who opens the conversation"] if first.data.prompt is None else []),
    ]
    if unsupported:
        raise parts.wrong(
            f"cannot play {parts.name!r}: it needs {unsupported[0]}",
            "tasks with one prompt and one answer",
            "play it with verifiers itself",
        )
    if rewarded and not first.hooks("reward") and not first.config.judges:
        raise parts.wrong(f"found no reward in {parts.name!r}", "at least one", PAID_BY_NAME)
    return {"tasks": tasks, "splits": {"train": range(tasks.count()) if taskset.bounded else ENDLESS}}


class TasksetEnvironment(VerifiersEnvironment):
    """A task of a taskset. task: verifiers' object for the task, which `reset` sets."""

    tasks: Tasks

    def reset(self, seed: int) -> Any:
        """Return the prompt of the task with this seed."""
        self.task = self.tasks[seed]
        data = self.task.data
        if data.prompt is None:
            raise VerifiersFailed("The task has no prompt.")
        prompt = [UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt)
        system = [] if data.system_prompt is None else [SystemMessage(content=data.system_prompt)]
        self.messages = [*system, *prompt]
        return observation_of(self.messages)

    async def speak(self, text: str) -> Step:
        """Score the answer. Raises VerifiersFailed if a reward function raises an exception."""
        task = self.task
        trace: Any = Trace(
            task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            state=state_cls(type(task))(),
            agent=AgentInfo(config=AgentConfig()),
        )
        response = Response(
            id="turn_0", created=0, model="policy", message=AssistantMessage(content=text), finish_reason="stop"
        )
        graph.prepare_turn(trace, self.messages).commit(response)
        trace.stop("agent_completed")
        try:
            await task.score(trace)
        except TaskError as error:
            raise VerifiersFailed("A reward function raised an exception.", hint="The log contains it.") from error
        unscored = [name for name, reward in trace.rewards.items() if reward is None]
        if unscored:
            raise VerifiersFailed(f"verifiers did not score the reward {unscored[0]!r}.")
        self.ended = True
        scores = {name: reward.score for name, reward in trace.rewards.items()}
        numbers = {**scores, **trace.metrics}
        return Step(
            reward=trace.reward if self.rewarded else None,
            terminated=True,
            metrics={
                name: float(value) for name, value in numbers.items() if value is not None and math.isfinite(value)
            },
        )


def _signals(task: Any) -> list[Any]:
    return [*task.hooks("reward"), *task.hooks("metric")]


def _needs_runtime(function: Any) -> bool:
    runtime = inspect.signature(function).parameters.get("runtime")
    return runtime is not None and runtime.default is inspect.Parameter.empty
