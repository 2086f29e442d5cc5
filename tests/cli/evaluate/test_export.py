"""`taskapp export`: the file, the sentence about it, and the flags that go with a format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import ADDER, Run
from tests.evaluate.export.stored_chats import FAILURE, model_rollout, saved


@pytest.fixture
def store(tmp_path: Path) -> str:
    rollouts = [
        model_rollout("best", (1, 2), reward=1.0),
        model_rollout("worst", (1, 1), reward=0.0),
        model_rollout("cut", (3,), status="truncated", seed=1),
        model_rollout("failed", (1,), status="failed", failure=FAILURE, reward=None, seed=2),
        model_rollout("test", (1,), split="test"),
    ]
    return str(saved(tmp_path / "rollouts.db", rollouts))


def test_training_data_of_the_train_split_and_why_the_rest_is_left_out(run: Run, store: str, tmp_path: Path) -> None:
    done = run("export", store, "--format", "sft", "--out", "sft.jsonl", "--app", ADDER, "--terminated", status=0)
    first, split, declarations, rewards, *left_out = done.output.splitlines()
    assert first.startswith("2 rollouts of 5 in sft.jsonl (sft, ") and "Only the split train" in split
    assert "2 have another spec hash" in declarations
    assert rewards == "  Rewards from 0 to 1; --min-reward excludes low rewards."
    assert left_out == ["  omitted: 1, not terminated", "  omitted: 1, failed"]
    lines = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert [line["rollout"] for line in lines] == ["best", "worst"]
    assert lines[0]["tools"][0]["function"]["description"] == "Add `amount` to the total."


def test_pairs_and_the_report_as_json(run: Run, store: str) -> None:
    args = ("export", store, "--format", "dpo", "--app", ADDER, "--json")
    done = run(*args, "--out", "dpo.jsonl", "--margin", "0.5")
    report = json.loads(done.stdout)
    assert (report["rollouts"], report["lines"], report["seen"]) == (2, 1, 5)
    assert report["left_out"] == {"failed": 1, "no rollout of its seed to pair it with": 1}


def test_demonstrations_of_a_policy_without_a_model(run: Run, tmp_path: Path) -> None:
    assert run("eval", ADDER, "--policy", "gold", "--seeds", "0-2", "--out", "gold").exit_code == 0
    done = run("export", "gold", "--format", "sft", "--out", "o", status=2)
    done = run("export", "gold", "--format", "sft", "--out", "o", "--demonstrations", "--min-reward", "0.5", status=0)
    assert done.output.startswith("3 rollouts of 3 in o (sft, "), done.output
    line = json.loads((tmp_path / "o").read_text().splitlines()[0])
    assert [message["role"] for message in line["messages"][:3]] == ["system", "user", "assistant"]
    assert line["messages"][2]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"amount": 3}}
    assert line["answers"] == list(range(2, len(line["messages"]), 2)) and line["tools"]


def test_the_filters_of_lists(run: Run, store: str, tmp_path: Path) -> None:
    done = run("export", store, "--format", "jsonl", "--out", "o", "--status", "failed", "--boundary", "policy")
    assert done.output.startswith("1 rollout of 1 in o (jsonl, "), done.output
    assert json.loads((tmp_path / "o").read_text())["code"] == "model_unreachable"
    assert run("export", store, "--format", "jsonl", "--out", "p", "--policy", "nobody").exit_code == 2
    assert not (tmp_path / "p").exists()


def test_what_does_not_go_together_is_refused(run: Run, store: str, tmp_path: Path) -> None:
    for flags in (["--margin", "1"], ["--best-of-seed"], ["--max-tokens", "9"], ["--app", ADDER]):
        done = run("export", store, "--format", "parquet", "--out", "o", *flags, status=2)
        assert f"{flags[0]} needs --format" in done.stderr
    (tmp_path / "o").write_text("mine")
    done = run("export", store, "--format", "jsonl", "--out", "o", status=2)
    assert "--force" in done.stderr and (tmp_path / "o").read_text() == "mine"
    assert run("export", store, "--format", "jsonl", "--out", "o", "--force").exit_code == 0
    done = run("export", store, "--format", "sft", "--out", "s", status=2)
    assert "Pass the app: --app APP." in done.stderr
    done = run("export", store, "--format", "jsonl", "--out", "missing/o", status=2)
    assert "missing/o cannot be written" in done.stderr


def test_tasks_of_an_app(run: Run, tmp_path: Path) -> None:
    done = run("export", "tasks", ADDER, "--seeds", "0-2", "--format", "jsonl", "--out", "t")
    assert done.output == "3 tasks in t (jsonl).\n"
    assert [json.loads(line)["seed"] for line in (tmp_path / "t").read_text().splitlines()] == [0, 1, 2]
    again = run("export", "tasks", ADDER, "--format", "jsonl", "--out", "t", status=2)
    assert "--force" in again.output
    told = run("export", "tasks", ADDER, "--split", "test", "--format", "nemo", "--out", "t", "--force", "--json")
    assert json.loads(told.stdout) == {"path": "t", "tasks": 20, "format": "nemo"}


def test_a_folder_named_tasks_is_named_with_its_dot(run: Run, store: str, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_bytes(Path(store).read_bytes())
    done = run("export", "./tasks", "--format", "jsonl", "--out", "o", "--status", "failed")
    assert done.output.startswith("1 rollout of 1 in o (jsonl, "), done.output
