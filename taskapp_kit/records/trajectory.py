"""The types of one episode: steps, turns and the trajectory.

An author's action returns a `Step`. A `PlayedStep` is a recorded step. A `Turn` is one decision of the policy and its steps.
A `Trajectory` is the full episode, folded from its events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from taskapp_kit.records.content import Content, Image, Json, json_hash, text_of, without_images

Status = Literal["running", "terminated", "truncated", "failed"]

KIT_METRICS = ("steps", "turns", "invalid_actions", "coerced_arguments")
"""The kit's metrics of an episode."""
RESERVED_METRICS = frozenset((*KIT_METRICS, "seed", "split", "rubric"))
"""Names in `metrics.details` of a response that metrics of environments and apps must not use."""


def nothing_accepted(length: int | None, metrics: Mapping[str, Any]) -> bool:
    """Return whether all actions of an episode with `length` steps were rejected or unusable, according to its metrics."""
    return bool(length) and metrics.get("invalid_actions", 0) >= (length or 0)


@dataclass(slots=True)
class Step:
    """What an action returns.

    Attributes:
        observation: A string, a dict, a pydantic model, or a list of Text and Image. If it is None, the policy is shown nothing.
        reward: A finite number, or None if the step has no reward. None is not 0.0: an undefined reward stays undefined.
        terminated: Whether the rules ended the episode.
        truncated: Whether a limit ended the episode.
        info: JSON for readers of the rollout. Responses and the store contain it, so it must not contain anything private.
            The policy never sees it.
        metrics: Numbers for readers of the rollout, summed over steps.
    """

    observation: Any = None
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class ToolCall:
    """An action as the policy requested it. `id` is the endpoint's id of the call, or "" if it sent none."""

    tool: str
    args: Json
    id: str = ""


@dataclass(slots=True)
class PlayedStep:
    """One action and its result.

    Attributes:
        index: The number of the step in its episode, from 0.
        tool: The name of the action.
        args: The action's arguments.
        observation: The observation that followed, or the message if the action was rejected.
        reward: The step's reward, or None if it has no reward.
        terminated: Whether the rules ended the episode.
        truncated: Whether a limit ended the episode.
        info: The environment's JSON for readers of the rollout.
        metrics: The environment's numbers.
        seconds: Time spent inside the environment.
        refused: Why the action was rejected (unknown tool, bad arguments, a rule of the environment), or None if it was not.
        coerced: The number of arguments that were converted to their declared type.
    """

    index: int
    tool: str
    args: Json
    observation: Content = None
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Json] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    refused: str | None = None
    coerced: int = 0


@dataclass(slots=True)
class Decision:
    """A policy's reply in one turn: text, tool calls, or both. Token data is stored as the endpoint sent it.

    `messages` has the new messages of this turn, with the model's message last. `problem` is why the text contains no action
    that can be run. The policy reads it in its next turn. `prompt_token_ids`, `token_ids` and `logprobs` are None unless the
    endpoint sent them. `details` describes the model call (finish_reason, attempts, seconds, cost, …).
    """

    tool_calls: list[ToolCall] = field(default_factory=list)
    output: str | None = None
    messages: list[dict[str, Json]] = field(default_factory=list)
    usage: dict[str, float] = field(default_factory=dict)
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    policy_version: str | None = None
    prompt_token_ids: list[int] | None = None
    problem: str | None = None
    details: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recording:
    """The recorded replies of a stored rollout's policy, in order.

    stops: The stop reason after the last reply. None if the environment or one of its declared limits ended the episode.
    """

    answers: Sequence[Decision]
    stops: str | None = None


@dataclass(slots=True)
class Turn:
    """One decision of the policy: the *new* messages, the output, and the steps that followed."""

    index: int
    answer: Decision
    steps: list[PlayedStep] = field(default_factory=list)


