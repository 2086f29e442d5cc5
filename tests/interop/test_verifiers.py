"""A package of `taskapp generate verifiers`, installed, in verifiers 0.3.1 and 0.4: 8 rollouts against the mock model each.

Each peer plays all scenarios in one process, because importing verifiers takes seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.deploy.packaging.verifiers_package import write_verifiers_package
from taskapp_kit.testing import ChatRequest, MockModel, bad, judge, play
from tests.interop.peer_programs import HERE, ROOT, found_by, output_of, python_of

APP = HERE / "verifiers_app.py"
NAME = "taskapp-stepping"
COUNT = 8
RAISES = [False, True] * 4
pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.server]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the installed package."""
    folder = tmp_path_factory.mktemp("verifiers")
    write_verifiers_package(find_app(str(APP)), str(APP), folder / "source", beside=folder)
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
    done = subprocess.run([*command, str(folder / "source")], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return target


def adding(request: ChatRequest) -> Any:
    """Adds 2 in each turn, independent of the messages, so that seeds have 1, 2 and 3 turns."""
    return {"add": {"amount": 2}} if request.body.get("tools") else "a kind word"


@pytest.fixture(scope="module")
def model() -> Iterator[MockModel]:
    with MockModel(adding) as running:
        yield running


def played(name: str, script: str, installed: Path, scenarios: list[dict[str, Any]], judge_url: str) -> list[Any]:
    """What the peer's script found in each scenario, played in an environment of the peer's."""
    found: list[Any] = found_by(
        name,
        script,
        installed.parent,
        NAME,
        json.dumps(scenarios),
        PYTHONPATH=f"{ROOT}{os.pathsep}{installed}",
        NO_KEY="none",
        TASKAPP_JUDGE_URL=judge_url,
        TASKAPP_JUDGE_MODEL="judge",
    )
    return found


def test_the_printed_line_plays_five_tasks_of_the_test_split(installed: Path, model: MockModel, tmp_path: Path) -> None:
    package = write_verifiers_package(find_app(str(APP)), str(APP), tmp_path / "package", beside=tmp_path)
    line = package.command.replace("MODEL", "m").replace("URL", model.url).split()
    program = python_of("verifiers-0.4.0").with_name(line[0])
    path = f"{ROOT}{os.pathsep}{installed}"
    output_of([program, *line[1:], "--no-rich"], tmp_path, PYTHONPATH=path, PRIME_API_KEY="none")
    (traces,) = tmp_path.glob("outputs/*/traces.jsonl")
    tasks = [json.loads(trace)["task"]["data"] for trace in traces.read_text().splitlines()]
    assert sorted((task["split"], task["seed"]) for task in tasks) == [("test", seed) for seed in range(8, 13)]


def expected(model: MockModel) -> list[Any]:
    """The same episodes as any rollout plays them."""
    return [play(APP, seed=seed, environment="steps", policy=model, judges="skip") for seed in range(COUNT)]


def test_verifiers_0_4_plays_the_taskset_with_its_own_harness(installed: Path, model: MockModel) -> None:
    url = model.url
    broken = {"config": json.dumps({"breaks": "step"})}
    with MockModel(judge(0.5)) as kind:
        scenarios = [
            {"url": url, "taskset": {"environment": "steps"}, "agent": {}},
            {"url": url, "taskset": broken, "agent": {}},
            {"url": url, "taskset": {"config": json.dumps({"breaks": "reset"})}, "agent": {}},
            {"url": url, "taskset": {"environment": "judged"}, "agent": {}},
            {"url": url, "taskset": {}, "agent": {"max_turns": 1}},
        ]
        plain, step, reset, judged, cut = played(
            "verifiers-0.4.0", "verifiers_current.py", installed, scenarios, kind.url
        )
    same = expected(model)
    assert plain["peer"] == "verifiers 0.4.0" and plain["env"] == "SteppingEnv" and all(plain["ok"])
    assert [info["digest"] for info in plain["info"]] == [rollout.digest for rollout in same]
    assert plain["rewards"] == [{"reward": rollout.reward} for rollout in same]
    assert plain["turns"] == [len(rollout.trajectory.turns) for rollout in same]
    assert [item["steps"] for item in plain["metrics"]] == [rollout.length for rollout in same]
    assert plain["prompts"][0].endswith("reach 1")

    for broke in (step, reset):
        assert broke["errors"] == [["TaskError"] if raises else [] for raises in RAISES]
        assert [not ok for ok in broke["ok"]] == RAISES
        assert all(not rewards or rewards["reward"] is None for rewards in broke["rewards"][1::2])
        assert broke["messages"][1].startswith("environment (environment_raised)")
    assert judged["rewards"] == [{"reward": 0.5}] * COUNT
    assert all(turns == 1 for turns in cut["turns"]) and all(cut["ok"]) and "max_turns" in cut["stops"]
    stopped = [info for info, stop in zip(cut["info"], cut["stops"], strict=True) if stop == "max_turns"]
    assert all(info["status"] == "truncated" and info["reward"] is not None for info in stopped)


def test_in_verifiers_0_4_a_failing_judge_and_no_model_are_errors(installed: Path, model: MockModel) -> None:
    with MockModel(bad()) as unreadable:
        scenarios = [
            {"url": model.url, "taskset": {"environment": "judged"}, "agent": {}},
            {"url": "http://127.0.0.1:9/v1", "taskset": {"num_tasks": 1}, "agent": {}},
        ]
        judged, alone = played("verifiers-0.4.0", "verifiers_current.py", installed, scenarios, unreadable.url)
    assert judged["errors"] == [["TaskError"]] * COUNT and not any(judged["ok"])
    assert all(not rewards or rewards["reward"] is None for rewards in judged["rewards"])
    assert judged["messages"][0].startswith("scoring (judge_unreadable)")
    assert alone["errors"] == [["ProviderError"]] and alone["ok"] == [False]


def test_verifiers_0_3_1_plays_load_environment(installed: Path, model: MockModel) -> None:
    url = model.url
    with MockModel(bad()) as unreadable, MockModel(adding, latency_seconds=30) as slow:
        scenarios = [
            {"url": url, "arguments": {"environment": "steps"}},
            {"url": url, "arguments": {"config": {"breaks": "step"}}, "rollouts": 2},
            {"url": url, "arguments": {"config": {"breaks": "reset"}}},
            {"url": url, "arguments": {"environment": "judged"}},
            {"url": url, "arguments": {"max_turns": 1}},
            {"url": slow.url, "arguments": {"timeout_seconds": 0.5}},
        ]
        plain, step, reset, judged, cut, late = played(
            "verifiers-0.3.1", "verifiers_classic.py", installed, scenarios, unreadable.url
        )
    same = expected(model)
    assert plain["peer"] == "verifiers 0.3.1" and plain["env"] == "TaskAppEnvironment"
    assert plain["errors"] == [None] * COUNT
    assert [item["digest"] for item in plain["taskapp"]] == [rollout.digest for rollout in same]
    assert plain["rewards"] == [str(rollout.reward) for rollout in same]
    assert [item["num_turns"] for item in plain["metrics"]] == [len(rollout.trajectory.turns) for rollout in same]
    assert [item["reached"] for item in plain["metrics"]] == [rollout.reward for rollout in same]
    assert plain["prompts"] == [f"reach {seed + 1}" for seed in range(COUNT)]

    pairs = [raises for raises in RAISES[:4] for _ in range(2)]
    assert step["examples"] == 4 and step["errors"] == ["Error" if raises else None for raises in pairs]
    assert [reward == "nan" for reward in step["rewards"]] == pairs, "never 0.0, as its own reward functions would be"
    assert [advantage for advantage, raises in zip(step["advantages"], pairs, strict=True) if raises] == [0.0] * 4
    assert reset["errors"] == ["Error" if raises else None for raises in RAISES]
    assert reset["messages"][1].startswith("environment (environment_raised)")
    assert judged["errors"] == ["InfraError"] * COUNT and judged["rewards"] == ["nan"] * COUNT
    assert judged["messages"][0].startswith("scoring (judge_unreadable)")
    assert cut["errors"] == [None] * COUNT and "max_turns_reached" in cut["stops"] and "nan" not in cut["rewards"]
    assert cut["truncated"] == [item["status"] == "truncated" for item in cut["taskapp"]]
    assert any(cut["truncated"])
    assert late["stops"] == ["timeout_reached"] * COUNT and late["errors"] == [None] * COUNT
    assert [item["status"] for item in late["taskapp"]] == ["truncated"] * COUNT and late["rewards"] == ["0.0"] * COUNT
