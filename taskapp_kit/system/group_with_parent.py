"""A program that runs another program and its children until standard input ends.

Usage: `python group_with_parent.py FOLDER PROGRAM ARGUMENT…`. Standard input ends when the process at its other end closes it
or dies. PROGRAM's process group then receives SIGTERM and later SIGKILL, whereas `die_with_parent.py` ends only one process.
At the end, the directory FOLDER, which belongs to PROGRAM, is removed. The exit status is the status of PROGRAM, 128 plus the
number of the signal that ended PROGRAM, or 127 if PROGRAM cannot be run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress

END_SECONDS = 10.0
"""The time between SIGTERM and SIGKILL, in seconds."""


def main(arguments: list[str]) -> int:
    """Run the program and return its exit status."""
    folder, command = arguments[0], arguments[1:]
    for number in (signal.SIGINT, signal.SIGTERM):  # ignored, because only the end of standard input ends the program
        signal.signal(number, lambda *_: None)
    try:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be run: {error.strerror}\n")
        shutil.rmtree(folder, ignore_errors=True)
        return 127
    threading.Thread(target=_end_with_input, args=(program,), daemon=True).start()
    code = program.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, signal.SIGKILL)  # children that are still running
    shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _end_with_input(program: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1024):  # not sys.stdin, because this thread would still hold its lock when the process exits
        pass
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, number)
        with suppress(subprocess.TimeoutExpired):
            program.wait(END_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
