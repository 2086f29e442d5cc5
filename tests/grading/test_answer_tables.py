"""Each grader pays the right answers of its table, and no wrong one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.grading import (
    boxed,
    json_equal,
    json_field,
    json_valid,
    last_line,
    number,
    same_items,
    same_sequence,
    similar_text,
    sql_result,
    tagged,
)  # fmt: skip
from taskapp_kit.grading.code import passes_tests
from taskapp_kit.grading.graders import distance
from taskapp_kit.sandbox import capabilities
from tests.grading.answer_tables import TABLES, Table
from tests.grading.test_graders import (
    CHOSEN,
    DIFFERENT,
    EQUAL,
    NO_NUMBERS,
    NOT_CHOSEN,
    NUMBERS,
    RIGHT_BUT_REFUSED,
    pairs,
)  # fmt: skip


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.ci if name == "passes_tests" else ()) for name in TABLES])
def table(request: pytest.FixtureRequest) -> Table:
    """Return a table whose grader works on this machine."""
    if request.param == "passes_tests" and not capabilities().safe:
        pytest.skip("this machine cannot confine code")
    return TABLES[request.param]


def test_the_page_has_the_figures_of_the_tables() -> None:
    figures = {
        name: (len(table.paid) + len(table.refused), len(table.refused), len(table.wrong), 0)
        for name, table in TABLES.items()
    }
    for name, (paid, unpaid) in {
        "equal_text": (EQUAL, DIFFERENT),
        "choice": (CHOSEN, NOT_CHOSEN),
        "number": (NUMBERS, NO_NUMBERS),
    }.items():
        refused = [answer for _, answer in pairs(unpaid) if answer in RIGHT_BUT_REFUSED]
        figures[name] = (len(pairs(paid)) + len(refused), len(refused), len(pairs(unpaid)) - len(refused), 0)
    page = (Path(__file__).parents[2] / "docs" / "environments" / "graders.md").read_text()
    rows = re.findall(r"^\| `?([\w ]+)`? \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert {name: tuple(map(int, counts)) for name, *counts in rows} == figures, "docs/environments/graders.md"


def test_every_table_has_forty_right_and_forty_wrong_answers() -> None:
    assert {name for name, table in TABLES.items() if min(len(set(table.paid)), len(set(table.wrong))) < 40} == set()


def test_grader_pays_every_right_answer(table: Table) -> None:
    unpaid = {answer: grade.reason for answer in table.paid if not (grade := table.grade(answer))}
    assert unpaid == {}


def test_grader_pays_no_wrong_answer(table: Table) -> None:
    assert [answer for answer in table.wrong if table.grade(answer)] == []


def test_grader_does_not_accept_the_forms_that_the_page_counts(table: Table) -> None:
    assert [answer for answer in table.refused if table.grade(answer)] == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: number("1", 1, units={"m": 1.0}),
        lambda: number("1", 1, unit_required=True),
        lambda: same_items("a", "a"),
        lambda: same_sequence("a", ["a", " "]),
        lambda: similar_text("a", ""),
        lambda: similar_text("a", "a", at_least=0),
        lambda: similar_text("a", "a", at_least=1.1),
        lambda: json_valid("1", {"if": {}}),
        lambda: json_valid("1", {"items": {"dependentSchemas": {}}}),
        lambda: json_valid("1", {"$ref": "#/$defs/missing"}),
        lambda: json_valid("1", {"$ref": "https://example.com/schema"}),
        lambda: json_valid("1", {"$ref": "#"}),
        lambda: sql_result("SELECT 1", "SELECT * FROM missing", "CREATE TABLE t (a)"),
        lambda: sql_result("SELECT 1", "SELECT 1", "CREATE TABLE"),
        lambda: sql_result("SELECT 1", "DELETE FROM t", "CREATE TABLE t (a)"),
        lambda: passes_tests("", "solve", []),
    ],
)
def test_arguments_that_no_answer_could_satisfy_raise(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()


def test_reasons_never_repeat_the_expected_answer() -> None:
    grades = [
        number("7 m", "4711", unit="m"), same_items("x", ["canary"]), same_sequence("x, y", ["x", "canary"]),
        json_equal('{"a": 1}', {"a": "canary"}), json_equal("[1]", ["canary", "canary"]), similar_text("x", "canary"),
        sql_result("SELECT a FROM t", "SELECT b AS canary FROM t", "CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'canary')"),
    ]  # fmt: skip
    for grade in grades:
        assert grade.score == 0.0 and grade.reason and "canary" not in grade.reason and "4711" not in grade.reason


@pytest.mark.parametrize(
    "answer",
    [
        "\ud800",
        "\0",
        "SELECT '\ud800'",
        "1e999",
        "[1e999, 2]",
        '{"a":' * 900 + "1" + "}" * 900,
        "[" * 900 + "]" * 900,
        "1" * 4400,
        "1" + "0" * 400,
    ],
)
def test_hostile_answers_are_wrong_and_raise_nothing(answer: str) -> None:
    anything = {
        "anyOf": [
            {"type": "object", "additionalProperties": {"$ref": "#"}},
            {"type": "array", "items": {"$ref": "#"}},
            {"type": "number", "multipleOf": 0.01, "maximum": 9},
        ]
    }
    grades = [
        same_items(answer, ["a"]), json_equal(answer, [1.5, 2]), json_valid(answer, {**anything, "not": {"type": "array"}, "maxProperties": 0}), similar_text(answer, "a"),
        sql_result(answer, "SELECT 1", "CREATE TABLE t (a)"), number(answer, 1, unit="m"),
    ]  # fmt: skip
    assert [grade.score for grade in grades] == [0.0] * 6


def test_a_number_beyond_floats_is_compared() -> None:
    huge = "1" + "0" * 400
    assert not json_equal(huge, 12.5) and json_equal(huge, 10**400)
    assert json_valid(huge, {"multipleOf": 0.5, "minimum": 1.5}) and not json_valid("1e999", {"multipleOf": 0.5})
    assert json_equal("0.3", 0.1 + 0.2, tolerance=1e-9) and not json_equal("0.3", 0.31, tolerance=1e-9)


def test_a_field_that_the_policy_names_is_shortened_in_the_reason() -> None:
    grade = json_valid('{"' + "x" * 10_000 + '": 1}', {"additionalProperties": False})
    assert not grade and len(grade.reason) < 200


def test_an_empty_unit_is_a_unit_like_any_other() -> None:
    assert number("0.5", 50, unit="%", units={"": 100}) and number("50 %", 50, unit="%", units={"": 100})


def test_many_equal_items_are_matched() -> None:
    assert same_items(", ".join(["a"] * 1200), ["a"] * 1200)
    assert not same_items(", ".join(["a"] * 1199 + ["b"]), ["a"] * 1200)
    assert same_items(", ".join(["1.0"] * 150), ["1"] * 150, item=number)


def test_two_numbers_are_unique_if_they_differ() -> None:
    unique = {"uniqueItems": True}
    assert json_valid('[1, true, "1", [1], {"a": 1}, null]', unique)
    assert not json_valid("[1, 1.0]", unique) and not json_valid('[{"a": [1]}, {"a": [1.0]}]', unique)
    assert json_valid("[" + ", ".join(map(str, range(100_000))) + "]", unique)


def test_an_ordered_query_must_return_its_rows_in_order() -> None:
    table = "CREATE TABLE t (a); INSERT INTO t VALUES (2), (1)"
    assert sql_result("SELECT a FROM t ORDER BY a DESC", "SELECT a FROM t ORDER BY a", table)
    assert not sql_result("SELECT a FROM t ORDER BY a DESC", "SELECT a FROM t ORDER BY a", table, ordered=True)


def test_a_query_with_many_rows_or_bytes_is_wrong_and_ends() -> None:
    numbers = "CREATE TABLE t (a); WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 200) INSERT INTO t SELECT x FROM n"
    for query in (
        "SELECT a.a FROM t a, t b",
        "SELECT a.a FROM t a, t b, t c, t d, t e ORDER BY 1",
        "SELECT zeroblob(1000000000) FROM t",
    ):
        assert not sql_result(query, "SELECT a FROM t", numbers)


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_distance_equals_that_of_the_whole_matrix(one: str, other: str) -> None:
    row = list(range(len(other) + 1))
    for i, char in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, letter in enumerate(other, 1):
            diagonal, row[j] = row[j], min(diagonal + (char != letter), row[j] + 1, row[j - 1] + 1)
    for most in range(14):
        assert distance(one, other, most) == (row[-1] if row[-1] <= most else None)


@pytest.mark.ci(keep=2)
@pytest.mark.parametrize(
    "text",
    ["<answer>", "</answer>", r"\boxed{", "{", "</think>", "<think>", "[", ", ", " and ", "\n", "- a\n", "```json\n"],
)
def test_a_reply_of_a_million_characters_is_graded_in_linear_work(text: str) -> None:
    """Each of these would take minutes if the work grew with the square of the length."""
    reply = text * (1_000_000 // len(text))
    assert tagged(reply) == "" and boxed(reply) == "" and json_field(reply) == "" and last_line(reply) == ""
    for grade in (
        same_items(reply, ["a"]),
        json_equal(reply, 1),
        json_valid(reply, {"type": "integer"}),
        similar_text(reply, "a b"),
        number(reply, 1, unit="m"),
    ):
        assert grade.score == 0.0
