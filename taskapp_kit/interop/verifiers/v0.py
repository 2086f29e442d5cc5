"""Runs a task app as an environment of verifiers' classic API (`load_environment`), for verifiers up to 0.3.1.

It is written against verifiers 0.3.1, which calls this API `verifiers.legacy`. verifiers calls the model, and
`env_response` continues the episode between two model calls, so prompts, tools, limits and scores are the same as in
`/rollout`.

If a rollout fails, `state["error"]` is a `vf.Error` and the reward is NaN, because the classic API has no null reward
and turns an exception in a reward function into 0.0. The advantage of the rollout is 0.0, and the rollout does not
count in the group's baseline. If the failure may be temporary, such as a judge's failure or a timeout, the error is an
InfraError, and verifiers plays the rollout again, up to `max_retries` times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import verifiers as vf
from datasets import Dataset
from verifiers.types import Messages, State, Tool
from verifiers.utils.message_utils import normalize_messages

from taskapp_kit.errors import KitError, RolloutFailed
from taskapp_kit.interop.app_tasks import TaskOfApp, VerifiersApp, scores_of, sentence
from taskapp_kit.interop.callers_model import COLUMNS, SteppedRollout, env_of_row, truncating
from taskapp_kit.wire.chat.conversation import ChatReply
from taskapp_kit.wire.chat.dialect_body import chat_call

STEPPED, SCORES = "taskapp_rollout", "taskapp_scores"
"""Keys in a state: the running rollout, and the pair (reward, numbers) after scoring."""
PASSING = frozenset({"scoring", "timeout"})
"""The boundaries whose failures may be temporary."""


def environment(
    app: str,
    *,
    environment: str | None = None,
    split: str | None = None,
    eval_split: str | None = None,
    num_examples: int = 1000,
    config: Mapping[str, Any] | None = None,
    output_mode: str = "tool_calls",
    **options: Any,
) -> TaskAppEnvironment:
    """Return an environment for verifiers that plays a task app.

    Args:
        app: A path or the name of a bundled app.
        environment: The name of an environment. Defaults to the app's first.
        split: The split for training. Defaults to the first.
        eval_split: The split for evaluation. Defaults to `test` if it exists.
        num_examples: The maximum number of tasks of each split.
        config: `env.config` of each episode.
        output_mode: The format of the model's replies: `tool_calls`, `text` or `structured`.
        **options: Options of `vf.MultiTurnEnv`.

    Returns:
        The environment.
    """
    return TaskAppEnvironment(
        VerifiersApp(app, environment, dict(config or {}), output_mode),  # type: ignore[arg-type]
        split=split,
        eval_split=eval_split,
        num_examples=num_examples,
        **options,
    )


class TaskAppEnvironment(vf.MultiTurnEnv):
    """An environment of a task app. Its data set is created on first use."""

    def __init__(
        self, app: VerifiersApp, *, split: str | None, eval_split: str | None, num_examples: int, **options: Any
    ) -> None:
        self.app = app
        if eval_split is None:
            eval_split = "test" if app.has_split("test") else split
        super().__init__(
            dataset=lambda: _dataset(app, split, num_examples),
            eval_dataset=lambda: _dataset(app, eval_split, num_examples),
            rubric=TaskAppRubric(),
            **options,
        )

    def add_rubric(self, rubric: Any) -> None:
        """Ignore verifiers' own rubric (`num_turns`), because the task app's scores are the rubric."""

    async def setup_state(self, state: State) -> State:
        """Begin the episode. Raises vf.Error if the rollout fails."""
        info = state["info"]
        state[STEPPED] = stepped = SteppedRollout(
            self.app.service(), env_of_row(info), output_mode=info["output_mode"], label="verifiers"
        )
        body = await _next(stepped, None)
        if body is None:
            self._ended(state)
            state["final_env_response"] = []
            return state
        state["prompt"] = normalize_messages(body["messages"], field_name="prompt")
        state["tool_defs"] = [Tool.model_validate(tool) for tool in _tools(body.get("tools"))]
        return state

    async def env_response(self, messages: Messages, state: State, **_: Any) -> Messages:
        """Pass the model's reply to the episode, and return the next messages. Raises vf.Error if the rollout fails."""
        stepped: SteppedRollout = state[STEPPED]
        seen = len(stepped.request["messages"]) + 1 if stepped.request is not None else 0
        body = await _next(stepped, _reply(state))
        if body is None:
            self._ended(state)
            state["final_env_response"] = []
            return []
        new: Messages = body["messages"][seen:]
        return new

    @vf.cleanup
    async def finish(self, state: State) -> None:
        """Truncate and score a rollout that verifiers stopped, or cancel it after an error."""
        stepped: SteppedRollout | None = state.get(STEPPED)
        if stepped is None or stepped.ended:
            return
        if state.get("error") is not None:
            await stepped.cancel()
            return
        try:
            undelivered = len(state["trajectory"]) > stepped.answered
            waiting = await _next(stepped, _reply(state) if undelivered else None)
            while waiting is not None:
                waiting = await _next(stepped, truncating(str(state.get("stop_condition"))))
            self._ended(state)
        except vf.Error as error:
            state["error"] = error

    def _ended(self, state: State) -> None:
        rollout = state[STEPPED].result()
        try:
            state[SCORES] = scores_of(rollout)
        except RolloutFailed as failed:
            raise _error(failed) from failed
        state["is_truncated"] = state.get("is_truncated", False) or rollout.status == "truncated"
        state["taskapp"] = {"rollout_id": rollout.rollout_id, "digest": rollout.digest, "status": rollout.status}

    @vf.teardown
    async def close_service(self) -> None:
        """Stop the worker processes and close the connections."""
        await self.app.close()


