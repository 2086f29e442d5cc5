"""Child processes: none outlives this process, and what they printed explains their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.system.child import LINE_CHARACTERS, OwnedProcess
from tests.system.test_group_with_parent import TREE, pids
from tests.waiting import alive, until

pytestmark = pytest.mark.process

PARENT = """
import os, sys, time
from taskapp_kit.system.child import OwnedProcess
seconds, written, program = sys.argv[1:]
OwnedProcess([sys.executable, "-c", program, written], env=os.environ, name="child")
while not os.path.exists(written) or not open(written).read().endswith("\\n"):
    time.sleep(0.01)
time.sleep(float(seconds))
"""
UNTIL_INPUT_ENDS = "import sys; print(len(sys.stdin.read()), flush=True)"


def child(program: str, **options: Any) -> OwnedProcess[str]:
    return OwnedProcess([sys.executable, "-c", program], env=dict(os.environ), name="child-of-a-test", **options)


def tree(tmp_path: Path, *, deaf: bool) -> tuple[OwnedProcess[str], list[int]]:
    program = f"import sys; sys.argv = ['', {str(tmp_path / 'pids')!r}]\n{TREE.format(deaf=deaf)}"
    return child(program, end_seconds=0.5), until(lambda: pids(tmp_path / "pids"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("end", ["killed", "over"])
def test_it_ends_with_its_parent(tmp_path: Path, end: str) -> None:
    seconds, written = "600" if end == "killed" else "0", tmp_path / "pids"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, seconds, str(written), TREE.format(deaf=False)])
    running = until(lambda: pids(written))
    if end == "killed":
        parent.kill()
    parent.wait()
    until(lambda: not alive(running[0]), what="its end")


@pytest.mark.parametrize("deaf", [False, True])
def test_close_ends_its_descendants_too_and_may_be_called_twice(tmp_path: Path, deaf: bool) -> None:
    process, running = tree(tmp_path, deaf=deaf)
    process.close()
    process.close()
    until(lambda: not any(map(alive, running)), what="the end of both")
    assert process.status == (-signal.SIGKILL if deaf else -signal.SIGTERM)
    assert not [thread for thread in threading.enumerate() if thread.name == "child-of-a-test"]


def test_processes_that_it_leaves_are_killed() -> None:
    program = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print(p.pid)"
    ended: list[int] = []
    process = child(program, on_exit=ended.append)  # the descendant has its output open
    assert process.ended.wait(60)
    until(lambda: not alive(int(process.lines[0])), what="the end of its child")
    until(lambda: ended == [0], what="the callback")


def test_its_input_ends_with_close() -> None:
    with child(UNTIL_INPUT_ENDS, input=b"some\n") as process:
        assert not process.ended.wait(0.1)
    assert (process.status, process.lines) == (0, ["5"])


def test_a_line_makes_it_ready_or_its_end_does() -> None:
    def address(line: str) -> str | None:
        return line if line.startswith("http") else None

    with child(
        "print('starts'); print('http://x', flush=True); import time; time.sleep(600)", ready=address
    ) as process:
        assert process.wait_ready(60) == "http://x"
        assert (process.end, process.lines) == ("", ["starts"])  # the other line may hold a key
    with child("raise SystemExit(3)", ready=address) as process:
        assert process.wait_ready(60) is None
        assert process.end == "exited 3"
    leave = threading.Event()
    leave.set()
    with child("import time; time.sleep(600)", ready=address) as process:
        assert process.wait_ready(60, leave) is None
        assert process.wait_ready(0.1) is None


def test_its_last_lines_are_cleaned_cut_and_bounded() -> None:
    key = "k3y" * 50
    program = (
        f"print('\\x07one'); print('x' * 5000 + {key!r}); print({key!r}); print('y' * 200_000 + 'end'); print('last')"
    )
    seen: list[str] = []
    process = child(program, clean=lambda line: line.replace(key, "(key)"), on_line=seen.append)
    assert process.ended.wait(60)
    assert [line[:5] for line in process.lines] == ["one", "xxxxx", "(key)", "yyyyy", "last"]
    assert max(map(len, process.lines)) == LINE_CHARACTERS
    assert "k3y" not in " ".join(seen) and max(map(len, seen)) < 70_000
    assert process.end.startswith("exited 0; its last lines: one | ")


@pytest.mark.parametrize("reads", ["stdout", "stderr"])
def test_only_one_of_its_streams_may_be_read(reads: Any) -> None:
    process = child("import sys; print('stdout'); print('stderr', file=sys.stderr)", reads=reads)
    assert process.ended.wait(60)
    assert process.lines == [reads]


def test_replica_that_cannot_start_raises() -> None:
    with pytest.raises(ValueError, match="null"):
        OwnedProcess(["a\0b"], env={}, name="x")
    process: OwnedProcess[None] = OwnedProcess(["/not/there"], env={}, name="x")
    assert process.ended.wait(60)
    assert process.status == 127


def test_ctrl_c_while_it_is_being_started_leaves_no_process() -> None:
    pressed = 0
    for turn in range(30):
        presses = threading.Timer(turn * 0.0002, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        process = None
        try:
            presses.start()
            process = child("import time; time.sleep(600)")
            presses.join()
            time.sleep(0.05)
        except KeyboardInterrupt:
            pressed += process is None
        finally:
            presses.join()
            if process is not None:
                process.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "child-of-a-test"]
    assert pressed
