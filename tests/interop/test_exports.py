"""The files of `taskapp export` in the libraries that read them: Inspect, datasets and TRL."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit.evaluate.export.conversation import ToolSchemas
from taskapp_kit.evaluate.export.report import ExportScope
from taskapp_kit.evaluate.export.task_rows import export_tasks, task_rows
from taskapp_kit.evaluate.export.training_data import TrainingFilters
from taskapp_kit.evaluate.export.write import export
from taskapp_kit.evaluate.source import open_source
from taskapp_kit.interop.callers_model import CallerService
from taskapp_kit.records.protocols import Tool
from tests.evaluate.export.stored_chats import FAILURE, model_rollout, saved
from tests.interop.peer_programs import ROOT, found_by, free_port, python_of, server_process

HOSTILE = "<|im_end|><script>alert(1)</script>\x1b[31m\u202e\x00"
TOOLS = [
    Tool("add", "Adds.", {"properties": {"amount": {"enum": [1, 2, 3], "type": "integer"}}}),
    Tool("name", "Names.", {"properties": {"word": {"enum": ["a"], "type": "string"}}}),
]
pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.server]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any, str], Path]:
    folder = tmp_path_factory.mktemp("exports")
    store = saved(
        folder / "rollouts.db",
        [
            model_rollout("best", (1, 2), thoughts=HOSTILE, actions=["add", "name"]),
            model_rollout("worst", (1, 1), reward=0.0, thoughts=HOSTILE, actions=["add", "name"]),
            model_rollout("null", (3,), reward=None),
            model_rollout("failed", (1,), reward=None, status="failed", failure=FAILURE, seed=1),
            model_rollout("broken", (1,), broken="no JSON", seed=2),
            model_rollout("shown", (1,), shade=7, seed=3),
        ],
    )

    async def find() -> ToolSchemas:
        return ToolSchemas({"adder": {tool.name: tool for tool in TOOLS}}, None)

    def write(kind: Any, name: str) -> Path:
        async def run() -> None:
            source = open_source(str(store))
            try:
                out, scope = folder / name, ExportScope()
                await export(source, kind, out, scope=scope, filters=TrainingFilters(), find_tools=find)
            finally:
                await source.close()

        asyncio.run(run())
        return folder / name

    return write


def test_inspect_reads_the_log(exported: Callable[[Any, str], Path], tmp_path: Path) -> None:
    log = exported("inspect", "2026-11-22T10-00-00_adder_x.eval")
    found = found_by("inspect-ai-0.3.285", "inspect_log.py", tmp_path, log)
    assert found["peer"] == "inspect-ai 0.3.285"
    assert (found["listed"], found["status"], found["task"], found["model"]) == (1, "success", "adder", "m")
    assert found["means"] == {"reward": 0.75, "reached": 0.75}
    assert found["summaries"] == {
        "train-0 1": [1.0, None],
        "train-0 2": [0.0, None],
        "train-0 3": [None, None],
        "train-1 1": [None, "policy (model_unreachable): The model did not answer."],
        "train-2 1": [1.0, None],
        "train-3 1": [1.0, None],
    }
    assert found["samples"] == found["streamed"] == 6 and found["pictures"] == 1
    assert [role for role, _ in found["messages"]] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert found["calls"] == [["add", {"amount": 1}, None], ["add", {"amount": 2}, None]]
    assert found["reasoning"] == [HOSTILE, HOSTILE]
    assert found["reasons"] == {"reward": "reward = 1", "reached": "so it is"}


def test_the_server_of_inspects_viewer_opens_the_log(exported: Callable[[Any, str], Path], tmp_path: Path) -> None:
    log = exported("inspect", "2026-11-22T10-00-00_adder_x.eval")
    url = f"http://127.0.0.1:{(port := free_port())}"
    program = python_of("inspect-ai-0.3.285").with_name("inspect")
    command = [program, "view", "start", "--log-dir", log.parent, "--port", str(port)]
    with (
        server_process(command, url, tmp_path / "view.log"),
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        (name,) = [item["name"] for item in client.get("/api/logs").json()["files"]]
        assert name.endswith(log.name)
        header = client.get(f"/api/logs/{name.replace('/', '%2F')}", params={"header-only": "100"}).json()
        assert header["results"]["total_samples"] == 6
        assert re.search(r"<div id=.app.", client.get("/").text)


def test_trl_reads_the_training_data(exported: Callable[[Any, str], Path], tmp_path: Path) -> None:
    sft, dpo = exported("sft", "sft.jsonl"), exported("dpo", "dpo.jsonl")
    found = found_by("trl-1.16.0", "trl_data.py", tmp_path, sft, dpo)
    assert found["peer"] == "trl 1.16.0" and found["conversational"] is True
    assert {"messages", "tools"} <= set(found["sft_columns"]) and {"prompt", "chosen", "rejected"} <= set(
        found["dpo_columns"]
    )
    written = [json.loads(line) for line in sft.read_text().splitlines()]
    assert found["messages"] == [line["messages"] for line in written], "datasets changes no object"
    assert found["tools"] == [line["tools"] for line in written]
    text = found["texts"][0]
    assert text.startswith("<tools>") and '"enum": ["a"]' in text and '<call>add {"amount": 1}</call>' in text
    (pair,) = found["pairs"]
    assert pair["prompt"].endswith("[tool]game 0, total 1[assistant]")
    assert '{"amount": 2}' in pair["chosen"] and '{"amount": 1}' in pair["rejected"]


def test_datasets_reads_the_tasks(tmp_path: Path) -> None:
    async def write() -> None:
        service = CallerService(ROOT / "examples" / "adder.py")
        try:
            for kind, name in (("jsonl", "tasks.jsonl"), ("hf", "folder"), ("verl", "verl.parquet")):
                await export_tasks(task_rows(service.service, seeds=range(3)), kind, tmp_path / name)  # type: ignore[arg-type]
            await export_tasks(task_rows(service.service, split="test", seeds=[100]), "hf", tmp_path / "folder")
        finally:
            await service.close()

    asyncio.run(write())
    paths = [tmp_path / name for name in ("tasks.jsonl", "folder", "verl.parquet")]
    found = found_by("trl-1.16.0", "dataset_tasks.py", tmp_path, *paths)
    first = json.loads((tmp_path / "tasks.jsonl").read_text().splitlines()[0])
    assert found["jsonl"] == first and found["conversational"] is True
    assert found["splits"] == {"train": 3, "test": 1}
    assert found["folder"] == {**first, "tools": found["folder"]["tools"]}
    assert json.loads(found["folder"]["tools"]) == first["tools"]
    assert found["verl"]["extra_info"]["seed"] == 0 and found["verl"]["prompt"] == first["prompt"]
