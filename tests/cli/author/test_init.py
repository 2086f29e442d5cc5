from __future__ import annotations

import json
from pathlib import Path

import pytest

from taskapp_kit.cli.author.templates import NAME, TITLE, templates
from tests.cli.conftest import Run

NAMES = [item.name for item in templates()]


def test_there_are_templates() -> None:
    assert NAMES


@pytest.mark.parametrize("template", NAMES)
def test_a_template_becomes_a_project_whose_app_loads(run: Run, tmp_path: Path, template: str) -> None:
    made = run("init", "my-project", "--template", template)
    assert made.exit_code == 0, made.stderr
    written = [path for path in (tmp_path / "my-project").rglob("*") if path.is_file()]
    assert written
    for path in written:
        assert NAME not in path.name
        text = path.read_text("utf-8")
        assert NAME not in text
        assert TITLE not in text
    follows = [line.strip() for line in made.stdout.partition("Next:")[2].splitlines() if line.strip()]
    assert follows[0] == "cd my-project"
    assert "python -m pytest" in follows, "a pytest of another Python may come first in PATH"
    command = next(line for line in follows if line.startswith("taskapp info "))
    app = command.removeprefix("taskapp info ")
    told = run("info", f"my-project/{app}", "--json")
    assert told.exit_code == 0, told.stderr
    assert json.loads(told.stdout)["info"]["service"]["task"]["name"]


def test_an_unknown_template_is_told_with_the_list(run: Run, tmp_path: Path) -> None:
    told = run("init", "my_project", "--template", NAMES[0] + "x")
    assert told.exit_code == 2
    assert f"Did you mean {NAMES[0]!r}?" in told.stderr
    assert all(name in told.stderr for name in NAMES)
    assert not (tmp_path / "my_project").exists()


@pytest.mark.parametrize("name", ["1game", "my game", "../x", "random", "class"])
def test_a_bad_name_makes_nothing(run: Run, tmp_path: Path, name: str) -> None:
    assert run("init", name).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_there_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    told = run("init", "mine")
    assert told.exit_code == 2
    assert "not an empty directory" in told.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
