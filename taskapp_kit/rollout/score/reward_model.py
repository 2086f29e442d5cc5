"""Requests and answers of a reward-model endpoint, which answers with one number and no reason.

Requests: a str is sent as `{"input": …}`, a list of messages as `{"messages": …}`, a dict unchanged. Answers: a number in
`score`, `reward` or `data`, as vLLM's `/classify`, `/score` and `/pooling` and similar endpoints return it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from taskapp_kit.records.content import Json, plain
from taskapp_kit.rollout.score.judge_input import NotReadable, valid
from taskapp_kit.rollout.score.verdict import UnreadableVerdict

KIND = "kind"
REWARD_MODEL = "reward_model"
ANSWER = "answer"
"""The member of `ChatReply.message` that holds a reward model's answer, unchanged."""


def reward_request(reading: Any) -> dict[str, Json]:
    """The body for `ModelPort.ask`. Its member `kind` marks a reward model's request and is not sent. Raises NotReadable."""
    body = plain(valid(reading), "reading")
    if isinstance(body, str):
        body = {"input": body}
    elif isinstance(body, list) and body and all(isinstance(item, dict) and "role" in item for item in body):
        body = {"messages": body}
    if not isinstance(body, dict) or KIND in body or "model" in body:
        raise NotReadable(
            f"returned a {type(reading).__name__}, expected what a reward model reads: a str, a list of messages, or a "
            "dict with the body (without model and kind)"
        )
    return {KIND: REWARD_MODEL, **body}


def read_reward(answer: Any, scale: tuple[float, float]) -> float:
    """The number in a reward model's answer. Raises UnreadableVerdict for none, several, or one outside the scale."""
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
    """Unwraps a single value from nested lists and objects."""
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
