"""The program of a comparing process: one JSON line in, one out. `math_verify` is loaded only here.

`comparer.Comparer` starts it with nothing of the server but the folders to import from: no key, no variable, no file.
A comparison that takes more processor time than allowed ends the process by a signal that no code can block.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from contextlib import suppress
from typing import Any


def main() -> None:
    """Reads the settings, loads, sends "ready", then answers until its input ends."""
    settings = json.loads(sys.stdin.readline())
    sys.path[:] = settings["path"]
    logging.disable(logging.CRITICAL)  # it would log answers
    from math_verify import LatexExtractionConfig, parse, verify

    read = [LatexExtractionConfig(boxed_match_priority=-1)]

    def parsed(latex: str) -> list[Any]:
        return list(
            parse(
                f"${latex}$", extraction_config=read, fallback_mode="no_fallback", extraction_mode="first_match",
                parsing_timeout=None,
            )
        )  # fmt: skip

    def compared(job: dict[str, str]) -> str:
        answer = parsed(job["answer"])
        if not answer or isinstance(answer[0], str):
            return "unreadable"
        reference = parsed(job["reference"])
        if job["kind"] == "antiderivative":
            same = is_antiderivative(answer[0], reference[0], job["variable"])
        else:
            same = bool(verify(reference, answer, timeout_seconds=None))
        return "equal" if same else "different"

    # one of each kind: loads most of what is slow the first time before the clock runs
    compared({"kind": "equal", "reference": r"2\sqrt{2}", "answer": r"\sqrt{8}"})
    compared({"kind": "antiderivative", "reference": "x^{2}", "answer": r"\frac{x^{3}}{3}", "variable": "x"})
    confine(int(settings["memory_bytes"]))
    send("ready")
    seconds = float(settings["cpu_seconds"])
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            reply = compared(json.loads(line))
        except (MemoryError, RecursionError):
            reply = "too_costly"
        except Exception:  # sympy raises anything at all for what it does not understand
            reply = "unreadable"
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(reply)


def send(word: str) -> None:
    """Writes one line to standard output."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def is_antiderivative(answer: Any, integrand: Any, variable: str) -> bool:
    """Whether the derivative of one expression is the other."""
    import sympy

    x = sympy.Symbol(variable)
    answer, integrand = (
        part.doit().xreplace({old: sympy.Symbol(old.name) for old in part.free_symbols}) for part in (answer, integrand)
    )
    difference = sympy.diff(answer, x) - integrand
    return bool(sympy.simplify(difference) == 0)


def confine(memory_bytes: int) -> None:
    """Bounds memory, forbids writing files, and lowers the priority below the server's."""
    import os
    import resource

    os.nice(10)

    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0),
    ):  # fmt: skip
        with suppress(ValueError, OSError):  # macOS has no memory limit; the clock still runs
            resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    main()
