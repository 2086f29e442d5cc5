"""A program that runs another program until the parent process ends: `python die_with_parent.py PARENT_PID PROGRAM ARGUMENT…`.

This is a separate program, so that no code of the kit runs between fork and exec in a process with threads. Only Linux has a
parent-death signal. On other systems, PROGRAM keeps running when its parent ends. The kernel sends the signal when the
*thread* that started the program ends, so this thread must live as long as the program should run.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Replace this process with the program. Return only on failure: 127 if the program cannot be run, otherwise 1."""
    parent, command = int(arguments[0]), arguments[1:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # the parent has already ended
            return 1
    try:
        os.execv(command[0], command)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be run: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
