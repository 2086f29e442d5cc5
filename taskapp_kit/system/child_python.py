"""Python processes that the kit starts: one command line for all of them, and where imported code is looked for.

`python -m MODULE` and `python -c` put the working directory before the standard library: a `random.py` there would run
in place of Python's, in a process that may hold keys. So a child is started with `-P`, by this file, which is also its
program: `python -P child_python.py MODULE ARGUMENT…`. It finds the same kit as its parent and adds nothing else.

No import of the kit stands at the top of this file: in a child, it runs before the kit can be found.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_KIT_PARENT = str(Path(os.path.abspath(__file__)).parents[2])  # noqa: PTH100 (as sys.path has it)
_PR_SET_DUMPABLE = 4


def python_command(program: str | Path, *arguments: str) -> list[str]:
    """The command that runs `program` with this interpreter; every Python process of the kit is started with it.

    program: a module's name, which is run as `python -m` does; or a file that needs the standard library alone, which
    gets neither installed packages nor Python's environment variables. The environment of a child that runs an author's
    code is `config.child_environment()`.

    From now on other processes of this user cannot read this one's memory and environment; see `hide_memory`.
    """
    hide_memory()
    if isinstance(program, Path):
        return [sys.executable, "-I", "-S", str(program), *arguments]
    return [sys.executable, "-P", __file__, program, *arguments]


def add_import_folder(folder: str) -> None:
    """Has modules looked for in `folder`, after the standard library and before installed packages.

    A folder that is on the path already stays where it is.
    """
    if folder not in sys.path:
        sys.path.insert(_end_of_standard_library(), folder)


def leave_working_directory() -> None:
    """Takes the working directory from the path, where `python -m` has put it; the kit stays importable."""
    if not sys.flags.safe_path:
        del sys.path[0]
        add_import_folder(_KIT_PARENT)


def hide_memory() -> None:
    """Makes this process's memory and environment (`/proc/PID/mem`, `/proc/PID/environ`) unreadable for its user.

    A child of the kit that runs an author's code has the same user id; this process may hold keys. A process with
    CAP_SYS_PTRACE, CAP_SYS_ADMIN or CAP_PERFMON (root, unless a container has taken them away) still reads them. Linux
    only; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _end_of_standard_library() -> int:
    """The index in `sys.path` behind the last entry of the standard library."""
    library = os.path.realpath(os.path.dirname(os.__file__))  # noqa: PTH120
    for index in range(len(sys.path) - 1, -1, -1):
        entry = os.path.realpath(sys.path[index])
        if entry == library or os.path.basename(entry) == "lib-dynload":  # noqa: PTH119
            return index + 1
    return len(sys.path)


def main() -> None:
    """The child: runs the module that is named by its first argument, with the others."""
    import runpy

    del sys.argv[0]
    add_import_folder(_KIT_PARENT)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
