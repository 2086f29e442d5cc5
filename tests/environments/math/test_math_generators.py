"""Generator, difficulty and seed are one problem, in every process; nothing global is drawn from; references are right."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest

from tests.machine import MATH, REASONING_GYM

if not REASONING_GYM:
    pytest.skip(MATH, allow_module_level=True)

from environments.math import generators
from environments.math.equality import Antiderivative, Number, Roots, compare
from environments.math.generators import GENERATORS, OPTIONS, problem
from tests.programs import printed

ROOT = Path(__file__).parents[3]
EVERY = [(generator, difficulty) for generator in GENERATORS for difficulty in OPTIONS[generator]]
SEEDS = [0, 1000, 1_019_999]
PROGRAM = """
from environments.math.generators import GENERATORS, OPTIONS, problem
for generator in reversed(GENERATORS):
    for difficulty in OPTIONS[generator]:
        for seed in reversed(SEEDS):
            made = problem(generator, difficulty, seed)
            print((generator, difficulty, seed, made.question, made.answer, made.reference))
"""


@pytest.mark.ci
@pytest.mark.process
def test_two_processes_make_the_same_problems() -> None:
    """This one and another, which hashes otherwise and makes them in another order."""
    here = [(*one, seed, problem(*one, seed)) for one in EVERY for seed in SEEDS]  # type: ignore[arg-type]
    wanted = [repr((*key, made.question, made.answer, made.reference)) for *key, made in here]
    environ = {**os.environ, "PYTHONHASHSEED": "1"}
    there = printed(PROGRAM.replace("SEEDS", str(SEEDS)), cwd=ROOT, env=environ)
    assert sorted(there.splitlines()) == sorted(wanted)


@pytest.mark.parametrize(("generator", "difficulty"), EVERY)
def test_nothing_of_the_processs_own_random_state_is_used(generator: str, difficulty: str) -> None:
    random.seed(1)
    before = random.getstate()
    first = generators._make(generator, difficulty, 41)  # type: ignore[arg-type]
    assert random.getstate() == before
    random.seed(2)
    assert generators._make(generator, difficulty, 41) == first  # type: ignore[arg-type]


def test_threads_make_the_same_problems_as_one() -> None:
    wanted = {seed: generators._make("polynomial_equations", "medium", seed) for seed in range(2000, 2012)}
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(partial(problem, "polynomial_equations", "medium"), wanted))
    assert found == list(wanted.values())


@pytest.mark.parametrize(("generator", "difficulty"), EVERY)
def test_seeds_give_other_problems(generator: str, difficulty: str) -> None:
    questions = {problem(generator, difficulty, seed).question for seed in range(990, 1010)}  # type: ignore[arg-type]
    assert len(questions) >= 18
    assert all(len(question) > 20 and question == question.strip() for question in questions)


def test_difficulty_shows() -> None:
    def size(generator: str, difficulty: str) -> float:
        made = [problem(generator, difficulty, seed) for seed in range(10)]  # type: ignore[arg-type]
        return sum(len(one.question) + len(one.answer) for one in made) / len(made)

    for generator, levels in OPTIONS.items():
        sizes = [size(generator, difficulty) for difficulty in levels]
        assert sizes == sorted(set(sizes)), generator


def test_every_real_root_is_in_the_reference() -> None:
    import sympy

    for seed in range(30):
        made = problem("polynomial_equations", "medium", seed)
        assert isinstance(made.reference, Roots)
        lines = next(line for line in made.question.splitlines() if line.endswith(" = 0"))
        left = lines.rpartition(": ")[2].removesuffix(" = 0")
        x = sympy.Symbol(made.reference.variable)
        polynomial = sympy.Poly(left, x)
        values = made.reference.values
        assert len(set(values)) == len(values) == polynomial.count_roots()  # Sturm's count of the distinct real ones
        assert all(abs(polynomial.eval(sympy.Rational(value))) < 1e-9 for value in values)


def test_a_root_that_reasoning_gym_leaves_out_is_found() -> None:
    """Its own answer to this equation is 0.0: sympy's formula for the other three does not show that they are real."""
    roots = generators._real_roots("6*g**4 - 96*g**3 + 60*g", "g")
    assert [round(float(root), 4) for root in roots] == [-0.7722, 0.0, 0.8114, 15.9607]


def test_an_integrand_is_in_the_variable_of_its_question() -> None:
    for seed in range(30):
        made = problem("simple_integration", "medium", seed)
        assert isinstance(made.reference, Antiderivative)
        assert made.reference.variable == "x"
        assert f"∫ {made.reference.integrand} dx" in made.question


def test_the_answer_of_a_sum_is_its_sum() -> None:
    for seed in range(30):
        made = problem("chain_sum", "hard", seed)
        words = made.question.removesuffix(" =").rpartition(": ")[2].split()
        total = int(words[0]) + sum(
            int(term) if sign == "+" else -int(term) for sign, term in zip(words[1::2], words[2::2], strict=True)
        )
        assert made.reference == Number(Fraction(total), None)


def test_the_answer_of_an_equation_solves_it() -> None:
    for seed in range(30):
        made = problem("simple_equations", "medium", seed)
        assert isinstance(made.reference, Number)
        left, _, right = made.question.rpartition(": ")[2].partition(" = ")
        values = {str(made.reference.variable): made.reference.value}
        assert eval(left, {}, values) == int(right)


def test_only_what_was_asked_is_recalled() -> None:
    made = problem("gsm_symbolic", "medium", 77)
    assert generators.recalled(made.question) is made
    with pytest.raises(KeyError):
        generators.recalled("What is 1 + 1?")
    for seed in range(3000, 3000 + generators.MAX_PROBLEMS):
        problem("chain_sum", "hard", seed)
    with pytest.raises(KeyError):
        generators.recalled(made.question)
    assert len(generators._made) == len(generators._by_question) == generators.MAX_PROBLEMS


def test_word_problems_have_a_solution_and_a_number() -> None:
    for seed in range(85):
        made = problem("gsm_symbolic", "medium", seed)
        assert "####" in made.solution
        assert compare(made.reference, made.solution.rpartition("####")[2], lambda _: "different").correct, seed
