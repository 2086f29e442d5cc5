"""`jsonl`, `parquet` and `inspect`: every rollout whole, failed ones without a number, nothing private."""

from __future__ import annotations

import asyncio
import base64
import re
import zipfile
from pathlib import Path
from typing import Any

import orjson
import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.export.report import ExportReport, ExportScope
from taskapp_kit.evaluate.export.training_data import TrainingFilters
from taskapp_kit.evaluate.export.write import export
from taskapp_kit.evaluate.source import open_source
from taskapp_kit.records.protocols import RolloutQuery
from tests.evaluate.export.stored_chats import FAILURE, SECRET, model_rollout, saved
from tests.store.stored_samples import png

DOCS = Path(__file__).parents[3] / "docs/evaluate/export.md"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rollouts = [
        model_rollout("fine", (1, 2), thoughts="hm"),
        model_rollout("again", (2,), reward=0.25, seed=2**63 - 1),
        model_rollout("null", (3,), reward=None, split="test"),
        model_rollout("failed", (1,), reward=None, status="failed", failure=FAILURE, seed=1),
        model_rollout("broken", (1,), broken="no JSON", seed=2),
        model_rollout("shown", (1,), shade=7, seed=3),
        model_rollout("local", (1, 1), local=True, environment="other", seed=4),
    ]
    return saved(tmp_path_factory.mktemp("whole") / "rollouts.db", rollouts)


def exported(store: Path, kind: Any, out: Path, scope: ExportScope | None = None) -> ExportReport:
    async def nothing() -> None:
        return None

    async def run() -> ExportReport:
        source = open_source(str(store))
        try:
            chosen, filters = scope or ExportScope(), TrainingFilters()
            return await export(source, kind, out, scope=chosen, filters=filters, find_tools=nothing)
        finally:
            await source.close()

    return asyncio.run(run())


def test_jsonl_has_every_rollout_in_its_readable_form(store: Path, tmp_path: Path) -> None:
    report = exported(store, "jsonl", tmp_path / "o.jsonl")
    text = (tmp_path / "o.jsonl").read_text()
    lines = {line["rollout_id"]: line for line in map(orjson.loads, text.splitlines())}
    assert report.rollouts == report.seen == len(lines) == 7 and SECRET not in text
    fine, failed = lines["fine"], lines["failed"]
    assert (fine["reward"], fine["criteria"]) == (1.0, {"reached": 1.0, "unknown": None})
    assert fine["rollout"]["turns"][0]["reasoning"] == "hm"
    assert (failed["reward"], failed["boundary"], failed["code"]) == (None, "policy", "model_unreachable")
    assert lines["again"]["seed"] == 2**63 - 1


def test_a_directory_without_its_store_gives_the_numbers(store: Path, tmp_path: Path) -> None:
    directory = tmp_path / "e"
    directory.mkdir()
    asked = {"format": "taskapp-eval", "schema_version": 1, "asked": {"policy": {"model": "m"}}, "eval_id": "e" * 32}
    (directory / "config.json").write_bytes(orjson.dumps(asked))
    key = {"policy": "m", "split": None, "seed": 3, "sample": 0}
    line = {
        "key": key,
        "status": "terminated",
        "rollout_id": "r",
        "environment": "adder",
        "split": "train",
        "reward": 0.5,
    }
    (directory / "results.jsonl").write_bytes(orjson.dumps(line) + b"\n")
    report = exported(directory, "jsonl", tmp_path / "o.jsonl")
    (found,) = map(orjson.loads, (tmp_path / "o.jsonl").read_bytes().splitlines())
    assert (found["reward"], found["seed"], found["rollout"]) == (0.5, 3, None)
    assert report.notes == ["1 are not stored in full, so the file only has their numbers."]
    with pytest.raises(ConfigError, match="has no rollouts.db"):
        exported(directory, "sft", tmp_path / "o.sft")


