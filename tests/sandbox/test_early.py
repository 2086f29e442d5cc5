"""Boxes whose next interpreter is started before it has a program: `Sandbox(warm=True)`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from taskapp_kit.sandbox import Sandbox
from tests.sandbox.boxes import LEVELS, SMALL
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.skipif(not LEVELS, reason="no level confines untrusted code here")]

LEVEL = LEVELS[0] if LEVELS else 0
SHOWS = """
import os, sys
print(sys.argv, __file__, __name__, sorted(os.listdir("/code" if os.path.exists("/code") else os.path.dirname(__file__))))
print(sys.stdin.read(), sorted(name for name in sys.modules if not name.startswith("_")))
raise ValueError("where")
"""


def test_a_program_finds_what_it_finds_in_a_new_process() -> None:
    shown = []
    for warm in (False, True):
        with Sandbox(level=LEVEL, warm=warm) as box:
            for _ in range(2):
                ran = box.run_sync(SHOWS, stdin=b"what it reads")
                shown.append((ran.exit_code, ran.stdout.replace(box.root, ""), ran.stderr))
    assert LEVEL != 3 or len(set(shown)) == 1  # below, paths have the folder's name
    assert all(code == 1 and "what it reads" in out and "raise ValueError" in err for code, out, err in shown)


def test_nothing_of_a_program_is_in_the_next_but_its_files() -> None:
    with Sandbox(level=LEVEL, warm=True) as box:
        first = box.run_sync(
            "import builtins, os; builtins.left = 1; os.environ['LEFT'] = '1'; open('left', 'w').write('1')"
        )
        assert first.ok
        second = box.run_sync(
            "import builtins, os; print(hasattr(builtins, 'left'), os.environ.get('LEFT'), open('left').read())"
        )
        assert second.stdout == "False None 1\n"


@pytest.mark.ci
def test_its_time_counts_from_when_it_has_its_program() -> None:
    with Sandbox(level=LEVEL, warm=True, limits=replace(SMALL, wall_seconds=1.0)) as box:
        until(_waiting, what="an interpreter waits")
        time.sleep(1.5)
        assert box.run_sync("print('in time')").stdout == "in time\n"
        assert box.run_sync("import time; time.sleep(60)").killed_for == "wall"
        assert box.run_sync("print('again')").ok


def test_other_limits_and_other_programs_are_started_as_usual() -> None:
    with Sandbox(level=LEVEL, warm=True, limits=SMALL) as box:
        assert box.run_sync("print(1)", limits=replace(SMALL, wall_seconds=2)).stdout == "1\n"
        assert box.run_sync(["python", "-c", "print(2)"]).stdout == "2\n"
        assert box.run_sync("print(3)").stdout == "3\n"
        assert box.run_sync("#" * 200_000 + "\nprint(4)").stdout == "4\n"  # more than a pipe holds


def test_an_interpreter_that_was_killed_while_it_waited_is_replaced() -> None:
    with Sandbox(level=LEVEL, warm=True) as box:
        killed = until(_waiting, what="an interpreter waits")
        for process in killed:
            process.kill()
        until(lambda: not set(killed) & set(_waiting()), what="they are dead")
        assert box.run_sync("print('it runs')").stdout == "it runs\n"
        assert box.run_sync("print('and again')").stdout == "and again\n"


def test_a_closed_box_leaves_no_interpreter() -> None:
    with Sandbox(level=LEVEL, warm=True) as box:
        assert box.run_sync("print(1)").ok
        until(_waiting, what="an interpreter waits")
        folder = Path(box.root) if LEVEL < 3 else None
    assert _waiting() == []
    assert folder is None or not folder.exists()


def _waiting() -> list[psutil.Process]:
    """The interpreters of this process's boxes."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if any(word.endswith("/code/main.py") for word in child.cmdline()[:6]) and "python" in child.cmdline()[0]:
                found.append(child)
        except psutil.Error:
            continue
    return found


PLANTS = """
import encodings, os, shutil
source = os.path.dirname(encodings.__file__)
shutil.copytree(source, "encodings", ignore=lambda *_: ["__pycache__", "__init__.py"])
text = open(f"{source}/__init__.py").read()
open("encodings/__init__.py", "w").write("import posix\\nposix.close(posix.open('ran', 0o101, 0o644))\\n" + text)
"""


def test_a_module_that_a_program_left_does_not_run_between_programs(level: int) -> None:
    with Sandbox(level=level, warm=True, limits=SMALL) as box:
        assert box.run_sync(PLANTS).ok
        until(_waiting, what="an interpreter waits")
        assert "ran" not in box.list_sync()
        assert box.run_sync("import encodings; print(sum([1, 2]))").stdout == "3\n"


@pytest.mark.ci
def test_an_interpreter_does_not_start_while_its_folder_is_emptied() -> None:
    with Sandbox(level=LEVEL, warm=True, limits=SMALL) as box:
        for _ in range(10):
            ran = box.run_sync(
                "import os\nfor n in range(150): open(str(n), 'w').close()\nprint('in', os.listdir('.') != [])"
            )
            assert (ran.stdout, ran.stderr) == ("in True\n", "")
            box.clear_sync()
            assert box.list_sync() == []
