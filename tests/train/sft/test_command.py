"""`taskapp train --type sft`: a process that is killed, the same command again, and the model that it names is served."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.train.checkpoints.facts import TrainedModelName
from taskapp_kit.train.checkpoints.stored import WEIGHTS
from tests.train.sft.sft_files import line, write_config, write_lines

pytestmark = [pytest.mark.train, pytest.mark.process, pytest.mark.timeout(600)]  # the kill: exhaustive, 30 CPU-seconds

COMMAND = (sys.executable, "-m", "taskapp_kit", "train", "--type", "sft", "--config", "sft.toml")


def environ(models: str) -> dict[str, str]:
    root = str(Path(__file__).parents[3])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, "TASKAPP_MODELS": models}


def ran(folder: Path, models: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *more], cwd=folder, env=environ(models), capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.exhaustive
def test_a_killed_command_goes_on_and_ends_as_one_that_ran_through(tmp_path: Path) -> None:
    write_lines(tmp_path / "gold.jsonl", [line(seed) for seed in range(40)])
    write_config(tmp_path, epochs=2, more="[evaluation]\nevery_n_iters = 1\n[checkpoints]\nevery_n_iters = 2\n")
    whole: Any = json.loads(ran(tmp_path, "whole", "--json").stdout)
    assert whole["updates"] == 10

    killed = subprocess.Popen(
        COMMAND, cwd=tmp_path, env=environ("parts"), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert killed.stderr is not None
    for said in killed.stderr:
        if said.startswith("update 5 of 10"):
            killed.send_signal(signal.SIGKILL)
            break
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL

    done = ran(tmp_path, "parts")
    assert done.returncode == 0, done.stderr
    assert "update 10 of 10" in done.stderr and "update 2 of 10" not in done.stderr
    found = re.search(r"ft:tiny:\S+:checkpoint-10", done.stdout)
    assert found is not None, done.stdout
    name = TrainedModelName.parse(found[0])
    assert str(name) == whole["model"]
    assert (name.folder(tmp_path / "parts") / WEIGHTS).read_bytes() == (
        name.folder(tmp_path / "whole") / WEIGHTS
    ).read_bytes()
    assert 'source = "ft:tiny:' in done.stdout and "held-out loss" in done.stdout
    assert (tmp_path / whole["files"]["picture"]).read_bytes().startswith(b"\x89PNG")


def test_what_belongs_to_other_jobs_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path)
    for more, said in ((["--task-url", "http://127.0.0.1:1"], "--task-url"), (["--task-app", "a.py"], "--task-app")):
        refused = ran(tmp_path, "models", *more)
        assert refused.returncode == 2 and said in refused.stderr
    missing = ran(tmp_path, "models")
    assert missing.returncode == 2 and "gold.jsonl cannot be read" in missing.stderr
