"""A task app as taskset, harness and environment of verifiers 0.4.

Written against verifiers 0.4.0 (`verifiers.v1`). The harness runs the episode in the worker's own process and calls the
model through verifiers' interception server, so the trace, limits and stops are theirs, and prompts, tools and scores are
those of `/rollout`. Their `null` harness starts a program for each turn, which costs about a CPU-second.

A failure is an error of the trace (TaskError of the environment and of scoring, ProviderError of the model), and its
reward is null. A rollout that verifiers stops (max_turns, a stop hook) is truncated and scored.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import verifiers.v1 as vf
from verifiers.v1.errors import HarnessError, TaskError

from taskapp_kit.errors import KitError, RolloutFailed
from taskapp_kit.interop.app_tasks import VerifiersApp, scores_of, sentence
from taskapp_kit.interop.callers_model import COLUMNS, env_of_row, truncating
from taskapp_kit.records.content import Json
from taskapp_kit.wire.chat.conversation import ChatReply, ModelFailed

SCORES = "taskapp"
"""The member of a trace's `info` with the rollout's id, digest, status, reward and numbers."""
TASK_BOUNDARIES = frozenset({"environment", "scoring"})


class TaskAppData(vf.TaskData):
    """What names an episode. config: `env.config` as JSON text."""

    environment: str
    split: str
    seed: int
    config: str = "{}"
    output_mode: str = "tool_calls"


class TaskAppTask(vf.Task[TaskAppData]):
    """Scores are those of the rollout that the harness played."""

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """The scorecard's reward. Raises ValueError where there is none (another harness, a deadline)."""
        return float(_scores(trace)["reward"])

    @vf.metric
    async def scorecard(self, trace: vf.Trace) -> dict[str, float]:
        """Criteria, metrics, steps, truncated."""
        numbers: dict[str, float] = _scores(trace)["numbers"]
        return numbers


def _scores(trace: vf.Trace) -> dict[str, Any]:
    found = trace.info.get(SCORES)
    if found is None:
        raise ValueError("the task app's own harness did not play this rollout to its end, so it has no scores")
    scores: dict[str, Any] = found
    return scores


class TaskAppTasksetConfig(vf.TasksetConfig):
    """Which tasks, under `--env.taskset.*`."""

    environment: str | None = None
    """The app's environment; its first when unset."""
    split: str | None = None
    """The split; the environment's first when unset."""
    num_tasks: int | None = None
    """Only the first so many."""
    config: str = "{}"
    """`env.config` as JSON."""
    output_mode: str = "tool_calls"
    """How the model answers: tool_calls, text or structured."""


class TaskAppTaskset(vf.Taskset[TaskAppTask, TaskAppTasksetConfig]):
    """The tasks of a task app. A package's own subclass names the app."""

    app: ClassVar[str]

    def load(self) -> Iterator[TaskAppTask]:
        """Yields the tasks; the episodes are begun some at a time, for their prompts, as they are read."""
        given = self.config
        app = VerifiersApp(self.app, given.environment, _object(given.config), given.output_mode)
        for task in app.tasks(given.split, given.num_tasks):
            data = TaskAppData(
                name=f"{task.environment}/{task.split}/{task.seed}",
                prompt=task.prompt,
                **{name: getattr(task, name) for name in COLUMNS},
            )
            yield TaskAppTask(data, given.task)


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError('config is a JSON object, e.g. {"size": 5}')
    return found


@functools.cache
def _played(app: str) -> VerifiersApp:
    """The app that a worker plays; verifiers makes a harness for each episode, and they share its service."""
    return VerifiersApp(app)


class TaskAppHarness(vf.Harness[vf.HarnessConfig]):
    """Plays the episode in this process. A package's own subclass names the app."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    app: ClassVar[str]

    async def launch(
        self,
        ctx: Any,
        trace: vf.Trace,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> vf.ProgramResult:
        """Plays and scores one episode; the scores are in the trace's `info`. Raises TaskError, HarnessError."""
        try:
            service = _played(self.app).service()
            call = service.endpoint(endpoint, ctx.model, secret)

            async def ask(body: dict[str, Json]) -> ChatReply | ModelFailed:
                outcome = await call(body)
                if isinstance(outcome, ModelFailed) and trace.stop_condition is not None:
                    return truncating(trace.stop_condition)
                return outcome

            env = env_of_row(vars(data))
            rollout = await service.rollout(ask, env, output_mode=data.output_mode, label="verifiers")
            reward, numbers = scores_of(rollout)
        except RolloutFailed as failed:
            kind = TaskError if failed.boundary in TASK_BOUNDARIES else HarnessError
            raise kind(sentence(failed)) from failed
        except KitError as error:
            raise TaskError(str(error)) from error
        trace.info[SCORES] = {
            "rollout_id": rollout.rollout_id,
            "digest": rollout.digest,
            "status": rollout.status,
            "reward": reward,
            "numbers": numbers,
        }
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


_users: Counter[tuple[str, int]] = Counter()
"""How many environments use an app in an event loop."""


def _use(app: str) -> tuple[str, int]:
    return app, id(asyncio.get_running_loop())


class TaskAppEnvConfig(vf.EnvConfig):
    """One agent, whose runtime is this machine: the harness needs no container."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class TaskAppEnv(vf.Env[TaskAppEnvConfig]):
    """One agent plays one task."""

    async def run(self, task: vf.Task, agents: Any) -> None:
        """Play it."""
        await agents.agent.run(task)

    async def start(self) -> None:
        """Counts as a user of the app, which the environments of an event loop share."""
        if isinstance(self.taskset, TaskAppTaskset):
            _users[_use(self.taskset.app)] += 1

    async def stop(self) -> None:
        """Ends worker processes and connections, if no other environment uses them."""
        if isinstance(self.taskset, TaskAppTaskset):
            use = _use(self.taskset.app)
            _users[use] -= 1
            if _users[use] <= 0:
                del _users[use]
                await _played(self.taskset.app).close()
