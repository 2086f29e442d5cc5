"""`tokens`: what was read and sampled, token by token, or not at all."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.export.training_data import NO_MODEL, NO_REWARD, NO_TOKENS, sequences_of
from taskapp_kit.records.protocols import StoredRollout
from tests.evaluate.export.stored_chats import model_rollout
from tests.evaluate.export.test_training_data import exported

Call = tuple[list[int], list[int], list[float]]
TURNS: list[Call] = [([1, 2], [3, 4], [-0.1, -0.2]), ([1, 2, 3, 4, 5, 5], [6], [-0.3])]


def with_tokens(stored: StoredRollout, calls: list[Call], earlier: Sequence[Call] = ()) -> StoredRollout:
    """The rollout as if its endpoint had returned these tokens. earlier: of calls before the last one of the first turn."""
    events: list[Any] = copy.deepcopy(list(stored.events))
    answers = [event["answer"] for event in events if event["kind"] == "answered"]
    for number, (answer, call) in enumerate(zip(answers, calls, strict=True)):
        answer |= members(call)
        answer["details"] = {"attempts": 1, "earlier_calls": [members(each) for each in earlier if not number]}
    return replace(stored, events=events)


def members(call: Call) -> dict[str, Any]:
    return dict(zip(("prompt_token_ids", "token_ids", "logprobs"), call, strict=True))


def test_a_prompt_that_continues_is_appended_and_another_begins_a_sequence() -> None:
    whole = {
        "tokens": [1, 2, 3, 4, 5, 5, 6], "mask": [0, 0, 1, 1, 0, 0, 1], "logprobs": [0.0, 0.0, -0.1, -0.2, 0.0, 0.0, -0.3],
    }  # fmt: skip
    assert sequences_of(with_tokens(model_rollout("r"), TURNS)) == [whole]
    other: Call = ([9], [8], [-0.5])
    first = {"tokens": [9, 8], "mask": [0, 1], "logprobs": [0.0, -0.5]}
    assert sequences_of(with_tokens(model_rollout("r"), TURNS, earlier=[other])) == [first, whole]


def test_lines_have_the_tokens_and_where_they_come_from(tmp_path: Path) -> None:
    tokens = with_tokens(model_rollout("r", policy={"model": "m", "temperature": 0.7}), TURNS)
    short = with_tokens(model_rollout("short"), [TURNS[0], ([1, 2, 3, 4, 5, 5], [6, 7], [-0.3])])
    (line,), report = exported(
        tmp_path,
        "tokens",
        [
            tokens,
            model_rollout("without", details={"attempts": 1}),
            short,
            model_rollout("local", local=True),
            replace(tokens, rollout_id="failed", reward=None),
            replace(tokens, rollout_id="test", split="test"),
        ],
    )
    assert line.pop("sequences") == sequences_of(tokens)
    assert line == {
        "environment": "adder", "split": "train", "seed": 0, "rollout": "r", "status": tokens.status,
        "reward": tokens.reward, "model": "m", "temperature": 0.7,
    }  # fmt: skip
    assert report.left_out == {NO_TOKENS: 2, NO_MODEL: 1, NO_REWARD: 1}


def test_a_file_without_a_rollout_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No rollout can be exported as tokens"):
        exported(tmp_path, "tokens", [model_rollout("without", details={"attempts": 1})])
