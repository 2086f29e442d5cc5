"""Every page starts, equally in any process, and asks for nothing outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from environments.web.miniwob.rows import TASKS
from tests.environments.web.miniwob import episodes
from tests.environments.web.miniwob.episodes import BROWSER, begun, goal_of, starts

pytestmark = BROWSER

SAMPLE = ["click-pie", "email-inbox", "terminal", "use-colorwheel"]
NAMES = [pytest.param(name, marks=[] if name in SAMPLE else [pytest.mark.exhaustive], id=name) for name in TASKS]


@pytest.mark.parametrize("name", NAMES)
def test_it_starts(name: str) -> None:
    with begun(name) as (environment, seen):
        assert goal_of(seen).strip()
        assert "Note:" not in seen, "a script of the page failed"
        assert "[1]" in seen
        assert all(hidden not in seen for hidden in ("Last reward", "Time left", "Episodes done", "START"))
        assert not environment.final_state()["done"]
        assert environment.opened is not None
        assert environment.opened.window.refused == []


@pytest.mark.process
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SAMPLE, id="sample"),
        *(
            pytest.param(list(TASKS)[first : first + 25], id=f"from-{first}", marks=pytest.mark.exhaustive)
            for first in range(0, len(TASKS), 25)
        ),
    ],
)
def test_the_goal_and_the_tree_are_equal_in_another_process(names: list[str]) -> None:
    command = [sys.executable, episodes.__file__, *names]
    environ = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    other = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
    here, there = starts(names), json.loads(other.stdout)
    assert [name for name in names if here[name] != there[name]] == []


def test_the_seed_decides() -> None:
    with begun("click-checkboxes", 1) as (_, first), begun("click-checkboxes", 2) as (_, second):
        assert goal_of(first) != goal_of(second)
