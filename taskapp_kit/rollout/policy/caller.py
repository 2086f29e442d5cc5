"""The policy of a session: a caller outside decides, in a model's place. `rollout/session.py` is the other side."""

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
"""The stop reason of an episode that a session's caller ended before its end: truncated, and scored."""


# A session takes the path by which a worker process asks for a model's reply, so threads, worker processes, limits,
# scoring and the store need no second form.
class CallerPolicy:
    """Asks the session for each decision, as a policy asks a model; used in the environment's thread or process.

    rewards: returns what steps are worth before the episode is scored. name: as it is stored.
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
        """Return the turn's `rewards`; in turn 0 also `messages` and `tools` for a model, and the episode's `actions`.

        The observations are in the episode's events.
        """
        self._tools = view.tools
        body: dict[str, Json] = {"rewards": self._rewards(view.results)}
        # sent once: the tools of an episode stay, and its observations are in its events
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
        """Return the caller's decision. Raises PolicyStops when the caller finishes the episode."""
        message = reply.message
        if message.get(FINISHED):
            raise PolicyStops(FINISHED)
        if "written" in message:
            # what a client sent may not be encodable, and is stored
            found, words, problem = read_written(without_surrogates(message["written"]), self._tools)
            return Decision(found, words, problem=problem)
        calls = [ToolCall(call["tool"], call["args"]) for call in message.get("actions", ())]
        return Decision(calls, message.get("text"))


def actions_message(
    actions: Sequence[tuple[str, Json]], text: str | None, written: str | None = None
) -> dict[str, Json]:
    """Return the message of a decision. text: the words of the turn, for environments that take words.

    written: instead of both, a model's words, in which the actions are written.
    """
    if written is not None:
        return {"written": written}
    message: dict[str, Json] = {"actions": [{"tool": tool, "args": args} for tool, args in actions]}
    if text is not None:
        message["text"] = text
    return message


FINISH_MESSAGE: dict[str, Json] = {FINISHED: True}
