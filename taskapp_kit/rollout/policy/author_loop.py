"""`@app.rollout`: the author's own agent loop, in place of the kit's conversation, where a model is to act.

The loop is a coroutine in the environment's thread. It runs while the policy is asked for its next action: until it takes a
step, which is the answer, or returns. So limits, records and failures are those of any other policy.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taskapp_kit.contract.chat import CONTEXT_OVERFLOW, POLICY, ChatReply, ModelFailed, ModelPort
from taskapp_kit.contract.content import Content, Json, NotJson, plain
from taskapp_kit.contract.protocols import PolicyStops, View
from taskapp_kit.contract.trajectory import Decision, PlayedStep, ToolCall
from taskapp_kit.rollout.policy.builtin import PolicyError
from taskapp_kit.rollout.policy.chat.parsed_message import parse_message
from taskapp_kit.rollout.policy.chat.prompt import tool_schemas
from taskapp_kit.rollout.policy.options import PolicyOptions

RETURNED = "rollout_returned"
"""The stop reason of an episode whose loop returned before the environment ended it: truncated, and scored."""


class LoopEnvironment:
    """The environment as the author's loop sees it.

    observation: what it showed last, as recorded (a text, a dict, or a list with pictures). tools: its actions as the
    `tools` of a chat-completions request. done: True once the episode is over; a loop is ended there, so it is rarely seen.
    """

    def __init__(self) -> None:
        self.observation: Content = None
        self.tools: list[dict[str, Json]] = []
        self.done = False
        self._wanted: asyncio.Queue[ToolCall] = asyncio.Queue()
        self._step: asyncio.Future[PlayedStep] | None = None

    async def step(self, tool: str, args: Mapping[str, Any] | str) -> PlayedStep:
        """Takes one action; what came of it, a refusal too. One at a time. Raises ValueError for what is not JSON."""
        if self._step is not None:
            raise PolicyError(
                "env.step() was called while another step is under way.", hint="Await each before the next."
            )
        try:
            call = ToolCall(str(tool), plain(args, "args"))
        except NotJson as error:
            raise ValueError(f"env.step({tool!r}): {error}") from None
        self._step = asyncio.get_running_loop().create_future()
        self._wanted.put_nowait(call)
        try:
            return await self._step
        finally:
            self._step = None


class LoopModel:
    """The model that plays, as the author's loop asks it."""

    def __init__(self, asking: PolicyOptions) -> None:
        self.fresh: list[dict[str, Json]] = []
        self.replies: list[ChatReply] = []
        self._asking = asking
        self._models: ModelPort | None = None
        self._known: list[dict[str, Json]] = []

    def use(self, models: ModelPort) -> None:
        """Whom to ask."""
        self._models = models

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None, **sampling: Any
    ) -> ChatReply:
        """One answer to a conversation. sampling: members of the request, over those of the caller's `policy.config`.

        Raises ModelFailed when there is none; ValueError for what is not JSON.
        """
        assert self._models is not None, "a loop is played with a model"
        asking = self._asking
        body: dict[str, Any] = {**asking.sampling, **sampling, **asking.extra, "messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
        if asking.logprobs:
            body["logprobs"] = True
        if asking.token_ids:
            body["return_token_ids"] = True
        try:
            request = plain(body, "request")
        except NotJson as error:
            raise ValueError(f"model.chat(): {error}") from None
        sent = request["messages"]
        known = len(self._known) if sent[: len(self._known)] == self._known else 0
        reply = self._models.ask(POLICY, {**request, "messages": [_fixed(message) for message in sent]})
        self.fresh += [*sent[known:], reply.message]
        self.replies.append(reply)
        self._known = [*sent, reply.message]
        return reply


class AuthorLoop:
    """A policy for one rollout: what `function(env, model, task)` decides. All calls in the environment's thread.

    shown: the public fields of a task's row, which are all that the loop gets of it: what it reads, the model may read.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        asking: PolicyOptions,
        name: str,
        shown: Callable[[Any], dict[str, Json]] | None = None,
    ) -> None:
        self.name = name
        self._shown = shown
        self._function = function
        self._model = LoopModel(asking)
        self._environment = LoopEnvironment()
        self._runner: asyncio.Runner | None = None
        self._task: asyncio.Task[Any] | None = None

    def use(self, models: ModelPort) -> None:
        """How the model is asked."""
        self._model.use(models)

    def decide(self, view: View) -> Decision:
        """Lets the loop run up to its next step. Raises PolicyStops when it returned, and what it raised."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            call = self._runner.run(self._until_step(view))
        except ModelFailed as failed:
            if failed.overflow:
                raise PolicyStops(CONTEXT_OVERFLOW) from None
            raise
        return self._answer(call)

    def close(self) -> None:
        """The episode is over: ends the loop."""
        self._environment.done = True
        if self._runner is not None:
            self._runner.close()  # cancels what still runs, and waits for it
            self._runner = None

    async def _until_step(self, view: View) -> ToolCall:
        environment = self._environment
        environment.observation = view.observation
        environment.tools = tool_schemas(view.tools)
        if self._task is None:
            task = None if self._shown is None else self._shown(view.task)
            given = {"env": environment, "model": self._model, "task": task}
            names = inspect.signature(self._function).parameters
            self._task = asyncio.ensure_future(self._function(**{name: given[name] for name in given if name in names}))
        elif environment._step is not None:
            environment._step.set_result(view.results[0])
        wanted = asyncio.ensure_future(environment._wanted.get())
        await asyncio.wait((self._task, wanted), return_when=asyncio.FIRST_COMPLETED)
        if wanted.done():
            return wanted.result()
        wanted.cancel()
        self._task.result()
        raise PolicyStops(RETURNED)

    def _answer(self, call: ToolCall) -> Decision:
        """The step, with the calls of the model since the one before."""
        model = self._model
        replies, model.replies = model.replies, []
        messages, model.fresh = model.fresh, []
        answer = Decision([call], messages=messages)
        for reply in replies:
            for name, count in reply.usage.items():
                answer.usage[name] = answer.usage.get(name, 0.0) + count
        if replies:
            last = replies[-1]
            content = last.message.get("content")
            answer.output = content if isinstance(content, str) and content else None
            answer.token_ids, answer.logprobs = last.token_ids, last.logprobs
            answer.prompt_token_ids, answer.policy_version = last.prompt_token_ids, last.policy_version
            answer.details = {**_details(last), "model_calls": len(replies)}
        if len(replies) > 1:  # one Decision has room for the tokens of one call
            answer.details["earlier_calls"] = [
                {
                    **_details(reply),
                    "prompt_token_ids": reply.prompt_token_ids,
                    "token_ids": reply.token_ids,
                    "logprobs": reply.logprobs,
                }
                for reply in replies[:-1]
            ]
        return answer


def _fixed(message: Json) -> Json:
    """A model's own message in the form in which endpoints take it back, whatever it was; others as they are."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return message
    return parse_message(message, {}, 0).back


def _details(reply: ChatReply) -> dict[str, Json]:
    told: dict[str, Json] = {"seconds": reply.seconds, "attempts": reply.attempts}
    told.update(
        {name: value for name, value in (("model", reply.model), ("finish_reason", reply.finish_reason)) if value}
    )
    if reply.cost is not None:
        told["cost"] = reply.cost
    return told
