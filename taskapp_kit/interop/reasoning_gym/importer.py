"""`from_reasoning_gym` declares a generator of reasoning-gym as an environment of an app.

Written against reasoning-gym 0.1.25 (PyPI; github.com/open-thought/reasoning-gym, Apache-2.0): `create_dataset(name,
seed, size, **options)`, items with `question`, `answer` and `metadata`, and `score_answer(answer, entry)` from 0 to 1.
It needs the extra `taskapp-kit[reasoning-gym]`. Importing the package takes seconds. Each process imports it before its
first episode. Guarantees:

- Each seed is the same problem in every process, and the process's random state is not used.
- Only the final answer is scored: the argument of `submit`, or the text between `<answer>` and `</answer>`.
- An answer that contains the expected answer and other text scores 0. reasoning-gym itself gives partial credit.
- An answer is never run as code. Some generators evaluate answers, so only plain literals and formulas are accepted.
- Observations and info never contain the expected answer, or the metadata, which includes worked solutions.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field

from taskapp_kit.declare.marks import action
from taskapp_kit.declare.source_location import did_you_mean
from taskapp_kit.errors import ConfigError, DeclarationError, InvalidAction, Unavailable
from taskapp_kit.interop.class_parts import ClassParts, require
from taskapp_kit.records.trajectory import Step

MAX_ANSWER_CHARACTERS = 10_000
"""The maximum length of an answer. The longest expected answers are grids and boards with a few thousand characters."""
MAX_FORMULA_CHARACTERS = 1000
"""The maximum length for FORMULAS. It is lower, because sympy's time grows faster than the length."""
MAX_TEXT_CHARACTERS = 400_000
"""The maximum length of a text reply, including reasoning. Longer replies are rejected without parsing."""
BLOCK = 1000
"""The number of seeds per data set of reasoning-gym.

Some generators draw a number per item when a data set is created.
"""
MAX_DATA_SETS = 16
"""The maximum number of cached data sets per environment class."""
MAX_PROBLEMS = 2048
"""For how many problems a process stores the answer for `gold`."""

LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""The generators that pass an answer to `eval` if it differs from the expected string."""
FORMULAS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""The generators that pass an answer to sympy's `parse_expr`, which evaluates it."""
UNORDERED = frozenset({"isomorphic_strings", "polynomial_multiplication", "ransom_note"})
"""The generators that draw in the order of a set. Without PYTHONHASHSEED, the order differs between processes."""

FUNCTIONS = frozenset({"sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt"})
MAX_POWER = 200
"""The maximum product of nested exponents in a formula."""

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_lock = threading.RLock()
"""Problems are drawn and scored one at a time, because they share sympy's caches."""

Answer = Annotated[str, Field(max_length=MAX_ANSWER_CHARACTERS)]


def from_reasoning_gym(
    name: str, *, dataset_seed: int = 0, configurable: Mapping[str, Any] | None = None, **options: Any
) -> type[ReasoningGymEnvironment]:
    """Return a class for `app.environment(...)` that plays the problems of a generator.

        Sums = from_reasoning_gym("chain_sum", max_terms=4)
        app.environment("sums", splits={"train": range(100_000), "test": range(100_000, 101_000)}, max_turns=4)(Sums)
        app.policy("gold", environment="sums")(Sums.gold)

    The reward of the step that submits an answer is the result of `score_answer`. If the generator or an option is
    unknown, the setup of each worker process raises ConfigError.

    Args:
        name: A name in `reasoning_gym.factory.DATASETS`.
        dataset_seed: The seed of the data set. For s below 1000, seed s of the environment plays item s of this data
            set. From s = 1000 on, seed s plays item s % 1000 of the data set with seed `dataset_seed + s - s % 1000`.
            If the generator seeds each item separately, this item is the same as item s of the first data set.
        configurable: Options that a caller may set in env.config. It maps each name to a default (bool, int, float or
            str) or to (annotation, default).
        **options: Options of the generator, which are passed to `create_dataset`.

    Returns:
        A subclass of `ReasoningGymEnvironment`. Its `gold(observation, task)` is a policy that submits the expected
        answer, if the generator has one.

    Raises:
        Unavailable: reasoning-gym is not installed.
    """
    require("from_reasoning_gym", "reasoning_gym", "reasoning-gym", "reasoning-gym")
    parts = ClassParts("from_reasoning_gym", str(name), sys._getframe(1))
    try:
        return _class(parts, name, dataset_seed, configurable or {}, options)
    except DeclarationError as error:
        return parts.without_environment(error, ReasoningGymEnvironment)


