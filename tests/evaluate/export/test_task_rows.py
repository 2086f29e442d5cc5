"""`taskapp export tasks`: what is in a row in each format, what never is, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.config import load
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import ConfigError, RequestError, RolloutFailed
from taskapp_kit.evaluate.export.task_rows import IDENTITY, export_tasks, task_rows
from taskapp_kit.records.protocols import SystemClock
from taskapp_kit.rollout.models.access import model_access
from taskapp_kit.rollout.service import Service, ServiceSettings

ROOT = Path(__file__).parents[3]
ASKING = ROOT / "tests" / "interop" / "shared" / "asking_apps.py"
ADDER = ROOT / "examples" / "adder.py"
HOSTILE = ROOT / "tests" / "hostile_app.py"


def written(app: Path, kind: Any, out: Path, **choice: Any) -> int:
    async def write() -> int:
        settings = ServiceSettings(exposure="local", skip_judges=True)
        service = Service(find_app(str(app)), settings, models=model_access(load(), "local", SystemClock()))
        try:
            return await export_tasks(task_rows(service, **choice), kind, out)
        finally:
            await service.close()

    return asyncio.run(write())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_row_has_what_a_model_reads_and_names_the_episode(tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    assert written(ADDER, "jsonl", out, seeds=[3, 5]) == 2
    first, second = lines(out)
    assert list(first) == ["prompt", "tools", *IDENTITY, "app", "app_version"]
    assert [message["role"] for message in first["prompt"]] == ["system", "user"]
    assert first["prompt"][1]["content"].startswith("target ")
    assert first["tools"][0]["function"]["name"] == "add"
    assert (first["seed"], second["seed"], first["split"], first["config"]) == (3, 5, "train", "{}")
    assert out.stat().st_mode & 0o777 == 0o600


def test_private_fields_are_in_no_format(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the parquet extra")
    for kind in ("jsonl", "parquet", "hf", "verl", "nemo"):
        out = tmp_path / kind
        assert written(ASKING, kind, out, environment="asking") == 2
        files = [out] if out.is_file() else [file for file in out.rglob("*") if file.is_file()]
        assert all(b"four-only-here" not in file.read_bytes() for file in files)


def test_tables_have_text_for_what_differs_between_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the parquet extra")
    written(ADDER, "parquet", tmp_path / "a", seeds=[0], output_mode="text")
    written(ADDER, "verl", tmp_path / "b", seeds=[0])
    (flat,) = parquet.read_table(tmp_path / "a").to_pylist()
    (verl,) = parquet.read_table(tmp_path / "b").to_pylist()
    assert flat["tools"] is None and flat["output_mode"] == "text", "in text mode the prompt lists the actions"
    assert '"amount"' in flat["prompt"][0]["content"]
    assert set(verl) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
    assert verl["reward_model"] == {"style": "rule", "ground_truth": ""} and verl["data_source"] == "adder/adder"
    assert set(verl["extra_info"]) == {"index", "app", *IDENTITY}


def test_rows_of_nemo_gym_are_requests_of_the_responses_api(tmp_path: Path) -> None:
    written(ADDER, "nemo", tmp_path / "n", seeds=[0])
    (row,) = lines(tmp_path / "n")
    (tool,) = row["responses_create_params"]["tools"]
    assert (tool["type"], tool["name"], tool["strict"]) == ("function", "add", False)
    assert [item["role"] for item in row["responses_create_params"]["input"]] == ["system", "user"]
    assert row["seed"] == 0 and row["environment"] == "adder"
    assert row["agent_ref"] == {"type": "responses_api_agents", "name": "adder_agent"}


def test_a_large_split_is_refused_unless_seeds_are_chosen(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 20000 tasks, but one file has at most 10000.*--seeds 0-999"):
        written(ASKING, "jsonl", tmp_path / "x", environment="counting")
    with pytest.raises(ConfigError, match="at most 10000 seeds"):
        written(ASKING, "jsonl", tmp_path / "x", environment="counting", seeds=range(10_001))
    assert written(ASKING, "jsonl", tmp_path / "x", environment="counting", seeds=range(3)) == 3


def test_an_episode_that_cannot_begin_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(RolloutFailed, match="seed 1 of environment 'shared'"):
        written(HOSTILE, "jsonl", tmp_path / "x", seeds=[1], config={"breaks": "reset"})
    assert list(tmp_path.iterdir()) == []


def test_what_the_app_does_not_have_is_refused(tmp_path: Path) -> None:
    for choice in ({"split": "tran"}, {"environment": "addr"}, {"seeds": [10**12]}, {"config": {"colour": 1}}):
        with pytest.raises(RequestError):
            written(ADDER, "jsonl", tmp_path / "x", **choice)
    with pytest.raises(ConfigError, match="No tasks were selected"):
        written(ADDER, "jsonl", tmp_path / "x", seeds=[])
