"""The mock model in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.testing import Faults, MockModel
from tests.waiting import until

from .conversation import CLIENT, ask, body

pytestmark = pytest.mark.process


def test_settings_travel(tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text('["from a file"]')
    faults = Faults({"500": 0.0}, sequence=("429", None), retry_after_seconds=9)
    with MockModel.process(
        file, faults=faults, latency_seconds=(0.0, 0.01), models=("m",), watch=("secret-9",)
    ) as model:
        refused = CLIENT.post(f"{model.url}/chat/completions", json={**body(), "model": "m"}, headers={"x": "secret-9"})
        assert refused.status_code == 429 and refused.headers["retry-after"] == "9"
        answer = CLIENT.post(f"{model.url}/chat/completions", json={**body(), "model": "m"})
        assert answer.json()["choices"][0]["message"]["content"] == "from a file"
        stats = model.stats()
        assert (stats["requests"], stats["answers"], stats["faults"], stats["watched"]) == (2, 1, {"429": 1}, [1])
        assert psutil.Process(model.pid).cpu_times().user > 0
    assert not psutil.pid_exists(model.pid)


def test_what_cannot_travel_or_be_used() -> None:
    with pytest.raises(ConfigError, match="MockModel"):
        MockModel.process(lambda request: "x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'none'"):
        MockModel.process(behaviour="none")
    with MockModel.process(["a"]) as model, pytest.raises(ConfigError, match="Port "):
        ask(model.url)
        MockModel.process(port=int(model.root.rpartition(":")[2]))


def test_it_does_not_outlive_who_started_it() -> None:
    program = "from taskapp_kit.testing import MockModel; m = MockModel.process(); print(m.pid, flush=True); import os; os._exit(1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
