"""What the tests of judges share: scripted models behind a real port, apps with a judge, trajectories."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.errors import Unavailable
from taskapp_kit.records.content import Json
from taskapp_kit.records.scorecard import Scorecard
from taskapp_kit.records.trajectory import Decision, PlayedStep, Trajectory, Turn
from taskapp_kit.rollout.score.scoring import score
from taskapp_kit.wire.chat.conversation import ChatReply


class Row(BaseModel):
    question: str
    answer: Private[str] = ""


Script = Callable[[dict[str, Json]], Any]


@dataclass
class Models:
    """A ModelPort. script: what a model answers to a body, as content (str), message (dict), ChatReply or exception.

    A list answers in turn, its last for ever. roles: whose model it is.
    """

    script: Script | Sequence[Any]
    roles: tuple[str, ...] = ("judge",)
    cost: float | None = 0.001
    asked: list[tuple[str, dict[str, Json]]] = field(default_factory=list)

    def ask(self, role: str, body: dict[str, Json]) -> ChatReply:
        if role not in self.roles:
            raise Unavailable(f"no model is configured for the role {role!r}.")
        self.asked.append((role, json.loads(json.dumps(body))))
        said = self.script(body) if callable(self.script) else self.script[min(len(self.asked), len(self.script)) - 1]
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, ChatReply):
            return said
        message = said if isinstance(said, dict) else {"role": "assistant", "content": said}
        return ChatReply(
            message, "stop", f"{role}-1", {"prompt_tokens": 7, "completion_tokens": 3}, self.cost, seconds=0.5
        )

    def text(self, at: int = -1) -> str:
        """All words of one request."""
        return words(self.asked[at][1])


def words(body: dict[str, Json]) -> str:
    """All words of a request, messages apart."""
    told = []
    for message in body["messages"]:
        content = message["content"]
        told += [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return "\n\n".join(told)


def verdict(score: Any, reason: Any = "Because.") -> str:
    return json.dumps({"reason": reason, "score": score})


def judged_app(read: Callable[..., Any] | None = None, **options: Any) -> TaskApp:
    """One question, and a judge that reads the answer (or what `read` gives)."""
    app = TaskApp("judged")
    app.tasks("judged", row=Row, prompt="{question}", train=[Row(question="Why does it rain?", answer="clouds")])

    def answer_quality(answer_text: str) -> Any:
        """Would a child of ten understand this explanation?"""
        return answer_text

    function = answer_quality
    if read is not None:
        read.__doc__ = answer_quality.__doc__
        function = read
    app.judge(**{"name": "quality", **options})(function)
    return app


def said(text: str, *, seed: int = 0) -> Trajectory:
    """A trajectory of one answer."""
    step = PlayedStep(0, "answer", {"text": text}, "", terminated=True)
    turn = Turn(0, Decision(output=text), [step])
    return Trajectory(
        "judged", "1", "train", seed, {}, "Why does it rain?", [turn], None, "terminated", "environment", {}, [step]
    )


def card_of(app: TaskApp, text: str, models: Models | None, *, task: Any = None) -> Scorecard:
    """The scorecard of an answer."""
    return score(
        app.freeze(), said(text), task=task or Row(question="Why does it rain?", answer="clouds"), models=models
    )


BOUNDARY = re.compile(r"<material-([0-9a-f]{32})>.*?</material-\1>", re.DOTALL)


def outside(body: dict[str, Json]) -> str:
    """What stands outside the boundaries, as a model sees it that trusts them and nothing else."""
    return BOUNDARY.sub("", words(body))
