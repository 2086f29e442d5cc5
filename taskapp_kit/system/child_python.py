"""Command lines and import paths of child Python processes.

`python -m MODULE` and `python -c` put the working directory before the standard library in the import path. A file `random.py`
in the working directory would then replace Python's module, in a process that may contain keys. Therefore children are started
as `python -P child_python.py MODULE ARGUMENT…`. They import the same kit as their parent, and add nothing else to the path.

This file does not import the kit at module level, because in a child it runs before the kit is importable.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_KIT_PARENT = str(Path(os.path.abspath(__file__)).parents[2])  # noqa: PTH100 (as sys.path has it)
_PR_SET_DUMPABLE = 4


def python_command(program: str | Path, *arguments: str) -> list[str]:
    """Return the command that runs `program` with this interpreter. The kit starts all Python processes with it.

    The function also calls `hide_memory`. If the child runs author code, pass `config.child_environment()` as its
    environment.

    Args:
        program: The name of a module, which runs as with `python -m`. Or the path of a file that needs only the standard
            library. Such a file runs without installed packages and without Python's environment variables.
        arguments: The arguments of the program.
    """
    hide_memory()
    if isinstance(program, Path):
        return [sys.executable, "-I", "-S", str(program), *arguments]
    return [sys.executable, "-P", __file__, program, *arguments]


def add_import_folder(folder: str) -> None:
    """Add a directory to the import path, after the standard library and before installed packages.

    A directory that is already on the path keeps its position.
    """
    if folder not in sys.path:
        sys.path.insert(_end_of_standard_library(), folder)


def leave_working_directory() -> None:
    """Remove the working directory, which `python -m` adds, from the import path. The kit can still be imported."""
    if not sys.flags.safe_path:
        del sys.path[0]
        add_import_folder(_KIT_PARENT)


def hide_memory() -> None:
    """Make this process's memory and environment (`/proc/PID/mem`, `/proc/PID/environ`) unreadable for its user.

    This process may contain keys, and a child that runs author code has the same user id. Processes with CAP_SYS_PTRACE,
    CAP_SYS_ADMIN or CAP_PERFMON can still read both. Root has these capabilities, unless a container drops them. The
    function does nothing on systems other than Linux.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _end_of_standard_library() -> int:
    """Return the index in `sys.path` that follows the last entry of the standard library."""
    library = os.path.realpath(os.path.dirname(os.__file__))  # noqa: PTH120
    for index in range(len(sys.path) - 1, -1, -1):
        entry = os.path.realpath(sys.path[index])
        if entry == library or os.path.basename(entry) == "lib-dynload":  # noqa: PTH119
            return index + 1
    return len(sys.path)


def main() -> None:
    """Run the module that the first argument names, and pass it the remaining arguments. A child process starts here."""
    import runpy

    del sys.argv[0]
    add_import_folder(_KIT_PARENT)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
