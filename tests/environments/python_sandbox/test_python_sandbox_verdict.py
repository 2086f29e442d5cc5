"""Reading a box's answers, and equality: laws over whatever a submission may say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.python_sandbox.checkers import CHECKERS
from environments.python_sandbox.verdict import judge
from taskapp_kit.grading import code
from taskapp_kit.grading.code import MALFORMED, MISSING, RIGHT, WRONG, read_answers, same
from taskapp_kit.grading.code_inside import called, is_plain
from tests.environments.python_sandbox.episodes import TASKS

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(PLAIN)
def test_a_plain_value_comes_back_as_it_was(value: Any) -> None:
    assert is_plain(value, 0)
    line = b"0 " + json.dumps(["value", value]).encode() + b"\n"
    ((word, back),) = read_answers(line, cut=False, count=1)
    assert word == "value"
    assert same(back, value)


@given(PLAIN, PLAIN)
def test_equality_is_that_of_the_written_values(one: Any, other: Any) -> None:
    def written(value: Any) -> str:
        return json.dumps(value, sort_keys=True).replace("-0.0", "0.0")

    assert same(one, other) == (written(one) == written(other))


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0, False), ([1], [True]), ({"a": 1}, {"a": 1.0}), (None, False), ("1", 1), ([], {})]
)  # fmt: skip
def test_types_are_part_of_equality(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert not same(other, one)


@given(st.binary(max_size=200), st.booleans(), st.integers(1, 5))
def test_any_bytes_get_a_word_for_each_case(output: bytes, cut: bool, count: int) -> None:
    found = read_answers(output, cut=cut, count=count)
    assert len(found) == count
    assert all(word == "value" or value is None for word, value in found)


@pytest.mark.process
def test_each_case_has_its_own_cpu_time_limit() -> None:
    """Far below the limit of the wall clock, which would give the same word for it."""
    asked = {
        "code": "def f(spin):\n    while spin:\n        pass\n    return 1", "entry": "f", "cases": [[True], [False]],
        "cpu_seconds": 1, "wall_seconds": 600, "result_bytes": 1000, "late_cases": 2,
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-I", code.PROGRAM],
        input=json.dumps(asked).encode(),
        capture_output=True,
        check=True,
        timeout=120,
    )
    assert ran.stdout == b'0 ["late"]\n1 ["value", 1]\n'


RIGHT_LINES = b'0 ["value", 0]\n1 ["value", 1]\n'


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (RIGHT_LINES, [RIGHT, RIGHT]),
        (b'1 ["value", 1]\n0 ["value", 0]\n', [RIGHT, RIGHT]),
        (b'0 ["value", 0]\n', [RIGHT, MISSING]),
        (b"", [MISSING, MISSING]),
        (RIGHT_LINES + b'0 ["value", 0]\n', [MALFORMED, RIGHT]),
        (RIGHT_LINES + b'2 ["value", 0]\n', [MALFORMED] * 2),
        (RIGHT_LINES + b"\n", [MALFORMED] * 2),
        (RIGHT_LINES + b"more", [MALFORMED] * 2),
        (b'00 ["value", 0]\n1 ["value", 1]\n', [MALFORMED] * 2),
        (b'-1 ["value", 0]\n1 ["value", 1]\n', [MALFORMED] * 2),
        (b'0 ["value", NaN]\n1 ["value", 1e999]\n', [MALFORMED] * 2),
        (b'0 ["value", -Infinity]\n1 ["value", 1]\n', [MALFORMED, RIGHT]),
        (b'0 ["value", 0, 0]\n1 ["value"]\n', [MALFORMED] * 2),
        (b'0 ["right"]\n1 ["right", 1]\n', [MALFORMED] * 2),
        (b'0 {"value": 0}\n1 1\n', [MALFORMED] * 2),
        (b'0 ["value", "\xff"]\n1 ["value", 1]\n', [MALFORMED, RIGHT]),
        (b'0 ["value", ' + b"9" * 5000 + b']\n1 ["value", 1]\n', [MALFORMED, RIGHT]),
        (b'0 ["value", ' + b"[" * 100_000 + b']\n1 ["value", 1]\n', [MALFORMED, RIGHT]),
        (b'0 ["raised"]\n1 ["late"]\n', ["raised", "late"]),
        (b'0 ["value", true]\n1 ["value", 1.0]\n', [WRONG, WRONG]),
    ],
)
def test_only_whole_lines_that_answer_one_case_count(output: bytes, words: list[str]) -> None:
    cases: list[tuple[list[Any], Any]] = [([], 0), ([], 1)]
    assert judge(cases, read_answers(output, cut=False, count=2), None) == words
    assert judge(cases, read_answers(output, cut=True, count=2), None) == [MALFORMED] * 2


CHECKED = [(task, case) for _, _, task in TASKS if task.checker for case in task.hidden_tests]


@given(st.sampled_from(CHECKED), PLAIN | st.lists(st.integers(-3, 12), max_size=12) | st.lists(st.lists(st.integers(-1, 5), min_size=4, max_size=4), min_size=4, max_size=4))  # fmt: skip
def test_a_checker_answers_for_any_value(pair: Any, value: Any) -> None:
    task, case = pair
    assert CHECKERS[task.checker](case.args, case.expected, value) in (True, False)


def test_numbers_that_are_close_are_floats() -> None:
    close = CHECKERS["close_numbers"]
    assert close([], [1.0, 0.0], [1.0000001, -1e-7])
    assert not close([], [1.0], [1])
    assert not close([], [1.0], [1.00001])
    assert not close([], [1.0], [1.0, 1.0])


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("f = 3", "raised"),
        ("def f(): return (1,)", "odd"),
        ("def f(): return {1: 2}", "odd"),
        ("def f(): return float('inf')", "odd"),
        ("def f(): return 10 ** 5000", "raised"),
        ("import enum\nclass E(enum.IntEnum):\n    A = 1\ndef f(): return E.A", "odd"),
        ("async def f(): return 1", "odd"),
        ("def f(one): return one", "raised"),
        ("def g(): return 1", "absent"),
        ("raise KeyboardInterrupt", "raised"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_values_that_are_not_plain_are_marked(source: str, word: str) -> None:
    assert json.loads(called(source, "f", [])) == [word]
    assert math.isfinite(json.loads(called("def f(): return 1.5", "f", []))[1])
