"""What the policy reads is the same wherever and whenever it ran."""

from __future__ import annotations

from environments.python_sandbox.words import SHOWN_CHARACTERS, run_text, steady, task_text


def told(stdout: str = "", stderr: str = "", **given: object) -> str:
    whole = {"exit_code": 0, "signal": None, "killed_for": None, "root": "/box", **given}
    return run_text(stdout=stdout, stderr=stderr, **whole)  # type: ignore[arg-type]


def test_paths_and_addresses_do_not_show() -> None:
    for root in ("/box", "/tmp/taskapp-box-ab_12/files"):
        text = f'File "{root}/main.py", line 1\n<object object at 0x7f00aa> in {root}'
        assert steady(text, root) == 'File "main.py", line 1\n<object object at 0x0> in .'
    assert steady("/tmp/taskapp-box-x1/tmp/a /tmp/taskapp-box-x1/code", "/tmp/taskapp-box-x1/files") == "/tmp/a /code"
    assert steady("0x10 stays, at 16", "/box") == "0x10 stays, at 16"


def test_how_it_ended_comes_first() -> None:
    assert told() == "Exit code 0."
    assert told("a\n", "b\n", exit_code=1) == "Exit code 1.\nstdout:\na\nstderr:\nb"
    assert told(exit_code=None, signal=11) == "Ended by signal 11."
    assert told(exit_code=None, signal=9, killed_for="wall") == told(exit_code=None, signal=9, killed_for="cpu")
    assert told(exit_code=None, signal=9, killed_for="disk") == "Stopped: too much disk."


def test_long_output_is_cut() -> None:
    assert told("x" * SHOWN_CHARACTERS).endswith("x")
    assert told("x" * (SHOWN_CHARACTERS + 1)).endswith("x\n(cut here)")


def test_a_task_shows_its_examples_as_python() -> None:
    text = task_text("Do it.", "def f(a: str) -> bool", "f", [(["x", None], True)], many=False)
    assert "    f('x', None) == True\n" in text
    assert "def f(a: str) -> bool" in text
    assert "    f(1) may give [2]\n" in task_text("Do it.", "def f(a)", "f", [([1], [2])], many=True)
