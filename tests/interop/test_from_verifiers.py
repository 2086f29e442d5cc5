"""`from_verifiers` in verifiers 0.3.1 and 0.4: environments of each kind, compared with verifiers' own rollouts of the same answers.

Each peer plays all scenarios in one process, because importing verifiers takes seconds.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peer_programs import HERE, ROOT, found_by

pytestmark = [pytest.mark.interop, pytest.mark.process]

Scenario = dict[str, Any]


def played(name: str, folder: Path, scenarios: list[Scenario]) -> list[dict[str, Any]]:
    """What the peer's script found in each scenario."""
    path = f"{ROOT}{os.pathsep}{HERE / 'verifiers_environments'}"
    answer = found_by(name, "verifiers_played.py", folder, json.dumps(scenarios), PYTHONPATH=path)
    assert name == f"verifiers-{answer['peer']}"
    found: list[dict[str, Any]] = answer["found"]
    return found


def classic(kind: str, answers: list[Any], seed: int = 0, **more: Any) -> Scenario:
    """A scenario of the classic module that verifiers also plays."""
    return {
        "module": "vf-classic",
        "arguments": {"kind": kind},
        "seed": seed,
        "answers": answers,
        "compared": True,
        **more,
    }


@pytest.fixture(scope="module")
def found_0_3_1(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """All of 0.3.1, by group."""
    groups: dict[str, list[Scenario]] = {
        "same": [
            classic("single", ["<answer>Paris</answer>"]),
            classic("single", ["It is Tokyo."], seed=1),
            classic("single", ["<answer>Nairobi</answer>"], seed=3, split="eval"),
            *(classic("multi", [*"0123"], seed=seed) for seed in range(6)),
            classic("multi", ["what?", "stop", "5"]),
            classic("tools", [{"add": {"a": 1, "b": 2}}, "it is 3"], seed=1),
            classic("tools", [{"divide": {"a": 0}}, {"add": {"a": 0, "b": 2}}, "2"]),
            classic("tools", [{"add": {"a": 1, "b": 1}}] * 3),
            classic("tools", ["7"]),
        ],
        "broken": [
            {"module": "vf-classic", "arguments": arguments, "answers": answers}
            for arguments, answers in (
                ({"breaks": "reward"}, ["Paris"]),
                ({"kind": "multi", "breaks": "setup"}, ["1"]),
                ({"kind": "multi", "breaks": "response"}, ["1"]),
                ({"kind": "multi", "breaks": "state"}, ["1", "2"]),
                ({"kind": "multi"}, ["1"]),
                ({"kind": "tools", "stop": True}, [{"divide": {"a": 0}}, "1"]),
            )
        ],
        "metric": [{"module": "vf-classic", "arguments": {"breaks": "metric"}, "answers": ["Paris"]}],
        "refused": [
            {"module": "vf-classic", "arguments": {"kind": "refused", "which": which}}
            for which in ("group", "stateful", "several", "own", "unpaid", "text")
        ]
        + [{"module": "vf-classic", "arguments": {"kind": "unknown"}}],
        "unpaid": [
            {
                "module": "vf-classic",
                "arguments": {"kind": "refused", "which": "unpaid", "rewarded": False},
                "answers": ["!"],
            }
        ],
    }
    flat = [one for group in groups.values() for one in group]
    found = iter(played("verifiers-0.3.1", tmp_path_factory.mktemp("classic"), flat))
    return {name: [next(found) for _ in group] for name, group in groups.items()}


def test_classic_environments_have_the_rewards_and_messages_of_verifiers(found_0_3_1: dict[str, Any]) -> None:
    rewards = set()
    for one in found_0_3_1["same"]:
        ours, theirs = one["ours"], one["theirs"]
        assert ours["reward"] == pytest.approx(theirs["reward"]) and ours["rewards"][:-1] == [None] * (
            theirs["turns"] - 1
        )
        assert {name: ours["metrics"][name] for name in theirs["metrics"]} == theirs["metrics"]
        assert ours["info"][-1] == {"stop_condition": theirs["stop"]}
        said = "\n\n".join(observation for observation in ours["observations"] if observation)
        assert said == "\n\n".join(theirs["said"])
        assert all(text in ours["prompt"] for text in theirs["prompt"])
        assert "private-sentinel" not in json.dumps(ours)
        rewards.add(ours["reward"])
    single, _, evaluated, *_ = found_0_3_1["same"]
    assert single["ours"]["splits"] == {"train": [0, 3], "eval": [3, 4]} and evaluated["ours"]["reward"] == 1.2
    assert single["ours"]["prompt"].endswith("[assistant] <answer>Rome</answer>\n\n[user] The capital of France?")
    assert len(rewards) > 4
    games = [one["ours"] for one in found_0_3_1["same"][3:9]]
    assert {game["status"] for game in games} == {"terminated", "truncated"}
    assert all(game["cleaned"] == [seed] for seed, game in enumerate(games)), "handlers ran once"
    tools = found_0_3_1["same"][10]["ours"]["tools"]
    assert tools["add"]["properties"]["a"] == {"type": "integer", "description": "the first"}
    assert found_0_3_1["same"][12]["ours"]["status"] == "truncated"


def test_an_exception_in_a_classic_environment_fails_the_rollout(found_0_3_1: dict[str, Any]) -> None:
    sentences = (
        "'correct' raised RuntimeError",
        "InfraError",
        "InfraError",
        "InfraError",
        "no reward",
        "ToolCallError",
    )
    for one, sentence in zip(found_0_3_1["broken"], sentences, strict=True):
        boundary, message = one["ours"]["failed"]
        assert boundary == "environment" and sentence in message and "secret" not in message
    (metric,) = found_0_3_1["metric"]
    assert metric["ours"]["reward"] == pytest.approx(0.04) and "characters" not in metric["ours"]["metrics"]


def test_unsupported_classic_environments_are_rejected_with_their_class(found_0_3_1: dict[str, Any]) -> None:
    named = ("EnvGroup", "StatefulToolEnv", "several scores several rollouts", "Own overrides score_rollout",
             "no reward function", "returned a str", "KeyError")  # fmt: skip
    for one, name in zip(found_0_3_1["refused"], named, strict=True):
        assert name in one["ours"]["refused"][0]
    (unpaid,) = found_0_3_1["unpaid"]
    assert unpaid["ours"]["rewards"] == [None]


def test_tasksets_of_0_4(tmp_path: Path) -> None:
    def sums(answer: str = "3", seed: int = 1, **arguments: Any) -> Scenario:
        return {"module": "vf-sums", "arguments": arguments, "seed": seed, "answers": [answer]}

    right, wrong, endless, broken, *refused = played(
        "verifiers-0.4.0", tmp_path,
        [
            sums(), sums("it is 4"), sums("902", 900, endless=True), sums(breaks="reward"),
            *(sums(form=form) for form in ("boxed", "prepared", "inspecting", "opened")),
            sums(nothing=1), {"module": "vf_player"}, {"module": "json"},
        ],
    )  # fmt: skip
    assert right["ours"]["prompt"] == "A number alone.\n\n1 + 2?" and right["ours"]["splits"] == {"train": [0, 5]}
    assert (right["ours"]["reward"], wrong["ours"]["reward"], endless["ours"]["reward"]) == (3.0, 0.5, 3.0)
    assert {name: right["ours"]["metrics"][name] for name in ("right", "brief", "asked", "turns_taken")} == {
        "right": 1.0, "brief": 1.0, "asked": 1.0, "turns_taken": 1.0,
    }  # fmt: skip
    assert broken["ours"]["failed"] == ["environment", "A reward function raised an exception. The log contains it."]
    named = ("a container", "a runtime for setup", "a runtime for file_there", "opens the conversation",
             "ValidationError", "its own Env (GamesEnv)", "exports no Taskset")  # fmt: skip
    for one, name in zip(refused, named, strict=True):
        assert name in one["ours"]["refused"][0]
