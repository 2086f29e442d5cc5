"""One value after the other of an evaluation's directory is something else: commands end with a sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.conftest import ADDER, Run
from tests.cli.test_mutated_answers import EVIL, places

COMMANDS = {
    "summary.json": [("eval", "r")],
    "config.json": [("eval", "r"), ("show", "r"), ("compare", "r"), ("rescore", "r", "--app", ADDER)],
    "results.jsonl": [
        ("eval", "r"), ("show", "r"), ("show", "r", "--worst", "1"), ("compare", "r"),
        ("export", "r", "--format", "inspect", "--policy", "gold", "--out", "o.eval"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from taskapp_kit.cli.main import main

    path = tmp_path_factory.mktemp("evaluated") / "r"
    arguments = ["eval", ADDER, "--policy", "gold", "--policy", "random", "--seeds", "0-2", "--out", str(path)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    return path


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.exhaustive), 7], ids=["all", "one of 7"])
def test_no_directory_ends_in_a_traceback_or_steers_the_terminal(
    run: Run, evaluated: Path, tmp_path: Path, name: str, step: int
) -> None:
    text = (evaluated / name).read_text()
    first, rest = text.split("\n", 1) if name == "results.jsonl" else (text, "")
    tried = [(where, value) for where in places(json.loads(first)) for value in (EVIL, [7], 1e300)]
    problems = []
    shutil.copytree(evaluated, tmp_path / "r")
    for command in COMMANDS[name]:
        assert run(*command).exit_code == 0
    for where, value in tried[::step]:
        body = json.loads(first)
        at = body
        for member in where[:-1]:
            at = at[member]
        at[where[-1]] = value
        shutil.rmtree(tmp_path / "r", ignore_errors=True)
        shutil.copytree(evaluated, tmp_path / "r")
        (tmp_path / "r" / name).write_text(f"{json.dumps(body)}\n{rest}")
        for command in COMMANDS[name]:
            done = run(*command)
            if not isinstance(done.exception, SystemExit | None):
                problems.append(f"{command} {where} {value!r}: {done.exception!r}")
            if set(done.output) & set("\x1b\x9b\x07\u202e"):
                problems.append(f"{command} {where}: escapes")
    assert problems == [], "\n".join(problems)


def test_a_line_without_an_end_is_not_read_whole(run: Run, evaluated: Path, tmp_path: Path) -> None:
    shutil.copytree(evaluated, tmp_path / "r")
    with (tmp_path / "r" / "results.jsonl").open("r+b") as lines:
        lines.truncate(100 * 2**20)  # a sparse file: almost nothing on the disk
    assert run("show", "r").exit_code == 1
