"""Problems from reasoning-gym. Generator, difficulty and seed determine a problem, which is the same in every process.

The random numbers of a problem depend only on its seed. The random state of the process is neither read nor changed.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
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
"""The options of reasoning-gym for each generator and difficulty. `medium` uses reasoning-gym's defaults."""

BLOCK = 1000
"""How many seeds share a reasoning-gym data set. gsm_symbolic draws one template for a whole data set."""

SUM_TRIES = 1000
"""How many sums are generated for a seed. The seed's problem is the first of them that belongs to its split."""

MAX_PROBLEMS = 2048
"""How many problems a process caches."""


@dataclass(frozen=True, slots=True)
class Problem:
    """question: the text shown. answer: as a solver would write it; solution: worked, where there is one.

    Everything but the question is for rubrics only.
    """

    question: str
    answer: str
    solution: str
    reference: Reference


_lock = threading.RLock()
_made: OrderedDict[tuple[str | int, ...], Problem] = OrderedDict()
_by_question: OrderedDict[str, Problem] = OrderedDict()


def load() -> None:
    """Load the package (some seconds). Raises ImportError when it is not installed."""
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # raised by reasoning-gym's dependencies
        import reasoning_gym  # noqa: F401


def problem(generator: Generator, difficulty: Difficulty, seed: int) -> Problem:
    """Return the problem of a seed. Computed one at a time, because sympy's caches are shared.

    Raises KeyError if that generator has no such difficulty; ImportError.
    """
    return _cached((generator, difficulty, seed), lambda: _make(generator, difficulty, seed))


def sum_problem(terms: int, digits: int, seed: int, split: str) -> Problem:
    """Return the sum of a seed, with a number of terms and of digits. Each sum is in one split only. Raises ImportError."""
    return _cached(("sum", terms, digits, seed, split), lambda: _make_sum(terms, digits, seed, split))


def _cached(key: tuple[str | int, ...], make: Callable[[], Problem]) -> Problem:
    with _lock:
        found = _made.get(key) or make()
        _made[key] = _by_question[found.question] = found
        _made.move_to_end(key)
        _by_question.move_to_end(found.question)
        while len(_made) > MAX_PROBLEMS:
            _made.popitem(last=False)
        while len(_by_question) > MAX_PROBLEMS:
            _by_question.popitem(last=False)
        return found


def recalled(question: str) -> Problem:
    """Return the problem with this question, if this process generated it recently. Raises KeyError."""
    with _lock:
        return _by_question[question]


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


def _make_sum(terms: int, digits: int, seed: int, split: str) -> Problem:
    load()
    import reasoning_gym

    options = {"min_terms": terms, "max_terms": terms, "min_digits": digits, "max_digits": digits}
    drawn = reasoning_gym.create_dataset("chain_sum", seed=seed * SUM_TRIES, size=SUM_TRIES, **options)
    for index in range(SUM_TRIES):  # the generator derives its problems from seed, seed + 1, …
        question, answer = drawn[index]["question"].strip(), str(drawn[index]["answer"])
        if _split_of(question) == split:
            return Problem(question, answer, "", Number(number(answer)))
    raise RuntimeError(f"no sum of the split {split} for seed {seed}")


def _split_of(question: str) -> str:
    """Of all sums a tenth is for the test, a tenth for validation."""
    return {0: "test", 1: "validation"}.get(
        int.from_bytes(hashlib.sha256(question.encode()).digest()[:7]) % 10, "train"
    )


@lru_cache(maxsize=64)
def _data_set(generator: Generator, difficulty: Difficulty, block: int) -> Any:
    """The problems of one block of seeds, generated one by one when accessed."""
    load()
    import reasoning_gym

    digest = hashlib.sha256(f"taskapp math {generator} {block}".encode()).digest()
    options = dict(OPTIONS[generator][difficulty])
    if generator == "simple_integration":
        options["symbols"] = ("x",)  # by default, reasoning-gym also uses X, and still writes `dx`
    return reasoning_gym.create_dataset(generator, seed=int.from_bytes(digest[:7]), size=BLOCK, **options)


def _real_roots(written: str, variable: str) -> tuple[Fraction, ...]:
    """Return all real roots, each once, to thirty digits; found by isolation, so that none is missed.

    reasoning-gym includes the solutions that sympy can prove real, which leaves some out from degree 4 on.
    """
    import sympy

    x = sympy.Symbol(variable)
    parsed = sympy.parse_expr(written, local_dict={variable: x})  # this text is from reasoning-gym, never from a policy
    found = {Fraction(str(root.evalf(30))) for root in sympy.Poly(parsed, x).real_roots()}
    return tuple(sorted(found))
