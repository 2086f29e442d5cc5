"""Calls a judge's models once for each sample, repeats calls without a valid verdict, and combines the scores.

A reward model replies with one number and no reason. If the judge's function returns a str, the request is `{"input": …}`. A
list of messages is sent as `{"messages": …}`, and a dict is sent unchanged. The response contains a number in `score`,
`reward` or `data`, as in vLLM's `/classify`, `/score` and `/pooling`.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from taskapp_kit.declare.specs import JudgeSpec
from taskapp_kit.errors import Failure, Unavailable
from taskapp_kit.records.content import Json, json_hash, plain
from taskapp_kit.records.scorecard import JudgeCall, JudgeRecord
from taskapp_kit.rollout.score.judge_input import (
    JudgePrompt,
    NotReadable,
    cleaned,
    draw_nonce,
    fitted,
    mapped,
    shortened,
    valid,
)
from taskapp_kit.rollout.score.verdict import UnreadableVerdict, Verdict, read_verdicts
from taskapp_kit.wire.chat.conversation import ChatReply, ModelFailed, ModelPort

log = logging.getLogger("taskapp_kit.score")

ASKS = 3
"""The maximum number of calls to get a usable verdict."""
STORED_CHARACTERS = 4_000
"""The maximum number of characters that are stored of a reply."""
REASON_CHARACTERS = 2_000

Mask = Callable[[str], str]
T = TypeVar("T")


class JudgeFailed(Exception):
    """A judge gave no verdict. stops: whether the rollout's time is up, so that scoring fails even if the judge has weight 0."""

    def __init__(self, failure: Failure, *, stops: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.stops = stops


class NotConfigured(Exception):
    """No model is configured for a judge's role."""

    def __init__(self, role: str) -> None:
        super().__init__(role)
        self.role = role


@dataclass(slots=True)
class JudgeUsage:
    """The usage of a judge's calls. seconds: wall time. cost: US dollars, or None without calls or if a price is unknown."""

    seconds: float = 0.0
    cost: float | None = None
    calls: int = 0

    def add(self, cost: float | None) -> None:
        """Add the cost of a call. cost: US dollars, or None if the price is unknown."""
        known = self.calls == 0 or self.cost is not None
        self.cost = (self.cost or 0.0) + cost if known and cost is not None else None
        self.calls += 1


@dataclass(slots=True)
class JudgeCaller:
    """Calls the models of judges and records the calls. mask: a function that masks private values in records."""

    models: ModelPort
    mask: Mask
    record: JudgeRecord
    names: list[str] = field(default_factory=list)

    def ask(
        self, judge: JudgeSpec, prompt_of: Callable[[int], JudgePrompt], spent: JudgeUsage
    ) -> list[dict[str, Verdict]]:
        """Return the verdicts, ordered by model and sample. prompt_of: a function that returns the prompt for a sample number.

        Raises NotConfigured if a role has no model, and JudgeFailed if a model gave no verdict.
        """

        def one(role: str, sample: int) -> dict[str, Verdict]:
            prompt = prompt_of(sample)
            digest = self._store(prompt)
            problem: str | None = None
            for ask in range(1, ASKS + 1):
                call = JudgeCall(self.names, role, sample, ask, digest)
                # Use a new nonce for each call, and only describe the problem. The unusable reply may be the policy's text,
                # so it is never sent back as the judge's own message.
                reply = self._call(call, prompt.body(draw_nonce(prompt.parts), problem), spent)
                try:
                    verdicts = read_verdicts(reply.message, prompt.questions, named=prompt.named)
                except UnreadableVerdict as error:
                    call.problem = problem = str(error)
                    continue
                verdicts = {name: self._shown(verdict) for name, verdict in verdicts.items()}
                call.verdict = {name: {"reason": v.reason, "score": v.score} for name, v in verdicts.items()}
                return verdicts
            raise self._unreadable(role, problem or "", ASKS)

        return self._each(judge, one, spent)

    def ask_for_rewards(
        self, judge: JudgeSpec, body: dict[str, Json], read: Callable[[ChatReply], float], spent: JudgeUsage
    ) -> list[float]:
        """Return one number for each reward model and sample. Invalid replies are not retried, as a retry would fail again."""

        def one(role: str, sample: int) -> float:
            call = JudgeCall(self.names, role, sample, 1, self._store_request(body))
            reply = self._call(call, body, spent)
            try:
                score = read(reply)
            except UnreadableVerdict as error:
                call.problem = str(error)
                raise self._unreadable(role, call.problem, 1) from None
            call.verdict = {"score": score}
            return score

        return self._each(judge, one, spent)

    def _each(self, judge: JudgeSpec, one: Callable[[str, int], T], spent: JudgeUsage) -> list[T]:
        began = time.perf_counter()
        try:
            return [
                one(role, index * judge.samples + sample)
                for index, role in enumerate(judge.models)
                for sample in range(judge.samples)
            ]
        finally:
            spent.seconds += time.perf_counter() - began

    def _call(self, call: JudgeCall, body: dict[str, Json], spent: JudgeUsage) -> ChatReply:
        # before the call, so that a failed call is also recorded
        self.record.calls.append(call)
        began = time.perf_counter()
        try:
            reply = self.models.ask(call.role, body)
        except Unavailable:
            # no model was called
            self.record.calls.pop()
            raise NotConfigured(call.role) from None
        except ModelFailed as failed:
            call.problem, call.seconds = failed.failure.message, time.perf_counter() - began
            raise self._ask_failed(call.role, failed) from failed
        call.model, call.usage, call.cost, call.attempts = reply.model, reply.usage, reply.cost, reply.attempts
        call.seconds = reply.seconds or time.perf_counter() - began
        content = reply.message.get("content")
        # limited before masking and storing, because a reply may have megabytes
        text = content if isinstance(content, str) else "" if content is None else str(content)[: 4 * STORED_CHARACTERS]
        call.text = shortened(self.mask(cleaned(text[: 64 * STORED_CHARACTERS])), STORED_CHARACTERS)
        spent.add(reply.cost)
        return reply

    def _shown(self, verdict: Verdict) -> Verdict:
        """Return the verdict with a cleaned, masked and shortened reason, which may be sent to clients."""
        return Verdict(verdict.score, shortened(self.mask(cleaned(verdict.reason)), REASON_CHARACTERS))

    def _store(self, prompt: JudgePrompt) -> str:
        # mask before hashing, so that equal prompts are stored once and the hash does not reveal private values
        parts = fitted(mapped(prompt.parts, self.mask))
        digest, messages = JudgePrompt(prompt.questions, tuple(parts), prompt.named, prompt.form).record()
        self.record.prompts[digest] = messages
        return digest

    def _store_request(self, body: dict[str, Json]) -> str:
        masked = mapped_json(body, self.mask)
        digest = json_hash(masked)
        self.record.prompts[digest] = masked
        return digest

    def _unreadable(self, role: str, problem: str, asks: int) -> JudgeFailed:
        times = "once" if asks == 1 else f"{asks} times"
        message = (
            f"{self._judge_names()} gave no verdict: the model with the role {role!r} was called {times}, "
            f"and its last reply was unusable: {problem}"
        )
        return JudgeFailed(
            Failure(
                "scoring", "judge_unreadable", message, "Use another model, or make the question clearer.", _new_id()
            )
        )

    def _ask_failed(self, role: str, error: ModelFailed) -> JudgeFailed:
        failure = error.failure
        if failure.boundary in ("timeout", "cancelled"):
            return JudgeFailed(replace(failure, error_id=failure.error_id or _new_id()), stops=True)
        message = f"{self._judge_names()} could not call the model with the role {role!r}: {failure.message}"
        return JudgeFailed(Failure("scoring", "judge_failed", message, failure.hint, failure.error_id or _new_id()))

    def _judge_names(self) -> str:
        many = "judge" if len(self.names) == 1 else "judges"
        return f"{many} {', '.join(map(repr, self.names))}"


def combined(scores: Sequence[float], how: str) -> float:
    """Combine scores to their mean, median or mode. The result is within the range of the scores.

    If there are several modes, the mode nearest to the median is used, or the lower of two equally near modes.
    """
    if how == "median":
        return statistics.median(scores)
    if how == "majority":
        counted = Counter(scores)
        most, middle = max(counted.values()), statistics.median(scores)
        return min((score for score, count in counted.items() if count == most), key=lambda s: (abs(s - middle), s))
    return min(
        max(statistics.fmean(scores), min(scores)), max(scores)
    )  # rounding may exceed the range, as in the mean of three times 0.1


def spread(scores: Sequence[float]) -> float | None:
    """Return the highest minus the lowest score, or None for fewer than two scores."""
    return max(scores) - min(scores) if len(scores) > 1 else None


def reason_of(verdicts: Sequence[Verdict], score: float) -> str:
    """Return the reason of the verdict that is nearest to the combined score."""
    return min(verdicts, key=lambda verdict: abs(verdict.score - score)).reason


def mapped_json(value: Json, change: Callable[[str], str]) -> Json:
    """Return the JSON value with `change` applied to each string except the keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: mapped_json(part, change) for name, part in value.items()}
    if isinstance(value, list):
        return [mapped_json(part, change) for part in value]
    return value


def _new_id() -> str:
    return uuid.uuid4().hex[:12]


KIND = "kind"
REWARD_MODEL = "reward_model"
ANSWER = "answer"
"""The field of `ChatReply.message` that contains a reward model's response unchanged."""


def reward_request(reading: Any) -> dict[str, Json]:
    """Return the body for `ModelPort.ask`. Its field `kind` marks a reward model and is not sent.

    Raises NotReadable if the value has a wrong type.
    """
    body = plain(valid(reading), "reading")
    if isinstance(body, str):
        body = {"input": body}
    elif isinstance(body, list) and body and all(isinstance(item, dict) and "role" in item for item in body):
        body = {"messages": body}
    # the operator's settings choose the model, so an author's dict must not contain one
    if not isinstance(body, dict) or KIND in body or "model" in body:
        raise NotReadable(
            f"returned a {type(reading).__name__}, expected the input of a reward model: a str, a list of messages, or "
            "a dict with the request body (without `model` and `kind`)"
        )
    return {KIND: REWARD_MODEL, **body}


def read_reward(answer: Any, scale: tuple[float, float]) -> float:
    """Return the number in a reward model's response. Raises UnreadableVerdict unless there is one number within the scale."""
    found = _one(answer)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise UnreadableVerdict("it held no number in score, reward or data")
    if not scale[0] <= found <= scale[1]:
        raise UnreadableVerdict(f"its number lay outside the scale {scale[0]:g} to {scale[1]:g}")
    number = float(found)
    if not math.isfinite(number):
        raise UnreadableVerdict("its number was not finite")
    return number


def _one(answer: Any) -> Any:
    """Unwrap a single value from nested lists and objects."""
    for _ in range(8):
        if isinstance(answer, list):
            if len(answer) != 1:
                raise UnreadableVerdict(f"it held {len(answer)} values where one was expected")
            answer = answer[0]
        elif isinstance(answer, Mapping):
            names = [name for name in ("score", "reward", "data", "probs", "scores", "rewards") if name in answer]
            if len(names) != 1:
                raise UnreadableVerdict(
                    "it held no number in score, reward or data" if not names else "it held several numbers"
                )
            answer = answer[names[0]]
        else:
            break
    return answer
