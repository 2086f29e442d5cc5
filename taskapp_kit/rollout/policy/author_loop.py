"""`@app.rollout`: the author's agent loop, which replaces the kit's conversation with the model.

The loop is a coroutine in the environment's thread. `decide` runs the loop until it returns or takes a step, which becomes
the decision. Limits, records and failures therefore work as for any other policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taskapp_kit.records.content import Content, Json, NotJson, plain
from taskapp_kit.records.protocols import PolicyStops, View
from taskapp_kit.records.scorecard import POLICY
from taskapp_kit.records.trajectory import Decision, PlayedStep, ToolCall
from taskapp_kit.rollout.policy.builtin import PolicyError
from taskapp_kit.rollout.policy.conversation import tool_schemas
from taskapp_kit.rollout.policy.options import PolicyOptions
from taskapp_kit.rollout.policy.parsed_message import parse_message
from taskapp_kit.wire.chat.conversation import CONTEXT_OVERFLOW, ChatReply, ModelFailed, ModelPort

RETURNED = "rollout_returned"
"""The stop reason of an episode whose loop returned before the end. The episode is truncated and scored."""


class LoopEnvironment:
    """The environment as the author's loop sees it.

    Attributes:
        observation: The latest observation as recorded: a string, a dict, or a list with images.
        tools: The actions as the `tools` of a chat-completions request.
        parameters: The parameters of each action by name, as JSON Schema, including the action for plain text.
        done: Whether the episode has ended. The loop is cancelled at the end, so the loop rarely sees True.
    """

    def __init__(self) -> None:
        self.observation: Content = None
        self.tools: list[dict[str, Json]] = []
        self.parameters: Mapping[str, Mapping[str, Json]] = {}
        self.done = False
        self._wanted: asyncio.Queue[ToolCall] = asyncio.Queue()
        self._step: asyncio.Future[PlayedStep] | None = None

    async def step(self, tool: str, args: Mapping[str, Any] | str) -> PlayedStep:
        """Take one action.

        Args:
            tool: The action's name.
            args: The action's arguments, or the text for an action that accepts plain text.

        Returns:
            The step as recorded. A refused action is also a step.

        Raises:
            ValueError: `args` is not JSON-serializable.
            PolicyError: Another step has not ended yet.
        """
        # two concurrent steps would have no order, but the episode records an order
        if self._step is not None:
            raise PolicyError(
                "env.step() was called while another step is running.", hint="Await each step before the next."
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
    """The policy's model, for the author's loop."""

    def __init__(self, options: PolicyOptions) -> None:
        self.fresh: list[dict[str, Json]] = []
        self.replies: list[ChatReply] = []
        self._options = options
        self._models: ModelPort | None = None
        self._known: list[dict[str, Json]] = []

    def use(self, models: ModelPort) -> None:
        """Set the models that `chat` calls."""
        self._models = models

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None, **sampling: Any
    ) -> ChatReply:
        """Request one completion from the policy's model.

        Args:
            messages: The conversation, as in a chat-completions request.
            tools: The tools that the model may call, such as `env.tools`.
            **sampling: Fields of the request, which override the caller's `policy.config`.

        Returns:
            The model's reply.

        Raises:
            ModelFailed: The model did not reply, even after retries.
            ValueError: An argument is not JSON-serializable.
        """
        assert self._models is not None, "a loop runs with a model"
        options = self._options
        # the caller's `extra_body` comes last, because the caller knows the endpoint's requirements
        body: dict[str, Any] = {**options.sampling, **sampling, **options.extra, "messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
        if options.logprobs:
            body["logprobs"] = True
        if options.token_ids:
            body["return_token_ids"] = True
        try:
            request = plain(body, "request")
        except NotJson as error:
            raise ValueError(f"model.chat(): {error}") from None
        sent = request["messages"]
        # recorded as differences, because the size of whole prompts would grow with the square of the turns
        known = len(self._known) if sent[: len(self._known)] == self._known else 0
        reply = self._models.ask(POLICY, {**request, "messages": [_resendable(message) for message in sent]})
        self.fresh += [*sent[known:], reply.message]
        self.replies.append(reply)
        self._known = [*sent, reply.message]
        return reply


class AuthorLoop:
    """The policy of a rollout in which the author's `function(env, model, task)` takes the steps, in the environment's thread.

    shown: a function that returns a row's public fields. The loop gets only these, because it may send them to the model.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: PolicyOptions,
        name: str,
        shown: Callable[[Any], dict[str, Json]] | None = None,
    ) -> None:
        self.name = name
        self._shown = shown
        self._function = function
        self._model = LoopModel(options)
        self._environment = LoopEnvironment()
        self._runner: asyncio.Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._stopping = asyncio.Event()
        self._stopped = False

    def use(self, models: ModelPort) -> None:
        """Set the models that the loop calls."""
        self._model.use(models)

    def decide(self, view: View) -> Decision:
        """Run the loop up to the next step. Raises PolicyStops if the loop returned, and the loop's own exceptions."""
        if self._runner is None:
            self._runner = asyncio.Runner()
            self._loop = self._runner.get_loop()
            if self._stopped:  # the episode was stopped before `stop` could see the loop
                self._stopping.set()
        try:
            call = self._runner.run(self._until_step(view))
        except ModelFailed as failed:
            # a limit of the episode, as in the kit's conversation, so the turns so far are scored
            if failed.overflow:
                raise PolicyStops(CONTEXT_OVERFLOW) from None
            raise
        return self._answer(call)

    def stop(self, reason: str) -> None:
        """Interrupt the current decision. `close` then cancels the loop. Called in another thread."""
        # Deadlines are checked between events and in model calls. A loop may wait for something else, such as a
        # program, so it is woken from outside.
        self._stopped = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed because the episode has ended
                self._loop.call_soon_threadsafe(self._stopping.set)

    def close(self) -> None:
        """Cancel the loop at the end of the episode."""
        self._environment.done = True
        if self._runner is not None:
            self._runner.close()  # cancels the running tasks and waits for them
            self._runner = None

    async def _until_step(self, view: View) -> ToolCall:
        environment = self._environment
        environment.observation = view.observation
        environment.tools = tool_schemas(view.tools)
        environment.parameters = {tool.name: tool.parameters for tool in view.tools}
        if self._task is None:
            task = None if self._shown is None else self._shown(view.task)
            given = {"env": environment, "model": self._model, "task": task}
            # a loop may omit parameters that it does not need, like policies and rubrics
            names = inspect.signature(self._function).parameters
            self._task = asyncio.ensure_future(self._function(**{name: given[name] for name in given if name in names}))
        elif environment._step is not None:
            environment._step.set_result(view.results[0])
        wanted = asyncio.ensure_future(environment._wanted.get())
        stopping = asyncio.ensure_future(self._stopping.wait())
        # the task may also return or raise without a step, or wait forever
        await asyncio.wait((self._task, wanted, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if wanted.done():
            return wanted.result()
        wanted.cancel()
        if not self._task.done():
            raise PolicyError("The rollout was stopped.")  # the episode reports the reason
        self._task.result()
        raise PolicyStops(RETURNED)

    def _answer(self, call: ToolCall) -> Decision:
        """Return the step as a Decision, with the model calls since the previous step."""
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
        if len(replies) > 1:  # a Decision has fields for the tokens of one call only
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


def _resendable(message: Json) -> Json:
    """Convert an assistant's message so that endpoints accept it back. Other messages are returned unchanged."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return message
    # a loop sends back the messages it received, but endpoints reject some fields that they return
    return parse_message(message, {}, 0).back


def _details(reply: ChatReply) -> dict[str, Json]:
    details: dict[str, Json] = {"seconds": reply.seconds, "attempts": reply.attempts}
    details.update(
        {name: value for name, value in (("model", reply.model), ("finish_reason", reply.finish_reason)) if value}
    )
    if reply.cost is not None:
        details["cost"] = reply.cost
    return details
