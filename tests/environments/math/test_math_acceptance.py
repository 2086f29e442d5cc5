"""For every generator: the reference answer pays, and answers that differ from it do not.

40 seeds of each by default; MATH_SEEDS=500 plays more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from tests.machine import MATH, REASONING_GYM

if not REASONING_GYM:
    pytest.skip(MATH, allow_module_level=True)

from environments.math.comparer import Comparer
from environments.math.equality import Antiderivative, Number, Roots, compare
from environments.math.generators import GENERATORS, Generator, Problem, problem
from environments.math.polynomials import polynomial

pytestmark = pytest.mark.process

SEEDS = int(os.environ.get("MATH_SEEDS", "40"))
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def comparer() -> Iterator[Comparer]:
    comparer = Comparer()
    yield comparer
    comparer.close()


def perturbed(made: Problem, other: Problem) -> set[str]:
    """Answers that are wrong: off by one, another sign, digits swapped, other units, hedges, another problem's."""
    answer, reference = made.answer, made.reference
    found = {
        f"{answer} cm", f"{answer}%", f"{answer} or {other.answer}", f"about {answer}", f"{answer} = {answer}",
        f"\\boxed{{{answer}}} \\boxed{{{other.answer}, 1}}", made.question[:1000], f"It is {answer}.",
    }  # fmt: skip
    match reference:
        case Number():
            value = reference.value
            found |= {
                f"{value + 1}",
                f"{value - 1}",
                f"{-value}" if value else "1",
                f"{answer}0" if value.denominator == 1 and value else "10",
            }
            found |= {f"{answer} cents", f"€{answer}", f"{answer}, {value + 1}", f"{answer} + 0", f"{answer}^1"}
            digits = answer.lstrip("-")
            if len(digits) > 1 and digits[:2].isdigit() and digits[0] != digits[1]:
                found.add(answer.replace(digits[:2], digits[1] + digits[0], 1))
            if other.reference.value != value:  # type: ignore[union-attr]
                found.add(other.answer)
        case Roots():
            roots = reference.values
            shifts = (Fraction(1), Fraction(-1), Fraction(1, 1000))
            found |= {", ".join(f"{float(root + shift):.4f}" for root in roots) for shift in shifts}
            found |= {f"{answer}, 1000", f"{answer}, {answer}", ", ".join(answer.split(", ")[1:])}
            if sorted(-root for root in roots) != list(roots):
                found.add(", ".join(f"{-float(root):.4f}" for root in roots))
            if other.reference.values != roots:  # type: ignore[union-attr]
                found.add(other.answer)
        case Antiderivative():
            body = answer.removesuffix(" + C")
            found |= {f"{body} + x + C", f"{body} + C*x", f"{body} + x**2", f"2*x*({body}) + x**99", f"{answer} + 1/x"}
            if body != "0":
                found |= {
                    f"-({body}) + C",
                    f"2*({body}) + C",
                    body.replace("x", "y"),
                    f"({body})**2",
                    reference.integrand,
                }
                found.add(answer.replace("*x", "/x") if "*x" in answer else f"x*({body})")
            if polynomial(other.answer, "x") != polynomial(answer, "x"):
                found.add(other.answer)
    return found


@pytest.mark.parametrize("generator", GENERATORS)
def test_the_reference_answer_pays_and_perturbed_ones_do_not(generator: Generator, comparer: Comparer) -> None:
    problems = [problem(generator, "medium", seed) for seed in range(SEEDS)]
    refused, paid, tried = [], [], 0
    for seed, made in enumerate(problems):
        verdict = compare(made.reference, made.answer, comparer.ask)
        if not verdict.correct:
            refused.append((seed, made.answer))
        for answer in perturbed(made, problems[seed - 1]):
            if "/x" in answer and seed % 10:
                continue  # no polynomial: a process compares it, which takes 70 ms
            tried += 1
            if compare(made.reference, answer, comparer.ask).correct:
                paid.append((seed, made.answer, answer))
    assert refused == []
    assert paid == []
    assert tried > 11 * SEEDS
