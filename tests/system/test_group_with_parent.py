"""A program ends with all of its children when its parent is gone, however that ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from taskapp_kit.system import group_with_parent
from tests.waiting import alive, until

pytestmark = pytest.mark.process

GUARD = [sys.executable, "-I", "-S", group_with_parent.__file__]
TREE = """
import os, signal, subprocess, sys
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{{os.getpid()}} {{child.pid}}\\n")
child.wait()
"""
PARENT = """
import subprocess, sys, time
subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
time.sleep(600)
"""


def pids(path: Path) -> list[int]:
    return [int(each) for each in path.read_text().split()] if path.exists() and path.read_text().endswith("\n") else []


def test_a_killed_parent_takes_the_program_and_its_children_along(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    command = [*GUARD, str(folder), sys.executable, "-c", TREE.format(deaf=False), str(tmp_path / "pids")]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *command])
    running = until(lambda: pids(tmp_path / "pids"))
    assert all(map(alive, running))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: not any(map(alive, running)), what="the end of both")
    until(lambda: not folder.exists(), what="the removal of the folder")


def test_a_program_that_ends_leaves_no_children_and_its_status(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        "stdout=subprocess.DEVNULL); print(p.pid); sys.exit(7)"
    )
    command = [*GUARD, str(tmp_path / "none"), sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as guard:
        assert guard.stdout is not None
        assert guard.stderr is not None
        child = int(guard.stdout.readline())
        assert guard.wait(60) == 7
        assert guard.stderr.read() == b""  # standard input is open still
    until(lambda: not alive(child), what="the end of its child")


def test_program_that_cannot_be_run_is_reported(tmp_path: Path) -> None:
    command = [*GUARD, str(tmp_path / "none"), str(tmp_path / "missing")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "cannot be run: No such file" in done.stderr) == (127, True)
