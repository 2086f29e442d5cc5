from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import ADDER, CAPITALS, Run
from tests.cli.terminals import Terminal


def test_a_piped_game_ends_with_its_scorecard(run: Run) -> None:
    told = run("play", ADDER, "--seed", "3", stdin='3\nadd {"amount": 3}\nadd 2\n', status=0)
    assert told.stdout.count("> ") >= 3
    assert "target 8, total 8" in told.stdout
    assert re.search(r"^reward +0\.9625", told.stdout, re.MULTILINE)
    assert re.search(r"^ended +terminated", told.stdout, re.MULTILINE)
    assert re.search(r"^policy +person", told.stdout, re.MULTILINE)


def test_a_slip_is_feedback_and_costs_no_step(run: Run) -> None:
    told = run("play", ADDER, "--seed", "3", stdin="7\nfoo\n{\n\nhelp\n3\n3\n2\n")
    assert "add was not played: amount" in told.stdout
    assert "Invalid JSON" in told.stdout
    assert told.stdout.count("Add `amount` to the total.") == 2
    assert "after 3 steps" in told.stdout
    assert "invalid_actions" not in told.stdout


@pytest.mark.parametrize(("typed", "steps"), [("", "0 steps"), ("3\n", "1 step"), ("3\nquit\n", "1 step")])
def test_leaving_truncates_and_scores(run: Run, typed: str, steps: str) -> None:
    told = run("play", ADDER, "--seed", "3", stdin=typed, status=0)
    assert f"truncated (left) after {steps}" in told.stdout
    assert re.search(r"^reward +0 ", told.stdout, re.MULTILINE)


def test_words_answer_a_question(run: Run) -> None:
    told = run("play", CAPITALS, "--seed", "1", stdin="Tokyo\n")
    assert "What is the capital of Japan?" in told.stdout
    assert re.search(r"^reward +1 ", told.stdout, re.MULTILINE)


CRAFTER = ("play", "crafter", "--seed", "0", "--config", '{"length": 100}')


def test_crafter_takes_the_names_of_its_moves(run: Run) -> None:
    told = run(*CRAFTER, stdin="move_left do do\nnoop\n", width=80, status=0)
    assert "step 4 of 100" in told.stdout
    assert "facing left" in told.stdout


def test_width_and_full(run: Run) -> None:
    told = run(*CRAFTER, "--width", "60", stdin="noop\n")
    assert max(map(len, told.stdout.splitlines())) <= 60
    assert "others are 0" in " ".join(told.stdout.split())
    full = run(*CRAFTER, "--width", "60", "--full", stdin="noop\n")
    assert "others are 0" not in " ".join(full.stdout.split())


def test_a_broken_environment_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(Path(ADDER).read_text().replace("self.total += amount", "1 / 0"))
    told = run("play", "bad.py", "--seed", "3", stdin="1\n", status=1)
    assert "boundary environment" in told.stderr


@pytest.mark.parametrize("args", [["--seed", "5000"], ["--env", "no"], ["--config", '{"no": 1}'], ["--split", "no"]])
def test_a_wrong_episode_is_refused_before_anything_is_shown(run: Run, args: list[str]) -> None:
    told = run("play", ADDER, *args, stdin="1\n", status=2)
    assert told.stdout == ""


@pytest.mark.process
def test_at_a_terminal_it_asks_and_ctrl_c_leaves(tmp_path: Path) -> None:
    with Terminal(tmp_path, "play", ADDER, "--seed", "3", TERM="dumb") as terminal:
        terminal.wait("target 8, total 0")
        terminal.wait("> ")
        terminal.type("3")
        terminal.wait("total 3\nreward 0\n> ")
        assert terminal.leave() == 0
    assert "truncated (left) after 1 step" in terminal.text
    assert "Traceback" not in terminal.text
