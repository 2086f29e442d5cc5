"""A reward-model endpoint: it reads and answers one number, without a reason.

What is sent: a str as `{"input": …}`, a list of messages as `{"messages": …}`, a dict as it is. What is understood: a
number in `score`, `reward`, or in `data`, as vLLM's `/classify`, `/score` and `/pooling` and their like write it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from taskapp_kit.contract.content import Json, plain
from taskapp_kit.rollout.score.judge_input import NotReadable, valid
from taskapp_kit.rollout.score.verdict import UnreadableVerdict

KIND = "kind"
REWARD_MODEL = "reward_model"
ANSWER = "answer"
"""The member of `ChatReply.message` that holds what a reward model answered, as it gave it."""


def reward_request(reading: Any) -> dict[str, Json]:
    """The body for `ModelPort.ask`: `kind` says that it is for a reward model and is not sent. Raises NotReadable."""
    told = plain(valid(reading), "reading")
    if isinstance(told, str):
        told = {"input": told}
    elif isinstance(told, list) and told and all(isinstance(item, dict) and "role" in item for item in told):
        told = {"messages": told}
    if not isinstance(told, dict) or KIND in told or "model" in told:
        raise NotReadable(
            f"returned a {type(reading).__name__}, expected what a reward model reads: a str, a list of messages, or a "
            "dict with the body (without model and kind)"
        )
    return {KIND: REWARD_MODEL, **told}


def read_reward(answer: Any, scale: tuple[float, float]) -> float:
    """The number that a reward model answered. Raises UnreadableVerdict for none, several, or one outside the scale."""
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
    """What stands alone in the lists and objects that it came in."""
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
