"""What the models of rollouts used: calls, tokens and US dollars. Every figure of a cost is computed here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from taskapp_kit.records.words import counted

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
