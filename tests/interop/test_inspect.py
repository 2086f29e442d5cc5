"""Tasks made of our declarations, evaluated by inspect-ai 0.3.285 against the mock model.

Inspect plays all scenarios of a test in one process, because importing it takes seconds.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.testing import ChatRequest, MockModel, bad, play
from tests.interop.peer_programs import HERE, ROOT, found_by, output_of, python_of

PEER = "inspect-ai-0.3.285"
ADDER = ROOT / "examples" / "adder.py"
STEPPING = HERE / "verifiers_app.py"
ASKING = HERE / "shared" / "asking_apps.py"
NOWHERE = "http://127.0.0.1:9/v1"
pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.server]


def played(folder: Path, *scenarios: dict[str, Any], judge_url: str = NOWHERE) -> list[Any]:
    """What Inspect's logs say of each scenario."""
    given = [{**scenario, "app": str(scenario["app"])} for scenario in scenarios]
    variables = {"TASKAPP_JUDGE_URL": judge_url, "TASKAPP_JUDGE_MODEL": "judge"}
    found: list[Any] = found_by(
        PEER, "inspect_played.py", folder, folder / "logs", json.dumps(given), PYTHONPATH=str(ROOT), **variables
    )
    return found


def adding(request: ChatRequest) -> Any:
    """Adds what is missing to the target, three at most; in an environment without tools it answers with text."""
    if not request.body.get("tools"):
        return "a kind word"
    if "target" not in (text := request.messages[-1]["content"]):
        return {"add": {"amount": 2}}
    target, total = (int(part.split()[-1]) for part in text.splitlines()[-1].split(","))
    return {"add": {"amount": min(3, max(1, target - total))}}


def undefined(request: ChatRequest) -> Any:
    return "undefined"


def unknown(request: ChatRequest) -> Any:
    return {"jump": {}}


def test_inspect_has_the_scores_of_a_rollout_and_its_conversation(tmp_path: Path) -> None:
    with MockModel(adding) as model, MockModel(unknown) as jumping, MockModel(adding, latency_seconds=30) as slow:
        many, twice, refused, short, late = played(
            tmp_path,
            {"app": ADDER, "url": model.url, "task": {"split": "train", "seeds": "0-19"}},
            {"app": ADDER, "url": model.url, "task": {"seeds": [3]}, "eval": {"epochs": 2}},
            {"app": ADDER, "url": jumping.url, "task": {"seeds": 0}},
            {"app": ADDER, "url": model.url, "task": {"seeds": "0"}, "eval": {"message_limit": 4}},
            {"app": ADDER, "url": slow.url, "task": {"seeds": "0"}, "eval": {"time_limit": 2}},
        )
        same = [play(ADDER, seed=seed, policy=model) for seed in range(20)]
    assert many["peer"] == "inspect-ai 0.3.285" and many["status"] == "success" and many["task"] == "adder"
    assert many["dataset"] == "adder-train" and many["open"] == 0, "services are closed with the run"
    for sample, rollout in zip(many["samples"], same, strict=True):
        result = sample["metadata"]["taskapp"]
        assert (sample["scores"]["reward"], result["digest"]) == (rollout.reward, rollout.digest)
        assert sample["scores"] == {
            "reward": rollout.reward, **{item.name: item.score for item in rollout.scorecard.criteria},
        }  # fmt: skip
        turns = rollout.trajectory.turns
        assert sample["calls"] == [["add", step.args] for turn in turns for step in turn.steps]
        assert sample["roles"] == ["system", "user", *["assistant", "tool"] * len(turns)]
        assert sample["texts"][-1] == rollout.trajectory.steps[-1].observation
        assert sample["generated"] == len(turns) and sample["tokens"] > 0
    rewards = [rollout.reward for rollout in same]
    assert len(set(rewards)) > 1, "the episodes differ"
    assert many["results"]["reward"]["scored"] == 20
    assert many["results"]["reward"]["mean"] == pytest.approx(sum(rewards) / 20) and many["results"]["reward"]["stderr"]
    assert [sample["scores"]["reward"] for sample in twice["samples"]] == [same[3].reward] * 2

    (sample,) = refused["samples"]
    result = sample["metadata"]["taskapp"]
    assert (result["status"], result["stop_reason"]) == ("truncated", "max_refusals") and sample["error"] is None
    assert sample["scores"]["reward"] == result["reward"] == 0.0
    for cut, kind in ((short, "message"), (late, "time")):
        (sample,) = cut["samples"]
        assert (sample["limit"], sample["metadata"]["taskapp"]["status"]) == (kind, "truncated")
        assert sample["error"] is None and sample["scores"]["reward"] == 0.0


