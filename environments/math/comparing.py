"""The program of a comparing process, which reads and writes JSON lines. Only this program imports `sympy`.

`comparer.Comparer` starts it with an import path but without keys, variables or open files of the server. If a
comparison exceeds its processor time, a signal that code cannot block ends the process. Expressions arrive as trees
(`formula.Formula.tree`), so that no text is parsed or evaluated here.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from fractions import Fraction
from typing import Any

DIGITS = 120
"""To how many digits both expressions are computed."""
SAME = Fraction(1, 10**100)
"""Maximum difference between the values of two equal expressions, relative to the larger value."""
ROUNDED = Fraction(1, 10**6)
"""Maximum difference between a rounded decimal and the constant, relative to the constant."""
POINTS = ("0.6180339", "-1.3247179", "2.2360679", "-0.4812118", "1.1447298", "0.2614972", "-2.6854520")
"""Values of variables at which expressions are compared: positive, negative, below and above 1, without special cases."""


def main() -> None:
    """Read the settings, loads, sends "ready", then answers until its input ends."""
    settings = json.loads(sys.stdin.readline())
    sys.path[:] = settings["path"]
    # compare once for each kind, because sympy loads slowly and the time limit does not apply yet
    root = ["root", ["symbol", "x"], "2"]
    compared({"kind": "equal", "reference": root, "answer": ["*", root, "1.5"], "rounded": True})
    compared({"kind": "antiderivative", "reference": root, "answer": ["sin", root], "variable": "x"})
    confine(int(settings["memory_bytes"]))
    send("ready")
    seconds = float(settings["cpu_seconds"])
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            reply = compared(json.loads(line))
        except (MemoryError, RecursionError):
            reply = "too_costly"
        except Exception:  # sympy can raise any exception for an expression that it does not support
            reply = "unreadable"
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(reply)


def send(word: str) -> None:
    """Write one line to standard output."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def compared(job: dict[str, Any]) -> str:
    """Return "equal", "different" or, without a value, "unreadable"."""
    import sympy

    reference, answer = built(job["reference"]), built(job["answer"])
    if job["kind"] == "antiderivative":
        return same(reference, sympy.diff(answer, symbol(job["variable"])))
    if job["kind"] == "equation":  # equal if one is the other multiplied by a number
        return same(reference, answer, multiple=True)
    return same(reference, answer, tolerance=ROUNDED if job["rounded"] else SAME)


def symbol(name: str) -> Any:
    """Return the variable of this name."""
    import sympy

    return sympy.Symbol(name)


def built(tree: Any) -> Any:
    """Return the expression of sympy that a tree describes. Raises KeyError for an operation that is not known."""
    import sympy

    if isinstance(tree, str):
        return sympy.Rational(tree)
    operation, *operands = tree
    if operation == "symbol":
        return symbol(operands[0])
    if operation == "constant":
        return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "oo": sympy.oo}[operands[0]]
    parts = [built(operand) for operand in operands]
    match operation, parts:
        case "+", [left, right]:
            return left + right
        case "-", [value]:
            return -value
        case "*", [left, right]:
            return left * right
        case "/", [left, right]:
            return left / right
        case "^", [base, exponent]:
            return base**exponent
        case "root", [value, degree]:
            odd = degree.is_Integer and degree % 2 and value.is_real
            return sympy.real_root(value, degree) if odd else value ** (1 / degree)
        case "°", [value]:
            return value * sympy.pi / 180
    functions = {
        "abs": sympy.Abs, "!": sympy.factorial, "binom": sympy.binomial, "exp": sympy.exp, "ln": sympy.log,
        "log": sympy.log, "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec,
        "csc": sympy.csc, "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "sinh": sympy.sinh,
        "cosh": sympy.cosh, "tanh": sympy.tanh,
    }  # fmt: skip
    return functions[operation](*parts)


def same(reference: Any, answer: Any, *, tolerance: Fraction = SAME, multiple: bool = False) -> str:
    """Compare two expressions: exactly if both are rational, else at points, relative to their size."""
    import sympy

    names = sorted((reference.free_symbols | answer.free_symbols), key=str)
    if not names and reference.is_Rational and answer.is_Rational and tolerance == SAME and not multiple:
        return "equal" if reference == answer else "different"
    if sympy.oo in (reference, answer) or -sympy.oo in (reference, answer):
        return "equal" if reference == answer else "different"
    factor, valued = None, 0
    for number in range(len(POINTS) if names else 1):
        place = {name: sympy.Rational(POINTS[(number + at * 3) % len(POINTS)]) + at for at, name in enumerate(names)}
        left, right = (value_at(part, place) for part in (reference, answer))
        if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
            continue
        if multiple:
            if left == 0 or right == 0:
                continue
            if factor is None:
                factor = right / left
            right = right / factor
        valued += 1
        share = SAME if names else tolerance
        if abs(left - right) > sympy.Rational(share.numerator, share.denominator) * max(abs(left), abs(right)):
            return "different"
    return "equal" if valued >= (3 if names else 1) else "unreadable"


def value_at(expression: Any, place: dict[Any, Any]) -> Any:
    """Return the value at a point; exactly 0 where no digit could be computed, because all of them cancel out."""
    import sympy

    value = expression.subs(place).evalf(DIGITS, maxn=1000)
    return sympy.Integer(0) if value.is_Float and value._prec == 1 else value


def confine(memory_bytes: int) -> None:
    """Bound memory, forbids writing files, and lowers the priority below the server's."""
    import os
    import resource

    os.nice(10)

    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # macOS does not support the memory limit; the time limit still applies
            resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    main()
