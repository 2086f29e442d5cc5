"""Child Python processes: the command line that starts them, and the import path of each.

`python -m MODULE` and `python -c` put the working directory before the standard library: a `random.py` there would run
instead of Python's, in a process that may hold keys. So a child is started with `-P` and this file as its program:
`python -P child_python.py MODULE ARGUMENT…`. It finds the same kit as its parent and adds nothing else.

This file imports nothing of the kit at its top: in a child, it runs before the kit can be found.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_KIT_PARENT = str(Path(os.path.abspath(__file__)).parents[2])  # noqa: PTH100 (as sys.path has it)
_PR_SET_DUMPABLE = 4


def python_command(program: str | Path, *arguments: str) -> list[str]:
    """Return the command that runs `program` with this interpreter; every Python process of the kit uses it.

    program: a module's name, which is run as `python -m` does; or a file that needs only the standard library, which
    gets neither installed packages nor Python's environment variables. `config.child_environment()` gives the environment
    of a child that runs an author's code.

    From now on other processes of this user cannot read this one's memory and environment; see `hide_memory`.
    """
    hide_memory()
    if isinstance(program, Path):
        return [sys.executable, "-I", "-S", str(program), *arguments]
    return [sys.executable, "-P", __file__, program, *arguments]


def add_import_folder(folder: str) -> None:
    """Add `folder` to the import path, after the standard library and before installed packages.

    A folder that is on the path already stays where it is.
    """
    if folder not in sys.path:
        sys.path.insert(_end_of_standard_library(), folder)


def leave_working_directory() -> None:
    """Remove the working directory from the import path, where `python -m` put it; the kit stays importable."""
    if not sys.flags.safe_path:
        del sys.path[0]
        add_import_folder(_KIT_PARENT)


def hide_memory() -> None:
    """Make this process's memory and environment (`/proc/PID/mem`, `/proc/PID/environ`) unreadable for its own user.

    A child that runs an author's code has the same user id, and this process may hold keys. Processes with
    CAP_SYS_PTRACE, CAP_SYS_ADMIN or CAP_PERFMON (root, unless a container drops them) can still read them. Linux only;
    elsewhere this does nothing.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _end_of_standard_library() -> int:
    """Return the index in `sys.path` after the last entry of the standard library."""
    library = os.path.realpath(os.path.dirname(os.__file__))  # noqa: PTH120
    for index in range(len(sys.path) - 1, -1, -1):
        entry = os.path.realpath(sys.path[index])
        if entry == library or os.path.basename(entry) == "lib-dynload":  # noqa: PTH119
            return index + 1
    return len(sys.path)


def main() -> None:
    """Run the module named by the first argument, with the remaining arguments. The child's entry point."""
    import runpy

    del sys.argv[0]
    add_import_folder(_KIT_PARENT)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
