"""The public details of a stored rollout, which the terminal, the viewer's pages and exports show.

`details_of` reads a `StoredRollout` of this or any earlier release. The strings come unchanged from
models, environments and judges, so escape them before you display them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from taskapp_kit.errors import StoreError
from taskapp_kit.records.content import Json, text_of
from taskapp_kit.records.events import EpisodeRecord, TurnRecord
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.records.scorecard import (
    POLICY,
    TOKEN_COUNTS,
    CriterionScore,
    ModelUse,
    known_sum,
    model_use,
    summed,
    unpriced_words,
)
from taskapp_kit.rollout.score.judge_calls import mapped_json
from taskapp_kit.rollout.score.private import final_state_masker

_BLOB = re.compile(r"/blobs/([0-9a-f]{64})")
_CRITERION = {item.name for item in fields(CriterionScore)}


@dataclass(frozen=True, slots=True)
class Picture:
    """An image. sha256: the hash of the PNG bytes. width, height: the size in pixels. Each is None if it was not recorded."""

    sha256: str | None
    width: int | None = None
    height: int | None = None

    def __str__(self) -> str:
        return "[picture]" if self.width is None else f"[picture {self.width} x {self.height}]"


Block = str | Picture
"""A part of an observation or of a message."""


def words(blocks: Iterable[Block]) -> str:
    """Return the blocks as one string. An image is replaced with its size."""
    return "\n".join(map(str, blocks))


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """An action that a model or another policy requested. `args` is a str if the arguments were not valid JSON."""

    tool: str
    args: Json
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation. reasoning: a model's reasoning, or "" without reasoning. calls: the message's tool calls."""

    role: str
    blocks: tuple[Block, ...]
    reasoning: str = ""
    calls: tuple[RequestedCall, ...] = ()


@dataclass(frozen=True, slots=True)
class StepDetails:
    """An action and its result. index: the step's number from 0. seconds: the time spent in the environment.

    refused: why the action was refused, or None if it was not. coerced: how many arguments were converted.
    """

    index: int
    tool: str
    args: Json
    observation: tuple[Block, ...]
    reward: float | None
    terminated: bool
    truncated: bool
    refused: str | None
    coerced: int
    info: Mapping[str, Json]
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class TurnDetails:
    """One decision of the policy, and the steps that followed from it.

    index: the turn's number from 0. read: the messages that are new in this turn, without the model's own reply. After the
    first turn, these messages repeat the observations of the previous steps. The list is empty if the policy is not a model.
    reasoning, words: the model's reasoning and text, or "". problem: why the reply contained no valid action, or None if it had
    one. scripted: whether the caller supplied the action. seconds: how long the policy took. tokens: prompt and completion
    tokens, or None if unknown. cost: US dollars, or None if unknown.
    """

    index: int
    read: tuple[Message, ...]
    reasoning: str
    words: str
    calls: tuple[RequestedCall, ...]
    problem: str | None
    scripted: bool
    steps: tuple[StepDetails, ...]
    usage: Mapping[str, float]
    tokens: int | None
    cost: float | None
    seconds: float
    finish_reason: str | None
    attempts: int | None
    model_calls: int


@dataclass(frozen=True, slots=True)
class AuxiliaryCall:
    """A model call that the environment made, for example to simulate a user. Private fields are masked.

    messages: the messages that are new since the previous call with this role.
    """

    role: str
    messages: tuple[Message, ...]
    reply: Message
    usage: Mapping[str, float]
    seconds: float
    attempts: int
    cost: float | None


@dataclass(frozen=True, slots=True)
class JudgeCallDetails:
    """One reply of a judge's model, usable or not, with private fields masked. See `JudgeCall`."""

    judges: tuple[str, ...]
    role: str
    model: str
    sample: int
    ask: int
    prompt: tuple[Message, ...]
    verdict: Json
    text: str
    problem: str | None
    usage: Mapping[str, float]
    seconds: float
    cost: float | None
    attempts: int


