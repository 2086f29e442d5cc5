"""`sft` and `dpo`: conversations as the model read them, nothing that cannot be learned from, and why the rest is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.export.conversation import ToolSchemas
from taskapp_kit.evaluate.export.report import ExportReport, ExportScope
from taskapp_kit.evaluate.export.training_data import TrainingFilters
from taskapp_kit.evaluate.export.write import export
from taskapp_kit.evaluate.source import open_source
from taskapp_kit.records.protocols import StoredRollout, Tool
from taskapp_kit.rollout.describe import Description
from taskapp_kit.train.sft.conversations import read_conversations
from tests.evaluate.export.stored_chats import FAILURE, SECRET, model_rollout, saved

ADD = Tool("add", "Adds.", {"properties": {"amount": {"type": "integer"}}})
TOOLS = ToolSchemas({"adder": {"add": ADD}}, "a" * 64)


def exported(
    path: Path, kind: Any, rollouts: Sequence[StoredRollout], *, split: str | None = None,
    tools: ToolSchemas | None = TOOLS, **filters: Any,
) -> tuple[list[dict[str, Any]], ExportReport]:  # fmt: skip
    """The lines, and the report."""
    out = path / f"{kind}.jsonl"
    store = saved(path / "rollouts.db", rollouts)

    async def find() -> ToolSchemas | None:
        return tools

    async def run() -> ExportReport:
        source = open_source(str(store))
        try:
            chosen, scope = TrainingFilters(**filters), ExportScope(split=split)
            return await export(source, kind, out, scope=scope, filters=chosen, find_tools=find)
        finally:
            await source.close()

    report = asyncio.run(run())
    assert SECRET not in out.read_text() and out.stat().st_mode & 0o777 == 0o600
    return [orjson.loads(line) for line in out.read_bytes().splitlines()], report


def test_a_conversation_is_what_the_model_read_and_said_with_the_tools(tmp_path: Path) -> None:
    (line,), report = exported(tmp_path, "sft", [model_rollout("r", (1, 2), thoughts="hm")])

    def said(number: int, amount: int) -> dict[str, Any]:
        function = {"name": "add", "arguments": {"amount": amount}}
        calls = [{"id": f"call_{number}", "type": "function", "function": function}]
        return {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": calls}

    assert line == {
        "messages": [
            {"role": "system", "content": "Add."},
            {"role": "user", "content": "game 0, total 0"},
            said(1, 1),
            {"role": "tool", "content": "game 0, total 1", "tool_call_id": "call_1", "name": "add"},
            said(2, 2),
        ],
        "answers": [2, 4],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "add",
                    "description": "Adds.",
                    "parameters": {"type": "object", "properties": {"amount": {"type": "integer"}}},
                },
            }
        ],
        "reward": 1.0,
        "environment": "adder",
        "split": "train",
        "seed": 0,
        "rollout": "r",
    }
    assert (report.rollouts, report.seen) == (1, 1) and "train" in report.notes[0]


def test_examples_in_the_prompt_are_no_answers(tmp_path: Path) -> None:
    example = [{"role": "user", "content": "Say yes."}, {"role": "assistant", "content": "Yes."}]
    (line,), _ = exported(tmp_path, "sft", [model_rollout("r", (1, 2), example=example)])
    assert [message["role"] for message in line["messages"]][:4] == ["system", "user", "assistant", "user"]
    assert line["answers"] == [4, 6]


def with_answer(rollout_id: str, content: str) -> StoredRollout:
    """A rollout whose last answer is this text, as JSON writes it, and no call."""
    rollout = model_rollout(rollout_id)
    events = orjson.loads(orjson.dumps(list(rollout.events)))
    answer = next(event["answer"] for event in reversed(events) if event["kind"] == "answered")
    answer["messages"][-1] = {"role": "assistant", "content": orjson.loads(f'"{content}"')}
    rollout.events = events
    return rollout


@pytest.mark.parametrize("arguments", ["", "null", "{}"])
def test_fine_tuning_reads_what_was_exported(tmp_path: Path, arguments: str) -> None:
    """Of an endpoint without a parser of reasoning, too."""
    rollouts = [model_rollout("r", broken=arguments), with_answer("t", "<think>hm</think>b")]
    lines, _ = exported(tmp_path, "sft", rollouts)
    found = list(read_conversations(tmp_path / "sft.jsonl"))
    assert [sorted(each.learned) for each in found] == [line["answers"] for line in lines] == [[2, 4], [2, 4]]
    assert [each.unfit for each in found] == [None, None]
    assert lines[0]["messages"][2]["tool_calls"][0]["function"]["arguments"] == {}


UNFIT = {
    "failed": (model_rollout("f", status="failed", failure=FAILURE, reward=None), "failed"),
    "null": (model_rollout("n", reward=None), "no reward"),
    "local": (model_rollout("l", local=True), "no language model played"),
    "picture": (model_rollout("p", shade=7), "messages with images"),
    "window": (model_rollout("w", details={"left_out_turns": 1}), "did not read one growing conversation"),
    "broken": (model_rollout("b", broken="{amount"), "arguments are not a JSON object"),
    "list": (model_rollout("b", broken="[1]"), "arguments are not a JSON object"),
    "empty": (with_answer("e", ""), "a reply without content"),
    "blank": (with_answer("e", " \\n"), "a reply without content"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_is_no_conversation_is_left_out_and_counted(tmp_path: Path, name: str) -> None:
    unfit, reason = UNFIT[name]
    lines, report = exported(tmp_path, "sft", [model_rollout("fits"), unfit])
    assert [line["rollout"] for line in lines] == ["fits"]
    ((counted, many),) = report.left_out.items()
    assert reason in counted and many == 1


def test_filters_by_reward_end_tokens_and_split(tmp_path: Path) -> None:
    rollouts = [
        model_rollout("half", (1,), reward=0.5),
        model_rollout("low", (2,), reward=0.49),
        model_rollout("cut", (3,), status="truncated"),
        model_rollout("long", (1, 2, 3)),  # 310 tokens in its last call
        model_rollout("test", (9,), split="test"),
    ]
    lines, report = exported(tmp_path, "sft", rollouts, min_reward=0.5, terminated=True, max_tokens=309)
    assert [line["rollout"] for line in lines] == ["half"]
    assert dict(report.left_out) == {"a reward below 0.5": 1, "not terminated": 1, "more than 309 tokens": 1}
    lines, report = exported(tmp_path, "sft", rollouts, split="test")
    assert [line["rollout"] for line in lines] == ["test"] and not report.notes
    report = exported(tmp_path, "sft", rollouts, min_reward=None)[1]
    assert report.notes[1:] == ["Rewards from 0.49 to 1; --min-reward excludes low rewards."]
    assert exported(tmp_path, "sft", rollouts, min_reward=0.1)[1].notes[1:] == ["Rewards from 0.49 to 1."]
    with pytest.raises(ConfigError, match=r"no rollouts in the split 'dev'.*test \(1\), train \(4\)"):
        exported(tmp_path, "sft", rollouts, split="dev")
    with pytest.raises(ConfigError, match=r"No rollout can be exported as sft: a reward below 2 \(4\)"):
        exported(tmp_path, "sft", rollouts, min_reward=2.0)


def test_equal_conversations_are_written_once_whatever_the_ids_of_their_calls(tmp_path: Path) -> None:
    other = model_rollout("other")
    other.events = orjson.loads(orjson.dumps(list(other.events)).replace(b"id0", b"another-id"))
    lines, report = exported(tmp_path, "sft", [model_rollout("first"), other, model_rollout("third", seed=1)])
    assert [line["rollout"] for line in lines] == ["first", "third"]
    assert dict(report.left_out) == {"the same conversation as another": 1}


def test_the_best_of_each_seed_or_the_next_that_can_be_learned_from(tmp_path: Path) -> None:
    rollouts = [
        model_rollout("a", (1,), reward=0.2),
        model_rollout("b", (2,), reward=0.9),
        model_rollout("c", (3,), reward=0.9, length=7),
        model_rollout("unfit", (1,), seed=1, reward=1.0, shade=3),
        model_rollout("d", (1,), seed=1, reward=0.3),
    ]
    lines, report = exported(tmp_path, "sft", rollouts, best_of_seed=True)
    assert [line["rollout"] for line in lines] == ["b", "d"]
    assert dict(report.left_out) == {"not the best of its seed": 2, "messages with images": 1}


def test_tools_come_from_the_app_and_are_asked_for_only_when_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Pass the app: --app APP"):
        exported(tmp_path, "sft", [model_rollout("r")], tools=None)
    lines, report = exported(
        tmp_path, "sft", [model_rollout("r"), model_rollout("x", (1,), environment="gone")],
        tools=ToolSchemas({"adder": {"add": ADD}}, "b" * 64),
    )  # fmt: skip
    assert len(lines) == 1 and dict(report.left_out) == {"an action that the app does not declare": 1}
    assert "1 have another spec hash" in report.notes[1]


def test_pairs_of_a_seed_differ_by_the_margin_and_begin_with_the_same(tmp_path: Path) -> None:
    rollouts = [
        model_rollout("best", (1, 2), reward=1.0),
        model_rollout("good", (1, 3), reward=0.8),
        model_rollout("bad", (1, 1), reward=0.3),
        model_rollout("worst", (2, 1), reward=0.0),
        model_rollout("close", (1,), seed=1, reward=0.5),
        model_rollout("closer", (2,), seed=1, reward=0.45),
        model_rollout("alone", (1,), seed=2, reward=1.0),
        model_rollout("failed", (2,), seed=2, reward=None, status="failed", failure=FAILURE),
    ]
    (line,), report = exported(tmp_path, "dpo", rollouts)
    assert (line["chosen_rollout"], line["rejected_rollout"]) == ("best", "worst")
    assert (line["chosen_reward"], line["rejected_reward"], line["seed"]) == (1.0, 0.0, 0)
    assert [message["role"] for message in line["prompt"]] == ["system", "user"]
    assert line["chosen"][0]["role"] == line["rejected"][0]["role"] == "assistant" and line["tools"]
    assert (report.rollouts, report.lines) == (2, 1)
    assert dict(report.left_out) == {"failed": 1, "no rollout of its seed to pair it with": 5}

    lines, _ = exported(tmp_path, "dpo", rollouts, pairs=5, margin=0.5)
    assert [(one["chosen_rollout"], one["rejected_rollout"]) for one in lines] == [("best", "worst"), ("good", "bad")]
    second = lines[1]
    assert [message["role"] for message in second["prompt"]] == ["system", "user", "assistant", "tool"]
    assert len(second["chosen"]) == len(second["rejected"]) == 1 and second["chosen"] != second["rejected"]


def test_of_a_pair_only_the_chosen_one_has_to_be_learned_from(tmp_path: Path) -> None:
    rollouts = [
        model_rollout("cut", (1,), reward=1.0, status="truncated"),
        model_rollout("done", (2,), reward=0.9),
        model_rollout("poor", (3,), reward=0.1, status="truncated"),
    ]
    (line,), _ = exported(tmp_path, "dpo", rollouts, terminated=True, min_reward=0.9)
    assert (line["chosen_rollout"], line["rejected_rollout"]) == ("done", "poor")


def test_an_existing_file_stays_when_nothing_can_be_exported(tmp_path: Path) -> None:
    (tmp_path / "sft.jsonl").write_text("before")
    with pytest.raises(ConfigError):
        exported(tmp_path, "sft", [model_rollout("r", reward=None)])
    assert (tmp_path / "sft.jsonl").read_text() == "before"
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_the_tools_of_a_server_are_those_of_its_app() -> None:
    spec = find_app(str(Path(__file__).parents[3] / "examples" / "adder.py")).freeze()
    info = Description(spec, max_time_seconds=1.0, max_concurrent=1, max_body_bytes=1).info()
    told = ToolSchemas.of_info(orjson.loads(orjson.dumps(info, default=dict)))
    assert told.of("adder", ["add"]) == ToolSchemas.of_app(spec).of("adder", ["add"])
    assert told.of("adder", ["add", "fly"]) is None and told.of("elsewhere", ["add"]) is None
    with pytest.raises(ConfigError, match="/info does not describe its tools"):
        ToolSchemas.of_info({"environments": {"adder": {}}})
