"""Agents of three frameworks, their packages unchanged, are trained by a changed base URL; one of them learns: `make learn`.

Each plays examples/rl/keys.py with the model `tiny`, as a program that the task app starts (`from_program`).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra: make learn")
pytest.importorskip("transformers", reason="needs the train extra: make learn")

from taskapp_kit.train.driver.learning import PolicyLearner  # noqa: E402
from taskapp_kit.train.turns import TrainingRow, UpdateMetrics  # noqa: E402
from tests.interop.peer_programs import python_of  # noqa: E402
from tests.train.jobs_by_config import config_of  # noqa: E402
from tests.train.learning_runs import run, shown  # noqa: E402
from tests.train.update.rows import largest_difference  # noqa: E402

pytestmark = [pytest.mark.exhaustive, pytest.mark.interop, pytest.mark.server, pytest.mark.timeout(7200)]

AGENTS = Path("examples/agents")
CONFIG = Path("examples/rl/learn_tiny.toml")
ROLLOUTS = 20
SILENT = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}
PLAYED_BY = """

from taskapp_kit.interop.programs import from_program

app.rollout(from_program(["python", "-IS", {warm!r}, "ask", {socket!r}], answer="press", boxed=False))


@app.rubric
def noted(trajectory):
    import json
    import pathlib

    with pathlib.Path({answers!r}).open("a") as file:
        file.write(json.dumps([trajectory.initial, trajectory.steps[-1].args["key"]]) + "\\n")
    return trajectory.steps[-1].reward
"""
HELD_OUT = 24


@contextmanager
def played_by(framework: str, program: str, folder: Path) -> Iterator[Path]:
    """The file of a task app whose agent is a program of examples/agents, with the framework imported once."""
    python = python_of(framework)
    app, socket, warm = folder / "app.py", str(folder / "agent.sock"), str((AGENTS / "warm.py").resolve())
    keys = Path("examples/rl/keys.py").read_text(encoding="utf-8")
    written = PLAYED_BY.format(warm=warm, socket=socket, answers=str(folder / "answers.jsonl"))
    app.write_text(keys + written, encoding="utf-8")
    serving = subprocess.Popen(
        [str(python), warm, "serve", socket, str((AGENTS / program).resolve())],
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **SILENT},
        start_new_session=True,
    )
    try:
        assert serving.stdout is not None and serving.stdout.readline() == b"ready\n"
        yield app
    finally:
        os.killpg(serving.pid, 9)
        serving.wait()


class WatchedLearner(PolicyLearner):
    """Recomputes the log-probabilities of the rows before the update, and how far that moved the weights."""

    batches: ClassVar[list[dict[str, float]]] = []

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        model = self._update.model
        difference = max(largest_difference(model, row) for row in rows)
        before = [each.detach().clone() for each in model.parameters()]
        metrics = await super().learn(rows)
        moved = max(
            float((new.detach() - old).abs().max()) for new, old in zip(model.parameters(), before, strict=True)
        )
        self.batches.append({"rows": len(rows), "difference": difference, "moved": moved})
        return metrics


@pytest.mark.parametrize(
    ("framework", "program", "turns", "kinds"),
    [
        ("openai-agents-0.24.0", "with_openai_agents.py", 1, {"exact": 1}),
        ("langgraph-1.2.22", "with_langgraph.py", 1, {"exact": 1}),
        ("smolagents-1.26.0", "with_smolagents.py", 2, {"exact": 1, "forked": 1}),
    ],
)
def test_twenty_rollouts_are_faithful_and_an_update_changes_the_weights(
    framework: str,
    program: str,
    turns: int,
    kinds: dict[str, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.set_num_threads(1)
    config = config_of(CONFIG, iterations_per_epoch=1, batch_size=ROLLOUTS // 4, group_size=4, async_semaphore_max=4)
    config["rollout"]["episodes_per_batch"] = ROLLOUTS
    config["evaluation"] |= {"instances": 1, "seeds": [72], "every_n_iters": 1}
    WatchedLearner.batches.clear()
    with played_by(framework, program, tmp_path) as app:
        config["services"]["task_app"] = str(app)
        result = run(config, f"agents-{framework}", tmp_path, WatchedLearner)
    (batch,) = WatchedLearner.batches
    shown(result, capsys, **batch)
    assert result.failures == {}
    assert result.calls == {"continued": 0, "forked": 0, "refused": 0, "repeated": 0} | {
        name: ROLLOUTS * each for name, each in kinds.items()
    }
    assert batch["rows"] == ROLLOUTS * turns
    assert batch["difference"] < 1e-4
    assert batch["moved"] > 0


def test_an_agent_of_openais_sdk_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    config = config_of(CONFIG, iterations_per_epoch=18, batch_size=8, async_semaphore_max=4)
    config["rollout"]["episodes_per_batch"] = 64
    config["evaluation"]["every_n_iters"] = 18
    with played_by("openai-agents-0.24.0", "with_openai_agents.py", tmp_path) as app:
        config["services"]["task_app"] = str(app)
        result = run(config, "agents-learn-0", tmp_path)
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    first, last = dict(answers[:HELD_OUT]), dict(answers[-HELD_OUT:])
    shown(result, capsys, before_and_after={each: [first[each], last.get(each)] for each in [*first][:5]})
    assert result.failures == {}
    assert result.after >= 0.8
    assert result.low > 0
