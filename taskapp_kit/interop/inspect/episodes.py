"""Plays the episodes of an Inspect task as rollouts of the kit, with Inspect's model as the policy.

Written against inspect-ai 0.3.285. For each call of the policy's model, `Model.generate` is called in the asyncio task
that runs the sample, so Inspect's retries, cache, limits, usage and transcript apply. Prompts, tools, scores and failures
are the same as for `POST /rollout`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inspect_ai.hooks import Hooks, RunEnd, hooks
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelOutput,
    ResponseSchema,
    get_model,
)
from inspect_ai.solver import TaskState
from inspect_ai.tool import ToolCall, ToolFunction, ToolInfo, ToolParams
from inspect_ai.util import LimitExceededError

from taskapp_kit.declare.app import TaskApp
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.interop.app_tasks import sentence
from taskapp_kit.interop.callers_model import LoopServices, SteppedRollout, truncating
from taskapp_kit.interop.schema_tools import resolved
from taskapp_kit.records.content import Json, text_of
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.policy.options import OutputMode
from taskapp_kit.wire.chat.conversation import CONTEXT_OVERFLOW, ChatReply, ModelFailed
from taskapp_kit.wire.chat.dialect_body import chat_call

RESULT = "taskapp"
"""The key in a sample's metadata that contains the result of the sample's rollout."""
CONCURRENT = 4096
"""The maximum number of concurrent rollouts in a process. Inspect's own limits are lower."""

_services = LoopServices(max_concurrent=CONCURRENT)


class EpisodeFailed(RuntimeError):
    """An episode failed and has no scores.

    Inspect records the message, which contains the boundary, as the sample's error.
    """


class _CloseServices(Hooks):
    """An Inspect hook that stops worker processes and closes connections when a run ends."""

    def enabled(self) -> bool:
        return bool(_services)

    async def on_run_end(self, data: RunEnd) -> None:
        await _services.close()


class Episodes:
    """Plays the rollouts of the samples of an Inspect task.

    The solver calls `play`, the scorers call `result`, and the cleanup of the Inspect task calls `end`.
    """

    def __init__(self, app: TaskApp, output_mode: OutputMode) -> None:
        hooks(name="taskapp", description="Closes task apps when a run ends.")(_CloseServices)
        self._app = app
        self._output_mode = output_mode
        self._open: dict[str, SteppedRollout] = {}

    async def play(self, state: TaskState, env: Mapping[str, Json]) -> None:
        """Play and score the sample's episode, and store the messages and the result in the state.

        Raises EpisodeFailed, and the exceptions of `Model.generate`. If a limit of Inspect ends the solver, `result`
        scores the episode.
        """
        rollout = SteppedRollout(_services.of(self._app), env, output_mode=self._output_mode, label="inspect")
        self._open[state.uuid] = rollout
        messages = _Conversation()
        try:
            body = await rollout.next()
            while body is not None:
                state.messages = messages.of(body["messages"])
                state.output = output = await get_model().generate(
                    state.messages, tools_of(body), _tool_choice(body.get("tool_choice")), _config(body)
                )
                messages.add(output.message)
                state.messages.append(output.message)
                body = await rollout.next(reply_of(output))
            await self._ended(state, rollout)
        except LimitExceededError:
            raise
        except RolloutFailed as failed:
            raise self._failed(state, failed) from None  # the kit's log contains the traceback with its error id
        except Exception as error:
            state.metadata[RESULT] = {"status": "failed", "failure": type(error).__name__}
            raise

    async def result(self, state: TaskState) -> dict[str, Any]:
        """Return the result of the sample's rollout. If a limit of Inspect stopped the rollout, truncate and score it.

        Raises EpisodeFailed if the rollout failed or the sample has no rollout.
        """
        rollout = self._open.get(state.uuid)
        if RESULT not in state.metadata and rollout is not None:
            try:
                body = await rollout.next()
                while body is not None:
                    body = await rollout.next(truncating("a limit of Inspect"))
                await self._ended(state, rollout)
            except RolloutFailed as failed:
                raise self._failed(state, failed) from None
        if RESULT not in state.metadata:
            raise EpisodeFailed("This sample has no scores, because the task app's own solver did not play it.")
        result: dict[str, Any] = state.metadata[RESULT]
        return result

    async def end(self, state: TaskState) -> None:
        """Cancel the sample's episode if it is still running."""
        rollout = self._open.pop(state.uuid, None)
        if rollout is not None and not rollout.ended:
            await rollout.cancel()

    async def _ended(self, state: TaskState, rollout: SteppedRollout) -> None:
        played = rollout.result()
        state.messages.extend(_last_results(played, state.messages))
        state.metadata[RESULT] = _result_of(played)
        state.completed = True

    def _failed(self, state: TaskState, failed: RolloutFailed) -> EpisodeFailed:
        failure = failed.failure
        state.metadata[RESULT] = {
            "status": "failed",
            "rollout_id": failed.rollout_id,
            "boundary": failure.boundary,
            "code": failure.code,
            "error_id": failure.error_id,
        }
        return EpisodeFailed(sentence(failed))


def _result_of(rollout: Rollout) -> dict[str, Any]:
    """Return a rollout's result for the sample's metadata. An undefined reward or score is None."""
    card = rollout.scorecard
    return {
        "rollout_id": rollout.rollout_id,
        "digest": rollout.digest,
        "status": rollout.status,
        "stop_reason": rollout.stop_reason,
        "steps": rollout.length,
        "metrics": {**card.metrics, **rollout.metrics},
        "reward": rollout.reward,
        "criteria": {item.name: {"score": item.score, "reason": item.reason or item.error} for item in card.criteria},
    }