@dataclass(frozen=True, slots=True)
class FailureDetails:
    """Where and why a rollout failed. `message` was written by taskapp-kit, not by a model or an environment."""

    boundary: str
    code: str
    message: str
    error_id: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class RolloutDetails:
    """The public details of a stored rollout. stored: the whole row. Its events and private columns are not shown.

    policy: the name of the policy that acted, which is `model` for a language model. model: the model's name at the endpoint.
    policy_config: the stored part of `policy.config`. initial: the first observation. tools: the names of the episode's
    actions. waiting_turn: the turn in which the policy did not reply, or None if it always replied. waiting_action: the
    action that did not return, or None if every action returned. limit: the name and value of the limit that ended the
    episode, or None if no limit ended it. formula: the reward formula as a string. metrics: the metrics of the episode and
    of scoring. timing: the seconds that each part took. usage: token counts under the endpoint's names. pictures: the SHA-256 of
    every image, in the order of first appearance.
    """

    stored: StoredRollout
    sample: int | None
    policy: str
    model: str | None
    policy_config: Mapping[str, Json]
    failure: FailureDetails | None
    limit: tuple[str, float] | None
    formula: str
    criteria: tuple[CriterionScore, ...]
    metrics: Mapping[str, float]
    initial: tuple[Block, ...]
    tools: tuple[str, ...]
    turns: tuple[TurnDetails, ...]
    waiting_turn: int | None
    waiting_action: RequestedCall | None
    auxiliary_calls: tuple[AuxiliaryCall, ...]
    judge_calls: tuple[JudgeCallDetails, ...]
    tokens: int | None
    cost: float | None
    usage: Mapping[str, float]
    pictures: tuple[str, ...]

    @property
    def steps(self) -> tuple[StepDetails, ...]:
        """The steps of all turns."""
        return tuple(step for turn in self.turns for step in turn.steps)

    @property
    def models(self) -> list[ModelUse]:
        """The usage of each model, including the models of judges and of the environment."""
        turns = (turn for turn in self.turns if turn.model_calls)
        return summed(
            [
                *(model_use(POLICY, self.model, turn.usage, turn.cost, turn.model_calls) for turn in turns),
                *(model_use(call.role, "", call.usage, call.cost) for call in self.auxiliary_calls),
                *(model_use(call.role, call.model, call.usage, call.cost) for call in self.judge_calls if call.model),
            ]
        )

    @property
    def unpriced(self) -> str:
        """A note on the calls without a known price, or "" if every call has a price."""
        return unpriced_words(self.models)

    def to_json(self) -> dict[str, Any]:
        """Return the details as JSON. An image is an object with `sha256`, `width` and `height`."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "stored"}
        plain: dict[str, Any] = {name: _plain(value) for name, value in own.items()}
        return {name: plain[name] if name in plain else getattr(self.stored, name) for name in _MEMBERS}


_MEMBERS = tuple(
    """rollout_id created_at run_id group_id app app_version kit_version environment environment_version split seed
    sample config policy model policy_config mode status stop_reason failure limit length total_reward reward
    outcome_score events_score formula criteria metrics initial tools turns waiting_turn waiting_action
    auxiliary_calls judge_calls timing seconds tokens cost usage digest observation_digest pictures""".split()
)
"""The fields of the details in JSON, in order."""


def _plain(value: Any) -> Any:
    """Return the value with data classes converted to dicts."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def details_of(stored: StoredRollout) -> RolloutDetails:
    """Return the public details of a stored rollout. Raises StoreError if its events cannot be decoded."""
    try:
        return _details(stored)
    # A damaged row may raise any error. Pages and commands then show one message and the other rollouts.
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as fault:
        raise StoreError(
            f"The stored rollout {stored.rollout_id!r} cannot be decoded: {type(fault).__name__}.",
            hint="Upgrade taskapp-kit if a newer release wrote the rollout. Otherwise restore the store from a backup.",
        ) from fault


def model_calls(private: Mapping[str, Json]) -> dict[str, Json]:
    """Return the judge calls and auxiliary model calls from a rollout's private column, with private values masked.

    The result has the fields `judge_calls` (as in `JudgeRecord.to_json`) and `auxiliary_calls`. A field is omitted
    if there were no such calls. The task's private fields were masked when the calls were stored. The final state, which a
    judge may read, is masked here in the judges' prompts and replies.
    """
    shown: dict[str, Json] = {}
    record = private.get("judge_calls")
    if record:
        # A judge may read the final state, which is private, so its prompts and replies could repeat it.
        mask = final_state_masker(private.get("final_state"))
        shown["judge_calls"] = {
            "prompts": {name: _masked_prompt(prompt, mask) for name, prompt in (record.get("prompts") or {}).items()},
            "calls": [{**call, "text": mask(call.get("text") or "")} for call in record.get("calls") or ()],
        }
    if private.get("second_calls"):
        shown["auxiliary_calls"] = private["second_calls"]
    return shown


