"""An app of the gallery (tests/doctor/defects) as auditors of graders read it: prompts, right answers and a reward function."""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskapp_kit import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.testing import Rollout, play

sys.path.insert(0, str(Path(__file__).parents[2] / "doctor" / "defects"))  # a program cannot import `tests`
from index import DEFECTS, Defect

BY_NAME: dict[str, Defect] = {defect.file: defect for defect in DEFECTS}
WRITTEN = re.compile(r"<(?P<tag>\w+)>(?P<in_tag>[^<>]+)</(?P=tag)>\s*\Z|\\boxed\{(?P<in_box>.+)\}\s*\Z")
"""The place of the answer in a reply, in the forms that all auditors recognize in a prompt."""
MOST_ROWS = 20


@dataclass(frozen=True)
class Row:
    """One task. task: The app's row. good: The reply of good play."""

    seed: int
    task: Any
    prompt: str
    good: str

    @property
    def answer(self) -> str:
        """What a data set's column of answers contains: the last tag or box of the good reply, or all of it."""
        written = WRITTEN.search(self.good)
        return self.good if written is None else written["in_tag"] or written["in_box"]


@functools.cache
class AuditedApp:
    """One app, or its sound twin. Each reply is scored once."""

    def __init__(self, name: str, twin: bool) -> None:
        self.defect, self.twin = BY_NAME[name], twin
        self.app: TaskApp = find_app(str(self.defect.twin_path if twin else self.defect.path))
        self.reward = functools.cache(self._reward)

    @property
    def is_text(self) -> bool:
        """Whether one reply is one episode. Auditors of reward functions cannot express other apps."""
        return isinstance(self.defect.reply, str)

    @functools.cached_property
    def rows(self) -> list[Row]:
        """The first tasks with their prompts and good replies."""
        source = self.app.freeze().environments[self.defect.environment].tasks
        assert source is not None
        tasks = source.rows("train")[:MOST_ROWS]
        rows = []
        for seed, task in enumerate(tasks):
            if self.defect.field is not None:
                good = self._play(seed, action=str(getattr(task, self.defect.field)))
            else:
                good = self._play(seed, policy="gold")
            (step,) = good.trajectory.steps
            rows.append(Row(seed, task, str(good.trajectory.initial), str(step.args["text"])))
        return rows

    def _reward(self, seed: int, reply: str) -> float:
        valid = reply.encode("utf-8", "replace").decode()  # a lone surrogate cannot be a model's reply
        reward = self._play(seed, action=valid).reward
        assert reward is not None
        return reward

    def _play(self, seed: int, *, policy: str | None = None, action: str | None = None) -> Rollout:
        defect = self.defect
        return play(
            self.app, seed=seed, environment=defect.environment, policy=policy, action=action, judges=defect.judge
        )