def test_failure_is_a_sample_error_without_a_score(tmp_path: Path) -> None:
    odd = {"environment": "steps", "config": {"breaks": "step"}}
    with MockModel(adding) as model, MockModel(undefined) as silent, MockModel(bad()) as unreadable:
        step, reset, judged, alone, none, strict, scored, asking, *refused = played(
            tmp_path,
            {"app": STEPPING, "url": model.url, "task": odd},
            {"app": STEPPING, "url": model.url, "task": {"config": {"breaks": "reset"}, "seeds": "0-3"}},
            {"app": STEPPING, "url": model.url, "task": {"environment": "judged", "seeds": "0-1"}},
            {"app": STEPPING, "url": NOWHERE, "task": {"seeds": "0"}},
            {"app": ASKING, "url": silent.url, "task": {"environment": "raising", "seeds": "0-1"}},
            {"app": STEPPING, "url": model.url, "task": odd, "eval": {"fail_on_error": True}},
            {"app": STEPPING, "url": model.url, "task": odd, "eval": {"score_on_error": True}},
            {"app": ASKING, "url": silent.url, "task": {"environment": "asking"}},
            {"app": STEPPING, "refused": {"split": "tran"}},
            {"app": STEPPING, "refused": {"seeds": "0-99"}},
            {"app": ASKING, "refused": {"environment": "counting"}},
            judge_url=unreadable.url,
        )
        same = [play(STEPPING, seed=seed, environment="steps", policy=model, judges="skip") for seed in range(0, 8, 2)]
    for broke in (step, reset, scored):
        assert [sample["error"] is not None for sample in broke["samples"]] == [
            seed % 2 == 1 for seed in range(len(broke["samples"]))
        ]
        failed = broke["samples"][1]
        assert "environment (environment_raised)" in failed["error"] and failed["scores"] == {}
        assert failed["metadata"]["taskapp"]["status"] == "failed" and "sentinel" not in json.dumps(broke)
    assert [sample["scores"]["reward"] for sample in step["samples"][::2]] == [rollout.reward for rollout in same]
    assert step["results"]["reward"]["mean"] == pytest.approx(sum(rollout.reward or 0 for rollout in same) / 4)
    assert step["results"]["reward"]["scored"] == 4 and step["status"] == "success"
    assert strict["status"] == "error" and "environment_raised" in strict["error"]
    for sample in judged["samples"]:
        assert "scoring (judge_unreadable)" in sample["error"] and sample["scores"] == {}
    (sample,) = alone["samples"]
    assert "APIConnectionError" in sample["error"] and sample["scores"] == {}
    for sample in none["samples"]:
        assert sample["scores"] == {"reward": "nan", "short": "nan"} and sample["error"] is None
    assert (none["results"]["reward"]["scored"], none["results"]["reward"]["unscored"]) == (0, 2)
    assert [sample["input"] for sample in asking["samples"]] == ["one and one?", "two and two?"]
    assert asking["samples"][1]["metadata"]["row"] == {"question": "two and two", "breaks": False}
    assert "four-only-here" not in json.dumps(asking), "a private field is nowhere"
    for text, expected in zip(refused, ("no split 'tran'", "belongs to split 'test'", "more than 10000"), strict=True):
        assert expected in text


def test_the_command_line_finds_the_task_by_its_entry_point(tmp_path: Path) -> None:
    """The package is installed in a directory, with the entry points that pyproject.toml declares."""
    site = tmp_path / "site-packages"
    info = site / "taskapp_kit-0.dist-info"
    info.mkdir(parents=True)
    (site / "taskapp_kit").symlink_to(ROOT / "taskapp_kit")
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["inspect_ai"]
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: taskapp-kit\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[inspect_ai]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))
    (tmp_path / "mine.py").write_text(
        "from inspect_ai import task\n"
        "from taskapp_kit.interop.inspect.task import inspect_task\n\n"
        "@task\n"
        f"def mine(split: str = 'train'):\n    return inspect_task({str(ADDER)!r}, split=split, seeds='0-3')\n"
    )
    with MockModel(adding) as model:
        for task, options in (
            ("taskapp_kit/taskapp", ["-T", f"app={ADDER}", "-T", "seeds=0-3"]),
            ("mine.py", ["-T", "split=train"]),
        ):
            logs = tmp_path / f"logs of {Path(task).stem}"
            command = ["eval", task, *options, "--model", "openai-api/mock/m", "--model-base-url", model.url]
            command += ["-M", "api_key=none", "--display", "none", "--log-format", "json", "--log-dir", str(logs)]
            output_of(
                [python_of(PEER), "-m", "inspect_ai", *command], tmp_path, PYTHONPATH=str(site), MOCK_API_KEY="none"
            )
            (found,) = logs.glob("*.json")
            log = json.loads(found.read_text())
            assert log["status"] == "success" and log["results"]["completed_samples"] == 4
            rewards = [sample["scores"]["reward"]["value"] for sample in log["samples"]]
            assert rewards == [play(ADDER, seed=seed, policy=model).reward for seed in range(4)]