def test_parquet_is_read_back_by_pyarrow_with_the_documented_columns(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra parquet")
    import pyarrow.parquet

    exported(store, "parquet", tmp_path / "o.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "o.parquet")
    assert pyarrow.parquet.ParquetFile(tmp_path / "o.parquet").metadata.row_group(0).column(0).compression == "ZSTD"
    _, _, after = DOCS.read_text().partition("\n## Parquet\n")
    documented = after.partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \| (\w+)", documented, re.MULTILINE) == [
        (name, _word(str(kind))) for name, kind in zip(table.schema.names, table.schema.types, strict=True)
    ]
    rows = {row["id"]: row for row in table.to_pylist()}
    assert SECRET not in repr(rows)
    assert rows["fine"]["criteria"] == [("reached", 1.0), ("unknown", None)]
    assert rows["fine"]["created_at"].timestamp() == 1_800_000_000.0
    assert rows["again"]["seed"] == 2**63 - 1
    failed = rows["failed"]
    assert (failed["reward"], failed["outcome_score"], failed["criteria"]) == (None, None, [])
    assert (failed["boundary"], failed["message"]) == ("policy", "The model did not answer.")
    assert [message["role"] for message in orjson.loads(rows["fine"]["messages"])] == [
        "system", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert rows["local"]["messages"] is None and len(orjson.loads(rows["local"]["steps"])) == 2


def _word(kind: str) -> str:
    return "timestamp" if kind.startswith("timestamp") else "map" if kind.startswith("map") else kind


def log_of(store: Path, out: Path, scope: ExportScope) -> dict[str, Any]:
    """The members of the log."""
    exported(store, "inspect", out, scope)
    with zipfile.ZipFile(out) as archive:
        assert {item.compress_type for item in archive.infolist()} == {zipfile.ZIP_DEFLATED}
        return {name: orjson.loads(archive.read(name)) for name in archive.namelist()}


def test_a_log_of_inspect_has_a_sample_for_each_rollout(store: Path, tmp_path: Path) -> None:
    members = log_of(store, tmp_path / "o.eval", ExportScope(RolloutQuery(environment="adder")))
    assert SECRET not in repr(members)
    header = members["header.json"]
    assert (header["version"], header["status"], header["eval"]["task"], header["eval"]["model"]) == (
        2, "success", "adder", "m",
    )  # fmt: skip
    assert header["results"]["total_samples"] == 6 and header["results"]["completed_samples"] == 5
    scores = {score["name"]: score for score in header["results"]["scores"]}
    assert set(scores) == {"reward", "reached"}
    assert (scores["reward"]["scored_samples"], scores["reward"]["unscored_samples"]) == (4, 2)
    assert scores["reward"]["metrics"]["mean"]["value"] == (1 + 0.25 + 1 + 1) / 4
    fine = members["samples/train-0_epoch_1.json"]
    assert [message["role"] for message in fine["messages"]] == [
        "system", "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert fine["messages"][2]["content"] == [{"type": "reasoning", "reasoning": "hm"}]
    assert fine["messages"][-1]["content"] == "game 0, total 3"
    failed = members["samples/train-1_epoch_1.json"]
    assert failed["scores"] == {} and failed["error"]["message"].startswith("policy (model_unreachable)")
    broken = members["samples/train-2_epoch_1.json"]["messages"][2]["tool_calls"][0]
    assert broken["arguments"] == {} and "no JSON" in broken["parse_error"]
    summaries = {item["id"]: item for item in members["summaries.json"]}
    assert summaries.keys() == set(header["eval"]["dataset"]["sample_ids"])
    assert summaries["test-0"]["scores"] == {}


def test_pictures_and_policies_without_a_model_are_shown(store: Path, tmp_path: Path) -> None:
    shown = saved(
        tmp_path / "s.db", [model_rollout("shown", (1,), shade=7, local=True), model_rollout("two", local=True)]
    )
    members = log_of(shown, tmp_path / "o.eval", ExportScope())
    text, picture = members["samples/train-0_epoch_1.json"]["input"][0]["content"]
    assert text == {"type": "text", "text": "game 0, total 0"}
    assert base64.b64decode(picture["image"].removeprefix("data:image/png;base64,")) == png(7)
    second = members["samples/train-0_epoch_2.json"]
    assert second["messages"][1]["tool_calls"][0] == {
        "id": "call_0_0", "function": "add", "type": "function", "arguments": {"amount": 1},
    }  # fmt: skip
    assert second["messages"][2]["tool_call_id"] == "call_0_0"


def test_a_log_has_one_task_and_one_model(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"adder/adder by m and adder/other by random.*--env"):
        exported(store, "inspect", tmp_path / "o.eval")
    assert list(tmp_path.iterdir()) == []


def test_rollouts_that_are_not_stored_whole_are_left_out_of_a_log(tmp_path: Path) -> None:
    directory = tmp_path / "e"
    directory.mkdir()
    asked = {"format": "taskapp-eval", "schema_version": 1, "asked": {"policy": {"model": "m"}}, "eval_id": "e" * 32}
    (directory / "config.json").write_bytes(orjson.dumps(asked))
    saved(directory / "rollouts.db", [model_rollout("there", run_id="eval-" + "e" * 12)])
    lines = [
        {"key": {"policy": "m", "split": None, "seed": seed, "sample": 0}, "status": status, "rollout_id": name,
         "environment": "adder", "split": "train", "reward": None}
        for seed, (name, status) in enumerate({"there": "terminated", "": "failed"}.items())
    ]  # fmt: skip
    (directory / "results.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    report = exported(directory, "inspect", tmp_path / "o.eval")
    assert (report.rollouts, dict(report.left_out)) == (1, {"not stored in full": 1})
    (directory / "rollouts.db").unlink()
    with pytest.raises(ConfigError, match="has no rollouts.db"):
        exported(directory, "inspect", tmp_path / "p.eval")