@dataclass(slots=True)
class Trajectory:
    """One played episode, folded from its events. Authors' rubrics read it.

    Attributes:
        environment: The environment's name.
        version: The environment's version.
        split: The split that contains the seed.
        seed: The seed of the episode.
        config: The caller's `env.config`, with defaults.
        initial: The first observation.
        turns: The policy's decisions, each with its steps.
        final_state: The environment's private end state, such as a database, or None if it defines none.
        status: `terminated`, `truncated` or `failed`.
        stop_reason: A code, listed in docs/reference/contract.md (`environment`, `max_steps`, `max_refusals`, …), or the
            failure's code.
        metrics: Numbers about the episode: the kit's metrics (`steps`, `turns`, `invalid_actions`, `coerced_arguments`) and
            the environment's metrics.
        steps: All steps in order.
    """

    environment: str
    version: str
    split: str
    seed: int
    config: dict[str, Json]
    initial: Content = None
    turns: list[Turn] = field(default_factory=list)
    final_state: Json = None
    status: Status = "running"
    stop_reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    steps: list[PlayedStep] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Return the number of steps."""
        return len(self.steps)

    @property
    def total_reward(self) -> float:
        """Return the sum of the step rewards. A reward of None is ignored."""
        return float(sum(step.reward for step in self.steps if step.reward is not None))

    @property
    def answer_text(self) -> str:
        """Return the policy's last text output, or "" if it wrote no text."""
        for turn in reversed(self.turns):
            if turn.answer.output:
                return turn.answer.output
        return ""

    def actions(self, name: str | None = None) -> list[PlayedStep]:
        """Return the steps of the action `name`, or of all actions, in order."""
        return [step for step in self.steps if name is None or step.tool == name]

    def transcript(self) -> str:
        """Return the episode as text, for a judge or a reader. Observations and actions alternate."""
        lines = [f"[start] {text_of(self.initial)}"]
        for step in self.steps:
            args = orjson.dumps(step.args).decode() if step.args is not None else ""
            lines.append(f"[{step.index + 1}] {step.tool} {args}")
            reward = "" if step.reward is None else f" (reward {step.reward:g})"
            lines.append(f"{text_of(step.observation)}{reward}")
        lines.append(f"[{self.status}: {self.stop_reason}]")
        return "\n".join(lines)

    def digest(self) -> str:
        """Return the SHA-256 (hex) of canonical JSON of the episode, without images, ids, times and configuration.

        Two runs have the same text, actions, rewards and end if and only if their digests are equal.
        """
        hashed = {
            "environment": self.environment,
            "version": self.version,
            "split": self.split,
            "seed": self.seed,
            "initial": without_images(self.initial),
            "turns": [
                [
                    turn.answer.output,
                    [
                        [
                            step.tool,
                            step.args,
                            without_images(step.observation),
                            step.reward,
                            step.terminated,
                            step.truncated,
                            step.info,
                            step.metrics,
                        ]
                        for step in turn.steps
                    ],
                ]
                for turn in self.turns
            ],
            "final_state": self.final_state,
            "status": self.status,
            "stop_reason": self.stop_reason,
        }
        return hashlib.sha256(orjson.dumps(hashed, option=orjson.OPT_SORT_KEYS)).hexdigest()

    def observation_digest(self, digest: str | None = None) -> str:
        """Return the digest that includes images. It is the same for two episodes if their digests and images are equal.

        An image from an array is compared by width, height and raw RGB, and an image from PNG by its bytes. Without images,
        the result equals the digest. If events were read without the bytes of their images, the result is different.

        digest: This trajectory's digest, if it is already known.
        """
        digest = self.digest() if digest is None else digest
        shown = [self.initial, *(step.observation for step in self.steps)]
        pictures = [
            [index, position, block.pixels or block.hash]
            for index, observation in enumerate(shown)
            if type(observation) is list
            for position, block in enumerate(observation)
            if isinstance(block, Image)
        ]
        return json_hash([digest, pictures]) if pictures else digest
