"""A task app as the taskset, harness and environment of verifiers 0.4.

Written against verifiers 0.4.0 (`verifiers.v1`). The harness runs the episode in the worker process, and calls the
model through verifiers' interception server. So verifiers' traces, limits and stop conditions apply, and prompts, tools
and scores are the same as for `POST /rollout`. verifiers' `null` harness would start a program for each turn, which
costs about one CPU-second.

If a rollout fails, the trace has an error and the reward null. The error is a TaskError if the environment or the
scoring failed, or a ProviderError if the model failed. If verifiers stops a rollout (max_turns, a stop hook), it is
truncated and scored.
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
"""The key in a trace's `info` that contains the rollout's id, digest, status, reward and numbers."""
TASK_BOUNDARIES = frozenset({"environment", "scoring"})


class TaskAppData(vf.TaskData):
    """The fields that identify an episode. config: `env.config` as a JSON string."""

    environment: str
    split: str
    seed: int
    config: str = "{}"
    output_mode: str = "tool_calls"


class TaskAppTask(vf.Task[TaskAppData]):
    """A task that takes its scores from the rollout that the harness played."""

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """Return the scorecard's reward. Raises ValueError if the harness did not finish the rollout."""
        return float(_scores(trace)["reward"])

    @vf.metric
    async def scorecard(self, trace: vf.Trace) -> dict[str, float]:
        """Return the criteria's scores, the metrics, the number of steps, and `truncated` as 0 or 1."""
        numbers: dict[str, float] = _scores(trace)["numbers"]
        return numbers


def _scores(trace: vf.Trace) -> dict[str, Any]:
    scores: dict[str, Any] | None = trace.info.get(SCORES)
    if scores is None:
        raise ValueError("the rollout has no scores, because the task app's harness did not finish it")
    return scores


class TaskAppTasksetConfig(vf.TasksetConfig):
    """The selection of tasks. Users set it with `--env.taskset.*`."""

    environment: str | None = None
    """The name of an environment. Defaults to the app's first."""
    split: str | None = None
    """The name of a split. Defaults to the environment's first."""
    num_tasks: int | None = None
    """The maximum number of tasks."""
    config: str = "{}"
    """`env.config` as JSON."""
    output_mode: str = "tool_calls"
    """The format of the model's replies: tool_calls, text or structured."""


class TaskAppTaskset(vf.Taskset[TaskAppTask, TaskAppTasksetConfig]):
    """The tasks of a task app. A package's subclass names the app."""

    app: ClassVar[str]

    def load(self) -> Iterator[TaskAppTask]:
        """Yield the tasks. To read the prompts, episodes are begun in chunks while the caller iterates."""
        config = self.config
        app = VerifiersApp(self.app, config.environment, _object(config.config), config.output_mode)
        for task in app.tasks(config.split, config.num_tasks):
            data = TaskAppData(
                name=f"{task.environment}/{task.split}/{task.seed}",
                prompt=task.prompt,
                **{name: getattr(task, name) for name in COLUMNS},
            )
            yield TaskAppTask(data, config.task)


def _object(text: str) -> dict[str, Any]:
    config = json.loads(text)
    if not isinstance(config, dict):
        raise ValueError('config must be a JSON object, e.g. {"size": 5}')
    return config


@functools.cache
def _played(app: str) -> VerifiersApp:
    """Return the app for a worker.

    verifiers creates a harness for each episode. All harnesses of the worker share the app's service.
    """
    return VerifiersApp(app)


class TaskAppHarness(vf.Harness[vf.HarnessConfig]):
    """A harness that plays the episode in this process. A package's subclass names the app."""

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
        """Play and score an episode, and store the scores in the trace's `info`.

        Raises TaskError if the environment or the scoring fails, and HarnessError for other failures.
        """
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
"""The number of environments that use an app on an event loop."""


def _use(app: str) -> tuple[str, int]:
    return app, id(asyncio.get_running_loop())


class TaskAppEnvConfig(vf.EnvConfig):
    """The config for one agent. It runs on this machine, because the harness needs no container."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class TaskAppEnv(vf.Env[TaskAppEnvConfig]):
    """An environment in which one agent plays each task."""

    async def run(self, task: vf.Task, agents: Any) -> None:
        """Play the task."""
        await agents.agent.run(task)

    async def start(self) -> None:
        """Register this environment as a user of the app, which all environments on an event loop share."""
        if isinstance(self.taskset, TaskAppTaskset):
            _users[_use(self.taskset.app)] += 1

    async def stop(self) -> None:
        """Close the app's service if no other environment uses the app."""
        if isinstance(self.taskset, TaskAppTaskset):
            use = _use(self.taskset.app)
            _users[use] -= 1
            if _users[use] <= 0:
                del _users[use]
                await _played(self.taskset.app).close()
