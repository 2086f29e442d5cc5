"""Unsound environments, one small file each: the doctor finds the fault, by its name, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.doctor.examine import examine
from taskapp_kit.doctor.finding import DoctorFinding
from taskapp_kit.doctor.options import DoctorOptions
from taskapp_kit.testing import MockModel, judge

GALLERY = sorted((Path(__file__).parent / "gallery").glob("*.py"))
"""`same_seed__clock.py` is another case of the check `same-seed`."""
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


def caught(found: list[DoctorFinding]) -> set[str]:
    return {finding.name for finding in found if finding.status in ("warning", "wrong")}


def name_of(file: Path) -> str:
    return file.stem.partition("__")[0].replace("_", "-")


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem, marks=[] if file.stem in EVERY_TIME else [pytest.mark.exhaustive])
        for file in GALLERY
        if file.stem not in ("second_process", "judge_moves")
    ],
)
def test_each_fault_is_caught_by_its_name_and_by_no_other(file: Path) -> None:
    waits = file.stem in ("cost", "in_time")  # where each step takes long, --quick leaves out what it has no time for
    found = findings(
        file, make=DoctorOptions if waits else Unhurried, processes=False, rollout_seconds=2.0 if waits else None
    )
    assert caught(found) == {name_of(file)}, [item for item in found if item.status in ("warning", "wrong")]
    for item in found:
        if item.status in ("warning", "wrong"):
            assert item.do, item
            assert file.name in item.place, item


@pytest.mark.process
def test_what_only_another_process_shows_is_caught_there() -> None:
    (file,) = [item for item in GALLERY if item.stem == "second_process"]
    assert caught(findings(file)) == {"second-process"}


@pytest.mark.server
def test_a_judge_that_always_says_the_same_is_caught_when_it_is_asked() -> None:
    (file,) = [item for item in GALLERY if item.stem == "judge_moves"]
    with MockModel(judge(0.5)) as model:
        settings = Settings(variables={"TASKAPP_JUDGE_URL": model.url, "TASKAPP_JUDGE_MODEL": "mock"})
        found = findings(file, settings, processes=False, judges=True)
        assert caught(found) == {"judge-moves"}
    with MockModel(judge(lambda request: len(str(request.messages)) % 7 / 7)) as model:
        settings = Settings(variables={"TASKAPP_JUDGE_URL": model.url, "TASKAPP_JUDGE_MODEL": "mock"})
        assert "judge-moves" not in {
            item.name for item in findings(file, settings, processes=False, judges=True) if "to each" in item.found
        }


@pytest.mark.parametrize("stem", ["private", "rollout"])
def test_neither_a_private_value_nor_an_exceptions_text_is_shown(stem: str) -> None:
    (file,) = [item for item in GALLERY if item.stem == stem]
    hidden = "piano" if stem == "private" else "KeyError("
    assert not any(hidden in item.found + item.do for item in findings(file, processes=False))


def test_there_are_enough_of_them() -> None:
    assert len(GALLERY) >= 24


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
    assert "failure" in by_name["nonsense-ends"].found
