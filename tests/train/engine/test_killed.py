"""Jobs of the engine `local` whose backend, trainer or task app is killed end as one that ran through, to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the train extra: make test-train")
pytest.importorskip("transformers", reason="needs the train extra: make test-train")

from tests.train.engine.killed_job import Ended, check, run

pytestmark = [pytest.mark.server, pytest.mark.process, pytest.mark.timeout(3000)]

MANY = 10
"""Kills of one kind: make kills."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    found = run(tmp_path_factory.mktemp("whole") / "job")
    assert found.status["status"] == "succeeded", found.status["error"]
    rollouts = found.status["results"]["rollouts"]
    assert 0.03 < rollouts["failed"] / rollouts["played"] < 0.2
    assert set(rollouts["failures"]) == {"environment"}
    assert len({value for (name, _), value in found.points.items() if name == "reward"}) > 3
    return found


@pytest.mark.train
def test_four_kills(tmp_path: Path, whole: Ended) -> None:
    found = run(tmp_path / "job", ("trainer", "task app", "backend", "trainer"), seed=1)
    check(found, whole)
    assert found.kills == {"trainer": 2, "task app": 1, "backend": 1}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["backend", "trainer", "task app"])
def test_ten_kills(tmp_path: Path, whole: Ended, kind: str) -> None:
    found = run(tmp_path / "job", [kind] * MANY, seed=2)
    check(found, whole)
    assert found.kills == {kind: MANY}