class TaskAppRubric(vf.Rubric):
    """A rubric that returns the reward and metrics of the scorecard.

    Its methods replace verifiers' methods, which would turn exceptions into 0.0.
    """

    async def score_rollout(self, state: State) -> None:
        """Set the `reward` and the `metrics` of a rollout."""
        reward, numbers = state.get(SCORES) or (math.nan, {})
        state["reward"] = reward if state.get("error") is None else math.nan
        state["metrics"] = {**numbers, "num_turns": float(len(state["trajectory"]))}

    async def score_group(self, states: list[State]) -> None:
        """Set rewards and metrics, and advantages relative to the mean of the defined rewards."""
        for state in states:
            await self.score_rollout(state)
        scored = [state["reward"] for state in states if not math.isnan(state["reward"])]
        mean = sum(scored) / len(scored) if scored else 0.0
        for state in states:
            failed = math.isnan(state["reward"])
            state["advantage"] = 0.0 if failed else state["reward"] - mean
            for step in state["trajectory"]:
                step["advantage"] = state["advantage"] if step["advantage"] is None else step["advantage"]
                step["reward"] = state["reward"] if step["reward"] is None else step["reward"]


def _dataset(app: VerifiersApp, split: str | None, limit: int) -> Dataset:
    return Dataset.from_list([_row(task) for task in app.tasks(split, limit)])


def _row(task: TaskOfApp) -> dict[str, Any]:
    info = {**{name: getattr(task, name) for name in COLUMNS}, "tool_defs": _tools(task.tools)}
    return {"prompt": task.prompt, "answer": "", "info": json.dumps(info)}


def _tools(tools: Any) -> list[dict[str, Any]]:
    return [{name: tool["function"][name] for name in ("name", "description", "parameters")} for tool in tools or ()]


def _reply(state: State) -> ChatReply:
    """Convert the model's last reply to the format of a chat completions endpoint."""
    step = state["trajectory"][-1]
    message = step["completion"][-1]
    calls = [chat_call(call.id, call.name, call.arguments) for call in message.tool_calls or ()]
    content = message.content
    if isinstance(content, list):
        content = [part if isinstance(part, dict) else part.model_dump(exclude_none=True) for part in content]
    reply: dict[str, Any] = {"role": "assistant", "content": content}
    if message.reasoning_content:
        reply["reasoning_content"] = message.reasoning_content
    if calls:
        reply["tool_calls"] = calls
    response = step["response"]
    usage = {} if response.usage is None else response.usage.model_dump()
    usage = {name: float(count) for name, count in usage.items() if isinstance(count, int | float)}
    return ChatReply(reply, finish_reason=response.message.finish_reason or "", model=response.model, usage=usage)


async def _next(stepped: SteppedRollout, answer: Any) -> dict[str, Any] | None:
    """Call `SteppedRollout.next`, and convert its exceptions to vf.Error."""
    try:
        return await stepped.next(answer)
    except RolloutFailed as failed:
        raise _error(failed) from failed
    except KitError as error:
        raise vf.Error(str(error)) from error


def _error(failed: RolloutFailed) -> Exception:
    kind = vf.InfraError if failed.boundary in PASSING else vf.Error
    error: Exception = kind(sentence(failed))
    return error