class ReasoningGymEnvironment:
    """A problem of a generator. `from_reasoning_gym` creates the subclasses that an app declares.

    Attributes:
        entry: reasoning-gym's item for the problem. It is set by `reset`.
    """

    generator: str
    _data_set: Callable[..., Any]
    _defaults: Mapping[str, Any]
    _remembered: OrderedDict[str, Any]

    @classmethod
    def setup_worker(cls) -> None:
        """Import reasoning-gym, once per process. Raises ConfigError if the generator or an option is invalid."""
        try:
            cls._data_set(0, dict(cls._defaults))
        except ValueError as error:
            raise ConfigError(f"from_reasoning_gym({cls.generator!r}) cannot be used: {error}") from error

    def open(self, options: dict[str, Any]) -> None:
        """Store the options. The generator raises ValueError for an invalid option."""
        self.options = options
        self._data_set(0, options)

    def reset(self, seed: int) -> str:
        """Return the question of the problem with this seed."""
        with _lock:
            self._scorer = self._data_set(seed // BLOCK, self.options)
            self.entry: dict[str, Any] = self._scorer[seed % BLOCK]
            question = str(self.entry["question"]).strip()
            self._remembered.pop(question, None)  # moves the entry to the end, so that it is removed last
            self._remembered[question] = self.entry["answer"]
            while len(self._remembered) > MAX_PROBLEMS:
                self._remembered.popitem(last=False)
        return question

    @action(noop={"answer": ""}, sample=lambda rng: {"answer": str(rng.randint(0, 100))})
    def submit(self, answer: Answer) -> Step:
        """Hand in your final answer: the answer alone, in the form that the question asks for. There is one attempt."""
        return self._handed_in(answer)

    @action(text=True, sample=lambda rng: f"<answer>{rng.randint(0, 100)}</answer>")
    def say(self, text: str) -> Step:
        """Write as much as you like and put your final answer, once, in <answer>...</answer>: that hands it in."""
        if len(text) > MAX_TEXT_CHARACTERS:
            raise InvalidAction(f"Nothing was handed in: at most {MAX_TEXT_CHARACTERS} characters are read.")
        answers = {answer.strip() for answer in _ANSWER.findall(text.rpartition("</think>")[2])}
        if len(answers) != 1:
            what = "several answers that differ" if answers else "no answer"
            raise InvalidAction(
                f"Nothing was handed in: there is {what} in it. Call submit, or write your final answer, once, as "
                "<answer>...</answer>."
            )
        return self._handed_in(answers.pop())

    def _handed_in(self, answer: str) -> Step:
        answer = answer.strip()
        if len(answer) > MAX_ANSWER_CHARACTERS:
            raise InvalidAction(f"Nothing was handed in: an answer has at most {MAX_ANSWER_CHARACTERS} characters.")
        with _lock:
            return Step(reward=self._score(answer), terminated=True, info={"submitted": answer})

    def _score(self, answer: str) -> float:
        """Return the score of an answer.

        Raises InvalidAction if the answer cannot be parsed. Exceptions of the generator are not caught.
        """
        if not answer:
            return 0.0
        if not _plain(self.generator, answer):
            raise InvalidAction("Nothing was handed in: the answer is not in the form that the question asks for.")
        expected = self.entry["answer"]
        try:
            score = float(self._scorer.score_answer(answer, self.entry))
        except Exception as error:
            if expected is None or self._scorer.score_answer(expected, self.entry) != 1:
                raise
            raise InvalidAction(f"Nothing was handed in: the answer cannot be read ({type(error).__name__}).") from None
        hedged = isinstance(expected, str) and expected != answer and expected in answer
        return 0.0 if hedged and score < 1 else score


def _class(
    parts: ClassParts, name: str, dataset_seed: int, configurable: Mapping[str, Any], options: dict[str, Any]
) -> type[ReasoningGymEnvironment]:
    clash = sorted({"seed", "size"} & {*options, *configurable})
    if clash:
        raise parts.wrong(
            f"has {clash[0]}=", "options of the generator", "remove it; the episode's seed selects the problem"
        )
    if name in UNORDERED and sys.flags.hash_randomization:
        raise parts.wrong(
            f"names {name!r}, which draws in the order of a set, so a seed is a different problem in each process",
            "the same order in every process",
            "set PYTHONHASHSEED=0, for all processes that serve this app",
        )
    defaults = parts.defaults(configurable)
    remembered: OrderedDict[str, Any] = OrderedDict()
    cached: OrderedDict[tuple[int, str], Any] = OrderedDict()

    def data_set(block: int, given: dict[str, Any]) -> Any:
        key = (block, repr(sorted(given.items())))
        with _lock:
            if key not in cached:
                cached[key] = _made(name, {**options, **given, "seed": dataset_seed + block * BLOCK, "size": BLOCK})
            while len(cached) > MAX_DATA_SETS:
                cached.popitem(last=False)
            return cached[key]

    def gold(observation: str, task: Any) -> dict[str, dict[str, str]]:  # noqa: ARG001 (policies have both parameters)
        """Hand in the expected answer."""
        answer = remembered[observation]
        if answer is None:
            raise Unavailable(f"{name} has no expected answer, because it accepts any correct answer.")
        return {"submit": {"answer": answer}}

    members = {
        "__doc__": f"Answer a question of {name.replace('_', ' ')}: call `submit`, or write the answer in one "
        "<answer>...</answer>.",
        "__init__": parts.constructor(configurable, ReasoningGymEnvironment.open),
        "generator": name,
        "gold": staticmethod(gold),
        "_data_set": staticmethod(data_set),
        "_defaults": defaults,
        "_remembered": remembered,
    }
    return parts.made(ReasoningGymEnvironment, name, members)


def _made(name: str, options: dict[str, Any]) -> Any:
    """Return a data set. Raises ValueError if the generator is unknown or an option is invalid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # from its dependencies
        import reasoning_gym
        from reasoning_gym.factory import DATASETS

        if name not in DATASETS:
            meant = did_you_mean(name, list(DATASETS), "reasoning_gym.factory.DATASETS lists the generators")
            raise ValueError(f"the generator does not exist; {meant}")
        try:
            return reasoning_gym.create_dataset(name, **options)
        except (AssertionError, TypeError) as error:  # generators check their options with assertions
            raise ValueError(str(error) or "an option is out of range") from error


def _plain(generator: str, answer: str) -> bool:
    """Return whether an answer can be scored safely.

    For generators that evaluate answers, it must be a plain literal or formula.
    """
    if generator not in LISTS | FORMULAS:
        return True
    if generator in FORMULAS and len(answer) > MAX_FORMULA_CHARACTERS:
        return False
    try:
        parsed = ast.parse(answer, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return generator in LISTS  # `eval` rejects it too, but `parse_expr` accepts other syntax
    return _literal(parsed) if generator in LISTS else _formula(parsed, 1)


def _literal(node: ast.expr) -> bool:
    if isinstance(node, (ast.List, ast.Tuple)):
        return all(map(_literal, node.elts))
    return isinstance(node, (ast.Constant, ast.Name))


def _formula(node: ast.expr, power: float) -> bool:
    """Return whether a node only contains sums, products, small powers and FUNCTIONS of numbers and one-letter names.

    power: the power to which the surrounding nodes raise this node.
    """
    match node:
        case ast.Constant(value=value):
            return type(value) in (int, float)
        case ast.Name(id=name):
            return len(name) == 1 or name in ("pi", "alpha", "beta", "theta")
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _formula(operand, power)
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), left=left, right=right):
            return _formula(left, power) and _formula(right, power)
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            exponent = _number(right)
            if exponent is None:  # a power of a variable or of e, such as E**x for exp(x)
                return isinstance(left, ast.Name) and _formula(right, MAX_POWER)
            return power * max(1, abs(exponent)) <= MAX_POWER and _formula(left, power * max(1, abs(exponent)))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            return name in FUNCTIONS and _formula(argument, power)
    return False


def _number(node: ast.expr) -> float | None:
    """Return the value of a number, a negated number or a quotient of two numbers, or None for any other node."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _number(operand)
            return None if inner is None else -inner
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            over, under = _number(left), _number(right)
            return None if over is None or not under else over / under
    return None
