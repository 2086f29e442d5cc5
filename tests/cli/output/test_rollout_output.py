from __future__ import annotations

import pytest

from taskapp_kit.cli.output.rollout_output import action_words, observation_words, print_result, wire_words
from taskapp_kit.records.content import Image
from taskapp_kit.rollout.response import wire_observation

PICTURE = Image(bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c4944415478da6360606000000004000127d4c2e40000000049454e44ae426082"
))  # fmt: skip


@pytest.mark.parametrize(
    ("tool", "args", "words"),
    [
        ("add", {"amount": 3}, "add amount=3"),
        ("interact", {"actions": ["do", "noop"]}, "interact actions=[do, noop]"),
        ("place", {"at": {"x": 1}, "what": None}, 'place at={"x": 1} what=null'),
        ("step", [1, 2], "step [1, 2]"),
        ("", {}, "(no action)"),
    ],
)
def test_actions_in_words(tool: str, args: object, words: str) -> None:
    assert action_words(tool, args) == words


@pytest.mark.parametrize("observation", ["seen", None, {"a": 1}, {"text": "seen", "b": 2}])
def test_the_wire_tells_what_was_recorded(observation: object) -> None:
    assert wire_words(wire_observation(observation)) == observation_words(observation)


def test_a_picture_is_named_by_its_size() -> None:
    assert observation_words(["seen", PICTURE]) == "seen\n[picture 1 x 1]"
    assert wire_words(wire_observation(["seen", PICTURE])) == "seen\n[picture]"


def test_an_undefined_reward_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    criterion = {"name": "c", "of": "outcome", "score": None, "weight": 1.0, "required": False}
    body = {
        "trajectories": [{"length": 1}],
        "scorecard": {"criteria": [{**criterion, "reason": "not_applicable", "error": None}]},
        "metrics": {"mean_return": 0.0, "outcome_score": None, "events_score": None, "details": {"split": "train"}},
        "pipeline_metadata": {"environment": "e", "seed": 3, "policy": "random", "warnings": ["one was ignored"]},
        "reward": None, "reward_formula": "reward = 1 · outcome_score", "status": "terminated",
        "stop_reason": "environment", "timing": {"total": 0.1}, "rollout_id": "r", "digest": "d",
    }  # fmt: skip
    print_result(body)
    shown = capsys.readouterr()
    assert "reward   - (a part of the formula is undefined)" in shown.out
    assert "not_applicable" in shown.out
    assert "Warning: one was ignored" in shown.err