def _masked_prompt(prompt: Json, mask: Callable[[str], str]) -> Json:
    """Mask all messages of a judge's prompt except the system message, which contains only the rules for the judge."""
    if not isinstance(prompt, list):
        return mapped_json(prompt, mask)
    return [message if message.get("role") == "system" else mapped_json(message, mask) for message in prompt]


def _details(stored: StoredRollout) -> RolloutDetails:
    episode = EpisodeRecord.of(stored.events)
    initial = _blocks(episode.observed.get("observation"))
    card = stored.scorecard or {}
    policy = stored.policy
    model = policy.get("model")
    turns = tuple(_turn(index, turn) for index, turn in enumerate(episode.turns))
    usage: dict[str, float] = {}
    for turn in turns:
        for name, count in turn.usage.items():
            usage[name] = usage.get(name, 0.0) + count
    calls = model_calls(stored.private)
    auxiliary = tuple(_auxiliary(call) for call in calls.get("auxiliary_calls", ()))
    judging = _judge_calls(calls.get("judge_calls", {}))
    costs = [*(turn.cost for turn in turns), *(call.cost for call in auxiliary), *(call.cost for call in judging)]
    return RolloutDetails(
        stored=stored,
        sample=policy["sample"] if isinstance(policy.get("sample"), int) else None,
        policy=str(policy.get("name") or policy.get("policy") or episode.started.get("policy", "")),
        model=model if isinstance(model, str) else None,
        policy_config={name: value for name, value in policy.items() if name != "name"},
        failure=_failure(stored, episode.failed.get("hint") or ""),
        limit=(episode.limited["limit"], episode.limited["value"]) if episode.limited else None,
        formula=str(card.get("formula") or ""),
        criteria=tuple(
            CriterionScore(**{name: value for name, value in item.items() if name in _CRITERION})
            for item in card.get("criteria") or ()
        ),
        metrics={**(episode.ended.get("metrics") or {}), **(card.get("metrics") or {})},
        initial=initial,
        tools=episode.tools,
        turns=turns,
        waiting_turn=episode.called if stored.status == "failed" else None,
        waiting_action=None if episode.acted is None else RequestedCall(episode.acted["tool"], episode.acted["args"]),
        auxiliary_calls=auxiliary,
        judge_calls=judging,
        tokens=stored.tokens if stored.tokens is not None else _tokens(usage),
        cost=known_sum(costs) if auxiliary or judging else stored.cost,
        usage=usage,
        pictures=tuple(_pictures(initial, turns, auxiliary, judging)),
    )


def _failure(stored: StoredRollout, hint: str) -> FailureDetails | None:
    if stored.failure is None:
        return None
    members = {name: str(stored.failure.get(name) or "") for name in ("boundary", "code", "message", "error_id")}
    return FailureDetails(**members, hint=str(stored.failure.get("hint") or hint))


def _step(step: Mapping[str, Any]) -> StepDetails:
    return StepDetails(
        index=step["index"],
        tool=step["tool"],
        args=step["args"],
        observation=_blocks(step.get("observation")),
        reward=step.get("reward"),
        terminated=bool(step.get("terminated")),
        truncated=bool(step.get("truncated")),
        refused=step.get("refused"),
        coerced=step.get("coerced") or 0,
        info=step.get("info") or {},
        metrics=step.get("metrics") or {},
        seconds=step.get("seconds") or 0.0,
    )


def _turn(index: int, turn: TurnRecord) -> TurnDetails:
    answer = turn.answer
    messages = [message_of(item) for item in answer.get("messages") or ()]
    own = messages.pop() if messages and messages[-1].role == "assistant" else None
    details = answer.get("details") or {}
    usage = answer.get("usage") or {}
    return TurnDetails(
        index=index,
        read=tuple(messages),
        reasoning=own.reasoning if own is not None else "",
        words=answer.get("output") or "",
        calls=tuple(
            RequestedCall(call["tool"], call["args"], call.get("id") or "") for call in answer.get("tool_calls") or ()
        ),
        problem=answer.get("problem"),
        scripted=turn.scripted,
        steps=tuple(map(_step, turn.steps)),
        usage=usage,
        tokens=_tokens(usage),
        cost=_number(details.get("cost")),
        seconds=turn.answered.get("seconds") or 0.0,
        finish_reason=details.get("finish_reason"),
        attempts=details.get("attempts"),
        model_calls=details.get("model_calls", 1 if "attempts" in details else 0),
    )


