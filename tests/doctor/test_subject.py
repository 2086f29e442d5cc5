"""How the doctor plays: its own policies, environments in other processes, and the words of a difference."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskapp_kit import RolloutFailed
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.doctor.doctor_options import DoctorOptions
from taskapp_kit.doctor.policies import Function, RecordedActions
from taskapp_kit.doctor.subject import EnvironmentUnderTest, Player, apart, difference
from taskapp_kit.records.protocols import View
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.trajectory import Decision, PlayedStep, ToolCall, Trajectory
from taskapp_kit.rollout.service import Service
from tests.doctor.gallery import HUNT, RIDDLES, RIGHT, fault
from tests.doctor.test_gallery import findings, names

SKIPPED = {"global-random", "close-frees", "abort-frees", "memory"}
"""The checks of an isolated environment that look into the process."""


def test_excerpts_of_a_difference_start_at_a_word() -> None:
    one, two = (f"You are standing in the kitchen of a house with {count} doors." for count in (2, 3))
    assert apart(one, two) == "'kitchen of a house with 2 doors.' and then 'kitchen of a house with 3 doors.'"
    assert apart("a1", "a2") == "'a1' and then 'a2'"
    assert apart(f"{'x' * 500}1", f"{'x' * 500}2").count("x") == 40  # a word that is too long is cut


def test_steps_are_numbered_as_in_show() -> None:
    def played(*seen: str) -> Trajectory:
        steps = [PlayedStep(index, "go", {}, text) for index, text in enumerate(seen)]
        return Trajectory("here", "1", "train", 0, {}, "start", steps=steps)

    assert difference(played("same", "left"), played("same", "right")).startswith("at step 2 the observation")


TALK = '''
import random
from taskapp_kit import Step, TaskApp, action
app = TaskApp("talk")
@app.environment("talk", splits={{"train": range(100)}}, max_steps=4)
class Talk:
    """Say the number."""
    def reset(self, seed: int) -> str:
        self.target = random.Random(seed).randrange(1000)
        return f"The number is {{self.target}}."
    @action(text=True, noop={{"text": {noop!r}}})
    def say(self, text: str) -> Step:
        """Say it."""
        return Step("noted", reward=float(text.strip() == str(self.target)))
'''


@pytest.mark.parametrize("noop", ["", "  ", "…"])
def test_a_noop_that_no_constant_policy_can_repeat_is_no_finding(noop: str, tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(TALK.format(noop=noop), encoding="utf-8")
    examined = findings(tmp_path / "talk.py", processes=False)
    assert names(examined) == set(), examined
    played = next(item.found for item in examined if item.name == "policies")
    assert "noop, constant" in played


def isolated(source: str) -> str:
    return source.replace("max_steps=", 'isolation="process", max_steps=')


@pytest.mark.process
def test_an_isolated_environment_is_checked_in_its_process(tmp_path: Path) -> None:
    file = tmp_path / "hunt.py"
    file.write_text(isolated(HUNT).replace("Annotated[int, Field(ge=0, le=999)]", "int"), encoding="utf-8")
    by_name = {item.name: item for item in findings(file)}
    assert {name for name, item in by_name.items() if item.status in ("warning", "wrong")} == set()
    assert {name for name, item in by_name.items() if item.status == "skipped"} - NO_GOLD == SKIPPED
    assert "policy schema" in by_name["rollout"].found  # the doctor's own policy
    failing = fault(HUNT, {RIGHT: f"if number % 2:\n            raise KeyError(number)\n        {RIGHT}"})
    file = tmp_path / "failing.py"
    file.write_text(isolated(failing).replace("Annotated[int, Field(ge=0, le=999)]", "int"), encoding="utf-8")
    assert "rollout" in names(findings(file))


NO_GOLD = {"attack", "right-refused", "blind-actions", "repeat-pays", "gold-better", "reward-attainable"}


@pytest.mark.process
def test_policies_of_this_process_play_in_another_like_here(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text(RIDDLES, encoding="utf-8")
    (tmp_path / "there.py").write_text(isolated(RIDDLES), encoding="utf-8")

    async def played(name: str, *answers: str) -> Rollout:
        app = find_app(str(tmp_path / name))
        spec = app.freeze()
        service = Service.of(app, Settings(), max_concurrent=2, threads=2)
        subject = EnvironmentUnderTest(app, spec, spec.environments["riddles"], service, DoctorOptions(quick=True))
        try:
            steps = [PlayedStep(index, "say", {"text": answer}) for index, answer in enumerate(answers)]
            own = RecordedActions(steps) if answers else Function("tools", replies)
            return await subject.play(Player("own", {}), "train", 0, own=own)
        finally:
            await service.close()

    def replies(view: View) -> Decision:
        return Decision([ToolCall(view.tools[0].name, {"text": f"try {view.turn}"})])

    for answers in ((), ("a piano",), ("a lamp", "a door")):
        here, there = (asyncio.run(played(name, *answers)) for name in ("here.py", "there.py"))
        assert [(step.tool, step.args, step.observation, step.refused) for step in here.trajectory.steps] == [
            (step.tool, step.args, step.observation, step.refused) for step in there.trajectory.steps
        ]
        assert here.length and here.reward == there.reward
    assert there.trajectory.status == "truncated"  # the recording ended first


@pytest.mark.process
def test_an_isolated_rollout_has_a_deadline(tmp_path: Path) -> None:
    slow = fault(HUNT, {RIGHT: f"time.sleep(60)\n        {RIGHT}"})
    (tmp_path / "slow.py").write_text(isolated(slow), encoding="utf-8")

    async def played() -> None:
        app = find_app(str(tmp_path / "slow.py"))
        spec = app.freeze()
        service = Service.of(app, Settings(), max_concurrent=2, threads=2)
        options = DoctorOptions(quick=True, rollout_seconds=0.5)
        subject = EnvironmentUnderTest(app, spec, spec.environments["hunt"], service, options)
        guess = Decision([ToolCall("guess", {"number": 5})])
        try:
            await subject.play(Player("own", {}), "train", 0, own=Function("guess", lambda view: guess))
        finally:
            await service.close()

    with pytest.raises(RolloutFailed) as failed:
        asyncio.run(played())
    assert failed.value.failure.boundary == "timeout"