# conversion between Inspect's messages and the kit's messages


class _Conversation:
    """Converts an episode's conversation to Inspect's messages. All requests share the same message objects and ids."""

    def __init__(self) -> None:
        self._answers: list[ChatMessageAssistant] = []
        self._seen: list[tuple[dict[str, Any], ChatMessage]] = []

    def add(self, answer: ChatMessageAssistant) -> None:
        """Add the model's reply, which later requests contain."""
        self._answers.append(answer)

    def of(self, items: Sequence[dict[str, Any]]) -> list[ChatMessage]:
        """Convert the messages of a request.

        A shortened history may omit earlier replies, so replies are matched from the end.
        """
        names = {call["id"]: call["function"]["name"] for item in items for call in item.get("tool_calls") or ()}
        answers = iter(self._answers[len(self._answers) - sum(item["role"] == "assistant" for item in items) :])
        messages: list[ChatMessage] = []
        for item in items:
            if item["role"] == "assistant":
                messages.append(_repeated(next(answers), item))
                continue
            message = next((message for seen, message in self._seen if seen is item or seen == item), None)
            if message is None:
                message = _message(item, names)
                self._seen.append((item, message))
            messages.append(message)
        return messages


def _repeated(answer: ChatMessageAssistant, item: Mapping[str, Any]) -> ChatMessageAssistant:
    """Return the model's message with only those tool calls that the conversation contains."""
    repeated = [call["id"] for call in item.get("tool_calls") or ()]
    calls = answer.tool_calls or []
    if [call.id for call in calls] == repeated:
        return answer
    return answer.model_copy(
        update={
            "tool_calls": [
                ToolCall(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in item.get("tool_calls") or ()
            ]
        }
    )


def _message(item: Mapping[str, Any], names: Mapping[str, str]) -> ChatMessage:
    content = _content(item["content"])
    if item["role"] == "tool":
        identity = item["tool_call_id"]
        return ChatMessageTool(content=content, tool_call_id=identity, function=names.get(identity))
    if item["role"] == "user":
        return ChatMessageUser(content=content)
    return ChatMessageSystem(content=content)


def _content(content: Any) -> str | list[Any]:
    if isinstance(content, str):
        return content
    return [
        ContentText(text=part["text"]) if part["type"] == "text" else ContentImage(image=part["image_url"]["url"])
        for part in content
    ]


def _last_results(rollout: Rollout, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the observations after the last reply, which are not part of any request."""
    if not messages or not isinstance(last := messages[-1], ChatMessageAssistant) or not rollout.trajectory.turns:
        return []
    steps = rollout.trajectory.turns[-1].steps
    calls = last.tool_calls or []
    return [
        ChatMessageTool(content=text_of(step.observation), tool_call_id=calls[place].id, function=step.tool)
        if place < len(calls)
        else ChatMessageUser(content=text_of(step.observation))
        for place, step in enumerate(steps)
        if step.observation is not None
    ]


def tools_of(body: Mapping[str, Any]) -> list[ToolInfo]:
    """Convert the tools of a request. References are resolved, because Inspect's schemas do not support references."""
    tools = []
    for tool in body.get("tools") or ():
        function = tool["function"]
        schema = function["parameters"]
        shown = resolved(schema, schema)
        tools.append(
            ToolInfo(
                name=function["name"],
                description=function.get("description", ""),
                parameters=ToolParams.model_validate({**shown, "type": "object"}),
            )
        )
    return tools


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, Mapping):
        return ToolFunction(choice["function"]["name"])
    return {"required": "any"}.get(choice, choice)


def _config(body: Mapping[str, Any]) -> GenerateConfig:
    """Return the reply's schema in mode `structured`. Inspect determines all other settings."""
    requested = (body.get("response_format") or {}).get("json_schema")
    if requested is None:
        return GenerateConfig()
    schema = requested["schema"]
    shown = resolved(schema, schema)
    return GenerateConfig(
        response_schema=ResponseSchema.model_validate(
            {"name": requested["name"], "json_schema": shown, "strict": requested.get("strict")}
        )
    )


def reply_of(output: ModelOutput) -> ChatReply | ModelFailed:
    """Convert the model's output to a reply for the policy.

    If the conversation exceeds the model's context, return a ModelFailed, which truncates the episode.
    """
    if output.stop_reason == "model_length":
        return truncating(CONTEXT_OVERFLOW)
    message: dict[str, Json] = {"role": "assistant", "content": output.message.text or None}
    thoughts = [
        part.reasoning
        for part in (output.message.content if isinstance(output.message.content, list) else ())
        if isinstance(part, ContentReasoning) and not part.redacted
    ]
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if output.message.tool_calls:
        message["tool_calls"] = [
            # if arguments are not JSON, Inspect stores its own message instead, which is not JSON either
            chat_call(call.id, call.function, call.parse_error or json.dumps(call.arguments))
            for call in output.message.tool_calls
        ]
    usage: dict[str, float] = {}
    cost = None
    if output.usage is not None:
        used = output.usage
        read = used.input_tokens + (used.input_tokens_cache_read or 0) + (used.input_tokens_cache_write or 0)
        usage = {
            "prompt_tokens": read,
            "completion_tokens": used.output_tokens,
            "total_tokens": read + used.output_tokens,
        }
        cost = used.total_cost
    reason = "length" if output.stop_reason == "max_tokens" else output.stop_reason
    return ChatReply(message, reason, output.model, usage, cost, seconds=output.time or 0.0)
