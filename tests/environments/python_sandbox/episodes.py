"""What these tests share: the app at a level of the sandbox, its tasks, and ways to play them through the service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from environments.python_sandbox import app as declared
from environments.python_sandbox.app import PythonSandbox, passed, reference, sandbox, share
from environments.python_sandbox.boxes import Boxes
from environments.python_sandbox.rows import CodeTask
from taskapp_kit import TaskApp
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.service import Service
from taskapp_kit.wire.rollout import RolloutRequest

FOLDER = Path(declared.__file__).parent
SPLITS = {name: [CodeTask.model_validate_json(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
          for name in ("train", "test")}  # fmt: skip
TASKS = [(split, seed, task) for split, rows in SPLITS.items() for seed, task in enumerate(rows)]


def app_with(boxes: Boxes) -> TaskApp:
    """The app as it is declared, with other boxes."""

    class Boxed(PythonSandbox):
        __doc__ = PythonSandbox.__doc__

    Boxed.boxes = boxes
    app = TaskApp("python_sandbox", version="1.0.0")
    files = {name: str(FOLDER / f"{name}.jsonl") for name in SPLITS}
    app.environment("python_sandbox", tasks=files, row=CodeTask, max_steps=20)(Boxed)
    app.rubric(weight=1.0)(passed)
    app.rubric(weight=0.0)(share)
    app.metric(sandbox)
    app.policy("gold")(reference)
    return app


@cache
def app_at(level: int) -> TaskApp:
    return app_with(Boxes(level))


def run(code: str) -> dict[str, Any]:
    return {"type": "env", "tool": "run", "args": {"code": code}}


def submit(code: str) -> dict[str, Any]:
    return {"type": "env", "tool": "submit", "args": {"code": code}}


def body(ops: Sequence[Any] = (), *, seed: int = 0, split: str = "train", policy: str = "gold") -> dict[str, Any]:
    """ops: what is done; nothing is what the policy does."""
    return {
        "run_id": "test", "mode": "eval", "ops": list(ops),
        "env": {"env_name": "python_sandbox", "seed": seed, "config": {"split": split}},
        "policy": {"policy_name": policy},
    }  # fmt: skip


def play(app: TaskApp, *requests: dict[str, Any]) -> list[Rollout]:
    """All at once, in order of the requests."""

    async def all_of_them() -> list[Rollout]:
        service = Service(app)
        try:
            return list(
                await asyncio.gather(*(service.rollout(RolloutRequest.model_validate(one)) for one in requests))
            )
        finally:
            await service.close()

    return asyncio.run(all_of_them())


def seed_of(name: str) -> tuple[str, int, CodeTask]:
    """(split, seed, task) of the task with this id."""
    return next(item for item in TASKS if item[2].id == name)


def shown(rollout: Rollout) -> list[str]:
    """What the policy read after each of its steps."""
    return [str(step.observation) for step in rollout.trajectory.steps]


def shares(rollout: Rollout) -> float | None:
    return next(item.score for item in rollout.scorecard.criteria if item.name == "share")
