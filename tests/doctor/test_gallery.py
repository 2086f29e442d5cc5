"""Unsound environments: the doctor finds the fault, by its name, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.doctor.doctor_options import DoctorOptions
from taskapp_kit.doctor.examine import examine
from taskapp_kit.doctor.finding import DoctorFinding
from taskapp_kit.testing import MockModel, judge
from tests.doctor.gallery import SOUND, UNSOUND

EVERY_TIME = (
    "actions_accepted", "at_once", "baselines", "close_frees", "criteria_move", "declarations", "interleaved", "judge_reads",
    "memory", "models", "private", "prompt_limits", "reward_range", "rollout", "rows", "same_seed", "seeds_differ",
)  # fmt: skip
"""The others are marked exhaustive."""


@dataclass(frozen=True)
class Unhurried(DoctorOptions):
    """As --quick, with time for as many rollouts on a machine that is slow or busy."""

    quick: bool = True

    @property
    def seconds(self) -> float | None:
        return None

    @property
    def policy_seconds(self) -> float:
        return 10.0

    @property
    def check_seconds(self) -> float:
        return 10.0


def findings(
    file: Path, settings: Settings | None = None, make: type[DoctorOptions] = Unhurried, **options: object
) -> list[DoctorFinding]:
    async def all_of_them() -> list[DoctorFinding]:
        chosen = make(quick=True, **options)  # type: ignore[arg-type]
        return [finding async for finding in examine(find_app(str(file)), chosen, settings)]

    return asyncio.run(all_of_them())


def problems(examined: list[DoctorFinding]) -> list[DoctorFinding]:
    return [finding for finding in examined if finding.status in ("warning", "wrong")]


def names(examined: list[DoctorFinding]) -> set[str]:
    return {finding.name for finding in problems(examined)}


@pytest.fixture
def module(tmp_path: Path) -> Callable[[str], Path]:
    """Writes the module of a case and returns its path."""

    def write(case: str) -> Path:
        file = tmp_path / f"{case}.py"
        file.write_text({**UNSOUND, **SOUND}[case], encoding="utf-8")
        return file

    return write


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case in EVERY_TIME else [pytest.mark.exhaustive])
        for case in UNSOUND
        if case not in ("second_process", "judge_moves")
    ],
)
def test_each_fault_is_caught_by_its_name_and_by_no_other(case: str, module: Callable[[str], Path]) -> None:
    waits = case in ("cost", "in_time")  # where each step takes long, --quick leaves out what it has no time for
    options = DoctorOptions if waits else Unhurried
    file = module(case)
    examined = findings(file, make=options, processes=False, rollout_seconds=2.0 if waits else None)
    assert names(examined) == {case.partition("__")[0].replace("_", "-")}, problems(examined)
    assert all(finding.do and file.name in finding.place for finding in problems(examined)), problems(examined)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", SOUND)
def test_what_the_faults_are_made_in_is_sound(case: str, module: Callable[[str], Path]) -> None:
    examined = findings(module(case), processes=False)
    assert problems(examined) == []


@pytest.mark.process
def test_what_only_another_process_shows_is_caught_there(module: Callable[[str], Path]) -> None:
    assert names(findings(module("second_process"))) == {"second-process"}


@pytest.mark.server
def test_a_judge_that_always_says_the_same_is_caught_when_it_is_asked(module: Callable[[str], Path]) -> None:
    file = module("judge_moves")
    with MockModel(judge(0.5)) as model:
        settings = Settings(variables={"TASKAPP_JUDGE_URL": model.url, "TASKAPP_JUDGE_MODEL": "mock"})
        assert names(findings(file, settings, processes=False, judges=True)) == {"judge-moves"}
    with MockModel(judge(lambda request: len(str(request.messages)) % 7 / 7)) as model:
        settings = Settings(variables={"TASKAPP_JUDGE_URL": model.url, "TASKAPP_JUDGE_MODEL": "mock"})
        examined = findings(file, settings, processes=False, judges=True)
        assert "judge-moves" not in {item.name for item in examined if "to each" in item.found}


@pytest.mark.parametrize(("case", "hidden"), [("private", "piano"), ("rollout", "KeyError(")])
def test_neither_a_private_value_nor_an_exceptions_text_is_shown(
    case: str, hidden: str, module: Callable[[str], Path]
) -> None:
    assert not any(hidden in item.found + item.do for item in findings(module(case), processes=False))


FRAGILE = '''
from taskapp_kit import Step, TaskApp, Trajectory, action

app = TaskApp("fragile")

@app.environment("fragile", splits={"train": range(20)}, max_steps=5)
class Fragile:
    """Ends after one step."""

    def reset(self, seed: int) -> str:
        return f"round {seed}"

    @action
    def go(self, far: int) -> Step:
        """Go."""
        return Step(f"went {far}", terminated=True)

@app.rubric
def far(trajectory: Trajectory) -> float:
    """An episode without a done action is not thought of."""
    done = [step for step in trajectory.steps if step.refused is None]
    return min(1.0, abs(done[0].args["far"]) / 1000)
'''


def test_nonsense_that_always_fails_is_not_said_to_end(tmp_path: Path) -> None:
    (tmp_path / "fragile.py").write_text(FRAGILE, encoding="utf-8")
    by_name = {item.name: item for item in findings(tmp_path / "fragile.py", processes=False)}
    assert by_name["rollout"].status == "ok", by_name["rollout"].found
    assert by_name["nonsense-ends"].status == "skipped", by_name["nonsense-ends"].found
    assert "failed" in by_name["nonsense-ends"].found
