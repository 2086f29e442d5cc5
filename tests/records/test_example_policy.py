from __future__ import annotations

from pathlib import Path

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.records.example_policy import example_policy
from taskapp_kit.rollout.policy.options import policies_of

EXAMPLES = Path(__file__).parents[2] / "examples"
ADDER, CAPITALS = str(EXAMPLES / "adder.py"), str(EXAMPLES / "capitals.py")


def test_each_policy_is_there_or_says_why_not() -> None:
    spec = find_app(ADDER).freeze()
    found = policies_of(spec, spec.default_environment)
    assert list(found) == ["gold", "random", "noop", "constant", "replay"]
    assert [name for name, why in found.items() if why] == ["noop"]
    assert "@action(noop=" in str(found["noop"])


def test_the_example_is_one_that_can_act() -> None:
    for app, wanted in ((ADDER, {"policy": "random"}), (CAPITALS, {"policy": "constant", "action": "hello"})):
        spec = find_app(app).freeze()
        assert example_policy(policies_of(spec, spec.default_environment)) == wanted


def test_where_no_action_takes_words_the_gold_policy_is_the_example() -> None:
    random_is_out = {"gold": None, "random": "no bounds", "constant": None, "replay": None}
    assert example_policy(random_is_out, words=False) == {"policy": "gold"}
    assert example_policy(random_is_out, words=True) == {"policy": "constant", "action": "hello"}


def test_without_a_policy_that_can_act_there_is_no_example() -> None:
    nothing = {"random": "no bounds", "noop": "none is marked", "constant": None, "replay": None}
    assert example_policy(nothing, words=False) == {}
    assert example_policy({**nothing, "noop": None}, words=False) == {"policy": "noop"}
