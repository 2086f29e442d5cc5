"""A rollout's scores, and what its models used: calls, tokens and US dollars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from taskapp_kit.records.content import Json
from taskapp_kit.records.words import counted

JUDGES_SKIPPED = "judges_skipped"
"""The reason beside the null score of a judge that was not called because the caller skips judges."""


@dataclass(frozen=True, slots=True)
class Blend:
    """The reward's formula: `env · return + event · events_score + outcome · outcome_score`.

    Weights are finite and ≥ 0, and not all 0; checked at freeze and for each request.

    Attributes:
        env: Weight of the return, the sum of the steps' rewards.
        event: Weight of the sum of the events criteria.
        outcome: Weight of the outcome score.
    """

    env: float = 0.0
    event: float = 0.0
    outcome: float = 0.0

    def words(self) -> str:
        """The formula in readable form, e.g. `reward = 1 · return + 0.5 · outcome_score`."""
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
    """The score of one criterion. `score` None: not applicable, not configured or (weight 0) failed; see `error`.

    seconds: wall time of the criterion; cost: US dollars spent on it, None when no model was called or its price is not
    known. spread: highest minus lowest of a judge's samples, None with fewer than two. normalised: the score's position
    in its declared scale, from 0 to 1, which enters the outcome; None where `score` is None or outside the scale
    (weight 0), and for criteria of events, which have no scale.
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
    """(score − low)/(high − low), from 0 to 1; None without a score, and for one outside the scale."""
    low, high = scale
    if score is None or not low <= score <= high:
        return None
    if math.isinf(high - low):  # a scale over more than half of all floats
        score, low, high = score / 2, low / 2, high / 2
    return (score - low) / (high - low)


@dataclass(slots=True)
class JudgeCall:
    """One answer of a judge's model, usable or not.

    judges: the names of the judges in this call. role: the model's role, model: its own name. sample: 0 for the first,
    counted over all samples and models. ask: how many requests it took until this answer, from 1. prompt: SHA-256 (hex)
    of the prompt, a key of `JudgeRecord.prompts`. verdict: as parsed from the answer; None when that was unusable, then
    `problem` says why. text: the answer as received, truncated. seconds: of the call, cost in US dollars where the price
    is known, attempts: of the client. Private fields of the task are replaced in all texts.
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
    """Every call of one scoring, and each prompt once, by its SHA-256, without its random delimiters.

    prompts: messages as they were sent, private fields of the task replaced, images as `{"image": hash}`.
    """

    prompts: dict[str, Json] = field(default_factory=dict)
    calls: list[JudgeCall] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.calls)

    def to_json(self) -> dict[str, Json]:
        """The record as it is stored, with the private data; see `rollout.details.model_calls` for what is shown of it."""
        return {"prompts": self.prompts, "calls": [asdict(call) for call in self.calls]}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> JudgeRecord:
        """The inverse of `to_json`."""
        return cls(body["prompts"], [JudgeCall(**call) for call in body["calls"]])


@dataclass(slots=True)
class Scorecard:
    """A rollout's scores. `outcome_score` of normalised scores, `events_score` the sum over steps of Σ score·weight.

    `aggregation` is how the outcome's criteria became one score: weighted_sum, sum or custom (then it is None).
    `reward` is None when a part of the formula is undefined (say every outcome criterion was not applicable).
    `judging` records the calls of judges; no answer contains it, so `to_json` leaves it out.
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
        """The scorecard as in the response, the store and the `scored` event."""
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
        """The inverse of `to_json`."""
        return cls(**{**body, "criteria": [CriterionScore(**item) for item in body["criteria"]]})


POLICY = "policy"
"""The role of the model that plays; judges and user simulators have names of their own."""
TOKEN_COUNTS = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
"""Names that endpoints use for prompt and completion tokens; each endpoint uses one pair."""
ModelUse = dict[str, Any]
"""One model in one role: role, model, calls, tokens, cost (US dollars of the calls with a price, None without any), and
unpriced_calls and unpriced_tokens of the others."""


def tokens_of(usage: Mapping[str, float]) -> float:
    """Prompt and completion tokens of a `usage`; their total where only that is known."""
    counts = [usage[name] for name in TOKEN_COUNTS if name in usage]
    return math.fsum(counts) if counts else usage.get("total_tokens", 0.0)


def model_use(role: str, model: object, usage: Mapping[str, float], cost: object, calls: int = 1) -> ModelUse:
    """The use of some calls; their cost None where the price is not known."""
    priced = isinstance(cost, int | float)
    tokens = tokens_of(usage)
    unpriced: ModelUse = {"unpriced_calls": 0 if priced else calls, "unpriced_tokens": 0.0 if priced else tokens}
    use = {"role": role, "model": str(model or ""), "calls": calls, "tokens": tokens, "cost": cost if priced else None}
    return use | unpriced


def summed(uses: Iterable[ModelUse]) -> list[ModelUse]:
    """The same, added up for each model and role."""
    found: dict[tuple[str, str], ModelUse] = {}
    for use in uses:
        total = found.setdefault((use["role"], use["model"]), {**use, **dict.fromkeys(_COUNTS, 0), "cost": None})
        for name in _COUNTS:
            total[name] += use[name]
        total["cost"] = known_sum((total["cost"], use["cost"]))
    return list(found.values())


_COUNTS = ("calls", "tokens", "unpriced_calls", "unpriced_tokens")


def known_sum(costs: Iterable[float | None]) -> float | None:
    """The sum of the known costs; None without any."""
    known = [cost for cost in costs if cost is not None]
    return math.fsum(known) if known else None


def unpriced_words(uses: Iterable[ModelUse]) -> str:
    """`no price for small (judge): 12 calls, 3,456 tokens`; empty where every call has a price."""
    named = [
        f"{use['model'] or 'a model'} ({use['role']}): {counted(use['unpriced_calls'], 'call')}, "
        f"{use['unpriced_tokens']:,.0f} tokens"
        for use in uses
        if use["unpriced_calls"]
    ]
    return f"no price for {'; '.join(named)}" if named else ""