def _tokens(usage: Mapping[str, float]) -> int | None:
    counts = [usage[name] for name in TOKEN_COUNTS if name in usage]
    return int(sum(counts)) if counts else None


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _blocks(recorded: Json) -> tuple[Block, ...]:
    """Return a recorded observation or message content as blocks. An object is converted to JSON."""
    if isinstance(recorded, list):
        return tuple(map(_block, recorded))
    text = text_of(recorded)
    return (text,) if text else ()


def _block(item: Json) -> Block:
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        if isinstance(item.get("image"), str):
            return Picture(item["image"], item.get("width"), item.get("height"))
        if isinstance(item.get("text"), str):
            return str(item["text"])
        if "image_url" in item:
            address = item["image_url"].get("url") if isinstance(item["image_url"], dict) else item["image_url"]
            named = _BLOB.fullmatch(str(address))
            return Picture(named[1] if named else None)
    return json.dumps(item, ensure_ascii=False)


def message_of(message: Mapping[str, Any]) -> Message:
    """Convert a recorded chat message to a Message."""
    calls = message.get("tool_calls")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return Message(
        role=str(message.get("role") or ""),
        blocks=_blocks(message.get("content")),
        reasoning=reasoning if isinstance(reasoning, str) else "",
        calls=tuple(_call(call) for call in calls) if isinstance(calls, list) else (),
    )


def _call(call: Json) -> RequestedCall:
    """Convert a chat completions tool call to a RequestedCall. Arguments in a JSON string are decoded."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return RequestedCall("", call)
    args = function.get("arguments")
    if isinstance(args, str):
        # arguments that are not JSON are shown as the model wrote them
        with suppress(ValueError):
            args = json.loads(args)
    return RequestedCall(str(function.get("name") or ""), args, str(call.get("id") or ""))


def _auxiliary(call: Mapping[str, Any]) -> AuxiliaryCall:
    return AuxiliaryCall(
        role=str(call["role"]),
        messages=tuple(message_of(item) for item in call.get("messages") or ()),
        reply=message_of(call.get("reply") or {}),
        usage=call.get("usage") or {},
        seconds=call.get("seconds") or 0.0,
        attempts=call.get("attempts") or 1,
        cost=_number(call.get("cost")),
    )


def _judge_calls(record: Mapping[str, Any]) -> tuple[JudgeCallDetails, ...]:
    # once for each prompt, because all samples of a judge share one prompt
    prompts = {name: _prompt(prompt) for name, prompt in (record.get("prompts") or {}).items()}
    return tuple(
        JudgeCallDetails(
            judges=tuple(call["judges"]),
            role=call["role"],
            model=call.get("model") or "",
            sample=call["sample"],
            ask=call["ask"],
            prompt=prompts.get(call["prompt"], ()),
            verdict=call.get("verdict"),
            text=call.get("text") or "",
            problem=call.get("problem"),
            usage=call.get("usage") or {},
            seconds=call.get("seconds") or 0.0,
            cost=_number(call.get("cost")),
            attempts=call.get("attempts") or 1,
        )
        for call in record.get("calls") or ()
    )


def _prompt(prompt: Json) -> tuple[Message, ...]:
    """Return the messages of a judge's prompt. The request body for a reward model becomes one message."""
    messages = prompt.get("messages") if isinstance(prompt, dict) else prompt
    if isinstance(messages, list):
        return tuple(map(message_of, messages))
    return (Message("user", (json.dumps(prompt, ensure_ascii=False),)),)


def _pictures(
    initial: tuple[Block, ...],
    turns: Sequence[TurnDetails],
    auxiliary: Sequence[AuxiliaryCall],
    judging: Sequence[JudgeCallDetails],
) -> list[str]:
    shown: list[Block] = [*initial]
    for turn in turns:
        shown += [block for message in turn.read for block in message.blocks]
        shown += [block for step in turn.steps for block in step.observation]
    messages = [message for call in auxiliary for message in call.messages]
    messages += [message for call in judging for message in call.prompt]
    shown += [block for message in messages for block in message.blocks]
    return list(dict.fromkeys(block.sha256 for block in shown if isinstance(block, Picture) and block.sha256))
