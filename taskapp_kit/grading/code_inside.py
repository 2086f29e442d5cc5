"""The program that calls a submission in a sandbox. It knows the arguments, but not the right answers.

Standard input is one JSON object:

    code            source of the submission
    entry           name of the function
    cases           one list of arguments for each case
    cpu_seconds     processor time limit of one case, in whole seconds
    wall_seconds    time limit of one case
    result_bytes    maximum length of one case's answer
    late_cases      number of cases over their time limit after which the remaining cases are skipped

Standard output is one line for each case that was run, `NUMBER ANSWER`, where ANSWER is a JSON list:

    ["value", V]    the function returned V, built of None, bool, int, finite float, str, list and dict with str keys
    ["odd"]         it returned something else, including subclasses of these types
    ["raised"]      the code or the call raised an exception
    ["absent"]      the code has no such function
    ["late"]        it took too long
    ["ended"]       the process ended without an answer
    ["long"]        the answer was too long

Each case has a separate process, forked before any part of the submission ran, which executes the source again. The
submission can do anything to this program, such as killing it or writing its own lines. It does not know the right
answers, so it cannot forge them.

This file is copied into the sandbox, so it imports only the standard library and not the kit.
"""

from __future__ import annotations

import json
import math
import os
import resource
import select
import signal
import sys
import time
import types
from typing import Any

DEEPEST = 50


def main() -> None:
    """Run all cases."""
    request = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    late = 0
    for number, arguments in enumerate(request["cases"]):
        answer = answer_of(request, arguments, out)
        _write(out, b"%d %s\n" % (number, answer))
        late += answer == b'["late"]'
        if late >= request["late_cases"]:
            break


def answer_of(request: dict[str, Any], arguments: list[Any], out: int) -> bytes:
    """Run one case, in a new process."""
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError:  # processes of the submission are still running and have reached the process limit
        os.close(reading)
        os.close(writing)
        return b'["ended"]'
    if child == 0:
        try:
            os.close(reading)
            os.close(out)
            os.setpgid(0, 0)
            seconds = request["cpu_seconds"]
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            _write(writing, called(request["code"], request["entry"], arguments) + b"\n")
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return _collected(reading, child, request)
    finally:
        os.close(reading)


def _collected(reading: int, child: int, request: dict[str, Any]) -> bytes:
    """Return the first line that the process writes, or the reason why there is none. Then kill the process."""
    deadline = time.monotonic() + request["wall_seconds"]
    output = b""
    answer = b'["ended"]'
    while True:
        readable, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            answer = b'["late"]'
            break
        piece = os.read(reading, 65536)
        output += piece
        if b"\n" in output:
            answer = output.partition(b"\n")[0]
            break
        if not piece:
            break
        if len(output) > request["result_bytes"]:
            break
    if len(output) > request["result_bytes"]:
        answer = b'["long"]'
    for kill, target in ((os.killpg, child), (os.kill, child)):
        try:
            kill(target, signal.SIGKILL)
        except OSError:
            continue
    try:
        _, status = os.waitpid(child, 0)
    except OSError:  # the child has already been reaped
        return answer
    if answer == b'["ended"]' and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return b'["late"]'
    return answer


def called(code: str, entry: str, arguments: list[Any]) -> bytes:
    """Execute the source as a new module and call its function."""
    absent = object()
    try:
        module = types.ModuleType("solution")
        sys.modules["solution"] = module
        exec(compile(code, "solution.py", "exec"), module.__dict__)  # noqa: S102 (what this file is for)
        function = module.__dict__.get(entry, absent)
        if function is absent:
            return b'["absent"]'
        result = function(*arguments)
        if not is_plain(result, 0):
            return b'["odd"]'
        return json.dumps(["value", result], allow_nan=False).encode("ascii")
    except BaseException:  # the submission can raise anything, including SystemExit
        return b'["raised"]'


def is_plain(value: Any, depth: int) -> bool:
    """Return whether a value consists only of JSON types. Subclasses are not allowed: they may lie about equality."""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    if value is None or kind is bool or kind is int or kind is str:
        return True
    if depth >= DEEPEST:
        return False
    if kind is list:
        return all(is_plain(item, depth + 1) for item in value)
    if kind is dict:
        return all(type(key) is str for key in value) and all(is_plain(item, depth + 1) for item in value.values())
    return False


def _write(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]


if __name__ == "__main__":
    main()
