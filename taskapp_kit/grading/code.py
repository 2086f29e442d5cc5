"""Grader of Python functions: calls them with hidden arguments in a sandbox, and compares the results outside of it.

The right results never enter the sandbox. So a submission can manipulate the program that calls it, the program's
output or Python itself, but it passes a test only if the output for this test equals the right result.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from taskapp_kit.grading.graders import right, wrong
from taskapp_kit.records.scorecard import Grade
from taskapp_kit.sandbox import Sandbox, SandboxLimits

CASE_CPU_SECONDS, CASE_WALL_SECONDS, LATE_CASES, RESULT_BYTES = 2, 5.0, 2, 65_536
LIMITS = SandboxLimits(
    wall_seconds=15, cpu_seconds=10, memory_bytes=512 * 2**20, processes=32, file_bytes=16 * 2**20, files=100,
    output_bytes=64 * (RESULT_BYTES + 16), flood_bytes=8 * 2**20,
)  # fmt: skip
"""Limits of the sandbox that calls a submission."""
PROGRAM = Path(__file__).with_name("code_inside.py")
"""The program that calls a submission. It runs in the sandbox."""

RIGHT, WRONG, MISSING, MALFORMED = "right", "wrong", "missing", "malformed"
OUTCOMES = ("odd", "raised", "absent", "late", "ended", "long")
"""The outcomes that the judge's program reports for a case without a value; see `code_inside.py`."""

_LINE = re.compile(rb"(0|[1-9][0-9]{0,5}) (.*)", re.DOTALL)


def read_answers(output: bytes, *, cut: bool, count: int) -> list[tuple[str, Any]]:
    """Parse the output of the program, without trusting it.

    A line that does not belong to a case invalidates all cases, because it may replace any line. A second line for a case
    invalidates that case.

    Args:
        output: All lines that the program wrote.
        cut: Whether the sandbox discarded output beyond its limit.
        count: The number of cases.

    Returns:
        A pair for each case: "value" and the returned value, or an outcome (one of OUTCOMES, MISSING or MALFORMED) and None.
    """
    *lines, rest = output.split(b"\n")
    found: dict[int, tuple[str, Any]] = {}
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None or int(match[1]) >= count:
            return [(MALFORMED, None)] * count
        number = int(match[1])
        found[number] = (MALFORMED, None) if number in found else _read(match[2])
    if rest or cut:
        return [(MALFORMED, None)] * count
    return [found.get(number, (MISSING, None)) for number in range(count)]


def _read(text: bytes) -> tuple[str, Any]:
    try:
        answer = json.loads(text.decode("ascii"), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return MALFORMED, None
    if type(answer) is list and len(answer) == 1 and type(answer[0]) is str and answer[0] in OUTCOMES:
        return answer[0], None
    if type(answer) is list and len(answer) == 2 and answer[0] == "value":
        return "value", answer[1]
    return MALFORMED, None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number beyond the range of a float")
    return number


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, with equal types: True is not 1, and 1 is not 1.0."""
    if type(one) is not type(other):
        return False
    if type(one) is list:
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    return bool(one == other)


def request(code: str, entry: str, arguments: Sequence[Sequence[Any]]) -> bytes:
    """Return the standard input of the program: a submission and the arguments of each case."""
    return json.dumps({
        "code": code, "entry": entry, "cases": [list(each) for each in arguments], "cpu_seconds": CASE_CPU_SECONDS,
        "wall_seconds": CASE_WALL_SECONDS, "result_bytes": RESULT_BYTES, "late_cases": LATE_CASES,
    }).encode()  # fmt: skip


def passes_tests(
    code: str,
    function: str,
    cases: Sequence[tuple[Sequence[Any], Any]],
    *,
    is_right: Callable[[Sequence[Any], Any, Any], bool] | None = None,
    limits: SandboxLimits = LIMITS,
    level: int | None = None,
) -> Grade:
    """Grade whether a Python function returns the right result in every test. Blocks the calling thread.

    Each test calls the function in a separate process, which executes the code again, in a sandbox without network, keys or
    files. Arguments and results are JSON values. A tuple, a set, or an instance of a subclass is not a right result.

    Args:
        code: The policy's source code, at most a few hundred kilobytes.
        function: The name of the function that the tests call.
        cases: The arguments and the right result of each test. The results never enter the sandbox.
        is_right: Decides whether a result is right, for tests with several right results. It is called with the arguments,
            the right result from `cases`, and the function's result. By default, results must be equal, with equal types.
        limits: Limits of the sandbox. Each test may use 2 seconds of processor time.
        level: The required strength of the sandbox. Defaults to the strongest level that works.

    Returns:
        A grade of 1.0 or 0.0. The reason is the number of passed tests.

    Raises:
        ValueError: There are no tests.
        SandboxTooWeak: This machine cannot confine the code.
        SandboxError: The sandbox failed. The code cannot cause this error.
    """
    if not cases:
        raise ValueError("There are no tests. Pass passes_tests() at least one pair of arguments and the right result.")
    with Sandbox(limits=limits, level=level) as box:
        stdin = request(code, function, [arguments for arguments, _ in cases])
        result = box.run_sync(PROGRAM.read_text(), stdin=stdin)
    results = read_answers(result.stdout_bytes, cut=result.stdout_truncated, count=len(cases))
    judge = is_right or (lambda _, expected, value: same(expected, value))
    passed = sum(
        word == "value" and judge(arguments, expected, value)
        for (arguments, expected), (word, value) in zip(cases, results, strict=True)
    )
    reason = f"{passed} of {len(cases)} tests passed"
    return right(reason) if passed == len(cases) else wrong(reason)
