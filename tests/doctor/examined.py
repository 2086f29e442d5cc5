"""What the doctor finds in an app of the gallery of planted defects, with the rollouts of `--quick`."""

from __future__ import annotations

import contextlib
from pathlib import Path

from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.doctor.doctor_options import DoctorOptions
from taskapp_kit.doctor.finding import DoctorFinding
from taskapp_kit.testing import MockModel, play
from tests.doctor.defects.index import Defect
from tests.doctor.test_gallery import findings, problems


def found_in(defect: Defect, *, twin: bool = False) -> list[str]:
    """Return the names of the checks that caught the defect, or that found a problem in the sound twin.

    A check catches a defect if it warns about a line of the app's file. If the data set causes the reward, it is enough
    that a check that passed states the share of the rows on which the reply is right.
    """
    file = defect.twin_path if twin else defect.path
    examined = _examined(file, defect)
    warned = [item for item in problems(examined) if Path(item.place.rpartition(":")[0]).name == file.name]
    noted: list[DoctorFinding] = []
    if defect.verdict == "note" and not twin:
        share = f"{_share(defect):.0%}"
        noted = [item for item in examined if item.status == "ok" and share in item.found]
    return [item.name for item in [*warned, *noted]]


def _examined(file: Path, defect: Defect) -> list[DoctorFinding]:
    with contextlib.ExitStack() as running:
        settings = None
        if defect.judge is not None:
            url = running.enter_context(MockModel(defect.judge)).url
            settings = Settings(variables={"TASKAPP_JUDGE_URL": url, "TASKAPP_JUDGE_MODEL": "mock"})
        chosen = {"judges": defect.judge is not None, "environment": defect.environment, "processes": False}
        return findings(file, settings, make=DoctorOptions, **chosen)


def _share(defect: Defect) -> float:
    app = find_app(str(defect.path))
    tasks = app.freeze().environments[defect.environment].tasks
    assert tasks is not None
    seeds = range(len(tasks.rows("train")))
    rewards = [play(app, seed=seed, environment=defect.environment, action=defect.reply).reward for seed in seeds]  # type: ignore[arg-type]
    return rewards.count(1.0) / len(rewards)
