from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_a_template_becomes_a_project_and_the_next_commands_are_said(run: Run) -> None:
    made = run("init", "my-project", "--template", "questions", status=0)
    follows = [line.strip() for line in made.stdout.partition("Next:")[2].splitlines() if line.strip()]
    assert follows[0] == "cd my-project"
    assert "python -m pytest" in follows, "a pytest of another Python may come first in PATH"
    app = next(line for line in follows if line.startswith("taskapp info ")).removeprefix("taskapp info ")
    told = run("info", f"my-project/{app}", "--json", status=0)
    assert json.loads(told.stdout)["info"]["service"]["task"]["name"]


@pytest.mark.parametrize(
    "args",
    [
        ("my_project", "--template", "questionsx"),
        ("../x",),
        ("random",),
        ("mine",),
        ("my_project", "--package", "--template", "questions"),
    ],
)
def test_what_cannot_be_made_changes_nothing(run: Run, tmp_path: Path, args: tuple[str, ...]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    told = run("init", *args)
    assert (told.exit_code, told.stdout) == (2, "")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes.txt"]
