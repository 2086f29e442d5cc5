"""The policy of a session, in which an outside caller replaces the model. `rollout/session.py` is the caller's side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.records.content import Json, without_surrogates
from taskapp_kit.records.protocols import PolicyStops, Tool, View
from taskapp_kit.records.trajectory import Decision, PlayedStep, ToolCall
from taskapp_kit.rollout.policy.conversation import prompt_of, read_written
from taskapp_kit.rollout.policy.options import SESSION, PolicyOptions
from taskapp_kit.wire.chat.conversation import ChatReply

FINISHED = "finished"
"""The stop reason of an episode that the session's caller ended early. The episode is truncated and scored."""


# A session uses the path on which a worker process requests a model's reply. Threads, worker processes, limits, scoring
# and the store therefore need no code for sessions.
class CallerPolicy:
    """Requests each decision from the session, as if the session were a model. Runs in the environment's thread or process.

    rewards: a function that returns the reward parts of the steps so far. name: the stored name of the policy.
    """

    def __init__(
        self,
        app: AppSpec,
        environment: EnvironmentSpec,
        rewards: Callable[[Sequence[PlayedStep]], dict[str, float]],
        name: str = SESSION,
    ) -> None:
        self.name = name
        self._app = app
        self._environment = environment
        self._rewards = rewards
        self._tools: Sequence[Tool] = ()

    def ask(self, view: View) -> dict[str, Json]:
        """Return the turn's request, which contains `rewards`, and in turn 0 also `messages`, `tools` and `actions`.

        `messages` and `tools` are for callers that use a model. The observations are in the episode's events.
        """
        self._tools = view.tools
        body: dict[str, Json] = {"rewards": self._rewards(view.results)}
        # only in turn 0, because the tools never change, and the observations are in the episode's events
        if view.turn == 0:
            prompt = prompt_of(self._app, self._environment, PolicyOptions(), view)
            body["messages"] = prompt["messages"]
            body["tools"] = prompt.get("tools", [])
            body["actions"] = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                    "text": tool.text,
                }
                for tool in view.tools
            ]
        return body

    def read(self, reply: ChatReply) -> Decision:
        """Return the caller's decision. Raises PolicyStops if the caller finishes the episode."""
        message = reply.message
        if message.get(FINISHED):
            raise PolicyStops(FINISHED)
        if "written" in message:
            # a client's value is stored, but may not be encodable
            found, words, problem = read_written(without_surrogates(message["written"]), self._tools)
            return Decision(found, words, problem=problem)
        calls = [ToolCall(call["tool"], call["args"]) for call in message.get("actions", ())]
        return Decision(calls, message.get("text"))


def actions_message(
    actions: Sequence[tuple[str, Json]], text: str | None, written: str | None = None
) -> dict[str, Json]:
    """Return the message that sends a decision. actions: pairs of name and arguments. text: plain text, or None without text.

    written: a model's text that contains the actions, instead of `actions` and `text`.
    """
    if written is not None:
        return {"written": written}
    message: dict[str, Json] = {"actions": [{"tool": tool, "args": args} for tool, args in actions]}
    if text is not None:
        message["text"] = text
    return message


FINISH_MESSAGE: dict[str, Json] = {FINISHED: True}
