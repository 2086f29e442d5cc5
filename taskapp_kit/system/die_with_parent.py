"""Runs a program that dies with the process that started it: `python die_with_parent.py PARENT_PID PROGRAM ARGUMENT…`.

A program of its own, so that nothing of the kit runs between fork and exec in a process with threads. Where the kernel
offers no such signal (it is Linux that does) the program simply runs. The kernel looks at the *thread* that started it:
that thread has to live as long as the program should.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Becomes the program. 127 when it cannot be run, as a shell says; never returns otherwise."""
    parent, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before
            return 1
    try:
        os.execv(command[0], command)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be run: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
