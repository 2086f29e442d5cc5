from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import ADDER, CAPITALS, Run, clean_environ


def test_a_piped_game_ends_with_its_scorecard(run: Run) -> None:
    told = run("play", ADDER, "--seed", "3", stdin='3\nadd {"amount": 3}\nadd 2\n')
    assert told.exit_code == 0, told.stderr
    assert told.stdout.count("> ") >= 3
    assert "target 8, total 8" in told.stdout
    assert re.search(r"^reward +0\.9625", told.stdout, re.MULTILINE)
    assert re.search(r"^ended +terminated", told.stdout, re.MULTILINE)
    assert re.search(r"^policy +person", told.stdout, re.MULTILINE)


def test_a_slip_is_feedback_and_costs_no_step(run: Run) -> None:
    told = run("play", ADDER, "--seed", "3", stdin="7\nfoo\n{\n\nhelp\n3\n3\n2\n")
    assert "add was not done: amount" in told.stdout
    assert "That is not JSON" in told.stdout
    assert told.stdout.count("Add `amount` to the total.") == 2
    assert "after 3 steps" in told.stdout
    assert "invalid_actions" not in told.stdout


@pytest.mark.parametrize("end", ["", "quit\n", "exit\n"])
def test_leaving_truncates_and_scores(run: Run, end: str) -> None:
    told = run("play", ADDER, "--seed", "3", stdin="3\n" + end)
    assert told.exit_code == 0
    assert "truncated (left) after 1 step" in told.stdout
    assert re.search(r"^reward +0 ", told.stdout, re.MULTILINE)


def test_leaving_at_once(run: Run) -> None:
    told = run("play", ADDER, "--seed", "3", stdin="")
    assert told.exit_code == 0
    assert "truncated (left) after 0 steps" in told.stdout


def test_words_answer_a_question(run: Run) -> None:
    told = run("play", CAPITALS, "--seed", "1", stdin="Tokyo\n")
    assert "What is the capital of Japan?" in told.stdout
    assert re.search(r"^reward +1 ", told.stdout, re.MULTILINE)


def test_crafter_takes_the_names_of_its_moves(run: Run) -> None:
    told = run(
        "play", "crafter", "--seed", "0", "--config", '{"length": 100}', stdin="move_left do do\nnoop\n", width=80
    )
    assert told.exit_code == 0, told.stderr
    assert "step 3 of 100" in told.stdout
    assert "step 4 of 100" in told.stdout
    assert "facing left" in told.stdout


def test_width_and_full(run: Run) -> None:
    asked = ("play", "crafter", "--seed", "0", "--config", '{"length": 100}', "--width", "60")
    told = run(*asked, stdin="noop\n")
    assert max(map(len, told.stdout.splitlines())) <= 60
    assert "others are 0" in " ".join(told.stdout.split())
    assert "others are 0" not in " ".join(run(*asked, "--full", stdin="noop\n").stdout.split())


def test_a_broken_environment_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(Path(ADDER).read_text().replace("self.total += amount", "1 / 0"))
    told = run("play", "bad.py", "--seed", "3", stdin="1\n")
    assert told.exit_code == 1
    assert "ZeroDivisionError" in told.stderr
    assert "boundary environment" in told.stderr


@pytest.mark.parametrize("args", [["--seed", "5000"], ["--env", "no"], ["--config", '{"no": 1}'], ["--split", "no"]])
def test_a_wrong_episode_is_refused_before_anything_is_shown(run: Run, args: list[str]) -> None:
    told = run("play", ADDER, *args, stdin="1\n")
    assert told.exit_code == 2
    assert told.stdout == ""


@pytest.mark.process
def test_at_a_terminal_it_asks_and_ctrl_c_leaves() -> None:
    theirs, ours = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "taskapp_kit", "play", ADDER, "--seed", "3"],
        stdin=ours, stdout=ours, stderr=ours, env=clean_environ(TERM="dumb"), start_new_session=True,
        preexec_fn=lambda: _own_terminal(ours),  # noqa: PLW1509 - the child alone can take the terminal
    )  # fmt: skip
    os.close(ours)
    shown = _until(theirs, "> ")
    assert "target 8, total 0" in shown
    os.write(theirs, b"3\n")
    assert "total 3" in _until(theirs, "> ", again=True)
    time.sleep(0.2)  # a signal between Python's prompt and its waiting is lost, and a person presses again
    os.write(theirs, b"\x03")
    try:
        rest = _until(theirs, "digest", seconds=5.0)
    except AssertionError:
        os.write(theirs, b"\x03")
        rest = _until(theirs, "digest")
    assert "truncated (left) after 1 step" in rest
    assert "Traceback" not in rest
    assert process.wait(20) == 0
    os.close(theirs)


def _own_terminal(descriptor: int) -> None:
    import fcntl
    import signal
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a suite that runs in the background of a shell ignores it
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


def _until(descriptor: int, words: str, *, again: bool = False, seconds: float = 20.0) -> str:
    """Reads the terminal until the words stand at its end (`again`: after something else)."""
    import select

    text, end = "", time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([descriptor], [], [], 0.1)[0]:
            try:
                text += os.read(descriptor, 65536).decode("utf-8", "replace")
            except OSError:  # the other side is closed
                return text
        if words in text and (not again or (text.rstrip(" ").endswith(words.strip()) and "total" in text)):
            return text
    raise AssertionError(f"{words!r} did not appear in {text!r}")
