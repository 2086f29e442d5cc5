"""A rollout's scores, and what its models used: calls, tokens and US dollars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from taskapp_kit.records.content import Json
from taskapp_kit.records.formatting import counted

JUDGES_SKIPPED = "judges_skipped"
"""The error of a judge whose score is null because the caller skipped judges."""


@dataclass(frozen=True, slots=True)
class Grade:
    """A score with its reason. If a rubric returns a grade, the scorecard shows the score and the reason.

    Attributes:
        score: 1.0 for a right answer and 0.0 for a wrong answer. A rubric that creates grades may use any value of its
            scale.
        reason: A short reason. The graders of `taskapp_kit.grading` never repeat the expected answer in it.
    """

    score: float
    reason: str

    def __float__(self) -> float:
        """Return the score, so that grades can be added and weighted as numbers."""
        return float(self.score)  # the score of an author's grade may be an int, a bool or a NumPy number

    def __bool__(self) -> bool:
        """Return whether the score is above 0."""
        return self.score > 0


@dataclass(frozen=True, slots=True)
class Blend:
    """The reward's formula: `env · return + event · events_score + outcome · outcome_score`.

    Weights are finite and at least 0, and not all of them are 0. This is checked at freeze and for each request.

    Attributes:
        env: Weight of the return, which is the sum of the step rewards.
        event: Weight of the sum of the events criteria.
        outcome: Weight of the outcome score.
    """

    env: float = 0.0
    event: float = 0.0
    outcome: float = 0.0

    def words(self) -> str:
        """Return the formula in readable form, e.g. `reward = 1 · return + 0.5 · outcome_score`."""
        parts = [
            f"{weight:g} · {name}"
            for weight, name in (
                (self.env, "return"),
                (self.event, "events_score"),
                (self.outcome, "outcome_score"),
            )
            if weight
        ]
        return "reward = " + " + ".join(parts or ["undefined"])


@dataclass(slots=True)
class CriterionScore:
    """The score of one criterion.

    Attributes:
        score: The score. None if the criterion is not applicable, not configured, or failed with weight 0 (see `error`).
        seconds: The wall time of scoring.
        cost: The cost in US dollars, or None if no model was called or the price is unknown.
        spread: The highest minus the lowest score in a judge's samples, or None for fewer than two samples.
        normalised: The score's position in its scale, from 0 to 1. The outcome score is computed from it. None if the score
            is None or outside its scale (only possible with weight 0), and for events criteria, which have no scale.
    """

    name: str
    of: str
    score: float | None
    weight: float
    required: bool = False
    reason: str | None = None
    seconds: float = 0.0
    cost: float | None = None
    error: str | None = None
    spread: float | None = None
    normalised: float | None = None


def normalised(score: float | None, scale: tuple[float, float]) -> float | None:
    """Return (score − low)/(high − low), from 0 to 1. Return None if the score is None or outside the scale."""
    low, high = scale
    if score is None or not low <= score <= high:
        return None
    if math.isinf(high - low):  # high − low may exceed the largest float
        score, low, high = score / 2, low / 2, high / 2
    return (score - low) / (high - low)


@dataclass(slots=True)
class JudgeCall:
    """One reply of a judge's model, usable or not.

    All strings are masked: they contain no values of the task's private fields.

    Attributes:
        judges: The names of the judges in this call.
        role: The role under which the judge's model is configured.
        model: The model's name.
        sample: The index of the sample, from 0, counted over all models of the judge.
        ask: The number of the attempt to get this sample, from 1.
        prompt: SHA-256 (hex) of the prompt, a key of `JudgeRecord.prompts`.
        verdict: The parsed reply, or None if the reply was unusable.
        problem: Why the reply was unusable.
        text: The reply as received, truncated.
        seconds: The duration of the call.
        cost: The cost in US dollars, or None if the price is unknown.
        attempts: How many times the HTTP client sent the request.
    """

    judges: list[str]
    role: str
    sample: int
    ask: int
    prompt: str
    model: str = ""
    verdict: Json = None
    text: str = ""
    problem: str | None = None
    usage: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    cost: float | None = None
    attempts: int = 1


@dataclass(slots=True)
class JudgeRecord:
    """All judge calls in the scoring of a rollout, and their prompts by SHA-256. Equal prompts are stored once.

    prompts: The messages as they were sent, but without random delimiters, with the task's private fields masked, and with
    each image replaced with `{"image": hash}`.
    """

    prompts: dict[str, Json] = field(default_factory=dict)
    calls: list[JudgeCall] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.calls)

    def to_json(self) -> dict[str, Json]:
        """Return the record for the store. It contains private data.

        To show the record, use `rollout.details.model_calls`, which masks the private data.
        """
        return {"prompts": self.prompts, "calls": [asdict(call) for call in self.calls]}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> JudgeRecord:
        """Return the inverse of `to_json`."""
        return cls(body["prompts"], [JudgeCall(**call) for call in body["calls"]])


@dataclass(slots=True)
class Scorecard:
    """A rollout's scores.

    `outcome_score` is computed from the normalised scores. `events_score` is the sum over all steps of Σ score·weight.
    `aggregation` is how the outcome's criteria are combined: weighted_sum, sum, or None for a custom function. `reward` is
    None if a part of the formula is undefined, for example if no outcome criterion was applicable. `judging` records the
    judge calls. `to_json` omits it, because responses never contain it.
    """

    criteria: list[CriterionScore] = field(default_factory=list)
    outcome_score: float | None = None
    events_score: float | None = None
    reward: float | None = None
    formula: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    aggregation: str = "weighted_sum"
    judging: JudgeRecord = field(default_factory=JudgeRecord)

    def to_json(self) -> dict[str, Json]:
        """Return the scorecard as JSON for responses, the store and the `scored` event."""
        return {
            "criteria": [
                {
                    "name": item.name,
                    "of": item.of,
                    "score": item.score,
                    "weight": item.weight,
                    "required": item.required,
                    "reason": item.reason,
                    "seconds": item.seconds,
                    "cost": item.cost,
                    "error": item.error,
                    "spread": item.spread,
                    "normalised": item.normalised,
                }
                for item in self.criteria
            ],
            "outcome_score": self.outcome_score,
            "events_score": self.events_score,
            "reward": self.reward,
            "formula": self.formula,
            "metrics": self.metrics,
            "aggregation": self.aggregation,
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Scorecard:
        """Return the inverse of `to_json`."""
        return cls(**{**body, "criteria": [CriterionScore(**item) for item in body["criteria"]]})


POLICY = "policy"
"""The role of the model that plays. Judges and user simulators have other roles."""
TOKEN_COUNTS = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
"""Names that endpoints use for prompt and completion tokens. Each endpoint uses one of the pairs."""
ModelUse = dict[str, Any]
"""The use of one model in one role: role, model, calls, tokens, cost (of the calls with a price, in US dollars, or None), and
unpriced_calls and unpriced_tokens for calls without a price.
"""


def tokens_of(usage: Mapping[str, float]) -> float:
    """Return the sum of prompt and completion tokens. If `usage` has neither, return `total_tokens`, or 0 without it."""
    counts = [usage[name] for name in TOKEN_COUNTS if name in usage]
    return math.fsum(counts) if counts else usage.get("total_tokens", 0.0)


def model_use(role: str, model: object, usage: Mapping[str, float], cost: object, calls: int = 1) -> ModelUse:
    """Return the ModelUse of `calls` calls of a model. cost: The cost in US dollars, or None if the price is unknown."""
    priced = isinstance(cost, int | float)
    tokens = tokens_of(usage)
    unpriced: ModelUse = {"unpriced_calls": 0 if priced else calls, "unpriced_tokens": 0.0 if priced else tokens}
    use = {"role": role, "model": str(model or ""), "calls": calls, "tokens": tokens, "cost": cost if priced else None}
    return use | unpriced


def summed(uses: Iterable[ModelUse]) -> list[ModelUse]:
    """Add up the uses of each model in each role."""
    found: dict[tuple[str, str], ModelUse] = {}
    for use in uses:
        total = found.setdefault((use["role"], use["model"]), {**use, **dict.fromkeys(_COUNTS, 0), "cost": None})
        for name in _COUNTS:
            total[name] += use[name]
        total["cost"] = known_sum((total["cost"], use["cost"]))
    return list(found.values())


_COUNTS = ("calls", "tokens", "unpriced_calls", "unpriced_tokens")


def known_sum(costs: Iterable[float | None]) -> float | None:
    """Return the sum of the known costs, or None if none is known."""
    known = [cost for cost in costs if cost is not None]
    return math.fsum(known) if known else None


def unpriced_words(uses: Iterable[ModelUse]) -> str:
    """Return a note such as `no price for small (judge): 12 calls, 3,456 tokens`, or "" if every call has a price."""
    named = [
        f"{use['model'] or 'a model'} ({use['role']}): {counted(use['unpriced_calls'], 'call')}, "
        f"{use['unpriced_tokens']:,.0f} tokens"
        for use in uses
        if use["unpriced_calls"]
    ]
    return f"no price for {'; '.join(named)}" if named else ""
