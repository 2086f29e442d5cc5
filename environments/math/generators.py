"""Problems made by reasoning-gym: generator, difficulty and seed give one problem, the same in every process.

The random numbers of a problem come from its seed alone; nothing of the process's own random state is read or changed.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, get_args

from .equality import Antiderivative, Number, Reference, Roots
from .literals import number

Generator = Literal["gsm_symbolic", "chain_sum", "simple_equations", "polynomial_equations", "simple_integration"]
Difficulty = Literal["easy", "medium", "hard"]
GENERATORS: tuple[Generator, ...] = get_args(Generator)
DIFFICULTIES: tuple[Difficulty, ...] = get_args(Difficulty)

OPTIONS: dict[Generator, dict[Difficulty, dict[str, Any]]] = {
    "gsm_symbolic": {"medium": {}},
    "chain_sum": {
        "easy": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2},
        "medium": {"min_terms": 2, "max_terms": 6, "min_digits": 1, "max_digits": 4},
        "hard": {"min_terms": 6, "max_terms": 12, "min_digits": 4, "max_digits": 8},
    },
    "simple_equations": {
        "easy": {"min_terms": 2, "max_terms": 2, "min_value": 1, "max_value": 20},
        "medium": {"min_terms": 2, "max_terms": 4, "min_value": 1, "max_value": 100},
        "hard": {"min_terms": 4, "max_terms": 8, "min_value": 10, "max_value": 1000},
    },
    "polynomial_equations": {
        "easy": {"min_degree": 1, "max_degree": 2, "min_terms": 2, "max_terms": 2, "max_value": 20},
        "medium": {"min_degree": 1, "max_degree": 3, "min_terms": 2, "max_terms": 4, "max_value": 100},
        "hard": {"min_degree": 3, "max_degree": 3, "min_terms": 3, "max_terms": 5, "max_value": 1000},
    },
    "simple_integration": {
        "easy": {"min_terms": 2, "max_terms": 2, "min_degree": 1, "max_degree": 3, "max_bounds": 10},
        "medium": {"min_terms": 2, "max_terms": 5, "min_degree": 1, "max_degree": 10, "max_bounds": 10},
        "hard": {"min_terms": 6, "max_terms": 10, "min_degree": 1, "max_degree": 20, "max_bounds": 100},
    },
}
"""What each difficulty is for each generator: reasoning-gym's own options. Its defaults are `medium`."""

BLOCK = 1000
"""Seeds of one data set of reasoning-gym. Which template gsm_symbolic takes is drawn for the data set as a whole."""

KEPT = 2048
"""Problems that a process remembers."""


@dataclass(frozen=True, slots=True)
class Problem:
    """question: what is asked. answer: as whoever solves it would write it; solution: worked, where there is one.

    Everything but the question is for rubrics only.
    """

    question: str
    answer: str
    solution: str
    reference: Reference


_lock = threading.RLock()
_made: OrderedDict[tuple[str, str, int], Problem] = OrderedDict()
_asked: OrderedDict[str, Problem] = OrderedDict()


def load() -> None:
    """Loads the package (some seconds). Raises ImportError when it is not installed."""
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of packages that it brings along
        import reasoning_gym  # noqa: F401


def problem(generator: Generator, difficulty: Difficulty, seed: int) -> Problem:
    """The problem of a seed. One at a time: what computes with sympy shares its caches.

    Raises KeyError: that generator has no such difficulty; ImportError.
    """
    key = (generator, difficulty, seed)
    with _lock:
        found = _made.get(key) or _make(generator, difficulty, seed)
        _made[key] = _asked[found.question] = found
        _made.move_to_end(key)
        _asked.move_to_end(found.question)
        while len(_made) > KEPT:
            _made.popitem(last=False)
        while len(_asked) > KEPT:
            _asked.popitem(last=False)
        return found


def recalled(question: str) -> Problem:
    """The problem whose question was lately asked in this process. Raises KeyError."""
    with _lock:
        return _asked[question]


def _make(generator: Generator, difficulty: Difficulty, seed: int) -> Problem:
    block, index = divmod(seed, BLOCK)
    item = _data_set(generator, difficulty, block)[index]
    question, answer, metadata = item["question"].strip(), str(item["answer"]), item["metadata"]
    solution = str(metadata.get("answer_cot", ""))
    match generator:
        case "polynomial_equations":
            roots = _real_roots(metadata["polynomial_expr"], metadata["variable"])
            answer = ", ".join(str(round(float(root), 4)) for root in roots)
            return Problem(question, answer, solution, Roots(roots, metadata["variable"]))
        case "simple_integration":
            return Problem(question, answer, solution, Antiderivative(metadata["integrand"], metadata["variable"]))
        case _:
            return Problem(question, answer, solution, Number(number(answer), metadata.get("variable")))


@lru_cache(maxsize=64)
def _data_set(generator: Generator, difficulty: Difficulty, block: int) -> Any:
    """The problems of one block of seeds, made one by one as they are looked at."""
    load()
    import reasoning_gym

    digest = hashlib.sha256(f"taskapp math {generator} {block}".encode()).digest()
    options = dict(OPTIONS[generator][difficulty])
    if generator == "simple_integration":
        options["symbols"] = ("x",)  # it would write `dx` after an integrand in X
    return reasoning_gym.create_dataset(generator, seed=int.from_bytes(digest[:7]), size=BLOCK, **options)


def _real_roots(written: str, variable: str) -> tuple[Fraction, ...]:
    """All real roots, each once, to thirty digits; found by isolating them, so that none is missed.

    reasoning-gym keeps the solutions that sympy can tell are real, which leaves some out from degree 4 on.
    """
    import sympy

    x = sympy.Symbol(variable)
    parsed = sympy.parse_expr(written, local_dict={variable: x})  # reasoning-gym's own words, never a policy's
    found = {Fraction(str(root.evalf(30))) for root in sympy.Poly(parsed, x).real_roots()}
    return tuple(sorted(found))
